#if defined(__x86_64__)
#define RL_TARGET avx2
#define RL_VECTOR "vector_avx2.hpp"
#include "target_kernels.hpp"
#endif

#if defined(__x86_64__)
#define RL_TARGET avx512
#define RL_VECTOR "vector_avx512.hpp"
#include "target_kernels.hpp"
#endif

#define RL_TARGET portable
#define RL_VECTOR "vector_portable.hpp"
#include "target_kernels.hpp"

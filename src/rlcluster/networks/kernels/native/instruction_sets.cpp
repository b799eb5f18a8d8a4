#include "instruction_sets.hpp"

namespace rl {

const Kernels* find_kernels(int instruction_set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (instruction_set == kAvx512) {
    const bool is_supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return is_supported ? &avx512::kernels : nullptr;
  }
  if (instruction_set == kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2::kernels : nullptr;
  }
#endif
  return instruction_set == kPortable ? &portable::kernels : nullptr;
}

}  // namespace rl

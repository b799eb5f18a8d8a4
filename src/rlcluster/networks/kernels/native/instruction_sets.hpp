// The kernels of both networks, and of the peaks, for each instruction set; the processor decides which of them run.
#pragma once
#include "impala.hpp"
#include "nature.hpp"
#include "peaks.hpp"

namespace rl {

enum InstructionSet { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

struct Kernels {
  ImpalaKernels impala;
  NatureKernels nature;
  PeakKernels peak;
};

namespace portable {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

// Null where the processor lacks the instructions.
const Kernels* find_kernels(int instruction_set);

}  // namespace rl

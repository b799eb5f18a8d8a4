// The kernels for one instruction set. Only plain functions of this file: an inline function of the standard library
// compiled here could be chosen by the linker for machines that lack the instructions.
#if defined(__x86_64__)
#include "vector_avx2.hpp"
// the vectors come first
#include "layers.hpp"
#include "nature_passes.hpp"

const Kernels kAvx2Kernels = {forward, backward, layer_alone};
const NatureKernels kAvx2Nature = {nature_forward, nature_backward};
#endif

// The kernels for one instruction set. Only plain functions of this file: an inline function of the standard library
// compiled here could be chosen by the linker for machines that lack the instructions.
#include "vector_portable.hpp"
// the vectors come first
#include "layers.hpp"
#include "nature_passes.hpp"

const Kernels kPortableKernels = {forward, backward, layer_alone};
const NatureKernels kPortableNature = {nature_forward, nature_backward};

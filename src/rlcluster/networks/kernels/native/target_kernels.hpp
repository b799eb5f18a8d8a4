// All kernels of one instruction set: each kernels_<target>.cpp chooses one (vector.hpp) and includes this file.
// No header of vector code may use an inline function of the standard library: the linker could keep the copy compiled
// here for the whole library, with instructions that the processor may lack. test_build.py checks the symbols.
#pragma once
#include "impala_layers.hpp"
#include "impala_passes.hpp"
#include "instruction_sets.hpp"
#include "nature_passes.hpp"
#include "peak.hpp"

namespace rl::RL_TARGET {

const Kernels kernels = {{impala_forward, impala_backward, impala_layer_alone},
                         {nature_forward, nature_backward},
                         {multiply_adds, read_all}};

}  // namespace rl::RL_TARGET

// One namespace per instruction set: a kernels_<target>.cpp defines RL_TARGET, its name, and RL_VECTOR, its vectors.
// All vector code is in rl::RL_TARGET, in headers that include this one: without a target, or with two, none compiles.
// Only the table of kernels has external linkage (the rest is in unnamed namespaces): the linker cannot mix targets.
#pragma once
#if !defined(RL_TARGET) || !defined(RL_VECTOR)
#error "vector code needs an instruction set: define RL_TARGET and RL_VECTOR as kernels_portable.cpp does"
#endif

#include RL_VECTOR

#if defined(__clang__)
#define RL_UNROLL _Pragma("unroll")
#else
#define RL_UNROLL _Pragma("GCC unroll 32")
#endif

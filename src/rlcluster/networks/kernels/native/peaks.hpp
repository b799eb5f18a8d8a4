// What some threads can do at most on this machine.
#pragma once
#include <cstddef>
#include <cstdint>

namespace rl {

struct PeakKernels {
  int64_t (*multiply_adds)(int64_t rounds, float* sink);
  void (*read_all)(const float* values, size_t count, float* sink);
};

// Floating-point operations per second of all threads together.
double peak_flops(const PeakKernels& kernels, int num_threads, double seconds);

// Bytes per second that all threads together read, each from memory of its own: `bytes` decide from which cache.
double peak_bandwidth(const PeakKernels& kernels, int num_threads, size_t bytes, double seconds);

}  // namespace rl

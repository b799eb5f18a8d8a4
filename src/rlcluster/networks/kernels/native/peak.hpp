// What a core can do at most with these instructions: a roofline's two limits, and the yardstick of the benchmarks.
#pragma once
#include <cstddef>
#include <cstdint>

#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

// As many independent sums as registers hold beside two factors: enough to hide the latency of a multiply-add.
constexpr int kIndependentSums = kRegisters - 4;

// `rounds` multiply-adds into each sum; returns the number of floating-point operations. The factors keep the sums
// finite, and `sink` [kLanes] keeps the loop from being removed.
int64_t multiply_adds(int64_t rounds, float* sink) {
  const Vector shrink = broadcast(0.5F), grow = broadcast(1.0F);
  Vector sums[kIndependentSums];
  RL_UNROLL
  for (int k = 0; k < kIndependentSums; k++) sums[k] = broadcast(static_cast<float>(k));
  for (int64_t round = 0; round < rounds; round++) {
    RL_UNROLL
    for (int k = 0; k < kIndependentSums; k++) sums[k] = multiply_add(sums[k], shrink, grow);
  }
  Vector total = sums[0];
  RL_UNROLL
  for (int k = 1; k < kIndependentSums; k++) total = add(total, sums[k]);
  store(sink, total);
  return 2 * rounds * kIndependentSums * kLanes;
}

// Reads `count` floats, a multiple of 8 vectors.
void read_all(const float* values, size_t count, float* sink) {
  constexpr int kStreams = 8;
  Vector sums[kStreams];
  RL_UNROLL
  for (int k = 0; k < kStreams; k++) sums[k] = broadcast(0);
  for (size_t i = 0; i < count; i += kStreams * kLanes) {
    RL_UNROLL
    for (int k = 0; k < kStreams; k++) sums[k] = add(sums[k], load(values + i + k * kLanes));
  }
  Vector total = sums[0];
  RL_UNROLL
  for (int k = 1; k < kStreams; k++) total = add(total, sums[k]);
  store(sink, total);
}

}  // namespace
}  // namespace rl::RL_TARGET

// The time that one thread spends in each layer, in a profiled run. Data only, and functions with one definition for all
// instruction sets (layer_clock.cpp).
#pragma once
#include <cstdint>

namespace rl {

enum Pass { kForwardPass = 0, kBackwardPass = 1, kPasses = 2 };
constexpr int kMaxLayers = 16;

struct LayerClock {
  int64_t since;  // nanoseconds
  int64_t nanoseconds[kPasses][kMaxLayers];
};

// Both do nothing without a clock. A work item calls `start` once, and `lap` at the end of each layer: the time since the
// last call is that layer's, with the pooling or unpooling next to it.
void start(LayerClock* clock);
void lap(LayerClock* clock, Pass pass, int layer);

}  // namespace rl

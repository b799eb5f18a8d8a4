// One layer alone, for tests and benchmarks. Part of the C interface: library.py repeats it.
#pragma once
#include <cstdint>

namespace rl {

enum LayerKind { kLayerForward, kLayerBackward, kLayerPool, kLayerUnpool };

// Sizes are those of the convolution, before any pooling. `input` and `gradient` are padded images, except in pooling
// and in the first layer; nothing else is padded.
struct LayerTask {
  int kind;
  int index;
  int num_images, height, width;
  const uint8_t* images;  // the input of layer 0
  const float* input;
  const float* gradient;
  const float* residual;  // forward: the running sum; backward: its gradient
  float* sum;             // the new running sum, or the maxima of pooling
  float* output;
  uint8_t* positions;
  float* weight_sums;
  float* bias_sums;
};

}  // namespace rl

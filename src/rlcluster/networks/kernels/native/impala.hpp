// The impala network as all instruction sets see it: its shape, and the memory of a group of images.
//
// The trunk has 3 stages. Stage s: convolution, 3x3/2 max-pool, two residual blocks x + conv(relu(conv(relu(x)))). So a
// stage has 5 layers (convolutions), in the order of policy.py. All images are NHWC float32; a padded image has a
// border of one zero pixel, so that a convolution needs no special case at an edge.
//
// Data only: a function with external linkage would be compiled once per instruction set under one name.
#pragma once
#include <cstddef>
#include <cstdint>

#include "layer_clock.hpp"
#include "layer_task.hpp"

namespace rl {

constexpr int kStages = 3;
constexpr int kLayersPerStage = 5;
constexpr int kImpalaLayers = kStages * kLayersPerStage;
constexpr int kImageChannels = 3;
constexpr int kStageChannels[kStages] = {16, 32, 32};
constexpr int kFirstTaps = 9 * kImageChannels;
constexpr int kProducts = 36;  // per tile: Winograd F(4x4, 3x3) works on 6x6 values

// Images that go through the later stages together: enough tiles at 8x8 to fill a block, few enough for the L2 cache.
constexpr int kImpalaGroup = 4;

// The padded images that a stage keeps: the input of each convolution (in the residual blocks: after its ReLU).
enum Field { kFirstInput, kFirstInner, kSecondInput, kSecondInner, kStageOutput, kFields };

struct Stage {
  int channels, height, width;  // after pooling
  size_t padded;                // floats of a padded image
  size_t plain;                 // floats of an image without a border
};

struct ImpalaGeometry {
  int height, width;  // of an input image
  Stage stages[kStages];
  size_t num_features;
  size_t field_offset[kStages][kFields];  // floats from the start of an image's saved record
  size_t position_offset[kStages];        // bytes from the start of the record: the positions of the maxima
  size_t saved_bytes;                     // of a record
};

// Where the activations of a group of images are: in the saved records of training, or in a thread's scratch memory.
struct ImpalaActivations {
  float* fields[kStages][kFields];
  ptrdiff_t image[kStages];     // floats from one image to the next
  uint8_t* positions[kStages];  // null when acting
  ptrdiff_t positions_image;    // bytes from one image to the next
  bool clear_borders;
};

// The parameters in the layout of the kernels.
struct ImpalaWeights {
  const float* first;                    // [27, 16], scaled by 1/255
  const float* forward[kImpalaLayers];   // [36, inputs, outputs]; none for layer 0
  const float* backward[kImpalaLayers];  // [36, outputs, inputs], of the rotated kernel; none for layer 0
  const float* bias[kImpalaLayers];
};

// Sums of gradients, in the transformed domain: [36, inputs, outputs] (layer 0: [27, 16]).
struct ImpalaSums {
  float* weights[kImpalaLayers];
  float* biases[kImpalaLayers];
};

// One thread's memory, zero at first. Nothing writes to a border.
struct ImpalaScratch {
  float* tiles;                    // transformed tiles of a block: of the input, or of the gradient
  float* products;                 // their products, or the expanded tiles of the input
  float* image;                    // an input image: padded, as floats
  float* rows;                     // 4 rows of the first layer's output
  float* convolved;                // one image: a stage's convolution before pooling; backward: layer 0's gradient
  float* residual[kStages];        // [group] images without a border: the running sum of a stage
  float* acting[kStages][2];       // [group] padded images
  float* gradient[kStages];        // [group] padded images: of the running sum
  float* inner_gradient[kStages];  // [group] padded images: of a block's inner activation
  float* unpooled[kStages];        // padded gradient before pooling: one image in stage 2, a group in stage 3
  LayerClock* clock;               // null unless the run is profiled
};

struct ImpalaTask {
  const ImpalaGeometry* geometry;
  const ImpalaWeights* weights;
  const uint8_t* images;
  int num_images;
  ImpalaActivations activations;
  float* features;  // [num_images, channels * height * width], in that order, after the last ReLU
  const float* features_gradient;
  ImpalaSums sums;
};

struct ImpalaKernels {
  void (*forward)(const ImpalaTask&, ImpalaScratch&);
  void (*backward)(const ImpalaTask&, ImpalaScratch&);
  void (*layer)(const LayerTask&, const ImpalaWeights&, ImpalaScratch&);
};

// The largest block of tiles of any instruction set, and the distance between two of the 36 values of its tiles: the
// extra cache line keeps them from falling into the same few sets of the L1 cache.
constexpr int kMaxTiles = 16;
static constexpr int pitch(int channels) { return kMaxTiles * channels + 16; }

}  // namespace rl

// What the three instruction sets share: the shape of the network, and the memory of a group of images.
//
// The trunk is 3 stages. Stage s: convolution, 3x3/2 max-pool, two residual blocks x + conv(relu(conv(relu(x)))). So a
// stage has 5 layers (convolutions), in the order in which policy.py holds them. All images are NHWC float32; a padded
// image has a border of one zero pixel, so that a convolution needs no special case at an edge.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int kStages = 3;
constexpr int kLayersPerStage = 5;
constexpr int kLayers = kStages * kLayersPerStage;
constexpr int kPictureChannels = 3;
constexpr int kStageChannels[kStages] = {16, 32, 32};
constexpr int kFirstTaps = 9 * kPictureChannels;
constexpr int kProducts = 36;  // of one tile: Winograd F(4x4, 3x3) works on 6x6 values

// Images that go through the later stages together: enough tiles at 8x8 to fill a block, few enough for the L2 cache.
constexpr int kGroup = 4;

// The padded images that a stage keeps: the input of each convolution (of the residual blocks: after its ReLU).
enum Field { kFirstInput, kFirstInner, kSecondInput, kSecondInner, kStageOutput, kFields };

struct Stage {
  int channels, height, width;  // after pooling
  size_t padded;                // floats of a padded image
  size_t plain;                 // floats of an image without a border
};

struct Geometry {
  int height, width;  // of a picture
  Stage stages[kStages];
  size_t num_features;
  size_t field_offset[kStages][kFields];  // floats from the start of an image's saved record
  size_t position_offset[kStages];        // bytes from the start of the record: where each maximum came from
  size_t saved_bytes;                     // of a record
};

// Pixel (y, x) of image i lies at origin + i * image + y * row + x * channels.
struct Plane {
  float* origin = nullptr;
  ptrdiff_t row = 0;
  ptrdiff_t image = 0;
};

// Where the activations of a group of images are: in the records that training keeps, or in a thread's scratch memory.
struct Activations {
  float* fields[kStages][kFields];
  ptrdiff_t image[kStages];        // floats from one image to the next
  uint8_t* positions[kStages];     // null when acting
  ptrdiff_t positions_image;       // bytes from one image to the next
  bool clear_borders;
};

// The parameters as the kernels want them.
struct Weights {
  const float* first;               // [27, 16], scaled by 1/255
  const float* forward[kLayers];    // [36, inputs, outputs]; none for layer 0
  const float* backward[kLayers];   // [36, outputs, inputs], of the rotated kernel; none for layer 0
  const float* bias[kLayers];
};

// Sums of gradients, in the transformed domain: [36, inputs, outputs] (layer 0: [27, 16]).
struct GradientSums {
  float* weights[kLayers];
  float* biases[kLayers];
};

// One thread's memory. All of it is zero at first, and nothing writes to a border.
struct Scratch {
  float* tiles;           // transformed tiles of a block: of the input, or of the gradient
  float* products;        // their products, or the expanded tiles of the input
  float* picture;         // padded, as floats
  float* rows;            // 4 rows of the first layer's output
  float* convolved;       // a stage's convolution before pooling, one image; in backward the first layer's gradient
  float* residual[kStages];       // [group] images without border: the running sum of a stage
  float* acting[kStages][2];      // [group] padded images
  float* gradient[kStages];       // [group] padded images: of the running sum
  float* inner_gradient[kStages]; // [group] padded images: of a block's inner activation
  float* unpooled[kStages];       // padded, of a stage's convolution: one image for the second stage, a group for the third
};

struct ForwardTask {
  const Geometry* geometry;
  const Weights* weights;
  const uint8_t* pictures;
  int num_images;
  Activations activations;
  float* features;  // [num_images, channels * height * width], in that order, after the last ReLU
};

struct BackwardTask {
  const Geometry* geometry;
  const Weights* weights;
  const uint8_t* pictures;
  int num_images;
  Activations activations;
  const float* features;
  const float* features_gradient;
  GradientSums sums;
};

enum LayerKind { kLayerForward, kLayerBackward, kLayerPool, kLayerUnpool };

// One layer alone (layers.hpp). Sizes are those of the convolution, before any pooling. `input` and `gradient` are
// padded images, but for pooling and for the first layer; all else is not padded.
struct LayerTask {
  int kind;
  int index;
  int num_images, height, width;
  const uint8_t* pictures;  // the input of layer 0
  const float* input;
  const float* gradient;
  const float* residual;    // forward: the running sum; backward: the gradient of it
  float* sum;               // the new running sum, or the maxima of pooling
  float* output;
  uint8_t* positions;
  float* weight_sums;
  float* bias_sums;
};

struct Kernels {
  void (*forward)(const ForwardTask&, Scratch&);
  void (*backward)(const BackwardTask&, Scratch&);
  void (*layer)(const LayerTask&, const Weights&, Scratch&);
};

// Largest block of tiles of any instruction set, and the distance between two of the 36 values of its tiles: the extra
// line keeps them from falling into the same few sets of the L1 cache.
constexpr int kMaxTiles = 16;
constexpr int pitch(int channels) { return kMaxTiles * channels + 16; }

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

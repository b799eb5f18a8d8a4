// The nature network (Mnih et al. 2015) as all instruction sets see it: three convolutions without padding, each with
// bias and ReLU, on images of 64x64 pixels. All images are NHWC float32.
//
// Data only: a function with external linkage would be compiled once per instruction set under one name.
#pragma once
#include <cstddef>
#include <cstdint>

#include "layer_clock.hpp"

namespace rl {

constexpr int kNatureLayers = 3;
constexpr int kNatureSide = 64;   // of an input image
constexpr int kNatureGroup = 4;   // images whose gradients are summed together

// One convolution: from images of `input_side` with `inputs` channels.
struct NatureLayer {
  int inputs, outputs, kernel, stride, input_side, side;
  int row;    // floats of an input row
  int image;  // floats of an input image
  int num_weights;
};

static constexpr NatureLayer nature_layer(int inputs, int outputs, int kernel, int stride, int input_side) {
  const int row = input_side * inputs, side = (input_side - kernel) / stride + 1;
  return {inputs, outputs, kernel, stride, input_side, side, row, input_side * row, kernel * kernel * inputs * outputs};
}

constexpr NatureLayer kNature[kNatureLayers] = {
    nature_layer(3, 32, 8, 4, kNatureSide),  // to 15x15
    nature_layer(32, 64, 4, 2, 15),          // to 6x6
    nature_layer(64, 64, 3, 1, 6),           // to 4x4
};
constexpr int kNatureFeatures = 4 * 4 * 64;
constexpr int kNatureSaved = kNature[1].image + kNature[2].image;  // floats per image

// The gradients of layers 2 and 3 are 8x8 images with a border of zeros: 1 pixel for layer 2, 2 pixels for layer 3.
constexpr int kGradientSide = 8, kGradientRow = kGradientSide * 64, kGradientImage = kGradientSide * kGradientRow;

// The parameters in the layout of the kernels.
struct NatureWeights {
  const float* forward[kNatureLayers];  // [kernel, kernel, inputs, outputs]; layer 1 scaled by 1/255
  const float* backward_third;          // [3, 3, outputs, inputs], rotated
  const float* backward_second[4];      // [2, 2, outputs, inputs] for each parity of row and column
  const float* bias[kNatureLayers];
};

// Sums of gradients.
struct NatureSums {
  float* weights[kNatureLayers];  // as `forward`
  float* biases[kNatureLayers];
};

// One thread's memory, zero at first. Borders, and the last row and column of `first_gradient`, stay zero.
struct NatureScratch {
  float* images;           // [group] as floats
  float* activations[2];   // results of layers 1 and 2 when acting
  float* last;             // [4, 4, 64]
  float* first_gradient;   // [group, 15, 15, 32]
  float* second_gradient;  // [group, 8, 8, 64]
  float* third_gradient;   // [group, 8, 8, 64]
  LayerClock* clock;       // null unless the run is profiled
};

struct NatureTask {
  const NatureWeights* weights;
  const uint8_t* images;
  int num_images;
  float* saved;     // [num_images, results of layers 1 and 2], or null when acting
  float* features;  // [num_images, 64 * 16], channels before pixels
  const float* features_gradient;
  NatureSums sums;
};

struct NatureKernels {
  void (*forward)(const NatureTask&, NatureScratch&);
  void (*backward)(const NatureTask&, NatureScratch&);
};

}  // namespace rl

// What the three instruction sets share of the nature network (Mnih et al. 2015): three convolutions without padding,
// each with bias and ReLU, on pictures of 64x64 pixels. All images are NHWC float32.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int kNatureLayers = 3;
constexpr int kNaturePicture = 64;
constexpr int kNatureGroup = 4;  // images whose gradients are summed together

// One convolution: from images of `input_side` with `inputs` channels.
struct NatureLayer {
  int inputs, outputs, kernel, stride, input_side, side;
  constexpr int row() const { return input_side * inputs; }              // floats of an input row
  constexpr int image() const { return input_side * row(); }             // floats of an input image
  constexpr int num_weights() const { return kernel * kernel * inputs * outputs; }
};

constexpr NatureLayer kNature[kNatureLayers] = {
    {3, 32, 8, 4, 64, 15},
    {32, 64, 4, 2, 15, 6},
    {64, 64, 3, 1, 6, 4},
};
constexpr int kNatureFeatures = 4 * 4 * 64;

// The gradients of layers 2 and 3 stand in 8x8 images with a border of zeros: 1 pixel for layer 2, 2 for layer 3.
constexpr int kGradientSide = 8, kGradientRow = kGradientSide * 64, kGradientImage = kGradientSide * kGradientRow;

struct NatureWeights {
  const float* forward[kNatureLayers];  // [kernel, kernel, inputs, outputs]; layer 1 scaled by 1/255
  const float* backward_third;          // [3, 3, outputs, inputs], rotated
  const float* backward_second[4];      // [2, 2, outputs, inputs] for each parity of row and column
  const float* bias[kNatureLayers];
};

struct NatureSums {
  float* weights[kNatureLayers];  // as `forward`
  float* biases[kNatureLayers];
};

// One thread's memory, zero at first. Borders, and the last row and column of `first_gradient`, stay zero.
struct NatureScratch {
  float* pictures;         // [group] as floats
  float* activations[2];   // results of layers 1 and 2 when acting
  float* last;             // [4, 4, 64]
  float* first_gradient;   // [group, 15, 15, 32]
  float* second_gradient;  // [group, 8, 8, 64]
  float* third_gradient;   // [group, 8, 8, 64]
};

struct NatureTask {
  const NatureWeights* weights;
  const uint8_t* pictures;
  int num_images;
  float* saved;  // [num_images, results of layers 1 and 2], or null when acting
  float* features;                  // [num_images, 64 * 16], channels before pixels
  const float* features_gradient;
  NatureSums sums;
};

constexpr int kNatureSaved = kNature[1].image() + kNature[2].image();  // floats of an image

struct NatureKernels {
  void (*forward)(const NatureTask&, NatureScratch&);
  void (*backward)(const NatureTask&, NatureScratch&);
};

extern const NatureKernels kPortableNature;
#if defined(__x86_64__)
extern const NatureKernels kAvx2Nature;
extern const NatureKernels kAvx512Nature;
#endif

// The nature network's convolutions are direct: products of small matrices whose rows are the patches of the pixels,
// read in place. An image stays in the caches from its bytes to its features.
#pragma once
#include "nature.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

constexpr int kDirectColumns = 2;  // vectors of outputs at once: every broadcast serves two multiply-adds
constexpr int kDirectWidth = kDirectColumns * kLanes;

// result(y, x) = sum over the kernel of input * weights [kernel, kernel, inputs, outputs]; `finish` takes each vector.
// kRows x kPixels results are held in registers.
template <int kInputs, int kOutputs, int kKernel, int kStride, int kSide, int kRows, int kPixels, class Finish>
inline void correlate(const float* input, int row, const float* weights, Finish finish) {
  static_assert(kSide % kRows == 0 && kSide % kPixels == 0 && kOutputs % kDirectWidth == 0);
  constexpr int kCount = kRows * kPixels, kRun = kKernel * kInputs;
  for (int first = 0; first < kOutputs; first += kDirectWidth) {
    for (int y = 0; y < kSide; y += kRows) {
      for (int x = 0; x < kSide; x += kPixels) {
        Vector sums[kCount][kDirectColumns];
        RL_UNROLL
        for (int i = 0; i < kCount * kDirectColumns; i++) {
          sums[i / kDirectColumns][i % kDirectColumns] = broadcast(0);
        }
        for (int i = 0; i < kKernel; i++) {
          const float* values = input + (y * kStride + i) * row + x * kStride * kInputs;
          const float* w = weights + i * kRun * kOutputs + first;
          for (int k = 0; k < kRun; k++) {
            Vector line[kDirectColumns];
            RL_UNROLL
            for (int c = 0; c < kDirectColumns; c++) line[c] = load(w + k * kOutputs + c * kLanes);
            RL_UNROLL
            for (int q = 0; q < kCount; q++) {
              const int at = q / kPixels * kStride * row + q % kPixels * kStride * kInputs;
              const Vector value = broadcast(values[at + k]);
              RL_UNROLL
              for (int c = 0; c < kDirectColumns; c++) sums[q][c] = multiply_add(value, line[c], sums[q][c]);
            }
          }
        }
        RL_UNROLL
        for (int i = 0; i < kCount * kDirectColumns; i++) {
          const int q = i / kDirectColumns, c = i % kDirectColumns;
          finish(y + q / kPixels, x + q % kPixels, first + c * kLanes, sums[q][c]);
        }
      }
    }
  }
}

// Adds the gradients of these images to weight_sums [kernel, kernel, inputs, outputs] and bias_sums. Rows and images of
// the output's gradient are `gradient_row` and `gradient_image` floats apart.
template <int kLayer, int kTaps>
void accumulate_direct(const float* inputs, int input_image, const float* gradients, int gradient_row,
                       int gradient_image, int num_images, float* weight_sums, float* bias_sums) {
  constexpr NatureLayer l = kNature[kLayer];
  constexpr int kRun = l.kernel * l.inputs;
  static_assert(kRun % kTaps == 0);
  for (int first = 0; first < l.outputs; first += kDirectWidth) {
    for (int block = 0; block < l.kernel * kRun; block += kTaps) {
      const float* start = inputs + block / kRun * l.row + block % kRun;
      float* target = weight_sums + block * l.outputs + first;
      Vector sums[kTaps][kDirectColumns];
      RL_UNROLL
      for (int i = 0; i < kTaps * kDirectColumns; i++) {
        const int at = i / kDirectColumns * l.outputs + i % kDirectColumns * kLanes;
        sums[i / kDirectColumns][i % kDirectColumns] = load(target + at);
      }
      for (int image = 0; image < num_images; image++) {
        for (int y = 0; y < l.side; y++) {
          const float* values = start + image * input_image + y * l.stride * l.row;
          const float* g = gradients + image * gradient_image + y * gradient_row + first;
          for (int x = 0; x < l.side; x++, values += l.stride * l.inputs, g += l.outputs) {
            Vector line[kDirectColumns];
            RL_UNROLL
            for (int c = 0; c < kDirectColumns; c++) line[c] = load(g + c * kLanes);
            RL_UNROLL
            for (int t = 0; t < kTaps; t++) {
              const Vector value = broadcast(values[t]);
              RL_UNROLL
              for (int c = 0; c < kDirectColumns; c++) sums[t][c] = multiply_add(value, line[c], sums[t][c]);
            }
          }
        }
      }
      RL_UNROLL
      for (int i = 0; i < kTaps * kDirectColumns; i++) {
        const int at = i / kDirectColumns * l.outputs + i % kDirectColumns * kLanes;
        store(target + at, sums[i / kDirectColumns][i % kDirectColumns]);
      }
    }
  }
  for (int c = 0; c < l.outputs; c += kLanes) {
    Vector sum = load(bias_sums + c);
    for (int row = 0; row < num_images * l.side; row++) {
      const float* g = gradients + row / l.side * gradient_image + row % l.side * gradient_row + c;
      for (int x = 0; x < l.side; x++) sum = add(sum, load(g + x * l.outputs));
    }
    store(bias_sums + c, sum);
  }
}

inline void unpack_images(const uint8_t* images, int num_images, float* floats) {
  for (int i = 0; i < num_images * kNature[0].image; i += kLanes) store(floats + i, load_bytes(images + i));
}

// relu(convolution + bias) of one image.
template <int kLayer, int kRows, int kPixels>
inline void forward_direct(const NatureWeights& weights, const float* input, float* output) {
  constexpr NatureLayer l = kNature[kLayer];
  const float* bias = weights.bias[kLayer];
  correlate<l.inputs, l.outputs, l.kernel, l.stride, l.side, kRows, kPixels>(
      input, l.row, weights.forward[kLayer], [&](int y, int x, int c, Vector sum) {
        store(output + (y * l.side + x) * l.outputs + c, relu(add(sum, load(bias + c))));
      });
}

constexpr bool kHasManyRegisters = kRegisters == 32;

void nature_forward(const NatureTask& task, NatureScratch& scratch) {
  const int num_pixels = kNature[2].side * kNature[2].side, channels = kNature[2].outputs;
  for (int i = 0; i < task.num_images; i++) {
    float* saved = task.saved != nullptr ? task.saved + static_cast<ptrdiff_t>(i) * kNatureSaved : nullptr;
    float* first = saved != nullptr ? saved : scratch.activations[0];
    float* second = saved != nullptr ? first + kNature[1].image : scratch.activations[1];
    start(scratch.clock);
    unpack_images(task.images + static_cast<ptrdiff_t>(i) * kNature[0].image, 1, scratch.images);
    forward_direct<0, kHasManyRegisters ? 3 : 1, kHasManyRegisters ? 3 : 5>(*task.weights, scratch.images, first);
    lap(scratch.clock, kForwardPass, 0);
    forward_direct<1, kHasManyRegisters ? 2 : 1, 6>(*task.weights, first, second);
    lap(scratch.clock, kForwardPass, 1);
    forward_direct<2, kHasManyRegisters ? 2 : 1, 4>(*task.weights, second, scratch.last);
    float* features = task.features + static_cast<ptrdiff_t>(i) * kNatureFeatures;
    for (int p = 0; p < num_pixels; p++) {
      for (int c = 0; c < channels; c++) features[c * num_pixels + p] = scratch.last[p * channels + c];
    }
    lap(scratch.clock, kForwardPass, 2);
  }
}

// The gradient of the features through the last ReLU, into the middle of an 8x8 image.
inline void read_gradient(const float* features, const float* gradient, float* padded) {
  const int side = kNature[2].side, num_pixels = side * side, channels = kNature[2].outputs;
  for (int p = 0; p < num_pixels; p++) {
    float* pixel = padded + (p / side + 2) * kGradientRow + (p % side + 2) * channels;
    for (int c = 0; c < channels; c++) {
      const int k = c * num_pixels + p;
      pixel[c] = features[k] != 0 ? gradient[k] : 0;
    }
  }
}

// From the gradient of layer 3's result to that of layer 2's, with its ReLU.
inline void backward_third(const NatureWeights& weights, const float* gradient, const float* second, float* result) {
  constexpr NatureLayer l = kNature[2];
  correlate<l.outputs, l.inputs, 3, 1, 6, kHasManyRegisters ? 2 : 1, 6>(
      gradient, kGradientRow, weights.backward_third, [&](int y, int x, int c, Vector sum) {
        const Vector gate = load(second + y * l.row + x * l.inputs + c);
        store(result + (y + 1) * kGradientRow + (x + 1) * l.inputs + c, keep_where_nonzero(sum, gate));
      });
}

// From the gradient of layer 2's result to that of layer 1's, with its ReLU. A stride of 2 makes four convolutions of
// 2x2, one for each parity of row and column; layer 2 does not read the 15th row and column.
inline void backward_second(const NatureWeights& weights, const float* gradient, const float* first, float* result) {
  constexpr NatureLayer l = kNature[1];
  for (int parity = 0; parity < 4; parity++) {
    correlate<l.outputs, l.inputs, 2, 1, 7, 1, 7>(
        gradient, kGradientRow, weights.backward_second[parity], [&](int y, int x, int c, Vector sum) {
          const int at = (2 * y + parity / 2) * l.row + (2 * x + parity % 2) * l.inputs + c;
          store(result + at, keep_where_nonzero(sum, load(first + at)));
        });
  }
}

void nature_backward(const NatureTask& task, NatureScratch& scratch) {
  constexpr int kFirstImage = kNature[1].image;
  const int count = task.num_images;
  start(scratch.clock);
  for (int i = 0; i < count; i++) {
    const float* first = task.saved + static_cast<ptrdiff_t>(i) * kNatureSaved;
    const ptrdiff_t at = static_cast<ptrdiff_t>(i) * kNatureFeatures;
    float *second_gradient = scratch.second_gradient + i * kGradientImage,
          *third_gradient = scratch.third_gradient + i * kGradientImage;
    read_gradient(task.features + at, task.features_gradient + at, third_gradient);
    backward_third(*task.weights, third_gradient, first + kFirstImage, second_gradient);
    lap(scratch.clock, kBackwardPass, 2);
    backward_second(*task.weights, second_gradient, first, scratch.first_gradient + i * kFirstImage);
    lap(scratch.clock, kBackwardPass, 1);
  }
  unpack_images(task.images, count, scratch.images);
  constexpr int kTaps = kHasManyRegisters ? 12 : 6, kTapsOfPower = kHasManyRegisters ? 8 : 4;
  const NatureSums& sums = task.sums;
  accumulate_direct<0, kTaps>(scratch.images, kNature[0].image, scratch.first_gradient, kNature[1].row,
                              kFirstImage, count, sums.weights[0], sums.biases[0]);
  lap(scratch.clock, kBackwardPass, 0);
  accumulate_direct<1, kTapsOfPower>(task.saved, kNatureSaved, scratch.second_gradient + kGradientRow + 64,
                                     kGradientRow, kGradientImage, count, sums.weights[1], sums.biases[1]);
  lap(scratch.clock, kBackwardPass, 1);
  accumulate_direct<2, kTaps>(task.saved + kFirstImage, kNatureSaved, scratch.third_gradient + 2 * kGradientRow + 128,
                              kGradientRow, kGradientImage, count, sums.weights[2], sums.biases[2]);
  lap(scratch.clock, kBackwardPass, 2);
}

}  // namespace
}  // namespace rl::RL_TARGET

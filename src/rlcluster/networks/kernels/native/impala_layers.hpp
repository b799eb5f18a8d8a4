// One layer alone, with the templates of the whole trunk, on one thread: for tests against the definition and for
// benchmarks.
#pragma once
#include "impala.hpp"
#include "impala_first_layer.hpp"
#include "impala_plane.hpp"
#include "impala_pooling.hpp"
#include "impala_winograd.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

inline Plane padded_plane(const float* padded, int height, int width, int channels) {
  const ptrdiff_t row = ptrdiff_t{width + 2} * channels;
  return {const_cast<float*>(padded) + row + channels, row, (height + 2) * row};
}

inline Plane plain_plane(const float* pixels, int height, int width, int channels) {
  const ptrdiff_t row = ptrdiff_t{width} * channels;
  return {const_cast<float*>(pixels), row, height * row};
}

template <int kInputs, int kOutputs>
void forward_layer(const LayerTask& task, const ImpalaWeights& weights, ImpalaScratch& scratch) {
  const Plane input = padded_plane(task.input, task.height, task.width, kInputs);
  Output output;
  output.destination = plain_plane(task.output, task.height, task.width, kOutputs);
  output.bias = weights.bias[task.index];
  const float* kernel = weights.forward[task.index];
  const int layer_of_stage = task.index % kLayersPerStage;
  if (layer_of_stage == 0) {
    convolve<kInputs, kOutputs, kAddBias>(input, kernel, output, task.num_images, task.height, task.width, scratch);
  } else if (layer_of_stage % 2 == 1) {
    convolve<kInputs, kOutputs, kAddBias | kRelu>(input, kernel, output, task.num_images, task.height, task.width,
                                                  scratch);
  } else {
    output.add = plain_plane(task.residual, task.height, task.width, kOutputs);
    output.sum = plain_plane(task.sum, task.height, task.width, kOutputs);
    convolve<kInputs, kOutputs, kAddBias | kAdd | kStoreSum | kRelu>(input, kernel, output, task.num_images,
                                                                     task.height, task.width, scratch);
  }
}

template <int kInputs, int kOutputs>
void backward_layer(const LayerTask& task, const ImpalaWeights& weights, ImpalaScratch& scratch) {
  const Stage shape = {kOutputs, task.height, task.width, 0, 0};
  const Plane input = padded_plane(task.input, task.height, task.width, kInputs);
  const Plane gradient = padded_plane(task.gradient, task.height, task.width, kOutputs);
  Output output;
  output.destination = plain_plane(task.output, task.height, task.width, kInputs);
  output.gate = input;
  const float* kernel = weights.backward[task.index];
  const int layer_of_stage = task.index % kLayersPerStage;
  if (layer_of_stage == 0) {
    convolve_backward<kInputs, kOutputs, 0>(input, gradient, kernel, output, task.weight_sums, task.bias_sums,
                                            task.num_images, shape, scratch);
  } else if (layer_of_stage % 2 == 0) {
    convolve_backward<kInputs, kOutputs, kGate>(input, gradient, kernel, output, task.weight_sums, task.bias_sums,
                                                task.num_images, shape, scratch);
  } else {
    output.add = plain_plane(task.residual, task.height, task.width, kInputs);
    convolve_backward<kInputs, kOutputs, kGate | kAdd>(input, gradient, kernel, output, task.weight_sums,
                                                       task.bias_sums, task.num_images, shape, scratch);
  }
}

template <int kChannels>
void pool_layer(const LayerTask& task) {
  const ptrdiff_t row = ptrdiff_t{task.width} * kChannels;
  for (int y = 0; y < task.num_images * task.height / 2; y++) {
    const float* middle = task.input + 2 * y * row;
    const ptrdiff_t at = y * row / 2;
    pool_row<kChannels, true>(y % (task.height / 2) == 0 ? nullptr : middle - row, middle, middle + row, task.width,
                              task.sum + at, task.output + at, task.positions + at);
  }
}

// The gradient is padded, of one image; height and width are those before pooling.
template <int kChannels>
void unpool_layer(const LayerTask& task) {
  unpool<kChannels>(padded_plane(task.gradient, task.height / 2, task.width / 2, kChannels), task.positions,
                    task.height / 2, task.width / 2, plain_plane(task.output, task.height, task.width, kChannels));
}

void first_layer_alone(const LayerTask& task, const ImpalaWeights& weights, ImpalaScratch& scratch) {
  const ptrdiff_t row = ptrdiff_t{task.width} * kFirstChannels, padded_row = (task.width + 2) * kImageChannels;
  const ptrdiff_t image_bytes = ptrdiff_t{task.height} * task.width * kImageChannels;
  for (int i = 0; i < task.num_images; i++) {
    if (task.kind == kLayerBackward) {
      accumulate_first_gradients(task.images + i * image_bytes, task.height, task.width,
                                 task.gradient + i * task.height * row, task.weight_sums, task.bias_sums, scratch);
      continue;
    }
    unpack_image(task.images + i * image_bytes, task.height, task.width, scratch.image);
    for (int y = 0; y < task.height; y++) {
      convolve_first_row(scratch.image + y * padded_row, task.width, weights.first, weights.bias[0],
                         task.output + (ptrdiff_t{i} * task.height + y) * row);
    }
  }
}

template <int kInputs, int kOutputs>
void winograd_layer(const LayerTask& task, const ImpalaWeights& weights, ImpalaScratch& scratch) {
  if (task.kind == kLayerForward) {
    forward_layer<kInputs, kOutputs>(task, weights, scratch);
  } else {
    backward_layer<kInputs, kOutputs>(task, weights, scratch);
  }
}

void impala_layer_alone(const LayerTask& task, const ImpalaWeights& weights, ImpalaScratch& scratch) {
  const bool is_narrow = task.index < kLayersPerStage;
  if (task.kind == kLayerPool) {
    is_narrow ? pool_layer<16>(task) : pool_layer<32>(task);
  } else if (task.kind == kLayerUnpool) {
    is_narrow ? unpool_layer<16>(task) : unpool_layer<32>(task);
  } else if (task.index == 0) {
    first_layer_alone(task, weights, scratch);
  } else if (is_narrow) {
    winograd_layer<16, 16>(task, weights, scratch);
  } else if (task.index == kLayersPerStage) {
    winograd_layer<16, 32>(task, weights, scratch);
  } else {
    winograd_layer<32, 32>(task, weights, scratch);
  }
}

}  // namespace
}  // namespace rl::RL_TARGET

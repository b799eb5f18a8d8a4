// The whole trunk for a group of images: forward, and backward to the gradients of all weights and biases.
//
// Stage 1 goes image by image (its images are large), stages 2 and 3 layer by layer over the group (their weights are
// large): so what a layer reads and writes stays in the L2 cache.
#pragma once
#include "impala.hpp"
#include "impala_first_layer.hpp"
#include "impala_plane.hpp"
#include "impala_pooling.hpp"
#include "impala_winograd.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

inline Plane field_of(const ImpalaActivations& activations, const ImpalaGeometry& geometry, int stage, Field field) {
  return inside(activations.fields[stage][field], geometry.stages[stage], activations.image[stage]);
}

inline uint8_t* positions_of(const ImpalaActivations& activations, int stage, int i) {
  uint8_t* first = activations.positions[stage];
  return first == nullptr ? nullptr : first + i * activations.positions_image;
}

// The two residual blocks of a stage over images [first, first + count); `residual` holds the running sum.
template <int kChannels>
void forward_blocks(const ImpalaTask& task, int stage, int first, int count, const Plane& residual,
                    ImpalaScratch& scratch) {
  const Stage& shape = task.geometry->stages[stage];
  const ImpalaWeights& weights = *task.weights;
  const int layer = stage * kLayersPerStage + 1;
  const auto field = [&](Field f) { return image_of(field_of(task.activations, *task.geometry, stage, f), first); };
  const auto inner = [&](int l, Field from, Field to) {
    Output output;
    output.destination = field(to);
    output.bias = weights.bias[l];
    convolve<kChannels, kChannels, kAddBias | kRelu>(field(from), weights.forward[l], output, count, shape.height,
                                                     shape.width, scratch);
    lap(scratch.clock, kForwardPass, l);
  };
  inner(layer, kFirstInput, kFirstInner);
  Output middle;
  middle.destination = field(kSecondInput);
  middle.bias = weights.bias[layer + 1];
  middle.add = middle.sum = residual;
  convolve<kChannels, kChannels, kAddBias | kAdd | kStoreSum | kRelu>(
      field(kFirstInner), weights.forward[layer + 1], middle, count, shape.height, shape.width, scratch);
  lap(scratch.clock, kForwardPass, layer + 1);
  inner(layer + 2, kSecondInput, kSecondInner);
  Output last;
  last.destination = stage + 1 < kStages ? field(kStageOutput) : residual;
  last.bias = weights.bias[layer + 3];
  last.add = residual;
  convolve<kChannels, kChannels, kAddBias | kAdd>(field(kSecondInner), weights.forward[layer + 3], last, count,
                                                  shape.height, shape.width, scratch);
  lap(scratch.clock, kForwardPass, layer + 3);
}

// Convolution and pooling at the start of stage 2 or 3, image i.
template <int kInputs, int kOutputs, bool kPositions>
void forward_entry(const ImpalaTask& task, int stage, int i, ImpalaScratch& scratch) {
  const Stage &before = task.geometry->stages[stage - 1], &shape = task.geometry->stages[stage];
  const int layer = stage * kLayersPerStage;
  const ptrdiff_t row = ptrdiff_t{before.width} * kOutputs;
  Output output;
  output.destination = {scratch.convolved, row, 0};
  output.bias = task.weights->bias[layer];
  const Plane input = image_of(field_of(task.activations, *task.geometry, stage - 1, kStageOutput), i);
  convolve<kInputs, kOutputs, kAddBias>(input, task.weights->forward[layer], output, 1, before.height, before.width,
                                        scratch);
  const Plane maxima = image_of(plain(scratch.residual[stage], shape), i);
  const Plane rectified = image_of(field_of(task.activations, *task.geometry, stage, kFirstInput), i);
  for (int y = 0; y < shape.height; y++) {
    const float* middle = scratch.convolved + 2 * y * row;
    pool_row<kOutputs, kPositions>(
        y == 0 ? nullptr : middle - row, middle, middle + row, before.width, maxima.origin + y * maxima.row,
        rectified.origin + y * rectified.row,
        kPositions ? positions_of(task.activations, stage, i) + ptrdiff_t{y} * shape.width * kOutputs : nullptr);
  }
  lap(scratch.clock, kForwardPass, layer);
}

// The last ReLU, and [height, width, channels] to [channels, height, width].
void write_features(const ImpalaTask& task, const ImpalaScratch& scratch) {
  const Stage& shape = task.geometry->stages[kStages - 1];
  const int num_pixels = shape.height * shape.width;
  for (int i = 0; i < task.num_images; i++) {
    const float* sums = scratch.residual[kStages - 1] + i * shape.plain;
    float* features = task.features + i * task.geometry->num_features;
    for (int p = 0; p < num_pixels; p++) {
      for (int c = 0; c < shape.channels; c++) {
        const float value = sums[p * shape.channels + c];
        features[c * num_pixels + p] = value <= 0 ? 0 : value;
      }
    }
  }
}

void clear_borders(const ImpalaTask& task) {
  for (int stage = 0; stage < kStages; stage++) {
    const Stage& shape = task.geometry->stages[stage];
    for (int f = 0; f < (stage + 1 < kStages ? kFields : kStageOutput); f++) {
      const Plane plane = field_of(task.activations, *task.geometry, stage, static_cast<Field>(f));
      for (int i = 0; i < task.num_images; i++) {
        clear_border(image_of(plane, i), shape.height, shape.width, shape.channels);
      }
    }
  }
}

template <bool kPositions>
void forward_group(const ImpalaTask& task, ImpalaScratch& scratch) {
  const ImpalaGeometry& geometry = *task.geometry;
  const size_t image_bytes = static_cast<size_t>(geometry.height) * geometry.width * kImageChannels;
  start(scratch.clock);
  if (task.activations.clear_borders) clear_borders(task);
  const Plane residual = plain(scratch.residual[0], geometry.stages[0]);
  for (int i = 0; i < task.num_images; i++) {
    const Plane rectified = image_of(field_of(task.activations, geometry, 0, kFirstInput), i);
    first_layer<kPositions>(task.images + i * image_bytes, geometry.height, geometry.width, task.weights->first,
                            task.weights->bias[0], residual, rectified, positions_of(task.activations, 0, i), scratch);
    lap(scratch.clock, kForwardPass, 0);
    forward_blocks<kStageChannels[0]>(task, 0, i, 1, residual, scratch);
    forward_entry<kStageChannels[0], kStageChannels[1], kPositions>(task, 1, i, scratch);
  }
  forward_blocks<kStageChannels[1]>(task, 1, 0, task.num_images, plain(scratch.residual[1], geometry.stages[1]),
                                    scratch);
  for (int i = 0; i < task.num_images; i++) {
    forward_entry<kStageChannels[1], kStageChannels[2], kPositions>(task, 2, i, scratch);
  }
  forward_blocks<kStageChannels[2]>(task, 2, 0, task.num_images, plain(scratch.residual[2], geometry.stages[2]),
                                    scratch);
  write_features(task, scratch);
  lap(scratch.clock, kForwardPass, kImpalaLayers - 1);
}

void impala_forward(const ImpalaTask& task, ImpalaScratch& scratch) {
  if (task.activations.positions[0] == nullptr) {
    forward_group<false>(task, scratch);
  } else {
    forward_group<true>(task, scratch);
  }
}

// One residual block backwards: `gradient` of its result becomes the gradient of its input, in place.
template <int kChannels>
void backward_block(const ImpalaTask& task, int stage, int block, int first, int count, const Plane& gradient,
                    const Plane& inner_gradient, ImpalaScratch& scratch) {
  const Stage& shape = task.geometry->stages[stage];
  const int layer = stage * kLayersPerStage + 1 + 2 * block;
  const auto field = [&](int f) {
    return image_of(field_of(task.activations, *task.geometry, stage, static_cast<Field>(f)), first);
  };
  const Plane input = field(2 * block), inner = field(2 * block + 1);
  Output output;
  output.destination = inner_gradient;
  output.gate = inner;
  convolve_backward<kChannels, kChannels, kGate>(inner, gradient, task.weights->backward[layer + 1], output,
                                                 task.sums.weights[layer + 1], task.sums.biases[layer + 1], count,
                                                 shape, scratch);
  lap(scratch.clock, kBackwardPass, layer + 1);
  output.destination = output.add = gradient;
  output.gate = input;
  convolve_backward<kChannels, kChannels, kGate | kAdd>(input, inner_gradient, task.weights->backward[layer], output,
                                                        task.sums.weights[layer], task.sums.biases[layer], count,
                                                        shape, scratch);
  lap(scratch.clock, kBackwardPass, layer);
}

template <int kChannels>
void backward_blocks(const ImpalaTask& task, int stage, int first, int count, const Plane& gradient,
                     const Plane& inner_gradient, ImpalaScratch& scratch) {
  backward_block<kChannels>(task, stage, 1, first, count, gradient, inner_gradient, scratch);
  backward_block<kChannels>(task, stage, 0, first, count, gradient, inner_gradient, scratch);
}

// The convolution of stage 2 or 3 backwards over images [first, first + count), from the gradient after pooling
// (`gradient`) to that of the previous stage (`gradient_before`).
template <int kInputs, int kOutputs>
void backward_entry(const ImpalaTask& task, int stage, int first, int count, const Plane& gradient,
                    const Plane& gradient_before, ImpalaScratch& scratch) {
  const Stage &before = task.geometry->stages[stage - 1], &shape = task.geometry->stages[stage];
  const int layer = stage * kLayersPerStage;
  const ptrdiff_t row = ptrdiff_t{before.width + 2} * kOutputs;
  const Plane unpooled = {scratch.unpooled[stage] + row + kOutputs, row, (before.height + 2) * row};
  for (int i = 0; i < count; i++) {
    unpool<kOutputs>(image_of(gradient, i), positions_of(task.activations, stage, first + i), shape.height,
                     shape.width, image_of(unpooled, i));
  }
  const Plane input = image_of(field_of(task.activations, *task.geometry, stage - 1, kStageOutput), first);
  Output output;
  output.destination = gradient_before;
  convolve_backward<kInputs, kOutputs, 0>(input, unpooled, task.weights->backward[layer], output,
                                          task.sums.weights[layer], task.sums.biases[layer], count, before, scratch);
  lap(scratch.clock, kBackwardPass, layer);
}

// The gradient of the features through the last ReLU, as [height, width, channels].
void read_features_gradient(const ImpalaTask& task, const Plane& gradient) {
  const Stage& shape = task.geometry->stages[kStages - 1];
  const int num_pixels = shape.height * shape.width;
  for (int i = 0; i < task.num_images; i++) {
    const float* features = task.features + i * task.geometry->num_features;
    const float* from = task.features_gradient + i * task.geometry->num_features;
    for (int p = 0; p < num_pixels; p++) {
      float* pixel = gradient.origin + i * gradient.image + p / shape.width * gradient.row +
                     ptrdiff_t{p % shape.width} * shape.channels;
      for (int c = 0; c < shape.channels; c++) {
        const int k = c * num_pixels + p;
        pixel[c] = features[k] != 0 ? from[k] : 0;
      }
    }
  }
}

void impala_backward(const ImpalaTask& task, ImpalaScratch& scratch) {
  const ImpalaGeometry& geometry = *task.geometry;
  Plane gradients[kStages], inner[kStages];
  for (int stage = 0; stage < kStages; stage++) {
    const Stage& shape = geometry.stages[stage];
    const auto image = static_cast<ptrdiff_t>(shape.padded);
    gradients[stage] = inside(scratch.gradient[stage], shape, image);
    inner[stage] = inside(scratch.inner_gradient[stage], shape, image);
  }
  const int count = task.num_images;
  start(scratch.clock);
  read_features_gradient(task, gradients[2]);
  backward_blocks<kStageChannels[2]>(task, 2, 0, count, gradients[2], inner[2], scratch);
  backward_entry<kStageChannels[1], kStageChannels[2]>(task, 2, 0, count, gradients[2], gradients[1], scratch);
  backward_blocks<kStageChannels[1]>(task, 1, 0, count, gradients[1], inner[1], scratch);
  const size_t image_bytes = static_cast<size_t>(geometry.height) * geometry.width * kImageChannels;
  const Stage& first = geometry.stages[0];
  const Plane convolved = {scratch.convolved, ptrdiff_t{geometry.width} * kFirstChannels, 0};
  for (int i = 0; i < count; i++) {
    backward_entry<kStageChannels[0], kStageChannels[1]>(task, 1, i, 1, image_of(gradients[1], i), gradients[0],
                                                         scratch);
    backward_blocks<kStageChannels[0]>(task, 0, i, 1, gradients[0], inner[0], scratch);
    unpool<kStageChannels[0]>(gradients[0], positions_of(task.activations, 0, i), first.height, first.width, convolved);
    accumulate_first_gradients(task.images + i * image_bytes, geometry.height, geometry.width, scratch.convolved,
                               task.sums.weights[0], task.sums.biases[0], scratch);
    lap(scratch.clock, kBackwardPass, 0);
  }
}

}  // namespace
}  // namespace rl::RL_TARGET

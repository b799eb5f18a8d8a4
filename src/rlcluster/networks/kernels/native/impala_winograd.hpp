// Winograd convolution F(4x4, 3x3) (arXiv 1509.09308): output tiles of 4x4 pixels from overlapping input tiles of 6x6.
// With * a product of channels for each of 36 positions, and the points 0, 1, -1, 2, -2 and infinity:
//
//   forward           Y  = A^T [ (G w G^T) * (B^T x B) ] A
//   input gradient    dx = A^T [ (G w' G^T) * (B^T dY B) ] A,      w' the rotated kernel, its channels swapped
//   weight gradient   dw' = G^T [ sum over tiles (A x A^T) * (B^T dY B) ] G
//
// So the two gradients share the transform of dY. Vectors run over channels.
#pragma once
#include "impala.hpp"
#include "impala_plane.hpp"
#include "impala_transforms.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

// Registers of one product of small matrices: kRows x kColumns sums. Measured.
template <int kOutputs>
struct Registers {
  static constexpr int kColumns = kOutputs / kLanes < 2 ? 1 : 2;
  static constexpr int kWidth = kColumns * kLanes;  // outputs at once
  static constexpr int kRows = kRegisters == 32 ? 16 / kColumns : (kLanes == 8 ? 6 : 4);
  static constexpr int kInputRows = kRegisters == 32 ? 16 / kColumns : 4;  // divides the number of inputs
};

// products[e] = tiles[e] weights[e] for each of the 36 positions e: [tiles, inputs] x [inputs, outputs].
// In place (products == tiles) if a row of outputs fits the registers and is as long as a row of inputs.
template <int kInputs, int kOutputs>
void multiply(const float* tiles, const float* weights, float* products, int num_tiles) {
  using Held = Registers<kOutputs>;
  constexpr int kRows = Held::kRows, kColumns = Held::kColumns;
  static_assert(kTiles % kRows == 0 && kOutputs % Held::kWidth == 0);
  for (int e = 0; e < kProducts; e++) {
    for (int first = 0; first < kOutputs; first += Held::kWidth) {
      const float* w = weights + static_cast<ptrdiff_t>(e) * kInputs * kOutputs + first;
      for (int t = 0; t < num_tiles; t += kRows) {
        const float* v = tiles + e * pitch(kInputs) + t * kInputs;
        Vector sums[kRows][kColumns], row[kColumns];
        RL_UNROLL
        for (int i = 0; i < kRows * kColumns; i++) sums[i / kColumns][i % kColumns] = broadcast(0);
        for (int k = 0; k < kInputs; k++) {
          RL_UNROLL
          for (int c = 0; c < kColumns; c++) row[c] = load(w + k * kOutputs + c * kLanes);
          __builtin_prefetch(w + (kInputs + k) * kOutputs);  // of the next position, from L2
          RL_UNROLL
          for (int r = 0; r < kRows; r++) {
            const Vector value = broadcast(v[r * kInputs + k]);
            RL_UNROLL
            for (int c = 0; c < kColumns; c++) sums[r][c] = multiply_add(value, row[c], sums[r][c]);
          }
        }
        float* m = products + e * pitch(kOutputs) + t * kOutputs + first;
        RL_UNROLL
        for (int i = 0; i < kRows * kColumns; i++) {
          store(m + i / kColumns * kOutputs + i % kColumns * kLanes, sums[i / kColumns][i % kColumns]);
        }
      }
    }
  }
}

// sums[e] += expanded[e]^T gradients[e]: [inputs, tiles] x [tiles, outputs], in the order of the tiles.
template <int kInputs, int kOutputs>
void accumulate(const float* expanded, const float* gradients, float* weight_sums, int num_tiles) {
  using Held = Registers<kOutputs>;
  constexpr int kRows = Held::kInputRows, kColumns = Held::kColumns;
  static_assert(kInputs % kRows == 0 && kOutputs % Held::kWidth == 0);
  for (int e = 0; e < kProducts; e++) {
    for (int first = 0; first < kOutputs; first += Held::kWidth) {
      for (int k = 0; k < kInputs; k += kRows) {
        float* target = weight_sums + (static_cast<ptrdiff_t>(e) * kInputs + k) * kOutputs + first;
        const float* v = expanded + e * pitch(kInputs) + k;
        const float* g = gradients + e * pitch(kOutputs) + first;
        Vector sums[kRows][kColumns], row[kColumns];
        RL_UNROLL
        for (int i = 0; i < kRows * kColumns; i++) {
          sums[i / kColumns][i % kColumns] = load(target + i / kColumns * kOutputs + i % kColumns * kLanes);
        }
        for (int t = 0; t < num_tiles; t++) {
          RL_UNROLL
          for (int c = 0; c < kColumns; c++) row[c] = load(g + t * kOutputs + c * kLanes);
          RL_UNROLL
          for (int r = 0; r < kRows; r++) {
            const Vector value = broadcast(v[t * kInputs + r]);
            RL_UNROLL
            for (int c = 0; c < kColumns; c++) sums[r][c] = multiply_add(value, row[c], sums[r][c]);
          }
        }
        RL_UNROLL
        for (int i = 0; i < kRows * kColumns; i++) {
          store(target + i / kColumns * kOutputs + i % kColumns * kLanes, sums[i / kColumns][i % kColumns]);
        }
      }
    }
  }
}

template <int kInputs, int kOutputs>
constexpr bool kInPlace = kInputs == kOutputs && Registers<kOutputs>::kWidth == kOutputs;

// A 3x3 convolution of padded images, and its steps.
template <int kInputs, int kOutputs, unsigned kSteps>
void convolve(const Plane& input, const float* weights, const Output& output, int num_images, int height, int width,
              ImpalaScratch& scratch) {
  float* products = kInPlace<kInputs, kOutputs> ? scratch.tiles : scratch.products;
  for_each_block(num_images, height, width, [&](const Block& block, int count) {
    transform_inputs<kInputs>(input, block, count, scratch.tiles);
    multiply<kInputs, kOutputs>(scratch.tiles, weights, products, count);
    transform_outputs<kOutputs, kSteps>(products, output, block, count);
  });
}

template <int kChannels>
inline void sum_pixels(const Plane& plane, const Block& block, int count, float* sums) {
  for (int c = 0; c < kChannels; c += kLanes) {
    Vector sum = load(sums + c);
    for (int t = 0; t < count; t++) {
      const float* tile = plane.origin + offset(plane, block, t, kChannels) + c;
      RL_UNROLL
      for (int i = 0; i < 16; i++) sum = add(sum, load(tile + i / 4 * plane.row + i % 4 * kChannels));
    }
    store(sums + c, sum);
  }
}

// The gradients of a convolution from `input` (kInputs channels) to `gradient` (kOutputs channels): adds those of its
// weights and biases to the sums; the input's gradient goes through the steps to `output`.
template <int kInputs, int kOutputs, unsigned kSteps>
void convolve_backward(const Plane& input, const Plane& gradient, const float* weights, const Output& output,
                       float* weight_sums, float* bias_sums, int num_images, const Stage& shape,
                       ImpalaScratch& scratch) {
  float* products = kInPlace<kOutputs, kInputs> ? scratch.tiles : scratch.products;
  for_each_block(num_images, shape.height, shape.width, [&](const Block& block, int count) {
    transform_inputs<kOutputs>(gradient, block, count, scratch.tiles);
    for (int t = 0; t < count; t++) {
      const float* x = input.origin + offset(input, block, t, kInputs);
      for (int c = 0; c < kInputs; c += kLanes) {
        expand_tile<kInputs>(x + c, input.row, scratch.products + t * kInputs + c);
      }
    }
    accumulate<kInputs, kOutputs>(scratch.products, scratch.tiles, weight_sums, count);
    sum_pixels<kOutputs>(gradient, block, count, bias_sums);
    multiply<kOutputs, kInputs>(scratch.tiles, weights, products, count);
    transform_outputs<kInputs, kSteps>(products, output, block, count);
  });
}

}  // namespace
}  // namespace rl::RL_TARGET

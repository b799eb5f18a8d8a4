// The first convolution, 3 -> 16 channels, directly from bytes: 27 multiply-adds per pixel and vector of channels.
// The weights include the scale 1/255.
#pragma once
#include "impala.hpp"
#include "impala_plane.hpp"
#include "impala_pooling.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

constexpr int kFirstChannels = kStageChannels[0];
constexpr int kFirstColumns = kFirstChannels / kLanes < 2 ? 1 : 2;
constexpr int kFirstPixels = kRegisters == 32 ? 16 / kFirstColumns : 4;  // divides the width

inline void unpack_image(const uint8_t* image, int height, int width, float* padded) {
  const int row = width * kImageChannels, padded_row = (width + 2) * kImageChannels;
  for (int y = 0; y < height; y++) {
    float* target = padded + static_cast<ptrdiff_t>(y + 1) * padded_row + kImageChannels;
    for (int i = 0; i < row; i += kLanes) store(target + i, load_bytes(image + static_cast<ptrdiff_t>(y) * row + i));
  }
}

// One row of the convolution; `padded` is the first of the three rows of the padded image that it reads.
inline void convolve_first_row(const float* padded, int width, const float* weights, const float* bias, float* out) {
  constexpr int kColumns = kFirstColumns, kWidth = kColumns * kLanes;
  const int padded_row = (width + 2) * kImageChannels;
  for (int x = 0; x < width; x += kFirstPixels) {
    for (int first = 0; first < kFirstChannels; first += kWidth) {
      Vector sums[kFirstPixels][kColumns], row[kColumns];
      RL_UNROLL
      for (int i = 0; i < kFirstPixels * kColumns; i++) {
        sums[i / kColumns][i % kColumns] = load(bias + first + i % kColumns * kLanes);
      }
      for (int i = 0; i < 3; i++) {
        const float* values = padded + i * padded_row + x * kImageChannels;
        const float* w = weights + i * 9 * kFirstChannels + first;
        for (int k = 0; k < 9; k++) {
          RL_UNROLL
          for (int c = 0; c < kColumns; c++) row[c] = load(w + k * kFirstChannels + c * kLanes);
          RL_UNROLL
          for (int p = 0; p < kFirstPixels; p++) {
            const Vector value = broadcast(values[p * kImageChannels + k]);
            RL_UNROLL
            for (int c = 0; c < kColumns; c++) sums[p][c] = multiply_add(value, row[c], sums[p][c]);
          }
        }
      }
      float* target = out + x * kFirstChannels + first;
      RL_UNROLL
      for (int i = 0; i < kFirstPixels * kColumns; i++) {
        store(target + i / kColumns * kFirstChannels + i % kColumns * kLanes, sums[i / kColumns][i % kColumns]);
      }
    }
  }
}

// Convolution and pooling of one image, row by row: two rows of the convolution for each pooled one.
template <bool kPositions>
void first_layer(const uint8_t* image, int height, int width, const float* weights, const float* bias,
                 const Plane& maxima, const Plane& rectified, uint8_t* positions, ImpalaScratch& scratch) {
  unpack_image(image, height, width, scratch.image);
  const int padded_row = (width + 2) * kImageChannels;
  const ptrdiff_t row = ptrdiff_t{width} * kFirstChannels;
  const auto row_of = [&](int y) { return scratch.rows + (y % 4) * row; };
  for (int y = 0; y < height; y += 2) {
    for (int i = y; i < y + 2; i++) {
      convolve_first_row(scratch.image + ptrdiff_t{i} * padded_row, width, weights, bias, row_of(i));
    }
    pool_row<kFirstChannels, kPositions>(y == 0 ? nullptr : row_of(y - 1), row_of(y), row_of(y + 1), width,
                                         maxima.origin + y / 2 * maxima.row, rectified.origin + y / 2 * rectified.row,
                                         kPositions ? positions + y / 2 * row / 2 : nullptr);
  }
}

// Adds the gradients of the 27 x 16 weights and of the biases to the sums; `gradient` is [height, width, 16].
void accumulate_first_gradients(const uint8_t* image, int height, int width, const float* gradient,
                                float* weight_sums, float* bias_sums, ImpalaScratch& scratch) {
  unpack_image(image, height, width, scratch.image);
  const int padded_row = (width + 2) * kImageChannels;
  constexpr int kTaps = kRegisters == 32 ? kFirstTaps : 9;  // sums that fit the registers
  for (int first = 0; first < kFirstChannels; first += kLanes) {
    for (int tap = 0; tap < kFirstTaps; tap += kTaps) {
      Vector sums[kTaps];
      RL_UNROLL
      for (int k = 0; k < kTaps; k++) sums[k] = load(weight_sums + (tap + k) * kFirstChannels + first);
      for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
          const Vector g = load(gradient + (static_cast<ptrdiff_t>(y) * width + x) * kFirstChannels + first);
          const float* values = scratch.image + ptrdiff_t{y + tap / 9} * padded_row + x * kImageChannels;
          RL_UNROLL
          for (int i = 0; i < kTaps / 9; i++) {
            RL_UNROLL
            for (int k = 0; k < 9; k++) {
              sums[i * 9 + k] = multiply_add(broadcast(values[i * padded_row + k]), g, sums[i * 9 + k]);
            }
          }
        }
      }
      RL_UNROLL
      for (int k = 0; k < kTaps; k++) store(weight_sums + (tap + k) * kFirstChannels + first, sums[k]);
    }
    Vector sum = load(bias_sums + first);
    for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(height) * width; i++) {
      sum = add(sum, load(gradient + i * kFirstChannels + first));
    }
    store(bias_sums + first, sum);
  }
}

}  // namespace
}  // namespace rl::RL_TARGET

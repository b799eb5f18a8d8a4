// The transforms of Winograd convolution (impala_winograd.hpp has the formulas), for tiles in blocks.
#pragma once
#include "impala.hpp"
#include "impala_plane.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

constexpr int kTiles = kRegisters == 32 ? 16 : 12;  // of a block
static_assert(kTiles <= kMaxTiles);

// The positions of the tiles of one block.
struct Block {
  int image[kMaxTiles], y[kMaxTiles], x[kMaxTiles];
};

inline ptrdiff_t offset(const Plane& plane, const Block& block, int t, int channels) {
  return block.image[t] * plane.image + block.y[t] * plane.row + block.x[t] * channels;
}

// The tiles of `num_images` images of height x width, in blocks, across rows and images.
template <class Work>
inline void for_each_block(int num_images, int height, int width, Work work) {
  Block block;
  int count = 0;
  for (int image = 0; image < num_images; image++) {
    for (int y = 0; y < height; y += 4) {
      for (int x = 0; x < width; x += 4) {
        block.image[count] = image;
        block.y[count] = y;
        block.x[count] = x;
        if (++count == kTiles) {
          work(block, count);
          count = 0;
        }
      }
    }
  }
  if (count > 0) work(block, count);
}

// out = B^T in, along one dimension.
inline void transform_input(const Vector (&in)[6], Vector (&out)[6]) {
  const Vector a = multiply_add(broadcast(-4), in[2], in[4]), b = multiply_add(broadcast(-4), in[1], in[3]);
  const Vector c = subtract(in[4], in[2]), d = subtract(in[3], in[1]);
  out[0] = multiply_add(broadcast(4), in[0], multiply_add(broadcast(-5), in[2], in[4]));
  out[1] = add(a, b);
  out[2] = subtract(a, b);
  out[3] = multiply_add(broadcast(2), d, c);
  out[4] = multiply_add(broadcast(-2), d, c);
  out[5] = multiply_add(broadcast(4), in[1], multiply_add(broadcast(-5), in[3], in[5]));
}

inline void store_row(const Vector (&row)[6], float* tiles, int pitch) {
  Vector out[6];
  transform_input(row, out);
  RL_UNROLL
  for (int j = 0; j < 6; j++) store(tiles + j * pitch, out[j]);
}

// B^T x B of one tile and one vector of channels: two rows at a time, so that nothing leaves the registers.
template <int kChannels>
inline void transform_input_tile(const float* x, ptrdiff_t row, float* tiles) {
  constexpr int kPitch = pitch(kChannels);
  Vector upper[6], lower[6];
  RL_UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = x + j * kChannels;
    const Vector a = multiply_add(broadcast(-4), load(p + 2 * row), load(p + 4 * row));
    const Vector b = multiply_add(broadcast(-4), load(p + row), load(p + 3 * row));
    upper[j] = add(a, b);
    lower[j] = subtract(a, b);
  }
  store_row(upper, tiles + 6 * kPitch, kPitch);
  store_row(lower, tiles + 12 * kPitch, kPitch);
  RL_UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = x + j * kChannels;
    const Vector c = subtract(load(p + 4 * row), load(p + 2 * row)), d = subtract(load(p + 3 * row), load(p + row));
    upper[j] = multiply_add(broadcast(2), d, c);
    lower[j] = multiply_add(broadcast(-2), d, c);
  }
  store_row(upper, tiles + 18 * kPitch, kPitch);
  store_row(lower, tiles + 24 * kPitch, kPitch);
  RL_UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = x + j * kChannels;
    upper[j] = multiply_add(broadcast(4), load(p),
                            multiply_add(broadcast(-5), load(p + 2 * row), load(p + 4 * row)));
    lower[j] = multiply_add(broadcast(4), load(p + row),
                            multiply_add(broadcast(-5), load(p + 3 * row), load(p + 5 * row)));
  }
  store_row(upper, tiles, kPitch);
  store_row(lower, tiles + 30 * kPitch, kPitch);
}

// out = A in, along one dimension.
inline void expand(const Vector (&in)[4], Vector (&out)[6]) {
  const Vector even = add(in[0], in[2]), odd = add(in[1], in[3]);
  const Vector even4 = multiply_add(broadcast(4), in[2], in[0]), odd4 = multiply_add(broadcast(4), in[3], in[1]);
  out[0] = in[0];
  out[1] = add(even, odd);
  out[2] = subtract(even, odd);
  out[3] = multiply_add(broadcast(2), odd4, even4);
  out[4] = multiply_add(broadcast(-2), odd4, even4);
  out[5] = in[3];
}

// A x A^T of one tile of 4x4 pixels and one vector of channels.
template <int kChannels>
inline void expand_tile(const float* x, ptrdiff_t row, float* tiles) {
  Vector columns[6][4];
  RL_UNROLL
  for (int j = 0; j < 4; j++) {
    Vector in[4], out[6];
    RL_UNROLL
    for (int i = 0; i < 4; i++) in[i] = load(x + i * row + j * kChannels);
    expand(in, out);
    RL_UNROLL
    for (int i = 0; i < 6; i++) columns[i][j] = out[i];
  }
  RL_UNROLL
  for (int i = 0; i < 6; i++) {
    Vector out[6];
    expand(columns[i], out);
    RL_UNROLL
    for (int j = 0; j < 6; j++) store(tiles + (6 * i + j) * pitch(kChannels), out[j]);
  }
}

// The steps after a convolution, in this order.
enum Step : unsigned {
  kAddBias = 1,
  kGate = 2,      // zero where the gate is zero: the derivative of a ReLU
  kAdd = 4,
  kStoreSum = 8,  // to `sum`, before the ReLU
  kRelu = 16,
};

struct Output {
  Plane destination;
  const float* bias = nullptr;
  Plane gate, add, sum;
};

// A row of 4 pixels: in = 6 values of A^T M, one further transform, then the steps.
template <int kChannels, unsigned kSteps>
inline void store_pixels(const Vector (&in)[6], const Output& output, const ptrdiff_t (&at)[4], int i, Vector bias) {
  const Vector a = add(in[1], in[2]), b = subtract(in[1], in[2]);
  const Vector c = add(in[3], in[4]), d = subtract(in[3], in[4]);
  Vector pixels[4] = {add(add(in[0], a), c), multiply_add(broadcast(2), d, b), multiply_add(broadcast(4), c, a),
                      add(multiply_add(broadcast(8), d, b), in[5])};
  RL_UNROLL
  for (int j = 0; j < 4; j++) {
    Vector value = pixels[j];
    const int pixel = j * kChannels;
    if constexpr (kSteps & kAddBias) value = add(value, bias);
    if constexpr (kSteps & kGate) {
      value = keep_where_nonzero(value, load(output.gate.origin + at[1] + i * output.gate.row + pixel));
    }
    if constexpr (kSteps & kAdd) value = add(value, load(output.add.origin + at[2] + i * output.add.row + pixel));
    if constexpr (kSteps & kStoreSum) store(output.sum.origin + at[3] + i * output.sum.row + pixel, value);
    if constexpr (kSteps & kRelu) value = relu(value);
    store(output.destination.origin + at[0] + i * output.destination.row + pixel, value);
  }
}

// A^T M A of one tile and one vector of channels: two rows of pixels at a time.
template <int kChannels, unsigned kSteps>
inline void transform_output_tile(const float* products, const Output& output, const ptrdiff_t (&at)[4], Vector bias) {
  constexpr int kPitch = pitch(kChannels);
  constexpr int kRow = 6 * kPitch;
  Vector upper[6], lower[6];
  RL_UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = products + j * kPitch;
    const Vector a = add(load(p + kRow), load(p + 2 * kRow)), c = add(load(p + 3 * kRow), load(p + 4 * kRow));
    upper[j] = add(add(load(p), a), c);
    lower[j] = multiply_add(broadcast(4), c, a);
  }
  store_pixels<kChannels, kSteps>(upper, output, at, 0, bias);
  store_pixels<kChannels, kSteps>(lower, output, at, 2, bias);
  RL_UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = products + j * kPitch;
    const Vector b = subtract(load(p + kRow), load(p + 2 * kRow));
    const Vector d = subtract(load(p + 3 * kRow), load(p + 4 * kRow));
    upper[j] = multiply_add(broadcast(2), d, b);
    lower[j] = add(multiply_add(broadcast(8), d, b), load(p + 5 * kRow));
  }
  store_pixels<kChannels, kSteps>(upper, output, at, 1, bias);
  store_pixels<kChannels, kSteps>(lower, output, at, 3, bias);
}

template <int kInputs>
inline void transform_inputs(const Plane& input, const Block& block, int count, float* tiles) {
  for (int t = 0; t < count; t++) {
    const float* x = input.origin + offset(input, block, t, kInputs) - input.row - kInputs;  // with the border
    for (int c = 0; c < kInputs; c += kLanes) transform_input_tile<kInputs>(x + c, input.row, tiles + t * kInputs + c);
  }
}

template <int kOutputs, unsigned kSteps>
inline void transform_outputs(const float* products, const Output& output, const Block& block, int count) {
  for (int t = 0; t < count; t++) {
    const ptrdiff_t whole[4] = {
        offset(output.destination, block, t, kOutputs),
        kSteps & kGate ? offset(output.gate, block, t, kOutputs) : 0,
        kSteps & kAdd ? offset(output.add, block, t, kOutputs) : 0,
        kSteps & kStoreSum ? offset(output.sum, block, t, kOutputs) : 0,
    };
    for (int c = 0; c < kOutputs; c += kLanes) {
      const ptrdiff_t at[4] = {whole[0] + c, whole[1] + c, whole[2] + c, whole[3] + c};
      const Vector bias = kSteps & kAddBias ? load(output.bias + c) : broadcast(0);
      transform_output_tile<kOutputs, kSteps>(products + t * kOutputs + c, output, at, bias);
    }
  }
}

}  // namespace
}  // namespace rl::RL_TARGET

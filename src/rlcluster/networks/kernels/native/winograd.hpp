// Winograd convolution F(4x4, 3x3) (arXiv 1509.09308): output tiles of 4x4 pixels from overlapping input tiles of 6x6.
// With * a product of channels for each of 36 positions, and the points 0, 1, -1, 2, -2 and infinity:
//
//   forward           Y  = A^T [ (G w G^T) * (B^T x B) ] A
//   input gradient    dx = A^T [ (G w' G^T) * (B^T dY B) ] A,      w' the rotated kernel, its channels exchanged
//   weight gradient   dw' = G^T [ sum over tiles (A x A^T) * (B^T dY B) ] G
//
// So the two gradients share the transform of dY. Vectors run over channels.
#pragma once
#include "trunk.hpp"

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace {

constexpr int kTiles = kRegisters == 32 ? 16 : 12;  // of a block
static_assert(kTiles <= kMaxTiles);

// How many registers one product of small matrices holds: kRows x kColumns sums. Measured.
template <int kOutputs>
struct Registers {
  static constexpr int kColumns = kOutputs / kLanes < 2 ? 1 : 2;
  static constexpr int kWidth = kColumns * kLanes;  // outputs at once
  static constexpr int kRows = kRegisters == 32 ? 16 / kColumns : (kLanes == 8 ? 6 : 4);
  static constexpr int kInputRows = kRegisters == 32 ? 16 / kColumns : 4;  // divides the number of inputs
};

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
  UNROLL
  for (int j = 0; j < 6; j++) store(tiles + j * pitch, out[j]);
}

// B^T x B of one tile and one vector of channels: two rows at a time, so that nothing leaves the registers.
template <int kChannels>
inline void transform_input_tile(const float* x, ptrdiff_t row, float* tiles) {
  constexpr int kPitch = pitch(kChannels);
  Vector upper[6], lower[6];
  UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = x + j * kChannels;
    const Vector a = multiply_add(broadcast(-4), load(p + 2 * row), load(p + 4 * row));
    const Vector b = multiply_add(broadcast(-4), load(p + row), load(p + 3 * row));
    upper[j] = add(a, b);
    lower[j] = subtract(a, b);
  }
  store_row(upper, tiles + 6 * kPitch, kPitch);
  store_row(lower, tiles + 12 * kPitch, kPitch);
  UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = x + j * kChannels;
    const Vector c = subtract(load(p + 4 * row), load(p + 2 * row)), d = subtract(load(p + 3 * row), load(p + row));
    upper[j] = multiply_add(broadcast(2), d, c);
    lower[j] = multiply_add(broadcast(-2), d, c);
  }
  store_row(upper, tiles + 18 * kPitch, kPitch);
  store_row(lower, tiles + 24 * kPitch, kPitch);
  UNROLL
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
  UNROLL
  for (int j = 0; j < 4; j++) {
    Vector in[4], out[6];
    UNROLL
    for (int i = 0; i < 4; i++) in[i] = load(x + i * row + j * kChannels);
    expand(in, out);
    UNROLL
    for (int i = 0; i < 6; i++) columns[i][j] = out[i];
  }
  UNROLL
  for (int i = 0; i < 6; i++) {
    Vector out[6];
    expand(columns[i], out);
    UNROLL
    for (int j = 0; j < 6; j++) store(tiles + (6 * i + j) * pitch(kChannels), out[j]);
  }
}

// What becomes of a convolution's result, in this order.
enum Step : unsigned {
  kAddBias = 1,
  kGate = 2,     // zero where the gate is zero: the derivative of a ReLU
  kAdd = 4,
  kStoreSum = 8,  // to `sum`, before the ReLU
  kRelu = 16,
};

struct Output {
  Plane destination;
  const float* bias = nullptr;
  Plane gate, add, sum;
};

// The positions of the tiles of one block.
struct Block {
  int image[kMaxTiles], y[kMaxTiles], x[kMaxTiles];
};

inline ptrdiff_t offset(const Plane& plane, const Block& block, int t, int channels) {
  return block.image[t] * plane.image + block.y[t] * plane.row + block.x[t] * channels;
}

// A row of 4 pixels: in = 6 values of A^T M, one further transform, then the steps.
template <int kChannels, unsigned kSteps>
inline void store_pixels(const Vector (&in)[6], const Output& output, const ptrdiff_t (&at)[4], int i, Vector bias) {
  const Vector a = add(in[1], in[2]), b = subtract(in[1], in[2]);
  const Vector c = add(in[3], in[4]), d = subtract(in[3], in[4]);
  Vector pixels[4] = {add(add(in[0], a), c), multiply_add(broadcast(2), d, b), multiply_add(broadcast(4), c, a),
                      add(multiply_add(broadcast(8), d, b), in[5])};
  UNROLL
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
  UNROLL
  for (int j = 0; j < 6; j++) {
    const float* p = products + j * kPitch;
    const Vector a = add(load(p + kRow), load(p + 2 * kRow)), c = add(load(p + 3 * kRow), load(p + 4 * kRow));
    upper[j] = add(add(load(p), a), c);
    lower[j] = multiply_add(broadcast(4), c, a);
  }
  store_pixels<kChannels, kSteps>(upper, output, at, 0, bias);
  store_pixels<kChannels, kSteps>(lower, output, at, 2, bias);
  UNROLL
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

// products[e] = tiles[e] weights[e] for each of the 36 positions e: [tiles, inputs] x [inputs, outputs].
// In place (products == tiles) where a row of outputs fits the registers and is as long as a row of inputs.
template <int kInputs, int kOutputs>
void multiply(const float* tiles, const float* weights, float* products, int num_tiles) {
  using Block = Registers<kOutputs>;
  constexpr int kRows = Block::kRows, kColumns = Block::kColumns;
  static_assert(kTiles % kRows == 0 && kOutputs % Block::kWidth == 0);
  for (int e = 0; e < kProducts; e++) {
    for (int first = 0; first < kOutputs; first += Block::kWidth) {
      const float* w = weights + static_cast<ptrdiff_t>(e) * kInputs * kOutputs + first;
      for (int t = 0; t < num_tiles; t += kRows) {
        const float* v = tiles + e * pitch(kInputs) + t * kInputs;
        Vector sums[kRows][kColumns], row[kColumns];
        UNROLL
        for (int i = 0; i < kRows * kColumns; i++) sums[i / kColumns][i % kColumns] = broadcast(0);
        for (int k = 0; k < kInputs; k++) {
          UNROLL
          for (int c = 0; c < kColumns; c++) row[c] = load(w + k * kOutputs + c * kLanes);
          __builtin_prefetch(w + (kInputs + k) * kOutputs);  // of the next position: from L2 in time
          UNROLL
          for (int r = 0; r < kRows; r++) {
            const Vector value = broadcast(v[r * kInputs + k]);
            UNROLL
            for (int c = 0; c < kColumns; c++) sums[r][c] = multiply_add(value, row[c], sums[r][c]);
          }
        }
        float* m = products + e * pitch(kOutputs) + t * kOutputs + first;
        UNROLL
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
  using Block = Registers<kOutputs>;
  constexpr int kRows = Block::kInputRows, kColumns = Block::kColumns;
  static_assert(kInputs % kRows == 0 && kOutputs % Block::kWidth == 0);
  for (int e = 0; e < kProducts; e++) {
    for (int first = 0; first < kOutputs; first += Block::kWidth) {
      for (int k = 0; k < kInputs; k += kRows) {
        float* target = weight_sums + (static_cast<ptrdiff_t>(e) * kInputs + k) * kOutputs + first;
        const float* v = expanded + e * pitch(kInputs) + k;
        const float* g = gradients + e * pitch(kOutputs) + first;
        Vector sums[kRows][kColumns], row[kColumns];
        UNROLL
        for (int i = 0; i < kRows * kColumns; i++) {
          sums[i / kColumns][i % kColumns] = load(target + i / kColumns * kOutputs + i % kColumns * kLanes);
        }
        for (int t = 0; t < num_tiles; t++) {
          UNROLL
          for (int c = 0; c < kColumns; c++) row[c] = load(g + t * kOutputs + c * kLanes);
          UNROLL
          for (int r = 0; r < kRows; r++) {
            const Vector value = broadcast(v[t * kInputs + r]);
            UNROLL
            for (int c = 0; c < kColumns; c++) sums[r][c] = multiply_add(value, row[c], sums[r][c]);
          }
        }
        UNROLL
        for (int i = 0; i < kRows * kColumns; i++) {
          store(target + i / kColumns * kOutputs + i % kColumns * kLanes, sums[i / kColumns][i % kColumns]);
        }
      }
    }
  }
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

template <int kInputs>
inline void transform_inputs(const Plane& input, const Block& block, int count, float* tiles) {
  for (int t = 0; t < count; t++) {
    const float* x = input.origin + offset(input, block, t, kInputs) - input.row - kInputs;  // from the border on
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

template <int kInputs, int kOutputs>
constexpr bool kInPlace = kInputs == kOutputs && Registers<kOutputs>::kWidth == kOutputs;

// A 3x3 convolution of padded images, and its steps.
template <int kInputs, int kOutputs, unsigned kSteps>
void convolve(const Plane& input, const float* weights, const Output& output, int num_images, int height, int width,
              Scratch& scratch) {
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
      UNROLL
      for (int i = 0; i < 16; i++) sum = add(sum, load(tile + i / 4 * plane.row + i % 4 * kChannels));
    }
    store(sums + c, sum);
  }
}

// The gradients of a convolution from `input` (kInputs channels) to `gradient` (kOutputs channels): adds those of its
// weights and biases to the sums; that of the input goes through the steps to `output`.
template <int kInputs, int kOutputs, unsigned kSteps>
void convolve_backward(const Plane& input, const Plane& gradient, const float* weights, const Output& output,
                       float* weight_sums, float* bias_sums, int num_images, const Stage& shape, Scratch& scratch) {
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

// Helpers of both networks: from their parameters to the layout of the kernels, and back.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

namespace rl {

constexpr float kByteScale = 1.0F / 255.0F;  // images are bytes: the first layer's weights include the scale

// to[column, row] = from[row, column] * scale
inline void transpose(const float* from, int rows, int columns, float scale, float* to) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c] * scale;
  }
}

// The weights of one layer in the last call.
class LastWeights {
 public:
  // True if the bytes of the weights differ from those of the last call; keeps a copy.
  bool update(const float* weights, size_t count) {
    if (values_.size() == count && std::memcmp(values_.data(), weights, count * sizeof(float)) == 0) return false;
    values_.assign(weights, weights + count);
    return true;
  }

  float operator[](size_t i) const { return values_[i]; }

 private:
  std::vector<float> values_;
};

}  // namespace rl

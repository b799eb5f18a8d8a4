// What the networks share on the way from their parameters to what the kernels want, and back.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

constexpr float kByteScale = 1.0F / 255.0F;  // pictures are bytes: the first layer's weights carry the scale

// to[column, row] = from[row, column] * scale
inline void transpose(const float* from, int rows, int columns, float scale, float* to) {
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < columns; c++) to[c * rows + r] = from[r * columns + c] * scale;
  }
}

// The weights of one layer as they were last seen.
class LastWeights {
 public:
  // True, and the weights are kept, where their bytes are not those of the last call.
  bool update(const float* weights, size_t count) {
    if (values_.size() == count && std::memcmp(values_.data(), weights, count * sizeof(float)) == 0) return false;
    values_.assign(weights, weights + count);
    return true;
  }

  float operator[](size_t i) const { return values_[i]; }
  const float* data() const { return values_.data(); }

 private:
  std::vector<float> values_;
};

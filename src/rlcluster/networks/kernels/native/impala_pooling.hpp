// 3x3/2 max-pooling with a padding of one, and its gradient. The values of a window have the positions 0 to 8, row
// by row; of equal values the first is the maximum, and a NaN is larger than all, as in PyTorch.
#pragma once
#include "impala_plane.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

// One row of pooled pixels, from three rows of `width` pixels; the first of them is missing (null) at the upper edge.
// Writes the maxima, the maxima after a ReLU and, if kPositions, the positions of the maxima.
template <int kChannels, bool kPositions>
inline void pool_row(const float* above, const float* middle, const float* below, int width, float* maxima,
                     float* rectified, uint8_t* positions) {
  for (int x = 0; x < width / 2; x++) {
    for (int c = 0; c < kChannels; c += kLanes) {
      const ptrdiff_t centre = ptrdiff_t{2} * x * kChannels + c;
      Vector best, position;
      bool is_first = true;
      const auto look_at = [&](const float* row, int number) {
        for (int dx = x == 0 ? 0 : -1; dx <= 1; dx++) {
          const Vector value = load(row + centre + dx * kChannels);
          if (is_first) {
            best = value;
            position = broadcast(static_cast<float>(number + dx));
            is_first = false;
          } else {
            take_larger_or_nan(best, position, value, static_cast<float>(number + dx));
          }
        }
      };
      if (above != nullptr) look_at(above, 1);
      look_at(middle, 4);
      look_at(below, 7);
      store(maxima + x * kChannels + c, best);
      store(rectified + x * kChannels + c, relu(best));
      if constexpr (kPositions) store_bytes(positions + x * kChannels + c, position);
    }
  }
}

// The gradient of pooling: `gradient` (padded, height x width pooled pixels) goes to the maxima; every pixel of
// `unpooled` is written. `positions` must be readable one row and one pixel beyond its end; any value may be there, as
// the gradient's border is zero.
template <int kChannels>
void unpool(const Plane& gradient, const uint8_t* positions, int height, int width, const Plane& unpooled) {
  for (int y = 0; y < height; y++) {
    for (int x = 0; x < width; x++) {
      for (int c = 0; c < kChannels; c += kLanes) {
        const float* g = gradient.origin + y * gradient.row + x * kChannels + c;
        const uint8_t* p = positions + (static_cast<ptrdiff_t>(y) * width + x) * kChannels + c;
        const Vector here = load(g), right = load(g + kChannels);
        const Vector under = load(g + gradient.row), across = load(g + gradient.row + kChannels);
        const Vector at_here = load_bytes(p), at_right = load_bytes(p + kChannels);
        const Vector at_under = load_bytes(p + ptrdiff_t{width} * kChannels);
        const Vector at_across = load_bytes(p + ptrdiff_t{width + 1} * kChannels);
        const auto part = [](Vector value, Vector position, int number) {
          return keep_where_equal(value, position, broadcast(static_cast<float>(number)));
        };
        float* out = unpooled.origin + ptrdiff_t{2} * y * unpooled.row + ptrdiff_t{2} * x * kChannels + c;
        store(out, part(here, at_here, 4));
        store(out + kChannels, add(part(here, at_here, 5), part(right, at_right, 3)));
        store(out + unpooled.row, add(part(here, at_here, 7), part(under, at_under, 1)));
        store(out + unpooled.row + kChannels, add(add(part(here, at_here, 8), part(right, at_right, 6)),
                                                  add(part(under, at_under, 2), part(across, at_across, 0))));
      }
    }
  }
}

}  // namespace
}  // namespace rl::RL_TARGET

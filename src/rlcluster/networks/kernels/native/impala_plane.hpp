// Images in memory, with and without a border.
#pragma once
#include <cstring>

#include "impala.hpp"
#include "vector.hpp"

namespace rl::RL_TARGET {
namespace {

// Pixel (y, x) of image i is at origin + i * image + y * row + x * channels.
struct Plane {
  float* origin = nullptr;
  ptrdiff_t row = 0;
  ptrdiff_t image = 0;
};

inline Plane image_of(const Plane& plane, int i) { return {plane.origin + i * plane.image, plane.row, plane.image}; }

// The pixels of padded images, without the border.
inline Plane inside(float* padded, const Stage& stage, ptrdiff_t image) {
  const ptrdiff_t row = ptrdiff_t{stage.width + 2} * stage.channels;
  return {padded + row + stage.channels, row, image};
}

inline Plane plain(float* pixels, const Stage& stage) {
  return {pixels, ptrdiff_t{stage.width} * stage.channels, static_cast<ptrdiff_t>(stage.plain)};
}

inline void clear_border(const Plane& plane, int height, int width, int channels) {
  const size_t pixel = channels * sizeof(float);
  float* corner = plane.origin - plane.row - channels;
  std::memset(corner, 0, (width + 2) * pixel);
  for (int y = 1; y <= height; y++) {
    std::memset(corner + y * plane.row, 0, pixel);
    std::memset(corner + y * plane.row + ptrdiff_t{width + 1} * channels, 0, pixel);
  }
  std::memset(corner + (height + 1) * plane.row, 0, (width + 2) * pixel);
}

}  // namespace
}  // namespace rl::RL_TARGET

// Zeroed memory, aligned to cache lines.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace rl {

constexpr size_t kAlignment = 64;

class Arena {
 public:
  Arena() = default;
  explicit Arena(size_t bytes) : size_((bytes + kAlignment - 1) / kAlignment * kAlignment) {
    memory_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, size_)));
    if (!memory_) throw std::bad_alloc();
    std::memset(memory_.get(), 0, size_);
  }

  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> memory_;
  size_t size_ = 0;
};

// Hands out an arena's floats in order, in whole cache lines. With a null start it only measures.
class Layout {
 public:
  explicit Layout(float* start) : start_(start) {}
  float* take(size_t floats) {
    float* result = start_ == nullptr ? nullptr : start_ + used_;
    used_ += (floats + 15) / 16 * 16;
    return result;
  }
  size_t bytes() const { return std::max<size_t>(used_ * sizeof(float), kAlignment); }

 private:
  float* start_;
  size_t used_ = 0;
};

}  // namespace rl

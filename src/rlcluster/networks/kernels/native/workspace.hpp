// The memory of a network: scratch memory for each thread, and accumulators of gradients.
#pragma once
#include <cstring>
#include <functional>
#include <vector>

#include "arena.hpp"

namespace rl {

// Pointers into zeroed memory that they own together.
template <class Pointers>
class Buffers {
 public:
  // lay_out(layout, pointers) takes the memory of each pointer: once to measure it, once to point into it.
  template <class LayOut>
  explicit Buffers(const LayOut& lay_out) {
    Layout measure(nullptr);
    lay_out(measure, pointers_);
    arena_ = Arena(measure.bytes());
    Layout layout(arena_.floats());
    lay_out(layout, pointers_);
  }

  Pointers& get() { return pointers_; }
  void clear() { std::memset(arena_.floats(), 0, arena_.size()); }

 private:
  Pointers pointers_{};
  Arena arena_;
};

// Sums has `weights` and `biases`, a pointer for each layer.
template <class Scratch, class Sums>
class Workspace {
 public:
  using ScratchLayout = std::function<void(Layout&, Scratch&)>;
  using SumsLayout = std::function<void(Layout&, Sums&)>;

  Workspace(ScratchLayout scratch, SumsLayout sums)
      : lay_out_scratch_(std::move(scratch)), lay_out_sums_(std::move(sums)) {}

  void reserve(int num_threads, int num_accumulators) {
    while (threads_.size() < static_cast<size_t>(num_threads)) threads_.emplace_back(lay_out_scratch_);
    while (accumulators_.size() < static_cast<size_t>(num_accumulators)) accumulators_.emplace_back(lay_out_sums_);
  }

  Scratch& scratch(int thread) { return threads_[thread].get(); }
  Sums& sums(int accumulator) { return accumulators_[accumulator].get(); }
  void clear(int accumulator) { accumulators_[accumulator].clear(); }

  // The sums of a layer over all accumulators, in order; accumulator 0 holds them afterwards.
  Sums& total(int layer, int num_accumulators, size_t num_weights, size_t num_biases) {
    Sums& total = sums(0);
    for (int accumulator = 1; accumulator < num_accumulators; accumulator++) {
      add(sums(accumulator).weights[layer], total.weights[layer], num_weights);
      add(sums(accumulator).biases[layer], total.biases[layer], num_biases);
    }
    return total;
  }

 private:
  // sums += values
  static void add(const float* values, float* sums, size_t count) {
    for (size_t i = 0; i < count; i++) sums[i] += values[i];
  }

  ScratchLayout lay_out_scratch_;
  SumsLayout lay_out_sums_;
  std::vector<Buffers<Scratch>> threads_;
  std::vector<Buffers<Sums>> accumulators_;
};

}  // namespace rl

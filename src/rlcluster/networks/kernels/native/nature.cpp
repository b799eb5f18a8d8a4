// The nature network: its parameters as the kernels want them, its memory, and its kernels.
#include "nature.hpp"

#include <vector>

#include "arena.hpp"
#include "network.hpp"
#include "parameters.hpp"

namespace {

float scale_of(int index) { return index == 0 ? kByteScale : 1.0F; }

const NatureKernels& kernels_for(int instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == kAvx512) return kAvx512Nature;
  if (instruction_set == kAvx2) return kAvx2Nature;
#endif
  (void)instruction_set;
  return kPortableNature;
}

// The weight of `outputs` o and `inputs` i at row y and column x of a kernel [outputs, kernel, kernel, inputs].
size_t position(const NatureLayer& l, int o, int y, int x, int i) {
  return ((static_cast<size_t>(o) * l.kernel + y) * l.kernel + x) * l.inputs + i;
}

struct ThreadMemory {
  ThreadMemory() : arena(lay_out(nullptr)) { lay_out(arena.floats()); }

  size_t lay_out(float* start) {
    Layout layout(start);
    const size_t group = kNatureGroup;
    scratch.pictures = layout.take(group * kNature[0].image());
    for (int l = 0; l < 2; l++) scratch.activations[l] = layout.take(kNature[l + 1].image());
    scratch.last = layout.take(kNatureFeatures);
    scratch.first_gradient = layout.take(group * kNature[1].image());
    scratch.second_gradient = layout.take(group * kGradientImage);
    scratch.third_gradient = layout.take(group * kGradientImage);
    return layout.bytes();
  }

  NatureScratch scratch;
  Arena arena;
};

struct SumsMemory {
  SumsMemory() : arena(lay_out(nullptr)) { lay_out(arena.floats()); }

  size_t lay_out(float* start) {
    Layout layout(start);
    for (int l = 0; l < kNatureLayers; l++) {
      sums.weights[l] = layout.take(kNature[l].num_weights());
      sums.biases[l] = layout.take(kNature[l].outputs);
    }
    return layout.bytes();
  }

  NatureSums sums;
  Arena arena;
};

class Nature : public Network {
 public:
  explicit Nature(const NatureKernels& kernels) : kernels_(kernels) {
    for (int l = 0; l < kNatureLayers; l++) {
      forward_[l] = Arena(kNature[l].num_weights() * sizeof(float));
      backward_[l] = Arena(kNature[l].num_weights() * sizeof(float));
      biases_[l] = Arena(kNature[l].outputs * sizeof(float));
      weights_.forward[l] = forward_[l].floats();
      weights_.bias[l] = biases_[l].floats();
    }
    weights_.backward_third = backward_[2].floats();
    for (int p = 0; p < 4; p++) weights_.backward_second[p] = backward_[1].floats() + p * kNature[1].num_weights() / 4;
  }

  int num_layers() const override { return kNatureLayers; }
  int group() const override { return kNatureGroup; }
  size_t picture_bytes() const override { return kNature[0].image(); }
  size_t num_features() const override { return kNatureFeatures; }
  size_t saved_bytes() const override { return kNatureSaved * sizeof(float); }

  // Only where the bytes of the weights have changed.
  void update(const float* const* weights, const float* const* biases) override {
    for (int l = 0; l < kNatureLayers; l++) {
      std::memcpy(biases_[l].floats(), biases[l], kNature[l].outputs * sizeof(float));
      if (!last_[l].update(weights[l], kNature[l].num_weights())) continue;
      const int outputs = kNature[l].outputs, num_rows = kNature[l].num_weights() / outputs;
      transpose(weights[l], outputs, num_rows, scale_of(l), forward_[l].floats());
      if (l == 1) arrange_backward_second();
      if (l == 2) arrange_backward_third();
    }
  }

  void reserve(int num_threads, int num_places) override {
    while (threads_.size() < static_cast<size_t>(num_threads)) threads_.push_back(std::make_unique<ThreadMemory>());
    while (sums_.size() < static_cast<size_t>(num_places)) sums_.push_back(std::make_unique<SumsMemory>());
  }

  void forward(const Piece& piece, int thread) override { kernels_.forward(task_for(piece), threads_[thread]->scratch); }

  void clear_sums(int place) override {
    const Arena& arena = sums_[place]->arena;
    std::memset(arena.floats(), 0, arena.size());
  }

  void backward(const Piece& piece, int place, int thread) override {
    NatureTask task = task_for(piece);
    task.sums = sums_[place]->sums;
    kernels_.backward(task, threads_[thread]->scratch);
  }

  void write_gradients(int index, int num_places, float* weights, float* biases) override {
    const NatureLayer& l = kNature[index];
    const NatureSums& total = sums_[0]->sums;
    for (int place = 1; place < num_places; place++) {
      add(sums_[place]->sums.weights[index], total.weights[index], l.num_weights());
      add(sums_[place]->sums.biases[index], total.biases[index], l.outputs);
    }
    std::memcpy(biases, total.biases[index], l.outputs * sizeof(float));
    transpose(total.weights[index], l.num_weights() / l.outputs, l.outputs, scale_of(index), weights);
  }

 private:
  NatureTask task_for(const Piece& piece) const {
    NatureTask task{};
    task.weights = &weights_;
    task.pictures = piece.pictures;
    task.num_images = piece.num_images;
    task.saved = reinterpret_cast<float*>(piece.saved);
    task.features = piece.features;
    task.features_gradient = piece.features_gradient;
    return task;
  }

  void arrange_backward_third() {
    const NatureLayer& l = kNature[2];
    float* target = backward_[2].floats();
    for (int y = 0; y < 3; y++) {
      for (int x = 0; x < 3; x++) {
        for (int o = 0; o < l.outputs; o++) {
          for (int i = 0; i < l.inputs; i++) *target++ = last_[2][position(l, o, 2 - y, 2 - x, i)];
        }
      }
    }
  }

  void arrange_backward_second() {
    const NatureLayer& l = kNature[1];
    float* target = backward_[1].floats();
    for (int parity = 0; parity < 4; parity++) {
      for (int k = 0; k < 4; k++) {
        const int y = parity / 2 + 2 * (1 - k / 2), x = parity % 2 + 2 * (1 - k % 2);
        for (int o = 0; o < l.outputs; o++) {
          for (int i = 0; i < l.inputs; i++) *target++ = last_[1][position(l, o, y, x, i)];
        }
      }
    }
  }

  const NatureKernels& kernels_;
  LastWeights last_[kNatureLayers];
  Arena forward_[kNatureLayers], backward_[kNatureLayers], biases_[kNatureLayers];
  NatureWeights weights_{};
  std::vector<std::unique_ptr<ThreadMemory>> threads_;
  std::vector<std::unique_ptr<SumsMemory>> sums_;
};

}  // namespace

std::unique_ptr<Network> make_nature(int instruction_set, int height, int width) {
  if (height != kNaturePicture || width != kNaturePicture) return nullptr;
  return std::make_unique<Nature>(kernels_for(instruction_set));
}

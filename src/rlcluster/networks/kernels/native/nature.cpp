// The nature network: its parameters in the layout of the kernels, its memory, and its calls of the kernels.
#include "nature.hpp"

#include "arena.hpp"
#include "network.hpp"
#include "parameters.hpp"
#include "workspace.hpp"

namespace rl {
namespace {

float scale_of(int index) { return index == 0 ? kByteScale : 1.0F; }

// The position of a weight in [outputs, kernel, kernel, inputs]: output o, row y, column x, input i.
size_t position(const NatureLayer& l, int o, int y, int x, int i) {
  return ((static_cast<size_t>(o) * l.kernel + y) * l.kernel + x) * l.inputs + i;
}

void lay_out_scratch(Layout& layout, NatureScratch& scratch) {
  const size_t group = kNatureGroup;
  scratch.images = layout.take(group * kNature[0].image);
  for (int l = 0; l < 2; l++) scratch.activations[l] = layout.take(kNature[l + 1].image);
  scratch.last = layout.take(kNatureFeatures);
  scratch.first_gradient = layout.take(group * kNature[1].image);
  scratch.second_gradient = layout.take(group * kGradientImage);
  scratch.third_gradient = layout.take(group * kGradientImage);
}

void lay_out_sums(Layout& layout, NatureSums& sums) {
  for (int l = 0; l < kNatureLayers; l++) {
    sums.weights[l] = layout.take(kNature[l].num_weights);
    sums.biases[l] = layout.take(kNature[l].outputs);
  }
}

class Nature : public Network {
 public:
  explicit Nature(const NatureKernels& kernels) : kernels_(kernels) {
    for (int l = 0; l < kNatureLayers; l++) {
      forward_[l] = Arena(kNature[l].num_weights * sizeof(float));
      backward_[l] = Arena(kNature[l].num_weights * sizeof(float));
      biases_[l] = Arena(kNature[l].outputs * sizeof(float));
      weights_.forward[l] = forward_[l].floats();
      weights_.bias[l] = biases_[l].floats();
    }
    weights_.backward_third = backward_[2].floats();
    for (int p = 0; p < 4; p++) weights_.backward_second[p] = backward_[1].floats() + p * kNature[1].num_weights / 4;
  }

  int num_layers() const override { return kNatureLayers; }
  int group() const override { return kNatureGroup; }
  size_t image_bytes() const override { return kNature[0].image; }
  size_t num_features() const override { return kNatureFeatures; }
  size_t saved_bytes() const override { return kNatureSaved * sizeof(float); }

  // A layer is arranged again only if its bytes have changed.
  void update(const float* const* weights, const float* const* biases) override {
    for (int l = 0; l < kNatureLayers; l++) {
      std::memcpy(biases_[l].floats(), biases[l], kNature[l].outputs * sizeof(float));
      if (!last_[l].update(weights[l], kNature[l].num_weights)) continue;
      const int outputs = kNature[l].outputs, num_rows = kNature[l].num_weights / outputs;
      transpose(weights[l], outputs, num_rows, scale_of(l), forward_[l].floats());
      if (l == 1) arrange_backward_second();
      if (l == 2) arrange_backward_third();
    }
  }

  void reserve(int num_threads, int num_accumulators) override { workspace_.reserve(num_threads, num_accumulators); }

  void set_clock(int thread, LayerClock* clock) override { workspace_.scratch(thread).clock = clock; }

  void forward(const WorkItem& item, int thread) override {
    kernels_.forward(task_for(item), workspace_.scratch(thread));
  }

  void clear(int accumulator) override { workspace_.clear(accumulator); }

  void backward(const WorkItem& item, int accumulator, int thread) override {
    NatureTask task = task_for(item);
    task.sums = workspace_.sums(accumulator);
    kernels_.backward(task, workspace_.scratch(thread));
  }

  void write_gradients(int index, int num_accumulators, float* weights, float* biases) override {
    const NatureLayer& l = kNature[index];
    const NatureSums& total = workspace_.total(index, num_accumulators, l.num_weights, l.outputs);
    transpose(total.weights[index], l.num_weights / l.outputs, l.outputs, scale_of(index), weights);
    std::memcpy(biases, total.biases[index], l.outputs * sizeof(float));
  }

 private:
  NatureTask task_for(const WorkItem& item) const {
    NatureTask task{};
    task.weights = &weights_;
    task.images = item.images;
    task.num_images = item.num_images;
    task.saved = reinterpret_cast<float*>(item.saved);
    task.features = item.features;
    task.features_gradient = item.features_gradient;
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
  Workspace<NatureScratch, NatureSums> workspace_{lay_out_scratch, lay_out_sums};
};

}  // namespace

std::unique_ptr<Network> make_nature(const NatureKernels& kernels, int height, int width) {
  if (height != kNatureSide || width != kNatureSide) return nullptr;
  return std::make_unique<Nature>(kernels);
}

}  // namespace rl

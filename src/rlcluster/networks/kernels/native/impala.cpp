// The impala network: its geometry, its memory, and its calls of the kernels.
#include "impala.hpp"

#include "impala_weights.hpp"
#include "network.hpp"
#include "workspace.hpp"

namespace rl {
namespace {

constexpr int kMinSide = 32, kMaxSide = 256;

ImpalaGeometry make_geometry(int height, int width) {
  ImpalaGeometry g{};
  g.height = height;
  g.width = width;
  size_t floats = 0;
  for (int s = 0; s < kStages; s++) {
    Stage& stage = g.stages[s];
    stage = {kStageChannels[s], height >> (s + 1), width >> (s + 1), 0, 0};
    stage.plain = static_cast<size_t>(stage.channels) * stage.height * stage.width;
    stage.padded = static_cast<size_t>(stage.channels) * (stage.height + 2) * (stage.width + 2);
    for (int f = 0; f < kFields; f++) {
      g.field_offset[s][f] = floats;
      if (f != kStageOutput || s + 1 < kStages) floats += stage.padded;
    }
  }
  g.num_features = g.stages[kStages - 1].plain;
  g.saved_bytes = floats * sizeof(float);
  for (int s = 0; s < kStages; s++) {
    g.position_offset[s] = g.saved_bytes;
    const Stage& stage = g.stages[s];  // unpooling may read one row and one pixel beyond the end
    g.saved_bytes += static_cast<size_t>(stage.channels) * (stage.height + 1) * (stage.width + 1);
  }
  g.saved_bytes = (g.saved_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return g;
}

void lay_out_scratch(const ImpalaGeometry& g, Layout& layout, ImpalaScratch& s) {
  const int largest = kStageChannels[kStages - 1];
  s.tiles = layout.take(size_t{kProducts} * pitch(largest));
  s.products = layout.take(size_t{kProducts} * pitch(largest));
  s.image = layout.take(static_cast<size_t>(g.height + 2) * (g.width + 2) * kImageChannels);
  s.rows = layout.take(size_t{4} * g.width * kStageChannels[0]);
  s.convolved = layout.take(static_cast<size_t>(g.height) * g.width * kStageChannels[0]);
  for (int i = 0; i < kStages; i++) {
    const Stage& stage = g.stages[i];
    const size_t images = i == 0 ? 1 : kImpalaGroup;
    s.residual[i] = layout.take(images * stage.plain);
    for (float*& padded : s.acting[i]) padded = layout.take(images * stage.padded);
    s.gradient[i] = layout.take(images * stage.padded);
    s.inner_gradient[i] = layout.take(images * stage.padded);
    s.unpooled[i] = nullptr;
    if (i > 0) {
      const Stage& before = g.stages[i - 1];
      const size_t pixels = static_cast<size_t>(before.height + 2) * (before.width + 2);
      s.unpooled[i] = layout.take((i == 1 ? 1 : kImpalaGroup) * pixels * stage.channels);
    }
  }
}

void lay_out_sums(Layout& layout, ImpalaSums& sums) {
  for (int index = 0; index < kImpalaLayers; index++) {
    sums.weights[index] = layout.take(impala_layer(index).num_transformed);
    sums.biases[index] = layout.take(impala_layer(index).outputs);
  }
}

class Impala : public Network {
 public:
  Impala(const ImpalaKernels& kernels, const ImpalaGeometry& geometry)
      : kernels_(kernels),
        geometry_(geometry),
        workspace_([geometry](Layout& layout, ImpalaScratch& scratch) { lay_out_scratch(geometry, layout, scratch); },
                   lay_out_sums) {}

  int num_layers() const override { return kImpalaLayers; }
  int group() const override { return kImpalaGroup; }
  size_t image_bytes() const override { return size_t{kImageChannels} * geometry_.height * geometry_.width; }
  size_t num_features() const override { return geometry_.num_features; }
  size_t saved_bytes() const override { return geometry_.saved_bytes; }

  void update(const float* const* weights, const float* const* biases) override { weights_.update(weights, biases); }

  void reserve(int num_threads, int num_accumulators) override { workspace_.reserve(num_threads, num_accumulators); }

  void set_clock(int thread, LayerClock* clock) override { workspace_.scratch(thread).clock = clock; }

  void forward(const WorkItem& item, int thread) override {
    ImpalaScratch& scratch = workspace_.scratch(thread);
    kernels_.forward(task_for(item, item.saved != nullptr ? saved_at(item.saved) : acting_at(scratch)), scratch);
  }

  void clear(int accumulator) override { workspace_.clear(accumulator); }

  void backward(const WorkItem& item, int accumulator, int thread) override {
    ImpalaTask task = task_for(item, saved_at(item.saved));
    task.sums = workspace_.sums(accumulator);
    kernels_.backward(task, workspace_.scratch(thread));
  }

  void write_gradients(int index, int num_accumulators, float* weights, float* biases) override {
    const ImpalaLayer l = impala_layer(index);
    const ImpalaSums& total = workspace_.total(index, num_accumulators, l.num_transformed, l.outputs);
    transform_gradient_back(index, total.weights[index], weights);
    std::memcpy(biases, total.biases[index], l.outputs * sizeof(float));
  }

  bool run_layer(const LayerTask& task, float* weights, float* biases) override {
    if (task.kind == kLayerBackward) clear(0);
    LayerTask whole = task;
    whole.weight_sums = workspace_.sums(0).weights[task.index];
    whole.bias_sums = workspace_.sums(0).biases[task.index];
    kernels_.layer(whole, weights_.get(), workspace_.scratch(0));
    if (task.kind == kLayerBackward) write_gradients(task.index, 1, weights, biases);
    return true;
  }

 private:
  ImpalaTask task_for(const WorkItem& item, const ImpalaActivations& activations) const {
    ImpalaTask task{};
    task.geometry = &geometry_;
    task.weights = &weights_.get();
    task.images = item.images;
    task.num_images = item.num_images;
    task.activations = activations;
    task.features = item.features;
    task.features_gradient = item.features_gradient;
    return task;
  }

  ImpalaActivations saved_at(char* record) const {
    ImpalaActivations a{};
    for (int s = 0; s < kStages; s++) {
      for (int f = 0; f < kFields; f++) {
        a.fields[s][f] = reinterpret_cast<float*>(record) + geometry_.field_offset[s][f];
      }
      a.image[s] = static_cast<ptrdiff_t>(geometry_.saved_bytes / sizeof(float));
      a.positions[s] = reinterpret_cast<uint8_t*>(record) + geometry_.position_offset[s];
    }
    a.positions_image = static_cast<ptrdiff_t>(geometry_.saved_bytes);
    a.clear_borders = true;
    return a;
  }

  // Acting keeps nothing: the inputs of a stage's convolutions alternate between two images.
  ImpalaActivations acting_at(const ImpalaScratch& scratch) const {
    ImpalaActivations a{};
    for (int s = 0; s < kStages; s++) {
      for (int f = 0; f < kFields; f++) a.fields[s][f] = scratch.acting[s][f % 2];
      a.image[s] = s == 0 ? 0 : static_cast<ptrdiff_t>(geometry_.stages[s].padded);
    }
    return a;
  }

  const ImpalaKernels& kernels_;
  const ImpalaGeometry geometry_;
  TransformedWeights weights_;
  Workspace<ImpalaScratch, ImpalaSums> workspace_;
};

}  // namespace

std::unique_ptr<Network> make_impala(const ImpalaKernels& kernels, int height, int width) {
  const auto is_covered = [](int side) { return side >= kMinSide && side <= kMaxSide && side % 32 == 0; };
  if (!is_covered(height) || !is_covered(width)) return nullptr;
  return std::make_unique<Impala>(kernels, make_geometry(height, width));
}

}  // namespace rl

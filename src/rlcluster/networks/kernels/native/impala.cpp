// The impala network: its geometry, its memory, and its kernels.
#include "arena.hpp"
#include "network.hpp"
#include "weights.hpp"

namespace {

constexpr int kMinSide = 32, kMaxSide = 256;

const Kernels& kernels_for(int instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == kAvx512) return kAvx512Kernels;
  if (instruction_set == kAvx2) return kAvx2Kernels;
#endif
  (void)instruction_set;
  return kPortableKernels;
}

Geometry make_geometry(int height, int width) {
  Geometry g{};
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
    const Stage& stage = g.stages[s];  // one row and one pixel more, which unpooling may read
    g.saved_bytes += static_cast<size_t>(stage.channels) * (stage.height + 1) * (stage.width + 1);
  }
  g.saved_bytes = (g.saved_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return g;
}

size_t lay_out(const Geometry& g, Scratch& s, float* start) {
  Layout layout(start);
  const int largest = kStageChannels[kStages - 1];
  s.tiles = layout.take(size_t{kProducts} * pitch(largest));
  s.products = layout.take(size_t{kProducts} * pitch(largest));
  s.picture = layout.take(static_cast<size_t>(g.height + 2) * (g.width + 2) * kPictureChannels);
  s.rows = layout.take(size_t{4} * g.width * kStageChannels[0]);
  s.convolved = layout.take(static_cast<size_t>(g.height) * g.width * kStageChannels[0]);
  for (int i = 0; i < kStages; i++) {
    const Stage& stage = g.stages[i];
    const size_t images = i == 0 ? 1 : kGroup;
    s.residual[i] = layout.take(images * stage.plain);
    for (float*& padded : s.acting[i]) padded = layout.take(images * stage.padded);
    s.gradient[i] = layout.take(images * stage.padded);
    s.inner_gradient[i] = layout.take(images * stage.padded);
    s.unpooled[i] = nullptr;
    if (i > 0) {
      const Stage& before = g.stages[i - 1];
      const size_t pixels = static_cast<size_t>(before.height + 2) * (before.width + 2);
      s.unpooled[i] = layout.take((i == 1 ? 1 : kGroup) * pixels * stage.channels);
    }
  }
  return layout.bytes();
}

size_t lay_out(GradientSums& sums, float* start) {
  Layout layout(start);
  for (int i = 0; i < kLayers; i++) {
    sums.weights[i] = layout.take(i == 0 ? layer(i).num_weights() : layer(i).num_transformed());
    sums.biases[i] = layout.take(layer(i).outputs);
  }
  return layout.bytes();
}

struct ThreadMemory {
  explicit ThreadMemory(const Geometry& g) : arena(lay_out(g, scratch, nullptr)) { lay_out(g, scratch, arena.floats()); }
  Scratch scratch;
  Arena arena;
};

struct SumsMemory {
  SumsMemory() : arena(lay_out(sums, nullptr)) { lay_out(sums, arena.floats()); }
  GradientSums sums;
  Arena arena;
};

class Impala : public Network {
 public:
  Impala(const Kernels& kernels, int height, int width) : kernels_(kernels), geometry_(make_geometry(height, width)) {}

  int num_layers() const override { return kLayers; }
  int group() const override { return kGroup; }
  size_t picture_bytes() const override { return size_t{kPictureChannels} * geometry_.height * geometry_.width; }
  size_t num_features() const override { return geometry_.num_features; }
  size_t saved_bytes() const override { return geometry_.saved_bytes; }

  void update(const float* const* weights, const float* const* biases) override { weights_.update(weights, biases); }

  void reserve(int num_threads, int num_places) override {
    while (threads_.size() < static_cast<size_t>(num_threads)) {
      threads_.push_back(std::make_unique<ThreadMemory>(geometry_));
    }
    while (sums_.size() < static_cast<size_t>(num_places)) sums_.push_back(std::make_unique<SumsMemory>());
  }

  void forward(const Piece& piece, int thread) override {
    Scratch& scratch = threads_[thread]->scratch;
    ForwardTask task{};
    task.geometry = &geometry_;
    task.weights = &weights_.get();
    task.pictures = piece.pictures;
    task.num_images = piece.num_images;
    task.activations = piece.saved != nullptr ? saved_at(piece.saved) : acting_at(scratch);
    task.features = piece.features;
    kernels_.forward(task, scratch);
  }

  void clear_sums(int place) override {
    const Arena& arena = sums_[place]->arena;
    std::memset(arena.floats(), 0, arena.size());
  }

  void backward(const Piece& piece, int place, int thread) override {
    BackwardTask task{};
    task.geometry = &geometry_;
    task.weights = &weights_.get();
    task.pictures = piece.pictures;
    task.num_images = piece.num_images;
    task.activations = saved_at(piece.saved);
    task.features = piece.features;
    task.features_gradient = piece.features_gradient;
    task.sums = sums_[place]->sums;
    kernels_.backward(task, threads_[thread]->scratch);
  }

  void write_gradients(int index, int num_places, float* weights, float* biases) override {
    const Layer l = layer(index);
    const size_t count = index == 0 ? l.num_weights() : l.num_transformed();
    for (int place = 1; place < num_places; place++) {
      add(sums_[place]->sums.weights[index], sums_[0]->sums.weights[index], count);
      add(sums_[place]->sums.biases[index], sums_[0]->sums.biases[index], l.outputs);
    }
    transform_gradient_back(index, sums_[0]->sums.weights[index], weights);
    std::memcpy(biases, sums_[0]->sums.biases[index], l.outputs * sizeof(float));
  }

  bool run_layer(const LayerTask& task, float* weights, float* biases) override {
    if (task.kind == kLayerBackward) clear_sums(0);
    LayerTask whole = task;
    whole.weight_sums = sums_[0]->sums.weights[task.index];
    whole.bias_sums = sums_[0]->sums.biases[task.index];
    kernels_.layer(whole, weights_.get(), threads_[0]->scratch);
    if (task.kind == kLayerBackward) write_gradients(task.index, 1, weights, biases);
    return true;
  }

 private:
  Activations saved_at(char* record) const {
    Activations a{};
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

  // Acting keeps nothing: the inputs of the convolutions of a stage take turns in two images.
  Activations acting_at(const Scratch& scratch) const {
    Activations a{};
    for (int s = 0; s < kStages; s++) {
      for (int f = 0; f < kFields; f++) a.fields[s][f] = scratch.acting[s][f % 2];
      a.image[s] = s == 0 ? 0 : static_cast<ptrdiff_t>(geometry_.stages[s].padded);
    }
    return a;
  }

  const Kernels& kernels_;
  Geometry geometry_;
  TransformedWeights weights_;
  std::vector<std::unique_ptr<ThreadMemory>> threads_;
  std::vector<std::unique_ptr<SumsMemory>> sums_;
};

}  // namespace

std::unique_ptr<Network> make_impala(int instruction_set, int height, int width) {
  const auto is_covered = [](int side) { return side >= kMinSide && side <= kMaxSide && side % 32 == 0; };
  if (!is_covered(height) || !is_covered(width)) return nullptr;
  return std::make_unique<Impala>(kernels_for(instruction_set), height, width);
}

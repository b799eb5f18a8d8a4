// The C interface: one trunk, its memory and its threads.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>

#include "arena.hpp"
#include "thread_pool.hpp"
#include "weights.hpp"

namespace {

enum InstructionSet { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// Weight gradients are summed in this many places, each by one thread in the order of its groups, then in order over
// the places: so the result does not depend on the number of threads.
constexpr int kSums = 8;
constexpr int kMinSide = 32, kMaxSide = 256;

const Kernels* kernels_for(int instruction_set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (instruction_set == kAvx512) {
    const bool has_all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return has_all ? &kAvx512Kernels : nullptr;
  }
  if (instruction_set == kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kAvx2Kernels : nullptr;
  }
#endif
  return instruction_set == kPortable ? &kPortableKernels : nullptr;
}

// Gives each request its place, rounded up to a line of the cache.
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

}  // namespace

struct rl_trunk {
  rl_trunk(const Kernels* chosen, int height, int width) : kernels(chosen), geometry(make_geometry(height, width)) {}

  // Makes the threads and their memory, once, and again after a fork (which leaves the threads behind).
  void use_threads(int num_threads) {
    if (pool && owner != getpid()) (void)pool.release();
    if (!pool || pool->num_threads() != num_threads) pool = std::make_unique<ThreadPool>(num_threads);
    owner = getpid();
    while (threads.size() < static_cast<size_t>(num_threads)) {
      threads.push_back(std::make_unique<ThreadMemory>(geometry));
    }
  }

  Activations saved_at(char* saved, int64_t first_image) const {
    Activations a{};
    char* record = saved + first_image * geometry.saved_bytes;
    for (int s = 0; s < kStages; s++) {
      for (int f = 0; f < kFields; f++) {
        a.fields[s][f] = reinterpret_cast<float*>(record) + geometry.field_offset[s][f];
      }
      a.image[s] = static_cast<ptrdiff_t>(geometry.saved_bytes / sizeof(float));
      a.positions[s] = reinterpret_cast<uint8_t*>(record) + geometry.position_offset[s];
    }
    a.positions_image = static_cast<ptrdiff_t>(geometry.saved_bytes);
    a.clear_borders = true;
    return a;
  }

  // Acting keeps nothing: the inputs of the convolutions of a stage take turns in two images.
  Activations acting_at(const Scratch& scratch) const {
    Activations a{};
    for (int s = 0; s < kStages; s++) {
      for (int f = 0; f < kFields; f++) a.fields[s][f] = scratch.acting[s][f % 2];
      a.image[s] = s == 0 ? 0 : static_cast<ptrdiff_t>(geometry.stages[s].padded);
    }
    return a;
  }

  const Kernels* kernels;
  Geometry geometry;
  TransformedWeights weights;
  std::unique_ptr<ThreadPool> pool;
  pid_t owner = 0;
  std::vector<std::unique_ptr<ThreadMemory>> threads;
  std::vector<std::unique_ptr<SumsMemory>> sums;
  std::mutex mutex;  // one call at a time
};

namespace {

int num_groups(int64_t num_images) { return static_cast<int>((num_images + kGroup - 1) / kGroup); }

int group_size(int64_t num_images, int group) {
  return static_cast<int>(std::min<int64_t>(kGroup, num_images - int64_t{group} * kGroup));
}

void add_sums(rl_trunk& trunk, int num_sums, int index, float* weights, float* biases) {
  const Layer l = layer(index);
  const size_t count = index == 0 ? l.num_weights() : l.num_transformed();
  float* total = trunk.sums[0]->sums.weights[index];
  for (int s = 1; s < num_sums; s++) {
    const float* part = trunk.sums[s]->sums.weights[index];
    for (size_t i = 0; i < count; i++) total[i] += part[i];
  }
  transform_gradient_back(index, total, weights);
  for (int o = 0; o < l.outputs; o++) {
    biases[o] = 0;
    for (int s = 0; s < num_sums; s++) biases[o] += trunk.sums[s]->sums.biases[index][o];
  }
}

}  // namespace

#define PUBLIC __attribute__((visibility("default")))

extern "C" {

PUBLIC int rl_interface_version() { return 1; }

PUBLIC int rl_is_supported(int instruction_set) { return kernels_for(instruction_set) != nullptr; }

// Null where the instruction set or the size of the pictures is not covered, or memory is short.
PUBLIC rl_trunk* rl_trunk_create(int instruction_set, int height, int width) {
  const Kernels* kernels = kernels_for(instruction_set);
  const auto is_covered = [](int side) { return side >= kMinSide && side <= kMaxSide && side % 32 == 0; };
  if (kernels == nullptr || !is_covered(height) || !is_covered(width)) return nullptr;
  try {
    return new rl_trunk(kernels, height, width);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

PUBLIC void rl_trunk_destroy(rl_trunk* trunk) { delete trunk; }

PUBLIC int64_t rl_trunk_num_features(const rl_trunk* trunk) { return static_cast<int64_t>(trunk->geometry.num_features); }

PUBLIC int64_t rl_trunk_saved_bytes(const rl_trunk* trunk) { return static_cast<int64_t>(trunk->geometry.saved_bytes); }

// pictures [num_images, height, width, 3] -> features [num_images, num_features]. `saved` holds saved_bytes per image for
// the backward pass, or is null. Returns 0, or 1 where memory is short.
PUBLIC int rl_trunk_forward(rl_trunk* trunk, const float* const* weights, const float* const* biases, const uint8_t* pictures,
                     int64_t num_images, float* features, char* saved, int num_threads) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  try {
    trunk->use_threads(num_threads);
    trunk->weights.update(weights, biases);
    const Geometry& g = trunk->geometry;
    const int64_t picture = int64_t{g.height} * g.width * kPictureChannels;
    trunk->pool->run(num_groups(num_images), [&](int group, int thread) {
      const int64_t first = int64_t{group} * kGroup;
      Scratch& scratch = trunk->threads[thread]->scratch;
      ForwardTask task{};
      task.geometry = &g;
      task.weights = &trunk->weights.get();
      task.pictures = pictures + first * picture;
      task.num_images = group_size(num_images, group);
      task.activations = saved != nullptr ? trunk->saved_at(saved, first) : trunk->acting_at(scratch);
      task.features = features + first * static_cast<int64_t>(g.num_features);
      trunk->kernels->forward(task, scratch);
    });
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// Writes the gradients of all weights [outputs, 3, 3, inputs] and biases, from what a forward pass saved.
PUBLIC int rl_trunk_backward(rl_trunk* trunk, const float* const* weights, const float* const* biases, const uint8_t* pictures,
                      int64_t num_images, const float* features, const float* features_gradient, char* saved,
                      float* const* weight_gradients, float* const* bias_gradients, int num_threads) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  try {
    trunk->use_threads(num_threads);
    trunk->weights.update(weights, biases);
    const int groups = num_groups(num_images);
    const int num_sums = std::max(1, std::min(kSums, groups));
    while (trunk->sums.size() < static_cast<size_t>(num_sums)) trunk->sums.push_back(std::make_unique<SumsMemory>());
    const Geometry& g = trunk->geometry;
    const int64_t picture = int64_t{g.height} * g.width * kPictureChannels;
    trunk->pool->run(num_sums, [&](int place, int thread) {
      SumsMemory& sums = *trunk->sums[place];
      std::memset(sums.arena.floats(), 0, sums.arena.size());
      for (int group = place; group < groups; group += num_sums) {
        const int64_t first = int64_t{group} * kGroup;
        BackwardTask task{};
        task.geometry = &g;
        task.weights = &trunk->weights.get();
        task.pictures = pictures + first * picture;
        task.num_images = group_size(num_images, group);
        task.activations = trunk->saved_at(saved, first);
        task.features = features + first * static_cast<int64_t>(g.num_features);
        task.features_gradient = features_gradient + first * static_cast<int64_t>(g.num_features);
        task.sums = sums.sums;
        trunk->kernels->backward(task, trunk->threads[thread]->scratch);
      }
    });
    trunk->pool->run(kLayers, [&](int index, int) {
      add_sums(*trunk, num_sums, index, weight_gradients[index], bias_gradients[index]);
    });
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// One layer alone, for tests and measurements. A backward pass writes the gradients of its weights and biases.
PUBLIC int rl_trunk_layer(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                          const LayerTask* task, float* weight_gradient, float* bias_gradient) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  try {
    trunk->use_threads(1);
    trunk->weights.update(weights, biases);
    if (trunk->sums.empty()) trunk->sums.push_back(std::make_unique<SumsMemory>());
    LayerTask whole = *task;
    const GradientSums& sums = trunk->sums[0]->sums;
    whole.weight_sums = sums.weights[task->index];
    whole.bias_sums = sums.biases[task->index];
    if (task->kind == kLayerBackward) {
      const Layer l = layer(task->index);
      std::memset(whole.weight_sums, 0, (task->index == 0 ? l.num_weights() : l.num_transformed()) * sizeof(float));
      std::memset(whole.bias_sums, 0, l.outputs * sizeof(float));
    }
    trunk->kernels->layer(whole, trunk->weights.get(), trunk->threads[0]->scratch);
    if (task->kind == kLayerBackward) add_sums(*trunk, 1, task->index, weight_gradient, bias_gradient);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // extern "C"

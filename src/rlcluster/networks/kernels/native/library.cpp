// The C interface: one trunk (the convolutions of a network), its threads, and how work is partitioned among them.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "instruction_sets.hpp"
#include "network.hpp"
#include "thread_pool.hpp"

namespace {

enum NetworkKind { kImpalaNetwork = 0, kNatureNetwork = 1 };

// Weight gradients are summed in this many accumulators, each by one thread in the order of its work items, then over
// the accumulators in order: so the result does not depend on the number of threads.
constexpr int kAccumulators = 8;

}  // namespace

struct rl_trunk {
  explicit rl_trunk(std::unique_ptr<rl::Network> made) : network(std::move(made)) {}

  // Makes the threads, once, and again after a fork, which does not copy them.
  void use_threads(int num_threads, int num_accumulators) {
    if (pool && owner != getpid()) (void)pool.release();
    if (!pool || pool->num_threads() != num_threads) pool = std::make_unique<rl::ThreadPool>(num_threads);
    owner = getpid();
    network->reserve(num_threads, num_accumulators);
  }

  int num_items(int64_t num_images) const {
    return static_cast<int>((num_images + network->group() - 1) / network->group());
  }

  std::unique_ptr<rl::Network> network;
  std::unique_ptr<rl::ThreadPool> pool;
  pid_t owner = 0;
  std::mutex mutex;  // one call at a time
};

namespace {

// All images of a call, and its work items.
struct Batch {
  rl::WorkItem item(const rl::Network& network, int number) const {
    const int64_t first = int64_t{number} * network.group();
    rl::WorkItem item{};
    item.images = images + first * static_cast<int64_t>(network.image_bytes());
    item.num_images = static_cast<int>(std::min<int64_t>(network.group(), num_images - first));
    item.saved = saved == nullptr ? nullptr : saved + first * static_cast<int64_t>(network.saved_bytes());
    const int64_t features_before = first * static_cast<int64_t>(network.num_features());
    item.features = features + features_before;
    item.features_gradient = features_gradient == nullptr ? nullptr : features_gradient + features_before;
    return item;
  }

  const uint8_t* images;
  int64_t num_images;
  char* saved;
  float* features;
  const float* features_gradient;
};

// No exception may reach C: 1 if `work` throws, for lack of memory or threads.
template <class Work>
int guarded(rl_trunk* trunk, Work work) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  try {
    work();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

#define PUBLIC __attribute__((visibility("default")))

extern "C" {

PUBLIC int rl_interface_version() { return 2; }

PUBLIC int rl_is_supported(int instruction_set) { return rl::find_kernels(instruction_set) != nullptr; }

// Null if the processor, the network or the size of the images is not covered, or for lack of memory.
PUBLIC rl_trunk* rl_trunk_create(int kind, int instruction_set, int height, int width) {
  const rl::Kernels* kernels = rl::find_kernels(instruction_set);
  if (kernels == nullptr) return nullptr;
  try {
    std::unique_ptr<rl::Network> network;
    if (kind == kImpalaNetwork) network = rl::make_impala(kernels->impala, height, width);
    if (kind == kNatureNetwork) network = rl::make_nature(kernels->nature, height, width);
    return network ? new rl_trunk(std::move(network)) : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

PUBLIC void rl_trunk_destroy(rl_trunk* trunk) {
  if (trunk->owner != getpid()) (void)trunk->pool.release();  // a forked child has no threads to join
  delete trunk;
}

PUBLIC int64_t rl_trunk_num_features(const rl_trunk* trunk) {
  return static_cast<int64_t>(trunk->network->num_features());
}

PUBLIC int64_t rl_trunk_saved_bytes(const rl_trunk* trunk) {
  return static_cast<int64_t>(trunk->network->saved_bytes());
}

// images [num_images, height, width, 3] -> features [num_images, num_features]. `saved` has saved_bytes per image for
// the backward pass, or is null. Returns 0, or 1 for lack of memory or threads.
PUBLIC int rl_trunk_forward(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                            const uint8_t* images, int64_t num_images, float* features, char* saved,
                            int num_threads) {
  return guarded(trunk, [&] {
    rl::Network& network = *trunk->network;
    trunk->use_threads(num_threads, 0);
    network.update(weights, biases);
    const Batch batch = {images, num_images, saved, features, nullptr};
    trunk->pool->run(trunk->num_items(num_images),
                     [&](int number, int thread) { network.forward(batch.item(network, number), thread); });
  });
}

// Writes the gradients of all weights [outputs, kernel, kernel, inputs] and biases, from what a forward pass saved.
PUBLIC int rl_trunk_backward(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                             const uint8_t* images, int64_t num_images, const float* features,
                             const float* features_gradient, char* saved, float* const* weight_gradients,
                             float* const* bias_gradients, int num_threads) {
  return guarded(trunk, [&] {
    rl::Network& network = *trunk->network;
    const int num_items = trunk->num_items(num_images);
    const int num_accumulators = std::max(1, std::min(kAccumulators, num_items));
    trunk->use_threads(num_threads, num_accumulators);
    network.update(weights, biases);
    const Batch batch = {images, num_images, saved, const_cast<float*>(features), features_gradient};
    trunk->pool->run(num_accumulators, [&](int accumulator, int thread) {
      network.clear(accumulator);
      for (int number = accumulator; number < num_items; number += num_accumulators) {
        network.backward(batch.item(network, number), accumulator, thread);
      }
    });
    trunk->pool->run(network.num_layers(), [&](int layer, int) {
      network.write_gradients(layer, num_accumulators, weight_gradients[layer], bias_gradients[layer]);
    });
  });
}

// One layer alone, for tests and benchmarks. A backward pass writes the gradients of its weights and biases.
PUBLIC int rl_trunk_layer(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                          const rl::LayerTask* task, float* weight_gradient, float* bias_gradient) {
  bool is_done = false;
  const int code = guarded(trunk, [&] {
    trunk->use_threads(1, 1);
    trunk->network->update(weights, biases);
    is_done = trunk->network->run_layer(*task, weight_gradient, bias_gradient);
  });
  return code != 0 || !is_done;
}

}  // extern "C"

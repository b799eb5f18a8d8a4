// The C interface: one trunk (the convolutions of a network), its threads, and how work is partitioned among them.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <vector>

#include "instruction_sets.hpp"
#include "network.hpp"
#include "peaks.hpp"
#include "thread_pool.hpp"

namespace {

enum NetworkKind { kImpalaNetwork = 0, kNatureNetwork = 1 };

// Weight gradients are summed in accumulators, each by one thread in the order of its work items, then over the
// accumulators in order. Their number depends on the batch alone, so the result does not depend on the number of
// threads. Clearing and adding one costs about as much as a third of a work item.
constexpr int kItemsPerAccumulator = 8, kMinAccumulators = 8, kMaxAccumulators = 64;

int count_accumulators(int num_items) {
  const int wanted = std::min(std::max(num_items / kItemsPerAccumulator, kMinAccumulators), kMaxAccumulators);
  return std::max(1, std::min(wanted, num_items));
}

}  // namespace

struct rl_trunk {
  explicit rl_trunk(std::unique_ptr<rl::Network> made) : network(std::move(made)) {}

  // Makes the threads, once, and again after a fork, which does not copy them.
  void use_threads(int num_threads, int num_accumulators) {
    if (pool && owner != getpid()) (void)pool.release();
    if (!pool || pool->num_threads() != num_threads) pool = std::make_unique<rl::ThreadPool>(num_threads);
    owner = getpid();
    network->reserve(num_threads, num_accumulators);
    while (is_timed && clocks.size() < static_cast<size_t>(num_threads)) {
      clocks.push_back(std::make_unique<rl::LayerClock>());
    }
    for (int thread = 0; thread < num_threads; thread++) {
      network->set_clock(thread, is_timed ? clocks[thread].get() : nullptr);
    }
  }

  int num_items(int64_t num_images) const {
    return static_cast<int>((num_images + network->group() - 1) / network->group());
  }

  std::unique_ptr<rl::Network> network;
  std::unique_ptr<rl::ThreadPool> pool;
  pid_t owner = 0;
  bool is_timed = false;
  std::vector<std::unique_ptr<rl::LayerClock>> clocks;  // one for each thread
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

PUBLIC int rl_interface_version() { return 3; }

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

// From now on the time of each layer is counted, from zero; or no longer.
PUBLIC void rl_trunk_time_layers(rl_trunk* trunk, int is_timed) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  trunk->is_timed = is_timed != 0;
  trunk->clocks.clear();  // no thread runs now; use_threads hands out new ones
}

// The seconds of all threads together in each layer, [2, num_layers]: forward, then backward.
PUBLIC void rl_trunk_layer_seconds(rl_trunk* trunk, double* seconds) {
  const std::lock_guard<std::mutex> lock(trunk->mutex);
  const int num_layers = trunk->network->num_layers();
  for (int i = 0; i < rl::kPasses * num_layers; i++) {
    seconds[i] = 0;
    for (const auto& clock : trunk->clocks) {
      seconds[i] += 1e-9 * static_cast<double>(clock->nanoseconds[i / num_layers][i % num_layers]);
    }
  }
}

// Operations per second of these threads, doing nothing but multiply-adds. Negative without these instructions, or for
// lack of memory or threads.
PUBLIC double rl_peak_flops(int instruction_set, int num_threads, double seconds) {
  const rl::Kernels* kernels = rl::find_kernels(instruction_set);
  if (kernels == nullptr) return -1;
  try {
    return rl::peak_flops(kernels->peak, num_threads, seconds);
  } catch (const std::exception&) {
    return -1;
  }
}

// Bytes per second that these threads read, each `bytes` of its own again and again. Negative as above.
PUBLIC double rl_peak_bandwidth(int instruction_set, int num_threads, int64_t bytes, double seconds) {
  const rl::Kernels* kernels = rl::find_kernels(instruction_set);
  if (kernels == nullptr) return -1;
  try {
    return rl::peak_bandwidth(kernels->peak, num_threads, static_cast<size_t>(bytes), seconds);
  } catch (const std::exception&) {
    return -1;
  }
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
    const int num_accumulators = count_accumulators(num_items);
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

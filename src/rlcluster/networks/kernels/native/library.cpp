// The C interface: one trunk (the convolutions of a network), its threads, and how work is dealt to them.
#include <unistd.h>

#include <exception>
#include <mutex>

#include "network.hpp"
#include "thread_pool.hpp"

namespace {

enum Kind { kImpala = 0, kNatureNetwork = 1 };

// Weight gradients are summed in this many places, each by one thread in the order of its pieces, then in order over
// the places: so the result does not depend on the number of threads.
constexpr int kPlaces = 8;

bool has_instructions(int instruction_set) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (instruction_set == kAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  }
  if (instruction_set == kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return instruction_set == kPortable;
}

}  // namespace

struct rl_trunk {
  explicit rl_trunk(std::unique_ptr<Network> made) : network(std::move(made)) {}

  // Makes the threads, once, and again after a fork (which leaves them behind).
  void use_threads(int num_threads, int num_places) {
    if (pool && owner != getpid()) (void)pool.release();
    if (!pool || pool->num_threads() != num_threads) pool = std::make_unique<ThreadPool>(num_threads);
    owner = getpid();
    network->reserve(num_threads, num_places);
  }

  int num_pieces(int64_t num_images) const {
    return static_cast<int>((num_images + network->group() - 1) / network->group());
  }

  std::unique_ptr<Network> network;
  std::unique_ptr<ThreadPool> pool;
  pid_t owner = 0;
  std::mutex mutex;  // one call at a time
};

namespace {

// All images of a call, and the pieces of them.
struct Batch {
  Piece piece(const Network& network, int number) const {
    const int64_t first = int64_t{number} * network.group();
    Piece p{};
    p.pictures = pictures + first * static_cast<int64_t>(network.picture_bytes());
    p.num_images = static_cast<int>(std::min<int64_t>(network.group(), num_images - first));
    p.saved = saved == nullptr ? nullptr : saved + first * static_cast<int64_t>(network.saved_bytes());
    const int64_t features_before = first * static_cast<int64_t>(network.num_features());
    p.features = features + features_before;
    p.features_gradient = features_gradient == nullptr ? nullptr : features_gradient + features_before;
    return p;
  }

  const uint8_t* pictures;
  int64_t num_images;
  char* saved;
  float* features;
  const float* features_gradient;
};

// Nothing may be thrown into C. Memory or threads were short where `work` throws.
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

PUBLIC int rl_is_supported(int instruction_set) { return has_instructions(instruction_set); }

// Null where the processor, the network or the size of the pictures is not covered, or memory is short.
PUBLIC rl_trunk* rl_trunk_create(int kind, int instruction_set, int height, int width) {
  if (!has_instructions(instruction_set)) return nullptr;
  try {
    std::unique_ptr<Network> network;
    if (kind == kImpala) network = make_impala(instruction_set, height, width);
    if (kind == kNatureNetwork) network = make_nature(instruction_set, height, width);
    return network ? new rl_trunk(std::move(network)) : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

PUBLIC void rl_trunk_destroy(rl_trunk* trunk) {
  if (trunk->owner != getpid()) (void)trunk->pool.release();  // a forked child: its threads are not there to be joined
  delete trunk;
}

PUBLIC int64_t rl_trunk_num_features(const rl_trunk* trunk) {
  return static_cast<int64_t>(trunk->network->num_features());
}

PUBLIC int64_t rl_trunk_saved_bytes(const rl_trunk* trunk) {
  return static_cast<int64_t>(trunk->network->saved_bytes());
}

// pictures [num_images, height, width, 3] -> features [num_images, num_features]. `saved` holds saved_bytes per image for
// the backward pass, or is null. Returns 0, or 1 where memory or threads are short.
PUBLIC int rl_trunk_forward(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                            const uint8_t* pictures, int64_t num_images, float* features, char* saved,
                            int num_threads) {
  return guarded(trunk, [&] {
    Network& network = *trunk->network;
    trunk->use_threads(num_threads, 0);
    network.update(weights, biases);
    const Batch batch = {pictures, num_images, saved, features, nullptr};
    trunk->pool->run(trunk->num_pieces(num_images),
                     [&](int number, int thread) { network.forward(batch.piece(network, number), thread); });
  });
}

// Writes the gradients of all weights [outputs, kernel, kernel, inputs] and biases, from what a forward pass saved.
PUBLIC int rl_trunk_backward(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                             const uint8_t* pictures, int64_t num_images, const float* features,
                             const float* features_gradient, char* saved, float* const* weight_gradients,
                             float* const* bias_gradients, int num_threads) {
  return guarded(trunk, [&] {
    Network& network = *trunk->network;
    const int num_pieces = trunk->num_pieces(num_images), num_places = std::max(1, std::min(kPlaces, num_pieces));
    trunk->use_threads(num_threads, num_places);
    network.update(weights, biases);
    const Batch batch = {pictures, num_images, saved, const_cast<float*>(features), features_gradient};
    trunk->pool->run(num_places, [&](int place, int thread) {
      network.clear_sums(place);
      for (int number = place; number < num_pieces; number += num_places) {
        network.backward(batch.piece(network, number), place, thread);
      }
    });
    trunk->pool->run(network.num_layers(), [&](int layer, int) {
      network.write_gradients(layer, num_places, weight_gradients[layer], bias_gradients[layer]);
    });
  });
}

// One layer alone, for tests and measurements. A backward pass writes the gradients of its weights and biases.
PUBLIC int rl_trunk_layer(rl_trunk* trunk, const float* const* weights, const float* const* biases,
                          const LayerTask* task, float* weight_gradient, float* bias_gradient) {
  bool is_done = false;
  const int code = guarded(trunk, [&] {
    trunk->use_threads(1, 1);
    trunk->network->update(weights, biases);
    is_done = trunk->network->run_layer(*task, weight_gradient, bias_gradient);
  });
  return code != 0 || !is_done;
}

}  // extern "C"

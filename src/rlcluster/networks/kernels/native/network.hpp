// One network as library.cpp sees it: it processes work items, and sums gradients in numbered accumulators.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "layer_clock.hpp"
#include "layer_task.hpp"

namespace rl {

// A few images, for one thread.
struct WorkItem {
  const uint8_t* images;
  int num_images;
  char* saved;  // null when acting
  float* features;
  const float* features_gradient;
};

class Network {
 public:
  virtual ~Network() = default;

  virtual int num_layers() const = 0;
  virtual int group() const = 0;  // images of a work item
  virtual size_t image_bytes() const = 0;
  virtual size_t num_features() const = 0;
  virtual size_t saved_bytes() const = 0;  // per image

  // weights[l] is [outputs, kernel, kernel, inputs], biases[l] is [outputs].
  virtual void update(const float* const* weights, const float* const* biases) = 0;
  virtual void reserve(int num_threads, int num_accumulators) = 0;
  virtual void set_clock(int thread, LayerClock* clock) = 0;  // null: layers are not timed
  virtual void forward(const WorkItem& item, int thread) = 0;
  virtual void clear(int accumulator) = 0;
  virtual void backward(const WorkItem& item, int accumulator, int thread) = 0;
  // Adds the accumulators in order and writes the gradients of a layer.
  virtual void write_gradients(int layer, int num_accumulators, float* weights, float* biases) = 0;
  // One layer alone, on thread 0 and accumulator 0; false if the network does not support it.
  virtual bool run_layer(const LayerTask&, float* /*weights*/, float* /*biases*/) { return false; }
};

struct ImpalaKernels;
struct NatureKernels;

// Null if this size of images is not covered.
std::unique_ptr<Network> make_impala(const ImpalaKernels& kernels, int height, int width);
std::unique_ptr<Network> make_nature(const NatureKernels& kernels, int height, int width);

}  // namespace rl

// One network as the threads of library.cpp see it: pieces of work, and sums of gradients in numbered places.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "trunk.hpp"

enum InstructionSet { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// A few images on their way through the network.
struct Piece {
  const uint8_t* pictures;
  int num_images;
  char* saved;  // null when acting
  float* features;
  const float* features_gradient;
};

class Network {
 public:
  virtual ~Network() = default;

  virtual int num_layers() const = 0;
  virtual int group() const = 0;  // images of a piece
  virtual size_t picture_bytes() const = 0;
  virtual size_t num_features() const = 0;
  virtual size_t saved_bytes() const = 0;  // of an image

  // weights[l] is [outputs, kernel, kernel, inputs], biases[l] is [outputs].
  virtual void update(const float* const* weights, const float* const* biases) = 0;
  virtual void reserve(int num_threads, int num_places) = 0;
  virtual void forward(const Piece& piece, int thread) = 0;
  virtual void clear_sums(int place) = 0;
  virtual void backward(const Piece& piece, int place, int thread) = 0;
  // Adds the places in order and writes the gradients of a layer.
  virtual void write_gradients(int layer, int num_places, float* weights, float* biases) = 0;
  // One layer alone, for tests and measurements, on thread 0 and place 0; false where the network has no such function.
  virtual bool run_layer(const LayerTask&, float* /*weights*/, float* /*biases*/) { return false; }
};

// Null where the size of the pictures is not covered.
std::unique_ptr<Network> make_impala(int instruction_set, int height, int width);
std::unique_ptr<Network> make_nature(int instruction_set, int height, int width);

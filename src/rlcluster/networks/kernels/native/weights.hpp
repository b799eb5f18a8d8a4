// The 3x3 kernels to and from the domain in which the convolutions multiply.
#pragma once
#include <vector>

#include "arena.hpp"
#include "parameters.hpp"
#include "trunk.hpp"

// Inputs, outputs and size of each layer, in the order of policy.py.
struct Layer {
  int inputs, outputs;
  size_t num_weights() const { return size_t{9} * inputs * outputs; }
  size_t num_transformed() const { return size_t{kProducts} * inputs * outputs; }
};

Layer layer(int index);

// The parameters of one trunk, transformed; done anew only when their bytes have changed.
class TransformedWeights {
 public:
  TransformedWeights();

  // weights[l] is [outputs, 3, 3, inputs], biases[l] is [outputs].
  void update(const float* const* weights, const float* const* biases);

  const Weights& get() const { return weights_; }

 private:
  LastWeights last_[kLayers];
  std::vector<float> biases_[kLayers];
  Arena forward_[kLayers], backward_[kLayers];
  Weights weights_;
};

// G^T sums G, rotated: sums [36, inputs, outputs] of layer `index` to its gradient [outputs, 3, 3, inputs]; layer 0 from
// [27, 16].
void transform_gradient_back(int index, const float* sums, float* gradient);

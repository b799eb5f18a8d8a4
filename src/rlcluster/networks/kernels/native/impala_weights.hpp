// The impala network's 3x3 kernels, to the transformed domain of the Winograd products and back.
#pragma once
#include <vector>

#include "arena.hpp"
#include "impala.hpp"
#include "parameters.hpp"

namespace rl {

struct ImpalaLayer {
  int inputs, outputs;
  size_t num_weights;
  size_t num_transformed;  // also the size of the gradient's sums; layer 0 is not transformed
};

// Layers are in the order of policy.py.
ImpalaLayer impala_layer(int index);

// The parameters of one network, transformed; a layer is transformed again only if its bytes have changed.
class TransformedWeights {
 public:
  TransformedWeights();

  // weights[l] is [outputs, 3, 3, inputs], biases[l] is [outputs].
  void update(const float* const* weights, const float* const* biases);

  const ImpalaWeights& get() const { return weights_; }

 private:
  LastWeights last_[kImpalaLayers];
  std::vector<float> biases_[kImpalaLayers];
  Arena forward_[kImpalaLayers], backward_[kImpalaLayers];
  ImpalaWeights weights_;
};

// G^T sums G, rotated: from the sums [36, inputs, outputs] of layer `index` to its gradient [outputs, 3, 3, inputs];
// layer 0 from [27, 16].
void transform_gradient_back(int index, const float* sums, float* gradient);

}  // namespace rl

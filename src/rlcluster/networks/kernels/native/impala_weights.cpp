#include "impala_weights.hpp"

#include <cstring>

namespace rl {
namespace {

// G of F(4x4, 3x3), for the points 0, 1, -1, 2, -2 and infinity.
constexpr float kG[6][3] = {
    {1.0F / 4, 0, 0},
    {-1.0F / 6, -1.0F / 6, -1.0F / 6},
    {-1.0F / 6, 1.0F / 6, -1.0F / 6},
    {1.0F / 24, 1.0F / 12, 1.0F / 6},
    {1.0F / 24, -1.0F / 12, 1.0F / 6},
    {0, 0, 1},
};

constexpr int kMostOutputs = kStageChannels[kStages - 1];

void add_scaled(float scale, const float* values, float* sums, int count) {
  for (int i = 0; i < count; i++) sums[i] += scale * values[i];
}

// G g G^T of one kernel to transformed[e * step].
void transform(const float (&g)[3][3], float* transformed, size_t step) {
  float rows[6][3];
  for (int i = 0; i < 6; i++) {
    for (int j = 0; j < 3; j++) rows[i][j] = kG[i][0] * g[0][j] + kG[i][1] * g[1][j] + kG[i][2] * g[2][j];
  }
  for (int i = 0; i < 6; i++) {
    for (int j = 0; j < 6; j++) {
      transformed[(6 * i + j) * step] = rows[i][0] * kG[j][0] + rows[i][1] * kG[j][1] + rows[i][2] * kG[j][2];
    }
  }
}

void transform_layer(ImpalaLayer l, const float* weights, float* forward, float* backward) {
  const size_t step = static_cast<size_t>(l.inputs) * l.outputs;
  for (int o = 0; o < l.outputs; o++) {
    for (int i = 0; i < l.inputs; i++) {
      float kernel[3][3], rotated[3][3];
      for (int k = 0; k < 9; k++) {
        kernel[k / 3][k % 3] = weights[(o * 9 + k) * l.inputs + i];
        rotated[2 - k / 3][2 - k % 3] = kernel[k / 3][k % 3];
      }
      transform(kernel, forward + static_cast<size_t>(i) * l.outputs + o, step);
      transform(rotated, backward + static_cast<size_t>(o) * l.inputs + i, step);
    }
  }
}

}  // namespace

ImpalaLayer impala_layer(int index) {
  const int stage = index / kLayersPerStage, outputs = kStageChannels[stage];
  int inputs = outputs;
  if (index % kLayersPerStage == 0) inputs = stage == 0 ? kImageChannels : kStageChannels[stage - 1];
  const size_t num_products = static_cast<size_t>(inputs) * outputs;
  return {inputs, outputs, 9 * num_products, (index == 0 ? 9 : kProducts) * num_products};
}

TransformedWeights::TransformedWeights() {
  for (int index = 0; index < kImpalaLayers; index++) {
    const ImpalaLayer l = impala_layer(index);
    biases_[index].resize(l.outputs);
    forward_[index] = Arena(l.num_transformed * sizeof(float));
    if (index != 0) backward_[index] = Arena(l.num_transformed * sizeof(float));
    weights_.forward[index] = forward_[index].floats();
    weights_.backward[index] = backward_[index].floats();
    weights_.bias[index] = biases_[index].data();
  }
  weights_.first = forward_[0].floats();
}

void TransformedWeights::update(const float* const* weights, const float* const* biases) {
  for (int index = 0; index < kImpalaLayers; index++) {
    const ImpalaLayer l = impala_layer(index);
    std::memcpy(biases_[index].data(), biases[index], l.outputs * sizeof(float));
    if (!last_[index].update(weights[index], l.num_weights)) continue;
    if (index == 0) {
      transpose(weights[0], l.outputs, kFirstTaps, kByteScale, forward_[0].floats());
    } else {
      transform_layer(l, weights[index], forward_[index].floats(), backward_[index].floats());
    }
  }
}

void transform_gradient_back(int index, const float* sums, float* gradient) {
  const ImpalaLayer l = impala_layer(index);
  if (index == 0) {
    transpose(sums, kFirstTaps, l.outputs, kByteScale, gradient);
    return;
  }
  const size_t step = static_cast<size_t>(l.inputs) * l.outputs;
  for (int i = 0; i < l.inputs; i++) {
    float rows[3][6][kMostOutputs] = {}, kernel[9][kMostOutputs] = {};  // the innermost loops run over outputs
    for (int e = 0; e < kProducts; e++) {
      const float* values = sums + e * step + static_cast<size_t>(i) * l.outputs;
      for (int r = 0; r < 3; r++) add_scaled(kG[e / 6][r], values, rows[r][e % 6], l.outputs);
    }
    for (int k = 0; k < 9; k++) {
      for (int j = 0; j < 6; j++) add_scaled(kG[j][k % 3], rows[k / 3][j], kernel[k], l.outputs);
      for (int o = 0; o < l.outputs; o++) gradient[(o * 9 + 8 - k) * l.inputs + i] = kernel[k][o];
    }
  }
}

}  // namespace rl

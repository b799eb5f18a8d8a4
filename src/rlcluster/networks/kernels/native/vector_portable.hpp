// One vector of 4 floats in the vector types of GCC and Clang: SSE2, NEON or whatever the machine has.
#pragma once
#include <cstdint>
#include <cstring>

namespace rl::portable {
namespace {

typedef float Vector __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));
constexpr int kLanes = 4;
#if defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

inline Vector load(const float* p) {
  Vector a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
inline void store(float* p, Vector a) { std::memcpy(p, &a, sizeof a); }
inline Vector broadcast(float a) { return Vector{a, a, a, a}; }
inline Vector add(Vector a, Vector b) { return a + b; }
inline Vector subtract(Vector a, Vector b) { return a - b; }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }

inline Vector where(Mask mask, Vector a, Vector b) { return (Vector)((mask & (Mask)a) | (~mask & (Mask)b)); }

// max(0, a); a NaN stays one.
inline Vector relu(Vector a) { return where(a <= Vector{}, Vector{}, a); }

inline Vector keep_where_nonzero(Vector value, Vector gate) { return where(gate != Vector{}, value, Vector{}); }
inline Vector keep_where_equal(Vector value, Vector a, Vector b) { return where(a == b, value, Vector{}); }

inline void take_larger_or_nan(Vector& best, Vector& position, Vector candidate, float candidate_position) {
  const Mask wins = (candidate > best) | (candidate != candidate);
  best = where(wins, candidate, best);
  position = where(wins, broadcast(candidate_position), position);
}

inline Vector load_bytes(const uint8_t* p) { return Vector{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }

inline void store_bytes(uint8_t* p, Vector a) {
  for (int i = 0; i < kLanes; i++) p[i] = static_cast<uint8_t>(a[i]);
}

}  // namespace
}  // namespace rl::portable

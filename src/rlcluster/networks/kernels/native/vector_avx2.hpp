// One vector of 8 floats: AVX2 and FMA.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace rl::avx2 {
namespace {

using Vector = __m256;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;

inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector a) { _mm256_storeu_ps(p, a); }
inline Vector broadcast(float a) { return _mm256_set1_ps(a); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

// max(0, a); a NaN stays one (the second operand is taken where either is NaN).
inline Vector relu(Vector a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }

inline Vector keep_where_nonzero(Vector value, Vector gate) {
  return _mm256_and_ps(_mm256_cmp_ps(gate, _mm256_setzero_ps(), _CMP_NEQ_UQ), value);
}

inline Vector keep_where_equal(Vector value, Vector a, Vector b) {
  return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ), value);
}

inline void take_larger_or_nan(Vector& best, Vector& position, Vector candidate, float candidate_position) {
  const Vector wins = _mm256_or_ps(_mm256_cmp_ps(candidate, best, _CMP_GT_OQ),
                                   _mm256_cmp_ps(candidate, candidate, _CMP_UNORD_Q));
  best = _mm256_blendv_ps(best, candidate, wins);
  position = _mm256_blendv_ps(position, broadcast(candidate_position), wins);
}

inline Vector load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

inline void store_bytes(uint8_t* p, Vector a) {
  const __m256i whole = _mm256_cvtps_epi32(a);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}

}  // namespace
}  // namespace rl::avx2

// One vector of 16 floats: AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace rl::avx512 {
namespace {

using Vector = __m512;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;

inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector a) { _mm512_storeu_ps(p, a); }
inline Vector broadcast(float a) { return _mm512_set1_ps(a); }
inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }

// max(0, a); a NaN stays one (the second operand is taken where either is NaN).
inline Vector relu(Vector a) { return _mm512_max_ps(_mm512_setzero_ps(), a); }

inline Vector keep_where_nonzero(Vector value, Vector gate) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(gate, _mm512_setzero_ps(), _CMP_NEQ_UQ), value);
}

inline Vector keep_where_equal(Vector value, Vector a, Vector b) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), value);
}

inline void take_larger_or_nan(Vector& best, Vector& position, Vector candidate, float candidate_position) {
  const __mmask16 wins = _mm512_cmp_ps_mask(candidate, best, _CMP_GT_OQ) |
                         _mm512_cmp_ps_mask(candidate, candidate, _CMP_UNORD_Q);
  best = _mm512_mask_mov_ps(best, wins, candidate);
  position = _mm512_mask_mov_ps(position, wins, broadcast(candidate_position));
}

inline Vector load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

inline void store_bytes(uint8_t* p, Vector a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

}  // namespace
}  // namespace rl::avx512

// Numbers that change lanes: rows of a matrix to vectors that hold one number of each row, and back.
#pragma once

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {

#if defined(__GNUC__) && defined(__AVX2__)
using Quad = double __attribute__((vector_size(32)));
DPINFER_INLINE Quad load_quad(const double* source) {
  Quad r;
  std::memcpy(&r, source, sizeof r);
  return r;
}
DPINFER_INLINE Quad load_quad(const float* source) {
  float __attribute__((vector_size(16))) r;
  std::memcpy(&r, source, sizeof r);
  return __builtin_convertvector(r, Quad);
}
#endif

// Four numbers of each of eight rows: columns[c] lane i becomes rows[i][c], as float64.
template <typename Scalar>
DPINFER_INLINE void load_columns(const Scalar* const (&rows)[kLanes], Vec (&columns)[4]) {
#if defined(__GNUC__) && defined(__AVX2__)
  Quad quads[kLanes];
  for (int i = 0; i < kLanes; ++i) quads[i] = load_quad(rows[i]);
#if defined(__AVX512F__)
  NativeDouble v[4];
  for (int i = 0; i < 4; ++i) v[i] = __builtin_shufflevector(quads[i], quads[4 + i], 0, 1, 2, 3, 4, 5, 6, 7);
  const NativeDouble even01 = __builtin_shufflevector(v[0], v[1], 0, 8, 2, 10, 4, 12, 6, 14);
  const NativeDouble odd01 = __builtin_shufflevector(v[0], v[1], 1, 9, 3, 11, 5, 13, 7, 15);
  const NativeDouble even23 = __builtin_shufflevector(v[2], v[3], 0, 8, 2, 10, 4, 12, 6, 14);
  const NativeDouble odd23 = __builtin_shufflevector(v[2], v[3], 1, 9, 3, 11, 5, 13, 7, 15);
  columns[0].part[0] = __builtin_shufflevector(even01, even23, 0, 1, 8, 9, 4, 5, 12, 13);
  columns[1].part[0] = __builtin_shufflevector(odd01, odd23, 0, 1, 8, 9, 4, 5, 12, 13);
  columns[2].part[0] = __builtin_shufflevector(even01, even23, 2, 3, 10, 11, 6, 7, 14, 15);
  columns[3].part[0] = __builtin_shufflevector(odd01, odd23, 2, 3, 10, 11, 6, 7, 14, 15);
#else
  for (int p = 0; p < 2; ++p) {
    const Quad* v = quads + 4 * p;
    const Quad even01 = __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6);
    const Quad odd01 = __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7);
    const Quad even23 = __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6);
    const Quad odd23 = __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7);
    columns[0].part[p] = __builtin_shufflevector(even01, even23, 0, 1, 4, 5);
    columns[1].part[p] = __builtin_shufflevector(odd01, odd23, 0, 1, 4, 5);
    columns[2].part[p] = __builtin_shufflevector(even01, even23, 2, 3, 6, 7);
    columns[3].part[p] = __builtin_shufflevector(odd01, odd23, 2, 3, 6, 7);
  }
#endif
#else
  for (int c = 0; c < 4; ++c) {
    double column[kLanes];
    for (int i = 0; i < kLanes; ++i) column[i] = static_cast<double>(rows[i][c]);
    columns[c] = load(column);
  }
#endif
}

// Lanes 0 to 3 from `low` and 4 to 7 from `high`.
DPINFER_INLINE Vec load_halves(const double* low, const double* high) {
  Vec r;
#if defined(__GNUC__) && defined(__AVX512F__)
  using Half = double __attribute__((vector_size(32)));
  Half first;
  Half second;
  std::memcpy(&first, low, sizeof first);
  std::memcpy(&second, high, sizeof second);
  r.part[0] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  for (int p = 0; p < kParts; ++p) {
    const double* source = p * kNativeLanes < 4 ? low + p * kNativeLanes : high + p * kNativeLanes - 4;
    std::memcpy(&r.part[p], source, sizeof r.part[p]);
  }
#endif
  return r;
}
// The same from single precision, widened (exactly).
DPINFER_INLINE Vec load_halves(const float* low, const float* high) {
  Vec r;
#if defined(__GNUC__) && defined(__AVX512F__)
  const __m256 both = _mm256_insertf128_ps(_mm256_zextps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
  r.part[0] = _mm512_maskz_cvtps_pd(0xff, both);
#else
  for (int p = 0; p < kParts; ++p) {
    const float* source = p * kNativeLanes < 4 ? low + p * kNativeLanes : high + p * kNativeLanes - 4;
#if defined(__GNUC__)
    using NativeFloat = float __attribute__((vector_size(kNativeLanes * 4)));
    NativeFloat narrow;
    std::memcpy(&narrow, source, sizeof narrow);
    r.part[p] = __builtin_convertvector(narrow, NativeDouble);
#else
    r.part[p] = static_cast<double>(*source);
#endif
  }
#endif
  return r;
}

DPINFER_INLINE Vec load(const float* source) { return load_halves(source, source + 4); }

// One step of a transposition: the lanes of `a` whose index has the bit kDistance change places with the lanes of `b`
// that lie kDistance before them.
template <int kDistance>
DPINFER_INLINE void exchange(Vec& a, Vec& b) {
  static_assert(kDistance == 1 || kDistance == 2);
#if defined(__GNUC__)
  if constexpr (kDistance < kNativeLanes) {
    for (int p = 0; p < kParts; ++p) {
      const NativeDouble x = a.part[p];
      const NativeDouble y = b.part[p];
#if defined(__AVX512F__)
      if constexpr (kDistance == 2) {
        a.part[p] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
        b.part[p] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
      } else {
        a.part[p] = __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14);
        b.part[p] = __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15);
      }
#elif defined(__AVX2__)
      if constexpr (kDistance == 2) {
        a.part[p] = __builtin_shufflevector(x, y, 0, 1, 4, 5);
        b.part[p] = __builtin_shufflevector(x, y, 2, 3, 6, 7);
      } else {
        a.part[p] = __builtin_shufflevector(x, y, 0, 4, 2, 6);
        b.part[p] = __builtin_shufflevector(x, y, 1, 5, 3, 7);
      }
#else
      a.part[p] = __builtin_shufflevector(x, y, 0, 2);
      b.part[p] = __builtin_shufflevector(x, y, 1, 3);
#endif
    }
  } else
#endif
  {
    constexpr int kStep = kDistance > kNativeLanes ? kDistance / kNativeLanes : 1;
    for (int p = 0; p < kParts; ++p) {
      if ((p & kStep) == 0) {
        const NativeDouble moved = a.part[p + kStep];
        a.part[p + kStep] = b.part[p];
        b.part[p] = moved;
      }
    }
  }
}

// Eight numbers from each of eight rows, transposed: rows[i] holds the i-th number of every row, one row per lane.
template <typename Scalar>
DPINFER_INLINE void load_transposed(const Scalar* source, std::size_t stride, Vec (&rows)[kLanes]) {
  for (int i = 0; i < 4; ++i) {
    const Scalar* low = source + static_cast<std::size_t>(i) * stride;
    const Scalar* high = low + 4 * stride;
    rows[i] = load_halves(low, high);
    rows[i + 4] = load_halves(low + 4, high + 4);
  }
  for (int i = 0; i < 8; i += 4) {
    exchange<2>(rows[i], rows[i + 2]);
    exchange<2>(rows[i + 1], rows[i + 3]);
  }
  for (int i = 0; i < 8; i += 2) exchange<1>(rows[i], rows[i + 1]);
}

// Lanes 0 to 3 into `low` and 4 to 7 into `high`.
DPINFER_INLINE void store_halves(double* low, double* high, const Vec& v) {
  constexpr std::size_t kHalf = 4 * sizeof(double);
#if defined(__GNUC__) && defined(__AVX512F__)
  const auto first = __builtin_shufflevector(v.part[0], v.part[0], 0, 1, 2, 3);
  const auto second = __builtin_shufflevector(v.part[0], v.part[0], 4, 5, 6, 7);
  std::memcpy(low, &first, kHalf);
  std::memcpy(high, &second, kHalf);
#else
  std::memcpy(low, v.part, kHalf);
  std::memcpy(high, v.part + kParts / 2, kHalf);
#endif
}

// The inverse of load_transposed, which leaves the transpose in `rows`.
DPINFER_INLINE void store_transposed(double* target, std::size_t stride, Vec (&rows)[kLanes]) {
  for (int i = 0; i < 8; i += 2) exchange<1>(rows[i], rows[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    exchange<2>(rows[i], rows[i + 2]);
    exchange<2>(rows[i + 1], rows[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    double* low = target + static_cast<std::size_t>(i) * stride;
    double* high = low + 4 * stride;
    store_halves(low, high, rows[i]);
    store_halves(low + 4, high + 4, rows[i + 4]);
  }
}

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

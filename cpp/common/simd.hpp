// Eight-lane vectors that compute the same bits on every machine.
//
// A kernel file is compiled once per instruction set (see CMakeLists.txt), in a namespace DPINFER_SIMD_VARIANT of its
// own.  Every variant works on eight logical lanes, held in as many registers as the instruction set needs, adds them
// up in one fixed order, and rounds a*b+c once exactly where it says `fused` (the compiler contracts nothing itself):
// so results agree bit for bit, and a row's does not depend on the rows beside it.  Without the instruction it is slow.
//
// No function of another header may be instantiated with these flags and shared between variants: the linker would keep
// one copy, perhaps one the processor cannot run.  Hence the small helpers here instead of <algorithm>.
#pragma once

#if defined(DPINFER_ONE_LANE)
#include "common/one_lane.hpp"
#else

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__GNUC__) && (defined(__AVX2__) || defined(__SSE2__))
#include <immintrin.h>
#endif

#ifndef DPINFER_SIMD_VARIANT
#define DPINFER_SIMD_VARIANT portable
#endif

#if defined(_MSC_VER)
#define DPINFER_INLINE __forceinline
#define DPINFER_NOINLINE __declspec(noinline)
#else
#ifndef DPINFER_INLINE
#define DPINFER_INLINE inline __attribute__((always_inline))
#endif
#define DPINFER_NOINLINE __attribute__((noinline))
#endif

namespace dpinfer::DPINFER_SIMD_VARIANT {

inline constexpr int kLanes = 8;

#if defined(__GNUC__) && defined(__AVX512F__)
inline constexpr int kNativeLanes = 8;
#elif defined(__GNUC__) && defined(__AVX2__)
inline constexpr int kNativeLanes = 4;
#elif defined(__GNUC__)
inline constexpr int kNativeLanes = 2;
#else
inline constexpr int kNativeLanes = 1;
#endif
inline constexpr int kParts = kLanes / kNativeLanes;

#if defined(__GNUC__)
using NativeDouble = double __attribute__((vector_size(kNativeLanes * 8)));
using NativeInt = std::int64_t __attribute__((vector_size(kNativeLanes * 8)));
using NativeBits = std::uint64_t __attribute__((vector_size(kNativeLanes * 8)));
#else
using NativeDouble = double;
using NativeInt = std::int64_t;
using NativeBits = std::uint64_t;
#endif

struct Vec {
  NativeDouble part[kParts];
};
struct Bits {
  NativeBits part[kParts];
};

#define DPINFER_EACH_PART for (int p = 0; p < kParts; ++p)

DPINFER_INLINE Vec splat(double x) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = x - NativeDouble{};
  return r;
}
DPINFER_INLINE Vec load(const double* source) {
  Vec r;
  DPINFER_EACH_PART std::memcpy(&r.part[p], source + p * kNativeLanes, sizeof r.part[p]);
  return r;
}
DPINFER_INLINE void store(double* target, const Vec& v) {
  DPINFER_EACH_PART std::memcpy(target + p * kNativeLanes, &v.part[p], sizeof v.part[p]);
}
DPINFER_INLINE Bits load(const std::uint64_t* source) {
  Bits r;
  DPINFER_EACH_PART std::memcpy(&r.part[p], source + p * kNativeLanes, sizeof r.part[p]);
  return r;
}
DPINFER_INLINE void store(std::uint64_t* target, const Bits& v) {
  DPINFER_EACH_PART std::memcpy(target + p * kNativeLanes, &v.part[p], sizeof v.part[p]);
}

#define DPINFER_OPERATOR(Type, op)                                \
  DPINFER_INLINE Type operator op(const Type& a, const Type& b) { \
    Type r;                                                       \
    DPINFER_EACH_PART r.part[p] = a.part[p] op b.part[p];         \
    return r;                                                     \
  }
DPINFER_OPERATOR(Vec, +)
DPINFER_OPERATOR(Vec, -)
DPINFER_OPERATOR(Vec, *)
DPINFER_OPERATOR(Vec, /)
DPINFER_OPERATOR(Bits, +)
DPINFER_OPERATOR(Bits, -)
DPINFER_OPERATOR(Bits, *)
DPINFER_OPERATOR(Bits, &)
DPINFER_OPERATOR(Bits, |)
DPINFER_OPERATOR(Bits, ^)
#undef DPINFER_OPERATOR

// a * b + c, rounded once.
DPINFER_INLINE Vec fused(const Vec& a, const Vec& b, const Vec& c) {
  Vec r;
#if defined(__GNUC__) && defined(__AVX512F__)
  DPINFER_EACH_PART r.part[p] = _mm512_fmadd_pd(a.part[p], b.part[p], c.part[p]);
#elif defined(__GNUC__) && defined(__AVX2__)
  DPINFER_EACH_PART r.part[p] = _mm256_fmadd_pd(a.part[p], b.part[p], c.part[p]);
#elif defined(__GNUC__)
  DPINFER_EACH_PART for (int i = 0; i < kNativeLanes; ++i) {
    r.part[p][i] = __builtin_fma(a.part[p][i], b.part[p][i], c.part[p][i]);
  }
#else
  DPINFER_EACH_PART r.part[p] = std::fma(a.part[p], b.part[p], c.part[p]);
#endif
  return r;
}
template <int kShift>
DPINFER_INLINE Bits shift_left(const Bits& a) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] << kShift;
  return r;
}
template <int kShift>
DPINFER_INLINE Bits shift_right(const Bits& a) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] >> kShift;
  return r;
}
DPINFER_INLINE Bits splat_bits(std::uint64_t x) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = x - NativeBits{};
  return r;
}
DPINFER_INLINE Bits as_bits(const Vec& v) {
  Bits r;
  DPINFER_EACH_PART std::memcpy(&r.part[p], &v.part[p], sizeof r.part[p]);
  return r;
}
DPINFER_INLINE Vec as_vec(const Bits& v) {
  Vec r;
  DPINFER_EACH_PART std::memcpy(&r.part[p], &v.part[p], sizeof r.part[p]);
  return r;
}

DPINFER_INLINE Vec square_root(const Vec& a) {
  Vec r;
#if defined(__GNUC__) && defined(__AVX512F__)
  DPINFER_EACH_PART r.part[p] = _mm512_maskz_sqrt_pd(0xff, a.part[p]);
#elif defined(__GNUC__) && defined(__AVX2__)
  DPINFER_EACH_PART r.part[p] = _mm256_sqrt_pd(a.part[p]);
#elif defined(__GNUC__)
  DPINFER_EACH_PART for (int i = 0; i < kNativeLanes; ++i) r.part[p][i] = __builtin_sqrt(a.part[p][i]);
#else
  DPINFER_EACH_PART r.part[p] = std::sqrt(a.part[p]);
#endif
  return r;
}

// Whether a <= b in every lane; a NaN says no.
DPINFER_INLINE bool all_at_most(const Vec& a, const Vec& b) {
#if defined(__GNUC__) && defined(__AVX512F__)
  return _mm512_cmp_pd_mask(a.part[0], b.part[0], _CMP_LE_OQ) == 0xff;
#elif defined(__GNUC__) && defined(__AVX2__)
  return (_mm256_movemask_pd(_mm256_cmp_pd(a.part[0], b.part[0], _CMP_LE_OQ)) &
          _mm256_movemask_pd(_mm256_cmp_pd(a.part[1], b.part[1], _CMP_LE_OQ))) == 0xf;
#else
  double x[kLanes];
  double y[kLanes];
  store(x, a);
  store(y, b);
  bool all = true;
  for (int lane = 0; lane < kLanes; ++lane) all = all && x[lane] <= y[lane];
  return all;
#endif
}

// Bit i: whether a < b fails in lane i, as it does where one of them is a NaN.
DPINFER_INLINE std::uint64_t lanes_not_less(const Vec& a, const Vec& b) {
#if defined(__GNUC__) && defined(__AVX512F__)
  return _mm512_cmp_pd_mask(a.part[0], b.part[0], _CMP_NLT_UQ);
#elif defined(__GNUC__) && defined(__AVX2__)
  const int low = _mm256_movemask_pd(_mm256_cmp_pd(a.part[0], b.part[0], _CMP_NLT_UQ));
  const int high = _mm256_movemask_pd(_mm256_cmp_pd(a.part[1], b.part[1], _CMP_NLT_UQ));
  return static_cast<std::uint64_t>(low | high << 4);
#else
  double x[kLanes];
  double y[kLanes];
  store(x, a);
  store(y, b);
  std::uint64_t bits = 0;
  for (int lane = 0; lane < kLanes; ++lane) bits |= (x[lane] < y[lane] ? std::uint64_t{0} : std::uint64_t{1}) << lane;
  return bits;
#endif
}

// Eight numbers of a row as float64, which is exact.
DPINFER_INLINE Vec load_as_double(const double* source) { return load(source); }
DPINFER_INLINE Vec load_as_double(const float* source) {
#if defined(__GNUC__) && defined(__AVX512F__)
  __m256 narrow;
  std::memcpy(&narrow, source, sizeof narrow);
  return {{_mm512_maskz_cvtps_pd(0xff, narrow)}};
#elif defined(__GNUC__)
  using NativeFloat = float __attribute__((vector_size(kNativeLanes * 4)));
  Vec r;
  for (int p = 0; p < kParts; ++p) {
    NativeFloat part;
    std::memcpy(&part, source + p * kNativeLanes, sizeof part);
    r.part[p] = __builtin_convertvector(part, NativeDouble);
  }
  return r;
#else
  double wide[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = source[lane];
  return load(wide);
#endif
}

// a < b ? x : y, lane by lane; false where a or b is NaN.
DPINFER_INLINE Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = a.part[p] < b.part[p] ? x.part[p] : y.part[p];
  return r;
}
DPINFER_INLINE Vec minimum(const Vec& a, const Vec& b) { return select_less(a, b, a, b); }
DPINFER_INLINE Vec maximum(const Vec& a, const Vec& b) { return select_less(b, a, a, b); }
DPINFER_INLINE Vec absolute(const Vec& a) { return as_vec(as_bits(a) & splat_bits(0x7fffffffffffffffULL)); }

// Copies go part by part: a copy of all parts at once may become a slow string instruction.

// The sum of the lanes: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)), by halving the vector.
DPINFER_INLINE double lane_sum(const Vec& v) {
#if defined(__GNUC__) && defined(__AVX512F__)
  const auto quad = __builtin_shufflevector(v.part[0], v.part[0], 0, 1, 2, 3) +
                    __builtin_shufflevector(v.part[0], v.part[0], 4, 5, 6, 7);
  const auto pair = __builtin_shufflevector(quad, quad, 0, 1) + __builtin_shufflevector(quad, quad, 2, 3);
  return pair[0] + pair[1];
#elif defined(__GNUC__) && defined(__AVX2__)
  const auto quad = v.part[0] + v.part[1];
  const auto pair = __builtin_shufflevector(quad, quad, 0, 1) + __builtin_shufflevector(quad, quad, 2, 3);
  return pair[0] + pair[1];
#elif defined(__GNUC__)
  const auto pair = (v.part[0] + v.part[2]) + (v.part[1] + v.part[3]);
  return pair[0] + pair[1];
#else
  const NativeDouble* x = v.part;
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
#endif
}

// Lane i: the sum of the lanes of v[i], ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
DPINFER_INLINE Vec lane_sums(const Vec (&v)[kLanes]) {
  Vec r;
#if defined(__GNUC__) && defined(__AVX512F__)
  NativeDouble pairs[4];
  for (int i = 0; i < 4; ++i) {
    const NativeDouble a = v[2 * i].part[0];
    const NativeDouble b = v[2 * i + 1].part[0];
    pairs[i] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) +
               __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  NativeDouble quads[2];
  for (int i = 0; i < 2; ++i) {
    quads[i] = __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(pairs[2 * i], pairs[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  r.part[0] = __builtin_shufflevector(quads[0], quads[1], 0, 1, 2, 3, 8, 9, 10, 11) +
              __builtin_shufflevector(quads[0], quads[1], 4, 5, 6, 7, 12, 13, 14, 15);
#elif defined(__GNUC__) && defined(__AVX2__)
  for (int half = 0; half < 2; ++half) {
    NativeDouble quads[2];
    for (int p = 0; p < 2; ++p) {
      NativeDouble pairs[2];
      for (int i = 0; i < 2; ++i) {
        const NativeDouble a = v[4 * half + 2 * i].part[p];
        const NativeDouble b = v[4 * half + 2 * i + 1].part[p];
        pairs[i] = __builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7);
      }
      quads[p] = __builtin_shufflevector(pairs[0], pairs[1], 0, 1, 4, 5) +
                 __builtin_shufflevector(pairs[0], pairs[1], 2, 3, 6, 7);
    }
    r.part[half] = quads[0] + quads[1];
  }
#else
  double sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    double x[kLanes];
    store(x, v[i]);
    sums[i] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  }
  r = load(sums);
#endif
  return r;
}

#undef DPINFER_EACH_PART

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

#endif  // DPINFER_ONE_LANE

// Eight-lane vectors that compute the same bits on every machine.
//
// A kernel file is compiled once per instruction set (see cpp/mechanism/CMakeLists.txt), each time inside its own
// namespace DPINFER_SIMD_VARIANT.  Every variant works on eight logical lanes, held in as many registers as the
// instruction set needs, adds them up in one fixed order, and rounds a*b+c once exactly where it says `fused` (the
// compiler contracts nothing by itself): so the results agree bit for bit, and a row's result does not depend on which
// rows are processed beside it.  Without the instruction a fused multiply-add is a call into the C library: right, but
// slow.
//
// No function of another header may be instantiated with these flags and shared between variants: the linker would keep
// one copy, perhaps one the processor cannot run.  Hence the small helpers here instead of <algorithm>.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__GNUC__) && defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef DPINFER_SIMD_VARIANT
#define DPINFER_SIMD_VARIANT portable
#endif

#if defined(_MSC_VER)
#define DPINFER_INLINE __forceinline
#else
#define DPINFER_INLINE inline __attribute__((always_inline))
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

DPINFER_INLINE Vec operator+(const Vec& a, const Vec& b) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = a.part[p] + b.part[p];
  return r;
}
DPINFER_INLINE Vec operator-(const Vec& a, const Vec& b) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = a.part[p] - b.part[p];
  return r;
}
DPINFER_INLINE Vec operator*(const Vec& a, const Vec& b) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = a.part[p] * b.part[p];
  return r;
}
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
DPINFER_INLINE Vec operator/(const Vec& a, const Vec& b) {
  Vec r;
  DPINFER_EACH_PART r.part[p] = a.part[p] / b.part[p];
  return r;
}
DPINFER_INLINE Bits operator+(const Bits& a, const Bits& b) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] + b.part[p];
  return r;
}
DPINFER_INLINE Bits operator-(const Bits& a, const Bits& b) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] - b.part[p];
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
DPINFER_INLINE Bits operator&(const Bits& a, const Bits& b) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] & b.part[p];
  return r;
}
DPINFER_INLINE Bits operator|(const Bits& a, const Bits& b) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] | b.part[p];
  return r;
}
DPINFER_INLINE Bits operator^(const Bits& a, const Bits& b) {
  Bits r;
  DPINFER_EACH_PART r.part[p] = a.part[p] ^ b.part[p];
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

#undef DPINFER_EACH_PART

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

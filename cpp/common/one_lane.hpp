// One-lane vectors with the operations of simd.hpp: the same bits, for code that runs on a GPU, a record a thread, and
// for the host's emulation of it.  Additions, products, quotients, roots and fused multiply-adds round as IEEE 754 says
// on both; the compiler must contract nothing by itself (--fmad=false).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define DPINFER_INLINE __host__ __device__ __forceinline__
#define DPINFER_NOINLINE __host__ __device__ inline
#else
#define DPINFER_INLINE inline
#define DPINFER_NOINLINE inline
#endif

namespace dpinfer::DPINFER_SIMD_VARIANT {

inline constexpr int kLanes = 1;

struct Vec {
  double value;
};
struct Bits {
  std::uint64_t value;
};

DPINFER_INLINE Vec splat(double x) { return {x}; }
DPINFER_INLINE Vec load(const double* source) { return {*source}; }
DPINFER_INLINE void store(double* target, const Vec& v) { *target = v.value; }
DPINFER_INLINE Bits splat_bits(std::uint64_t x) { return {x}; }

DPINFER_INLINE Vec operator+(const Vec& a, const Vec& b) { return {a.value + b.value}; }
DPINFER_INLINE Vec operator-(const Vec& a, const Vec& b) { return {a.value - b.value}; }
DPINFER_INLINE Vec operator*(const Vec& a, const Vec& b) { return {a.value * b.value}; }
DPINFER_INLINE Vec operator/(const Vec& a, const Vec& b) { return {a.value / b.value}; }
// a * b + c, rounded once.
DPINFER_INLINE Vec fused(const Vec& a, const Vec& b, const Vec& c) { return {fma(a.value, b.value, c.value)}; }
DPINFER_INLINE Vec square_root(const Vec& a) { return {sqrt(a.value)}; }

DPINFER_INLINE Bits operator+(const Bits& a, const Bits& b) { return {a.value + b.value}; }
DPINFER_INLINE Bits operator-(const Bits& a, const Bits& b) { return {a.value - b.value}; }
DPINFER_INLINE Bits operator&(const Bits& a, const Bits& b) { return {a.value & b.value}; }
DPINFER_INLINE Bits operator|(const Bits& a, const Bits& b) { return {a.value | b.value}; }
DPINFER_INLINE Bits operator^(const Bits& a, const Bits& b) { return {a.value ^ b.value}; }
template <int kShift>
DPINFER_INLINE Bits shift_left(const Bits& a) {
  return {a.value << kShift};
}
template <int kShift>
DPINFER_INLINE Bits shift_right(const Bits& a) {
  return {a.value >> kShift};
}

DPINFER_INLINE Bits as_bits(const Vec& v) {
  Bits r;
  memcpy(&r.value, &v.value, sizeof r.value);
  return r;
}
DPINFER_INLINE Vec as_vec(const Bits& v) {
  Vec r;
  memcpy(&r.value, &v.value, sizeof r.value);
  return r;
}

// Whether a <= b; a NaN says no.
DPINFER_INLINE bool all_at_most(const Vec& a, const Vec& b) { return a.value <= b.value; }
// a < b ? x : y; false where a or b is NaN.
DPINFER_INLINE Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  return a.value < b.value ? x : y;
}
DPINFER_INLINE Vec minimum(const Vec& a, const Vec& b) { return select_less(a, b, a, b); }
DPINFER_INLINE Vec maximum(const Vec& a, const Vec& b) { return select_less(b, a, a, b); }
DPINFER_INLINE Vec absolute(const Vec& a) { return as_vec(as_bits(a) & splat_bits(0x7fffffffffffffffULL)); }

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// What every kernel needs to keep a record inside its ball.
#pragma once

#include <cmath>

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Norms above this, which are infinite or NaN (a square of 1.4e154 overflows), take a record out of the sum.
inline constexpr double kFinite = 1e300;

DPINFER_INLINE double square_root(double x) {
#if defined(__GNUC__)
  return __builtin_sqrt(x);
#else
  return std::sqrt(x);
#endif
}

// What vectors of these norms are multiplied by to have at most this one.
DPINFER_INLINE Vec clipping_factor(const Vec& norm, double clip_norm) {
  const Vec bound = splat(clip_norm);
  return select_less(bound, norm, bound / norm, splat(1.0));
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

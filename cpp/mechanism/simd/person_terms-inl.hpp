// What one row's likelihood has of its predictor, for eight persons.
#pragma once

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/person_kernels.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

constexpr double kFarthest = 60.0;  // of a predictor of counts: squares of its exponential are doubles

// log p(y | eta) less what does not depend on eta, its slope, and minus its curvature.
struct Term {
  Vec value, slope, weight;
  Vec factor;  // a binomial value lacks minus its logarithm: that of a product is taken over rows
  Vec size;    // slope in the logarithm of a negative binomial size
};

// digamma(x) for x > 0: recurrence, then the asymptotic series.
DPINFER_INLINE Vec digamma(Vec x) {
  const Vec zero = splat(0.0), one = splat(1.0), far = splat(8.0);
  Vec value = zero;
  for (int step = 0; step < 8; ++step) {
    value = value - select_less(x, far, one / x, zero);
    x = x + select_less(x, far, one, zero);
  }
  static constexpr double kSeries[] = {0.0, -1.0 / 12.0, 1.0 / 120.0, -1.0 / 252.0, 1.0 / 240.0, -1.0 / 132.0};
  const Vec inverse = one / x;
  return value + log(x) - splat(0.5) * inverse + polynomial(kSeries, inverse * inverse);
}

// `gap`: digamma(y + size) - digamma(size).
template <PersonFamily kFamily>
DPINFER_INLINE Term term_of(const Vec& eta, const Vec& y, double size_of_all, const Vec& gap) {
  const Vec zero = splat(0.0), one = splat(1.0);
  if constexpr (kFamily == PersonFamily::binomial) {
    const Vec small = exp(zero - absolute(eta)), share = one / (one + small), below = small * share;
    return {y * eta - maximum(eta, zero), y - select_less(eta, zero, below, share), below * share, one + small, zero};
  } else if constexpr (kFamily == PersonFamily::probit) {
    const Vec sign = y + y - one, at = sign * eta, far = absolute(at) * splat(0.70710678118654752440);
    const Vec tail = erfcx(far), gauss = exp(zero - far * far), root = splat(0.79788456080286535588);  // sqrt(2/pi)
    const Vec ratio = select_less(at, zero, root / tail, root * gauss / (splat(2.0) - gauss * tail));
    const Vec half = splat(0.5) * tail, inside = select_less(at, zero, half, one - half * gauss);
    return {log(inside) - select_less(at, zero, far * far, zero), sign * ratio, ratio * (ratio + at), one, zero};
  } else if constexpr (kFamily == PersonFamily::poisson) {
    const Vec held = minimum(eta, splat(kFarthest)), mean = exp(held);
    return {y * held - mean, y - mean, mean, one, zero};
  } else {
    const Vec size = splat(size_of_all), held = minimum(eta, splat(kFarthest)), mean = exp(held);
    const Vec total = size + mean, inverse = one / total, share = size * inverse, together = y + size;
    const Vec log_total = log(total);
    return {y * held - together * log_total, (y - mean) * share, mean * share * together * inverse, one,
            size * (gap + log(size) - log_total + one - together * inverse)};
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// The log density that the quadrature integrates, and how to walk on it.  Internal to collapsed_posterior.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "inference/collapsed_posterior.hpp"

namespace dpinfer::inference::detail {

inline constexpr double kHeavyTailCount = 16.0;  // with fewer steps the softplus grid would need too many nodes
inline constexpr double kLargeExponent = 35.0;   // softplus(y) = y to double precision beyond this
inline constexpr double kPriorReach = 10.0;      // standard deviations within which a normal prior has its mass
inline constexpr double kFarSlope = 1e4;         // in standard errors: a grid this long has few enough nodes
inline constexpr double kZeroSlope = 1e-13;      // a slope is 0 where it changes the log density by no more than this
inline constexpr double kSeamWidth = 2.0;  // in v, of the seam between such slopes and the grid; steps are <= 1 ...
inline constexpr double kSeamReach = 8.0;  // ... and a normal law of this width is over after so many

inline double softplus(double y) { return y > kLargeExponent ? y : std::log1p(std::exp(y)); }
inline double softplus_inverse(double b) { return b > kLargeExponent ? b : std::log(std::expm1(b)); }
inline double log_cosh(double w) {
  const double a = std::abs(w);
  return a + std::log1p(std::exp(-2.0 * a)) - 0.6931471805599453;
}

// log of the standard normal distribution function.
inline double log_normal_cdf(double x) {
  if (x > -30.0) return std::log(0.5 * std::erfc(-0.7071067811865476 * x));
  return -0.5 * x * x - std::log(-x) - 0.9189385332046727;
}

struct Peak {
  double at;
  double value;
  double width;
};

// Climbs f from `start` to a local maximum and measures its width by the drop on both sides.
template <typename F>
Peak climb(F&& f, double start, double step) {
  constexpr double kSmallDrop = 0.02;
  constexpr double kLargeDrop = 0.5;
  double x = start;
  double fx = f(x);
  double last = 0.0;
  double drop = 0.0;
  for (int i = 0; i < 400; ++i) {
    const double left = f(x - step);
    const double right = f(x + step);
    if (left > fx || right > fx) {
      const double direction = right > left ? 1.0 : -1.0;
      x += direction * step;
      fx = std::max(left, right);
      if (direction == last) step *= 2.0;
      last = direction;
      continue;
    }
    last = 0.0;
    drop = fx - 0.5 * (left + right);
    if (drop > kLargeDrop) {
      step *= std::max(0.02, std::sqrt(0.15 / drop));
    } else if (drop < kSmallDrop && step < 64.0) {
      step *= 2.0;
    } else {
      break;
    }
  }
  return {x, fx, step / std::sqrt(2.0 * std::max(drop, 1e-3))};
}

// The point beyond `from` in `direction` where f falls below `threshold` (never past `limit`).
template <typename F>
double descend(F&& f, double from, double direction, double step, double threshold, double limit) {
  double inside = from;
  double outside = from;
  for (int i = 0; i < 300; ++i) {
    outside = inside + direction * step;
    if ((limit - outside) * direction <= 0.0) {
      if (f(limit) > threshold) return limit;
      outside = limit;
      break;
    }
    if (f(outside) <= threshold) break;
    inside = outside;
    step *= 1.6;
  }
  for (int i = 0; i < 3; ++i) {
    const double middle = 0.5 * (inside + outside);
    (f(middle) > threshold ? inside : outside) = middle;
  }
  return outside;
}

// The log density split into what depends on y alone, on w alone, and on both.
class Density {
 public:
  explicit Density(const CollapsedProblem& problem) : p_(problem), scale2_(p_.optimum_scale * p_.optimum_scale) {
    const double precision = 1.0 + (p_.side_count > 0.0 ? p_.side_precision : 0.0);
    const double pooled =
        p_.side_count > 0.0 ? (p_.slope_score + p_.side_precision * p_.side_score) / precision : p_.slope_score;
    unit_ = 1.0 / std::sqrt(precision);
    pooled_ = pooled;
    log_hessian_unit_ = std::log(p_.hessian_unit * unit_);
    // A normal prior of v cuts the tails off, where the grid can reach.
    const bool cut = raw_normal() && std::abs(p_.raw_loc) + kPriorReach * p_.raw_scale < kFarSlope * p_.hessian_unit;
    if (p_.extra_noise > 0.0 && p_.count < kHeavyTailCount && !cut) use_sinh();
    if (raw_normal() && !student_tails()) {
      const double scores = 1.0 + std::abs(p_.slope_score) + std::abs(p_.mean_score) +
                            (p_.side_count > 0.0 ? p_.side_precision * std::abs(p_.side_score) : 0.0);
      const double moves = scores * (1.0 + p_.optimum_scale + std::abs(p_.optimum_offset));
      seam_ = std::log(kZeroSlope * p_.hessian_unit / moves) - kSeamReach * kSeamWidth;
    }
  }

  struct Column {
    double beta;
    double square;  // beta^2
    double alone;   // the terms that depend on y alone
  };
  struct Row {
    double inflation;
    double inverse;
    double alone;
  };

  Column column(double y) const {
    if (width_ > 0.0) {
      const double log_soft = centre_ + width_ * std::sinh(y);
      return column(std::exp(std::min(log_soft, 700.0)), log_soft, log_soft + log_cosh(y));
    }
    const double soft = softplus(y);
    return column(soft, y < -kLargeExponent ? y : std::log(soft), y - soft);
  }

  // beta = unit soft; log_jacobian is the log of d soft / d y, up to a constant.
  Column column(double soft, double log_soft, double log_jacobian) const {
    const double beta = unit_ * soft;
    double alone = log_jacobian;
    if (p_.wide_scale > 0.0) {
      const double ratio = beta / p_.wide_scale;
      alone += (p_.wide_power - 1.0) * log_soft - 0.5 * ratio * ratio;
    } else if (log_normal()) {
      const double ratio = (log_hessian_unit_ + log_soft - p_.raw_loc) / p_.raw_scale;
      alone += -0.5 * ratio * ratio - log_soft;
    } else {
      // In logarithms, because a very wide prior reaches slopes below the smallest double.
      const double log_a = log_hessian_unit_ + log_soft;
      const bool tiny = log_a < -kLargeExponent;
      const double a = std::exp(std::min(log_a, 700.0));
      const double v = tiny ? log_a : softplus_inverse(a);
      const double ratio = (v - p_.raw_loc) / p_.raw_scale;
      alone += -0.5 * ratio * ratio - (tiny ? log_a : std::log(-std::expm1(-a)));
      if (has_zero()) alone += log_normal_cdf((v - seam_) / kSeamWidth);
    }
    return {beta, beta * beta, alone + side(beta)};
  }

  // All slopes that are 0 but for rounding, as one column of a grid with this step.  Where a normal prior of v lies
  // below zero, a = softplus(v) vanishes over a range as wide as the prior; the share of the prior below a soft seam,
  // phi((v - loc) / scale) Phi((seam - v) / width), has its integral in closed form.
  Column zero(double step) const {
    const double below = (seam_ - p_.raw_loc) / std::hypot(p_.raw_scale, kSeamWidth);
    const double mass = std::log(p_.raw_scale) + 0.9189385332046727 + log_normal_cdf(below);
    return {0.0, 0.0, mass - log_hessian_unit_ - std::log(step) + side(0.0)};
  }

  Row row(double w) const {
    if (!(p_.extra_noise > 0.0)) return {1.0, 1.0, -0.5 * p_.residual};
    const double log_c = log_cosh(w);
    const double inverse = std::exp(-2.0 * log_c);
    // (n - 1) from the likelihood, 2 from the half-Cauchy prior of sinh(w), less 1 from its Jacobian cosh(w).
    return {1.0 / inverse, inverse, -p_.count * log_c - 0.5 * p_.residual * inverse};
  }

  double at(const Column& c, const Row& r) const {
    const double gap = c.beta - p_.slope_score;
    const double spread = r.inflation + c.square * scale2_;
    const double offset = p_.mean_score - c.beta * p_.optimum_offset;
    return c.alone + r.alone - 0.5 * (gap * gap * r.inverse + std::log(spread) + offset * offset / spread);
  }

  // Starting points in y: the mode of beta times the pooled normal likelihood, and where a normal prior has its own.
  std::array<double, 3> starts(std::size_t& count) const {
    const double likelihood = 0.5 * (pooled_ + std::sqrt(pooled_ * pooled_ + 4.0 * unit_ * unit_));
    const double from_likelihood =
        pooled_ > 0.0 ? likelihood
                      : 2.0 * unit_ * unit_ / (std::sqrt(pooled_ * pooled_ + 4.0 * unit_ * unit_) - pooled_);
    std::array<double, 3> y{position(from_likelihood / unit_), 0.0, 0.0};
    count = 1;
    if (p_.wide_scale > 0.0) return y;
    const double prior = (log_normal() ? std::exp(p_.raw_loc) : softplus(p_.raw_loc)) / p_.hessian_unit;
    const double slope =
        log_normal() ? prior * p_.raw_scale : p_.raw_scale / (1.0 + std::exp(-p_.raw_loc)) / p_.hessian_unit;
    const double prior_precision = 1.0 / (slope * slope);
    const double precision = 1.0 / (unit_ * unit_);
    const double mixed = (precision * from_likelihood + prior_precision * prior) / (precision + prior_precision);
    y[1] = position(prior / unit_);
    y[2] = position(mixed / unit_);
    count = 3;
    return y;
  }

  // The noise inflation that fits best when beta is as near to its least-squares value as it may be.
  double start_inflation() const {
    if (!(p_.extra_noise > 0.0)) return 0.0;
    const double gap = std::min(p_.slope_score, 0.0);
    const double ratio = (p_.residual + gap * gap) / p_.count;
    return ratio > 1.0 ? std::acosh(std::sqrt(ratio)) : 0.0;
  }

  bool has_inflation() const { return p_.extra_noise > 0.0; }

  bool student_tails() const { return width_ > 0.0; }

  bool has_zero() const { return !std::isnan(seam_); }

  // Mean and variance of delta given (beta, nu).
  void optimum(const Column& c, const Row& r, double& mean, double& variance) const {
    const double inverse_scale2 = 1.0 / scale2_;
    variance = 1.0 / (c.square * r.inverse + inverse_scale2);
    mean = -(c.beta * p_.mean_score * r.inverse + p_.optimum_offset * inverse_scale2) * variance;
  }

 private:
  bool log_normal() const { return p_.wide_scale <= 0.0 && p_.wide_power <= 0.0; }
  bool raw_normal() const { return p_.wide_scale <= 0.0 && p_.wide_power > 0.0; }

  // What a second regression says of a slope.
  double side(double beta) const {
    if (!(p_.side_count > 0.0)) return 0.0;
    const double gap = beta - p_.side_score;
    const double residual = p_.side_residual + p_.side_precision * gap * gap;
    return p_.extra_noise > 0.0 ? log_marginal_inflation(p_.side_count, residual) : -0.5 * residual;
  }

  // With few steps and unknown noise the slope has Student tails: there log beta = centre + width sinh(y) instead.
  void use_sinh() {
    std::size_t count = 0;
    const auto start = starts(count);
    const auto noise = row(start_inflation());
    const auto in_logs = [&](double z) { return at(column(std::exp(std::min(z, 700.0)), z, z), noise); };
    double best = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < count; ++i) {
      const Peak peak = climb(in_logs, std::log(softplus(start[i])), 0.5);
      if (!(peak.value > best)) continue;
      best = peak.value;
      centre_ = peak.at;
      width_ = std::min(peak.width, 1.0);
    }
  }

  // The y at which softplus(y), or its substitute, is `soft`.
  double position(double soft) const {
    return width_ > 0.0 ? std::asinh((std::log(soft) - centre_) / width_) : softplus_inverse(soft);
  }

  CollapsedProblem p_;
  double scale2_;
  double unit_;
  double pooled_;
  double log_hessian_unit_;
  double centre_ = 0.0;
  double width_ = 0.0;                                      // 0: softplus
  double seam_ = std::numeric_limits<double>::quiet_NaN();  // in v: what lies below is `zero`
};

}  // namespace dpinfer::inference::detail

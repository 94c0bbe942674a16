// Effects of eight persons, a lane for each, where any family has them: the mode and quadrature about it, even steps of
// a Poisson effect, and sums over the rows of a logistic model.
#pragma once

#include "mechanism/simd/person_rows-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

constexpr int kMostSteps = 25, kMostHalvings = 30;
constexpr double kNear = 1e-5;  // of the mode, in squared standard deviations: nodes need no more
// Even steps of a Poisson effect, in the density's standard deviations at its mode, and in 1 / tau where that is less,
// as far as the density over that at the mode is exp(-16).  Means over persons were off by at most 1.1e-3 of the
// score's standard deviation for tau up to 3 and 1 to 20 rows (21 nodes of Gauss: 2e-2), and 6e-5 for tau up to 1.
constexpr double kStepOfSpread = 0.9, kStepOfFactor = 0.7, kLargestTau = 5.0, kLeastLevel = -16.0, kNearOfSteps = 0.1;
constexpr int kRowsOfProduct = 8, kFactorsOfProduct = 512;

class PersonModes : public PersonRows {
 public:
  using PersonRows::PersonRows;

 protected:
  template <typename OddsOf>
  DPINFER_INLINE void odds_at(int node, const OddsOf& odds_of) {
    Vec norm = zero_, product = one_, variance = zero_, between = zero_, second = zero_;
    for (int j = 0; j < rows_; j += 2) {
      const Vec odds = odds_of(j), other_odds = odds_of(j + 1);
      const Vec below = one_ + odds, other_below = one_ + other_odds, both = below * other_below;
      const Vec inverse = one_ / both, share = other_below * inverse, other_share = below * inverse;
      const Vec mean = odds * share, other_mean = other_odds * other_share;
      variance = fused(mean, share, fused(other_mean, other_share, variance));
      if (q_ == 2) {
        const Vec z = varying(j), other_z = j + 1 < rows_ ? varying(j + 1) : zero_;
        const Vec along = z * mean * share, other_along = other_z * other_mean * other_share;
        between = between + along + other_along;
        second = fused(z, along, fused(other_z, other_along, second));
      }
      put(slopes_, j, mean);
      put(slopes_, j + 1, other_mean);
      product = product * both;
      if ((j + 2) % kRowsOfProduct == 0 || j + 2 >= rows_) {
        norm = norm + log(product);
        product = one_;
      }
    }
    put(log_norms_, node, norm);
    put(variances_, node, variance);
    if (q_ == 2) {
      put(between_, node, between);
      put(second_, node, second);
    }
    double* means = means_ + kLanes * p_ * node;
    for (int k = 0; k < p_; ++k) put(means, k, zero_);
    add_columns(slopes_, means);
  }

  struct Peak {
    Vec v, factor, precision;
  };

  // Of the effect tau v that multiplies rates of this sum, given the sum of the responses.  The slope in v is concave
  // and falls: from the right of the mode Newton's steps do not pass it.  With x the effect b that the sum alone says
  // over 1 + tau^2 sum, the slope at the start is a multiple of 1 - exp(-x) - x, not positive.
  Peak peak_of(const Vec& all, const Vec& sum, const Vec& root) const {
    const Vec weighed = root * sum;
    const Vec effect_alone = log(select_less(zero_, sum, sum / select_less(zero_, all, all, one_), one_));
    const Vec v = effect_alone * weighed / fused(root, weighed, one_);
    return peak_from({v, exp(root * v), one_}, all, sum, root);
  }

  Peak peak_from(const Peak& start, const Vec& all, const Vec& sum, const Vec& root) const {
    Vec v = start.v, factor = start.factor, active = one_, precision = one_;
    for (int step = 0; step < kMostSteps; ++step) {
      const Vec rate = all * factor, slope = root * (sum - rate) - v;
      precision = fused(root * root, rate, one_);
      const Vec move = slope / precision;
      active = select_less(splat(kNearOfSteps), move * slope, active, zero_);
      if (all_at_most(active, zero_)) break;
      v = fused(active, move, v);
      factor = exp(root * v);
    }
    return {v, factor, precision};
  }

  Vec level_of(const Vec& all, const Vec& weighed, const Vec& v, const Vec& factor) const {
    return v * weighed - all * factor - splat(0.5) * v * v;
  }

  // Calls add(weight, factor, rate) at even steps about the peak, of which the weight is that over the peak's, and
  // returns the step.
  template <typename Add>
  DPINFER_INLINE Vec walk(const Peak& peak, const Vec& all, const Vec& sum, double tau, double spread, double last,
                          const Add& add) const {
    const Vec root = splat(tau), weighed = root * sum, half = splat(0.5), least = splat(last);
    const double widest = tau > kLargestTau ? kStepOfFactor / kLargestTau : kStepOfFactor / (tau > 0.5 ? tau : 0.5);
    const Vec step = minimum(splat(spread) / square_root(peak.precision), splat(widest)), ratio = exp(root * step);
    const Vec here = level_of(all, weighed, peak.v, peak.factor), back = one_ / ratio;
    for (int side = 1; side >= -1; side -= 2) {
      const Vec move = side > 0 ? step : zero_ - step, times = side > 0 ? ratio : back;
      Vec going = one_;
      Vec at = side > 0 ? peak.v : peak.v - step, by = side > 0 ? peak.factor : peak.factor * back;
      for (int node = 0; node < kMostSteps + kMostSteps; ++node, at = at + move, by = by * times) {
        const Vec rate = all * by, level = at * weighed - rate - half * at * at - here;
        const Vec weight = going * select_less(least, level, exp(level), zero_);
        if (all_at_most(weight, zero_)) break;
        // A lane that has ended stays so, and adds nothing, wherever the steps of the others take it: what a person
        // adds is its own.
        going = select_less(zero_, weight, one_, zero_);
        add(weight, select_less(zero_, weight, by, zero_), select_less(zero_, weight, rate, zero_));
      }
    }
    return step;
  }

  // Of the rows at effects T v: the log density less |v|^2 / 2, its slope in the effects, and minus their curvature.
  struct AtEffects {
    Vec value, g0, g1, w00, w01, w11, size;
  };

  template <PersonFamily kFamily>
  AtEffects at_effects(const Vec& v0, const Vec& v1) {
    const double* root = task_.point.root;
    const Vec b0 = splat(root[0]) * v0, b1 = splat(root[1]) * v0 + splat(root[2]) * v1;
    AtEffects found{splat(-0.5) * (v0 * v0 + v1 * v1), zero_, zero_, zero_, zero_, zero_, zero_};
    Vec product = one_;
    for (int j = 0; j < rows_; ++j) {
      const Vec z = q_ == 2 ? varying(j) : zero_, live = get(live_, j);
      const Vec eta = fused(b1, z, get(at_point_, j) + b0);
      const Term term = term_of<kFamily>(eta, get(y_, j), task_.point.scale, get(gaps_, j));
      const Vec slope = live * term.slope, weight = live * term.weight, along = z * weight;
      found.value = fused(live, term.value, found.value);
      found.g0 = found.g0 + slope;
      found.w00 = found.w00 + weight;
      found.g1 = fused(z, slope, found.g1);
      found.w01 = found.w01 + along;
      found.w11 = fused(z, along, found.w11);
      put(slopes_, j, slope);
      if constexpr (kFamily == PersonFamily::negative_binomial) found.size = fused(live, term.size, found.size);
      if constexpr (kFamily == PersonFamily::binomial) {
        product = product * select_less(zero_, live, term.factor, one_);
        if ((j + 1) % kFactorsOfProduct == 0 || j + 1 == rows_) {
          found.value = found.value - log(product);
          product = one_;
        }
      }
    }
    return found;
  }

  struct Mode {
    Vec v0, v1, value;
    Vec spread[3];  // lower root of the inverse of minus the curvature
  };

  // In v, where effects are T v: slope, and I + T'W T.
  template <PersonFamily kFamily>
  Mode mode(double near = kNear) {
    const Vec r0 = splat(task_.point.root[0]), r1 = splat(task_.point.root[1]), r2 = splat(task_.point.root[2]);
    Vec v0 = zero_, v1 = zero_, active = one_;
    AtEffects here = at_effects<kFamily>(v0, v1);
    Vec p00 = one_, p01 = zero_, p11 = one_, inverse = one_;
    for (int step = 0; step < kMostSteps; ++step) {
      const Vec s0 = r0 * here.g0 + r1 * here.g1 - v0, s1 = r2 * here.g1 - v1;
      p00 = one_ + r0 * r0 * here.w00 + splat(2.0) * r0 * r1 * here.w01 + r1 * r1 * here.w11;
      p01 = r2 * (r0 * here.w01 + r1 * here.w11);
      p11 = one_ + r2 * r2 * here.w11;
      inverse = one_ / (p00 * p11 - p01 * p01);
      Vec d0 = (p11 * s0 - p01 * s1) * inverse, d1 = (p00 * s1 - p01 * s0) * inverse;
      active = select_less(splat(near), d0 * s0 + d1 * s1, active, zero_);
      // Log-concave: a step that does not gain was too long.
      Vec pending = active;
      for (int half = 0; half < kMostHalvings && !all_at_most(pending, zero_); ++half) {
        const Vec to0 = fused(pending, d0, v0), to1 = fused(pending, d1, v1);
        const AtEffects there = at_effects<kFamily>(to0, to1);
        const Vec gained = select_less(here.value, there.value, pending, zero_);
        const auto moved = [&](Vec& old, const Vec& next) { old = select_less(zero_, gained, next, old); };
        moved(v0, to0);
        moved(v1, to1);
        moved(here.value, there.value);
        moved(here.g0, there.g0);
        moved(here.g1, there.g1);
        moved(here.w00, there.w00);
        moved(here.w01, there.w01);
        moved(here.w11, there.w11);
        pending = pending - gained;
        d0 = splat(0.5) * d0;
        d1 = splat(0.5) * d1;
      }
      active = active - pending;
      if (all_at_most(active, zero_)) break;
    }
    const Vec first = square_root(p11 * inverse), between = (zero_ - p01 * inverse) / first;
    const Vec last = square_root(maximum(p00 * inverse - between * between, zero_));
    return {v0, v1, here.value, {first, between, last}};
  }

  template <PersonFamily kFamily>
  void quadrature_scores() {
    if constexpr (kFamily == PersonFamily::negative_binomial) {
      const Vec size = splat(task_.point.scale), own = digamma(size);
      for (int j = 0; j < rows_; ++j) put(gaps_, j, digamma(get(y_, j) + size) - own);
    }
    const Mode centre = mode<kFamily>();
    for (int j = 0; j < rows_; ++j) put(row_sums_, j, zero_);
    const Vec half = splat(0.5);
    Vec total = zero_, size = zero_, c00 = zero_, c01 = zero_, c11 = zero_;
    for (int first = 0; first < task_.n_nodes; ++first) {
      for (int second = 0; second < (q_ == 2 ? task_.n_nodes : 1); ++second) {
        const double e0 = task_.nodes[first], e1 = q_ == 2 ? task_.nodes[second] : 0.0;
        const double share = task_.weights[first] * (q_ == 2 ? task_.weights[second] : 1.0);
        const Vec v0 = fused(centre.spread[0], splat(e0), centre.v0);
        const Vec v1 = centre.v1 + centre.spread[1] * splat(e0) + centre.spread[2] * splat(e1);
        const AtEffects at = at_effects<kFamily>(v0, v1);
        const Vec weight = splat(share) * exp(at.value - centre.value + splat(0.5 * (e0 * e0 + e1 * e1)));
        total = total + weight;
        for (int j = 0; j < rows_; ++j) put(row_sums_, j, fused(weight, get(slopes_, j), get(row_sums_, j)));
        // The normal density solves a heat equation: its slope in the covariance is half its curvature.
        size = fused(weight, at.size, size);
        c00 = fused(weight, at.g0 * at.g0 - at.w00, c00);
        c01 = fused(weight, at.g0 * at.g1 - at.w01, c01);
        c11 = fused(weight, at.g1 * at.g1 - at.w11, c11);
      }
    }
    for (int k = 0; k < p_; ++k) put(own_, k, zero_);
    add_columns(row_sums_, own_);
    int place = p_;
    if (kFamily == PersonFamily::negative_binomial) put(own_, place++, size);
    put(own_, place++, half * c00);
    if (q_ == 2) {
      put(own_, place++, c01);
      put(own_, place++, half * c11);
    }
    const Vec inverse = one_ / total;
    for (int k = 0; k < task_.n_scores; ++k) put(own_, k, get(own_, k) * inverse);
  }
};

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

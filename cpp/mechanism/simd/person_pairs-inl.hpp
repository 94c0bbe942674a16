// Scores of eight persons with a pair of effects, by even steps of both: logistic and Poisson models.
#pragma once

#include "mechanism/simd/person_modes-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Of a pair of a logistic model: even steps in the posterior's standard deviations, as far as this many of the prior's.
// A lane that needs more steps from the middle, or whose density is largest near the end, is left to quadrature.
constexpr double kStepOfPair = 1.5, kReachOfPair = 4.5, kNearEnd = 3.5, kLargestStart = 40.0;
constexpr double kStepOfPeak = 1.1;  // of a pair of counts, along the one that rates do not factor in
class PersonPairs : public PersonModes {
 public:
  using PersonModes::PersonModes;

 protected:
  // Sums over the rows at even steps of both effects, b = T v, which serve for all responses.  A step multiplies a
  // row's odds by one number; steps go from the middle, so that a lane's do not depend on the others.
  void prepare_pairs() {
    const Vec r0 = splat(task_.point.root[0]), r1 = splat(task_.point.root[1]), r2 = splat(task_.point.root[2]);
    Vec p00 = one_, p01 = zero_, p11 = one_;
    for (int j = 0; j < rows_; ++j) {
      const Vec z = varying(j), lean = fused(r1, z, r0), steep = r2 * z, eta = get(at_point_, j);
      const Vec sd = square_root(fused(lean, lean, steep * steep));
      const Vec small = exp(zero_ - maximum(absolute(eta) - sd - sd, zero_));
      const Vec weight = get(live_, j) * small / ((one_ + small) * (one_ + small));
      p00 = fused(weight, lean * lean, p00);
      p01 = fused(weight, lean * steep, p01);
      p11 = fused(weight, steep * steep, p11);
    }
    const Vec first = splat(kStepOfPair) / square_root(p00);
    const Vec wanted = splat(kStepOfPair) / square_root(p11 - p01 * p01 / p00);
    const Vec reach = splat(kReachOfPair), most = splat(kSideOfPairs) * minimum(first, wanted);
    const Vec end = select_less(reach, most, reach, zero_), second = select_less(reach, most, wanted, reach);
    apart_ = select_less(reach, most, zero_, one_);
    for (int j = 0; j < rows_; ++j) {
      const Vec move =
          clamped(first * fused(r1, varying(j), r0), -kLargestStart / kSideOfPairs, kLargestStart / kSideOfPairs);
      put(gaps_, j, exp(move));
      put(row_sums_, j, exp(zero_ - move));
    }
    put(rates_, rows_, zero_);
    put(gaps_, rows_, zero_);
    put(row_sums_, rows_, zero_);  // an even number of them is read
    n_pairs_ = 0;
    for (int k = 0; k <= 0 || !all_at_most(end, splat(k) * second); k = k > 0 ? -k : 1 - k) {
      const Vec v1 = splat(k) * second, edge = end * end - v1 * v1;
      for (int j = 0; j < rows_; ++j) {
        const Vec start = fused(r2 * varying(j), v1, get(at_point_, j));
        put(truth_rates_, j, get(live_, j) * exp(clamped(start, -kLargestStart, kLargestStart)));
      }
      for (int side = 1; side >= -1; side -= 2) {
        const double* times = side > 0 ? gaps_ : row_sums_;
        for (int j = 0; j < rows_; ++j) put(rates_, j, get(truth_rates_, j) * (side > 0 ? one_ : get(times, j)));
        for (int i = side > 0 ? 0 : 1;; ++i) {
          const Vec v0 = splat(side * i) * first, square = v0 * v0;
          const Vec inside = select_less(square, edge, one_, zero_);
          if (all_at_most(inside, zero_)) break;
          odds_at(n_pairs_, [&](int j) {
            const Vec odds = get(rates_, j);
            put(rates_, j, odds * get(times, j));
            return odds;
          });
          const Vec log_prior = splat(-0.5) * fused(v1, v1, square);
          put(log_norms_, n_pairs_, select_less(zero_, inside, get(log_norms_, n_pairs_) - log_prior, splat(1e300)));
          put(effects_, 2 * n_pairs_, r0 * v0);
          put(effects_, 2 * n_pairs_ + 1, fused(r1, v0, r2 * v1));
          put(priors_, n_pairs_++, log_prior);
        }
      }
    }
  }

  void sum_responses() {
    for (int j = 0; j < rows_; ++j) put(y_, j, get(live_, j) * get(y_, j));  // a draw has responses for all
    for (int k = 0; k < p_; ++k) put(own_, k, zero_);
    add_columns(y_, own_);
  }

  // As given_grid() of both effects: lanes that are left to quadrature.
  Vec given_pairs() {
    sum_responses();
    const Vec t0 = get(own_, p_ - 1), t1 = get(own_, task_.slope);
    Vec top = splat(-1e300), at_top = zero_;
    for (int node = 0; node < n_pairs_; ++node) {
      const Vec level = fused(t0, get(effects_, 2 * node), t1 * get(effects_, 2 * node + 1)) - get(log_norms_, node);
      put(levels_, node, level);
      at_top = select_less(top, level, get(priors_, node), at_top);
      top = maximum(top, level);
    }
    Vec total = zero_, c00 = zero_, c01 = zero_, c11 = zero_;
    for (int k = 0; k < p_; ++k) put(sums_, k, zero_);
    for (int node = 0; node < n_pairs_; ++node) {
      const Vec level = get(levels_, node) - top, weight = select_less(splat(kLeastLevel), level, exp(level), zero_);
      if (all_at_most(weight, zero_)) continue;
      const double* means = means_ + kLanes * p_ * node;
      const Vec g0 = t0 - get(means, p_ - 1), g1 = t1 - get(means, task_.slope);
      total = total + weight;
      c00 = fused(weight, g0 * g0 - get(variances_, node), c00);
      c01 = fused(weight, g0 * g1 - get(between_, node), c01);
      c11 = fused(weight, g1 * g1 - get(second_, node), c11);
      for (int k = 0; k < p_; ++k) put(sums_, k, fused(weight, get(means, k), get(sums_, k)));
    }
    put_pair(total, c00, c01, c11);
    return select_less(at_top, splat(-0.5 * kNearEnd * kNearEnd), one_, apart_);
  }

  // Scores of the coefficients and of the covariance, from sums of the nodes' weights and of what they weigh.
  void put_pair(const Vec& total, const Vec& c00, const Vec& c01, const Vec& c11) {
    const Vec inverse = one_ / total, half = splat(0.5);
    for (int k = 0; k < p_; ++k) put(own_, k, get(own_, k) - get(sums_, k) * inverse);
    put(own_, p_, half * c00 * inverse);
    put(own_, p_ + 1, c01 * inverse);
    put(own_, p_ + 2, half * c11 * inverse);
  }

  // Of a pair of effects of counts, b1 = steep v1 and b0 = lean v1 + rest v0: rates are multiplied by exp(rest v0), so
  // that sums over the rows are made at even steps of v1 alone, about the mode; a step multiplies a row's rate by one
  // number.
  void given_rates_of_pair() {
    sum_responses();
    const double* covariance = task_.point.covariance;
    const double steep = std::sqrt(covariance[2] > 0.0 ? covariance[2] : 0.0);
    const double lean = steep > 0.0 ? covariance[1] / steep : 0.0;
    const double rest = std::sqrt(covariance[0] > lean * lean ? covariance[0] - lean * lean : 0.0);
    const Vec t0 = get(own_, p_ - 1), t1 = get(own_, task_.slope), weighed = splat(rest) * t0;
    const Vec along = fused(splat(lean), t0, splat(steep) * t1), two = splat(2.0), least = splat(kLeastLevel);
    const Mode centre = mode<PersonFamily::poisson>(kNearOfSteps);
    const Vec b1 = fused(splat(task_.point.root[1]), centre.v0, splat(task_.point.root[2]) * centre.v1);
    const Vec middle = steep > 0.0 ? b1 / splat(steep) : zero_;
    const auto slant_of = [&](int j) { return fused(splat(steep), varying(j), splat(lean)); };
    for (int j = 0; j < rows_; ++j) {
      const Vec eta = fused(slant_of(j), middle, get(at_point_, j));
      put(rates_, j, get(live_, j) * exp(clamped(eta, -kLargestOdds, kFarthest)));
      put(truth_rates_, j, get(rates_, j));
    }
    double* means = crossed_;
    Peak last{zero_, one_, one_};
    Vec step = zero_, top = zero_, total = zero_, c00 = zero_, c01 = zero_, c11 = zero_, going = one_;
    for (int k = 0; k < p_; ++k) put(sums_, k, zero_);
    // Whether any lane goes on, at the mode less or more steps.  As in walk(), a lane that has ended stays so.
    const auto node = [&](const Vec& v1, double* rates, bool first) {
      for (int k = 0; k < p_; ++k) put(means, k, zero_);
      add_columns(rates, means);
      Vec s2 = zero_;
      for (int j = 0; j < rows_; ++j) s2 = fused(varying(j) * varying(j), get(rates, j), s2);
      const Vec s0 = get(means, p_ - 1), s1 = get(means, task_.slope);
      last = first ? peak_of(s0, t0, splat(rest)) : peak_from(last, s0, t0, splat(rest));
      const Peak peak = last;
      const Vec level = fused(along, v1, splat(-0.5) * v1 * v1) + level_of(s0, weighed, peak.v, peak.factor);
      if (first) {
        // Minus the curvature in v1 of the density of v1 alone.
        const Vec slant = fused(splat(lean), s0, splat(steep) * s1), across = splat(rest) * peak.factor * slant;
        const Vec bent = fused(splat(lean), slant, splat(steep) * fused(splat(lean), s1, splat(steep) * s2));
        step = splat(kStepOfPeak) / square_root(fused(peak.factor, bent, one_) - across * across / peak.precision);
        top = level;
      }
      const Vec share = going * select_less(least, level - top, exp(level - top), zero_);
      going = select_less(zero_, share, one_, zero_);
      if (all_at_most(share, zero_)) return false;
      const auto taken = [&](const Vec& value) { return select_less(zero_, share, value, zero_); };
      Vec m0 = zero_, m1 = zero_, m2 = zero_;
      const Vec scale = share * walk(peak, s0, t0, rest, kStepOfSpread, kLeastLevel,
                                     [&](const Vec& weight, const Vec& by, const Vec&) {
                                       const Vec once = weight * by;
                                       m0 = m0 + weight;
                                       m1 = m1 + once;
                                       m2 = fused(once, by, m2);
                                     });
      m0 = taken(scale * m0);
      m1 = taken(scale * m1);
      m2 = taken(scale * m2);
      total = total + m0;
      c00 = c00 + taken(m0 * t0 * t0 - m1 * (two * t0 * s0 + s0) + m2 * s0 * s0);
      c01 = c01 + taken(m0 * t0 * t1 - m1 * (t0 * s1 + t1 * s0 + s1) + m2 * s0 * s1);
      c11 = c11 + taken(m0 * t1 * t1 - m1 * (two * t1 * s1 + s2) + m2 * s1 * s1);
      for (int k = 0; k < p_; ++k) put(sums_, k, fused(m1, taken(get(means, k)), get(sums_, k)));
      return true;
    };
    node(middle, rates_, true);
    const Peak at_mode = last;
    const Vec begun = going;
    for (int j = 0; j < rows_; ++j) {
      const Vec move = clamped(step * slant_of(j), -kLargestStart, kLargestStart);
      put(gaps_, j, exp(move));
      put(row_sums_, j, exp(zero_ - move));
    }
    for (int side = 1; side >= -1; side -= 2) {
      for (int k = 1; k <= kMostSteps; ++k) {
        for (int j = 0; j < rows_; ++j) {
          put(truth_rates_, j, get(truth_rates_, j) * get(side > 0 ? gaps_ : row_sums_, j));
        }
        if (!node(fused(splat(side * k), step, middle), truth_rates_, false)) break;
      }
      for (int j = 0; j < rows_; ++j) put(truth_rates_, j, get(rates_, j));
      last = at_mode;
      going = begun;
    }
    put_pair(total, c00, c01, c11);
  }

 private:
  Vec apart_;
  int n_pairs_ = 0;
};

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

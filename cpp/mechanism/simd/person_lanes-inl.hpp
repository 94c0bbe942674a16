// Scores of eight persons, a lane for each: no operation crosses lanes, and a lane that has converged is held, so that
// a person's scores do not depend on the others.  docs/derivations/people.md has the formulas.
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
// Of a pair of a logistic model: even steps in the posterior's standard deviations, as far as this many of the prior's.
// A lane that needs more steps from the middle, or whose density is largest near the end, is left to quadrature.
constexpr double kStepOfPair = 1.5, kReachOfPair = 4.5, kNearEnd = 3.5, kLargestStart = 40.0;
constexpr double kStepOfPeak = 1.1;  // of a pair of counts, along the one that rates do not factor in

class Persons : public PersonRows {
 public:
  using PersonRows::PersonRows;

  // As of the base, and what the family needs.
  void begin(const EightPersons& persons) {
    read(persons);
    if (task_.family == PersonFamily::gaussian) prepare();
    if (separable()) prepare_rates();
    if (task_.pairs()) prepare_pairs();
  }

  // Scores of the current responses, transformed.
  void scores(double* result, int stride) {
    if (task_.family == PersonFamily::gaussian) {
      gaussian_scores();
    } else if (separable()) {
      separable_scores();
    } else if (task_.pairs()) {
      const Vec left = given_pairs();
      transform(result, stride, one_);
      if (all_at_most(left, zero_)) return;
      quadrature_scores<PersonFamily::binomial>();
      return transform(result, stride, left);
    } else if (task_.family == PersonFamily::binomial) {
      quadrature_scores<PersonFamily::binomial>();
    } else if (task_.family == PersonFamily::probit) {
      quadrature_scores<PersonFamily::probit>();
    } else if (task_.family == PersonFamily::poisson) {
      given_rates_of_pair();
    } else {
      quadrature_scores<PersonFamily::negative_binomial>();
    }
    transform(result, stride, one_);
  }

 private:
  // What the closed form has of the columns alone: G = Z'Z, X'Z, and A = (I + LG)^-1 L with L the covariance.
  void prepare() {
    Vec g00 = zero_, g01 = zero_, g11 = zero_;
    for (int k = 0; k < 2 * p_; ++k) put(crossed_, k, zero_);
    add_columns(live_, crossed_);
    for (int j = 0; j < rows_; ++j) {
      const Vec z = q_ == 2 ? varying(j) : zero_;
      g00 = g00 + get(live_, j);
      g01 = g01 + z;
      g11 = fused(z, z, g11);
      put(row_sums_, j, z);
    }
    if (q_ == 2) add_columns(row_sums_, crossed_ + kLanes * p_);
    const Vec l00 = splat(task_.point.covariance[0]), l01 = splat(task_.point.covariance[1]);
    const Vec l11 = splat(task_.point.covariance[2]);
    // M = I + L G, A = M^-1 L, which is symmetric.
    const Vec m00 = one_ + l00 * g00 + l01 * g01, m01 = l00 * g01 + l01 * g11;
    const Vec m10 = l01 * g00 + l11 * g01, m11 = one_ + l01 * g01 + l11 * g11;
    const Vec inverse = one_ / (m00 * m11 - m01 * m10);
    inner_[0] = (m11 * l00 - m01 * l01) * inverse;
    inner_[1] = (m11 * l01 - m01 * l11) * inverse;
    inner_[2] = (m00 * l11 - m10 * l01) * inverse;
    // H = I - G A, W = H G.
    h_[0] = one_ - (g00 * inner_[0] + g01 * inner_[1]);
    h_[1] = zero_ - (g00 * inner_[1] + g01 * inner_[2]);
    h_[2] = zero_ - (g01 * inner_[0] + g11 * inner_[1]);
    h_[3] = one_ - (g01 * inner_[1] + g11 * inner_[2]);
    informed_[0] = h_[0] * g00 + h_[1] * g01;
    informed_[1] = h_[0] * g01 + h_[1] * g11;
    informed_[2] = h_[2] * g01 + h_[3] * g11;
    count_ = g00;
  }

  void gaussian_scores() {
    Vec square = zero_, t1 = zero_;
    for (int j = 0; j < rows_; ++j) {
      const Vec residual = (get(y_, j) - get(at_point_, j)) * get(live_, j);
      square = fused(residual, residual, square);
      if (q_ == 2) t1 = fused(residual, varying(j), t1);
      put(slopes_, j, residual);
    }
    for (int k = 0; k < p_; ++k) put(sums_, k, zero_);
    add_columns(slopes_, sums_);
    const Vec t0 = get(sums_, p_ - 1), precision = splat(1.0 / (task_.point.scale * task_.point.scale));
    const Vec b0 = inner_[0] * t0 + inner_[1] * t1, b1 = inner_[1] * t0 + inner_[2] * t1;
    for (int k = 0; k < p_; ++k) {
      put(own_, k, precision * (get(sums_, k) - get(crossed_, k) * b0 - get(crossed_, p_ + k) * b1));
    }
    put(own_, p_, precision * (square - (t0 * b0 + t1 * b1)) - count_);
    const Vec u0 = h_[0] * t0 + h_[1] * t1, u1 = h_[2] * t0 + h_[3] * t1, half = splat(0.5);
    put(own_, p_ + 1, half * (precision * u0 * u0 - informed_[0]));
    if (q_ == 2) {
      put(own_, p_ + 2, precision * u0 * u1 - informed_[1]);
      put(own_, p_ + 3, half * (precision * u1 * u1 - informed_[2]));
    }
  }

  void prepare_rates() {
    const bool counts = task_.family == PersonFamily::poisson;
    for (int j = 0; j < rows_; ++j) {
      const Vec live = get(live_, j);
      const auto rate_of = [&](const double* at) {
        return live * exp(clamped(get(at, j), -kLargestOdds, counts ? kFarthest : kLargestOdds));
      };
      const Vec rate = rate_of(at_point_);
      put(rates_, j, rate);
      put(truth_rates_, j, task_.same ? rate : rate_of(at_truth_));
    }
    if (!counts) return prepare_grid();
    for (int k = 0; k < p_; ++k) put(crossed_, k, zero_);
    add_columns(rates_, crossed_);
  }

  // Sums over the rows at even steps of b, which serve for all responses.  Two rows share a division.
  void prepare_grid() {
    if (rows_ % 2 == 1) put(rates_, rows_, zero_);
    for (int node = 0; node < task_.n_nodes; ++node) {
      const Vec odds_of_node = exp(splat(task_.nodes[node]));
      odds_at(node, [&](int j) { return get(rates_, j) * odds_of_node; });
    }
  }

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

  void separable_scores() {
    for (int k = 0; k < p_; ++k) put(own_, k, zero_);
    add_columns(y_, own_);
    if (task_.family == PersonFamily::binomial) {
      given_grid(get(own_, p_ - 1));
    } else {
      given_rates(get(own_, p_ - 1));
    }
  }

  // Less the posterior means given the sum of the responses: of the rows' means by column, then of g^2 - w.
  void given_grid(const Vec& sum) {
    const double root = task_.point.root[0], precision = root > 0.0 ? 0.5 / (root * root) : 0.0;
    Vec top = splat(-1e300);
    for (int node = 0; node < task_.n_nodes; ++node) {
      const double effect = task_.nodes[node];
      const Vec level = sum * splat(effect) - get(log_norms_, node) - splat(precision * effect * effect);
      put(levels_, node, level);
      top = maximum(top, level);
    }
    Vec total = zero_, square = zero_;
    for (int k = 0; k < p_; ++k) put(sums_, k, zero_);
    for (int node = 0; node < task_.n_nodes; ++node) {
      const double* means = means_ + kLanes * p_ * node;
      const Vec weight = exp(get(levels_, node) - top), slope = sum - get(means, p_ - 1);
      total = total + weight;
      square = fused(weight, slope * slope - get(variances_, node), square);
      for (int k = 0; k < p_; ++k) put(sums_, k, fused(weight, get(means, k), get(sums_, k)));
    }
    const Vec inverse = one_ / total;
    for (int k = 0; k < p_; ++k) put(own_, k, get(own_, k) - get(sums_, k) * inverse);
    put(own_, p_, splat(0.5) * square * inverse);
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

  void given_rates(const Vec& sum) {
    const Vec all = get(crossed_, p_ - 1), half = splat(0.5);
    Vec total = zero_, effect = zero_, square = zero_;
    walk(peak_of(all, sum, splat(task_.point.root[0])), all, sum, task_.point.root[0], kStepOfSpread, kLeastLevel,
         [&](const Vec& weight, const Vec& by, const Vec& rate) {
           const Vec slope = sum - rate;
           total = total + weight;
           effect = fused(weight, by, effect);
           square = fused(weight, slope * slope - rate, square);
         });
    const Vec inverse = one_ / total, mean = effect * inverse;
    for (int k = 0; k < p_; ++k) put(own_, k, get(own_, k) - get(crossed_, k) * mean);
    put(own_, p_, half * square * inverse);
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

  Vec count_, inner_[3], informed_[3], h_[4], apart_;
  int n_pairs_ = 0;
};

void scores_of_eight(const PersonTask& task, const EightPersons& persons, double* scratch, double* result) {
  Persons eight(task, scratch);
  eight.begin(persons);
  const bool observed = persons.responses[0] != nullptr;
  const int sets = task.n_draws + (observed ? 1 : 0);
  for (int set = 0; set < sets; ++set) {
    if (set < task.n_draws) {
      eight.draw(LaneStream(persons.seeds, task.first_draw + static_cast<std::uint64_t>(set)));
    } else {
      eight.observe(persons);
    }
    eight.scores(result + kLanes * set, sets);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

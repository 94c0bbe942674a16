// Scores of eight persons, a lane for each: no operation crosses lanes, and a lane that has converged is held, so that
// a person's scores do not depend on the others.  docs/derivations/people.md has the formulas.
#pragma once

#include "mechanism/simd/person_pairs-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

class Persons : public PersonPairs {
 public:
  using PersonPairs::PersonPairs;

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

  Vec count_, inner_[3], informed_[3], h_[4];
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

// The rows of eight persons, a lane for each, and draws of their responses: no operation crosses lanes.
#pragma once

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "common/special.hpp"
#include "mechanism/simd/person_draws-inl.hpp"
#include "mechanism/simd/person_kernels.hpp"
#include "mechanism/simd/person_terms-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

constexpr double kLargestLogMean = 10.0;  // of what is drawn
constexpr double kLargestOdds = 40.0;     // of their logarithm: eight of two together are doubles

DPINFER_INLINE Vec clamped(const Vec& x, double low, double high) {
  return minimum(maximum(x, splat(low)), splat(high));
}
// Numbers of eight lanes.
DPINFER_INLINE Vec get(const double* numbers, int place) { return load(numbers + kLanes * place); }
DPINFER_INLINE void put(double* numbers, int place, const Vec& value) { store(numbers + kLanes * place, value); }

class PersonRows {
 public:
  PersonRows(const PersonTask& task, double* scratch)
      : task_(task), q_(task.n_effects()), p_(task.n_columns + 1), zero_(splat(0.0)), one_(splat(1.0)) {
    double* free = scratch;
    const auto take = [&free](int size) { return (free += kLanes * size) - kLanes * size; };
    x_ = take(task.max_rows * task.n_columns);
    double** const of_rows[] = {&at_point_, &at_truth_, &live_,  &y_,          &slopes_,
                                &row_sums_, &gaps_,     &rates_, &truth_rates_};
    for (double** rows : of_rows) *rows = take(task.max_rows + 1);  // an even number of them is read
    crossed_ = take(2 * p_);
    sums_ = take(p_);
    own_ = take(task.n_scores);
    double** const of_nodes[] = {&levels_, &log_norms_, &variances_, &between_, &second_, &priors_};
    for (int k = 0; k < (task.pairs() ? 6 : 3); ++k) *of_nodes[k] = take(task.n_places());
    effects_ = take(task.pairs() ? 2 * task.n_places() : 0);
    means_ = take(task.n_places() * p_);
  }

  void read(const EightPersons& persons) {
    const double* sources[kLanes];
    double counts[kLanes];
    int least = task_.max_rows;
    rows_ = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const double count = persons.features[lane][0];
      const int own = !(count >= 1.0) ? 0 : count < task_.max_rows ? static_cast<int>(count) : task_.max_rows;
      if (own > rows_) rows_ = own;
      if (own < least) least = own;
      counts[lane] = own;
      sources[lane] = persons.features[lane] + 1;
    }
    spread(sources, rows_ * task_.n_columns, x_);
    for (int j = 0; j < rows_; ++j) put(live_, j, select_less(splat(j), load(counts), one_, zero_));
    for (int place = least * task_.n_columns; place < rows_ * task_.n_columns; ++place) {
      put(x_, place, select_less(zero_, get(live_, place / task_.n_columns), get(x_, place), zero_));
    }
    predictors(task_.point, at_point_);
    if (task_.same) {
      for (int j = 0; j < rows_; ++j) put(at_truth_, j, get(at_point_, j));
    } else {
      predictors(task_.truth, at_truth_);
    }
  }

  void observe(const EightPersons& persons) {
    spread(persons.responses, rows_, y_);
    for (int j = 0; j < rows_; ++j) put(y_, j, select_less(zero_, get(live_, j), get(y_, j), zero_));
  }

  void draw(LaneStream stream) {
    const Vec first = stream.normal(), second = q_ == 2 ? stream.normal() : zero_;
    const double* root = task_.truth.root;
    const Vec level = splat(root[0]) * first, slope = splat(root[1]) * first + splat(root[2]) * second;
    const Vec factor = separable() ? exp(clamped(level, -kLargestOdds, kLargestOdds)) : one_;
    // How many rows are drawn is the eight persons': what comes after them has words of its own.
    LaneStream counts(stream.word());
    for (int j = 0; j < rows_; ++j) {
      const Vec effect = q_ == 2 ? level + slope * varying(j) : level;
      put(y_, j,
          separable() ? counted(get(truth_rates_, j) * factor, stream) : response(get(at_truth_, j), effect, stream));
    }
    if (task_.family == PersonFamily::poisson || task_.family == PersonFamily::negative_binomial) {
      counts.poisson(y_, rows_);
    }
  }

 protected:
  // The first numbers of eight persons, a lane for each.
  static void spread(const double* const (&sources)[kLanes], int size, double* result) {
    int place = 0;
    for (; place + 4 <= size; place += 4) {
      const double* from[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) from[lane] = sources[lane] + place;
      Vec columns[4];
      load_columns(from, columns);
      for (int c = 0; c < 4; ++c) put(result, place + c, columns[c]);
    }
    for (; place < size; ++place) {
      for (int lane = 0; lane < kLanes; ++lane) result[kLanes * place + lane] = sources[lane][place];
    }
  }

  DPINFER_INLINE Vec column(int row, int k) const { return get(x_, row * task_.n_columns + k); }
  DPINFER_INLINE Vec varying(int row) const { return column(row, task_.slope); }

  void predictors(const PersonPoint& point, double* result) const {
    for (int j = 0; j < rows_; ++j) {
      Vec eta = splat(point.coef[task_.n_columns]);
      for (int k = 0; k < task_.n_columns; ++k) eta = fused(column(j, k), splat(point.coef[k]), eta);
      put(result, j, eta);
    }
  }

  // sums[c] += sum over rows of a column times values[row]; four columns at a time stay in registers.
  DPINFER_INLINE void add_columns(const double* values, double* sums) const {
    const int n = task_.n_columns;
    int k = 0;
    for (; k + 4 <= n; k += 4) {
      Vec s0 = get(sums, k), s1 = get(sums, k + 1), s2 = get(sums, k + 2), s3 = get(sums, k + 3);
      for (int j = 0; j < rows_; ++j) {
        const Vec value = get(values, j);
        s0 = fused(column(j, k), value, s0);
        s1 = fused(column(j, k + 1), value, s1);
        s2 = fused(column(j, k + 2), value, s2);
        s3 = fused(column(j, k + 3), value, s3);
      }
      put(sums, k, s0);
      put(sums, k + 1, s1);
      put(sums, k + 2, s2);
      put(sums, k + 3, s3);
    }
    for (; k < n; ++k) {
      Vec sum = get(sums, k);
      for (int j = 0; j < rows_; ++j) sum = fused(column(j, k), get(values, j), sum);
      put(sums, k, sum);
    }
    Vec sum = get(sums, n);
    for (int j = 0; j < rows_; ++j) sum = sum + get(values, j);
    put(sums, n, sum);
  }

  // Of counts, the mean.
  DPINFER_INLINE Vec response(const Vec& eta, const Vec& effect, LaneStream& stream) const {
    const Vec largest = splat(kLargestLogMean);
    switch (task_.family) {
      case PersonFamily::gaussian:
        return fused(splat(task_.truth.scale), effect + stream.normal(), eta);
      case PersonFamily::binomial:
        return select_less(stream.uniform(), sigmoid(eta + effect), one_, zero_);
      case PersonFamily::probit:
        return select_less(stream.normal(), eta + effect, one_, zero_);
      case PersonFamily::poisson:
        return exp(minimum(eta + effect, largest));
      default: {
        const Vec mean = exp(minimum(eta + effect, largest));
        return mean * (stream.gamma(task_.truth.scale) / splat(task_.truth.scale));
      }
    }
  }

  // The same of a separable model, by its odds or rate.
  DPINFER_INLINE Vec counted(const Vec& rate, LaneStream& stream) const {
    if (task_.family == PersonFamily::poisson) return minimum(rate, splat(22026.465794806718));
    const Vec u = stream.uniform();
    return select_less(fused(u, rate, u), rate, one_, zero_);
  }

  // Canonical links with an intercept that varies: exp(eta + b) = exp(eta) exp(b), and of the responses the density has
  // their sum alone.
  bool separable() const {
    return q_ == 1 && (task_.family == PersonFamily::binomial || task_.family == PersonFamily::poisson);
  }

  // Own scores, transformed: result[a * stride] for each of task.n_out, in lanes of which `taken` is not zero.  Zero
  // where one of a person's is not a number.
  void transform(double* result, int stride, const Vec& taken) const {
    Vec nothing = zero_;
    for (int k = 0; k < task_.n_scores; ++k) nothing = nothing + get(own_, k) * zero_;
    for (int a = 0; a < task_.n_out; ++a) {
      Vec value = zero_;
      for (int k = 0; k < task_.n_scores; ++k) {
        value = fused(splat(task_.transform[a * task_.n_scores + k]), get(own_, k), value);
      }
      const Vec finite = select_less(nothing, one_, value, zero_);
      put(result, a * stride, select_less(zero_, taken, finite, get(result, a * stride)));
    }
  }

  const PersonTask& task_;
  const int q_, p_;
  int rows_ = 0;
  double *x_, *at_point_, *at_truth_, *live_, *y_, *slopes_, *row_sums_, *gaps_, *rates_, *truth_rates_;
  double *crossed_, *sums_, *own_, *levels_, *log_norms_, *variances_, *between_, *second_, *priors_, *effects_,
      *means_;
  const Vec zero_, one_;
};

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

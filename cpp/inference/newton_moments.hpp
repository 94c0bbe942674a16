// The density of the second moments of a private Newton run, with the weights integrated out, and leapfrog steps on it.
//
// docs/derivations/private-newton.md, "The posterior": M = G G', G = C_m ... C_1 F, C_k = I - shrink_k v_k v_k'. Chains
// are independent; the coordinates of one are F (d, d), the directions v_k (m, d) and the logits of their levels (m),
// row-major.
#pragma once

#include <cstddef>
#include <span>

#include "inference/lapack.hpp"

namespace dpinfer::inference {

// shrink = (1 - flattest)(1 - level^power).  In the declared units the diagonal of M is near a common level, which is
// N(level, level_stddev^2), each entry within stddev of it.
struct MomentsPrior {
  double power;
  double flattest;
  double level;
  double level_stddev;
  double stddev;
};

// One chain's released matrices; to_declared is null where nothing is declared of the diagonal.
struct ReleasedMoments {
  const double* noisy;         // (d, d)
  double precision;            // of its entries
  const double* prior_factor;  // (d, d), lower: prior covariance of the weights, in units of the prior's variance
  const double* to_declared;   // (d, d)
  const double* diagonal;      // (d)
  const double* diagonal_precision;
};

// One chain's scores at given slopes, and its hyperparameters.
struct LinearScores {
  std::size_t steps;
  const double* precision;   // (T)
  const double* deviation;   // (T, d)
  const double* moved;       // (T, d)
  const double* mean_score;  // (d)
  const double* mean_position;
  double total;
  double sampling;
  double prior_variance;
  double concentration;
  double flatness;
};

struct MomentsShape {
  std::size_t d;
  std::size_t flattened;

  std::size_t coordinates() const { return d * d + flattened * d + flattened; }
};

// Doubles that the functions below work in.
std::size_t moments_work_size(const MomentsShape& shape, std::size_t steps);

// The log density at `point` up to a constant, and its gradient; minus infinity where M or the scores' covariance is
// singular to rounding, and then no gradient.
double moments_density(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                       const ReleasedMoments& released, const LinearScores& scores, std::span<const double> point,
                       std::span<double> gradient, std::span<double> work);

// Leapfrog steps from `point` with `momentum`, both replaced by where they lead; the flattening's coordinates move
// `ratio` times as far.  Returns the change of the log density less that of the kinetic energy, minus infinity for a
// trajectory that has run away (and then `point` is anything).
double moments_leapfrog(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                        const ReleasedMoments& released, const LinearScores& scores, std::size_t leaps, double step,
                        double ratio, std::span<double> point, std::span<double> momentum, std::span<double> work);

}  // namespace dpinfer::inference

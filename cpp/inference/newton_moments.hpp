// The density of the second moments of a private Newton run, with the weights integrated out, and leapfrog steps on it.
//
// docs/derivations/private-newton.md, "The posterior": M = G G', G = C_m ... C_1 F, C_k = I - shrink_k v_k v_k'. Chains
// are independent; the coordinates of one are F (d, d), lower triangular, the directions v_k (m, d) and the logits of
// their levels (m), row-major.  What stands above the diagonal of F is not looked at.
#pragma once

#include <cstddef>
#include <span>

#include "inference/lapack.hpp"

namespace dpinfer::inference {

// shrink = (1 - flattest)(1 - level^power).  In the declared units the diagonal of M is near a common level, which is
// N(level, level_stddev^2), each entry within stddev of it.  F F' is Wishart with one of `concentrations`, log_weights
// up to what each density's constant is, and a scale that is integrated out; logits are logistic around one of
// the locations, of which rates holds exp(-location).
struct MomentsPrior {
  double power;
  double flattest;
  double level;
  double level_stddev;
  double stddev;
  std::span<const double> concentrations;
  std::span<const double> log_weights;
  std::span<const double> rates;
  std::span<const double> rate_weights;
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
};

inline constexpr std::size_t kMostFlattened = 8;

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

// Leapfrog steps from `point` with `momentum`, both replaced by where they lead; coordinate k moves scale[k] times as
// far.  Returns the change of the log density less that of the kinetic energy, minus infinity for a trajectory that has
// run away (and then `point` is anything).
double moments_leapfrog(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                        const ReleasedMoments& released, const LinearScores& scores, std::size_t leaps, double step,
                        std::span<const double> scale, std::span<double> point, std::span<double> momentum,
                        std::span<double> work);

// Random numbers of one Metropolis step below: (d) normal ones for the direction, one for the logit, and three uniform
// ones: what is proposed, for which direction, and whether it is accepted.
std::size_t regroup_numbers(const MomentsShape& shape);

// Metropolis steps on directions and logits with F moved along, so that M stays what it is: `numbers` holds
// regroup_numbers for each.  Nothing is moved where F would be singular.
void moments_regroup(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                     std::span<const double> numbers, std::span<double> point, std::span<double> work);

// Metropolis steps on directions and logits with F kept: M follows.
void moments_follow(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                    const ReleasedMoments& released, const LinearScores& scores, std::span<const double> numbers,
                    std::span<double> point, std::span<double> work);

// How one step is made of the above.
struct MomentsStep {
  std::size_t leaps;
  std::size_t follows;
  double size;                    // of a leap
  std::span<const double> scale;  // how many times farther each coordinate moves
  double uniform;                 // whether the path is accepted
};

// Half of `numbers` for regrouping and following, a path, which is accepted or not, and the other half for following
// and regrouping: a reversible whole.  Returns the probability with which the path was accepted; `momentum` is used up.
double moments_step(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                    const ReleasedMoments& released, const LinearScores& scores, const MomentsStep& step,
                    std::span<const double> numbers, std::span<double> point, std::span<double> momentum,
                    std::span<double> work);

}  // namespace dpinfer::inference

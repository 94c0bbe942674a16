// The noise-aware posterior of one coordinate by quadrature: the optimum is integrated in closed form, the slope and
// the noise inflation on a grid.
//
// Everything here is dimensionless.  Legend (see docs/derivations/noise-aware-posterior.md): D the weighted spread of
// the positions, se = tau / sqrt(S_xx) the standard error of the slope b = kappa a; beta = b / se, delta = (optimum -
// mean position) / D, nu = 1 + omega^2 / tau^2 the noise inflation.  The collapsed density is
//
//   (n - 1)/2 log(1/nu) - (residual + (beta - slope_score)^2) / (2 nu) - log(s)/2 - (mean_score - beta offset)^2 / (2
//   s)
//   + log prior(beta) + log prior(nu),     s = nu + beta^2 optimum_scale^2.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dpinfer::inference {

enum class PosteriorStatus { kOk, kNotConverged, kOutOfMemory };

// One coordinate; the field order is part of the binding's contract (a row of doubles).
struct CollapsedProblem {
  double count;           // n, the number of steps
  double slope_score;     // S_xg / (tau sqrt(S_xx)): the least-squares slope in standard errors
  double residual;        // (S_gg - S_xg^2 / S_xx) / tau^2
  double mean_score;      // mean gradient in units of tau / sqrt(W)
  double optimum_offset;  // (mean position - prior location) / D
  double optimum_scale;   // prior standard deviation / D
  double hessian_unit;    // a = hessian_unit * beta
  double wide_scale;  // A in the prior beta^(power - 1) exp(-beta^2 / (2 A^2)); 0: a normal prior on v, a = softplus(v)
  double wide_power;  // 1: half-normal, 2: Rayleigh; with wide_scale = 0 and 0 here: log a is normal instead
  double raw_loc;     // location of that normal
  double raw_scale;   // its standard deviation
  double extra_noise;     // 0: nu = 1; otherwise omega / tau has a half-Cauchy prior with scale 1
  double side_count;      // a second regression that shares beta (tied posterior): its number of steps, 0 if none
  double side_score;      // its least-squares beta
  double side_precision;  // the precision of that, at nu = 1
  double side_residual;   // its residual sum of squares in units of the noise variance
};

inline constexpr std::size_t kProblemFields = sizeof(CollapsedProblem) / sizeof(double);

// Quadrature nodes: given (beta, nu) the optimum is normal with this mean and variance (in D); weights sum to 1.
struct CollapsedNodes {
  std::vector<double> slope;
  std::vector<double> inflation;
  std::vector<double> weight;
  std::vector<double> mean;
  std::vector<double> variance;
  PosteriorStatus status = PosteriorStatus::kOk;
};

// Trapezoid rule on (y, w) with beta = unit softplus(y) and nu = cosh(w)^2, in which the density is smooth with
// exponential tails, so that the rule converges faster than any power of the step (Trefethen and Weideman 2014); below
// 16 steps with unknown noise beta = unit exp(centre + width sinh(y)) tames the Student tails.  The
// step is halved until the rules on the even and on the odd nodes agree (with Student tails also on second
// moments), and the range is widened until the density on its border has dropped by a factor exp(36).
CollapsedNodes collapsed_posterior(const CollapsedProblem& problem);

// All coordinates; nodes[j] gets the posterior of problems[j].  Returns the worst status.
PosteriorStatus collapsed_posteriors(std::span<const CollapsedProblem> problems, int threads,
                                     std::span<CollapsedNodes> nodes);

// log of the integral over nu of the likelihood of a regression with `count` steps and residual sum `residual`, up to a
// constant in `residual`: integral over w of cosh(w)^-(count + 1) exp(-residual / (2 cosh(w)^2)).
double log_marginal_inflation(double count, double residual);

}  // namespace dpinfer::inference

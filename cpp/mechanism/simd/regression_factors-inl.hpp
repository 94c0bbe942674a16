// What a record of a regression contributes along its whitened features, and how it is held inside its ball: in lanes,
// one record each, as many as a vector has.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/regression_task.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

inline constexpr double kRootOfTwo = 1.4142135623730950488;
// What multiplies z or z z' is at most this: beyond, a record takes no part (private-sum.md needs some bound).
inline constexpr double kLargestFactor = 1e150;

// A record's numbers.
struct RegressionNumbers {
  Vec response;
  Vec predictor;
  Vec square;  // |z|^2
  Vec given;   // survey weight
};

// The value at eta of a function that is linear between the nodes of an even grid.
DPINFER_NOINLINE Vec tabulated(const RegressionTask& task, const double* values, const Vec& eta) {
  double place[kLanes];
  store(place, (eta - splat(task.first_node)) * splat(task.nodes_per_unit));
  const double last = task.n_nodes - 1;
  for (double& at : place) {
    if (!(at > 0.0)) {
      at = values[0];
    } else if (at >= last) {
      at = values[task.n_nodes - 1];
    } else {
      const int node = static_cast<int>(at);
      const double share = at - node;
      at = (1.0 - share) * values[node] + share * values[node + 1];
    }
  }
  return load(place);
}

// The residual of eight records, and the slope of their mean in the linear predictor.
DPINFER_INLINE void residuals(const RegressionTask& task, const RegressionNumbers& group, Vec& residual, Vec& slope) {
  const Vec& eta = group.predictor;
  switch (task.link) {
    case Likelihood::logistic: {
      const Vec p = sigmoid(eta);
      residual = group.response - p;
      slope = p * (splat(1.0) - p);
      return;
    }
    case Likelihood::probit: {
      if (task.is_derivative) {
        const Vec sign = group.response + group.response - splat(1.0);
        const Vec t = sign * eta;
        const Vec ratio = inverse_mills(t);
        residual = sign * ratio;
        // Between 0 and 1 in exact arithmetic; far out the difference is lost in rounding.
        slope = maximum(minimum(ratio * (t + ratio), splat(1.0)), splat(0.0));
        return;
      }
      Vec p;
      Vec gauss;
      normal_cdf(eta, p, gauss);
      residual = group.response - p;
      slope = splat(0.39894228040143267794) * gauss;
      return;
    }
    case Likelihood::gaussian:
      residual = group.response - eta;
      slope = splat(1.0);
      return;
    case Likelihood::poisson:
      break;
  }
  slope = poisson_rate(eta);
  residual = group.response - slope;
}

// The longer of the two residuals that a yes/no response can have, in absolute value.
DPINFER_NOINLINE Vec longest_residual(const RegressionTask& task, const Vec& eta) {
  if (task.link == Likelihood::probit) return maximum(inverse_mills(eta), inverse_mills(splat(0.0) - eta));
  return sigmoid(absolute(eta));
}

// What multiplies the score of a yes/no response, whichever it is, for a length of at most task.weight_bound.
DPINFER_INLINE Vec two_point_weight(const RegressionTask& task, const RegressionNumbers& group, const Vec& weight) {
  const Vec length = weight * longest_residual(task, group.predictor) * square_root(group.square);
  const Vec bound = splat(task.weight_bound);
  return select_less(bound, length, bound / length, splat(1.0));
}

// What a record contributes is `factor` times z or z z', and `extra`.
struct RegressionFactors {
  Vec factor;
  Vec extra;
  Vec size;  // finite where everything that they were made from is
};

DPINFER_NOINLINE RegressionFactors regression_factors(const RegressionTask& task, const RegressionNumbers& group) {
  const Vec bound = splat(task.square_bound);
  Vec weight = group.given * select_less(bound, group.square, bound / group.square, splat(1.0));
  if (task.weight_bound <= kFinite) weight = weight * two_point_weight(task, group, weight);
  if (task.output == RegressionOutput::moments) return {weight, splat(0.0), group.square};
  Vec residual;
  Vec slope;
  residuals(task, group, residual, slope);
  const Vec size = absolute(residual);
  const Vec cut = splat(task.residual_bound);
  const bool has_table = task.n_nodes > 0;
  if (task.output == RegressionOutput::curvature || task.output == RegressionOutput::curvature_sizes) {
    const Vec inside = select_less(cut, size, splat(0.0), slope);
    return {weight * (has_table ? tabulated(task, task.slope, group.predictor) : inside), splat(0.0), size};
  }
  Vec psi = maximum(minimum(residual, cut), splat(0.0) - cut);
  if (has_table) psi = psi - tabulated(task, task.centre, group.predictor);
  if (task.output == RegressionOutput::squares) return {weight * weight * psi * psi, splat(0.0), size};
  const Vec share = weight * (minimum(size / splat(task.scale_unit), splat(1.0)) - splat(task.scale_centre));
  return {weight * psi, task.scale_weight != 0.0 ? share * splat(task.scale_weight) : splat(0.0), size};
}

// The size that an indicator is of.
DPINFER_INLINE Vec size_of(const RegressionTask& task, const RegressionFactors& found, const Vec& square) {
  const Vec factor = absolute(found.factor);
  if (task.output == RegressionOutput::curvature_sizes) return square_root(factor * square);
  return factor * square_root(square);
}

// The interval of a size: -1 of a record that is not finite.  On a GPU std::upper_bound finds a wrong one: nvcc 13.0
// leaves the std::advance in it out of the code.
DPINFER_INLINE int place_of_size(const RegressionTask& task, double size, double other) {
  if (!(size <= kFinite && other <= kFinite)) return -1;
  int first = 0;
  int last = task.n_edges;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (size < task.edges[middle]) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// An indicator's one.
DPINFER_INLINE std::uint64_t one_of_sizes(const RegressionTask& task) {
  return static_cast<std::uint64_t>(std::min(task.unit, std::floor(task.clip_norm)));
}

inline constexpr int kLookedAt = 4;

// Brings what is found to lattice steps and to a norm of at most task.clip_norm.  A record whose `looked_at` are not
// all at most kFinite is to be left out: one of them is infinite or not a number where anything is.
DPINFER_INLINE void hold_inside(const RegressionTask& task, const Vec& square, RegressionFactors& found,
                                Vec* looked_at) {
  const Vec factor = found.factor * splat(task.unit);
  const Vec extra = found.extra * splat(task.unit);
  Vec norm = absolute(factor) * square;
  if (!task.is_matrix()) norm = square_root(fused(extra, extra, factor * factor * square));
  const Vec clip = clipping_factor(norm, task.clip_norm);
  looked_at[0] = norm;
  looked_at[1] = square;
  looked_at[2] = found.size;
  looked_at[3] = absolute(factor) * splat(kFinite / kLargestFactor);
  found.factor = factor * clip;
  found.extra = extra * clip;
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

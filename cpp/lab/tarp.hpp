// Posterior draws counted against the truth, seen from reference points: the shares of TARP (Lemos et al. 2023).
//
// Legend: S draws of each of K simulations in d dimensions, row-major (S, K, d), float64 or float32; theta the true
// values and s the scales, (K, d); r the reference points, (R, K, d).  For every simulation and reference point
//   joint      counts the draws whose distance sum_j ((x_j - r_j) / s_j)^2 is below that of theta, and
//   marginal   counts, coordinate by coordinate, those whose ((x_j - r_j) / s_j)^2 is below that of theta.
// Both are doubled counts, (draws below) + (draws not above), so that a tie counts half.  Draws are posterior samples:
// nothing here reads records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "lab/tarp_kernels.hpp"

namespace dpinfer::lab {

enum class TarpStatus { kOk, kBadShape, kNotFinite };

using Draws = std::variant<std::span<const double>, std::span<const float>>;

struct TarpView {
  Draws draws;  // (S, K, d)
  std::size_t n_draws;
  std::size_t n_sims;
  std::size_t n_dims;
};

struct TarpQuestion {
  std::span<const double> thetas;          // (K, d)
  std::span<const double> references;      // (R, K, d)
  std::span<const double> inverse_scales;  // (K, d): 1 / s
};

struct TarpCounts {
  std::span<std::uint32_t> joint;     // (R, K)
  std::span<std::uint32_t> marginal;  // (R, K, d)
};

// One pass over the draws whatever the number of reference points.  Counts are integers: the threads cannot matter.
// kNotFinite when a draw, or its distance to a reference point, is not finite.
TarpStatus tarp_counts(const TarpKernels& kernels, const TarpView& view, const TarpQuestion& question, int threads,
                       const TarpCounts& out);

// Mean and centred sum of squares of the draws, coordinate by coordinate, each (K, d).
TarpStatus draw_moments(const TarpKernels& kernels, const TarpView& view, int threads, std::span<double> mean,
                        std::span<double> squares);

}  // namespace dpinfer::lab

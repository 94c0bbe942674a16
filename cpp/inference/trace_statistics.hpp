// Sufficient statistics of the trace regression, in one streaming pass over a released trace.
//
// Legend: T steps, k coordinates; x positions, g noisy gradients, tau noise standard deviations, all row-major (T, k);
// weights w_t = (reference / tau_t)^2.  Reads a published trace only.
#pragma once

#include <cstddef>
#include <span>

namespace dpinfer::inference {

enum class StatisticsStatus { kOk, kBadShape };

// One row of statistics per coordinate; the field order is part of the binding's contract.
enum TraceField : std::size_t { kWeight, kPositionMean, kGradientMean, kXX, kXG, kGG, kTraceFields };

struct TraceView {
  std::span<const double> positions;
  std::span<const double> gradients;
  std::span<const double> noise_stddev;  // (k,) or (T, k)
  std::span<const double> reference;     // (k,): the tau that weight 1 belongs to
  std::size_t steps;
  std::size_t coordinates;
};

// Number of doubles of scratch that trace_statistics needs.
std::size_t trace_scratch_size(std::span<const std::size_t> boundaries, std::size_t coordinates);

// Weighted counts, means and centred sums of the steps boundaries[s] <= t < boundaries[s + 1], one segment after the
// other: out is (segments, kTraceFields, k).  Chunks of fixed size are centred on their own means and merged in order
// (Chan, Golub and LeVeque 1983), so the bits do not depend on the number of threads.
StatisticsStatus trace_statistics(const TraceView& trace, std::span<const std::size_t> boundaries, int threads,
                                  std::span<double> scratch, std::span<double> out);

// Centred weighted Gram matrices: xx = sum w (x - mx)(x - mx)', xg = sum w (x - mx)(g - mg)', gg = sum w (g - mg)^2.
struct GramOutput {
  std::span<double> position_mean;  // (k,)
  std::span<double> gradient_mean;  // (m,)
  std::span<double> xx;             // (k, k)
  std::span<double> xg;             // (k, m)
  std::span<double> gg;             // (m,)
};

// weights: (T,), one per step and shared by all coordinates.
StatisticsStatus gram_statistics(std::span<const double> positions, std::span<const double> gradients,
                                 std::span<const double> weights, std::size_t coordinates, std::size_t responses,
                                 int threads, GramOutput out);

}  // namespace dpinfer::inference

// Quantiles of one-dimensional mixtures of normals, many at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dpinfer::inference {

// Mixture j owns the components offsets[j] to offsets[j + 1], of weights that sum to one; those lighter than 1e-12 are
// left out.  Variances may be zero.
struct NormalMixtureView {
  std::span<const std::int64_t> offsets;
  std::span<const double> weight, mean, variance;

  std::size_t size() const { return offsets.size() - 1; }
};

// out[l * size + j] is the point at which mixture j has levels[l] below it, or NaN where the root finding, Newton's
// method inside a shrinking bracket, did not converge.  standard[l]: the same of the standard normal.
void mixture_quantiles(const NormalMixtureView& mixtures, std::span<const double> levels,
                       std::span<const double> standard, std::span<double> out);

}  // namespace dpinfer::inference

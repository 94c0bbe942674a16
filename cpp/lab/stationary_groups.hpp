// Stationary covariances of small Hessians, eight side by side: the first half of stationary.hpp's answers.
#pragma once

#include <cstddef>
#include <span>

#include "lab/stationary.hpp"

namespace dpinfer::lab {

// Up to this width.
inline constexpr std::size_t kGrouped = 32;

// Where l tau^2 is the same for every coordinate, Y = (e / 2)(S^-1 + (2 - S)^-1), or its first half, by Gauss-Jordan;
// both matrices are positive definite exactly where the recursion is stable.
StationaryStatus solve_by_inverses(const StationaryKernels& kernels, const StationaryBatch& batch, int threads,
                                   std::span<double> out, std::span<StationaryStatus> status);

// Any of them.  kNotConverged where the result is not certain to be accurate.
StationaryStatus solve_by_doubling(const StationaryKernels& kernels, const StationaryBatch& batch, bool symmetric,
                                   int threads, std::span<double> out, std::span<StationaryStatus> status);

}  // namespace dpinfer::lab

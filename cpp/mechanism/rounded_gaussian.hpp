// Gaussian noise rounded to the lattice: since S is a lattice point, S + round(Y) = round(S + Y), a post-processing of
// the continuous Gaussian mechanism, so that its (subsampled) privacy analysis applies as it is.
//
// Every draw is the exact rounding of a normal: float64 arithmetic decides where its proven error leaves no doubt, and
// 192-bit arithmetic on further random bits where it does not.  docs/derivations/noise.md bounds what is left: less
// than 2^-100 in total variation a coordinate.
#pragma once

#include <cstdint>

#include "mechanism/chacha20.hpp"

namespace dpinfer {

// The largest standard deviation in lattice steps for which sums and noise stay inside int64.
inline constexpr double kMaxLatticeStddev = 1e17;

// Adds round(stddev * z_i) to sums[i], i < n, with z from the stream (noise, step); stddev is in lattice steps,
// positive and at most kMaxLatticeStddev.  Returns how many draws float64 arithmetic could not decide.
std::int64_t add_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev,
                                  int n, std::int64_t* sums);

// The same draws, all of them by 192-bit arithmetic: what add_rounded_gaussian is checked against.
void exact_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev, int n,
                            std::int64_t* draws);

}  // namespace dpinfer

// Gaussian noise rounded to the lattice: since S is a lattice point, S + round(Y) = round(S + Y), a post-processing of
// the continuous Gaussian mechanism, so that its (subsampled) privacy analysis applies as it is.
#pragma once

#include <cstdint>

#include "mechanism/chacha20.hpp"

namespace dpinfer {

// The largest standard deviation in lattice steps for which sums and noise stay inside int64.
inline constexpr double kMaxLatticeStddev = 1e17;

// Adds round(stddev * z_i) to sums[i], i < n, with z from the stream (noise, step); stddev is in lattice steps.
void add_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev, int n,
                          std::int64_t* sums);

}  // namespace dpinfer

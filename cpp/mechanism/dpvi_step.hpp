// One step of the private mechanism: sample rows, sum their clipped gradients on the lattice, add noise.
#pragma once

#include <cstdint>
#include <vector>

#include "common/aligned.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer {

struct SumRequest {
  RandomKey key;
  std::uint64_t step;
  SampleThreshold threshold;
  int n_threads;
};

// Memory of clipped_gradient_sum, kept from step to step; not to be shared between calls that run at the same time.
struct SumWorkspace {
  AlignedVector<std::uint64_t> sums;
  AlignedVector<double> scratch;
  std::vector<std::int64_t> rows;
};

// Length of a gradient without padding: 2 n or n for aligned gradients, n counting the noise variance.
int released_length(const GradientTask& task);

// The exact lattice sum over the sampled rows, in released order (loc of every parameter, then raw_scale).  Private: it
// leaves the library only through noisy_gradient_sum, or in an audit.  The same for any number of threads; with one,
// the caller's own, and no parallel region.
void clipped_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                          SumWorkspace& workspace, std::int64_t* sum);

// clipped_gradient_sum plus rounded Gaussian noise of standard deviation `noise_steps` lattice steps.
void noisy_gradient_sum(const KernelTable& kernels, const GradientTask& task, const SumRequest& request,
                        double noise_steps, SumWorkspace& workspace, std::int64_t* sum);

}  // namespace dpinfer

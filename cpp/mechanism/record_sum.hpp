// Private sums of clipped contributions that any code may compute: sample rows, clip, round to the lattice, add, noise.
//
// What a kernel computes cannot widen the sensitivity: its numbers are clipped and rounded here (clipped_vector.inc),
// so that one record's integer vector k has |k| <= C / g whatever they are.  Adding or removing a record moves the sum
// by at most C, replacing one by at most 2 C (from one clipped vector to another).  Proof: docs/derivations/dp-sep.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/aligned.hpp"
#include "mechanism/dpvi_step.hpp"
#include "mechanism/sum/lattice.hpp"

namespace dpinfer {

class ContributionKernel {
 public:
  ContributionKernel() = default;
  ContributionKernel(const ContributionKernel&) = default;
  ContributionKernel& operator=(const ContributionKernel&) = default;
  virtual ~ContributionKernel() = default;

  virtual int length() const = 0;          // doubles in a contribution, at most kMaxLatticeDimension
  virtual int scratch_length() const = 0;  // doubles of scratch, per thread
  // Writes record i's contribution before clipping: a function of record i and the public state only.  Called
  // concurrently; never throws.
  virtual void contribution(std::int64_t i, double* scratch, double* out) const noexcept = 0;
};

// Memory of the sums below, kept from step to step; not to be shared between calls that run at the same time.
struct RecordSumWorkspace {
  AlignedVector<std::uint64_t> sums;
  AlignedVector<double> values;
  AlignedVector<double> scratch;
  std::vector<std::int64_t> rows;
};

// The exact lattice sum over the Poisson-sampled rows, kernel.length() integers.  Private: it leaves the library only
// with noise, or in an audit.  A contribution that is not finite adds zero.  The same for any number of threads.
void clipped_record_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::int64_t n_rows,
                        const Lattice& lattice, const SumRequest& request, RecordSumWorkspace& workspace,
                        std::int64_t* sum);

// The same over the rows of an explicit list (from row_draws.hpp: for uniform and permuted sampling).
void clipped_listed_sum(const KernelTable& kernels, const ContributionKernel& kernel,
                        std::span<const std::int64_t> rows, const Lattice& lattice, int n_threads,
                        RecordSumWorkspace& workspace, std::int64_t* sum);

// Both with rounded Gaussian noise of standard deviation `noise_steps` lattice steps from the stream (noise, step).
void noisy_record_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::int64_t n_rows,
                      const Lattice& lattice, const SumRequest& request, double noise_steps,
                      RecordSumWorkspace& workspace, std::int64_t* sum);
void noisy_listed_sum(const KernelTable& kernels, const ContributionKernel& kernel, std::span<const std::int64_t> rows,
                      const Lattice& lattice, const RandomKey& key, std::uint64_t step, int n_threads,
                      double noise_steps, RecordSumWorkspace& workspace, std::int64_t* sum);

// Not private: float64 sums without noise, over all rows or the listed ones, of contributions clipped to max_norm (pass
// infinity for none).  A contribution that is not finite adds zero.  Rows are added in a fixed tree, so that the bits
// do not depend on the number of threads.
void plain_record_sum(const ContributionKernel& kernel, std::int64_t n_rows, double max_norm, int n_threads,
                      RecordSumWorkspace& workspace, double* sum);
void plain_listed_sum(const ContributionKernel& kernel, std::span<const std::int64_t> rows, double max_norm,
                      int n_threads, RecordSumWorkspace& workspace, double* sum);

}  // namespace dpinfer

// The one driver from rows to a private sum: sample rows, have a kernel add them, add the threads' integers up; noise
// once, at the end.
//
// Integer addition is associative, so that the sum is the same for any number of threads and any order of the rows, and
// sums over parts of the rows add up to the sum over all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/aligned.hpp"
#include "common/float_environment.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/sum/lattice.hpp"
#include "mechanism/sum/row_kernel.hpp"

namespace dpinfer {

// share(thread) on each of n_threads threads; on the caller's own, and in no parallel region, when there is one.
template <typename Share>
void run_threads(int n_threads, const Share& share) {
  if (n_threads == 1) {
    share(0);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(n_threads)
  for (int thread = 0; thread < n_threads; ++thread) {
    const FloatEnvironment standard;
    share(thread);
  }
}

// The rows of a step: each of `n_rows` independently.  A source that is read in parts says where a part begins, in
// blocks of kRowBlock rows: the parts' samples are then those of the whole.
struct SampledRows {
  RandomKey key;
  std::uint64_t step;
  SampleThreshold threshold;
  std::int64_t n_rows;
  std::int64_t first_block = 0;
};

// Memory of sums, kept from step to step; not to be shared between calls that run at the same time.
struct SumWorkspace {
  AlignedVector<std::uint64_t> sums;
  AlignedVector<double> scratch;
  std::vector<std::int64_t> rows;
};

// Add the exact lattice sum over sampled or listed rows to `total`, kernel.length() integers.  Private: it leaves the
// library only with noise (PrivateSum::release), or in an audit.
void add_sampled_rows(const KernelTable& kernels, const RowKernel& kernel, const SampledRows& sample, int n_threads,
                      SumWorkspace& workspace, std::span<std::int64_t> total);
void add_listed_rows(const RowKernel& kernel, std::span<const std::int64_t> rows, int n_threads,
                     SumWorkspace& workspace, std::span<std::int64_t> total);

// What the sums of a run have in common: the lattice of their clipping norm, the key, the threads, and memory.
class PrivateSum {
 public:
  // The table must outlive this.  max_norm: in [1e-30, 1e30].
  PrivateSum(const KernelTable& kernels, double max_norm, const RandomKey& key, int n_threads);

  const KernelTable& kernels() const { return kernels_; }
  const Lattice& lattice() const { return lattice_; }
  const RandomKey& key() const { return key_; }
  int n_threads() const { return n_threads_; }

  // The exact sums, and the same with noise of standard deviation noise_multiplier * max_norm, from the stream (noise,
  // step), in units of the contributions.
  void clipped(const RowKernel& kernel, std::int64_t n_rows, std::uint64_t step, const SampleThreshold& threshold,
               std::span<std::int64_t> sum);
  void clipped(const RowKernel& kernel, std::span<const std::int64_t> rows, std::span<std::int64_t> sum);
  void noisy(const RowKernel& kernel, std::int64_t n_rows, std::uint64_t step, const SampleThreshold& threshold,
             double noise_multiplier, std::span<double> released);
  void noisy(const RowKernel& kernel, std::span<const std::int64_t> rows, std::uint64_t step, double noise_multiplier,
             std::span<double> released);

  // Adds the noise to an exact sum, which it overwrites: the only way out.
  void release(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum,
               std::span<double> released) const;

 private:
  const KernelTable& kernels_;
  Lattice lattice_;
  double noise_unit_;  // max_norm in lattice steps
  RandomKey key_;
  int n_threads_;
  SumWorkspace workspace_;
  std::vector<std::int64_t> sum_;
};

// What sessions of Poisson-sampled runs share.  Session has rows(), the kernel of the current step's public inputs, and
// n_rows().
template <typename Session>
class SampledSession {
 public:
  double effective_rate() const { return threshold_.effective_rate(); }
  double lattice_step() const { return sum_.lattice().step; }

  // All write as many numbers as are released.  `release` adds the noise to an exact sum, which it overwrites.
  void clipped_sum(std::uint64_t step, std::span<std::int64_t> sum) {
    sum_.clipped(self().rows(), self().n_rows(), step, threshold_, sum);
  }
  void noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> released) {
    sum_.noisy(self().rows(), self().n_rows(), step, threshold_, noise_multiplier, released);
  }
  void release(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum,
               std::span<double> released) const {
    sum_.release(step, noise_multiplier, sum, released);
  }

 protected:
  PrivateSum sum_;
  SampleThreshold threshold_;

 private:
  friend Session;  // no other class can be built on this base
  SampledSession(const KernelTable& kernels, double sample_rate, double max_norm, const RandomKey& key, int n_threads)
      : sum_(kernels, max_norm, key, n_threads), threshold_(SampleThreshold::from_rate(sample_rate)) {}

  const Session& self() const { return static_cast<const Session&>(*this); }
};

}  // namespace dpinfer

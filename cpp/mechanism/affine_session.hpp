// A run over records whose gradients are affine in a few sufficient statistics: the conjugate models.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/aligned.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/sum/lattice.hpp"

namespace dpinfer {

class AffineSession {
 public:
  // `statistics` (n_rows x n_statistics, row-major) must outlive the session; `length` is that of a gradient.
  AffineSession(const KernelTable& kernels, std::span<const double> statistics, std::int64_t n_rows, int n_statistics,
                int length, double sample_rate, double max_grad_norm, const RandomKey& key, int n_threads);

  int length() const { return task_.length; }
  int n_statistics() const { return task_.n_statistics; }
  double effective_rate() const { return threshold_.effective_rate(); }
  double lattice_step() const { return lattice_.step; }

  // The preconditioned gradient of a record with statistics t is matrix t + offset; length x n_statistics, length.
  void set_map(std::span<const double> matrix, std::span<const double> offset);

  // The clipped, rounded gradient of one record with these statistics, in lattice steps.
  void contribution(std::span<const double> statistics, std::span<std::int64_t> gradient) const;

  // All write length() numbers.  add_noise turns a lattice sum into a released one.
  void clipped_sum(std::uint64_t step, std::span<std::int64_t> sum);
  void add_noise(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum,
                 std::span<double> noisy) const;
  void noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> noisy);

 private:
  const KernelTable& kernels_;
  const double* statistics_;
  std::int64_t n_rows_;
  RandomKey key_;
  SampleThreshold threshold_;
  Lattice lattice_;
  double noise_unit_;  // max_grad_norm in lattice steps
  int n_threads_;
  AffineTask task_{};
  AlignedVector<double> matrix_, offset_;
  AlignedVector<std::uint64_t> sums_;
  std::vector<std::int64_t> rows_;
};

}  // namespace dpinfer

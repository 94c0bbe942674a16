// A run over records whose gradients are affine in a few sufficient statistics: the conjugate models.
#pragma once

#include <cstdint>
#include <span>

#include "common/aligned.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

// Refers to the table, the task and the statistics (rows of task.n_statistics), which must outlive it.
class AffineRows final : public RowKernel {
 public:
  AffineRows(const KernelTable& kernels, const AffineTask& task, const double* statistics)
      : kernels_(kernels), task_(task), statistics_(statistics) {}

  int length() const override { return task_.length; }
  int scratch_length() const override { return task_.n_statistics * kRowGroup; }
  void add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept override;

 private:
  const KernelTable& kernels_;
  const AffineTask& task_;
  const double* statistics_;
};

class AffineSession : public SampledSession<AffineSession> {
 public:
  // `statistics` (n_rows x n_statistics, row-major) must outlive the session; `length` is that of a gradient.
  AffineSession(const KernelTable& kernels, std::span<const double> statistics, std::int64_t n_rows, int n_statistics,
                int length, double sample_rate, double max_grad_norm, const RandomKey& key, int n_threads);

  int length() const { return task_.length; }
  int n_statistics() const { return task_.n_statistics; }
  std::int64_t n_rows() const { return n_rows_; }
  AffineRows rows() const { return {sum_.kernels(), task_, statistics_}; }

  // The preconditioned gradient of a record with statistics t is matrix t + offset; length x n_statistics, length.
  void set_map(std::span<const double> matrix, std::span<const double> offset);

  // The clipped, rounded gradient of one record with these statistics, in lattice steps.
  void contribution(std::span<const double> statistics, std::span<std::int64_t> gradient) const;

 private:
  const double* statistics_;
  std::int64_t n_rows_;
  AlignedVector<double> matrix_, offset_;
  AffineTask task_;
};

}  // namespace dpinfer

// Gradients of generalised linear models as a row kernel.
#pragma once

#include <cstdint>

#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/sum/row_kernel.hpp"

namespace dpinfer {

// Refers to the table and the task, which must outlive it.  Released order: loc of every parameter, the noise
// variance's behind the weights', then raw_scale unless gradients are aligned.
class GlmRows final : public RowKernel {
 public:
  GlmRows(const KernelTable& kernels, const GradientTask& task) : kernels_(kernels), task_(task) {}

  int length() const override {
    const int n = task_.n_coef + (task_.has_dispersion ? 1 : 0);
    return task_.has_raw ? 2 * n : n;
  }
  int sums_length() const override { return task_.sums_length(); }
  int scratch_length() const override { return task_.scratch_length(); }
  void add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept override {
    kernels_.clipped_rows(task_, batch.rows, batch.count, batch.available, scratch, sums);
  }
  void collect(const std::uint64_t* sums, std::uint64_t* total) const noexcept override;

 private:
  const KernelTable& kernels_;
  const GradientTask& task_;
};

}  // namespace dpinfer

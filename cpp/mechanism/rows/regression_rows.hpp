// The records of a regression as sources of second moments, weighted scores and curvatures in whitened coordinates.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/aligned.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/sum/partial_sum.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

// Functions of the linear predictor on an even grid; see RegressionTask.
struct PredictorTable {
  std::span<const double> centre;
  std::span<const double> slope;  // as long as centre, at least 2
  double first_node = 0.0;
  double spacing = 1.0;
};

// The public inputs of a pass; see RegressionTask.
struct RegressionPass {
  RegressionOutput output = RegressionOutput::moments;
  Likelihood link = Likelihood::gaussian;
  bool is_derivative = false;
  std::span<const double> transform;  // n_directions x n_coef
  int n_directions = 0;
  std::span<const double> loc;  // n_coef
  double bound = 0.0;           // B
  double residual_bound = 0.0;
  double weight_bound = std::numeric_limits<double>::infinity();
  double scale_weight = 0.0;
  double scale_unit = 1.0;
  double scale_centre = 0.0;
  PredictorTable table;
  std::span<const double> edges;  // of sizes
};

// What kernels read, for dense records: it points into the records and the pass.
RegressionTask regression_task(const Records& records, const RegressionPass& pass, const Lattice& lattice);

class RegressionKernel final : public RowKernel {
 public:
  // The table, the records and what the pass refers to must outlive this.
  RegressionKernel(const KernelTable& kernels, const Records& records, const RegressionPass& pass,
                   const Lattice& lattice);

  int length() const override { return task_.released_length(); }
  int sums_length() const override { return task_.sums_length(); }
  int scratch_length() const override { return task_.scratch_length(); }
  void add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept override {
    kernels_.regression_rows(task_, batch.rows, batch.count, scratch, sums);
  }
  void collect(const std::uint64_t* sums, std::uint64_t* total) const noexcept override;

 private:
  const KernelTable& kernels_;
  RegressionTask task_;
  AlignedVector<double> by_column_;  // what the task points to
};

}  // namespace dpinfer

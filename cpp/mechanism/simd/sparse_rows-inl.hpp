// Whitened features of sparse records: sums of rows of the transform's transpose, at the cost of the non-zeros.
//
// Every direction adds the products of a record's non-zeros up in the order of their columns, each with one rounding,
// as the dense rows do: and a feature that is zero leaves those sums as they are.  So the numbers are the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "mechanism/simd/regression_task.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// So many sums of eight directions stay in registers.
inline constexpr int kSparseBlock = 8 / kParts;

template <typename Scalar>
struct SparseRow {
  const Scalar* values;
  const std::int32_t* columns;
  std::int64_t size;
};

// kVectors times eight directions of one record, of which `by_column` has the first.
template <int kVectors, typename Scalar>
DPINFER_INLINE void whiten_block(const RegressionTask& task, const SparseRow<Scalar>& row, const double* by_column,
                                 double* z) {
  const std::ptrdiff_t pad = task.padded_directions();
  Vec sum[kVectors];
  for (int i = 0; i < kVectors; ++i) sum[i] = splat(0.0);
  for (std::int64_t at = 0; at < row.size; ++at) {
    const double* const weights = by_column + row.columns[at] * pad;
    const Vec x = splat(static_cast<double>(row.values[at]));
    for (int i = 0; i < kVectors; ++i) sum[i] = fused(load(weights + i * kLanes), x, sum[i]);
  }
  if (task.records.has_intercept) {
    const double* const weights = by_column + task.records.n_features * pad;
    for (int i = 0; i < kVectors; ++i) sum[i] = sum[i] + load(weights + i * kLanes);
  }
  for (int i = 0; i < kVectors; ++i) store(z + i * kLanes, sum[i]);
}

// The last `count` < kVectors times eight directions.
template <int kVectors, typename Scalar>
DPINFER_INLINE void whiten_rest(const RegressionTask& task, const SparseRow<Scalar>& row, int count,
                                const double* by_column, double* z) {
  if constexpr (kVectors > 1) {
    if (count == kVectors - 1) {
      whiten_block<kVectors - 1>(task, row, by_column, z);
    } else {
      whiten_rest<kVectors - 1>(task, row, count, by_column, z);
    }
  }
}

// Eight records: their whitened features and behind these their predictors, padded, row by row.
template <typename Scalar>
DPINFER_NOINLINE void sparse_rows(const RegressionTask& task, const std::int64_t* listed, double* rows) {
  const Records& records = task.records;
  const int vectors = task.padded_directions() / kLanes;
  for (int r = 0; r < kLanes; ++r) {
    const std::int64_t start = records.starts[listed[r]];
    const SparseRow<Scalar> row{static_cast<const Scalar*>(records.features) + start, records.columns + start,
                                records.starts[listed[r] + 1] - start};
    double* const z = rows + static_cast<std::ptrdiff_t>(r) * task.padded_directions();
    int v = 0;
    for (; v + kSparseBlock <= vectors; v += kSparseBlock) {
      whiten_block<kSparseBlock>(task, row, task.by_column + v * kLanes, z + v * kLanes);
    }
    whiten_rest<kSparseBlock>(task, row, vectors - v, task.by_column + v * kLanes, z + v * kLanes);
  }
}

// Moves the predictors of such rows to `predictor`, leaving zeros; puts what is left of each record into a lane of its
// own; and returns the squares of the records' norms.
DPINFER_NOINLINE Vec lanes_of_rows(const RegressionTask& task, double* rows, double* lanes, Vec& predictor) {
  const std::ptrdiff_t pad = task.padded_directions();
  double predictors[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    double& place = rows[r * pad + task.n_directions];
    predictors[r] = place;
    place = 0.0;
  }
  predictor = load(predictors);
  Vec square = splat(0.0);
  for (std::ptrdiff_t k = 0; k < pad; k += kLanes) {
    Vec z[kLanes];
    for (int r = 0; r < kLanes; ++r) z[r] = load(rows + r * pad + k);
    double* const target = lanes + k * kLanes;
    store_transposed(target, kLanes, z);
    for (int i = 0; i < kLanes; ++i) {
      const Vec one = load(target + i * kLanes);
      square = fused(one, one, square);
    }
  }
  return square;
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

#include "mechanism/rows/regression_rows.hpp"

#include <algorithm>
#include <cstddef>

namespace dpinfer {

namespace {

// The transpose of a pass's transform with its point below it, in rows that are padded with zeros; empty for dense
// records, which do not need it.
AlignedVector<double> transposed(const Records& records, const RegressionPass& pass, int padded_directions) {
  if (!records.is_sparse()) return {};
  const auto n_coef = static_cast<std::size_t>(records.n_features) + (records.has_intercept ? 1U : 0U);
  const auto m = static_cast<std::size_t>(pass.n_directions);
  const auto padded = static_cast<std::size_t>(padded_directions);
  AlignedVector<double> by_column(n_coef * padded, 0.0);
  for (std::size_t k = 0; k <= m; ++k) {
    const double* const row = k < m ? pass.transform.data() + k * n_coef : pass.loc.data();
    for (std::size_t j = 0; j < n_coef; ++j) by_column[j * padded + k] = row[j];
  }
  return by_column;
}

// Whether most entries of a transform are zeros, so that what it makes of a sparse record is sparse.
bool is_mostly_zeros(const Records& records, const RegressionPass& pass) {
  if (!records.is_sparse() || pass.n_directions > kMostFewDirections) return false;
  const auto n_coef = static_cast<std::ptrdiff_t>(pass.transform.size()) / pass.n_directions;
  const auto zeros = std::count(pass.transform.begin(), pass.transform.end(), 0.0);
  return static_cast<std::ptrdiff_t>(pass.transform.size()) - zeros <= 2 * n_coef;
}

}  // namespace

RegressionTask regression_task(const Records& records, const RegressionPass& pass, const Lattice& lattice) {
  return {.records = records,
          .output = pass.output,
          .link = pass.link,
          .is_derivative = pass.is_derivative,
          .n_coef = records.n_features + (records.has_intercept ? 1 : 0),
          .n_directions = pass.n_directions,
          .transform = pass.transform.data(),
          .by_column = nullptr,
          .has_few = false,
          .loc = pass.loc.data(),
          .square_bound = pass.bound * pass.bound,
          .residual_bound = pass.residual_bound,
          .weight_bound = pass.weight_bound,
          .scale_weight = pass.scale_weight,
          .scale_unit = pass.scale_unit,
          .scale_centre = pass.scale_centre,
          .centre = pass.table.centre.data(),
          .slope = pass.table.slope.data(),
          .n_nodes = static_cast<int>(pass.table.centre.size()),
          .first_node = pass.table.first_node,
          .nodes_per_unit = 1.0 / pass.table.spacing,
          .edges = pass.edges.data(),
          .n_edges = static_cast<int>(pass.edges.size()),
          .unit = 1.0 / lattice.step,
          .clip_norm = lattice.clip_norm / lattice.step};
}

RegressionKernel::RegressionKernel(const KernelTable& kernels, const Records& records, const RegressionPass& pass,
                                   const Lattice& lattice)
    : kernels_(kernels),
      task_(regression_task(records, pass, lattice)),
      by_column_(transposed(records, pass, task_.padded_directions())) {
  task_.has_few = is_mostly_zeros(records, pass);
  task_.by_column = by_column_.data();
}

void RegressionKernel::collect(const std::uint64_t* sums, std::uint64_t* total) const noexcept {
  const int m = task_.n_directions;
  if (task_.is_matrix()) {
    for (int i = 0; i < m; ++i) {
      const std::uint64_t* row = sums + task_.triangle_offset(i);
      for (int j = i; j < m; ++j) *total++ += row[j - i / kRowGroup * kRowGroup];
    }
    return;
  }
  if (task_.is_size()) {
    for (int k = 0; k < task_.released_length(); ++k) total[k] += sums[k];
    return;
  }
  for (int k = 0; k < m; ++k) total[k] += sums[k];
  if (task_.scale_weight == 0.0) return;
  for (int lane = 0; lane < kRowGroup; ++lane) total[m] += sums[task_.padded_directions() + lane];
}

}  // namespace dpinfer

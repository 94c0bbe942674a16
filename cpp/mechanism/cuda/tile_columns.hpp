// What a pass in tiles needs beside the records: for the GPU and for the emulation of it.
#pragma once

#include <cstddef>
#include <vector>

#include "mechanism/rows/regression_rows.hpp"

namespace dpinfer {

// n_coef x (n_directions + 1): the transpose of the pass's transform, with its point behind it.
inline std::vector<double> tile_columns(const RegressionPass& pass) {
  const auto m = static_cast<std::size_t>(pass.n_directions);
  const std::size_t n_coef = pass.transform.size() / m;
  std::vector<double> columns(n_coef * (m + 1));
  for (std::size_t j = 0; j < n_coef; ++j) {
    for (std::size_t k = 0; k < m; ++k) columns[j * (m + 1) + k] = pass.transform[k * n_coef + j];
    columns[j * (m + 1) + m] = pass.loc[j];
  }
  return columns;
}

}  // namespace dpinfer

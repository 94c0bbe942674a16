// The private rows of a regression, and the likelihoods of their responses.
#pragma once

#include <cstdint>

namespace dpinfer {

// Rows are processed in groups of this many, one per vector lane, wherever a row needs scalars (the expectations).
inline constexpr int kRowGroup = 8;

enum class Likelihood { logistic, probit, gaussian, poisson };

// As the caller holds them: row-major, contiguous, never copied as a whole.
struct Records {
  const void* features;  // float64 or float32: n_rows x n_features, or the numbers that may not be zero, row by row
  const double* response;
  std::int64_t n_rows;
  int n_features;
  bool is_float32;
  bool has_intercept;  // a constant 1 is appended to each row as it is read

  // Sparse rows (regression_rows alone reads them): row i's numbers are those from starts[i] to starts[i + 1], and
  // columns says where each stands.  nullptr: dense.
  const std::int32_t* columns = nullptr;
  const std::int64_t* starts = nullptr;

  // Survey weights (regression_rows alone reads them), finite and at least 0.  nullptr: all are 1.
  const double* weights = nullptr;

  constexpr bool is_sparse() const { return starts != nullptr; }
};

}  // namespace dpinfer

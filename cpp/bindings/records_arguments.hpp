// The rows of a regression as an argument.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "bindings/array_arguments.hpp"
#include "mechanism/simd/records.hpp"
#include "mechanism/sum/lattice.hpp"

namespace dpinfer::bindings {

inline const void* features_data(const pybind11::array& features) {
  namespace py = pybind11;
  if (py::isinstance<Array<float>>(features)) {
    return aligned_data("features", py::reinterpret_borrow<Array<float>>(features));
  }
  if (py::isinstance<Array<double>>(features)) {
    return aligned_data("features", py::reinterpret_borrow<Array<double>>(features));
  }
  throw py::type_error("features must be a C-contiguous float64 or float32 array");
}

// What the kernels read; the arrays must outlive it.
inline Records regression_records(const pybind11::array& features, const Array<double>& response, bool intercept) {
  namespace py = pybind11;
  const void* const rows = features_data(features);
  if (features.ndim() != 2 || response.ndim() != 1 || features.shape(0) != response.shape(0)) {
    throw py::value_error("features must be (n, p) and response (n,)");
  }
  if (features.shape(1) < 1 || features.shape(1) >= kMaxLatticeDimension / 2 - 2) {
    throw py::value_error("features must have between 1 and 2**19 - 3 columns");
  }
  return {rows,
          aligned_data("response", response),
          features.shape(0),
          static_cast<int>(features.shape(1)),
          py::isinstance<Array<float>>(features),
          intercept};
}

// The same of sparse rows: `values` where `columns` says, those of row i from starts[i] to starts[i + 1].  A kernel
// reads the transform's rows where the columns say, so every one of them is checked.
inline Records sparse_records(const pybind11::array& values, const Array<double>& response,
                              const Array<std::int32_t>& columns, const Array<std::int64_t>& starts, int n_features,
                              bool intercept) {
  namespace py = pybind11;
  const void* const numbers = features_data(values);
  if (values.ndim() != 1 || columns.ndim() != 1 || columns.shape(0) != values.shape(0)) {
    throw py::value_error("features and columns of sparse rows must be (n_values,)");
  }
  if (starts.ndim() != 1 || response.ndim() != 1 || starts.shape(0) != response.shape(0) + 1) {
    throw py::value_error("response must be (n,) and starts (n + 1,)");
  }
  if (n_features < 1 || n_features >= kMaxLatticeDimension / 2 - 2) {
    throw py::value_error("n_features must be between 1 and 2**19 - 3");
  }
  const std::span<const std::int32_t> places = flat("columns", columns, columns.size());
  const std::span<const std::int64_t> first = flat("starts", starts, starts.size());
  if (first.front() != 0 || first.back() != values.shape(0) || !std::is_sorted(first.begin(), first.end())) {
    throw py::value_error("starts must increase from 0 to the number of values");
  }
  // No branch in the loop: it is as long as there are numbers.
  bool inside = true;
  for (const std::int32_t place : places)
    inside &= static_cast<std::uint32_t>(place) < static_cast<std::uint32_t>(n_features);
  if (!inside) throw py::value_error("columns must be in [0, n_features)");
  return {.features = numbers,
          .response = aligned_data("response", response),
          .n_rows = response.shape(0),
          .n_features = n_features,
          .is_float32 = py::isinstance<Array<float>>(values),
          .has_intercept = intercept,
          .columns = places.data(),
          .starts = first.data()};
}

inline Likelihood likelihood_from_name(const std::string& name) {
  if (name == "logistic") return Likelihood::logistic;
  if (name == "probit") return Likelihood::probit;
  if (name == "gaussian") return Likelihood::gaussian;
  if (name == "poisson") return Likelihood::poisson;
  throw pybind11::value_error("likelihood must be one of 'logistic', 'probit', 'gaussian', 'poisson'");
}

}  // namespace dpinfer::bindings

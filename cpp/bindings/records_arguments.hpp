// The rows of a regression as an argument.
#pragma once

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

inline Likelihood likelihood_from_name(const std::string& name) {
  if (name == "logistic") return Likelihood::logistic;
  if (name == "probit") return Likelihood::probit;
  if (name == "gaussian") return Likelihood::gaussian;
  if (name == "poisson") return Likelihood::poisson;
  throw pybind11::value_error("likelihood must be one of 'logistic', 'probit', 'gaussian', 'poisson'");
}

}  // namespace dpinfer::bindings

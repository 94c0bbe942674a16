// PartialSum and RegressionRows as Python sees them: every argument is checked again here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/records_arguments.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/given_rows.hpp"
#include "mechanism/rows/regression_rows.hpp"
#include "mechanism/sum/partial_sum.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

inline PartialSum make_partial_sum(int length, double max_norm) {
  if (length < 1 || length > kMaxLatticeDimension) throw py::value_error("length must be in [1, 2**20]");
  check_norm("max_norm", max_norm);
  return {length, max_norm};
}

// Runs add(integers) on memory of its own without the interpreter's lock, and takes the result in under it: sums may be
// added to from many threads.
template <typename Add>
void add_part(PartialSum& sum, std::int64_t n_rows, const Add& add) {
  sum.count_rows(n_rows);
  std::vector<std::int64_t> part(static_cast<std::size_t>(sum.length()));
  {
    py::gil_scoped_release unlocked;
    add(std::span<std::int64_t>(part));
  }
  sum.merge(part);
}

template <typename Scalar>
void add_given_rows(PartialSum& sum, const Array<Scalar>& values, int n_threads,
                    const std::optional<Array<double>>& scale) {
  if (values.ndim() != 2 || values.shape(1) != sum.length()) {
    throw py::value_error("contributions must be (n, " + std::to_string(sum.length()) + ")");
  }
  const double* const factors = scale ? flat("scale", *scale, sum.length()).data() : nullptr;
  const GivenRows<Scalar> rows(aligned_data("contributions", values), sum.length(), factors);
  const ClippedContributions kernel(kernels(), rows, sum.lattice());
  const SampledRows everything{{}, 0, SampleThreshold::from_rate(1.0), values.shape(0)};
  add_part(sum, values.shape(0), [&](std::span<std::int64_t> part) {
    SumWorkspace workspace;
    add_sampled_rows(kernels(), kernel, everything, n_threads, workspace, part);
  });
}

inline void add_contributions(PartialSum& sum, const py::array& contributions, int n_threads,
                              const std::optional<Array<double>>& scale) {
  if (n_threads < 0) throw py::value_error("n_threads must be at least 0");
  if (py::isinstance<Array<float>>(contributions)) {
    add_given_rows(sum, py::reinterpret_borrow<Array<float>>(contributions), n_threads, scale);
  } else if (py::isinstance<Array<double>>(contributions)) {
    add_given_rows(sum, py::reinterpret_borrow<Array<double>>(contributions), n_threads, scale);
  } else {
    throw py::type_error("contributions must be a C-contiguous float64 or float32 array");
  }
}

inline py::array_t<double> partial_noisy_sum(const PartialSum& sum, const py::bytes& key, std::uint64_t step,
                                             double noise_multiplier) {
  check_noise(noise_multiplier);
  const RandomKey parsed = random_key(key);
  return filled<double>(sum.length(), [&, copy = sum](std::span<double> released) {
    copy.noisy(kernels(), parsed, step, noise_multiplier, released);
  });
}

// Keeps the caller's arrays alive for as long as they are read.
struct PyRegressionRows {
  py::array features;
  Array<double> response;
  std::optional<Array<std::int32_t>> columns;  // of the numbers of sparse rows, as the next
  std::optional<Array<std::int64_t>> starts;
  std::optional<Array<double>> weights;
  Records records;
  SampledRows sample;
  int n_threads;

  int n_coef() const { return records.n_features + (records.has_intercept ? 1 : 0); }
};

inline Records rows_of_arguments(const py::array& features, const Array<double>& response, bool intercept,
                                 const std::optional<Array<std::int32_t>>& columns,
                                 const std::optional<Array<std::int64_t>>& starts, std::optional<int> n_features) {
  if (!columns && !starts && !n_features) return regression_records(features, response, intercept);
  if (!columns || !starts || !n_features) {
    throw py::value_error("columns, starts and n_features must be given together");
  }
  return sparse_records(features, response, *columns, *starts, *n_features, intercept);
}

inline std::span<const double> finite(const char* name, const Array<double>& array, py::ssize_t length) {
  const std::span<const double> values = flat(name, array, length);
  if (!std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); })) {
    throw py::value_error(std::string(name) + " must be finite");
  }
  return values;
}

inline PyRegressionRows make_regression_rows(const py::array& features, const Array<double>& response, bool intercept,
                                             std::int64_t first_row, int n_threads,
                                             std::optional<Array<std::int32_t>> columns,
                                             std::optional<Array<std::int64_t>> starts, std::optional<int> n_features,
                                             std::optional<Array<double>> weights) {
  Records records = rows_of_arguments(features, response, intercept, columns, starts, n_features);
  if (weights) {
    const std::span<const double> given = finite("weights", *weights, records.n_rows);
    if (std::any_of(given.begin(), given.end(), [](double value) { return value < 0.0; })) {
      throw py::value_error("weights must be at least 0");
    }
    records.weights = given.data();
  }
  if (n_threads < 0) throw py::value_error("n_threads must be at least 0");
  if (first_row < 0 || first_row % kRowBlock != 0 || first_row + records.n_rows > (std::int64_t{1} << 31)) {
    throw py::value_error("first_row must be a multiple of 1024, and rows must be at most 2**31");
  }
  const SampledRows everything{{}, 0, SampleThreshold::from_rate(1.0), records.n_rows, first_row / kRowBlock};
  return {features,           response, std::move(columns), std::move(starts),
          std::move(weights), records,  everything,         n_threads};
}

inline void sample_rows(PyRegressionRows& self, const py::bytes& key, std::uint64_t step, double sample_rate) {
  check_rate(sample_rate);
  self.sample.key = random_key(key);
  self.sample.step = step;
  self.sample.threshold = SampleThreshold::from_rate(sample_rate);
}

// What every pass has: whitened coordinates and the bound on them.
template <typename Rows>
RegressionPass make_pass(const Rows& self, RegressionOutput output, const Array<double>& transform, double bound) {
  if (transform.ndim() != 2 || transform.shape(0) < 1 || transform.shape(1) != self.n_coef()) {
    throw py::value_error("transform must be (m, " + std::to_string(self.n_coef()) + ")");
  }
  if (transform.shape(0) > 1447) throw py::value_error("transform must have at most 1447 rows");
  if (!(bound > 0.0)) throw py::value_error("bound must be positive");
  RegressionPass pass;
  pass.output = output;
  pass.transform = finite("transform", transform, transform.size());
  pass.n_directions = static_cast<int>(transform.shape(0));
  pass.bound = bound;
  return pass;
}

inline void check_length(const PartialSum& sum, int length) {
  if (sum.length() == length) return;
  throw py::value_error("sum must have length " + std::to_string(length) + ", got " + std::to_string(sum.length()));
}

// Passes call this for rows of a kind.
inline void add_pass(const PyRegressionRows& self, PartialSum& sum, const RegressionPass& pass) {
  const RegressionKernel kernel(kernels(), self.records, pass, sum.lattice());
  check_length(sum, kernel.length());
  add_part(sum, self.records.n_rows, [&](std::span<std::int64_t> part) {
    SumWorkspace workspace;
    add_sampled_rows(kernels(), kernel, self.sample, self.n_threads, workspace, part);
  });
}

template <typename Rows>
void add_second_moments(const Rows& self, PartialSum& sum, const Array<double>& transform, double bound) {
  RegressionPass pass = make_pass(self, RegressionOutput::moments, transform, bound);
  const std::vector<double> zero(static_cast<std::size_t>(self.n_coef()));
  pass.loc = zero;
  add_pass(self, sum, pass);
}

// A link, the point at which residuals are taken, their bound, and what is tabulated of them.
struct PyResiduals {
  Likelihood link;
  bool is_derivative;
  std::vector<double> loc, centre, slope;
  double bound, first_node, spacing, weight_bound;
};

inline PyResiduals make_residuals(const std::string& link, const Array<double>& loc, double bound,
                                  const Array<double>& centre, const Array<double>& slope, double first_node,
                                  double spacing, double weight_bound) {
  if (!(weight_bound > 0.0)) throw py::value_error("weight_bound must be positive");
  if (std::isfinite(weight_bound) && link != "logistic" && link != "probit_score") {
    throw py::value_error("weight_bound must be infinite but for the scores of yes/no responses");
  }
  if (!(bound > 0.0)) throw py::value_error("bound must be positive");
  if (centre.size() == 1 || centre.size() != slope.size() || centre.size() > (1 << 24)) {
    throw py::value_error("centre and slope must be of one length, 0 or at least 2");
  }
  if (!std::isfinite(first_node) || !(spacing > 0.0 && std::isfinite(spacing))) {
    throw py::value_error("first_node must be finite, and spacing positive");
  }
  const auto copy = [](std::span<const double> values) { return std::vector<double>(values.begin(), values.end()); };
  const bool is_derivative = link == "probit_score";
  return {is_derivative ? Likelihood::probit : likelihood_from_name(link),
          is_derivative,
          copy(finite("loc", loc, loc.size())),
          copy(finite("centre", centre, centre.size())),
          copy(finite("slope", slope, slope.size())),
          bound,
          first_node,
          spacing,
          weight_bound};
}

template <typename Rows>
void set_residuals(RegressionPass& pass, const Rows& self, const PyResiduals& residuals) {
  if (residuals.loc.size() != static_cast<std::size_t>(self.n_coef())) {
    throw py::value_error("residuals must be at a point of " + std::to_string(self.n_coef()) + " coordinates");
  }
  pass.link = residuals.link;
  pass.is_derivative = residuals.is_derivative;
  pass.loc = residuals.loc;
  pass.residual_bound = residuals.bound;
  pass.weight_bound = residuals.weight_bound;
  pass.table = {residuals.centre, residuals.slope, residuals.first_node, residuals.spacing};
}

template <typename Rows>
void add_scores(const Rows& self, PartialSum& sum, const PyResiduals& residuals, const Array<double>& transform,
                double bound, double scale_weight, double scale_unit, double scale_centre) {
  if (!(scale_weight >= 0.0 && scale_weight <= 1e30)) throw py::value_error("scale_weight must be in [0, 1e30]");
  if (!(scale_unit > 0.0 && std::isfinite(scale_unit))) throw py::value_error("scale_unit must be positive");
  if (!(scale_centre >= 0.0 && scale_centre <= 1.0)) throw py::value_error("scale_centre must be in [0, 1]");
  RegressionPass pass = make_pass(self, RegressionOutput::scores, transform, bound);
  set_residuals(pass, self, residuals);
  pass.scale_weight = scale_weight;
  pass.scale_unit = scale_unit;
  pass.scale_centre = scale_centre;
  add_pass(self, sum, pass);
}

template <RegressionOutput kOutput, typename Rows>
void add_matrix(const Rows& self, PartialSum& sum, const PyResiduals& residuals, const Array<double>& transform,
                double bound) {
  RegressionPass pass = make_pass(self, kOutput, transform, bound);
  set_residuals(pass, self, residuals);
  add_pass(self, sum, pass);
}

// Indicators of how large scores or curvatures are, between edges that increase.
template <RegressionOutput kOutput, typename Rows>
void add_sizes(const Rows& self, PartialSum& sum, const PyResiduals& residuals, const Array<double>& transform,
               double bound, const Array<double>& edges) {
  RegressionPass pass = make_pass(self, kOutput, transform, bound);
  set_residuals(pass, self, residuals);
  pass.edges = finite("edges", edges, edges.size());
  if (pass.edges.empty() || pass.edges.size() > 4096 || !std::is_sorted(pass.edges.begin(), pass.edges.end())) {
    throw py::value_error("edges must be 1 to 4096 numbers that increase");
  }
  add_pass(self, sum, pass);
}

// What rows of every kind can do.
template <typename Rows>
void define_passes(py::class_<Rows>& rows) {
  rows.def("add_second_moments", &add_second_moments<Rows>, StandardArithmetic(), "total"_a, py::kw_only(),
           exact("transform"), "bound"_a)
      .def("add_scores", &add_scores<Rows>, StandardArithmetic(), "total"_a, "residuals"_a, py::kw_only(),
           exact("transform"), "bound"_a, "scale_weight"_a = 0.0, "scale_unit"_a = 1.0, "scale_centre"_a = 0.0)
      .def("add_curvature", &add_matrix<RegressionOutput::curvature, Rows>, StandardArithmetic(), "total"_a,
           "residuals"_a, py::kw_only(), exact("transform"), "bound"_a)
      .def("add_score_products", &add_matrix<RegressionOutput::squares, Rows>, StandardArithmetic(), "total"_a,
           "residuals"_a, py::kw_only(), exact("transform"), "bound"_a)
      .def("add_score_sizes", &add_sizes<RegressionOutput::score_sizes, Rows>, StandardArithmetic(), "total"_a,
           "residuals"_a, py::kw_only(), exact("transform"), "bound"_a, exact("edges"))
      .def("add_curvature_sizes", &add_sizes<RegressionOutput::curvature_sizes, Rows>, StandardArithmetic(), "total"_a,
           "residuals"_a, py::kw_only(), exact("transform"), "bound"_a, exact("edges"))
      .def_property_readonly("n_coef", &Rows::n_coef);
}

}  // namespace dpinfer::bindings

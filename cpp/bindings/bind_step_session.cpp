// StepSession and AffineSession as Python sees them: every argument is checked again here, whatever the Python layer
// has checked.
#include <memory>
#include <string>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/records_arguments.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/affine_session.hpp"
#include "mechanism/rows/step_session.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

// Keeps the caller's arrays alive for as long as the session reads them.
struct PySession {
  py::array features;
  Array<double> response;
  StepSession session;
  bool aligned;
  bool has_scales = false;
  bool has_expectation = false;

  void check_ready() const {
    if (!has_scales || !has_expectation) {
      throw py::value_error("set_scales and one of set_quadrature and set_draws must be called before a sum");
    }
  }
};

std::unique_ptr<PySession> make_session(const py::array& features, const Array<double>& response,
                                        const std::string& likelihood, bool intercept, bool aligned, double sample_rate,
                                        double max_grad_norm, const py::bytes& key, int n_threads) {
  const Records records = regression_records(features, response, intercept);
  check_rate(sample_rate);
  check_norm("max_grad_norm", max_grad_norm);
  return std::make_unique<PySession>(
      PySession{features, response,
                StepSession(kernels(), records, likelihood_from_name(likelihood), aligned, sample_rate, max_grad_norm,
                            random_key(key), n_threads),
                aligned});
}

void set_scales(PySession& self, const Array<double>& scale, const Array<double>& offset) {
  const int n = self.session.length();
  self.session.set_scales(flat("scale", scale, n), flat("offset", offset, n));
  self.has_scales = true;
}

void set_quadrature(PySession& self, const Array<double>& loc, const Array<double>& variance,
                    const Array<double>& nodes, const Array<double>& weights, const Array<double>& moments) {
  if (self.aligned) throw py::value_error("an aligned session must be given draws");
  const int n = self.session.n_coef();
  self.session.set_quadrature(flat("loc", loc, n), flat("variance", variance, n), flat("nodes", nodes, nodes.size()),
                              flat("weights", weights, nodes.size()),
                              flat("moments", moments, self.session.has_dispersion() ? 5 : 0));
  self.has_expectation = true;
}

void set_draws(PySession& self, const Array<double>& draws, const Array<double>& standard,
               const Array<double>& dispersion) {
  if (draws.ndim() != 2 || draws.shape(0) < 1) throw py::value_error("draws must be (n_draws, n_coef)");
  const py::ssize_t n = draws.shape(0) * self.session.n_coef();
  self.session.set_draws(static_cast<int>(draws.shape(0)), flat("draws", draws, n), flat("standard", standard, n),
                         flat("dispersion", dispersion, self.session.has_dispersion() ? 3 * draws.shape(0) : 0));
  self.has_expectation = true;
}

// Keeps the caller's array alive for as long as the session reads it.
struct PyAffineSession {
  Array<double> statistics;
  AffineSession session;
};

std::unique_ptr<PyAffineSession> make_affine_session(const Array<double>& statistics, int length, double sample_rate,
                                                     double max_grad_norm, const py::bytes& key, int n_threads) {
  if (statistics.ndim() != 2) throw py::value_error("statistics must be (n, s)");
  if (statistics.shape(1) < 1 || statistics.shape(1) > kMaxStatistics) {
    throw py::value_error("statistics must have between 1 and " + std::to_string(kMaxStatistics) + " columns");
  }
  if (length < 1 || length > kMaxAffineLength) {
    throw py::value_error("length must be in [1, " + std::to_string(kMaxAffineLength) + "]");
  }
  check_rate(sample_rate);
  check_norm("max_grad_norm", max_grad_norm);
  return std::make_unique<PyAffineSession>(
      PyAffineSession{statistics, AffineSession(kernels(), flat("statistics", statistics, statistics.size()),
                                                statistics.shape(0), static_cast<int>(statistics.shape(1)), length,
                                                sample_rate, max_grad_norm, random_key(key), n_threads)});
}

void set_map(PyAffineSession& self, const Array<double>& matrix, const Array<double>& offset) {
  const int length = self.session.length();
  if (matrix.ndim() != 2 || matrix.shape(0) != length) throw py::value_error("matrix must be (length, s)");
  self.session.set_map(flat("matrix", matrix, py::ssize_t{length} * self.session.n_statistics()),
                       flat("offset", offset, length));
}

}  // namespace

void bind_step_session(py::module_& module) {
  py::class_<PySession> session(module, "StepSession", py::module_local());
  session
      .def(py::init(&make_session), StandardArithmetic(), py::kw_only(), exact("features"), exact("response"),
           "likelihood"_a, "intercept"_a, "aligned"_a, "sample_rate"_a, "max_grad_norm"_a, "key"_a, "n_threads"_a)
      .def("set_scales", &set_scales, StandardArithmetic(), exact("scale"), exact("offset"))
      .def("set_quadrature", &set_quadrature, StandardArithmetic(), exact("loc"), exact("variance"), exact("nodes"),
           exact("weights"), exact("moments"))
      .def("set_draws", &set_draws, StandardArithmetic(), exact("draws"), exact("standard"), exact("dispersion"))
      .def_property_readonly("released_length", [](const PySession& self) { return self.session.length(); });
  define_sums(session);
}

void bind_affine_session(py::module_& module) {
  py::class_<PyAffineSession> session(module, "AffineSession", py::module_local());
  session
      .def(py::init(&make_affine_session), StandardArithmetic(), py::kw_only(), exact("statistics"), "length"_a,
           "sample_rate"_a, "max_grad_norm"_a, "key"_a, "n_threads"_a)
      .def("set_map", &set_map, StandardArithmetic(), exact("matrix"), exact("offset"))
      .def_property_readonly("length", [](const PyAffineSession& self) { return self.session.length(); });
  define_sums(session);
}

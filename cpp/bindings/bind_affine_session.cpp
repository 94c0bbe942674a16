// AffineSession as Python sees it: every argument is checked again here, whatever the Python layer has checked.
#include <cstdint>
#include <memory>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/affine_session.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

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

void bind_affine_session(py::module_& module) {
  py::class_<PyAffineSession> session(module, "AffineSession", py::module_local());
  session
      .def(py::init(&make_affine_session), StandardArithmetic(), py::kw_only(), py::arg("statistics").noconvert(),
           py::arg("length"), py::arg("sample_rate"), py::arg("max_grad_norm"), py::arg("key"), py::arg("n_threads"))
      .def("set_map", &set_map, StandardArithmetic(), py::arg("matrix").noconvert(), py::arg("offset").noconvert())
      .def_property_readonly("length", [](const PyAffineSession& self) { return self.session.length(); });
  define_sums(session);
}

#include <pybind11/stl.h>

#include <limits>

#include "bindings/regression_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

void bind_partial_sum(py::module_& module) {
  py::class_<PartialSum>(module, "PartialSum", py::module_local())
      .def(py::init(&make_partial_sum), StandardArithmetic(), py::kw_only(), py::arg("length"), py::arg("max_norm"))
      .def("add_contributions", &add_contributions, StandardArithmetic(), py::arg("contributions").noconvert(),
           py::arg("n_threads") = 1, py::arg("scale").noconvert() = py::none())
      .def(
          "merge",
          [](PartialSum& self, const Array<std::int64_t>& integers) {
            self.merge(flat("integers", integers, self.length()));
          },
          StandardArithmetic(), py::arg("integers").noconvert())
      .def("noisy_sum", &partial_noisy_sum, StandardArithmetic(), py::arg("key"), py::arg("step"),
           py::arg("noise_multiplier"))
      .def_property_readonly("integers",
                             [](const PartialSum& self) {
                               const std::span<const std::int64_t> sum = self.integers();
                               return py::array_t<std::int64_t>(static_cast<py::ssize_t>(sum.size()), sum.data());
                             })
      .def_property_readonly("length", &PartialSum::length)
      .def_property_readonly("max_norm", &PartialSum::max_norm)
      .def_property_readonly("lattice_step", [](const PartialSum& self) { return self.lattice().step; });
}

void bind_regression_rows(py::module_& module) {
  py::class_<PyResiduals>(module, "Residuals", py::module_local())
      .def(py::init(&make_residuals), StandardArithmetic(), py::kw_only(), py::arg("link"), py::arg("loc").noconvert(),
           py::arg("bound") = std::numeric_limits<double>::infinity(), py::arg("centre").noconvert() = Array<double>(0),
           py::arg("slope").noconvert() = Array<double>(0), py::arg("first_node") = 0.0, py::arg("spacing") = 1.0);
  py::class_<PyRegressionRows> rows(module, "RegressionRows", py::module_local());
  rows.def(py::init(&make_regression_rows), StandardArithmetic(), py::kw_only(), py::arg("features").noconvert(),
           py::arg("response").noconvert(), py::arg("intercept"), py::arg("first_row") = 0, py::arg("n_threads") = 1,
           py::arg("columns").noconvert() = py::none(), py::arg("starts").noconvert() = py::none(),
           py::arg("n_features") = py::none(), py::arg("weights").noconvert() = py::none())
      .def("sample", &sample_rows, StandardArithmetic(), py::arg("key"), py::arg("step"), py::arg("sample_rate"));
  define_passes(rows);
}

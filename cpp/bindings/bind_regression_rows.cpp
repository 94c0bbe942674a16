#include <pybind11/stl.h>

#include <limits>

#include "bindings/regression_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

void bind_partial_sum(py::module_& module) {
  py::class_<PartialSum>(module, "PartialSum", py::module_local())
      .def(py::init(&make_partial_sum), StandardArithmetic(), py::kw_only(), "length"_a, "max_norm"_a)
      .def("add_contributions", &add_contributions, StandardArithmetic(), exact("contributions"), "n_threads"_a = 1,
           exact("scale") = py::none())
      .def(
          "merge",
          [](PartialSum& self, const Array<std::int64_t>& integers) {
            self.merge(flat("integers", integers, self.length()));
          },
          StandardArithmetic(), exact("integers"))
      .def("noisy_sum", &partial_noisy_sum, StandardArithmetic(), "key"_a, "step"_a, "noise_multiplier"_a)
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
      .def(py::init(&make_residuals), StandardArithmetic(), py::kw_only(), "link"_a, exact("loc"),
           "bound"_a = std::numeric_limits<double>::infinity(), exact("centre") = Array<double>(0),
           exact("slope") = Array<double>(0), "first_node"_a = 0.0, "spacing"_a = 1.0,
           "weight_bound"_a = std::numeric_limits<double>::infinity());
  py::class_<PyRegressionRows> rows(module, "RegressionRows", py::module_local());
  rows.def(py::init(&make_regression_rows), StandardArithmetic(), py::kw_only(), exact("features"), exact("response"),
           "intercept"_a, "first_row"_a = 0, "n_threads"_a = 1, exact("columns") = py::none(),
           exact("starts") = py::none(), "n_features"_a = py::none(), exact("weights") = py::none())
      .def("sample", &sample_rows, StandardArithmetic(), "key"_a, "step"_a, "sample_rate"_a);
  define_passes(rows);
}

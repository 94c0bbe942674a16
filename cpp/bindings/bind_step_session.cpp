#include "bindings/step_session_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;

void bind_step_session(py::module_& module) {
  py::class_<PySession> session(module, "StepSession", py::module_local());
  session
      .def(py::init(&make_session), StandardArithmetic(), py::kw_only(), py::arg("features").noconvert(),
           py::arg("response").noconvert(), py::arg("likelihood"), py::arg("intercept"), py::arg("aligned"),
           py::arg("sample_rate"), py::arg("max_grad_norm"), py::arg("key"), py::arg("n_threads"))
      .def("set_scales", &set_scales, StandardArithmetic(), py::arg("scale").noconvert(), py::arg("offset").noconvert())
      .def("set_quadrature", &set_quadrature, StandardArithmetic(), py::arg("loc").noconvert(),
           py::arg("variance").noconvert(), py::arg("nodes").noconvert(), py::arg("weights").noconvert(),
           py::arg("moments").noconvert())
      .def("set_draws", &set_draws, StandardArithmetic(), py::arg("draws").noconvert(), py::arg("standard").noconvert(),
           py::arg("dispersion").noconvert())
      .def_property_readonly("released_length", [](const PySession& self) { return self.session.length(); });
  define_sums(session);
}

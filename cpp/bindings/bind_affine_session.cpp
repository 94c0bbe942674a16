#include "bindings/affine_session_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;

void bind_affine_session(py::module_& module) {
  py::class_<PyAffineSession> session(module, "AffineSession", py::module_local());
  session
      .def(py::init(&make_affine_session), StandardArithmetic(), py::kw_only(), py::arg("statistics").noconvert(),
           py::arg("length"), py::arg("sample_rate"), py::arg("max_grad_norm"), py::arg("key"), py::arg("n_threads"))
      .def("set_map", &set_map, StandardArithmetic(), py::arg("matrix").noconvert(), py::arg("offset").noconvert())
      .def_property_readonly("length", [](const PyAffineSession& self) { return self.session.length(); });
  define_sums(session);
}

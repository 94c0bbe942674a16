#include "bindings/network_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;

void bind_network(py::module_& module) {
  py::class_<PyNetworkSession> session(module, "NetworkSession", py::module_local());
  session
      .def(py::init(&make_network_session), StandardArithmetic(), py::kw_only(), py::arg("features").noconvert(),
           py::arg("response").noconvert(), py::arg("n_hidden"), py::arg("hidden_scale"), py::arg("output_scale"),
           py::arg("sample_rate"), py::arg("max_norm"), py::arg("key"), py::arg("n_threads"))
      .def("set_sites", &network_set_sites, StandardArithmetic(), py::arg("mean").noconvert(),
           py::arg("variance").noconvert(), py::arg("noise_variance"), py::arg("eta_weight"), py::arg("site_weight"),
           py::arg("noise_weight"), py::arg("site_norm"), py::arg("noise_limit"))
      .def("set_gradients", &network_set_gradients, StandardArithmetic(), py::arg("mean").noconvert(),
           py::arg("variance").noconvert(), py::arg("noise_variance"), py::arg("mean_scale").noconvert(),
           py::arg("variance_scale").noconvert(), py::arg("noise_weight"))
      .def("plain_sum", &network_plain_sum, StandardArithmetic(), py::arg("rows").noconvert(), py::arg("max_norm"))
      .def_property_readonly("length", [](const PyNetworkSession& self) { return self.session.length(); });
  define_sums(session);
}

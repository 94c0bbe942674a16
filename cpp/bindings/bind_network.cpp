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

  py::class_<PyNetworkPasses>(module, "NetworkPasses", py::module_local())
      .def(py::init(&make_network_passes), StandardArithmetic(), py::kw_only(), py::arg("features").noconvert(),
           py::arg("response").noconvert(), py::arg("n_hidden"), py::arg("own_sites"), py::arg("clip_norm"),
           py::arg("site_weight"), py::arg("eta").noconvert(), py::arg("precision").noconvert(),
           py::arg("prior_precision").noconvert(), py::arg("gamma").noconvert(), py::arg("prior_gamma").noconvert())
      .def("run", &network_passes_run, StandardArithmetic(), py::arg("rows").noconvert(), py::arg("share"),
           py::arg("step"))
      .def(
          "set_prior",
          [](PyNetworkPasses& self, const Array<double>& prior_precision) {
            self.passes.set_prior(flat("prior_precision", prior_precision, self.passes.n_params()));
          },
          StandardArithmetic(), py::arg("prior_precision").noconvert())
      .def("state", &network_passes_state, StandardArithmetic());
}

#include "bindings/network_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;

void bind_network(py::module_& module) {
  py::class_<PyNetworkSession> session(module, "NetworkSession", py::module_local());
  session
      .def(py::init(&make_network_session), StandardArithmetic(), py::kw_only(), exact("features"), exact("response"),
           "n_hidden"_a, "hidden_scale"_a, "output_scale"_a, "sample_rate"_a, "max_norm"_a, "key"_a, "n_threads"_a)
      .def("set_sites", &network_set_sites, StandardArithmetic(), exact("mean"), exact("variance"), "noise_variance"_a,
           "eta_weight"_a, "site_weight"_a, "noise_weight"_a, "site_norm"_a, "noise_limit"_a)
      .def("set_gradients", &network_set_gradients, StandardArithmetic(), exact("mean"), exact("variance"),
           "noise_variance"_a, exact("mean_scale"), exact("variance_scale"), "noise_weight"_a)
      .def("plain_sum", &network_plain_sum, StandardArithmetic(), exact("rows"), "max_norm"_a)
      .def_property_readonly("length", [](const PyNetworkSession& self) { return self.session.length(); });
  define_sums(session);
}

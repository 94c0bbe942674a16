#include <cstdint>
#include <memory>
#include <span>

#include "bindings/network_arguments.hpp"
#include "lab/network_passes.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

// Keeps the caller's arrays alive for as long as they are read.
struct PyNetworkPasses {
  Array<double> features;
  Array<double> response;
  NetworkPasses passes;
};

std::unique_ptr<PyNetworkPasses> make_network_passes(const Array<double>& features, const Array<double>& response,
                                                     int n_hidden, bool own_sites, double clip_norm, double site_weight,
                                                     const Array<double>& eta, const Array<double>& precision,
                                                     const Array<double>& prior_precision, const Array<double>& gamma,
                                                     const Array<double>& prior_gamma) {
  kernels();  // refuses an unknown variant
  const NetworkRecords records = network_records(features, response);
  const NetworkShape shape = network_shape(features, n_hidden);
  const int n = shape.n_params();
  return std::unique_ptr<PyNetworkPasses>(new PyNetworkPasses{
      features, response,
      NetworkPasses(*network_updates(), records, shape, own_sites, clip_norm, site_weight, flat("eta", eta, n),
                    flat("precision", precision, n), flat("prior_precision", prior_precision, n),
                    flat("gamma", gamma, 2), flat("prior_gamma", prior_gamma, 2))});
}

void network_passes_run(PyNetworkPasses& self, const Array<std::int64_t>& rows, double share, double step) {
  const std::span<const std::int64_t> list = listed_rows(rows, self.features.shape(0));
  py::gil_scoped_release unlocked;
  self.passes.run(list, share, step);
}

py::tuple network_passes_state(const PyNetworkPasses& self) {
  const int n = self.passes.n_params();
  py::array_t<double> eta(n);
  py::array_t<double> precision(n);
  py::array_t<double> gamma(2);
  const auto whole = [](py::array_t<double>& array) {
    return std::span<double>(array.mutable_data(), static_cast<std::size_t>(array.size()));
  };
  self.passes.state(whole(eta), whole(precision), whole(gamma));
  return py::make_tuple(eta, precision, gamma);
}

}  // namespace

void bind_network_passes(py::module_& module) {
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
      .def(
          "add",
          [](PyNetworkPasses& self, const Array<double>& eta, const Array<double>& precision) {
            self.passes.add(flat("eta", eta, self.passes.n_params()),
                            flat("precision", precision, self.passes.n_params()));
          },
          StandardArithmetic(), py::arg("eta").noconvert(), py::arg("precision").noconvert())
      .def("state", &network_passes_state, StandardArithmetic());
}

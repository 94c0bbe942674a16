// NetworkSession and NetworkPasses as Python sees them: every argument is checked again here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/network_session.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

// Keep the caller's arrays alive for as long as they are read.
struct PyNetworkSession {
  Array<double> features;
  Array<double> response;
  NetworkSession session;
};
struct PyNetworkPasses {
  Array<double> features;
  Array<double> response;
  NetworkPasses passes;
};

inline const NetworkKernelTable& network_kernels() {
  kernels();  // refuses an unknown variant
  return *network_kernel_table();
}

inline NetworkRecords network_records(const Array<double>& features, const Array<double>& response) {
  if (features.ndim() != 2 || features.shape(1) < 1 || features.shape(1) > 4096) {
    throw py::value_error("features must be (n, d) with d in [1, 4096]");
  }
  return {features.data(), flat("response", response, features.shape(0)).data(), features.shape(0)};
}

inline NetworkShape network_shape(const Array<double>& features, int n_hidden) {
  if (n_hidden < 1 || n_hidden > 4096) throw py::value_error("n_hidden must be in [1, 4096]");
  const NetworkShape shape = NetworkShape::of(static_cast<int>(features.shape(1)), n_hidden);
  if (2 * static_cast<std::int64_t>(shape.n_params()) + 1 > kMaxLatticeDimension) {
    throw py::value_error("the network must have fewer than 2^19 weights");
  }
  return shape;
}

inline std::unique_ptr<PyNetworkSession> make_network_session(const Array<double>& features,
                                                              const Array<double>& response, int n_hidden,
                                                              double hidden_scale, double output_scale,
                                                              double sample_rate, double max_norm, const py::bytes& key,
                                                              int n_threads) {
  check_rate(sample_rate);
  check_norm("max_norm", max_norm);
  const NetworkRecords records = network_records(features, response);
  return std::unique_ptr<PyNetworkSession>(new PyNetworkSession{
      features, response,
      NetworkSession(kernels(), network_kernels(), records, network_shape(features, n_hidden), hidden_scale,
                     output_scale, sample_rate, max_norm, random_key(key), n_threads)});
}

inline void network_set_sites(PyNetworkSession& self, const Array<double>& mean, const Array<double>& variance,
                              double noise_variance, double eta_weight, double site_weight, double noise_weight,
                              double site_norm, double noise_limit) {
  const int n = self.session.n_params();
  self.session.set_sites(flat("mean", mean, n), flat("variance", variance, n), noise_variance,
                         {eta_weight, site_weight, noise_weight, site_norm, noise_limit});
}

inline void network_set_gradients(PyNetworkSession& self, const Array<double>& mean, const Array<double>& variance,
                                  double noise_variance, const Array<double>& mean_scale,
                                  const Array<double>& variance_scale, double noise_weight) {
  const int n = self.session.n_params();
  self.session.set_gradients(flat("mean", mean, n), flat("variance", variance, n), noise_variance,
                             flat("mean_scale", mean_scale, n), flat("variance_scale", variance_scale, n),
                             noise_weight);
}

inline std::span<const std::int64_t> listed_rows(const Array<std::int64_t>& rows, py::ssize_t n_rows) {
  const std::span<const std::int64_t> list = flat("rows", rows, rows.size());
  if (!std::all_of(list.begin(), list.end(), [&](std::int64_t row) { return row >= 0 && row < n_rows; })) {
    throw py::value_error("rows must be numbers of rows");
  }
  return list;
}

inline py::array_t<double> network_plain_sum(PyNetworkSession& self, const Array<std::int64_t>& rows, double max_norm) {
  if (!(max_norm > 0.0)) throw py::value_error("max_norm must be positive");
  const std::span<const std::int64_t> list = listed_rows(rows, self.features.shape(0));
  return filled<double>(self.session.length(),
                        [&](std::span<double> sum) { self.session.plain_sum(list, max_norm, sum); });
}

inline std::unique_ptr<PyNetworkPasses> make_network_passes(
    const Array<double>& features, const Array<double>& response, int n_hidden, bool own_sites, double clip_norm,
    double site_weight, const Array<double>& eta, const Array<double>& precision, const Array<double>& prior_precision,
    const Array<double>& gamma, const Array<double>& prior_gamma) {
  const NetworkRecords records = network_records(features, response);
  const NetworkShape shape = network_shape(features, n_hidden);
  const int n = shape.n_params();
  return std::unique_ptr<PyNetworkPasses>(new PyNetworkPasses{
      features, response,
      NetworkPasses(network_kernels(), records, shape, own_sites, clip_norm, site_weight, flat("eta", eta, n),
                    flat("precision", precision, n), flat("prior_precision", prior_precision, n),
                    flat("gamma", gamma, 2), flat("prior_gamma", prior_gamma, 2))});
}

inline void network_passes_run(PyNetworkPasses& self, const Array<std::int64_t>& rows, double share, double step) {
  const std::span<const std::int64_t> list = listed_rows(rows, self.features.shape(0));
  py::gil_scoped_release unlocked;
  self.passes.run(list, share, step);
}

inline py::tuple network_passes_state(const PyNetworkPasses& self) {
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

}  // namespace dpinfer::bindings

// NetworkSession as Python sees it: every argument is checked again here.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/network_session.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

// Keeps the caller's arrays alive for as long as they are read.
struct PyNetworkSession {
  Array<double> features;
  Array<double> response;
  NetworkSession session;
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

inline py::array_t<double> network_plain_sum(PyNetworkSession& self, const Array<std::int64_t>& rows, double max_norm) {
  if (!(max_norm > 0.0)) throw py::value_error("max_norm must be positive");
  const std::span<const std::int64_t> list = listed_rows(rows, self.features.shape(0));
  return filled<double>(self.session.length(),
                        [&](std::span<double> sum) { self.session.plain_sum(list, max_norm, sum); });
}

}  // namespace dpinfer::bindings

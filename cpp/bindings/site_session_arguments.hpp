// SiteSession as Python sees it: every argument is checked again here, whatever the Python layer has checked.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "bindings/sum_arguments.hpp"
#include "mechanism/rows/site_session.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

// Keeps the caller's arrays alive for as long as the session reads them.
struct PySiteSession {
  std::vector<Array<double>> kept;
  SiteSession session;
  bool has_state = false;
};

inline std::unique_ptr<PySiteSession> site_session(std::vector<Array<double>> kept, std::unique_ptr<SiteKernel> sites,
                                                   std::int64_t n_rows, double max_site_norm, const py::bytes& key,
                                                   int n_threads) {
  // None are left where all are null records: what a Poisson sample of them sums to is noise.
  if (n_rows > (std::int64_t{1} << 31)) throw py::value_error("records must be at most 2**31");
  if (sites->length() > kMaxLatticeDimension) throw py::value_error("a site must have at most 2**20 coordinates");
  check_norm("max_site_norm", max_site_norm);
  if (n_threads < 0) throw py::value_error("n_threads must be at least 0");
  return std::make_unique<PySiteSession>(PySiteSession{
      std::move(kept), SiteSession(kernels(), std::move(sites), n_rows, max_site_norm, random_key(key), n_threads)});
}

inline void check_rows(const PySiteSession& self) {
  if (self.kept.front().shape(0) < 1) throw py::value_error("records must be at least 1 where one is drawn");
}

inline std::unique_ptr<PySiteSession> mixture_sites(const std::string& contribution, const Array<double>& points,
                                                    const Array<double>& log_weights, const Array<double>& covariances,
                                                    double max_site_norm, const py::bytes& key, int n_threads) {
  if (contribution != "site" && contribution != "moments")
    throw py::value_error("contribution must be 'site' or 'moments'");
  if (points.ndim() != 2 || points.shape(1) < 1) throw py::value_error("points must be (n, d)");
  if (log_weights.ndim() != 1 || log_weights.shape(0) < 1) throw py::value_error("log_weights must be (j,)");
  const py::ssize_t d = points.shape(1);
  const py::ssize_t blocks = log_weights.shape(0);
  if (d > 1000 || blocks > 100000) throw py::value_error("points must have at most 1000 columns");
  auto sites =
      std::make_unique<MixtureSites>(contribution == "site" ? MixtureContribution::site : MixtureContribution::moments,
                                     flat("points", points, points.size()), flat("log_weights", log_weights, blocks),
                                     flat("covariances", covariances, blocks * d * d), static_cast<int>(d));
  return site_session({points, log_weights, covariances}, std::move(sites), points.shape(0), max_site_norm, key,
                      n_threads);
}

inline std::unique_ptr<PySiteSession> binary_sites(const Array<double>& features, const Array<double>& response,
                                                   bool intercept, const std::string& likelihood,
                                                   const Array<double>& nodes, const Array<double>& weights,
                                                   double max_site_norm, const py::bytes& key, int n_threads) {
  if (features.ndim() != 2) throw py::value_error("features must be (n, d)");
  const py::ssize_t d = features.shape(1);
  if (d + (intercept ? 1 : 0) < 1 || d > 1400) throw py::value_error("features must have 1 to 1400 columns");
  if (likelihood != "probit" && likelihood != "logistic")
    throw py::value_error("likelihood must be 'probit' or 'logistic'");
  auto sites = std::make_unique<BinarySites>(
      flat("features", features, features.size()), flat("response", response, features.shape(0)), static_cast<int>(d),
      intercept, likelihood == "probit" ? BinaryLikelihood::probit : BinaryLikelihood::logistic,
      flat("nodes", nodes, nodes.size()), flat("weights", weights, nodes.size()));
  return site_session({features, response, nodes, weights}, std::move(sites), features.shape(0), max_site_norm, key,
                      n_threads);
}

inline void set_site_state(PySiteSession& self, const Array<double>& cavity_loc, const Array<double>& cavity_cov,
                           const Array<double>& centre, const Array<double>& neutral, double block_weight) {
  const py::ssize_t blocks = self.session.n_blocks();
  const py::ssize_t d = self.session.width();
  if (!(block_weight > 0.0 && std::isfinite(block_weight))) throw py::value_error("block_weight must be positive");
  const SiteState state{flat("cavity_loc", cavity_loc, blocks * d), flat("cavity_cov", cavity_cov, blocks * d * d),
                        flat("centre", centre, blocks * d), flat("neutral", neutral, self.session.length()),
                        block_weight};
  self.has_state = self.session.set_state(state);
  if (!self.has_state) throw py::value_error("cavity_cov must be positive definite");
}

// For what reads records: the kernel has no moments to read before.
inline void check_state(const PySiteSession& self) {
  if (!self.has_state) throw py::value_error("set_state must be called before a sum");
}

inline std::span<const std::int64_t> rows_of(const PySiteSession& self, const Array<std::int64_t>& rows) {
  const auto listed = flat("rows", rows, rows.size());
  for (const std::int64_t row : listed) {
    if (row < 0 || row >= self.session.n_rows()) throw py::value_error("rows must be in range");
  }
  return listed;
}

}  // namespace dpinfer::bindings

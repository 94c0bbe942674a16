// SiteSession as Python sees it: every argument is checked again here, whatever the Python layer has checked.
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

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

// Keeps the caller's arrays alive for as long as the session reads them.
struct PySiteSession {
  std::vector<Array<double>> kept;
  SiteSession session;
  bool has_state = false;
};

std::unique_ptr<PySiteSession> site_session(std::vector<Array<double>> kept, std::unique_ptr<SiteKernel> sites,
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

void check_rows(const PySiteSession& self) {
  if (self.kept.front().shape(0) < 1) throw py::value_error("records must be at least 1 where one is drawn");
}

std::unique_ptr<PySiteSession> mixture_sites(const std::string& contribution, const Array<double>& points,
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

std::unique_ptr<PySiteSession> binary_sites(const Array<double>& features, const Array<double>& response,
                                            bool intercept, const std::string& likelihood, const Array<double>& nodes,
                                            const Array<double>& weights, double max_site_norm, const py::bytes& key,
                                            int n_threads) {
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

void set_site_state(PySiteSession& self, const Array<double>& cavity_loc, const Array<double>& cavity_cov,
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
void check_state(const PySiteSession& self) {
  if (!self.has_state) throw py::value_error("set_state must be called before a sum");
}

}  // namespace

void bind_site_session(py::module_& module) {
  using Doubles = std::span<double>;
  using Self = PySiteSession;
  module.def("mixture_sites", &mixture_sites, StandardArithmetic(), py::kw_only(), "contribution"_a, exact("points"),
             exact("log_weights"), exact("covariances"), "max_site_norm"_a, "key"_a, "n_threads"_a);
  module.def("binary_sites", &binary_sites, StandardArithmetic(), py::kw_only(), exact("features"), exact("response"),
             "intercept"_a, "likelihood"_a, exact("nodes"), exact("weights"), "max_site_norm"_a, "key"_a,
             "n_threads"_a);
  py::class_<Self> session(module, "SiteSession", py::module_local());
  session.def("set_state", &set_site_state, StandardArithmetic(), py::kw_only(), exact("cavity_loc"),
              exact("cavity_cov"), exact("centre"), exact("neutral"), "block_weight"_a);
  const auto noisy = [&](const char* name, void (SiteSession::*sum)(std::uint64_t, double, Doubles)) {
    session.def(
        name,
        [sum](Self& self, std::uint64_t step, double noise_multiplier) {
          check_state(self);
          check_rows(self);
          check_noise(noise_multiplier);
          return filled<double>(self.session.length(),
                                [&](Doubles out) { (self.session.*sum)(step, noise_multiplier, out); });
        },
        StandardArithmetic(), "step"_a, "noise_multiplier"_a);
  };
  noisy("uniform_sum", &SiteSession::uniform_sum);
  noisy("permuted_sum", &SiteSession::permuted_sum);
  session
      .def(
          "poisson_sum",
          [](Self& self, std::uint64_t step, double sample_rate, double noise_multiplier) {
            check_state(self);
            check_noise(noise_multiplier);
            check_rate(sample_rate);
            return filled<double>(self.session.length(), [&](Doubles out) {
              self.session.poisson_sum(step, sample_rate, noise_multiplier, out);
            });
          },
          StandardArithmetic(), "step"_a, "sample_rate"_a, "noise_multiplier"_a)
      .def(
          "clipped_poisson_sum",
          [](Self& self, std::uint64_t step, double sample_rate) {
            check_state(self);
            check_rate(sample_rate);
            return filled<std::int64_t>(self.session.length(), [&](std::span<std::int64_t> out) {
              self.session.clipped_poisson_sum(step, sample_rate, out);
            });
          },
          StandardArithmetic(), "step"_a, "sample_rate"_a)
      .def(
          "clipped_sum",
          [](Self& self, const Array<std::int64_t>& rows) {
            check_state(self);
            const auto listed = listed_rows(rows, self.session.n_rows());
            return filled<std::int64_t>(self.session.length(),
                                        [&](std::span<std::int64_t> out) { self.session.clipped_sum(listed, out); });
          },
          StandardArithmetic(), exact("rows"))
      .def(
          "plain_sum",
          [](Self& self, double max_norm) {
            check_state(self);
            if (!(max_norm > 0.0)) throw py::value_error("max_norm must be positive");
            return filled<double>(self.session.length(), [&](Doubles out) { self.session.plain_sum(max_norm, out); });
          },
          StandardArithmetic(), "max_norm"_a)
      .def(
          "contributions",
          [](const Self& self, const Array<std::int64_t>& rows) {
            check_state(self);
            const auto listed = listed_rows(rows, self.session.n_rows());
            const py::ssize_t length = self.session.length();
            py::array_t<double> out =
                filled<double>(rows.size() * length, [&](Doubles span) { self.session.contributions(listed, span); });
            return out.reshape({rows.size(), length});
          },
          StandardArithmetic(), exact("rows"))
      .def(
          "order",
          [](Self& self, std::uint64_t epoch) {
            const auto& order = self.session.order(epoch);
            return py::array_t<std::int64_t>(static_cast<py::ssize_t>(order.size()), order.data());
          },
          StandardArithmetic(), "epoch"_a)
      .def(
          "uniform_row",
          [](const Self& self, std::uint64_t step) {
            check_rows(self);
            return self.session.uniform(step);
          },
          StandardArithmetic(), "step"_a)
      .def_property_readonly("length", [](const Self& self) { return self.session.length(); })
      .def_property_readonly("lattice_step", [](const Self& self) { return self.session.lattice_step(); });
}

#include <memory>
#include <optional>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "mechanism/step_session.hpp"

namespace py = pybind11;
using namespace dpinfer;
using bindings::Array;
using bindings::flat;

namespace {

// Keeps the caller's arrays alive for as long as the session reads them.
struct PySession {
  py::array features;
  Array<double> response;
  StepSession session;
};

Likelihood likelihood_from_name(const std::string& name) {
  if (name == "logistic") return Likelihood::logistic;
  if (name == "probit") return Likelihood::probit;
  if (name == "gaussian") return Likelihood::gaussian;
  if (name == "poisson") return Likelihood::poisson;
  throw py::value_error("likelihood must be one of 'logistic', 'probit', 'gaussian', 'poisson'");
}

std::unique_ptr<PySession> make_session(const py::array& features, const Array<double>& response,
                                        const std::string& likelihood, bool intercept, bool aligned, double sample_rate,
                                        double max_grad_norm, const py::bytes& key, int n_threads) {
  const bool is_float32 = py::isinstance<Array<float>>(features);
  if (!is_float32 && !py::isinstance<Array<double>>(features)) {
    throw py::type_error("features must be a C-contiguous float64 or float32 array");
  }
  if (features.ndim() != 2 || response.ndim() != 1 || features.shape(0) != response.shape(0)) {
    throw py::value_error("features must be (n, p) and response (n,)");
  }
  if (features.shape(1) < 1 || features.shape(1) >= kMaxLatticeDimension / 2 - 2) {
    throw py::value_error("features must have between 1 and 2**19 - 3 columns");
  }
  if (!(sample_rate > 0.0 && sample_rate <= 1.0)) throw py::value_error("sample_rate must be in (0, 1]");
  if (!(max_grad_norm >= 1e-30 && max_grad_norm <= 1e30))
    throw py::value_error("max_grad_norm must be in [1e-30, 1e30]");
  const Records records{features.data(), response.data(), features.shape(0), static_cast<int>(features.shape(1)),
                        is_float32,      intercept};
  return std::make_unique<PySession>(
      PySession{features, response,
                StepSession(bindings::kernels(), records, likelihood_from_name(likelihood), aligned, sample_rate,
                            max_grad_norm, bindings::random_key(key), n_threads)});
}

void set_scales(PySession& self, const Array<double>& scale, const Array<double>& offset) {
  const int n = self.session.released_length();
  self.session.set_scales(flat("scale", scale, n), flat("offset", offset, n));
}

void set_quadrature(PySession& self, const Array<double>& loc, const Array<double>& variance,
                    const Array<double>& nodes, const Array<double>& weights, const Array<double>& moments) {
  const int n = self.session.n_coef();
  self.session.set_quadrature(flat("loc", loc, n), flat("variance", variance, n), flat("nodes", nodes, nodes.size()),
                              flat("weights", weights, nodes.size()),
                              flat("moments", moments, self.session.has_dispersion() ? 5 : 0));
}

void set_draws(PySession& self, const Array<double>& draws, const Array<double>& standard,
               const Array<double>& dispersion) {
  if (draws.ndim() != 2 || draws.shape(0) < 1) throw py::value_error("draws must be (n_draws, n_coef)");
  const py::ssize_t n = draws.shape(0) * self.session.n_coef();
  self.session.set_draws(static_cast<int>(draws.shape(0)), flat("draws", draws, n), flat("standard", standard, n),
                         flat("dispersion", dispersion, self.session.has_dispersion() ? 3 * draws.shape(0) : 0));
}

py::array_t<std::int64_t> clipped_sum(PySession& self, std::uint64_t step) {
  py::array_t<std::int64_t> sum(self.session.released_length());
  const std::span<std::int64_t> out(sum.mutable_data(), static_cast<std::size_t>(sum.size()));
  py::gil_scoped_release unlocked;
  self.session.clipped_sum(step, out);
  return sum;
}

py::array_t<double> noisy_sum(PySession& self, std::uint64_t step, double noise_multiplier) {
  if (!(noise_multiplier > 0.0 && noise_multiplier <= 1e7))
    throw py::value_error("noise_multiplier must be in (0, 1e7]");
  py::array_t<double> sum(self.session.released_length());
  const std::span<double> out(sum.mutable_data(), static_cast<std::size_t>(sum.size()));
  py::gil_scoped_release unlocked;
  self.session.noisy_sum(step, noise_multiplier, out);
  return sum;
}

}  // namespace

void bind_step_session(py::module_& module) {
  py::class_<PySession>(module, "StepSession")
      .def(py::init(&make_session), py::kw_only(), py::arg("features").noconvert(), py::arg("response").noconvert(),
           py::arg("likelihood"), py::arg("intercept"), py::arg("aligned"), py::arg("sample_rate"),
           py::arg("max_grad_norm"), py::arg("key"), py::arg("n_threads"))
      .def("set_scales", &set_scales, py::arg("scale").noconvert(), py::arg("offset").noconvert())
      .def("set_quadrature", &set_quadrature, py::arg("loc").noconvert(), py::arg("variance").noconvert(),
           py::arg("nodes").noconvert(), py::arg("weights").noconvert(), py::arg("moments").noconvert())
      .def("set_draws", &set_draws, py::arg("draws").noconvert(), py::arg("standard").noconvert(),
           py::arg("dispersion").noconvert())
      .def("clipped_sum", &clipped_sum, py::arg("step"))
      .def("noisy_sum", &noisy_sum, py::arg("step"), py::arg("noise_multiplier"))
      .def_property_readonly("released_length", [](const PySession& self) { return self.session.released_length(); })
      .def_property_readonly("effective_rate", [](const PySession& self) { return self.session.effective_rate(); })
      .def_property_readonly("lattice_step", [](const PySession& self) { return self.session.lattice_step(); });
}

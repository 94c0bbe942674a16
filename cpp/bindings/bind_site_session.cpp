#include "bindings/site_session_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

void bind_site_session(py::module_& module) {
  using Doubles = std::span<double>;
  using Self = PySiteSession;
  module.def("mixture_sites", &mixture_sites, StandardArithmetic(), py::kw_only(), py::arg("contribution"),
             py::arg("points").noconvert(), py::arg("log_weights").noconvert(), py::arg("covariances").noconvert(),
             py::arg("max_site_norm"), py::arg("key"), py::arg("n_threads"));
  module.def("binary_sites", &binary_sites, StandardArithmetic(), py::kw_only(), py::arg("features").noconvert(),
             py::arg("response").noconvert(), py::arg("intercept"), py::arg("likelihood"), py::arg("nodes").noconvert(),
             py::arg("weights").noconvert(), py::arg("max_site_norm"), py::arg("key"), py::arg("n_threads"));
  py::class_<Self> session(module, "SiteSession", py::module_local());
  session.def("set_state", &set_site_state, StandardArithmetic(), py::kw_only(), py::arg("cavity_loc").noconvert(),
              py::arg("cavity_cov").noconvert(), py::arg("centre").noconvert(), py::arg("neutral").noconvert(),
              py::arg("block_weight"));
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
        StandardArithmetic(), py::arg("step"), py::arg("noise_multiplier"));
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
          StandardArithmetic(), py::arg("step"), py::arg("sample_rate"), py::arg("noise_multiplier"))
      .def(
          "clipped_poisson_sum",
          [](Self& self, std::uint64_t step, double sample_rate) {
            check_state(self);
            check_rate(sample_rate);
            return filled<std::int64_t>(self.session.length(), [&](std::span<std::int64_t> out) {
              self.session.clipped_poisson_sum(step, sample_rate, out);
            });
          },
          StandardArithmetic(), py::arg("step"), py::arg("sample_rate"))
      .def(
          "clipped_sum",
          [](Self& self, const Array<std::int64_t>& rows) {
            check_state(self);
            const auto listed = rows_of(self, rows);
            return filled<std::int64_t>(self.session.length(),
                                        [&](std::span<std::int64_t> out) { self.session.clipped_sum(listed, out); });
          },
          StandardArithmetic(), py::arg("rows").noconvert())
      .def(
          "plain_sum",
          [](Self& self, double max_norm) {
            check_state(self);
            if (!(max_norm > 0.0)) throw py::value_error("max_norm must be positive");
            return filled<double>(self.session.length(), [&](Doubles out) { self.session.plain_sum(max_norm, out); });
          },
          StandardArithmetic(), py::arg("max_norm"))
      .def(
          "contributions",
          [](const Self& self, const Array<std::int64_t>& rows) {
            check_state(self);
            const auto listed = rows_of(self, rows);
            const py::ssize_t length = self.session.length();
            py::array_t<double> out =
                filled<double>(rows.size() * length, [&](Doubles span) { self.session.contributions(listed, span); });
            return out.reshape({rows.size(), length});
          },
          StandardArithmetic(), py::arg("rows").noconvert())
      .def(
          "order",
          [](Self& self, std::uint64_t epoch) {
            const auto& order = self.session.order(epoch);
            return py::array_t<std::int64_t>(static_cast<py::ssize_t>(order.size()), order.data());
          },
          StandardArithmetic(), py::arg("epoch"))
      .def(
          "uniform_row",
          [](const Self& self, std::uint64_t step) {
            check_rows(self);
            return self.session.uniform(step);
          },
          StandardArithmetic(), py::arg("step"))
      .def_property_readonly("length", [](const Self& self) { return self.session.length(); })
      .def_property_readonly("lattice_step", [](const Self& self) { return self.session.lattice_step(); });
}

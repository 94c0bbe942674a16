// What the bindings of private sums share: checks of public numbers, and results filled without the interpreter's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "bindings/array_arguments.hpp"

namespace dpinfer::bindings {

inline void check_noise(double noise_multiplier) {
  if (!(noise_multiplier > 0.0 && noise_multiplier <= 1e7))
    throw pybind11::value_error("noise_multiplier must be in (0, 1e7]");
}

inline void check_rate(double sample_rate) {
  if (!(sample_rate > 0.0 && sample_rate <= 1.0)) throw pybind11::value_error("sample_rate must be in (0, 1]");
}

inline void check_norm(const char* name, double max_norm) {
  if (!(max_norm >= 1e-30 && max_norm <= 1e30)) {
    throw pybind11::value_error(std::string(name) + " must be in [1e-30, 1e30]");
  }
}

inline std::span<const std::int64_t> listed_rows(const Array<std::int64_t>& rows, std::int64_t n_rows) {
  const std::span<const std::int64_t> list = flat("rows", rows, rows.size());
  if (!std::all_of(list.begin(), list.end(), [&](std::int64_t row) { return row >= 0 && row < n_rows; })) {
    throw pybind11::value_error("rows must be in range");
  }
  return list;
}

// A new array of `size` numbers, filled by fill(span) with the interpreter's lock released.
template <typename Scalar, typename Fill>
pybind11::array_t<Scalar> filled(pybind11::ssize_t size, const Fill& fill) {
  pybind11::array_t<Scalar> out(size);
  const std::span<Scalar> span(out.mutable_data(), static_cast<std::size_t>(size));
  pybind11::gil_scoped_release unlocked;
  fill(span);
  return out;
}

// The sums of a class that keeps a session with the arrays it reads, and what is public of them.
template <typename Kept>
void define_sums(pybind11::class_<Kept>& kept) {
  namespace py = pybind11;
  const auto check_ready = [](const Kept& self) {
    if constexpr (requires { self.check_ready(); }) self.check_ready();
  };
  kept.def(
          "clipped_sum",
          [check_ready](Kept& self, std::uint64_t step) {
            check_ready(self);
            return filled<std::int64_t>(self.session.length(),
                                        [&](std::span<std::int64_t> sum) { self.session.clipped_sum(step, sum); });
          },
          StandardArithmetic(), "step"_a)
      .def(
          "noisy_sum",
          [check_ready](Kept& self, std::uint64_t step, double noise_multiplier) {
            check_ready(self);
            check_noise(noise_multiplier);
            return filled<double>(self.session.length(), [&](std::span<double> released) {
              self.session.noisy_sum(step, noise_multiplier, released);
            });
          },
          StandardArithmetic(), "step"_a, "noise_multiplier"_a)
      .def_property_readonly("effective_rate", [](const Kept& self) { return self.session.effective_rate(); })
      .def_property_readonly("lattice_step", [](const Kept& self) { return self.session.lattice_step(); });
}

}  // namespace dpinfer::bindings

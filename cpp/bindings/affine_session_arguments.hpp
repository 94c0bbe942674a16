// AffineSession as Python sees it: every argument is checked again here, whatever the Python layer has checked.
#pragma once

#include <cstdint>
#include <memory>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "mechanism/rows/affine_session.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

// Keeps the caller's array alive for as long as the session reads it.
struct PyAffineSession {
  Array<double> statistics;
  AffineSession session;
};

inline std::unique_ptr<PyAffineSession> make_affine_session(const Array<double>& statistics, int length,
                                                            double sample_rate, double max_grad_norm,
                                                            const py::bytes& key, int n_threads) {
  if (statistics.ndim() != 2) throw py::value_error("statistics must be (n, s)");
  if (statistics.shape(1) < 1 || statistics.shape(1) > kMaxStatistics) {
    throw py::value_error("statistics must have between 1 and " + std::to_string(kMaxStatistics) + " columns");
  }
  if (length < 1 || length > kMaxAffineLength) {
    throw py::value_error("length must be in [1, " + std::to_string(kMaxAffineLength) + "]");
  }
  if (!(sample_rate > 0.0 && sample_rate <= 1.0)) throw py::value_error("sample_rate must be in (0, 1]");
  if (!(max_grad_norm >= 1e-30 && max_grad_norm <= 1e30))
    throw py::value_error("max_grad_norm must be in [1e-30, 1e30]");
  return std::make_unique<PyAffineSession>(
      PyAffineSession{statistics, AffineSession(kernels(), flat("statistics", statistics, statistics.size()),
                                                statistics.shape(0), static_cast<int>(statistics.shape(1)), length,
                                                sample_rate, max_grad_norm, random_key(key), n_threads)});
}

inline void set_map(PyAffineSession& self, const Array<double>& matrix, const Array<double>& offset) {
  const int length = self.session.length();
  if (matrix.ndim() != 2 || matrix.shape(0) != length) throw py::value_error("matrix must be (length, s)");
  self.session.set_map(flat("matrix", matrix, py::ssize_t{length} * self.session.n_statistics()),
                       flat("offset", offset, length));
}

inline py::array_t<std::int64_t> affine_clipped_sum(PyAffineSession& self, std::uint64_t step) {
  py::array_t<std::int64_t> sum(self.session.length());
  const std::span<std::int64_t> out(sum.mutable_data(), static_cast<std::size_t>(sum.size()));
  py::gil_scoped_release unlocked;
  self.session.clipped_sum(step, out);
  return sum;
}

inline py::array_t<double> affine_noisy_sum(PyAffineSession& self, std::uint64_t step, double noise_multiplier) {
  if (!(noise_multiplier > 0.0 && noise_multiplier <= 1e7))
    throw py::value_error("noise_multiplier must be in (0, 1e7]");
  py::array_t<double> sum(self.session.length());
  const std::span<double> out(sum.mutable_data(), static_cast<std::size_t>(sum.size()));
  py::gil_scoped_release unlocked;
  self.session.noisy_sum(step, noise_multiplier, out);
  return sum;
}

}  // namespace dpinfer::bindings

#include <stdexcept>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "lab/bindings/scipy_lapack.hpp"
#include "lab/stationary.hpp"

namespace py = pybind11;
using namespace dpinfer::lab;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

// form: 0 diagonal, hessian (S, n); 1 symmetric and 2 general, hessian (S, n, n).
py::tuple covariance(const Array<double>& hessian, const Array<double>& rate, const Array<double>& noise,
                     double sample_rate, int form, bool discrete, int n_threads) {
  if (hessian.ndim() != (form == 0 ? 2 : 3)) throw py::value_error("hessian must be (S, n) or (S, n, n)");
  const py::ssize_t count = hessian.shape(0);
  const py::ssize_t n = hessian.shape(1);
  if (n < 1) throw py::value_error("hessian must have at least one coordinate");
  const StationaryBatch batch{flat("hessian", hessian, count * n * (form == 0 ? 1 : n)),
                              flat("learning_rate", rate, rate.ndim() == 1 ? n : count * n),
                              flat("noise_stddev", noise, noise.ndim() == 1 ? n : count * n),
                              sample_rate,
                              static_cast<std::size_t>(count),
                              static_cast<std::size_t>(n),
                              discrete};
  const auto& lapack = dpinfer::bindings::scipy_lapack();
  const StationaryKernels* kernels = stationary_kernels();
  if (kernels == nullptr) throw std::runtime_error("DPINFER_SIMD names instructions that are not available here");
  py::array_t<double> out(std::vector<py::ssize_t>(hessian.shape(), hessian.shape() + hessian.ndim()));
  py::array_t<std::uint8_t> status(count);
  const std::span<double> cells(out.mutable_data(), static_cast<std::size_t>(out.size()));
  const std::span<StationaryStatus> states(reinterpret_cast<StationaryStatus*>(status.mutable_data()),
                                           static_cast<std::size_t>(count));
  StationaryStatus result = StationaryStatus::kOk;
  {
    py::gil_scoped_release unlocked;
    if (form == 0) {
      stationary_diagonal(batch, n_threads, cells, states);
    } else if (form == 1) {
      result = stationary_symmetric(lapack, *kernels, batch, n_threads, cells, states);
    } else {
      result = stationary_general(lapack, *kernels, batch, n_threads, cells, states);
    }
  }
  if (result == StationaryStatus::kOutOfMemory) throw std::bad_alloc();
  return py::make_tuple(out, status);
}

py::tuple check(const Array<double>& matrices, int n_threads) {
  if (matrices.ndim() != 3 || matrices.shape(1) != matrices.shape(2))
    throw py::value_error("matrices must be (S, n, n)");
  const std::span<const double> values = flat("matrices", matrices, matrices.size());
  MatrixCheck found{};
  {
    py::gil_scoped_release unlocked;
    found = check_matrices(values, static_cast<std::size_t>(matrices.shape(0)),
                           static_cast<std::size_t>(matrices.shape(1)), n_threads);
  }
  return py::make_tuple(found.finite, found.symmetric);
}

}  // namespace

void bind_stationary(py::module_& module) {
  module.def("stationary_covariance", &covariance, py::arg("hessian").noconvert(), py::arg("learning_rate").noconvert(),
             py::arg("noise_stddev").noconvert(), py::arg("sample_rate"), py::arg("form"), py::arg("discrete"),
             py::arg("n_threads"));
  module.def("check_matrices", &check, py::arg("matrices").noconvert(), py::arg("n_threads"));
}

#include "lab/bindings/draw_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;
using namespace dpinfer::lab;

namespace {

template <typename Scalar>
py::tuple moments(const Array<Scalar>& draws, int n_threads) {
  const TarpKernels& kernels = kernels_or_throw();
  const TarpView view = view_of(draws);
  py::array_t<double> mean({draws.shape(1), draws.shape(2)});
  py::array_t<double> squares({draws.shape(1), draws.shape(2)});
  const std::span<double> first(mean.mutable_data(), static_cast<std::size_t>(mean.size()));
  const std::span<double> second(squares.mutable_data(), static_cast<std::size_t>(squares.size()));
  TarpStatus status{};
  {
    py::gil_scoped_release unlocked;
    status = draw_moments(kernels, view, n_threads, first, second);
  }
  refuse(status);
  return py::make_tuple(mean, squares);
}

}  // namespace

void bind_draw_moments(py::module_& module) {
  module.def("draw_moments", &moments<double>, py::arg("samples").noconvert(), py::arg("n_threads"));
  module.def("draw_moments", &moments<float>, py::arg("samples").noconvert(), py::arg("n_threads"));
}

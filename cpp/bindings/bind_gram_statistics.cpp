#include <span>

#include "bindings/array_arguments.hpp"
#include "inference/trace_statistics.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

py::tuple gram(const Array<double>& positions, const Array<double>& gradients, const Array<double>& weights,
               int n_threads) {
  if (positions.ndim() != 2 || gradients.ndim() != 2) throw py::value_error("positions and gradients must be (T, k)");
  const py::ssize_t steps = positions.shape(0);
  const py::ssize_t k = positions.shape(1);
  const py::ssize_t m = gradients.shape(1);
  py::array_t<double> mean_x(k), mean_g(m), xx({k, k}), xg({k, m}), gg(m);
  const auto cells = [](py::array_t<double>& a) {
    return std::span<double>(a.mutable_data(), static_cast<std::size_t>(a.size()));
  };
  const GramOutput out{cells(mean_x), cells(mean_g), cells(xx), cells(xg), cells(gg)};
  const auto x = flat("positions", positions, steps * k);
  const auto g = flat("gradients", gradients, steps * m);
  const auto w = flat("weights", weights, steps);
  StatisticsStatus status{};
  {
    py::gil_scoped_release unlocked;
    status = gram_statistics(x, g, w, static_cast<std::size_t>(k), static_cast<std::size_t>(m), n_threads, out);
  }
  if (status != StatisticsStatus::kOk) throw py::value_error("positions and gradients must hold at least one step");
  return py::make_tuple(mean_x, mean_g, xx, xg, gg);
}

}  // namespace

void bind_gram_statistics(py::module_& module) {
  module.def("gram_statistics", &gram, py::arg("positions").noconvert(), py::arg("gradients").noconvert(),
             py::arg("weights").noconvert(), py::arg("n_threads"));
}

#include <algorithm>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "inference/collapsed_posterior.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

py::tuple posteriors(const Array<double>& problems, int n_threads) {
  if (problems.ndim() != 2) throw py::value_error("problems must be two-dimensional");
  const py::ssize_t k = problems.shape(0);
  const auto fields = flat("problems", problems, k * static_cast<py::ssize_t>(kProblemFields));
  std::vector<CollapsedProblem> rows(static_cast<std::size_t>(k));
  std::vector<CollapsedNodes> nodes(rows.size());
  PosteriorStatus status{};
  {
    py::gil_scoped_release unlocked;
    std::copy(fields.begin(), fields.end(), reinterpret_cast<double*>(rows.data()));
    status = collapsed_posteriors(rows, n_threads, nodes);
  }
  if (status == PosteriorStatus::kOutOfMemory) throw std::bad_alloc();
  py::array_t<std::int64_t> offsets(k + 1);
  py::array_t<bool> converged(k);
  offsets.mutable_at(0) = 0;
  for (py::ssize_t j = 0; j < k; ++j) {
    const auto& item = nodes[static_cast<std::size_t>(j)];
    offsets.mutable_at(j + 1) = offsets.at(j) + static_cast<std::int64_t>(item.weight.size());
    converged.mutable_at(j) = item.status == PosteriorStatus::kOk;
  }
  py::array_t<double> cells({py::ssize_t{5}, static_cast<py::ssize_t>(offsets.at(k))});
  double* out = cells.mutable_data();
  for (const auto part : {&CollapsedNodes::slope, &CollapsedNodes::inflation, &CollapsedNodes::weight,
                          &CollapsedNodes::mean, &CollapsedNodes::variance}) {
    for (const auto& item : nodes) out = std::copy((item.*part).begin(), (item.*part).end(), out);
  }
  return py::make_tuple(offsets, cells, converged);
}

}  // namespace

void bind_collapsed_posterior(py::module_& module) {
  module.def("collapsed_posteriors", &posteriors, py::arg("problems").noconvert(), py::arg("n_threads"));
  module.def("log_marginal_inflation", &log_marginal_inflation, py::arg("count"), py::arg("residual"));
}

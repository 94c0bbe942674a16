// The compiled half of dpinfer.inference: post-processing of published traces, no records.
#include <algorithm>
#include <span>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "common/parallel.hpp"
#include "inference/collapsed_posterior.hpp"
#include "inference/mixture_quantiles.hpp"
#include "inference/trace_statistics.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::exact;
using dpinfer::bindings::flat;
using namespace pybind11::literals;

namespace {

std::span<double> cells_of(py::array_t<double>& array) {
  return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

py::array_t<double> statistics(const Array<double>& positions, const Array<double>& gradients,
                               const Array<double>& noise_stddev, const Array<double>& reference,
                               const Array<std::int64_t>& boundaries, int n_threads) {
  if (positions.ndim() != 2 || boundaries.ndim() != 1 || boundaries.size() < 2) {
    throw py::value_error("positions must be (T, k) and boundaries (segments + 1,)");
  }
  const py::ssize_t steps = positions.shape(0);
  const py::ssize_t k = positions.shape(1);
  std::vector<std::size_t> edges;
  for (py::ssize_t s = 0; s < boundaries.size(); ++s) {
    // Before anything is allocated for them.
    if (boundaries.at(s) < 0 || boundaries.at(s) > steps) {
      throw py::value_error("boundaries must lie in the trace");
    }
    edges.push_back(static_cast<std::size_t>(boundaries.at(s)));
  }
  const TraceView trace{flat("positions", positions, steps * k),
                        flat("gradients", gradients, steps * k),
                        flat("noise_stddev", noise_stddev, noise_stddev.ndim() == 1 ? k : steps * k),
                        flat("reference", reference, k),
                        static_cast<std::size_t>(steps),
                        static_cast<std::size_t>(k)};
  py::array_t<double> out({boundaries.size() - 1, static_cast<py::ssize_t>(kTraceFields), k});
  const std::span<double> cells = cells_of(out);
  StatisticsStatus status{};
  {
    py::gil_scoped_release unlocked;
    std::vector<double> scratch(trace_scratch_size(edges, trace.coordinates));
    status = trace_statistics(trace, edges, n_threads, scratch, cells);
  }
  if (status != StatisticsStatus::kOk) throw py::value_error("boundaries must increase strictly within the trace");
  return out;
}

py::tuple gram(const Array<double>& positions, const Array<double>& gradients, const Array<double>& weights,
               int n_threads) {
  if (positions.ndim() != 2 || gradients.ndim() != 2) throw py::value_error("positions and gradients must be (T, k)");
  const py::ssize_t steps = positions.shape(0);
  const py::ssize_t k = positions.shape(1);
  const py::ssize_t m = gradients.shape(1);
  py::array_t<double> mean_x(k), mean_g(m), xx({k, k}), xg({k, m}), gg(m);
  const GramOutput out{cells_of(mean_x), cells_of(mean_g), cells_of(xx), cells_of(xg), cells_of(gg)};
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

py::array_t<double> quantiles(const Array<std::int64_t>& offsets, const Array<double>& weight,
                              const Array<double>& mean, const Array<double>& variance, const Array<double>& levels,
                              const Array<double>& standard) {
  const auto places = flat("offsets", offsets, offsets.size());
  if (places.empty() || places.front() != 0 || places.back() != weight.size() ||
      !std::is_sorted(places.begin(), places.end())) {
    throw py::value_error("offsets must increase from 0 to the number of components");
  }
  const NormalMixtureView mixtures{places, flat("weight", weight, weight.size()), flat("mean", mean, weight.size()),
                                   flat("variance", variance, weight.size())};
  const auto at = flat("levels", levels, levels.size());
  const auto z = flat("standard", standard, levels.size());
  py::array_t<double> out({static_cast<py::ssize_t>(at.size()), static_cast<py::ssize_t>(mixtures.size())});
  const std::span<double> found = cells_of(out);
  {
    py::gil_scoped_release unlocked;
    mixture_quantiles(mixtures, at, z, found);
  }
  return out;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Trace statistics, and the quadrature of the noise-aware posterior.";
  module.def("trace_statistics", &statistics, exact("positions"), exact("gradients"), exact("noise_stddev"),
             exact("reference"), exact("boundaries"), "n_threads"_a);
  module.def("gram_statistics", &gram, exact("positions"), exact("gradients"), exact("weights"), "n_threads"_a);
  module.def("collapsed_posteriors", &posteriors, exact("problems"), "n_threads"_a);
  module.def("threads", &dpinfer::resolve_threads, "requested"_a);
  module.def("log_marginal_inflation", &log_marginal_inflation, "count"_a, "residual"_a);
  module.def("mixture_quantiles", &quantiles, exact("offsets"), exact("weight"), exact("mean"), exact("variance"),
             exact("levels"), exact("standard"));
}

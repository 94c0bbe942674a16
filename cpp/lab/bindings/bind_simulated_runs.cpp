#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/parallel.hpp"
#include "lab/bindings/simulated_run_arguments.hpp"
#include "lab/study/conjugate_target.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::study;
using bindings::Array;

namespace {

// Runs one simulation per key, in parallel over them; `make` builds run i's target.
template <typename MakeTarget>
py::dict simulate(const RunSettings& settings, const std::vector<RandomKey>& keys, int n_threads, bool keep_trace,
                  MakeTarget&& make) {
  bindings::RunArrays arrays(settings, keys.size(), keep_trace);
  const std::vector<RunOutput> outputs = arrays.outputs();
  const KernelTable& table = bindings::kernels();
  std::vector<std::unique_ptr<Target>> targets(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) targets[i] = make(i, table);
  bool* const ok = arrays.finite();
  const int threads = std::max(1, std::min(resolve_threads(n_threads), static_cast<int>(keys.size())));
  {
    py::gil_scoped_release unlocked;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (std::int64_t run = 0; run < static_cast<std::int64_t>(keys.size()); ++run) {
      const auto i = static_cast<std::size_t>(run);
      ok[i] = simulated_run(settings, *targets[i], table, keys[i], outputs[i]);
    }
  }
  return arrays.result();
}

// statistics: (runs, rows, n), or with counts (runs, values): (values, n), the distinct values.
py::dict simulate_conjugate(const std::string& family, const Array<double>& prior, double n_trials,
                            const Array<double>& statistics, const Array<std::int64_t>& counts,
                            const py::dict& settings, const Array<std::int64_t>& boundaries, const Array<double>& nodes,
                            const Array<double>& weights, const py::list& keys, int n_threads, bool keep_trace) {
  bindings::check_aligned(prior, statistics, counts, boundaries, nodes, weights);
  const RunSettings run = bindings::run_settings(settings, boundaries);
  const auto parsed = bindings::run_keys(keys);
  const int n = static_cast<int>(run.start.size() / 2);
  ConjugateModel model{ConjugateFamily::exponential, n, {prior.data(), prior.data() + prior.size()}, n_trials};
  if (family == "binomial") {
    model.family = ConjugateFamily::binomial;
  } else if (family == "sticks") {
    model.family = ConjugateFamily::sticks;
  } else if (family == "softmax") {
    model.family = ConjugateFamily::softmax;
  } else if (family != "exponential") {
    throw py::value_error("family must be one of 'exponential', 'binomial', 'sticks', 'softmax'");
  }
  const bool grouped = counts.size() > 0;
  const auto runs = static_cast<py::ssize_t>(parsed.size());
  if (n > 16) throw py::value_error("start must hold at most 16 parameters");
  const bool categorical = model.family == ConjugateFamily::sticks || model.family == ConjugateFamily::softmax;
  if (prior.size() != (categorical ? n + 1 : 2) || (!categorical && n != 1)) {
    throw py::value_error("prior and start must fit the family");
  }
  if (nodes.size() < 1 || weights.size() != nodes.size()) throw py::value_error("weights must be as long as nodes");
  if (grouped) {
    if (statistics.ndim() != 2 || statistics.shape(1) != n || counts.ndim() != 2 || counts.shape(0) != runs ||
        counts.shape(1) != statistics.shape(0)) {
      throw py::value_error("statistics must be (values, n) and counts (runs, values)");
    }
    if (std::any_of(counts.data(), counts.data() + counts.size(), [](std::int64_t c) { return c < 0; })) {
      throw py::value_error("counts must be at least 0");
    }
  } else if (statistics.ndim() != 3 || statistics.shape(0) != runs || statistics.shape(2) != n) {
    throw py::value_error("statistics must be (runs, rows, n)");
  }
  const std::span<const double> node_span(nodes.data(), static_cast<std::size_t>(nodes.size()));
  const std::span<const double> weight_span(weights.data(), static_cast<std::size_t>(weights.size()));
  return simulate(run, parsed, n_threads, keep_trace, [&](std::size_t i, const KernelTable& table) {
    ConjugateData data{};
    if (grouped) {
      const auto values = static_cast<std::size_t>(counts.shape(1));
      data = {{statistics.data(), static_cast<std::size_t>(statistics.size())}, {counts.data() + i * values, values}};
    } else {
      const auto length = static_cast<std::size_t>(statistics.shape(1) * statistics.shape(2));
      data = {{statistics.data() + i * length, length}, {}};
    }
    return std::make_unique<ConjugateTarget>(model, data, run.kind, node_span, weight_span, table, run.sample_rate,
                                             run.max_grad_norm, parsed[i]);
  });
}

py::dict simulate_glm(const std::string& likelihood, const Array<double>& features, const Array<double>& response,
                      bool intercept, double prior_scale, double variance_shape, double variance_rate,
                      const Array<double>& second_moments, const py::dict& settings,
                      const Array<std::int64_t>& boundaries, const Array<double>& nodes, const Array<double>& weights,
                      const py::list& keys, int n_threads, bool keep_trace) {
  bindings::check_aligned(features, response, second_moments, boundaries, nodes, weights);
  const RunSettings run = bindings::run_settings(settings, boundaries);
  const auto parsed = bindings::run_keys(keys);
  const auto runs = bindings::glm_runs(run, parsed.size(), likelihood, features, response, intercept, prior_scale,
                                       variance_shape, variance_rate, second_moments, nodes, weights);
  return simulate(run, parsed, n_threads, keep_trace,
                  [&](std::size_t i, const KernelTable& table) { return runs.target(run, i, table, parsed[i]); });
}

}  // namespace

void bind_simulated_runs(py::module_& module) {
  module.def("simulate_conjugate", &simulate_conjugate, py::kw_only(), py::arg("family"), py::arg("prior").noconvert(),
             py::arg("n_trials"), py::arg("statistics").noconvert(), py::arg("counts").noconvert(), py::arg("settings"),
             py::arg("boundaries").noconvert(), py::arg("nodes").noconvert(), py::arg("weights").noconvert(),
             py::arg("keys"), py::arg("n_threads"), py::arg("keep_trace"));
  bindings::define_simulate_glm(module, &simulate_glm);
}

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "common/parallel.hpp"
#include "study/conjugate_target.hpp"
#include "study/glm_target.hpp"
#include "study/simulated_run.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::study;
using bindings::Array;

namespace {

GradientKind kind_from_name(const std::string& name) {
  if (name == "quadrature") return GradientKind::quadrature;
  if (name == "draws") return GradientKind::draws;
  if (name == "aligned") return GradientKind::aligned;
  throw py::value_error("kind must be one of 'quadrature', 'draws', 'aligned'");
}

template <typename... Arrays>
void check_aligned(const Arrays&... arrays) {
  (bindings::aligned_data("every array", arrays), ...);
}

py::object entry(const py::dict& settings, const char* name) {
  if (!settings.contains(name)) throw py::value_error(std::string("settings must hold ") + name);
  return settings[name];
}

template <typename T>
T setting(const py::dict& settings, const char* name) {
  try {
    return entry(settings, name).cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error(std::string(name) + " must be of another type");
  }
}

std::span<const double> numbers(const py::dict& settings, const char* name) {
  const py::object value = entry(settings, name);
  if (!py::isinstance<Array<double>>(value)) {
    throw py::type_error(std::string(name) + " must be a C-contiguous float64 array");
  }
  const auto array = py::reinterpret_borrow<Array<double>>(value);
  return {bindings::aligned_data(name, array), static_cast<std::size_t>(array.size())};
}

// The spans point into arrays that the caller's dict keeps alive.
RunSettings run_settings(const py::dict& s, const Array<std::int64_t>& boundaries) {
  RunSettings r{};
  r.n_steps = setting<std::int64_t>(s, "n_steps");
  r.n_records = setting<std::int64_t>(s, "n_records");
  r.sample_rate = setting<double>(s, "sample_rate");
  r.noise_multiplier = setting<double>(s, "noise_multiplier");
  r.max_grad_norm = setting<double>(s, "max_grad_norm");
  r.kind = kind_from_name(setting<std::string>(s, "kind"));
  r.n_draws = setting<int>(s, "n_draws");
  r.per_example = setting<bool>(s, "per_example");
  r.fisher = setting<bool>(s, "fisher");
  r.raw_ratio = setting<double>(s, "raw_ratio");
  r.excursion = setting<double>(s, "excursion");
  r.grad_scale = numbers(s, "grad_scale");
  r.learning_rate = numbers(s, "learning_rate");
  r.schedule = numbers(s, "schedule");
  r.start = numbers(s, "start");
  r.boundaries = {boundaries.data(), static_cast<std::size_t>(boundaries.size())};
  if (r.n_steps < 1 || r.schedule.size() != static_cast<std::size_t>(r.n_steps)) {
    throw py::value_error("schedule must have n_steps elements");
  }
  if (r.n_records < 1) throw py::value_error("n_records must be at least 1");
  if (!(r.sample_rate > 0.0 && r.sample_rate <= 1.0)) throw py::value_error("sample_rate must be in (0, 1]");
  if (!(r.noise_multiplier > 0.0 && r.noise_multiplier <= 1e7)) {
    throw py::value_error("noise_multiplier must be in (0, 1e7]");
  }
  if (!(r.max_grad_norm >= 1e-30 && r.max_grad_norm <= 1e30)) {
    throw py::value_error("max_grad_norm must be in [1e-30, 1e30]");
  }
  if (r.start.size() % 2 != 0 || r.start.empty()) throw py::value_error("start must hold loc and raw_scale");
  if (r.grad_scale.size() != r.start.size() || r.learning_rate.size() != r.start.size()) {
    throw py::value_error("grad_scale and learning_rate must be as long as start");
  }
  if (!(r.excursion > 0.0 && r.excursion <= 1e6)) throw py::value_error("excursion must be in (0, 1e6]");
  if (r.kind == GradientKind::draws && r.n_draws < 1) throw py::value_error("n_draws must be at least 1");
  if (r.n_draws > 10'000) throw py::value_error("n_draws must be at most 10000");
  bool increasing = r.boundaries.size() >= 2 && r.boundaries.front() == 0 && r.boundaries.back() == r.n_steps;
  for (std::size_t i = 1; increasing && i < r.boundaries.size(); ++i)
    increasing = r.boundaries[i - 1] < r.boundaries[i];
  if (!increasing) throw py::value_error("boundaries must increase from 0 to n_steps");
  return r;
}

// Runs one simulation per key, in parallel over them; `make` builds run i's target.
template <typename MakeTarget>
py::dict simulate(const RunSettings& settings, const std::vector<RandomKey>& keys, int n_threads, bool keep_trace,
                  MakeTarget&& make) {
  const std::size_t d = settings.start.size();
  const bool aligned = settings.kind == GradientKind::aligned;
  const std::size_t width = aligned ? d / 2 : d;
  const std::size_t n_blocks = settings.boundaries.size() - 1;
  const auto runs = static_cast<py::ssize_t>(keys.size());
  const auto size = [](std::size_t value) { return static_cast<py::ssize_t>(value); };
  const std::size_t side_width = aligned && !settings.fisher ? 0 : d / 2;
  py::array_t<double> blocks({runs, size(n_blocks), size(kBlockFields), size(width)});
  py::array_t<double> side({runs, size(n_blocks), size(kSideFields), size(side_width)});
  py::array_t<double> path({runs, size(n_blocks), size(d)});
  py::array_t<double> reference({runs, size(width)});
  py::array_t<double> final_params({runs, size(d)});
  const std::size_t steps = keep_trace ? static_cast<std::size_t>(settings.n_steps) : 0;
  py::array_t<double> trace({runs, size(steps), size(d + 2 * width)});
  py::array_t<bool> finite(runs);
  const KernelTable& table = bindings::kernels();
  const auto part = [](py::array_t<double>& array, std::size_t run, std::size_t length) {
    return std::span<double>(array.mutable_data() + run * length, length);
  };
  std::vector<RunOutput> outputs;
  std::vector<std::unique_ptr<Target>> targets(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    outputs.push_back({part(blocks, i, n_blocks * kBlockFields * width),
                       part(side, i, n_blocks * kSideFields * side_width), part(path, i, n_blocks * d),
                       part(reference, i, width), part(final_params, i, d), part(trace, i, steps * (d + 2 * width))});
    targets[i] = make(i, table);
  }
  bool* const ok = finite.mutable_data();
  const int threads = std::max(1, std::min(resolve_threads(n_threads), static_cast<int>(keys.size())));
  {
    py::gil_scoped_release unlocked;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (std::int64_t i = 0; i < runs; ++i) {
      const auto run = static_cast<std::size_t>(i);
      ok[run] = simulated_run(settings, *targets[run], table, keys[run], outputs[run]);
    }
  }
  py::dict result;
  result["blocks"] = blocks;
  result["side"] = side;
  result["path"] = path;
  result["reference"] = reference;
  result["final_params"] = final_params;
  result["trace"] = trace;
  result["finite"] = finite;
  return result;
}

std::vector<RandomKey> run_keys(const py::list& keys) {
  std::vector<RandomKey> parsed;
  for (const auto& key : keys) {
    if (!py::isinstance<py::bytes>(key)) throw py::type_error("keys must hold bytes");
    parsed.push_back(bindings::random_key(py::reinterpret_borrow<py::bytes>(key)));
  }
  if (parsed.empty()) throw py::value_error("keys must not be empty");
  return parsed;
}

// statistics: (runs, rows, n), or with counts (runs, values): (values, n), the distinct values.
py::dict simulate_conjugate(const std::string& family, const Array<double>& prior, double n_trials,
                            const Array<double>& statistics, const Array<std::int64_t>& counts,
                            const py::dict& settings, const Array<std::int64_t>& boundaries, const Array<double>& nodes,
                            const Array<double>& weights, const py::list& keys, int n_threads, bool keep_trace) {
  check_aligned(prior, statistics, counts, boundaries, nodes, weights);
  const RunSettings run = run_settings(settings, boundaries);
  const auto parsed = run_keys(keys);
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

// features: (runs, rows, p) float64; response: (runs, rows).
py::dict simulate_glm(const std::string& likelihood, const Array<double>& features, const Array<double>& response,
                      bool intercept, double prior_scale, double variance_shape, double variance_rate,
                      const Array<double>& second_moments, const py::dict& settings,
                      const Array<std::int64_t>& boundaries, const Array<double>& nodes, const Array<double>& weights,
                      const py::list& keys, int n_threads, bool keep_trace) {
  check_aligned(features, response, second_moments, boundaries, nodes, weights);
  const RunSettings run = run_settings(settings, boundaries);
  const auto parsed = run_keys(keys);
  if (likelihood != "gaussian" && likelihood != "logistic") {
    throw py::value_error("likelihood must be one of 'gaussian', 'logistic'");
  }
  if (features.ndim() != 3 || response.ndim() != 2 || features.shape(0) != response.shape(0) ||
      features.shape(1) != response.shape(1) || features.shape(0) != static_cast<py::ssize_t>(parsed.size())) {
    throw py::value_error("features must be (runs, rows, p) and response (runs, rows)");
  }
  const int p = static_cast<int>(features.shape(2));
  GlmModel model{likelihood == "gaussian",
                 p + (intercept ? 1 : 0),
                 prior_scale,
                 variance_shape,
                 variance_rate,
                 {second_moments.data(), second_moments.data() + second_moments.size()}};
  if (second_moments.size() != model.n_coef ||
      run.start.size() != 2 * static_cast<std::size_t>(model.n_coef + (model.gaussian ? 1 : 0))) {
    throw py::value_error("second_moments and start must fit the model");
  }
  if (nodes.size() < 1 || weights.size() != nodes.size()) throw py::value_error("weights must be as long as nodes");
  const std::span<const double> node_span(nodes.data(), static_cast<std::size_t>(nodes.size()));
  const std::span<const double> weight_span(weights.data(), static_cast<std::size_t>(weights.size()));
  const auto rows = static_cast<std::size_t>(features.shape(1));
  return simulate(run, parsed, n_threads, keep_trace, [&](std::size_t i, const KernelTable& table) {
    const Records records{features.data() + i * rows * static_cast<std::size_t>(p),
                          response.data() + i * rows,
                          features.shape(1),
                          p,
                          false,
                          intercept};
    return std::make_unique<GlmTarget>(model, records, run.kind, node_span, weight_span, table, run.sample_rate,
                                       run.max_grad_norm, parsed[i]);
  });
}

}  // namespace

void bind_simulated_runs(py::module_& module) {
  module.def("simulate_conjugate", &simulate_conjugate, py::kw_only(), py::arg("family"), py::arg("prior").noconvert(),
             py::arg("n_trials"), py::arg("statistics").noconvert(), py::arg("counts").noconvert(), py::arg("settings"),
             py::arg("boundaries").noconvert(), py::arg("nodes").noconvert(), py::arg("weights").noconvert(),
             py::arg("keys"), py::arg("n_threads"), py::arg("keep_trace"));
  module.def("simulate_glm", &simulate_glm, py::kw_only(), py::arg("likelihood"), py::arg("features").noconvert(),
             py::arg("response").noconvert(), py::arg("intercept"), py::arg("prior_scale"), py::arg("variance_shape"),
             py::arg("variance_rate"), py::arg("second_moments").noconvert(), py::arg("settings"),
             py::arg("boundaries").noconvert(), py::arg("nodes").noconvert(), py::arg("weights").noconvert(),
             py::arg("keys"), py::arg("n_threads"), py::arg("keep_trace"));
}

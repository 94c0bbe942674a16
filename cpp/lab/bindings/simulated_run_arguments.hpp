// What the bindings of simulated runs share: their settings, keys and records, and the arrays of what comes back.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "lab/study/glm_target.hpp"
#include "lab/study/simulated_run.hpp"

namespace dpinfer::bindings {

namespace py = pybind11;

inline study::GradientKind kind_from_name(const std::string& name) {
  if (name == "quadrature") return study::GradientKind::quadrature;
  if (name == "draws") return study::GradientKind::draws;
  if (name == "aligned") return study::GradientKind::aligned;
  throw py::value_error("kind must be one of 'quadrature', 'draws', 'aligned'");
}

template <typename... Arrays>
void check_aligned(const Arrays&... arrays) {
  (aligned_data("every array", arrays), ...);
}

inline py::object entry(const py::dict& settings, const char* name) {
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

inline std::span<const double> numbers(const py::dict& settings, const char* name) {
  const py::object value = entry(settings, name);
  if (!py::isinstance<Array<double>>(value)) {
    throw py::type_error(std::string(name) + " must be a C-contiguous float64 array");
  }
  const auto array = py::reinterpret_borrow<Array<double>>(value);
  return {aligned_data(name, array), static_cast<std::size_t>(array.size())};
}

// The spans point into arrays that the caller's dict keeps alive.
inline study::RunSettings run_settings(const py::dict& s, const Array<std::int64_t>& boundaries) {
  study::RunSettings r{};
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
  if (r.kind == study::GradientKind::draws && r.n_draws < 1) throw py::value_error("n_draws must be at least 1");
  if (r.n_draws > 10'000) throw py::value_error("n_draws must be at most 10000");
  bool increasing = r.boundaries.size() >= 2 && r.boundaries.front() == 0 && r.boundaries.back() == r.n_steps;
  for (std::size_t i = 1; increasing && i < r.boundaries.size(); ++i)
    increasing = r.boundaries[i - 1] < r.boundaries[i];
  if (!increasing) throw py::value_error("boundaries must increase from 0 to n_steps");
  return r;
}

inline std::vector<RandomKey> run_keys(const py::list& keys) {
  std::vector<RandomKey> parsed;
  for (const auto& key : keys) {
    if (!py::isinstance<py::bytes>(key)) throw py::type_error("keys must hold bytes");
    parsed.push_back(random_key(py::reinterpret_borrow<py::bytes>(key)));
  }
  if (parsed.empty()) throw py::value_error("keys must not be empty");
  return parsed;
}

// What the runs write, run by run, and the dict that it comes back in.
class RunArrays {
 public:
  RunArrays(const study::RunSettings& settings, std::size_t n_runs, bool keep_trace)
      : d_(settings.start.size()),
        width_(settings.kind == study::GradientKind::aligned ? d_ / 2 : d_),
        n_blocks_(settings.boundaries.size() - 1),
        side_width_(settings.kind == study::GradientKind::aligned && !settings.fisher ? 0 : d_ / 2),
        steps_(keep_trace ? static_cast<std::size_t>(settings.n_steps) : 0),
        blocks_({size(n_runs), size(n_blocks_), size(study::kBlockFields), size(width_)}),
        side_({size(n_runs), size(n_blocks_), size(study::kSideFields), size(side_width_)}),
        path_({size(n_runs), size(n_blocks_), size(d_)}),
        reference_({size(n_runs), size(width_)}),
        final_params_({size(n_runs), size(d_)}),
        trace_({size(n_runs), size(steps_), size(d_ + 2 * width_)}),
        finite_(size(n_runs)) {}

  std::vector<study::RunOutput> outputs() {
    std::vector<study::RunOutput> found;
    for (std::size_t i = 0; i < static_cast<std::size_t>(finite_.size()); ++i) {
      found.push_back({part(blocks_, i, n_blocks_ * study::kBlockFields * width_),
                       part(side_, i, n_blocks_ * study::kSideFields * side_width_), part(path_, i, n_blocks_ * d_),
                       part(reference_, i, width_), part(final_params_, i, d_),
                       part(trace_, i, steps_ * (d_ + 2 * width_))});
    }
    return found;
  }
  bool* finite() { return finite_.mutable_data(); }

  py::dict result() const {
    py::dict arrays;
    arrays["blocks"] = blocks_;
    arrays["side"] = side_;
    arrays["path"] = path_;
    arrays["reference"] = reference_;
    arrays["final_params"] = final_params_;
    arrays["trace"] = trace_;
    arrays["finite"] = finite_;
    return arrays;
  }

 private:
  static py::ssize_t size(std::size_t value) { return static_cast<py::ssize_t>(value); }
  static std::span<double> part(py::array_t<double>& array, std::size_t run, std::size_t length) {
    return {array.mutable_data() + run * length, length};
  }

  std::size_t d_, width_, n_blocks_, side_width_, steps_;
  py::array_t<double> blocks_, side_, path_, reference_, final_params_, trace_;
  py::array_t<bool> finite_;
};

// Regressions of many runs.  features: (runs, rows, p) float64; response: (runs, rows).
struct GlmRuns {
  study::GlmModel model;
  Array<double> features, response;
  std::span<const double> nodes, weights;

  std::size_t n_rows() const { return static_cast<std::size_t>(features.shape(1)); }
  int n_features() const { return static_cast<int>(features.shape(2)); }
  bool has_intercept() const { return model.n_coef > n_features(); }
  std::unique_ptr<study::GlmTarget> target(const study::RunSettings& run, std::size_t i, const KernelTable& table,
                                           const RandomKey& key) const {
    const Records records{features.data() + i * n_rows() * static_cast<std::size_t>(n_features()),
                          response.data() + i * n_rows(),
                          features.shape(1),
                          n_features(),
                          false,
                          has_intercept()};
    return std::make_unique<study::GlmTarget>(model, records, run.kind, nodes, weights, table, run.sample_rate,
                                              run.max_grad_norm, key);
  }
};

inline GlmRuns glm_runs(const study::RunSettings& run, std::size_t n_runs, const std::string& likelihood,
                        const Array<double>& features, const Array<double>& response, bool intercept,
                        double prior_scale, double variance_shape, double variance_rate,
                        const Array<double>& second_moments, const Array<double>& nodes, const Array<double>& weights) {
  if (likelihood != "gaussian" && likelihood != "logistic") {
    throw py::value_error("likelihood must be one of 'gaussian', 'logistic'");
  }
  if (features.ndim() != 3 || response.ndim() != 2 || features.shape(0) != response.shape(0) ||
      features.shape(1) != response.shape(1) || features.shape(0) != static_cast<py::ssize_t>(n_runs)) {
    throw py::value_error("features must be (runs, rows, p) and response (runs, rows)");
  }
  const int p = static_cast<int>(features.shape(2));
  study::GlmModel model{likelihood == "gaussian",
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
  return {std::move(model),
          features,
          response,
          {nodes.data(), static_cast<std::size_t>(nodes.size())},
          {weights.data(), static_cast<std::size_t>(weights.size())}};
}

// `module.simulate_glm`, whoever computes it.
template <typename Simulate>
void define_simulate_glm(py::module_& module, Simulate simulate) {
  module.def("simulate_glm", simulate, py::kw_only(), py::arg("likelihood"), py::arg("features").noconvert(),
             py::arg("response").noconvert(), py::arg("intercept"), py::arg("prior_scale"), py::arg("variance_shape"),
             py::arg("variance_rate"), py::arg("second_moments").noconvert(), py::arg("settings"),
             py::arg("boundaries").noconvert(), py::arg("nodes").noconvert(), py::arg("weights").noconvert(),
             py::arg("keys"), py::arg("n_threads"), py::arg("keep_trace"));
}

}  // namespace dpinfer::bindings

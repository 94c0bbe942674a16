// Batches of simulated regressions whose sums a GPU makes: an optional module beside _native, with the same results.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/parallel.hpp"
#include "lab/bindings/simulated_run_arguments.hpp"
#include "lab/study/lockstep.hpp"
#include "mechanism/cuda/device_rows.hpp"

namespace dpinfer::bindings {

// A thread has at least so many runs, or a GPU would have little to do at a time.
static constexpr std::int64_t kFewestRuns = 32;

static py::dict simulate_glm(const std::string& likelihood, const Array<double>& features,
                             const Array<double>& response, bool intercept, double prior_scale, double variance_shape,
                             double variance_rate, const Array<double>& second_moments, const py::dict& settings,
                             const Array<std::int64_t>& boundaries, const Array<double>& nodes,
                             const Array<double>& weights, const py::list& keys, int n_threads, bool keep_trace) {
  check_aligned(features, response, second_moments, boundaries, nodes, weights);
  const study::RunSettings run = run_settings(settings, boundaries);
  const auto parsed = run_keys(keys);
  const GlmRuns runs = glm_runs(run, parsed.size(), likelihood, features, response, intercept, prior_scale,
                                variance_shape, variance_rate, second_moments, nodes, weights);
  if (!study::runs_fit_device(run, runs.model.n_coef)) {
    throw py::value_error(
        "backend must be 'cpu' for this recipe: a GPU takes expectations by quadrature, with a split loss and at "
        "most " +
        std::to_string(study::kMostDeviceCoef) + " weights");
  }
  RunArrays arrays(run, parsed.size(), keep_trace);
  const auto outputs = arrays.outputs();
  const KernelTable& table = kernels();
  std::vector<std::unique_ptr<study::GlmTarget>> targets;
  std::vector<study::GlmTarget*> lent;
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    targets.push_back(runs.target(run, i, table, parsed[i]));
    lent.push_back(targets.back().get());
  }
  const study::DeviceRunsShape shape{static_cast<std::int64_t>(parsed.size()),
                                     static_cast<std::int64_t>(runs.n_rows()),
                                     runs.n_features(),
                                     intercept,
                                     runs.model.gaussian ? Likelihood::gaussian : Likelihood::logistic,
                                     targets.front()->task().clip_norm,
                                     targets.front()->threshold(),
                                     runs.nodes,
                                     runs.weights};
  bool* const finite = arrays.finite();
  const int threads =
      static_cast<int>(std::clamp<std::int64_t>(shape.n_runs / kFewestRuns, 1, resolve_threads(n_threads)));
  {
    py::gil_scoped_release unlocked;
    study::lockstep_runs(run, lent, table, parsed, outputs, shape, features.data(), response.data(), threads, finite);
  }
  return arrays.result();
}

}  // namespace dpinfer::bindings

PYBIND11_MODULE(_cuda, module) {
  using namespace dpinfer;
  module.doc() = "Batches of simulated regressions on a GPU: the results of _native.";
  module.def("device_count", &device_count);
  module.def("free_bytes", &free_bytes);
  bindings::define_simulate_glm(module, &bindings::simulate_glm);
}

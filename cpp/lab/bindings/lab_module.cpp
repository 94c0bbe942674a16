// The compiled half of dpinfer.lab: simulated records in, statistics of their releases out, and checks of draws.
#include <pybind11/pybind11.h>

void bind_draw_moments(pybind11::module_& module);
void bind_network_passes(pybind11::module_& module);
void bind_simulated_runs(pybind11::module_& module);
void bind_stationary(pybind11::module_& module);
void bind_tarp(pybind11::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() =
      "Batches of simulated runs of the mechanism, stationary covariances, and the counts of coverage tests.";
  bind_draw_moments(module);
  bind_network_passes(module);
  bind_simulated_runs(module);
  bind_stationary(module);
  bind_tarp(module);
}

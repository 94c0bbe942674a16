// The compiled half of dpinfer.studies: simulated records in, statistics of their releases out.
#include <pybind11/pybind11.h>

void bind_simulated_runs(pybind11::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "Batches of simulated runs of the mechanism, for coverage studies.";
  bind_simulated_runs(module);
}

// The compiled half of dpinfer.mechanism: everything that reads private records.
#include <pybind11/pybind11.h>

void bind_affine_session(pybind11::module_& module);
void bind_network(pybind11::module_& module);
void bind_partial_sum(pybind11::module_& module);
void bind_person_scores(pybind11::module_& module);
void bind_regression_rows(pybind11::module_& module);
void bind_site_session(pybind11::module_& module);
void bind_step_session(pybind11::module_& module);
void bind_random_source(pybind11::module_& module);
void bind_mutants(pybind11::module_& module);  // nothing, outside the module of mutants

PYBIND11_MODULE(_native, module) {
  module.doc() = "Private kernels: Poisson sampling, clipped lattice sums and noise.";
  for (const auto bind : {bind_random_source, bind_step_session, bind_affine_session, bind_network, bind_site_session,
                          bind_partial_sum, bind_person_scores, bind_regression_rows, bind_mutants}) {
    bind(module);
  }
}

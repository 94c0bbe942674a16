// The compiled half of dpinfer.inference: post-processing of published traces, no records.
#include <pybind11/pybind11.h>

void bind_gram_statistics(pybind11::module_& module);
void bind_trace_statistics(pybind11::module_& module);
void bind_collapsed_posterior(pybind11::module_& module);
void bind_mixture_quantiles(pybind11::module_& module);

PYBIND11_MODULE(_native, module) {
  module.doc() = "Trace statistics, and the quadrature of the noise-aware posterior.";
  bind_trace_statistics(module);
  bind_gram_statistics(module);
  bind_collapsed_posterior(module);
  bind_mixture_quantiles(module);
}

#include <vector>

#include "bindings/array_arguments.hpp"
#include "inference/trace_statistics.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

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
  const std::span<double> cells(out.mutable_data(), static_cast<std::size_t>(out.size()));
  StatisticsStatus status{};
  {
    py::gil_scoped_release unlocked;
    std::vector<double> scratch(trace_scratch_size(edges, trace.coordinates));
    status = trace_statistics(trace, edges, n_threads, scratch, cells);
  }
  if (status != StatisticsStatus::kOk) throw py::value_error("boundaries must increase strictly within the trace");
  return out;
}

}  // namespace

void bind_trace_statistics(py::module_& module) {
  module.def("trace_statistics", &statistics, py::arg("positions").noconvert(), py::arg("gradients").noconvert(),
             py::arg("noise_stddev").noconvert(), py::arg("reference").noconvert(), py::arg("boundaries").noconvert(),
             py::arg("n_threads"));
}

// Rows of a regression on a GPU, with the passes of RegressionRows: an optional module beside _native, whose PartialSum
// and Residuals it takes.
#include "bindings/regression_arguments.hpp"
#include "mechanism/cuda/device_rows.hpp"

namespace dpinfer::bindings {

struct PyDeviceRows {
  int n_features;
  bool has_intercept;
  std::int64_t n_rows;
  std::shared_ptr<const DeviceRows> rows;

  int n_coef() const { return n_features + (has_intercept ? 1 : 0); }
};

static PyDeviceRows make_device_rows(const py::array& features, const Array<double>& response, bool intercept) {
  const Records records = regression_records(features, response, intercept);
  if (records.n_rows > (std::int64_t{1} << 31)) throw py::value_error("rows must be at most 2**31");
  py::gil_scoped_release unlocked;
  return {records.n_features, intercept, records.n_rows, std::make_shared<const DeviceRows>(records)};
}

static void add_pass(const PyDeviceRows& self, PartialSum& sum, const RegressionPass& pass) {
  check_length(sum, regression_task(Records{}, pass, sum.lattice()).released_length());
  if (!DeviceRows::fits(self.n_coef(), pass.n_directions)) {
    throw py::value_error("transform must have at most about 6000 rows and columns together on a GPU");
  }
  add_part(sum, self.n_rows, [&](std::span<std::int64_t> part) { self.rows->sum(pass, sum.lattice(), part); });
}

}  // namespace dpinfer::bindings

PYBIND11_MODULE(_cuda, module) {
  using namespace dpinfer;
  using namespace dpinfer::bindings;
  module.doc() = "Passes over a regression's records on a GPU: the integers of the CPU's passes.";
  module.def("device_count", &device_count);
  module.def("free_bytes", &free_bytes);
  py::class_<PyDeviceRows> rows(module, "DeviceRows", py::module_local());
  rows.def(py::init(&make_device_rows), StandardArithmetic(), py::kw_only(), exact("features"), exact("response"),
           "intercept"_a);
  define_passes(rows);
}

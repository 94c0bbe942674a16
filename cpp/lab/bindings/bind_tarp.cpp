#include "lab/bindings/draw_arguments.hpp"

namespace py = pybind11;
using namespace dpinfer::bindings;
using namespace dpinfer::lab;

namespace {

template <typename Scalar>
py::tuple counts(const Array<Scalar>& draws, const Array<double>& thetas, const Array<double>& references,
                 const Array<double>& inverse_scales, int n_threads) {
  const TarpKernels& kernels = kernels_or_throw();
  const TarpView view = view_of(draws);
  const py::ssize_t sims = draws.shape(1);
  const py::ssize_t row = sims * draws.shape(2);
  if (references.ndim() != 3) throw py::value_error("references must be (R, K, d)");
  const py::ssize_t repeats = references.shape(0);
  const TarpQuestion question{flat("thetas", thetas, row), flat("references", references, repeats * row),
                              flat("inverse_scales", inverse_scales, row)};
  py::array_t<std::uint32_t> joint({repeats, sims});
  py::array_t<std::uint32_t> marginal({repeats, sims, draws.shape(2)});
  const TarpCounts out{{joint.mutable_data(), static_cast<std::size_t>(joint.size())},
                       {marginal.mutable_data(), static_cast<std::size_t>(marginal.size())}};
  TarpStatus status{};
  {
    py::gil_scoped_release unlocked;
    status = tarp_counts(kernels, view, question, n_threads, out);
  }
  refuse(status);
  return py::make_tuple(joint, marginal);
}

template <typename Scalar>
void define(py::module_& module) {
  module.def("tarp_counts", &counts<Scalar>, py::arg("samples").noconvert(), py::arg("thetas").noconvert(),
             py::arg("references").noconvert(), py::arg("inverse_scales").noconvert(), py::arg("n_threads"));
}

}  // namespace

void bind_tarp(py::module_& module) {
  define<double>(module);
  define<float>(module);
}

#include <algorithm>

#include "bindings/array_arguments.hpp"
#include "inference/mixture_quantiles.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

py::array_t<double> quantiles(const Array<std::int64_t>& offsets, const Array<double>& weight,
                              const Array<double>& mean, const Array<double>& variance, const Array<double>& levels,
                              const Array<double>& standard) {
  const auto places = flat("offsets", offsets, offsets.size());
  if (places.empty() || places.front() != 0 || places.back() != weight.size() ||
      !std::is_sorted(places.begin(), places.end())) {
    throw py::value_error("offsets must increase from 0 to the number of components");
  }
  const NormalMixtureView mixtures{places, flat("weight", weight, weight.size()), flat("mean", mean, weight.size()),
                                   flat("variance", variance, weight.size())};
  const auto at = flat("levels", levels, levels.size());
  const auto z = flat("standard", standard, levels.size());
  py::array_t<double> out({static_cast<py::ssize_t>(at.size()), static_cast<py::ssize_t>(mixtures.size())});
  const std::span<double> found(out.mutable_data(), at.size() * mixtures.size());
  {
    py::gil_scoped_release unlocked;
    mixture_quantiles(mixtures, at, z, found);
  }
  return out;
}

}  // namespace

void bind_mixture_quantiles(py::module_& module) {
  module.def("mixture_quantiles", &quantiles, py::arg("offsets").noconvert(), py::arg("weight").noconvert(),
             py::arg("mean").noconvert(), py::arg("variance").noconvert(), py::arg("levels").noconvert(),
             py::arg("standard").noconvert());
}

// Posterior draws as arguments, and what the kernels that read them may refuse.
#pragma once

#include <stdexcept>

#include "bindings/array_arguments.hpp"
#include "lab/tarp.hpp"

namespace dpinfer::bindings {

inline const lab::TarpKernels& kernels_or_throw() {
  const lab::TarpKernels* kernels = lab::tarp_kernels();
  if (kernels == nullptr) throw std::runtime_error("DPINFER_SIMD names instructions that are not available here");
  return *kernels;
}

template <typename Scalar>
lab::TarpView view_of(const Array<Scalar>& draws) {
  if (draws.ndim() != 3 || draws.size() == 0) throw pybind11::value_error("samples must be (S, K, d), none of them 0");
  const auto extent = [&](int axis) { return static_cast<std::size_t>(draws.shape(axis)); };
  return {flat("samples", draws, draws.size()), extent(0), extent(1), extent(2)};
}

inline void refuse(lab::TarpStatus status) {
  if (status == lab::TarpStatus::kBadShape)
    throw pybind11::value_error("samples must agree in shape with the other arrays");
  if (status == lab::TarpStatus::kNotFinite)
    throw pybind11::value_error("samples must be finite, and so must their distances");
}

}  // namespace dpinfer::bindings

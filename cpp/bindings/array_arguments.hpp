// Checks shared by the bindings: arrays arrive as they are (noconvert), C-contiguous, aligned, in the stated shape.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/float_environment.hpp"

namespace dpinfer::bindings {

using namespace pybind11::literals;

// An argument that is refused where it would have to be converted.
inline pybind11::arg exact(const char* name) { return pybind11::arg(name).noconvert(); }

// For the definition of every function that draws or adds up records.
using StandardArithmetic = pybind11::call_guard<FloatEnvironment>;

// c_style without forcecast: a wrong dtype or layout is refused, never converted.
template <typename Scalar>
using Array = pybind11::array_t<Scalar, pybind11::array::c_style>;

// NumPy lets an array begin at any byte; a kernel's loads, and the compiler's reasoning about them, do not.
template <typename Scalar>
const Scalar* aligned_data(const char* name, const Array<Scalar>& array) {
  if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(Scalar) != 0) {
    throw pybind11::value_error(std::string(name) + " must be aligned in memory");
  }
  return array.data();
}

template <typename Scalar>
std::span<const Scalar> flat(const char* name, const Array<Scalar>& array, pybind11::ssize_t length) {
  if (array.size() != length) {
    throw pybind11::value_error(std::string(name) + " must have " + std::to_string(length) + " elements, got " +
                                std::to_string(array.size()));
  }
  return {aligned_data(name, array), static_cast<std::size_t>(array.size())};
}

}  // namespace dpinfer::bindings

// Keys and kernel tables for the bindings of the mechanism.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "mechanism/chacha20.hpp"

namespace dpinfer::bindings {

inline RandomKey random_key(const pybind11::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  if (view.size() != 32) throw pybind11::value_error("key must have 32 bytes, got " + std::to_string(view.size()));
  return RandomKey::from_bytes(reinterpret_cast<const std::uint8_t*>(view.data()));
}

inline const KernelTable& kernels() {
  const KernelTable* table = kernel_table();
  if (table == nullptr) {
    throw pybind11::value_error("DPINFER_SIMD names a variant that this build or processor does not have");
  }
  return *table;
}

}  // namespace dpinfer::bindings

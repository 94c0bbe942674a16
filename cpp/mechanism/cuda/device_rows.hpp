// The records of a regression in the memory of a GPU, and passes over them: the integers that the CPU's passes give.
// No header of CUDA is needed here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "mechanism/rows/regression_rows.hpp"

namespace dpinfer {

// So many GPUs can be used; 0 without a driver.
int device_count();

// Bytes that are free on the GPU.
std::int64_t free_bytes();

class DeviceRows {
 public:
  // Copies dense records.  Throws std::runtime_error when the GPU refuses, here and below; no message has a number of
  // the records.
  explicit DeviceRows(const Records& records);
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;
  ~DeviceRows();

  // Whether a record and its whitened features fit into the memory of a block of threads.
  static bool fits(int n_coef, int n_directions);

  // Writes the sum over all records to `part`, as long as a record's vector.
  void sum(const RegressionPass& pass, const Lattice& lattice, std::span<std::int64_t> part) const;

 private:
  struct Memory;
  Records records_;  // on the GPU
  std::unique_ptr<Memory> memory_;
};

}  // namespace dpinfer

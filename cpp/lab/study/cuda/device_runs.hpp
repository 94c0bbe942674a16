// The records of many simulated runs in the memory of a GPU, and the sums of their steps: the integers that the CPU's
// sessions give.  No header of CUDA is needed here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lab/study/cuda/step_numbers.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"

namespace dpinfer::study {

// What all runs have in common.
struct DeviceRunsShape {
  std::int64_t n_runs, n_rows;
  int n_features;
  bool has_intercept;
  Likelihood likelihood;
  double clip_norm;  // in lattice steps
  SampleThreshold threshold;
  std::span<const double> nodes, node_weights;  // of the expectations

  int n_coef() const { return n_features + (has_intercept ? 1 : 0); }
  bool has_dispersion() const { return likelihood == Likelihood::gaussian; }
  int n_sums() const { return 2 * (n_coef() + (has_dispersion() ? 1 : 0)); }
};

// Runs are summed in two halves, each while the host works on the other.
inline constexpr int kDeviceHalves = 2;

class DeviceRuns {
 public:
  // features: n_runs x n_rows x n_features; response: n_runs x n_rows; a key for each run.  Throws std::runtime_error
  // when the GPU refuses, here and below.
  DeviceRuns(const DeviceRunsShape& shape, const double* features, const double* response,
             std::span<const RandomKey> keys);
  DeviceRuns(const DeviceRuns&) = delete;
  DeviceRuns& operator=(const DeviceRuns&) = delete;
  ~DeviceRuns();

  // Runs first(half) to first(half + 1) are a half's.
  std::int64_t first(int half) const { return shape_.n_runs * half / kDeviceHalves; }
  // Where a run's numbers are written, between wait and start.
  StepNumbers& numbers(std::int64_t run) const;
  // Sums the step's sampled records of a half's runs.
  void start(int half, std::uint64_t step);
  // Returns when that is done.
  void wait(int half);
  // A run's sums: n_sums() numbers in the order of a release, between wait and start.
  std::span<const std::int64_t> sums(std::int64_t run) const;

 private:
  struct Memory;
  DeviceRunsShape shape_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace dpinfer::study

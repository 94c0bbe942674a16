// The public numbers of one step of one run, as a GPU takes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer::study {

// The most weights of a run on a GPU: a thread keeps a record, and the sums of its own, in registers.
inline constexpr int kMostDeviceCoef = 12;
inline constexpr int kMostDeviceSums = 2 * (kMostDeviceCoef + 1);

struct StepNumbers {
  double loc[kMostDeviceCoef];
  double variance[kMostDeviceCoef];
  double loc_scale[kMostDeviceCoef];
  double raw_scale[kMostDeviceCoef];
  DispersionMoments moments;
  double dispersion_loc_scale, dispersion_raw_scale;

  void set(const GradientTask& task) {
    const auto n = static_cast<std::size_t>(task.n_coef);
    std::copy_n(task.loc, n, loc);
    std::copy_n(task.variance, n, variance);
    std::copy_n(task.loc_scale, n, loc_scale);
    std::copy_n(task.raw_scale, n, raw_scale);
    moments = task.moments;
    dispersion_loc_scale = task.dispersion_loc_scale;
    dispersion_raw_scale = task.dispersion_raw_scale;
  }
};

}  // namespace dpinfer::study

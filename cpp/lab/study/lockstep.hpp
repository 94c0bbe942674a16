// Many simulated runs, a step of many of them at a time: records and sums on a GPU, all else here.
#pragma once

#include <span>

#include "lab/study/cuda/device_runs.hpp"
#include "lab/study/glm_target.hpp"
#include "lab/study/simulated_run.hpp"

namespace dpinfer::study {

// Whether a GPU can sum such runs.
bool runs_fit_device(const RunSettings& settings, int n_coef);

// Does what simulated_run does for every run, to the same bits; finite[i] is what it returns.  Features and response
// are those of the targets, in their order.  Each thread has runs of its own, and waits for no other.  Throws
// std::runtime_error when the GPU refuses.
void lockstep_runs(const RunSettings& settings, std::span<GlmTarget* const> targets, const KernelTable& kernels,
                   std::span<const RandomKey> keys, std::span<const RunOutput> outputs, const DeviceRunsShape& shape,
                   const double* features, const double* response, int n_threads, bool* finite);

}  // namespace dpinfer::study

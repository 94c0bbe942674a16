#include "lab/study/lockstep.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace dpinfer::study {

namespace {

// One run between two sums.
class LockstepRun {
 public:
  LockstepRun(const RunSettings& settings, GlmTarget& target, const KernelTable& kernels, const RandomKey& key,
              const RunOutput& out)
      : settings_(settings), target_(target), run_(settings, target, kernels, key, out) {}

  bool finite() const { return finite_; }

  void begin_step(StepNumbers& numbers) {
    if (!finite_) return;
    run_.begin_step();
    numbers.set(target_.task());
  }

  void finish_step(std::span<const std::int64_t> sums) {
    if (!finite_) return;
    std::array<std::int64_t, kMostDeviceSums> memory{};
    const std::span<std::int64_t> own(memory.data(), sums.size());
    const auto step = static_cast<std::uint64_t>(run_.step());
    if (target_.task().has_offset) {
      target_.clipped_sum(step,
                          own);  // the iterate is about to leave the finite numbers: no other run has offsets here
    } else {
      std::copy(sums.begin(), sums.end(), own.begin());
    }
    target_.release(step, settings_.noise_multiplier, own, run_.released());
    finite_ = run_.finish_step();
  }

 private:
  const RunSettings& settings_;
  GlmTarget& target_;
  SimulatedRun run_;
  bool finite_ = true;
};

// All steps of all runs.  A turn of a half: what the last step's sums lead to, and the numbers of the next step.
void advance(const RunSettings& settings, std::span<LockstepRun> runs, DeviceRuns& device) {
  for (std::int64_t step = 0; step <= settings.n_steps; ++step) {
    for (int half = 0; half < kDeviceHalves; ++half) {
      device.wait(half);
      for (std::int64_t i = device.first(half); i < device.first(half + 1); ++i) {
        LockstepRun& run = runs[static_cast<std::size_t>(i)];
        if (step > 0) run.finish_step(device.sums(i));
        if (step < settings.n_steps) run.begin_step(device.numbers(i));
      }
      if (step < settings.n_steps) device.start(half, static_cast<std::uint64_t>(step));
    }
  }
}

}  // namespace

bool runs_fit_device(const RunSettings& settings, int n_coef) {
  return settings.kind == GradientKind::quadrature && !settings.per_example && n_coef <= kMostDeviceCoef;
}

void lockstep_runs(const RunSettings& settings, std::span<GlmTarget* const> targets, const KernelTable& kernels,
                   std::span<const RandomKey> keys, std::span<const RunOutput> outputs, const DeviceRunsShape& shape,
                   const double* features, const double* response, int n_threads, bool* finite) {
  const int n_parts = static_cast<int>(std::clamp<std::int64_t>(shape.n_runs, 1, n_threads));
  // An exception must not leave a parallel region.
  std::exception_ptr failure;
#pragma omp parallel for schedule(static, 1) num_threads(n_parts)
  for (int part = 0; part < n_parts; ++part) {
    try {
      const auto first = static_cast<std::size_t>(shape.n_runs * part / n_parts);
      const auto count = static_cast<std::size_t>(shape.n_runs * (part + 1) / n_parts) - first;
      const auto first_row = first * static_cast<std::size_t>(shape.n_rows);
      std::vector<LockstepRun> runs;
      runs.reserve(count);
      for (std::size_t i = first; i < first + count; ++i) {
        runs.emplace_back(settings, *targets[i], kernels, keys[i], outputs[i]);
      }
      DeviceRunsShape own = shape;
      own.n_runs = static_cast<std::int64_t>(count);
      DeviceRuns device(own, features + first_row * static_cast<std::size_t>(shape.n_features), response + first_row,
                        keys.subspan(first, count));
      advance(settings, runs, device);
      for (std::size_t i = 0; i < count; ++i) finite[first + i] = runs[i].finite();
    } catch (...) {
#pragma omp critical(dpinfer_lockstep_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dpinfer::study

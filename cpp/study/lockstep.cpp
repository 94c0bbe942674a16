#include "study/lockstep.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
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

}  // namespace

bool runs_fit_device(const RunSettings& settings, int n_coef) {
  return settings.kind == GradientKind::quadrature && !settings.per_example && n_coef <= kMostDeviceCoef;
}

void lockstep_runs(const RunSettings& settings, std::span<GlmTarget* const> targets, const KernelTable& kernels,
                   std::span<const RandomKey> keys, std::span<const RunOutput> outputs, DeviceRuns& device,
                   int n_threads, bool* finite) {
  std::vector<LockstepRun> runs;
  runs.reserve(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    runs.emplace_back(settings, *targets[i], kernels, keys[i], outputs[i]);
  }
  // A turn of a half: what the last step's sums lead to, and the numbers of the next step.
  for (std::int64_t step = 0; step <= settings.n_steps; ++step) {
    for (int half = 0; half < kDeviceHalves; ++half) {
      device.wait(half);
#pragma omp parallel for schedule(static) num_threads(n_threads)
      for (std::int64_t i = device.first(half); i < device.first(half + 1); ++i) {
        LockstepRun& run = runs[static_cast<std::size_t>(i)];
        if (step > 0) run.finish_step(device.sums(i));
        if (step < settings.n_steps) run.begin_step(device.numbers(i));
      }
      if (step < settings.n_steps) device.start(half, static_cast<std::uint64_t>(step));
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) finite[i] = runs[i].finite();
}

}  // namespace dpinfer::study

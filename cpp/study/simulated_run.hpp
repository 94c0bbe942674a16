// One simulated run of the mechanism, of which only streaming statistics of its release are kept.
#pragma once

#include <cstdint>
#include <span>

#include "mechanism/chacha20.hpp"
#include "study/target.hpp"

namespace dpinfer::study {

// The public settings of a run; the C++ side of what dpinfer.mechanism.run_dpvi does around its noisy sums.
struct RunSettings {
  std::int64_t n_steps;
  std::int64_t n_records;
  double sample_rate, noise_multiplier, max_grad_norm;
  GradientKind kind;
  int n_draws;       // draws per step for GradientKind::draws
  bool per_example;  // whether a share 1/N of prior and entropy sits inside the clipped gradients
  bool fisher;       // beta and step from the expected information at the iterate, else the arrays below
  double raw_ratio;  // fisher: rho
  double excursion;  // fisher and aligned: standard deviation of the draws, in units of scale = (N I)^(-1/2)
  std::span<const double> grad_scale;        // beta, 2 n
  std::span<const double> learning_rate;     // 2 n
  std::span<const double> schedule;          // n_steps: multiplies the learning rate, or is the natural step's rate
  std::span<const double> start;             // 2 n
  std::span<const std::int64_t> boundaries;  // of the blocks of steps: first = 0 < ... < last = n_steps
};

// Fields of one block and coordinate: sums of weights, means and centred sums as in inference/trace_statistics.hpp.
inline constexpr std::size_t kBlockFields = 6;
// Of the second regression of the tied posterior, per parameter: sums of squared design, design times response, squared
// response, design, response, in units of the noise.  Then sums of position and squared position with the weights of
// the last parameter's regression: where its steps find the others.
inline constexpr std::size_t kSideFields = 7;

struct RunOutput {
  std::span<double> blocks;        // n_blocks x kBlockFields x width
  std::span<double> side;          // n_blocks x kSideFields x n; aligned: the last two fields if fisher, else empty
  std::span<double> path;          // n_blocks x 2 n: mean of the iterates
  std::span<double> reference;     // width: the noise that weight 1 belongs to (that of the first step)
  std::span<double> final_params;  // 2 n
  std::span<double> trace;         // n_steps x (2 n + 2 width), or empty: iterate, released gradient, noise
};

// Returns false when the iterate left the finite numbers.
bool simulated_run(const RunSettings& settings, Target& target, const KernelTable& kernels, const RandomKey& key,
                   const RunOutput& out);

}  // namespace dpinfer::study

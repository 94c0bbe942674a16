// One simulated run of the mechanism, of which only streaming statistics of its release are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lab/study/block_sums.hpp"
#include "lab/study/target.hpp"
#include "mechanism/chacha20.hpp"

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

// A run, a step at a time: begin_step(); the target's noisy sum, into released(); finish_step().
class SimulatedRun {
 public:
  // Everything that is given must outlive it.
  SimulatedRun(const RunSettings& settings, Target& target, const KernelTable& kernels, const RandomKey& key,
               const RunOutput& out);

  std::int64_t step() const { return step_; }
  // Tells the target what the next sum is of.
  void begin_step();
  std::span<double> released() { return released_; }
  // Takes released(), which it overwrites; false when the iterate left the finite numbers.
  bool finish_step();

 private:
  void scale_by_information(const Iterate& at);
  double entropy(std::size_t j) const;  // the gradient of -H in raw
  void add_to_block(const Iterate& at);
  void add_to_side();
  void keep_trace();
  bool move();

  const RunSettings& s_;
  Target& target_;
  const KernelTable& kernels_;
  RandomKey key_;
  RunOutput out_;
  std::size_t d_, n_;
  bool aligned_;
  std::size_t width_;
  double noise_, share_, total_records_;
  std::int64_t step_ = 0;
  std::size_t block_index_ = 0;
  Iterate q_;
  // Aligned gradients are taken, and scaled, at a sampled point, whose spread around loc is public.
  Iterate point_;
  BlockSums block_;
  std::vector<double> beta_, rate_, information_, prior_, offset_, released_, full_, tau_, scaled_, weight_, position_,
      chain_, draws_, path_, side_;
};

// Returns false when the iterate left the finite numbers.
bool simulated_run(const RunSettings& settings, Target& target, const KernelTable& kernels, const RandomKey& key,
                   const RunOutput& out);

}  // namespace dpinfer::study

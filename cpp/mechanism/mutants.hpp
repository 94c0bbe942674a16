// Classic bugs as switches, to check that the privacy audit finds each of them.
//
// DPINFER_MUTATE(code) is `code` in the module that the CMake option DPINFER_MUTANTS builds, which is never installed,
// and nothing at all everywhere else: a production build holds no switch (tests/privacy/test_audit_mutants.py).
#pragma once

#if !defined(DPINFER_MUTANTS)
#define DPINFER_MUTATE(...)
#else
#define DPINFER_MUTATE(...) __VA_ARGS__

#include <cstdint>
#include <span>
#include <vector>

#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/sum/lattice.hpp"

namespace dpinfer::mutants {

enum class Mutant {
  none,
  noise_halved,
  noise_short_by_a_tenth,
  variance_as_stddev,
  noise_not_scaled_by_norm,
  noise_added_per_thread,
  noise_reused,
  mask_reused,
  shuffled_batches,
  clip_after_sum,
  scale_after_clip,
  unclipped_prior_share,
  divided_by_batch_size,
  norm_from_data,
  count,
};

const char* mutant_name(Mutant mutant);

// One switch is on at a time; sessions must be made after it is thrown.  Not for several sessions at once.
void activate(Mutant mutant);

// Hooks, in the order in which a step meets them.  Each does nothing unless its bug is on.
Lattice lattice(double max_grad_norm, const Lattice& right);
struct Scales {
  std::vector<double> scale, offset;
};
Scales scales(std::span<const double> scale, std::span<const double> offset, double lattice_step);
std::uint64_t sample_step(std::uint64_t step);
// The sampled rows as they should not be, or a negative number where they are to be drawn as they should.
int sample(std::uint64_t step, std::int64_t first, int here, const SampleThreshold& threshold, std::int64_t* rows);
int count_rows(int count);
std::uint64_t noise_step(std::uint64_t step);
double noise_stddev(double stddev);
void before_noise(std::int64_t* sums, int n);
void after_noise(std::int64_t* sums, int n);

}  // namespace dpinfer::mutants

#endif

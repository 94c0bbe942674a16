#include "mechanism/mutants.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>

// Declared here as in common/parallel.hpp.
extern "C" int omp_get_thread_num(void);

namespace dpinfer::mutants {

namespace {

Mutant active = Mutant::none;
double norm = 1.0;                // C
double norm_steps = 1.0;          // C / g
double late_factor = 1.0;         // what clipped sums are multiplied by
double data_share = 1.0;          // length of the batch's mean vector over C
std::vector<double> late_offset;  // what is added for each sampled row after clipping, in lattice steps
std::atomic<std::int64_t> n_sampled{0};
std::atomic<std::uint64_t> threads_seen{0};

bool on(Mutant mutant) { return active == mutant; }

std::int64_t to_integer(double value) { return std::llrint(value); }

}  // namespace

const char* mutant_name(Mutant mutant) {
  static constexpr const char* kNames[] = {"none",
                                           "noise_halved",
                                           "noise_short_by_a_tenth",
                                           "variance_as_stddev",
                                           "noise_not_scaled_by_norm",
                                           "noise_added_per_thread",
                                           "noise_reused",
                                           "mask_reused",
                                           "shuffled_batches",
                                           "clip_after_sum",
                                           "scale_after_clip",
                                           "unclipped_prior_share",
                                           "divided_by_batch_size",
                                           "norm_from_data"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Mutant::count));
  return kNames[static_cast<std::size_t>(mutant)];
}

void activate(Mutant mutant) {
  active = mutant;
  late_factor = 1.0;
  data_share = 1.0;
  late_offset.clear();
  n_sampled = 0;
  threads_seen = 0;
}

Lattice lattice(double max_grad_norm, const Lattice& right) {
  norm = max_grad_norm;
  norm_steps = max_grad_norm / right.step;
  return on(Mutant::clip_after_sum) ? Lattice{right.step, 1e6 * max_grad_norm} : right;
}

Scales scales(std::span<const double> scale, std::span<const double> offset, double lattice_step) {
  Scales changed{{scale.begin(), scale.end()}, {offset.begin(), offset.end()}};
  if (on(Mutant::scale_after_clip)) {
    late_factor = scale[0];
    for (double& value : changed.scale) value /= late_factor;
    for (double& value : changed.offset) value /= late_factor;
  }
  if (on(Mutant::unclipped_prior_share)) {
    late_offset.assign(offset.begin(), offset.end());
    for (double& value : late_offset) value /= lattice_step;
    std::fill(changed.offset.begin(), changed.offset.end(), 0.0);
  }
  return changed;
}

std::uint64_t sample_step(std::uint64_t step) { return on(Mutant::mask_reused) ? step / 2 : step; }

int sample(std::uint64_t step, std::int64_t first, int here, const SampleThreshold& threshold, std::int64_t* rows) {
  if (!on(Mutant::shuffled_batches) || threshold.everything) return -1;
  // A pass over the rows takes 1 / rate steps, and every row is in one batch of each pass.
  const auto n_batches = static_cast<std::int64_t>(std::llround(1.0 / threshold.effective_rate()));
  int count = 0;
  for (int i = 0; i < here; ++i) {
    if ((first + i + static_cast<std::int64_t>(step)) % n_batches == 0) rows[count++] = first + i;
  }
  return count;
}

int count_rows(int count) {
  n_sampled += count;
  threads_seen |= std::uint64_t{1} << (omp_get_thread_num() % 64);
  return count;
}

std::uint64_t noise_step(std::uint64_t step) { return on(Mutant::noise_reused) ? step / 2 : step; }

double noise_stddev(double stddev) {
  const double multiplier = stddev / norm_steps;
  if (on(Mutant::noise_halved)) return 0.5 * stddev;
  if (on(Mutant::noise_short_by_a_tenth)) return 0.9 * stddev;
  if (on(Mutant::variance_as_stddev)) return std::sqrt(multiplier * norm) * norm_steps / norm;
  if (on(Mutant::noise_not_scaled_by_norm)) return stddev / norm;
  // The batch's own vectors in the place of the bound on any record's.
  if (on(Mutant::norm_from_data)) return stddev * data_share;
  // Each thread adds the same draws to its own sum.
  if (on(Mutant::noise_added_per_thread)) return stddev * std::max(1, std::popcount(threads_seen.load()));
  return stddev;
}

void before_noise(std::int64_t* sums, int n) {
  const auto rows = static_cast<double>(n_sampled.load());
  double square = 0.0;
  for (int j = 0; j < n; ++j) square += static_cast<double>(sums[j]) * static_cast<double>(sums[j]);
  const double length = std::sqrt(square);
  if (rows > 0.0) data_share = std::min(1.0, length / (rows * norm_steps));
  for (int j = 0; j < n; ++j) {
    auto value = static_cast<double>(sums[j]);
    if (on(Mutant::clip_after_sum) && length > norm_steps) value *= norm_steps / length;
    if (on(Mutant::scale_after_clip)) value *= late_factor;
    if (on(Mutant::unclipped_prior_share) && static_cast<std::size_t>(j) < late_offset.size()) {
      value += rows * late_offset[static_cast<std::size_t>(j)];
    }
    if (active == Mutant::clip_after_sum || active == Mutant::scale_after_clip ||
        active == Mutant::unclipped_prior_share) {
      sums[j] = to_integer(value);
    }
  }
}

void after_noise(std::int64_t* sums, int n) {
  if (on(Mutant::divided_by_batch_size)) {
    const auto rows = static_cast<double>(std::max<std::int64_t>(1, n_sampled.load()));
    for (int j = 0; j < n; ++j) sums[j] = to_integer(static_cast<double>(sums[j]) / rows);
  }
  n_sampled = 0;
  threads_seen = 0;
}

}  // namespace dpinfer::mutants

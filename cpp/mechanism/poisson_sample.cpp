#include "mechanism/poisson_sample.hpp"

#include <algorithm>
#include <cmath>

#include "mechanism/mutants.hpp"

namespace dpinfer {

SampleThreshold SampleThreshold::from_rate(double rate) {
  if (rate >= 1.0) return {0, 0, true};
  const auto scaled = static_cast<std::uint64_t>(std::floor(std::ldexp(rate, 40)));
  return {static_cast<std::uint32_t>(scaled >> 32), static_cast<std::uint32_t>(scaled), false};
}

double SampleThreshold::effective_rate() const {
  return everything ? 1.0 : std::ldexp(static_cast<double>(byte) * 4294967296.0 + word, -40);
}

int poisson_sample(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, std::int64_t block,
                   std::int64_t n_rows, const SampleThreshold& threshold, std::int64_t* rows) {
  const std::int64_t first = block * kRowBlock;
  const int here = static_cast<int>(std::min(kRowBlock, n_rows - first));
  DPINFER_MUTATE(step = mutants::sample_step(step);
                 const int wrong = mutants::sample(step, first, here, threshold, rows);
                 if (wrong >= 0) return mutants::count_rows(wrong);)
  if (threshold.everything) {
    for (int i = 0; i < here; ++i) rows[i] = first + i;
    DPINFER_MUTATE(mutants::count_rows(here);)
    return here;
  }
  constexpr std::size_t kBlocks = static_cast<std::size_t>(kRowBlock) / kChaChaBlockBytes;
  std::uint8_t bytes[kBlocks * kChaChaBlockBytes];
  keystream(kernels, key, RandomDomain::subsample, step, static_cast<std::uint32_t>(block * kBlocks), kBlocks, bytes);
  // Bit i: row i's byte is at most the threshold's; and, among those, equal to it: a further word decides.
  std::uint64_t masks[kRowBlock / 64];
  std::uint64_t tie_masks[kRowBlock / 64];
  kernels.threshold_masks(bytes, sizeof bytes, static_cast<std::uint8_t>(threshold.byte), masks, tie_masks);
  if (here < kRowBlock) masks[here / 64] &= (std::uint64_t{1} << (here % 64)) - 1;
  // One row in 256 ties; ties take the words of the block's tie stream in row order.
  std::uint8_t tie_bytes[kChaChaBlockBytes];
  std::uint32_t ties = 0;
  const int n_masks = (here + 63) / 64;
  for (int i = 0; i < n_masks; ++i) {
    for (std::uint64_t tied = masks[i] & tie_masks[i]; tied != 0; tied &= tied - 1) {
      const std::uint32_t slot = ties % 16;
      if (slot == 0) {
        keystream(kernels, key, RandomDomain::subsample_ties, step,
                  static_cast<std::uint32_t>(block * (kRowBlock / 16)) + ties / 16, 1, tie_bytes);
      }
      std::uint32_t word = 0;
      for (std::uint32_t b = 0; b < 4; ++b) word |= static_cast<std::uint32_t>(tie_bytes[4 * slot + b]) << (8 * b);
      ++ties;
      if (word >= threshold.word) masks[i] ^= tied & (~tied + 1);
    }
  }
  const int count = kernels.list_rows(masks, n_masks, first, rows);
  DPINFER_MUTATE(mutants::count_rows(count);)
  return count;
}

}  // namespace dpinfer

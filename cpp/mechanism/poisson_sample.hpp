// Poisson sampling: each row independently with probability kappa, regenerated from (key, step, row block) by anyone.
#pragma once

#include <cstdint>

#include "mechanism/chacha20.hpp"

namespace dpinfer {

// Rows are sampled in blocks of this many, each from sixteen keystream blocks of its own.
inline constexpr std::int64_t kRowBlock = 1024;

// A sampling rate rounded down to a multiple of 2^-40, so that the effective rate never exceeds the accounted one.
struct SampleThreshold {
  std::uint32_t byte;  // rows whose byte is below are in
  std::uint32_t word;  // rows whose byte is equal are in when a further word is below
  bool everything;     // rate 1

  static SampleThreshold from_rate(double rate);
  double effective_rate() const;
};

// Writes the sampled rows of block `block` (rows block * kRowBlock ... below n_rows) in increasing order to `rows`,
// which holds kRowBlock entries; returns how many.
int poisson_sample(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, std::int64_t block,
                   std::int64_t n_rows, const SampleThreshold& threshold, std::int64_t* rows);

}  // namespace dpinfer

// Rows drawn one at a time: uniformly and afresh at every step, or in the random order of an epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "mechanism/chacha20.hpp"

namespace dpinfer {

// Unbiased integers below a bound, by rejection, from the stream (subsample, step).  A key serves one kind of sampling:
// the streams are those of poisson_sample.
class BoundedIntegers {
 public:
  BoundedIntegers(const KernelTable& kernels, const RandomKey& key, std::uint64_t step)
      : kernels_(kernels), key_(key), step_(step) {}

  std::int64_t below(std::int64_t bound);  // in [0, bound); bound is positive

 private:
  static constexpr std::uint32_t kBlocks = 16;
  static constexpr std::uint32_t kWords = kBlocks * 8;

  std::uint64_t word();

  const KernelTable& kernels_;
  RandomKey key_;
  std::uint64_t step_;
  std::uint32_t counter_ = 0;
  std::uint32_t used_ = kWords;
  std::uint64_t words_[kWords] = {};
};

// The one row of this step, uniform on [0, n_rows).
std::int64_t uniform_row(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, std::int64_t n_rows);

// A uniformly random order of 0 ... n_rows - 1 (Fisher and Yates, as given by Durstenfeld 1964).
std::vector<std::int64_t> row_order(const KernelTable& kernels, const RandomKey& key, std::uint64_t epoch,
                                    std::int64_t n_rows);

}  // namespace dpinfer

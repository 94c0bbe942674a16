// An exact lattice sum that is made in parts: over blocks of rows, sources that follow each other, or other machines.
//
// Parts are added in any order, and noise is drawn once, for the whole: noise of each part would add up.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

class PartialSum {
 public:
  // length: at most kMaxLatticeDimension; max_norm: of one record's contribution, in [1e-30, 1e30].
  PartialSum(int length, double max_norm)
      : max_norm_(max_norm), lattice_(Lattice::from_max_norm(max_norm)), sum_(static_cast<std::size_t>(length)) {}

  int length() const { return static_cast<int>(sum_.size()); }
  double max_norm() const { return max_norm_; }
  const Lattice& lattice() const { return lattice_; }
  std::span<const std::int64_t> integers() const { return sum_; }
  std::span<std::int64_t> integers() { return sum_; }

  // To be told of the rows of every part that is made here: so many that a sum might overflow are refused.
  void count_rows(std::int64_t n_rows) {
    if (n_rows > kMostRows - n_rows_) throw std::length_error("a sum must be over at most 2**31 records");
    n_rows_ += n_rows;
  }

  // Takes in the integers of another part of the same sum (wrapping, as sums do: the whole is inside int64).
  void merge(std::span<const std::int64_t> part) {
    for (std::size_t j = 0; j < sum_.size(); ++j) {
      sum_[j] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum_[j]) + static_cast<std::uint64_t>(part[j]));
    }
  }

  // What is released: the sum with noise of standard deviation noise_multiplier * max_norm from the stream (noise,
  // step).  The exact sum stays as it is.
  void noisy(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double noise_multiplier,
             std::span<double> released) const {
    std::vector<std::int64_t> copy(sum_);
    PrivateSum(kernels, max_norm_, key, 1).release(step, noise_multiplier, copy, released);
  }

 private:
  static constexpr std::int64_t kMostRows = std::int64_t{1} << 31;

  double max_norm_;
  Lattice lattice_;
  std::int64_t n_rows_ = 0;
  std::vector<std::int64_t> sum_;
};

}  // namespace dpinfer

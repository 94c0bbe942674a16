#include "mechanism/row_draws.hpp"

#include <cstddef>
#include <numeric>
#include <utility>

namespace dpinfer {

std::uint64_t BoundedIntegers::word() {
  if (used_ == kWords) {
    keystream_words(kernels_, key_, RandomDomain::subsample, step_, counter_, kBlocks, words_);
    counter_ += kBlocks;
    used_ = 0;
  }
  return words_[used_++];
}

std::int64_t BoundedIntegers::below(std::int64_t bound) {
  const auto size = static_cast<std::uint64_t>(bound);
  // Words below 2^64 mod size are refused: what is left is a whole number of copies of [0, size).
  const std::uint64_t refused = (std::uint64_t{0} - size) % size;
  for (;;) {
    const std::uint64_t value = word();
    if (value >= refused) return static_cast<std::int64_t>(value % size);
  }
}

std::int64_t uniform_row(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, std::int64_t n_rows) {
  return BoundedIntegers(kernels, key, step).below(n_rows);
}

std::vector<std::int64_t> row_order(const KernelTable& kernels, const RandomKey& key, std::uint64_t epoch,
                                    std::int64_t n_rows) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n_rows));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  BoundedIntegers integers(kernels, key, epoch);
  for (std::int64_t i = n_rows - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(integers.below(i + 1))]);
  }
  return order;
}

}  // namespace dpinfer

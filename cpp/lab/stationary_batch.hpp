// One matrix of a batch, and how many threads share a batch: what the files behind stationary.hpp have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "common/parallel.hpp"
#include "lab/stationary.hpp"

namespace dpinfer::lab {

// Above this width LAPACK has threads of its own, and the batch is gone through one by one.
inline constexpr std::size_t kSmall = 64;

struct Item {
  const double* hessian;
  const double* rate;
  const double* noise;
};

inline std::size_t row_of(std::span<const double> values, std::size_t width, std::size_t s) {
  return values.size() == width ? 0 : s * width;
}

inline Item item_of(const StationaryBatch& batch, std::size_t s) {
  const std::size_t n = batch.width;
  return {batch.hessian.data() + s * n * n, batch.rate.data() + row_of(batch.rate, n, s),
          batch.noise.data() + row_of(batch.noise, n, s)};
}

inline int team_of(const StationaryBatch& batch, int threads) {
  const bool worth = batch.width <= kSmall && batch.count * batch.width * batch.width > 4096;
  return worth ? resolve_threads(threads) : 1;
}

inline bool is_isotropic(const Item& item, std::size_t n) {
  double low = item.rate[0] * item.noise[0] * item.noise[0];
  double high = low;
  for (std::size_t j = 1; j < n; ++j) {
    const double energy = item.rate[j] * item.noise[j] * item.noise[j];
    low = std::min(low, energy);
    high = std::max(high, energy);
  }
  return high - low <= 1e-13 * high;
}

}  // namespace dpinfer::lab

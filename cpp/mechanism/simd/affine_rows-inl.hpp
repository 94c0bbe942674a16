// Gradients that are affine in a record's sufficient statistics, eight records in the eight lanes, clipped and rounded.
#pragma once

#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Adds the integer contributions of `count` <= kRowGroup records to `sums` (task.length numbers, two's complement).
// statistics: kRowGroup records, statistic by statistic (n_statistics x kRowGroup); lanes beyond `count` are ignored.
void affine_rows(const AffineTask& task, const double* statistics, int count, std::uint64_t* sums) {
  Vec gradient[kMaxAffineLength];
  Vec square = splat(0.0);
  for (int j = 0; j < task.length; ++j) {
    Vec value = splat(task.offset[j]);
    for (int s = 0; s < task.n_statistics; ++s) {
      value = fused(load(statistics + s * kRowGroup), splat(task.matrix[j * task.n_statistics + s]), value);
    }
    gradient[j] = value;
    square = fused(value, value, square);
  }
  double norms[kRowGroup];
  double live[kRowGroup];
  store(norms, square);
  for (int r = 0; r < kRowGroup; ++r) {
    norms[r] = square_root(norms[r]);
    // NaN, infinite or not there: contributes zero.
    live[r] = r < count && norms[r] <= kFinite ? 1.0 : 0.0;
    if (live[r] == 0.0) norms[r] = 0.0;
  }
  const Vec norm = load(norms);
  const Vec factor = clipping_factor(norm, task.clip_norm);
  const Vec alive = load(live);
  const Vec magic = splat(kRoundMagic);
  for (int j = 0; j < task.length; ++j) {
    // A dead lane's gradient may be NaN: it is replaced, not multiplied away.
    const Vec value = select_less(splat(0.5), alive, gradient[j], splat(0.0));
    std::uint64_t words[kRowGroup];
    store(words, as_bits(fused(value, factor, magic)) - as_bits(magic));
    std::uint64_t total = 0;
    for (int r = 0; r < kRowGroup; ++r) total += words[r];
    sums[j] += total;
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

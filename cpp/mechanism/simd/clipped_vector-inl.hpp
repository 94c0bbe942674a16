// One record's contribution, whatever computed it: clipped, rounded and added to the sums, or, without privacy, only
// clipped and added.
#pragma once

#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// values: `length` doubles, a multiple of eight, zero beyond the contribution; overwritten.  inverse_step is a power of
// two, so that only overflow (the contribution is then zero) and underflow below every lattice step can change a value.
void clipped_vector(double* values, int length, double inverse_step, double clip_norm, std::uint64_t* sums) {
  const Vec unit = splat(inverse_step);
  Vec square = splat(0.0);
  for (int j = 0; j < length; j += kLanes) {
    const Vec value = load(values + j) * unit;
    store(values + j, value);
    square = fused(value, value, square);
  }
  const double norm = square_root(lane_sum(square));
  if (!(norm <= kFinite)) return;  // NaN or infinite: contributes zero
  const Vec factor = splat(norm > clip_norm ? clip_norm / norm : 1.0);
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = as_bits(magic);
  for (int j = 0; j < length; j += kLanes) {
    store(sums + j, load(sums + j) - surplus + as_bits(fused(load(values + j), factor, magic)));
  }
}

// Adds `values` clipped to `max_norm` (infinity for none) to `sums` in float64; `length` is a multiple of eight.
void plain_vector(const double* values, int length, double max_norm, double* sums) {
  Vec square = splat(0.0);
  for (int j = 0; j < length; j += kLanes) square = fused(load(values + j), load(values + j), square);
  const double norm = square_root(lane_sum(square));
  if (!(norm <= kFinite)) return;
  const Vec factor = splat(norm > max_norm ? max_norm / norm : 1.0);
  for (int j = 0; j < length; j += kLanes) store(sums + j, fused(factor, load(values + j), load(sums + j)));
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/kernel_table.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Parts of this file, one concept each.
// clang-format off
#include "mechanism/chacha20_lanes.inc"
#include "mechanism/row_masks.inc"
#include "mechanism/record_rows.inc"
#include "mechanism/slopes.inc"
#include "mechanism/wide_rows.inc"
#include "mechanism/factored_rows.inc"
#include "mechanism/narrow_rows.inc"
#include "mechanism/clipped_rows.inc"
#include "mechanism/affine_rows.inc"
#include "mechanism/clipped_vector.inc"
// clang-format on

// log(u) with u in (0, 1] keeps the radius finite; 53 bits reach 8.57 standard deviations (see the derivation page).
void box_muller(const std::uint64_t* words, std::size_t n_pairs, double* normals) {
  const Vec unit = splat(0x1.0p-53);
  const Bits one = splat_bits(1);
  const Bits exponent = splat_bits(0x4330000000000000ULL);
  const Vec bias = splat(4503599627370496.0);
  for (std::size_t i = 0; i < n_pairs; i += kLanes) {
    std::uint64_t radius_words[kLanes];
    std::uint64_t angle_words[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      radius_words[lane] = words[2 * (i + static_cast<std::size_t>(lane))];
      angle_words[lane] = words[2 * (i + static_cast<std::size_t>(lane)) + 1];
    }
    // 53 random bits as a double: the upper 52 through the exponent trick, the last one added.
    const Bits radius = shift_right<11>(load(radius_words));
    const Bits angle = shift_right<11>(load(angle_words));
    const Vec radius_high = as_vec(shift_right<1>(radius) | exponent) - bias;
    const Vec radius_low = as_vec((radius & one) | exponent) - bias;
    const Vec angle_high = as_vec(shift_right<1>(angle) | exponent) - bias;
    const Vec angle_low = as_vec((angle & one) | exponent) - bias;
    const Vec u = (radius_high + radius_high + radius_low + splat(1.0)) * unit;
    const Vec turns = (angle_high + angle_high + angle_low) * unit;
    Vec squared = splat(-2.0) * log(u);
    double r[kLanes];
    store(r, squared);
    for (int lane = 0; lane < kLanes; ++lane) r[lane] = square_root(r[lane]);
    Vec cosine;
    Vec sine;
    cos_sin_turns(turns, cosine, sine);
    store(normals + i, load(r) * cosine);
    store(normals + n_pairs + i, load(r) * sine);
  }
}

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {DPINFER_VARIANT_NAME, chacha20_blocks, threshold_masks, list_rows,   box_muller,
                            clipped_rows,         affine_rows,     clipped_vector,  plain_vector};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// Box-Muller on 53-bit uniforms, eight pairs at a time, and its rounding to integers with a certificate.
//
// docs/derivations/noise.md proves the error bound that the certificate uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "common/special.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

struct NormalPairs {
  Vec cosine, sine;  // r cos(2 pi t), r sin(2 pi t)
  Vec radius, u;
};

// 53 random bits as a double: the upper 52 through the exponent trick, the last one added.
DPINFER_INLINE Vec integer_from_bits(const Bits& bits) {
  const Bits exponent = splat_bits(0x4330000000000000ULL);
  const Vec bias = splat(4503599627370496.0);
  const Vec high = as_vec(shift_right<1>(bits) | exponent) - bias;
  const Vec low = as_vec((bits & splat_bits(1)) | exponent) - bias;
  return high + high + low;
}

// From words of eight pairs, radius and angle in turn.  The order of the pairs is such that a second exchange puts
// eight of each result back in turn.  log(u) with u in (0, 1] keeps the radius finite; 53 bits reach 8.57 standard
// deviations.
DPINFER_INLINE NormalPairs normal_pairs(const std::uint64_t* words) {
  Vec radius_words = as_vec(load(words));
  Vec angle_words = as_vec(load(words + kLanes));
  exchange<1>(radius_words, angle_words);
  const Vec unit = splat(0x1.0p-53);
  NormalPairs pairs;
  pairs.u = (integer_from_bits(shift_right<11>(as_bits(radius_words))) + splat(1.0)) * unit;
  const Vec turns = integer_from_bits(shift_right<11>(as_bits(angle_words))) * unit;
  const Vec log_u = log(pairs.u);
  pairs.radius = square_root(splat(0.0) - (log_u + log_u));  // a difference: the root of -0 would be -0
  cos_sin_turns(turns, pairs.cosine, pairs.sine);
  pairs.cosine = pairs.radius * pairs.cosine;
  pairs.sine = pairs.radius * pairs.sine;
  return pairs;
}

void box_muller(const std::uint64_t* words, std::size_t n_pairs, double* normals) {
  for (std::size_t i = 0; i < 2 * n_pairs; i += 2 * kLanes) {
    NormalPairs pairs = normal_pairs(words + i);
    exchange<1>(pairs.cosine, pairs.sine);
    store(normals + i, pairs.cosine);
    store(normals + i + kLanes, pairs.sine);
  }
}

// At least 1 / x and at most 9 / 8 of it, for positive x: the bits of a double are a piecewise linear logarithm.  Huge
// for zero.
DPINFER_INLINE Vec above_reciprocal(const Vec& x) { return as_vec(splat_bits(0x7fe0000000000000ULL) - as_bits(x)); }

// Rounds y, in lattice steps; bit i of what is returned says that lane i may be wrong, being within `error` of a place
// where rounding changes.
DPINFER_INLINE std::uint64_t round_lanes(const Vec& y, const Vec& error, std::int64_t* rounded) {
  const Vec magic = splat(kRoundMagic);
  const Vec shifted = y + magic;
  const Vec distance = absolute(y - (shifted - magic));
  const Bits integers = as_bits(shifted) - as_bits(magic);
  std::uint64_t bits[kLanes];
  store(bits, integers);
  std::memcpy(rounded, bits, sizeof bits);
  // Also where the error is not a number, or so large that y is beyond what the addition rounds.
  return lanes_not_less(error, splat(0.5) - distance);
}

void round_normals(const std::uint64_t* words, std::size_t n_pairs, double stddev, std::int64_t* rounded,
                   std::uint64_t* unsure) {
  // Times stddev and 2^-53: 15.5 |z| for the arithmetic, 6.5 of the other of the pair for the angle's unknown bits, and
  // 1.01 / (U R) for the radius's.
  const Vec scale = splat(stddev);
  const Vec by_value = splat(stddev * 0x1.fp-50);
  const Vec by_partner = splat(stddev * 0x1.ap-51);
  const Vec by_slope = splat(stddev * 0x1.03p-53);
  const Vec least = splat(0x1.0p-33);
  for (std::size_t i = 0; i < 2 * n_pairs; i += 2 * kLanes) {
    const NormalPairs pairs = normal_pairs(words + i);
    const Vec slope = above_reciprocal(pairs.u * pairs.radius);
    const Vec cosine = absolute(pairs.cosine);
    const Vec sine = absolute(pairs.sine);
    const Vec common = select_less(pairs.u, least, splat(1.0), by_slope * slope);
    Vec first_error = fused(by_value, cosine, fused(by_partner, sine, common));
    Vec second_error = fused(by_value, sine, fused(by_partner, cosine, common));
    Vec first = pairs.cosine * scale;
    Vec second = pairs.sine * scale;
    exchange<1>(first, second);
    exchange<1>(first_error, second_error);
    const std::uint64_t low = round_lanes(first, first_error, rounded + i);
    const std::uint64_t high = round_lanes(second, second_error, rounded + i + kLanes);
    if (i % 64 == 0) unsure[i / 64] = 0;
    unsure[i / 64] |= (low | high << kLanes) << (i % 64);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// Normals to 80 and to 160 bits, for the few draws whose rounding the float64 arithmetic cannot decide.
//
// A pair of draws is a function of two real numbers in [0, 1], of which a stream holds the leading bits: the radius's
// uniform U lies in (k, k + 1] 2^-53 and the angle's T in [j, j + 1) 2^-53, k and j being the 53 bits that Box-Muller
// in float64 uses.  Here 128 further bits of each are read, from a domain of their own.
#pragma once

#include <cstdint>

namespace dpinfer {

// Round(stddev * R cos(2 pi T)) and round(stddev * R sin(2 pi T)), R = sqrt(-2 log U), for
//   U = (k 2^128 + e + 1) 2^-181,  T = (j 2^128 + f) 2^-181,
// where k and j are the upper 53 bits of the two words, e = radius_extra[1] 2^64 + radius_extra[0], and f likewise.
// The values that are rounded are off by less than the last bits of U and T; docs/derivations/noise.md has the bound.
struct RoundedPair {
  std::int64_t cosine, sine;
};
RoundedPair exact_rounded_pair(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                               const std::uint64_t (&angle_extra)[2], double stddev);

// The same pair by 128-bit arithmetic on the first 75 of the further bits, several times as fast; or false where that
// does not prove both integers.
bool rounded_pair_128(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                      const std::uint64_t (&angle_extra)[2], double stddev, RoundedPair& pair);

}  // namespace dpinfer

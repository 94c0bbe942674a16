// Responses of eight persons, drawn from each person's own stream of words: a lane uses as many words as alone.
#pragma once

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/rows/person_draws.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

constexpr double kSmallRate = 30.0;
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

DPINFER_INLINE Bits mixed(Bits value) {
  value = (value ^ shift_right<30>(value)) * splat_bits(0xBF58476D1CE4E5B9ULL);
  value = (value ^ shift_right<27>(value)) * splat_bits(0x94D049BB133111EBULL);
  return value ^ shift_right<31>(value);
}

// SplitMix64 from a person's seed, and the number of a pass and a draw.
class LaneStream {
 public:
  LaneStream(const std::uint64_t (&seeds)[2][kLanes], std::uint64_t number)
      : state_(mixed(load(seeds[0]) + mixed(load(seeds[1]) ^ mixed(splat_bits((number + 1) * kGolden))))) {}

  explicit LaneStream(const Bits& state) : state_(state) {}

  DPINFER_INLINE Bits word() {
    state_ = state_ + splat_bits(kGolden);
    return mixed(state_);
  }

  // Inside of (0, 1).
  static DPINFER_INLINE Vec unit(const Bits& word) {
    return as_vec(shift_right<12>(word) | splat_bits(0x3ff0000000000000ULL)) - splat(0x1.fffffffffffffp-1);
  }
  DPINFER_INLINE Vec uniform() { return unit(word()); }

  // Box-Muller, with half a word for each of the pair's uniforms: it ends at 6.7 standard deviations.
  DPINFER_INLINE Vec normal() {
    has_spare_ = !has_spare_;
    if (!has_spare_) return spare_;
    const Bits own = word(), exponent = splat_bits(0x4330000000000000ULL);
    const Vec bias = splat(0x1p52), unit = splat(0x1p-32);
    const Vec radius_part = as_vec(shift_right<32>(own) | exponent) - bias;
    const Vec turns = (as_vec((own & splat_bits(0xffffffffULL)) | exponent) - bias) * unit;
    const Vec log_u = log((radius_part + splat(1.0)) * unit);
    const Vec radius = square_root(splat(0.0) - (log_u + log_u));
    Vec cosine, sine;
    cos_sin_turns(turns, cosine, sine);
    spare_ = radius * sine;
    return radius * cosine;
  }

  DPINFER_INLINE Vec gamma(double shape) {
    std::uint64_t words[kLanes];
    double drawn[kLanes];
    store(words, word());
    for (int lane = 0; lane < kLanes; ++lane) drawn[lane] = draw_gamma(words[lane], shape);
    return load(drawn);
  }

  // In the place of n means, by inversion, four rows at once; larger means, and what is not a number, lane by lane.
  DPINFER_INLINE void poisson(double* means, int n) {
    for (int first = 0; first < n; first += kTogether) some_poisson(means + kLanes * first, n - first);
  }

 private:
  static constexpr int kTogether = 4;

  DPINFER_INLINE void some_poisson(double* means, int n) {
    const Vec zero = splat(0.0), one = splat(1.0), small = splat(kSmallRate);
    Bits own[kTogether];
    Vec rate[kTogether], density[kTogether], rest[kTogether], count[kTogether];
    std::uint64_t large = 0;
    for (int row = 0; row < kTogether; ++row) {
      if (row < n) own[row] = word();
      const Vec mean = row < n ? load(means + kLanes * row) : zero;
      large |= lanes_not_less(mean, small) << kLanes * row;
      rate[row] = select_less(mean, small, mean, zero);
      density[row] = exp(zero - rate[row]);
      rest[row] = row < n ? unit(own[row]) - density[row] : zero;
      count[row] = zero;
    }
    for (double next = 1.0;; next += 1.0) {
      const Vec inverse = splat(1.0 / next);
      Vec most = zero;
      for (int row = 0; row < kTogether; ++row) {
        const Vec alive = select_less(zero, rest[row], density[row], zero);
        most = maximum(most, alive);
        count[row] = count[row] + select_less(zero, alive, one, zero);
        density[row] = density[row] * (rate[row] * inverse);
        rest[row] = rest[row] - density[row];
      }
      if (all_at_most(most, zero)) break;
    }
    double counts[kTogether * kLanes];
    for (int row = 0; row < kTogether; ++row) store(counts + kLanes * row, count[row]);
    if (large != 0) {
      std::uint64_t words[kTogether * kLanes];
      for (int row = 0; row < kTogether && row < n; ++row) store(words + kLanes * row, own[row]);
      for (int place = 0; place < kTogether * kLanes; ++place) {
        if (large >> place & 1) counts[place] = draw_large_poisson(words[place], means[place]);
      }
    }
    for (int row = 0; row < kTogether && row < n; ++row) store(means + kLanes * row, load(counts + kLanes * row));
  }

  Bits state_;
  Vec spare_ = splat(0.0);
  bool has_spare_ = false;
};

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

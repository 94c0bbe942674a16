// Non-negative fixed-point numbers: 64 bits before the point and 192 after, in limbs from the least significant up.
//
// Every operation rounds down, and says by how much it can be off; ulp = 2^-192.  Nothing here overflows as long as
// values stay below 2^64.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dpinfer {

inline constexpr int kFixedLimbs = 4;
inline constexpr int kFractionBits = 192;

struct Fixed {
  std::array<std::uint64_t, kFixedLimbs> limb{};

  static constexpr Fixed from_integer(std::uint64_t value) { return {{0, 0, 0, value}}; }
  constexpr bool is_zero() const { return (limb[0] | limb[1] | limb[2] | limb[3]) == 0; }
};

// Exact.
constexpr Fixed operator+(const Fixed& a, const Fixed& b) {
  Fixed sum;
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < kFixedLimbs; ++i) {
    const std::uint64_t low = a.limb[i] + carry;
    carry = low < carry ? 1 : 0;
    sum.limb[i] = low + b.limb[i];
    carry += sum.limb[i] < low ? 1 : 0;
  }
  return sum;
}

struct Difference {
  Fixed value;
  std::uint64_t borrow;  // 1 where a < b
};

// a - b modulo 2^256 ulp, exact.
constexpr Difference difference(const Fixed& a, const Fixed& b) {
  Difference out{};
  for (std::size_t i = 0; i < kFixedLimbs; ++i) {
    const std::uint64_t low = a.limb[i] - b.limb[i];
    const std::uint64_t below = a.limb[i] < b.limb[i] ? 1 : 0;
    out.value.limb[i] = low - out.borrow;
    out.borrow = below | (low < out.borrow ? 1U : 0U);
  }
  return out;
}

// Exact; a is at least b.
constexpr Fixed operator-(const Fixed& a, const Fixed& b) { return difference(a, b).value; }

constexpr bool at_least(const Fixed& a, const Fixed& b) { return difference(a, b).borrow == 0; }

// Takes b off a where that leaves nothing negative; 1 where it does.  Without a branch: it would be a coin's.
constexpr std::uint64_t take_off(Fixed& a, const Fixed& b) {
  const Difference rest = difference(a, b);
  const std::uint64_t keep = std::uint64_t{0} - rest.borrow;
  for (std::size_t i = 0; i < kFixedLimbs; ++i) a.limb[i] = (a.limb[i] & keep) | (rest.value.limb[i] & ~keep);
  return 1 - rest.borrow;
}

// Exact, for a shift by less than 256 places that loses no bit.
constexpr Fixed shifted_left(const Fixed& a, int places) {
  Fixed out;
  const auto limbs = static_cast<std::size_t>(places / 64);
  const int bits = places % 64;
  for (std::size_t i = kFixedLimbs; i-- > limbs;) {
    out.limb[i] = a.limb[i - limbs] << bits;
    if (bits != 0 && i > limbs) out.limb[i] |= a.limb[i - limbs - 1] >> (64 - bits);
  }
  return out;
}

// The same for a few places, known beforehand.
template <int kPlaces>
constexpr Fixed shifted_left(const Fixed& a) {
  static_assert(kPlaces > 0 && kPlaces < 64);
  const auto& x = a.limb;
  return {{x[0] << kPlaces, (x[1] << kPlaces) | (x[0] >> (64 - kPlaces)), (x[2] << kPlaces) | (x[1] >> (64 - kPlaces)),
           (x[3] << kPlaces) | (x[2] >> (64 - kPlaces))}};
}

// Off by less than 1 ulp; 0 from 256 places on.
constexpr Fixed shifted_right(const Fixed& a, int places) {
  Fixed out;
  if (places >= 64 * kFixedLimbs) return out;
  const auto limbs = static_cast<std::size_t>(places / 64);
  const int bits = places % 64;
  for (std::size_t i = 0; i + limbs < kFixedLimbs; ++i) {
    out.limb[i] = a.limb[i + limbs] >> bits;
    if (bits != 0 && i + limbs + 1 < kFixedLimbs) out.limb[i] |= a.limb[i + limbs + 1] << (64 - bits);
  }
  return out;
}

struct WideProduct {
  std::uint64_t low, high;
};

// a * b, exact.
constexpr WideProduct wide_product(std::uint64_t a, std::uint64_t b) {
#if defined(__SIZEOF_INT128__)
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return {static_cast<std::uint64_t>(product), static_cast<std::uint64_t>(product >> 64)};
#else
  constexpr std::uint64_t kLow = 0xffffffffULL;
  const std::uint64_t ll = (a & kLow) * (b & kLow);
  const std::uint64_t lh = (a & kLow) * (b >> 32);
  const std::uint64_t hl = (a >> 32) * (b & kLow);
  const std::uint64_t middle = (ll >> 32) + (lh & kLow) + (hl & kLow);
  return {(middle << 32) | (ll & kLow), (a >> 32) * (b >> 32) + (lh >> 32) + (hl >> 32) + (middle >> 32)};
#endif
}

// Off by less than 1 ulp.
constexpr Fixed operator*(const Fixed& a, const Fixed& b) {
  std::array<std::uint64_t, 2 * static_cast<std::size_t>(kFixedLimbs)> full{};
  for (std::size_t i = 0; i < kFixedLimbs; ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < kFixedLimbs; ++j) {
      // At most (2^64 - 1)^2 + 2 (2^64 - 1) = 2^128 - 1: the high half cannot overflow.
      const WideProduct product = wide_product(a.limb[i], b.limb[j]);
      const std::uint64_t low = product.low + carry;
      carry = product.high + (low < carry ? 1 : 0);
      full[i + j] += low;
      carry += full[i + j] < low ? 1 : 0;
    }
    full[i + kFixedLimbs] = carry;
  }
  return {{full[3], full[4], full[5], full[6]}};
}

// a times an integer, exact.
constexpr Fixed times_integer(const Fixed& a, std::uint64_t factor) {
  Fixed out;
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < kFixedLimbs; ++i) {
    const WideProduct product = wide_product(a.limb[i], factor);
    out.limb[i] = product.low + carry;
    carry = product.high + (out.limb[i] < carry ? 1 : 0);
  }
  return out;
}

// a / b for a < b < 2^63, off by less than 1 ulp.
constexpr Fixed quotient(const Fixed& a, const Fixed& b) {
  Fixed remainder = a;
  Fixed out;
  for (int bit = 0; bit < kFractionBits; ++bit) {
    remainder = shifted_left<1>(remainder);
    out = shifted_left<1>(out);
    out.limb[0] |= take_off(remainder, b);
  }
  return out;
}

// The square root, off by less than 1 ulp: digit by digit, two bits of the radicand at a time.
constexpr Fixed square_root(const Fixed& a) {
  Fixed root;
  Fixed remainder;
  // The radicand is a 2^192 as an integer: 256 bits of a, then 192 zeros.
  for (int place = 2 * (32 * kFixedLimbs - 1); place >= -kFractionBits; place -= 2) {
    const auto limb = static_cast<std::size_t>(place >= 0 ? place / 64 : 0);
    const std::uint64_t digits = place >= 0 ? (a.limb[limb] >> (place % 64)) & 3U : 0U;
    remainder = shifted_left<2>(remainder);
    remainder.limb[0] |= digits;
    Fixed trial = shifted_left<2>(root);
    trial.limb[0] |= 1;
    root = shifted_left<1>(root);
    root.limb[0] |= take_off(remainder, trial);
  }
  return root;
}

}  // namespace dpinfer

// Non-negative fixed-point numbers: 64 bits before the point and 64 n after, in limbs from the least significant up.
//
// Every operation rounds down, and says by how much it can be off, in ulp = 2^(-64 n).  Nothing here overflows as long
// as values stay below 2^64.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dpinfer {

template <std::size_t kFraction>
struct Fixed {
  static constexpr std::size_t kLimbs = kFraction + 1;
  static constexpr int kFractionBits = 64 * static_cast<int>(kFraction);
  static constexpr int kBits = 64 * static_cast<int>(kLimbs);

  std::array<std::uint64_t, kLimbs> limb{};

  static constexpr Fixed from_integer(std::uint64_t value) {
    Fixed out;
    out.limb[kFraction] = value;
    return out;
  }
  // `value` ulp.
  static constexpr Fixed from_ulps(std::uint64_t value) {
    Fixed out;
    out.limb[0] = value;
    return out;
  }
  constexpr std::uint64_t integer() const { return limb[kFraction]; }
  // The first 64 bits after the point.
  constexpr std::uint64_t leading() const { return limb[kFraction - 1]; }
  constexpr bool is_zero() const {
    std::uint64_t any = 0;
    for (const std::uint64_t x : limb) any |= x;
    return any == 0;
  }
};

// Fewer places: off by less than 1 ulp of the result.
template <std::size_t kTo, std::size_t kFrom>
constexpr Fixed<kTo> truncated(const Fixed<kFrom>& a) {
  static_assert(kTo <= kFrom);
  Fixed<kTo> out;
  for (std::size_t i = 0; i <= kTo; ++i) out.limb[i] = a.limb[i + kFrom - kTo];
  return out;
}

// Exact.
template <std::size_t kFraction>
constexpr Fixed<kFraction> operator+(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  Fixed<kFraction> sum;
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < Fixed<kFraction>::kLimbs; ++i) {
    const std::uint64_t low = a.limb[i] + carry;
    carry = low < carry ? 1 : 0;
    sum.limb[i] = low + b.limb[i];
    carry += sum.limb[i] < low ? 1 : 0;
  }
  return sum;
}

template <std::size_t kFraction>
struct Difference {
  Fixed<kFraction> value;
  std::uint64_t borrow;  // 1 where a < b
};

// a - b modulo 2^64, exact.
template <std::size_t kFraction>
constexpr Difference<kFraction> difference(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  Difference<kFraction> out{};
  for (std::size_t i = 0; i < Fixed<kFraction>::kLimbs; ++i) {
    const std::uint64_t low = a.limb[i] - b.limb[i];
    const std::uint64_t below = a.limb[i] < b.limb[i] ? 1 : 0;
    out.value.limb[i] = low - out.borrow;
    out.borrow = below | (low < out.borrow ? 1U : 0U);
  }
  return out;
}

// Exact; a is at least b.
template <std::size_t kFraction>
constexpr Fixed<kFraction> operator-(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  return difference(a, b).value;
}

template <std::size_t kFraction>
constexpr bool at_least(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  return difference(a, b).borrow == 0;
}

// Takes b off a where that leaves nothing negative; 1 where it does.  Without a branch: it would be a coin's.
template <std::size_t kFraction>
constexpr std::uint64_t take_off(Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  const Difference<kFraction> rest = difference(a, b);
  const std::uint64_t keep = std::uint64_t{0} - rest.borrow;
  for (std::size_t i = 0; i < Fixed<kFraction>::kLimbs; ++i)
    a.limb[i] = (a.limb[i] & keep) | (rest.value.limb[i] & ~keep);
  return 1 - rest.borrow;
}

// Exact, for a shift by fewer places than there are that loses no bit.
template <std::size_t kFraction>
constexpr Fixed<kFraction> shifted_left(const Fixed<kFraction>& a, int places) {
  Fixed<kFraction> out;
  const auto limbs = static_cast<std::size_t>(places / 64);
  const int bits = places % 64;
  for (std::size_t i = a.kLimbs; i-- > limbs;) {
    out.limb[i] = a.limb[i - limbs] << bits;
    if (bits != 0 && i > limbs) out.limb[i] |= a.limb[i - limbs - 1] >> (64 - bits);
  }
  return out;
}

// The same for a few places, known beforehand.
template <int kPlaces, std::size_t kFraction>
constexpr Fixed<kFraction> shifted_left(const Fixed<kFraction>& a) {
  static_assert(kPlaces > 0 && kPlaces < 64);
  Fixed<kFraction> out;
  out.limb[0] = a.limb[0] << kPlaces;
  for (std::size_t i = 1; i < a.kLimbs; ++i) {
    out.limb[i] = (a.limb[i] << kPlaces) | (a.limb[i - 1] >> (64 - kPlaces));
  }
  return out;
}

// Off by less than 1 ulp; 0 from as many places on as there are.
template <std::size_t kFraction>
constexpr Fixed<kFraction> shifted_right(const Fixed<kFraction>& a, int places) {
  Fixed<kFraction> out;
  if (places >= a.kBits) return out;
  const auto limbs = static_cast<std::size_t>(places / 64);
  const int bits = places % 64;
  for (std::size_t i = 0; i + limbs < a.kLimbs; ++i) {
    out.limb[i] = a.limb[i + limbs] >> bits;
    if (bits != 0 && i + limbs + 1 < a.kLimbs) out.limb[i] |= a.limb[i + limbs + 1] << (64 - bits);
  }
  return out;
}

struct WideProduct {
  std::uint64_t low, high;
};

// a * b + c + d, exact: at most (2^64 - 1)^2 + 2 (2^64 - 1) = 2^128 - 1.
constexpr WideProduct wide_product(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
#if defined(__SIZEOF_INT128__)
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b + c + d;
  return {static_cast<std::uint64_t>(product), static_cast<std::uint64_t>(product >> 64)};
#else
  constexpr std::uint64_t kLow = 0xffffffffULL;
  const std::uint64_t ll = (a & kLow) * (b & kLow);
  const std::uint64_t lh = (a & kLow) * (b >> 32);
  const std::uint64_t hl = (a >> 32) * (b & kLow);
  const std::uint64_t middle = (ll >> 32) + (lh & kLow) + (hl & kLow);
  std::uint64_t high = (a >> 32) * (b >> 32) + (lh >> 32) + (hl >> 32) + (middle >> 32);
  std::uint64_t low = ((middle << 32) | (ll & kLow)) + c;
  high += low < c ? 1 : 0;
  low += d;
  high += low < d ? 1 : 0;
  return {low, high};
#endif
}

// Off by less than 1 ulp.
template <std::size_t kFraction>
constexpr Fixed<kFraction> operator*(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  std::array<std::uint64_t, 2 * Fixed<kFraction>::kLimbs> full{};
  for (std::size_t i = 0; i < a.kLimbs; ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < b.kLimbs; ++j) {
      const WideProduct product = wide_product(a.limb[i], b.limb[j], full[i + j], carry);
      full[i + j] = product.low;
      carry = product.high;
    }
    full[i + a.kLimbs] = carry;
  }
  Fixed<kFraction> out;
  for (std::size_t i = 0; i < out.kLimbs; ++i) out.limb[i] = full[i + kFraction];
  return out;
}

// a times an integer, exact.
template <std::size_t kFraction>
constexpr Fixed<kFraction> times_integer(const Fixed<kFraction>& a, std::uint64_t factor) {
  Fixed<kFraction> out;
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < a.kLimbs; ++i) {
    const WideProduct product = wide_product(a.limb[i], factor, carry, 0);
    out.limb[i] = product.low;
    carry = product.high;
  }
  return out;
}

// a / b for a < b < 2^63, off by less than 1 ulp.
template <std::size_t kFraction>
constexpr Fixed<kFraction> quotient(const Fixed<kFraction>& a, const Fixed<kFraction>& b) {
  Fixed<kFraction> remainder = a;
  Fixed<kFraction> out;
  for (int bit = 0; bit < a.kFractionBits; ++bit) {
    remainder = shifted_left<1>(remainder);
    out = shifted_left<1>(out);
    out.limb[0] |= take_off(remainder, b);
  }
  return out;
}

// The square root, off by less than 1 ulp: digit by digit, two bits of the radicand at a time.
template <std::size_t kFraction>
constexpr Fixed<kFraction> square_root(const Fixed<kFraction>& a) {
  Fixed<kFraction> root;
  Fixed<kFraction> remainder;
  // The radicand as an integer: the bits of a, then as many zeros as it has after the point.
  for (int place = a.kBits - 2; place >= -a.kFractionBits; place -= 2) {
    const auto limb = static_cast<std::size_t>(place >= 0 ? place / 64 : 0);
    const std::uint64_t digits = place >= 0 ? (a.limb[limb] >> (place % 64)) & 3U : 0U;
    remainder = shifted_left<2>(remainder);
    remainder.limb[0] |= digits;
    Fixed<kFraction> trial = shifted_left<2>(root);
    trial.limb[0] |= 1;
    root = shifted_left<1>(root);
    root.limb[0] |= take_off(remainder, trial);
  }
  return root;
}

}  // namespace dpinfer

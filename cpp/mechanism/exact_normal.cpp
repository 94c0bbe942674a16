#include "mechanism/exact_normal.hpp"

#include <bit>
#include <cmath>

#include "mechanism/fixed_point.hpp"

namespace dpinfer {

namespace {

// Rounded down to 192 bits after the point.
constexpr Fixed<3> kTwoPi{{0x48127044533e63a0ULL, 0x2633145c06e0e689ULL, 0x487ed5110b4611a6ULL, 6}};
constexpr Fixed<3> kLog2{{0x40f343267298b62dULL, 0xc9e3b39803f2f6afULL, 0xb17217f7d1cf79abULL, 0}};

// Terms after which the series below are shorter than 32 and than 1 ulp: (3 - sqrt 8)^2 is 0.0295, (pi / 4)^32 / 32! is
// 2^-128.8 and (pi / 4)^46 / 46! 2^-207.
template <std::size_t kFraction>
constexpr std::size_t kLogTerms = kFraction == 2 ? 23 : 40;
template <std::size_t kFraction>
constexpr std::size_t kTurnTerms = kFraction == 2 ? 32 : 46;

// a / n for a small n, off by less than 1 ulp: long division by 32 bits at a time.
template <std::size_t kFraction>
constexpr Fixed<kFraction> divided(const Fixed<kFraction>& a, std::uint64_t n) {
  Fixed<kFraction> out;
  std::uint64_t remainder = 0;
  for (std::size_t i = a.kLimbs; i-- > 0;) {
    const std::uint64_t upper = (remainder << 32) | (a.limb[i] >> 32);
    const std::uint64_t lower = ((upper % n) << 32) | (a.limb[i] & 0xffffffffULL);
    remainder = lower % n;
    out.limb[i] = ((upper / n) << 32) | (lower / n);
  }
  return out;
}

// 1 / (2 k + 1), each off by less than 1 ulp.
template <std::size_t kFraction>
constexpr auto kOddReciprocals = [] {
  std::array<Fixed<kFraction>, kLogTerms<kFraction>> table{};
  for (std::size_t k = 0; k < table.size(); ++k) table[k] = divided(Fixed<kFraction>::from_integer(1), 2 * k + 1);
  return table;
}();

// 1 / n!, each off by less than 2 ulp.
template <std::size_t kFraction>
constexpr auto kInverseFactorials = [] {
  std::array<Fixed<kFraction>, kTurnTerms<kFraction>> table{};
  table[0] = Fixed<kFraction>::from_integer(1);
  for (std::size_t n = 1; n < table.size(); ++n) table[n] = divided(table[n - 1], n);
  return table;
}();

// The leading 64 kFraction bits, at most 181, of (k 2^128 + extra) 2^-181 for the 53 bits k above.
template <std::size_t kFraction>
Fixed<kFraction> uniform(std::uint64_t word, const std::uint64_t (&extra)[2]) {
  return truncated<kFraction>(shifted_left(Fixed<3>{{extra[0], extra[1], word >> 11, 0}}, 192 - 181));
}

// -2 log(u) for u in (0, 1], off by less than 1024 ulp.
template <std::size_t kFraction>
Fixed<kFraction> minus_two_logs(Fixed<kFraction> u) {
  constexpr auto kOne = Fixed<kFraction>::from_integer(1);
  // u = 2^-shift m with m in [1/2, 1], doubled once more below sqrt(1/2): then |log m| <= log(2) / 2.
  int shift = 0;
  if (u.integer() == 0) {
    std::size_t i = kFraction - 1;
    while (i > 0 && u.limb[i] == 0) --i;
    shift = 64 * static_cast<int>(kFraction - 1 - i) + std::countl_zero(u.limb[i]);
  }
  u = shifted_left(u, shift);
  constexpr std::uint64_t kRootHalf = 0xb504f333f9de6484ULL;  // sqrt(1/2), upper 64 bits
  if (u.integer() == 0 && u.leading() < kRootHalf) {
    u = shifted_left(u, 1);
    ++shift;
  }
  // |log m| = 2 atanh(|m - 1| / (m + 1)).
  const bool above = at_least(u, kOne);
  const Fixed<kFraction> x = quotient(above ? u - kOne : kOne - u, u + kOne);
  const Fixed<kFraction> x2 = x * x;
  Fixed<kFraction> series;
  for (std::size_t k = kLogTerms<kFraction>; k-- > 0;) series = kOddReciprocals<kFraction>[k] + x2 * series;
  const Fixed<kFraction> twos = times_integer(truncated<kFraction>(kLog2), 2 * static_cast<std::uint64_t>(shift));
  const Fixed<kFraction> rest = times_integer(x * series, 4);
  return above ? twos - rest : twos + rest;
}

template <std::size_t kFraction>
struct Turn {
  Fixed<kFraction> cosine, sine;
  bool cosine_negative, sine_negative;
};

// |cos| and |sin| of 2 pi t, each off by less than 256 ulp, and their signs.
template <std::size_t kFraction>
Turn<kFraction> turn(const Fixed<kFraction>& t) {
  // The nearest quarter, and the distance to it: both exact.
  const std::uint64_t eighths = t.leading() >> 61;
  const std::uint64_t quarter = (eighths + 1) / 2;
  Fixed<kFraction> place;
  place.limb[kFraction - 1] = quarter << 62;
  place.limb[kFraction] = quarter >> 2;
  const bool below = !at_least(t, place);
  const Fixed<kFraction> x = truncated<kFraction>(kTwoPi) * (below ? place - t : t - place);
  // Every difference is positive: the terms decrease.
  const Fixed<kFraction> x2 = x * x;
  Fixed<kFraction> c;
  Fixed<kFraction> s;
  for (std::size_t n = kTurnTerms<kFraction>; n > 0; n -= 2) {
    s = kInverseFactorials<kFraction>[n - 1] - x2 * s;
    c = kInverseFactorials<kFraction>[n - 2] - x2 * c;
  }
  s = x * s;
  // The sine of the distance has its sign; then the quarters turn (c, s) into (-s, c), and so on.
  switch (quarter % 4) {
    case 0:
      return {c, s, false, below};
    case 1:
      return {s, c, !below, false};
    case 2:
      return {c, s, true, !below};
    default:
      return {s, c, below, true};
  }
}

// Round(stddev * z): the product is exact.
template <std::size_t kFraction>
std::int64_t rounded(const Fixed<kFraction>& z, double stddev, bool negative) {
  int exponent = 0;
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(stddev, &exponent), 53));
  exponent -= 53;
  // 53 bits times four more than the fraction has, then half a step is added before the last places go.
  const int places = z.kFractionBits - exponent;
  Fixed<kFraction> product = times_integer(z, mantissa);
  product = shifted_right(product, places - 1);
  product = product + Fixed<kFraction>::from_ulps(1);
  const auto magnitude = static_cast<std::int64_t>(shifted_right(product, 1).limb[0]);
  return negative ? -magnitude : magnitude;
}

// Whether rounding gives the same for all numbers within `margin` of z.
template <std::size_t kFraction>
bool rounds_alike(const Fixed<kFraction>& z, const Fixed<kFraction>& margin, double stddev) {
  const Fixed<kFraction> least = at_least(z, margin) ? z - margin : Fixed<kFraction>{};
  return rounded(least, stddev, false) == rounded(z + margin, stddev, false);
}

// The absolute values of a pair, with their signs.
template <std::size_t kFraction>
Turn<kFraction> normal_pair(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                            const std::uint64_t (&angle_extra)[2]) {
  // The radius's uniform is taken at the upper end of what its bits leave open.
  constexpr int kUnknown = kFraction == 3 ? 192 - 181 : 0;
  const auto last = Fixed<kFraction>::from_ulps(std::uint64_t{1} << kUnknown);
  const Fixed<kFraction> radius = square_root(minus_two_logs(uniform<kFraction>(words[0], radius_extra) + last));
  Turn<kFraction> pair = turn(uniform<kFraction>(words[1], angle_extra));
  pair.cosine = radius * pair.cosine;
  pair.sine = radius * pair.sine;
  return pair;
}

}  // namespace

bool rounded_pair_128(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                      const std::uint64_t (&angle_extra)[2], double stddev, RoundedPair& pair) {
  // Next to 0 and 1 the unknown bits of U count for more than the margin.
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 13;
  const std::uint64_t k = words[0] >> 11;
  if (k < kEnd || k >= (std::uint64_t{1} << 53) - kEnd) return false;
  // The values are off by less than 2^-87; 2^-80 is allowed for.
  constexpr auto kMargin = Fixed<2>::from_ulps(std::uint64_t{1} << (128 - 80));
  const Turn<2> z = normal_pair<2>(words, radius_extra, angle_extra);
  if (!rounds_alike(z.cosine, kMargin, stddev) || !rounds_alike(z.sine, kMargin, stddev)) return false;
  pair = {rounded(z.cosine, stddev, z.cosine_negative), rounded(z.sine, stddev, z.sine_negative)};
  return true;
}

RoundedPair exact_rounded_pair(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                               const std::uint64_t (&angle_extra)[2], double stddev) {
  const Turn<3> z = normal_pair<3>(words, radius_extra, angle_extra);
  return {rounded(z.cosine, stddev, z.cosine_negative), rounded(z.sine, stddev, z.sine_negative)};
}

}  // namespace dpinfer

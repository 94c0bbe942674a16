#include "mechanism/exact_normal.hpp"

#include <cmath>

#include "mechanism/fixed_point.hpp"

namespace dpinfer {

namespace {

// Rounded down to 192 bits after the point.
constexpr Fixed kTwoPi{{0x48127044533e63a0ULL, 0x2633145c06e0e689ULL, 0x487ed5110b4611a6ULL, 6}};
constexpr Fixed kLog2{{0x40f343267298b62dULL, 0xc9e3b39803f2f6afULL, 0xb17217f7d1cf79abULL, 0}};
constexpr Fixed kOne = Fixed::from_integer(1);

// Terms after which the series below are shorter than one ulp: (3 - sqrt 8)^2 is 0.0295, (pi / 4)^46 / 46! is 2^-207.
constexpr std::uint64_t kLogTerms = 40;
constexpr std::uint64_t kTurnTerms = 46;

// 1 / n, each off by less than 1 ulp.
constexpr auto kReciprocals = [] {
  std::array<Fixed, 2 * kLogTerms + 1> table{};
  table[1] = kOne;
  for (std::size_t n = 2; n < table.size(); ++n) {
    // Long division by 32 bits at a time.
    std::uint64_t remainder = 1;
    for (std::size_t i = kFixedLimbs - 1; i-- > 0;) {
      const std::uint64_t high = (remainder << 32) / n;
      remainder = (remainder << 32) % n;
      const std::uint64_t low = (remainder << 32) / n;
      remainder = (remainder << 32) % n;
      table[n].limb[i] = (high << 32) | low;
    }
  }
  return table;
}();

// (k 2^128 + extra) 2^-181 for the 53 bits k above.
Fixed uniform(std::uint64_t word, const std::uint64_t (&extra)[2]) {
  return shifted_left({{extra[0], extra[1], word >> 11, 0}}, kFractionBits - 181);
}

// -2 log(u) for u in [2^-181, 1], off by less than 1024 ulp.
Fixed minus_two_logs(Fixed u) {
  // u = 2^-shift m with m in [1/2, 1], doubled once more below sqrt(1/2): then |log m| <= log(2) / 2.
  int shift = 0;
  for (std::size_t i = kFixedLimbs; u.limb[3] == 0 && i-- > 0;) {
    if (u.limb[i] == 0) continue;
    shift = kFractionBits - 64 * static_cast<int>(i) - 64;
    for (std::uint64_t top = u.limb[i]; (top >> 63) == 0; top <<= 1) ++shift;
    break;
  }
  u = shifted_left(u, shift);
  constexpr std::uint64_t kRootHalf = 0xb504f333f9de6484ULL;  // sqrt(1/2), upper 64 bits
  if (u.limb[3] == 0 && u.limb[2] < kRootHalf) {
    u = shifted_left(u, 1);
    ++shift;
  }
  // |log m| = 2 atanh(|m - 1| / (m + 1)).
  const bool above = at_least(u, kOne);
  const Fixed x = quotient(above ? u - kOne : kOne - u, u + kOne);
  const Fixed x2 = x * x;
  Fixed power = x;
  Fixed sum;
  for (std::size_t k = 0; k < kLogTerms && !power.is_zero(); ++k) {
    sum = sum + power * kReciprocals[2 * k + 1];
    power = power * x2;
  }
  const Fixed twos = times_integer(kLog2, 2 * static_cast<std::uint64_t>(shift));
  const Fixed rest = times_integer(sum, 4);
  return above ? twos - rest : twos + rest;
}

struct Turn {
  Fixed cosine, sine;
  bool cosine_negative, sine_negative;
};

// |cos| and |sin| of 2 pi t, each off by less than 256 ulp, and their signs.
Turn turn(const Fixed& t) {
  // The nearest quarter, and the distance to it: both exact.
  const std::uint64_t eighths = t.limb[2] >> 61;
  const std::uint64_t quarter = (eighths + 1) / 2;
  const Fixed place{{0, 0, quarter << 62, quarter >> 2}};
  const bool below = !at_least(t, place);
  const Fixed x = kTwoPi * (below ? place - t : t - place);
  // Sums of the terms of either sign: cos = sums[0] - sums[2], sin = sums[1] - sums[3].
  std::array<Fixed, 4> sums{};
  Fixed term = kOne;
  sums[0] = kOne;
  for (std::size_t n = 1; n <= kTurnTerms && !term.is_zero(); ++n) {
    term = term * x * kReciprocals[n];
    sums[n % 4] = sums[n % 4] + term;
  }
  const Fixed c = sums[0] - sums[2];
  const Fixed s = sums[1] - sums[3];
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
std::int64_t rounded(const Fixed& z, double stddev, bool negative) {
  int exponent = 0;
  const auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::frexp(stddev, &exponent), 53));
  exponent -= 53;
  // 53 bits times fewer than 198, then half a step is added before the last places go.
  const int places = kFractionBits - exponent;
  Fixed product = times_integer(z, mantissa);
  product = shifted_right(product, places - 1);
  product = product + Fixed{{1, 0, 0, 0}};
  const auto magnitude = static_cast<std::int64_t>(shifted_right(product, 1).limb[0]);
  return negative ? -magnitude : magnitude;
}

}  // namespace

RoundedPair exact_rounded_pair(const std::uint64_t (&words)[2], const std::uint64_t (&radius_extra)[2],
                               const std::uint64_t (&angle_extra)[2], double stddev) {
  const Fixed last{{std::uint64_t{1} << (kFractionBits - 181), 0, 0, 0}};
  const Fixed radius = square_root(minus_two_logs(uniform(words[0], radius_extra) + last));
  const Turn angle = turn(uniform(words[1], angle_extra));
  return {rounded(radius * angle.cosine, stddev, angle.cosine_negative),
          rounded(radius * angle.sine, stddev, angle.sine_negative)};
}

}  // namespace dpinfer

// The rounded Gaussian: fixed-point arithmetic against known digits, float64 against fixed point, in every variant.
#include <cmath>
#include <initializer_list>
#include <vector>

#include "check.hpp"
#include "mechanism/exact_normal.hpp"
#include "mechanism/fixed_point.hpp"
#include "mechanism/rounded_gaussian.hpp"

using namespace dpinfer;

namespace {

void fixed_point() {
  using Fixed = dpinfer::Fixed<3>;
  const Fixed one = Fixed::from_integer(1);
  const Fixed three = Fixed::from_integer(3);
  const Fixed third = quotient(one, three);
  for (std::size_t i = 0; i < 3; ++i) CHECK(third.limb[i] == 0x5555555555555555ULL);
  CHECK(third.limb[3] == 0);
  // 1 - 3 (1 / 3) is one unit in the last place.
  const Fixed rest = one - times_integer(third, 3);
  CHECK(rest.limb[0] == 1 && rest.limb[1] == 0 && rest.limb[2] == 0 && rest.limb[3] == 0);
  const Fixed two = Fixed::from_integer(2);
  const Fixed root = square_root(two);
  CHECK(root.limb[3] == 1 && root.limb[2] == 0x6a09e667f3bcc908ULL && root.limb[1] == 0xb2fb1366ea957d3eULL);
  CHECK(at_least(two, root * root));
  Fixed above = root;
  above.limb[0] += 1;
  // The product is rounded down, so that a root too large by one unit shows as 2 or more.
  CHECK(at_least(above * above, two));
  CHECK(square_root(Fixed{}).is_zero());
  const Fixed large = square_root(Fixed::from_integer(1ULL << 62));
  CHECK(large.limb[3] == 1ULL << 31 && large.limb[2] == 0);
  CHECK(shifted_right(shifted_left(three, 60), 60).limb[3] == 3);
  CHECK(shifted_right(three, 256).is_zero());
  CHECK(shifted_right(three, 193).limb[0] == 1);
}

// The exact pair against long double, at places of every quarter.
void pairs() {
  const std::uint64_t none[2] = {0, 0};
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::uint64_t words[2] = {0x9e3779b97f4a7c15ULL * (i + 1), 0xd1b54a32d192ed03ULL * (i + 1)};
    const double stddev = 1e12;
    const RoundedPair pair = exact_rounded_pair(words, none, none, stddev);
    const long double u = static_cast<long double>(words[0] >> 11) * 0x1p-53L;
    const long double t = static_cast<long double>(words[1] >> 11) * 0x1p-53L;
    const long double turns = 6.283185307179586476925286766559L * t;
    const long double r = 1e12L * std::sqrt(-2.0L * std::log(u));
    CHECK(std::fabs(static_cast<long double>(pair.cosine) - r * std::cos(turns)) < 0.51L);
    CHECK(std::fabs(static_cast<long double>(pair.sine) - r * std::sin(turns)) < 0.51L);
  }
  // The ends of the radius: the least U that the bits can say is 2^-181, the greatest 1.
  const std::uint64_t ones[2] = {~0ULL, ~0ULL};
  CHECK(exact_rounded_pair({0, 0}, none, none, 1e10).cosine == 158404317922);  // sqrt(362 log 2) = 15.84043179217979...
  CHECK(exact_rounded_pair({~0ULL, 0}, ones, none, 1e17).cosine == 0);
  CHECK(exact_rounded_pair({1ULL << 40, 123ULL << 40}, none, none, 1e-300).sine == 0);
}

// Less places first: the same integers wherever that says it knows them.
void fewer_places() {
  int undecided = 0;
  for (std::uint64_t i = 1; i <= 20000; ++i) {
    const std::uint64_t words[2] = {0x9e3779b97f4a7c15ULL * i, 0xd1b54a32d192ed03ULL * i};
    const std::uint64_t radius[2] = {0xbf58476d1ce4e5b9ULL * i, 0x94d049bb133111ebULL * i};
    const std::uint64_t angle[2] = {0x2545f4914f6cdd1dULL * i, 0xd6e8feb86659fd93ULL * i};
    const double stddev = std::pow(10.0, static_cast<double>(i % 40) - 22.0);
    RoundedPair pair{};
    if (!rounded_pair_128(words, radius, angle, stddev, pair)) {
      ++undecided;
      continue;
    }
    const RoundedPair exact = exact_rounded_pair(words, radius, angle, stddev);
    CHECK(pair.cosine == exact.cosine && pair.sine == exact.sine);
  }
  CHECK(undecided <= 1);
  // Next to the ends of the radius it does not know.
  RoundedPair pair{};
  for (const std::uint64_t k : {0ULL, 8191ULL, (1ULL << 53) - 8192, (1ULL << 53) - 1}) {
    CHECK(!rounded_pair_128({k << 11, 5}, {1, 2}, {3, 4}, 1e10, pair));
  }
  for (const std::uint64_t k : {8192ULL, (1ULL << 53) - 8193}) {
    CHECK(rounded_pair_128({k << 11, 5}, {1, 2}, {3, 4}, 1e10, pair));
    CHECK(pair.cosine == exact_rounded_pair({k << 11, 5}, {1, 2}, {3, 4}, 1e10).cosine);
  }
}

// On either side of a place where rounding changes, found by bisection of the angle's further bits, it must not claim
// to know; a little way off it must.
void next_to_a_boundary() {
  const std::uint64_t words[2] = {3ULL << 61, 0x123456789abcdef0ULL};
  const std::uint64_t radius[2] = {0x0123456789abcdefULL, 0xfedcba9876543210ULL};
  const double stddev = 1e17;
  const auto sine = [&](std::uint64_t high, std::uint64_t low) {
    return exact_rounded_pair(words, radius, {low, high}, stddev).sine;
  };
  // The sine increases with the angle here, from `start` on: the last angle at which it still rounds to `start`.
  const std::int64_t start = sine(1ULL << 63, 0);
  std::uint64_t high = 1ULL << 63;
  for (std::uint64_t bit = 1ULL << 62; bit != 0; bit >>= 1) high += sine(high + bit, 0) == start ? bit : 0;
  std::uint64_t low = 0;
  for (std::uint64_t bit = 1ULL << 63; bit != 0; bit >>= 1) low += sine(high, low + bit) == start ? bit : 0;
  const std::uint64_t next_low = low + 1;
  const std::uint64_t next_high = high + (next_low == 0 ? 1 : 0);
  CHECK(sine(high, low) == start);
  CHECK(sine(next_high, next_low) == start + 1);
  RoundedPair pair{};
  CHECK(!rounded_pair_128(words, radius, {low, high}, stddev, pair));
  CHECK(!rounded_pair_128(words, radius, {next_low, next_high}, stddev, pair));
  // 2^38 units of 2^-117 of a turn: 2^-79 in the angle, several times as much in the sine.
  CHECK(rounded_pair_128(words, radius, {low, high - (1ULL << 38)}, stddev, pair) && pair.sine == start);
  CHECK(rounded_pair_128(words, radius, {low, high + (1ULL << 38)}, stddev, pair) && pair.sine == start + 1);
}

void certificate(const KernelTable& kernels) {
  // Where the radius's uniform is next to 0 or 1, its unknown bits decide: never sure at this scale.
  std::uint64_t words[64];
  std::int64_t rounded[64];
  std::uint64_t unsure = 0;
  for (std::size_t i = 0; i < 64; i += 2) {
    const std::uint64_t k = (i / 2) % 2 == 0 ? i / 4 : (1ULL << 53) - 1 - i / 4;
    words[i] = k << 11;
    words[i + 1] = 0x123456789abcdef0ULL * (i + 1);
  }
  kernels.round_normals(words, 32, 1e13, rounded, &unsure);
  CHECK(unsure == ~0ULL);
  for (std::size_t i = 0; i < 64; i += 2) words[i] = (1ULL << 63) + i;
  kernels.round_normals(words, 32, 1e6, rounded, &unsure);
  CHECK(unsure == 0);
  kernels.round_normals(words, 32, 1e17, rounded, &unsure);
  CHECK(unsure == ~0ULL);
}

void draws(const KernelTable& kernels, std::vector<std::int64_t>& reference) {
  const RandomKey key{{3, 1, 4, 1, 5, 9, 2, 6}};
  std::vector<std::int64_t> all;
  for (const double stddev : {0.3, 1e3, 5e10, 3.3e12, 1.1e14, 1e17}) {
    for (const int n : {0, 1, 7, 63, 64, 65, 128, 129, 1501}) {
      std::vector<std::int64_t> sums(static_cast<std::size_t>(n), 5);
      std::vector<std::int64_t> exact(static_cast<std::size_t>(n));
      const std::int64_t n_exact = add_rounded_gaussian(kernels, key, 9, stddev, n, sums.data());
      exact_rounded_gaussian(kernels, key, 9, stddev, n, exact.data());
      for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == exact[i] + 5);
      CHECK(stddev < 1e15 || n_exact == n);
      CHECK(stddev > 1e4 || n_exact == 0);
      CHECK(n < 1000 || stddev != 1.1e14 || (n_exact > n / 4 && n_exact < n));
      all.insert(all.end(), sums.begin(), sums.end());
    }
  }
  if (reference.empty()) reference = all;
  CHECK(all == reference);
}

}  // namespace

int main() {
  fixed_point();
  pairs();
  fewer_places();
  next_to_a_boundary();
  std::vector<std::int64_t> reference;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    certificate(*kernels);
    draws(*kernels, reference);
  }
  return check_result();
}

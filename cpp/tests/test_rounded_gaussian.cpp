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
  std::vector<std::int64_t> reference;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    certificate(*kernels);
    draws(*kernels, reference);
  }
  return check_result();
}

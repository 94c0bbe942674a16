#include "mechanism/rows/person_draws.hpp"

#include <cmath>
#include <limits>

namespace dpinfer {
namespace {

// SplitMix64.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) noexcept : state_(seed) {}

  double uniform() noexcept {  // inside of (0, 1)
    std::uint64_t value = state_ += 0x9E3779B97F4A7C15ULL;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return (static_cast<double>((value ^ (value >> 31)) >> 12) + 0.5) * 0x1p-52;
  }

  double normal() noexcept {  // Marsaglia and Bray (1964)
    double u, square;
    do {
      u = 2.0 * uniform() - 1.0;
      const double v = 2.0 * uniform() - 1.0;
      square = u * u + v * v;
    } while (square >= 1.0);
    return u * std::sqrt(-2.0 * std::log(square) / square);
  }

 private:
  std::uint64_t state_;
};

}  // namespace

// Marsaglia and Tsang (2000); a shape below 1 by that above it.
double draw_gamma(std::uint64_t seed, double shape) noexcept {
  Stream stream(seed);
  const double raised = shape < 1.0 ? shape + 1.0 : shape, d = raised - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = stream.normal(), root = 1.0 + c * x;
    if (!(root > 0.0)) {
      if (std::isnan(root)) return root;
      continue;
    }
    const double v = root * root * root;
    if (std::log(stream.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v * (shape < 1.0 ? std::pow(stream.uniform(), 1.0 / shape) : 1.0);
    }
  }
}

// Hoermann (1993), PTRS.
double draw_large_poisson(std::uint64_t seed, double rate) noexcept {
  if (!std::isfinite(rate)) return std::numeric_limits<double>::quiet_NaN();
  Stream stream(seed);
  const double b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
  const double inverse = 1.1239 + 1.1328 / (b - 3.4), accepted = 0.9277 - 3.6224 / (b - 2.0);
  for (;;) {
    const double u = stream.uniform() - 0.5, v = stream.uniform(), us = 0.5 - std::abs(u);
    const double count = std::floor((2.0 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= accepted) return count;
    if (count < 0.0 || (us < 0.013 && v > us)) continue;
    if (std::log(v) + std::log(inverse) - std::log(a / (us * us) + b) <=
        count * std::log(rate) - rate - std::lgamma(count + 1.0)) {
      return count;
    }
  }
}

}  // namespace dpinfer

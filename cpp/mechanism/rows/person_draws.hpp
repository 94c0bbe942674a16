// Draws by rejection, each from a seed of its own.
#pragma once

#include <cstdint>

namespace dpinfer {

double draw_gamma(std::uint64_t seed, double shape) noexcept;

// rate >= 10; not a number where it is not finite.
double draw_large_poisson(std::uint64_t seed, double rate) noexcept;

}  // namespace dpinfer

// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "inference/posterior_kernels.hpp"

#include <cstddef>
#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using inference::InflationNodes;
using inference::MixtureComponents;
using inference::PosteriorKernels;
static_assert(inference::kComponentGroup == static_cast<std::size_t>(kLanes));

void mixture(const MixtureComponents& components, double x, double& below, double& density) {
  const Vec at = splat(x);
  Vec mass = splat(0.0);
  Vec height = splat(0.0);
  for (std::size_t k = 0; k < components.n_padded; k += kLanes) {
    const Vec weight = load(components.weight + k);
    const Vec inverse = load(components.inverse_scale + k);
    Vec own;
    Vec gauss;
    normal_cdf((at - load(components.mean + k)) * inverse, own, gauss);
    mass = fused(weight, own, mass);
    height = fused(weight * inverse, gauss, height);
  }
  below = lane_sum(mass);
  density = 0.39894228040143267794 * lane_sum(height);  // 1 / sqrt(2 pi)
}

// Adds eight nodes from the `first`-th on, and returns the drop of the last of them.
DPINFER_INLINE double add_nodes(const InflationNodes& nodes, std::int64_t first, Vec& sum) {
  static constexpr double kPlaces[kLanes] = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0};
  const Vec index = splat(static_cast<double>(first)) + load(kPlaces);
  const Vec w = index * splat(nodes.step);
  const Vec decay = exp(splat(-2.0) * w);
  const Vec above = splat(1.0) + decay;
  const Vec log_cosh = w + log(above) - splat(0.6931471805599453);
  const Vec inverse_square = splat(4.0) * decay / (above * above);
  const Vec drop = splat(-nodes.power) * log_cosh - splat(0.5 * nodes.residual) * inverse_square - splat(nodes.top);
  const Vec share = select_less(index, splat(0.5), splat(0.5), splat(1.0));
  sum = fused(share, exp(drop), sum);
  double drops[kLanes];
  store(drops, drop);
  return drops[kLanes - 1];
}

double inflation(const InflationNodes& nodes) {
  constexpr std::int64_t kGroup = kLanes;
  Vec sum = splat(0.0);
  // The group that the highest node is in, those below it down to where all has dropped, and those above it.
  const std::int64_t top = nodes.centre / kGroup * kGroup;
  for (std::int64_t first = top - kGroup; first >= 0; first -= kGroup) {
    if (add_nodes(nodes, first, sum) < nodes.drop) break;
  }
  for (std::int64_t first = top;; first += kGroup) {
    if (add_nodes(nodes, first, sum) < nodes.drop && first + kGroup > nodes.centre) break;
  }
  return lane_sum(sum);
}

}  // namespace

extern const PosteriorKernels kPosteriorKernels;
const PosteriorKernels kPosteriorKernels = {DPINFER_VARIANT_NAME, mixture, inflation};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

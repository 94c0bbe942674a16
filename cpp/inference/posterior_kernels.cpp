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

constexpr double kRootHalf = 0.70710678118654752440;
constexpr double kInverseRootTwoPi = 0.39894228040143267794;

void mixture(const MixtureComponents& components, double x, double& below, double& density) {
  const Vec at = splat(x);
  const Vec one = splat(1.0);
  Vec mass = splat(0.0);
  Vec height = splat(0.0);
  for (std::size_t k = 0; k < components.n_padded; k += kLanes) {
    const Vec weight = load(components.weight + k);
    const Vec inverse = load(components.inverse_scale + k);
    const Vec z = (at - load(components.mean + k)) * inverse;
    // Beyond 37 the tail is below 1e-299.
    const Vec magnitude = minimum(absolute(z), splat(37.0)) * splat(kRootHalf);
    const Vec gauss = exp(splat(0.0) - magnitude * magnitude);
    const Vec tail = splat(0.5) * gauss * erfcx(magnitude);
    mass = fused(weight, select_less(z, splat(0.0), tail, one - tail), mass);
    height = fused(weight * inverse, gauss, height);
  }
  below = lane_sum(mass);
  density = kInverseRootTwoPi * lane_sum(height);
}

// Adds eight nodes from the `first`-th on, in `direction`; false when the last of them has dropped far enough.
DPINFER_INLINE bool add_nodes(const InflationNodes& nodes, std::int64_t first, std::int64_t direction, Vec& sum) {
  double place[kLanes];
  double share[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t i = first + direction * lane;
    place[lane] = static_cast<double>(i < 0 ? 0 : i) * nodes.step;
    share[lane] = i > 0 ? 1.0 : i == 0 ? 0.5 : 0.0;
  }
  const Vec w = load(place);
  const Vec decay = exp(splat(-2.0) * w);
  const Vec above = splat(1.0) + decay;
  const Vec log_cosh = w + log(above) - splat(0.6931471805599453);
  const Vec inverse_square = splat(4.0) * decay / (above * above);
  const Vec term = splat(-nodes.power) * log_cosh - splat(0.5 * nodes.residual) * inverse_square;
  const Vec drop = term - splat(nodes.top);
  sum = fused(load(share), exp(drop), sum);
  double drops[kLanes];
  store(drops, drop);
  return drops[kLanes - 1] >= nodes.drop;
}

double inflation(const InflationNodes& nodes) {
  Vec sum = splat(0.0);
  for (std::int64_t i = nodes.centre; i >= 0 && add_nodes(nodes, i, -1, sum); i -= kLanes) {
  }
  for (std::int64_t i = nodes.centre + 1; add_nodes(nodes, i, 1, sum); i += kLanes) {
  }
  return lane_sum(sum);
}

}  // namespace

extern const PosteriorKernels kPosteriorKernels;
const PosteriorKernels kPosteriorKernels = {DPINFER_VARIANT_NAME, mixture, inflation};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

#include "lab/study/dispersion.hpp"

#include <algorithm>
#include <cstddef>

#include "lab/study/target.hpp"

namespace dpinfer::study {

DispersionExpectations dispersion_expectations(double loc, double raw, std::span<const double> nodes,
                                               std::span<const double> weights) {
  const double scale = softplus(raw);
  const double chain = scale * sigmoid(raw);
  DispersionExpectations e{};
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const double rho = loc + scale * nodes[k];
    const double variance = std::max(softplus(rho), 1e-300);
    const double d1 = sigmoid(rho);
    const double d2 = d1 * sigmoid(-rho);
    const double precision = 1.0 / variance;
    const double ratio = d1 * precision;
    const double w = weights[k];
    e.moments.precision += w * precision;
    e.moments.precision_loc -= w * ratio * precision;
    e.moments.precision_raw += w * (2.0 * ratio * ratio - d2 * precision) * precision;
    e.moments.log_variance_loc += w * ratio;
    e.moments.log_variance_raw += w * (d2 * precision - ratio * ratio);
    e.log_slope_loc += w * sigmoid(-rho);
    e.log_slope_raw -= w * d2;
  }
  e.moments.precision_raw *= chain;
  e.moments.log_variance_raw *= chain;
  e.log_slope_raw *= chain;
  return e;
}

}  // namespace dpinfer::study

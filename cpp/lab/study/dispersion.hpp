// Expectations of functions of a noise variance, softplus(rho) with rho ~ N(loc, scale^2): the C++ side of
// dpinfer.models.glm.LinearRegression.dispersion_moments and of its prior.
#pragma once

#include <span>

#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer::study {

struct DispersionExpectations {
  DispersionMoments moments;
  double log_slope_loc;  // d/d loc of E[log softplus'(rho)], and in raw_scale
  double log_slope_raw;
};

// nodes and weights: E f(Z) = sum weights f(nodes), Z standard normal.
DispersionExpectations dispersion_expectations(double loc, double raw, std::span<const double> nodes,
                                               std::span<const double> weights);

}  // namespace dpinfer::study

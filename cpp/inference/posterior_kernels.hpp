// Sums that posteriors spend their time in: the instruction-set specific half of mixture_quantiles.hpp and of
// collapsed_posterior.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpinfer::inference {

inline constexpr std::size_t kComponentGroup = 8;

// One mixture of normals; the arrays are padded to whole groups with weights of zero, means of zero and scales of one.
struct MixtureComponents {
  const double* weight;
  const double* mean;
  const double* inverse_scale;
  std::size_t n_padded;
};

// The nodes of log_marginal_inflation: multiples of `step` around the `centre`-th, where the logarithm is `top`.
struct InflationNodes {
  double power;
  double residual;
  double step;
  std::int64_t centre;
  double top;
  double drop;  // to sum down to
};

struct PosteriorKernels {
  const char* name;
  // The distribution function and the density of a mixture at x.
  void (*mixture)(const MixtureComponents& components, double x, double& below, double& density);
  // The sum of the integrand over the nodes, in units of exp(top); the node at zero counts half.
  double (*inflation)(const InflationNodes& nodes);
};

// The widest variant that this processor runs, or the one that the environment variable DPINFER_SIMD names where it is
// there.
const PosteriorKernels& posterior_kernels();

}  // namespace dpinfer::inference

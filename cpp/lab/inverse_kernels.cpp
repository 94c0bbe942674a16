// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
//
// Gauss-Jordan inversion in place that moves the matrix one place up and left at every step, so that the pivot is
// always the first element: Bauer and Reinsch (1971), "Inversion of positive definite matrices by the Gauss-Jordan
// method".
#include "lab/inverse_kernels.hpp"

#include <cstddef>

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using lab::InverseGroup;
using lab::InverseKernels;
static_assert(lab::kInverseGroup == static_cast<std::size_t>(kLanes));

constexpr std::size_t kGroup = static_cast<std::size_t>(kLanes);

void inverses(const InverseGroup& group) {
  const std::size_t n = group.width;
  double* const a = group.matrices;
  double* const h = group.scratch;
  const Vec one = splat(1.0);
  const Vec zero = splat(0.0);
  for (std::size_t step = 0; step < n; ++step) {
    const std::size_t left = n - 1 - step;  // rows below the pivot that no pivot has reached
    const Vec pivot = load(a);
    store(group.pivots + step * kGroup, pivot);
    const Vec reciprocal = one / pivot;
    for (std::size_t i = 1; i < n; ++i) {
      const double* row = a + i * n * kGroup;
      const Vec q = load(row);
      const Vec scaled = q * reciprocal;
      store(h + i * kGroup, i > left ? scaled : zero - scaled);
      double* above = a + (i - 1) * n * kGroup;
      for (std::size_t j = 1; j <= i; ++j) {
        store(above + (j - 1) * kGroup, load(row + j * kGroup) + q * load(h + j * kGroup));
      }
    }
    double* last = a + (n - 1) * n * kGroup;
    store(last + (n - 1) * kGroup, reciprocal);
    for (std::size_t i = 1; i < n; ++i) store(last + (i - 1) * kGroup, load(h + i * kGroup));
  }
}

}  // namespace

extern const InverseKernels kInverseKernels;
const InverseKernels kInverseKernels = {DPINFER_VARIANT_NAME, inverses};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

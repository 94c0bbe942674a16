// The network's kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "mechanism/simd/network_kernels.hpp"

#include "mechanism/simd/network_contribution-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

void contribution(const NetworkTask& task, const double* x, double y, double* scratch, double* out) {
  const int n = task.shape.n_hidden;
  contribute(task, x, y, {n, n, task.shape.n_params()}, scratch, out);
  if (task.output == NetworkOutput::site && task.site_norm < 1e300) {
    clip_sites(2 * task.shape.n_params(), task.site_norm, out);
  }
}

}  // namespace

extern const NetworkKernelTable kNetworkTable;
const NetworkKernelTable kNetworkTable = {DPINFER_VARIANT_NAME, contribution};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

#include "common/simd_dispatch.hpp"
#include "inference/posterior_kernels.hpp"

DPINFER_SIMD_COPIES(dpinfer::inference::PosteriorKernels, kPosteriorKernels)

namespace dpinfer::inference {

const PosteriorKernels& posterior_kernels() {
  static const PosteriorKernels* const chosen = kPosteriorKernelsCopies.best();
  return chosen != nullptr ? *chosen : *kPosteriorKernelsCopies.portable;
}

}  // namespace dpinfer::inference

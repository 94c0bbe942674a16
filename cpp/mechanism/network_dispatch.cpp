#include <cstring>

#include "common/simd_dispatch.hpp"
#include "mechanism/network_kernels.hpp"

namespace dpinfer {

namespace portable {
extern const NetworkKernelTable kNetworkTable;
}
#if defined(DPINFER_HAVE_X86_VARIANTS)
namespace avx2 {
extern const NetworkKernelTable kNetworkTable;
}
namespace avx512 {
extern const NetworkKernelTable kNetworkTable;
}
#endif

const NetworkKernelTable* network_kernel_table(const char* name) {
  if (!simd_variant_runs_here(name)) return nullptr;
#if defined(DPINFER_HAVE_X86_VARIANTS)
  if (std::strcmp(name, "avx2") == 0) return &avx2::kNetworkTable;
  if (std::strcmp(name, "avx512") == 0) return &avx512::kNetworkTable;
#endif
  return &portable::kNetworkTable;
}

const NetworkKernelTable* network_kernel_table() { return best_simd_table<NetworkKernelTable>(&network_kernel_table); }

}  // namespace dpinfer

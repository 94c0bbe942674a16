#include <cstring>

#include "common/simd_dispatch.hpp"
#include "mechanism/kernel_table.hpp"

namespace dpinfer {

namespace portable {
extern const KernelTable kTable;
}
#if defined(DPINFER_HAVE_X86_VARIANTS)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
#endif

const KernelTable* kernel_table(const char* name) {
  if (!simd_variant_runs_here(name)) return nullptr;
#if defined(DPINFER_HAVE_X86_VARIANTS)
  if (std::strcmp(name, "avx2") == 0) return &avx2::kTable;
  if (std::strcmp(name, "avx512") == 0) return &avx512::kTable;
#endif
  return &portable::kTable;
}

const KernelTable* kernel_table() { return best_simd_table<KernelTable>(&kernel_table); }

}  // namespace dpinfer

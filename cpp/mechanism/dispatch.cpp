#include <cstdlib>
#include <cstring>
#include <initializer_list>

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

namespace {

bool runs_here(const char* name) {
#if defined(DPINFER_HAVE_X86_VARIANTS)
  __builtin_cpu_init();
  if (std::strcmp(name, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  }
  if (std::strcmp(name, "avx512") == 0) {
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  }
#endif
  return std::strcmp(name, "portable") == 0;
}

}  // namespace

const KernelTable* kernel_table(const char* name) {
  if (!runs_here(name)) return nullptr;
#if defined(DPINFER_HAVE_X86_VARIANTS)
  if (std::strcmp(name, "avx2") == 0) return &avx2::kTable;
  if (std::strcmp(name, "avx512") == 0) return &avx512::kTable;
#endif
  return &portable::kTable;
}

const KernelTable* kernel_table() {
  if (const char* wanted = std::getenv("DPINFER_SIMD"); wanted != nullptr && *wanted != '\0') {
    return kernel_table(wanted);
  }
  for (const char* name : {"avx512", "avx2"}) {
    if (const KernelTable* table = kernel_table(name)) return table;
  }
  return &portable::kTable;
}

}  // namespace dpinfer

// Which of the copies that cpp/common/CMakeLists.txt compiles of a kernel file this processor runs.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace dpinfer {

// Whether this processor runs the variant `name` ("portable", "avx2" or "avx512").
inline bool simd_variant_runs_here(const char* name) {
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

// The widest variant that runs here, or the one that the environment variable DPINFER_SIMD names; nullptr when that one
// is not there.  `named` maps a name to a table or to nullptr.
template <typename Table>
const Table* best_simd_table(const Table* (*named)(const char*)) {
  if (const char* wanted = std::getenv("DPINFER_SIMD"); wanted != nullptr && *wanted != '\0') return named(wanted);
  for (const char* name : {"avx512", "avx2"}) {
    if (const Table* table = named(name)) return table;
  }
  return named("portable");
}

}  // namespace dpinfer

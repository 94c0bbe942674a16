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

// The copies of one table; DPINFER_SIMD_COPIES makes it.
template <typename Table>
struct SimdCopies {
  const Table* portable;
  const Table* avx2;  // nullptr where it was not compiled, as for the next
  const Table* avx512;

  // The copy of a variant, or nullptr when this build or this processor does not have it.
  const Table* named(const char* name) const {
    if (!simd_variant_runs_here(name)) return nullptr;
    if (std::strcmp(name, "avx2") == 0) return avx2;
    if (std::strcmp(name, "avx512") == 0) return avx512;
    return portable;
  }

  // The widest variant that runs here, or the one that the environment variable DPINFER_SIMD names; nullptr when that
  // one is not there.
  const Table* best() const {
    if (const char* wanted = std::getenv("DPINFER_SIMD"); wanted != nullptr && *wanted != '\0') return named(wanted);
    for (const char* name : {"avx512", "avx2"}) {
      if (const Table* table = named(name)) return table;
    }
    return portable;
  }
};

}  // namespace dpinfer

// In the global namespace of a source file: declares every variant's `name`, a constant of type Table, and defines
// <name>Copies.
#define DPINFER_SIMD_COPY(variant, Table, name) \
  namespace dpinfer::variant {                  \
  extern const Table name;                      \
  }
#if defined(DPINFER_HAVE_X86_VARIANTS)
#define DPINFER_SIMD_COPIES(Table, name)                                                                   \
  DPINFER_SIMD_COPY(portable, Table, name)                                                                 \
  DPINFER_SIMD_COPY(avx2, Table, name)                                                                     \
  DPINFER_SIMD_COPY(avx512, Table, name)                                                                   \
  static constexpr dpinfer::SimdCopies<Table> name##Copies{&dpinfer::portable::name, &dpinfer::avx2::name, \
                                                           &dpinfer::avx512::name};
#else
#define DPINFER_SIMD_COPIES(Table, name)   \
  DPINFER_SIMD_COPY(portable, Table, name) \
  static constexpr dpinfer::SimdCopies<Table> name##Copies{&dpinfer::portable::name, nullptr, nullptr};
#endif

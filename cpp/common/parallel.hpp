// The number of threads a kernel uses: what the caller asked for, or as many as OpenMP would use.
#pragma once

#include <algorithm>

// Declared here rather than through omp.h, whose place only the compiler that owns it knows (static analysers do not).
extern "C" int omp_get_max_threads(void);

namespace dpinfer {

// More threads than any machine has cores would only make the process die for want of them.
inline constexpr int kMostThreads = 4096;

// 0 means "as many as OpenMP would use".
inline int resolve_threads(int requested) {
  return std::min(kMostThreads, requested > 0 ? requested : std::max(1, omp_get_max_threads()));
}

}  // namespace dpinfer

// The number of threads a kernel uses: what the caller asked for, bounded by what OpenMP offers.
#pragma once

#include <omp.h>

#include <algorithm>

namespace dpinfer {

// 0 means "as many as OpenMP would use".
inline int resolve_threads(int requested) { return requested > 0 ? requested : std::max(1, omp_get_max_threads()); }

}  // namespace dpinfer

// Inverses of many small positive definite matrices at once, eight side by side: the instruction-set specific half of
// stationary.hpp.
#pragma once

#include <cstddef>

namespace dpinfer::lab {

inline constexpr std::size_t kInverseGroup = 8;

// `matrices` holds the lower triangles of a group: element (i, j) of matrix m at [(i n + j) kInverseGroup + m],
// replaced by the inverse's.  `pivots` (n kInverseGroup) are all positive for exactly the positive definite ones; the
// inverse of another is meaningless.  `scratch` holds n kInverseGroup numbers.
struct InverseGroup {
  double* matrices;
  double* pivots;
  double* scratch;
  std::size_t width;  // n
};

struct InverseKernels {
  const char* name;
  void (*inverses)(const InverseGroup& group);
};

}  // namespace dpinfer::lab

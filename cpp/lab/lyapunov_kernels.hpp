// Lyapunov equations of many small matrices at once, eight side by side: the instruction-set specific half of
// stationary_groups.hpp.
#pragma once

#include <cstddef>

namespace dpinfer::lab {

inline constexpr std::size_t kLyapunovGroup = 8;

// Matrices are kept in squares of a multiple of four, the rest of which is zero.
constexpr std::size_t lyapunov_square(std::size_t width) { return (width + 3) / 4 * 4; }

// Numbers that will be read or written next, fetched into the cache beside the arithmetic; may be empty.
struct Upcoming {
  const double* begin;
  const double* end;
};

// Solves S Y + Y S' = E, or S Y + Y S' - S Y S' = E, for eight matrices S and diagonals E.  Element (i, j) of matrix m
// is at [(i q + j) kLyapunovGroup + m], q = lyapunov_square(n); element i of diagonal m at [i kLyapunovGroup + m].
struct LyapunovGroup {
  double* s;             // (q, q)
  const double* energy;  // (n,)
  double* y;             // (q, q): the solutions, symmetric
  double* work;          // four matrices (q, q)
  double* error;         // one per matrix: a bound on the error relative to Y, NaN or large where there is no solution
  std::size_t width;     // n
  bool symmetric;        // S equals its transpose
  bool discrete;
  Upcoming input;
  Upcoming output;
};

// Between eight Hessians A or covariances V, row-major one after another, and a group: S = kappa L A L, V = L Y L.
struct LyapunovScale {
  const double* roots;  // L's diagonals: element i of diagonal m at [i kLyapunovGroup + m]
  double sample_rate;   // kappa
  std::size_t width;    // n
};

struct LyapunovKernels {
  const char* name;
  void (*gather)(const double* hessians, const LyapunovScale& scale, double* s);
  void (*scatter)(const double* y, const LyapunovScale& scale, double* covariances);
  void (*solve)(const LyapunovGroup& group);
};

}  // namespace dpinfer::lab

// The integer lattice on which private sums live.
//
// Every clipped contribution is rounded to integer multiples k of the step g = 2^(floor(log2 C) - 30), and
// sum k^2 <= (C / g)^2 holds by construction: gradients are clipped in floating point to (1 - 2^-20) C, and the margin
// of at least 2^10 steps covers the rounding of up to 2^20 coordinates (sqrt(d) / 2 <= 2^9 steps) and of the
// floating-point norm.  The proof is in docs/derivations/private-sum.md.
#pragma once

namespace dpinfer {

struct Lattice {
  double step;       // g, a power of two
  double clip_norm;  // (1 - 2^-20) C

  // For max_grad_norm C in [1e-30, 1e30].
  static Lattice from_max_norm(double max_grad_norm);
};

inline constexpr int kMaxLatticeDimension = 1 << 20;

}  // namespace dpinfer

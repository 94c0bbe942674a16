#include "mechanism/sum/lattice.hpp"

#include <cmath>

#include "mechanism/mutants.hpp"

namespace dpinfer {

Lattice Lattice::from_max_norm(double max_grad_norm) {
  int exponent = 0;
  std::frexp(max_grad_norm, &exponent);  // max_grad_norm = m 2^exponent with m in [1/2, 1)
  const Lattice lattice{std::ldexp(1.0, exponent - 1 - 30), max_grad_norm * (1.0 - std::ldexp(1.0, -20))};
  DPINFER_MUTATE(return mutants::lattice(max_grad_norm, lattice);)
  return lattice;
}

}  // namespace dpinfer

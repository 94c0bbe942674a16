// What a GPU would sum, computed by the host: the code of its threads, phase by phase.
#pragma once

#include <cstdint>
#include <vector>

#include "mechanism/rows/regression_rows.hpp"
#include "tests/cuda/emulated_phases.hpp"

namespace dpinfer {

struct Emulation {
  int n_blocks;
  int n_threads;
  int tile_records;
  ThreadOrder order = ThreadOrder::forwards;
};

std::vector<std::int64_t> emulated_sum(const Records& records, const RegressionPass& pass, const Lattice& lattice,
                                       const Emulation& emulation);

// The same by products on tensor cores, for at most most_product_directions(): by n_blocks of as many threads as a GPU
// starts.
std::vector<std::int64_t> emulated_products(const Records& records, const RegressionPass& pass, const Lattice& lattice,
                                            int n_blocks);
int most_product_directions();

}  // namespace dpinfer

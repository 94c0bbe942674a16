// What a GPU would sum, computed by the host: the code of its threads, phase by phase.
#pragma once

#include <cstdint>
#include <vector>

#include "mechanism/rows/regression_rows.hpp"

namespace dpinfer {

// The threads of a phase run one after the other: from the last to the first if `backwards`.
struct Emulation {
  int n_blocks;
  int n_threads;
  int tile_records;
  bool backwards = false;
};

std::vector<std::int64_t> emulated_sum(const Records& records, const RegressionPass& pass, const Lattice& lattice,
                                       const Emulation& emulation);

}  // namespace dpinfer

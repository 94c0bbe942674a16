// A pass over the records of a regression in tiles, each by a block of threads: the sums of regression_rows-inl.hpp,
// bit for bit.  A record's numbers are found in the same order of operations, each by one thread; its integers are
// added as integers, in any order.
//
// Included once per namespace DPINFER_SIMD_VARIANT, with one lane (one_lane.hpp): by the kernel that a GPU runs, and by
// the host's emulation of it in the tests.
#pragma once

#include <cstdint>

#include "mechanism/simd/regression_factors-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Tiles of so many records: with more, a matrix's sums would be read and written less often, in more shared memory.
inline constexpr int kMostTileRecords = 32;
// What a block of threads may have on every GPU without asking.
inline constexpr int kSharedBytes = 48 << 10;

struct TilePass {
  RegressionTask task;      // of dense records; its pointers are to the memory of whoever runs the pass
  const double* by_column;  // n_coef x (n_directions + 1): the transpose of transform, with loc behind it
  int tile_records;

  // Doubles of a record in the memory of a block: x, z with the linear predictor, what it contributes.
  static constexpr int record_doubles(int n_coef, int n_directions) { return n_coef + n_directions + 1 + 2; }
  constexpr int tile_doubles() const { return tile_records * record_doubles(task.n_coef, task.n_directions); }
  constexpr std::int64_t n_tiles() const { return (task.records.n_rows + tile_records - 1) / tile_records; }
};

// How many records a tile may have: 0 where one has too many numbers.
inline int tile_records(int n_coef, int n_directions) {
  const int fitting = kSharedBytes / (8 * TilePass::record_doubles(n_coef, n_directions));
  return fitting < kMostTileRecords ? fitting : kMostTileRecords;
}

DPINFER_INLINE RegressionNumbers numbers_of(const RegressionTask& task, std::int64_t row, double square,
                                            double predictor) {
  const bool has_response = task.output != RegressionOutput::moments;
  return {{has_response ? task.records.response[row] : 0.0}, {predictor}, {square}, {1.0}};
}

// Finds what a record contributes along its z, from |z|^2 and the linear predictor.  Returns false, and zeros, for a
// record that takes no part: z is then to be taken as 0.
DPINFER_INLINE bool find_factors(const RegressionTask& task, std::int64_t row, double square, double predictor,
                                 double& factor, double& extra) {
  const RegressionNumbers numbers = numbers_of(task, row, square, predictor);
  RegressionFactors found = regression_factors(task, numbers);
  Vec looked_at[kLookedAt];
  hold_inside(task, numbers.square, found, looked_at);
  bool alive = true;
  for (const Vec& number : looked_at) alive = alive && all_at_most(number, splat(kFinite));
  factor = alive ? found.factor.value : 0.0;
  extra = alive ? found.extra.value : 0.0;
  return alive;
}

// The same from z, which becomes 0, with the linear predictor behind it; of an indicator, `factor` is the place of its
// one.
DPINFER_INLINE void find_factors_of(const RegressionTask& task, std::int64_t row, double* z, double& factor,
                                    double& extra) {
  const int m = task.n_directions;
  Vec square = splat(0.0);
  for (int k = 0; k < m; ++k) square = fused({z[k]}, {z[k]}, square);
  if (task.is_size()) {
    const RegressionFactors found = regression_factors(task, numbers_of(task, row, square.value, z[m]));
    factor = place_of_size(task, size_of(task, found, square).value, found.size.value);
    return;
  }
  if (find_factors(task, row, square.value, z[m], factor, extra)) return;
  for (int k = 0; k < m; ++k) z[k] = 0.0;
}

DPINFER_INLINE std::uint64_t rounded(double a, double b) {
  const Vec magic = splat(kRoundMagic);
  return (as_bits(fused({a}, {b}, magic)) - as_bits(magic)).value;
}

// Counts the tile's records in those places of `sums` that are this thread's.
DPINFER_INLINE void add_tile_sizes(const RegressionTask& task, int count, const double* factor, std::uint64_t* sums,
                                   int thread, int n_threads) {
  for (int k = thread; k < task.released_length(); k += n_threads) {
    for (int r = 0; r < count; ++r) sums[k] += factor[r] == k ? one_of_sizes(task) : 0U;
  }
}

// Adds the tile's scores to those of `sums` that are this thread's.
DPINFER_INLINE void add_tile_scores(const RegressionTask& task, int count, const double* z, const double* factor,
                                    const double* extra, std::uint64_t* sums, int thread, int n_threads) {
  const int m = task.n_directions;
  for (int k = thread; k < task.released_length(); k += n_threads) {
    std::uint64_t sum = sums[k];
    for (int r = 0; r < count; ++r) sum += k < m ? rounded(z[r * (m + 1) + k], factor[r]) : rounded(extra[r], 1.0);
    sums[k] = sum;
  }
}

// Adds the tile's triangles, row by row, to those of `sums` that are this thread's.
DPINFER_INLINE void add_tile_triangles(const RegressionTask& task, int count, const double* z, const double* factor,
                                       std::uint64_t* sums, int thread, int n_threads) {
  const int m = task.n_directions;
  int row_start = 0;
  for (int i = 0; i < m; row_start += m - i, ++i) {
    // The first entry of this row whose place is the thread's, counted by n_threads.
    const int before = row_start % n_threads;
    const int skipped = thread >= before ? thread - before : thread - before + n_threads;
    for (int j = i + skipped; j < m; j += n_threads) {
      std::uint64_t sum = sums[row_start + j - i];
      for (int r = 0; r < count; ++r) {
        const double* const own = z + r * (m + 1);
        const double scaled = own[i] * factor[r];
        sum += rounded(scaled * (i == j ? 1.0 : kRootOfTwo), own[j]);
      }
      sums[row_start + j - i] = sum;
    }
  }
}

// Adds `count` records from `first` on to `sums`, in `memory` of tile_doubles().  each(phase) calls phase(thread,
// n_threads) for all threads of the block, and returns when all of them are through.
template <typename Each>
DPINFER_INLINE void add_tile(const TilePass& pass, std::int64_t first, int count, double* memory, std::uint64_t* sums,
                             const Each& each) {
  const RegressionTask& task = pass.task;
  const Records& records = task.records;
  const int n = task.n_coef;
  const int width = task.n_directions + 1;
  double* const x = memory;
  double* const z = x + static_cast<std::ptrdiff_t>(pass.tile_records) * n;
  double* const factor = z + static_cast<std::ptrdiff_t>(pass.tile_records) * width;
  double* const extra = factor + pass.tile_records;
  each([&](int thread, int n_threads) {
    for (int item = thread; item < count * n; item += n_threads) {
      const int j = item % n;
      const std::int64_t place = (first + item / n) * records.n_features + j;
      x[item] = j == records.n_features ? 1.0
                : records.is_float32    ? static_cast<double>(static_cast<const float*>(records.features)[place])
                                        : static_cast<const double*>(records.features)[place];
    }
  });
  each([&](int thread, int n_threads) {
    for (int item = thread; item < count * width; item += n_threads) {
      const double* const own = x + static_cast<std::ptrdiff_t>(item / width) * n;
      const double* const column = pass.by_column + item % width;
      Vec sum = splat(0.0);
      for (int j = 0; j < n; ++j) sum = fused({column[static_cast<std::ptrdiff_t>(j) * width]}, {own[j]}, sum);
      z[item] = sum.value;
    }
  });
  each([&](int thread, int n_threads) {
    for (int r = thread; r < count; r += n_threads)
      find_factors_of(task, first + r, z + r * width, factor[r], extra[r]);
  });
  each([&](int thread, int n_threads) {
    if (task.is_matrix()) {
      add_tile_triangles(task, count, z, factor, sums, thread, n_threads);
    } else if (task.is_size()) {
      add_tile_sizes(task, count, factor, sums, thread, n_threads);
    } else {
      add_tile_scores(task, count, z, factor, extra, sums, thread, n_threads);
    }
  });
}

// Adds every n_blocks-th tile from the block's own on.
template <typename Each>
DPINFER_INLINE void add_tiles(const TilePass& pass, int block, int n_blocks, double* memory, std::uint64_t* sums,
                              const Each& each) {
  for (std::int64_t tile = block; tile < pass.n_tiles(); tile += n_blocks) {
    const std::int64_t first = tile * pass.tile_records;
    const std::int64_t left = pass.task.records.n_rows - first;
    add_tile(pass, first, left < pass.tile_records ? static_cast<int>(left) : pass.tile_records, memory, sums, each);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// A pass over the records of a regression on the tensor cores of a GPU: the sums of regression_rows-inl.hpp, bit for
// bit.  For at most kMostProductDirections directions; tile_pass.hpp makes the others.
//
// A warp takes 16 records (or twice that) and finds z = W x and the linear predictor by products of float64 matrices.
// Such a product adds its terms one after the other, in the order of the columns, each by a fused multiply-add, as the
// CPU does (derivations/private-sum.md, "On a GPU").  Every record then belongs to four lanes.
//
// Included once per namespace DPINFER_SIMD_VARIANT, as tile_pass.hpp is; the tests' emulation, which has a thread of
// the host for each of the GPU's, includes its own lanes before.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include "mechanism/cuda/device_lanes.hpp"
#endif
#include "mechanism/cuda/tile_pass.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Of a block of threads that adds triangles.
inline constexpr int kWarps = 8;
inline constexpr int kWarpRecords = 16;
// The columns of a product come in blocks of 8; the last column is the linear predictor's.
inline constexpr int kMostColumnBlocks = 13;
inline constexpr int kMostProductDirections = 8 * kMostColumnBlocks - 1;

// What a lane holds of a product: rows `group` and `group + 8`, columns `2 turn` and `2 turn + 1` of each block.
struct Lane {
  int lane = thread_in_block() % 32;
  int group = lane / 4;
  int turn = lane % 4;
  int first_of_group = lane & 28;
};

// W and the point, in the order in which lanes read them: chunks of 8 features, then blocks of columns.
DPINFER_DEVICE void arrange_columns(const TilePass& pass, int n_chunks, int n_blocks, Pair* columns) {
  const int m = pass.task.n_directions;
  const int width = m + 1;
  for (int item = thread_in_block(); item < n_chunks * n_blocks * 32; item += threads_of_block()) {
    const int lane = item % 32;
    const int block = item / 32 % n_blocks;
    const int first = item / 32 / n_blocks * 8 + lane % 4;
    const int column = 8 * block + lane / 4;
    const int place = column < m ? column : column == 8 * n_blocks - 1 ? m : -1;
    const auto at = [&](int j) {
      return place >= 0 && j < pass.task.n_coef ? pass.by_column[static_cast<std::int64_t>(j) * width + place] : 0.0;
    };
    columns[item] = {at(first), at(first + 4)};
  }
}

// Eight features of 16 records, from a chunk on; 0 where there are none.
DPINFER_DEVICE void read_chunk(const Records& records, const Lane& lane, std::int64_t first, int chunk,
                               double (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t row = first + lane.group + i % 2 * 8;
    const int column = 8 * chunk + lane.turn + i / 2 * 4;
    a[i] = records.has_intercept && column == records.n_features ? 1.0 : 0.0;
    if (row >= records.n_rows || column >= records.n_features) continue;
    const std::int64_t place = row * records.n_features + column;
    a[i] = records.is_float32 ? static_cast<double>(static_cast<const float*>(records.features)[place])
                              : static_cast<const double*>(records.features)[place];
  }
}

// The whitened features of a warp's records, and what each record contributes along them.
template <int kBlocks, int kGroups>
struct WarpRecords {
  static constexpr int kRecords = kGroups * kWarpRecords;

  double z[kGroups][kBlocks][4];  // 0 for a record that takes no part
  double factor[kGroups][2];
  double extra;  // of the one record that is the lane's own

  // Finds z with the linear predictor in its last column.  `ahead` holds the first chunk, and gets that of `next`.
  DPINFER_DEVICE void multiply(const Records& records, const Lane& lane, std::int64_t first, std::int64_t next,
                               int n_chunks, const Pair* columns, double (&ahead)[kGroups][4]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i) z[group][block][i] = 0.0;
#pragma unroll 1
    for (int chunk = 0; chunk < n_chunks; ++chunk) {
      double a[kGroups][4];
      const bool last = chunk + 1 == n_chunks;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[group][i] = ahead[group][i];
        read_chunk(records, lane, (last ? next : first) + group * kWarpRecords, last ? 0 : chunk + 1, ahead[group]);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const Pair b = columns[(chunk * kBlocks + block) * 32 + lane.lane];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) add_product(z[group][block], a[group], b);
      }
    }
  }

  // Finds factors from z.
  DPINFER_DEVICE void find(const RegressionTask& task, const Lane& lane, std::int64_t first) {
    double predictor[kGroups][2];
    double square[kGroups][2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        double& last = z[group][kBlocks - 1][2 * half + 1];
        predictor[group][half] = from_lane(last, lane.lane | 3);
        if (lane.turn == 3) last = 0.0;
      }
    }
    // The columns in their order: each lane of a group adds its two, and hands the sum on.
#pragma unroll
    for (int group = 0; group < kGroups; ++group) square[group][0] = square[group][1] = 0.0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int turn = 0; turn < 4; ++turn) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            double& sum = square[group][half];
            const double one = z[group][block][2 * half];
            const double two = z[group][block][2 * half + 1];
            sum = from_lane(fma(two, two, fma(one, one, sum)), lane.first_of_group | turn);
          }
        }
      }
    }
    // Two or four of the lanes have a record of their own.
    const int half = lane.turn % 2;
    const int group = lane.turn / 2 % kGroups;
    double own_square = 0.0;
    double own_predictor = 0.0;
#pragma unroll
    for (int at = 0; at < 2 * kGroups; ++at) {
      if (at != 2 * group + half) continue;
      own_square = square[at / 2][at % 2];
      own_predictor = predictor[at / 2][at % 2];
    }
    const std::int64_t row = first + group * kWarpRecords + 8 * half + lane.group;
    double found = 0.0;
    bool alive = false;
    extra = 0.0;
    if (row < task.records.n_rows) alive = find_factors(task, row, own_square, own_predictor, found, extra);
    if (lane.turn >= 2 * kGroups) extra = 0.0;  // another lane's
    const unsigned all_alive = said_by_lanes(alive);
#pragma unroll
    for (int at = 0; at < 2 * kGroups; ++at) {
      const int source = lane.first_of_group | at;
      factor[at / 2][at % 2] = from_lane(found, source);
      if ((all_alive >> source & 1U) != 0U) continue;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < 2; ++i) z[at / 2][block][at % 2 * 2 + i] = 0.0;
    }
  }
};

// The integer that a b rounds to, and kRoundBits.
DPINFER_DEVICE std::uint64_t shifted_bits(double a, double b) {
  return as_bits(fused({a}, {b}, splat(kRoundMagic))).value;
}

// Adds the scores of all records to `total`.
template <int kBlocks, int kGroups, int kScoreWarps>
DPINFER_KERNEL(32 * kScoreWarps)
add_scores(const TilePass* given, std::uint64_t* total) {
  using Own = WarpRecords<kBlocks, kGroups>;
  DPINFER_SHARED(memory);
  const TilePass pass = *given;
  const RegressionTask& task = pass.task;
  auto* const columns = reinterpret_cast<Pair*>(memory);
  const int n_chunks = (task.n_coef + 7) / 8;
  arrange_columns(pass, n_chunks, kBlocks, columns);
  wait_for_block();

  const Lane lane;
  const std::int64_t step = std::int64_t{blocks_of_grid()} * kScoreWarps * Own::kRecords;
  std::int64_t first = (std::int64_t{block_in_grid()} * kScoreWarps + thread_in_block() / 32) * Own::kRecords;
  std::uint64_t sums[kBlocks][2] = {};
  std::uint64_t extras = 0;
  std::uint64_t n_added = 0;
  double ahead[kGroups][4];
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
    read_chunk(task.records, lane, first + group * kWarpRecords, 0, ahead[group]);
#pragma unroll 1
  for (; first < task.records.n_rows; first += step) {
    Own own;
    own.multiply(task.records, lane, first, first + step, n_chunks, columns, ahead);
    own.find(task, lane, first);
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[block][i % 2] += shifted_bits(own.z[group][block][i], own.factor[group][i / 2]);
    extras += shifted_bits(own.extra, 1.0);
    ++n_added;
  }
  const int m = task.n_directions;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint64_t sum = sums[block][i] - 2 * kGroups * n_added * kRoundBits;
      for (int other = 4; other < 32; other *= 2) sum += from_lane_across(sum, other);
      const int column = 8 * block + 2 * lane.turn + i;
      if (lane.group == 0 && column < m) add_to(total + column, sum);
    }
  }
  if (task.scale_weight == 0.0) return;
  extras -= n_added * kRoundBits;
  for (int other = 1; other < 32; other *= 2) extras += from_lane_across(extras, other);
  if (lane.lane == 0) add_to(total + m, extras);
}

// Of the triangle above the diagonal, tiles of 4 x 8 entries belong to a thread each.
inline constexpr int kTileRows = 4;
inline constexpr int kTileColumns = 8;
inline constexpr int kBlockRecords = kWarps * kWarpRecords;

// z of a record takes so many doubles: an even number, and of other banks than the next record's.
constexpr int padded_columns(int n_blocks) { return 8 * n_blocks + 2; }

struct TriangleTile {
  int row = -1;
  int column = 0;

  // The index-th tile; row < 0 beyond the last.
  DPINFER_DEVICE static TriangleTile at(int index, int m) {
    for (int row = 0; row < m - 1; row += kTileRows) {
      const int first = row / kTileColumns * kTileColumns;
      const int count = (m - first + kTileColumns - 1) / kTileColumns;
      if (index < count) return {row, first + index * kTileColumns};
      index -= count;
    }
    return {};
  }
  DPINFER_DEVICE static int count(int m) {
    int total = 0;
    for (int row = 0; row < m - 1; row += kTileRows)
      total += (m - row / kTileColumns * kTileColumns + kTileColumns - 1) / kTileColumns;
    return total;
  }
};

DPINFER_DEVICE std::int64_t place_in_triangle(int row, int column, int m) {
  return static_cast<std::int64_t>(row) * m - static_cast<std::int64_t>(row) * (row - 1) / 2 + column - row;
}

// Adds the triangles of all records to `total`.
template <int kBlocks>
DPINFER_KERNEL(32 * kWarps)
add_triangles(const TilePass* given, std::uint64_t* total) {
  DPINFER_SHARED(memory);
  const TilePass pass = *given;
  const RegressionTask& task = pass.task;
  const int m = task.n_directions;
  const int n_chunks = (task.n_coef + 7) / 8;
  constexpr int kWidth = padded_columns(kBlocks);
  auto* const columns = reinterpret_cast<Pair*>(memory);
  double* const z = memory + static_cast<std::ptrdiff_t>(n_chunks) * kBlocks * 64;
  double* const factor = z + kBlockRecords * kWidth;
  arrange_columns(pass, n_chunks, kBlocks, columns);
  wait_for_block();

  const Lane lane;
  const int thread = thread_in_block();
  // Threads that are left over take other records of the same tiles, and of the diagonal.
  const int n_tiles = TriangleTile::count(m);
  const int n_sharing = n_tiles > 0 ? 32 * kWarps / n_tiles : 1;
  const TriangleTile tile =
      n_tiles > 0 && thread < n_sharing * n_tiles ? TriangleTile::at(thread % n_tiles, m) : TriangleTile{};
  const int n_diagonals = 32 * kWarps / m;
  std::uint64_t sums[kTileRows][kTileColumns] = {};
  std::uint64_t diagonal = 0;
  std::uint64_t n_added = 0;
  std::uint64_t n_on_diagonal = 0;
  const std::int64_t step = std::int64_t{blocks_of_grid()} * kBlockRecords;
  const int own_record = thread / 32 * kWarpRecords;
  std::int64_t first = std::int64_t{block_in_grid()} * kBlockRecords;
  double ahead[1][4];
  read_chunk(task.records, lane, first + own_record, 0, ahead[0]);
#pragma unroll 1
  for (; first < task.records.n_rows; first += step) {
    {
      WarpRecords<kBlocks, 1> own;
      own.multiply(task.records, lane, first + own_record, first + own_record + step, n_chunks, columns, ahead);
      own.find(task, lane, first + own_record);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int record = own_record + 8 * half + lane.group;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          *reinterpret_cast<Pair*>(z + record * kWidth + 8 * block + 2 * lane.turn) = {own.z[0][block][2 * half],
                                                                                       own.z[0][block][2 * half + 1]};
        }
        if (lane.turn == 0) factor[record] = own.factor[0][half];
      }
    }
    wait_for_block();
    if (thread < n_diagonals * m) {
      for (int record = thread / m; record < kBlockRecords; record += n_diagonals) {
        const double value = z[record * kWidth + thread % m];
        diagonal += shifted_bits(value * factor[record], value);
        ++n_on_diagonal;
      }
    }
    if (tile.row >= 0) {
#pragma unroll 2
      for (int record = thread / n_tiles; record < kBlockRecords; record += n_sharing) {
        const double* const own = z + record * kWidth;
        double left[kTileRows];
        double right[kTileColumns];
#pragma unroll
        for (int i = 0; i < kTileRows; ++i) left[i] = own[tile.row + i] * factor[record] * kRootOfTwo;
#pragma unroll
        for (int j = 0; j < kTileColumns; j += 2) {
          const Pair two = *reinterpret_cast<const Pair*>(own + tile.column + j);
          right[j] = two.x;
          right[j + 1] = two.y;
        }
#pragma unroll
        for (int i = 0; i < kTileRows; ++i)
#pragma unroll
          for (int j = 0; j < kTileColumns; ++j) sums[i][j] += shifted_bits(left[i], right[j]);
        ++n_added;
      }
    }
    wait_for_block();
  }
  if (n_on_diagonal > 0) {
    add_to(total + place_in_triangle(thread % m, thread % m, m), diagonal - n_on_diagonal * kRoundBits);
  }
  if (n_added == 0) return;
#pragma unroll
  for (int i = 0; i < kTileRows; ++i) {
#pragma unroll
    for (int j = 0; j < kTileColumns; ++j) {
      const int row = tile.row + i;
      const int column = tile.column + j;
      if (row < column && column < m)
        add_to(total + place_in_triangle(row, column, m), sums[i][j] - n_added * kRoundBits);
    }
  }
}

// A kernel, and how it is launched.
struct ProductKernel {
  void (*run)(const TilePass*, std::uint64_t*);
  bool is_matrix;
  int n_blocks;   // of 8 columns
  int n_threads;  // in a block
  int n_records;  // that a block of threads takes at a time

  std::size_t shared_bytes(int n_coef) const {
    const int columns = (n_coef + 7) / 8 * n_blocks * 64;
    const int z = is_matrix ? kBlockRecords * (padded_columns(n_blocks) + 1) : 0;
    return sizeof(double) * static_cast<std::size_t>(columns + z);
  }
};

// As many warps as have room for their products in a processor's registers; with few columns, each takes twice 16
// records.
template <int kBlocks>
ProductKernel product_kernel(bool is_matrix) {
  if (is_matrix) return {add_triangles<kBlocks>, true, kBlocks, 32 * kWarps, kBlockRecords};
  constexpr int kGroups = kBlocks <= 3 ? 2 : 1;
  constexpr int kScoreWarps = kBlocks <= 7 ? 16 : kBlocks <= 9 ? 12 : 8;
  return {add_scores<kBlocks, kGroups, kScoreWarps>, false, kBlocks, 32 * kScoreWarps,
          kGroups * kScoreWarps * kWarpRecords};
}

// The kernel with the fewest columns that are enough for at most kMostProductDirections.
inline ProductKernel product_kernel(int n_directions, bool is_matrix) {
  const int needed = (n_directions + 8) / 8;
  if (needed <= 1) return product_kernel<1>(is_matrix);
  if (needed <= 2) return product_kernel<2>(is_matrix);
  if (needed <= 3) return product_kernel<3>(is_matrix);
  if (needed <= 4) return product_kernel<4>(is_matrix);
  if (needed <= 5) return product_kernel<5>(is_matrix);
  if (needed <= 7) return product_kernel<7>(is_matrix);
  if (needed <= 9) return product_kernel<9>(is_matrix);
  if (needed <= 11) return product_kernel<11>(is_matrix);
  return product_kernel<kMostColumnBlocks>(is_matrix);
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

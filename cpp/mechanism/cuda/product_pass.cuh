// A pass over the records of a regression on the tensor cores of a GPU: the sums of regression_rows-inl.hpp, bit for
// bit.  For at most kMostProductDirections directions; tile_pass.hpp makes the others.
//
// A warp takes 16 records (or twice that) and finds z = W x and the linear predictor by products of float64 matrices.
// Such a product adds its terms one after the other, in the order of the columns, each by a fused multiply-add, as the
// CPU does (derivations/private-sum.md, "On a GPU").  Every record then belongs to four lanes.
#pragma once

#include <cstdint>

#include "mechanism/cuda/tile_pass.hpp"

namespace dpinfer::cuda {
namespace {

// Of a block of threads that adds triangles.
inline constexpr int kWarps = 8;
inline constexpr int kWarpRecords = 16;
inline constexpr unsigned kAllLanes = 0xffffffffU;
// The columns of a product come in blocks of 8; the last column is the linear predictor's.
inline constexpr int kMostColumnBlocks = 13;
inline constexpr int kMostProductDirections = 8 * kMostColumnBlocks - 1;

// sums += a b for 16 x 8, 8 x 8 matrices in the lanes of a warp.
__device__ __forceinline__ void add_product(double (&sums)[4], const double (&a)[4], const double2& b) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b.x), "d"(b.y));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i % 2;
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums[2 * half]), "+d"(sums[2 * half + 1])
        : "d"(a[i]), "d"(i < 2 ? b.x : b.y));
  }
#endif
}

// What a lane holds of a product: rows `group` and `group + 8`, columns `2 turn` and `2 turn + 1` of each block.
struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int group = lane / 4;
  int turn = lane % 4;
  int first_of_group = lane & 28;
};

// W and the point, in the order in which lanes read them: chunks of 8 features, then blocks of columns.
__device__ inline void arrange_columns(const TilePass& pass, int n_chunks, int n_blocks, double2* columns) {
  const int m = pass.task.n_directions;
  const int width = m + 1;
  for (int item = static_cast<int>(threadIdx.x); item < n_chunks * n_blocks * 32;
       item += static_cast<int>(blockDim.x)) {
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
__device__ __forceinline__ void read_chunk(const Records& records, const Lane& lane, std::int64_t first, int chunk,
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
  __device__ __forceinline__ void multiply(const Records& records, const Lane& lane, std::int64_t first,
                                           std::int64_t next, int n_chunks, const double2* columns,
                                           double (&ahead)[kGroups][4]) {
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
        const double2 b = columns[(chunk * kBlocks + block) * 32 + lane.lane];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) add_product(z[group][block], a[group], b);
      }
    }
  }

  // Finds factors from z.
  __device__ __forceinline__ void find(const RegressionTask& task, const Lane& lane, std::int64_t first) {
    double predictor[kGroups][2];
    double square[kGroups][2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        double& last = z[group][kBlocks - 1][2 * half + 1];
        predictor[group][half] = __shfl_sync(kAllLanes, last, lane.lane | 3);
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
            sum = __shfl_sync(kAllLanes, fma(two, two, fma(one, one, sum)), lane.first_of_group | turn);
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
    const unsigned all_alive = __ballot_sync(kAllLanes, alive);
#pragma unroll
    for (int at = 0; at < 2 * kGroups; ++at) {
      const int source = lane.first_of_group | at;
      factor[at / 2][at % 2] = __shfl_sync(kAllLanes, found, source);
      if ((all_alive >> source & 1U) != 0U) continue;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < 2; ++i) z[at / 2][block][at % 2 * 2 + i] = 0.0;
    }
  }
};

// The bits of a sum that rounds to an integer: kRoundBits more than the integer.
inline constexpr std::uint64_t kRoundBits = 0x4338000000000000ULL;

__device__ __forceinline__ std::uint64_t shifted_bits(double a, double b) {
  return static_cast<std::uint64_t>(__double_as_longlong(fma(a, b, kRoundMagic)));
}

__device__ __forceinline__ void add_to(std::uint64_t* total, std::uint64_t sum) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(sum));
}

// Adds the scores of all records to `total`.
template <int kBlocks, int kGroups, int kScoreWarps>
__global__ void __launch_bounds__(32 * kScoreWarps) add_scores(const TilePass* given, std::uint64_t* total) {
  using Own = WarpRecords<kBlocks, kGroups>;
  extern __shared__ double memory[];
  const TilePass pass = *given;
  const RegressionTask& task = pass.task;
  auto* const columns = reinterpret_cast<double2*>(memory);
  const int n_chunks = (task.n_coef + 7) / 8;
  arrange_columns(pass, n_chunks, kBlocks, columns);
  __syncthreads();

  const Lane lane;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kScoreWarps * Own::kRecords;
  std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kScoreWarps + static_cast<int>(threadIdx.x) / 32) * Own::kRecords;
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
      for (int other = 4; other < 32; other *= 2) sum += __shfl_xor_sync(kAllLanes, sum, other);
      const int column = 8 * block + 2 * lane.turn + i;
      if (lane.group == 0 && column < m) add_to(total + column, sum);
    }
  }
  if (task.scale_weight == 0.0) return;
  extras -= n_added * kRoundBits;
  for (int other = 1; other < 32; other *= 2) extras += __shfl_xor_sync(kAllLanes, extras, other);
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
  __device__ static TriangleTile at(int index, int m) {
    for (int row = 0; row < m - 1; row += kTileRows) {
      const int first = row / kTileColumns * kTileColumns;
      const int count = (m - first + kTileColumns - 1) / kTileColumns;
      if (index < count) return {row, first + index * kTileColumns};
      index -= count;
    }
    return {};
  }
  __device__ static int count(int m) {
    int total = 0;
    for (int row = 0; row < m - 1; row += kTileRows)
      total += (m - row / kTileColumns * kTileColumns + kTileColumns - 1) / kTileColumns;
    return total;
  }
};

__device__ __forceinline__ std::int64_t place_in_triangle(int row, int column, int m) {
  return static_cast<std::int64_t>(row) * m - static_cast<std::int64_t>(row) * (row - 1) / 2 + column - row;
}

// Adds the triangles of all records to `total`.
template <int kBlocks>
__global__ void __launch_bounds__(32 * kWarps) add_triangles(const TilePass* given, std::uint64_t* total) {
  extern __shared__ double memory[];
  const TilePass pass = *given;
  const RegressionTask& task = pass.task;
  const int m = task.n_directions;
  const int n_chunks = (task.n_coef + 7) / 8;
  constexpr int kWidth = padded_columns(kBlocks);
  auto* const columns = reinterpret_cast<double2*>(memory);
  double* const z = memory + static_cast<std::ptrdiff_t>(n_chunks) * kBlocks * 64;
  double* const factor = z + kBlockRecords * kWidth;
  arrange_columns(pass, n_chunks, kBlocks, columns);
  __syncthreads();

  const Lane lane;
  const int thread = static_cast<int>(threadIdx.x);
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
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kBlockRecords;
  const int own_record = thread / 32 * kWarpRecords;
  std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kBlockRecords;
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
          *reinterpret_cast<double2*>(z + record * kWidth + 8 * block + 2 * lane.turn) = {
              own.z[0][block][2 * half], own.z[0][block][2 * half + 1]};
        }
        if (lane.turn == 0) factor[record] = own.factor[0][half];
      }
    }
    __syncthreads();
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
          const double2 two = *reinterpret_cast<const double2*>(own + tile.column + j);
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
    __syncthreads();
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

}  // namespace
}  // namespace dpinfer::cuda

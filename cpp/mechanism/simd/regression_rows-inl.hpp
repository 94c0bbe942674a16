// Scores and matrices of regressions in whitened coordinates, eight records at a time.
//
// A record's whitened features, its norm, weight and residual are found in a lane of their own; what they multiply is
// then rounded and added along the directions.  The matrix of a record is a number times z z', so that its norm is
// known before any of its entries is made: one pass over the triangle rounds and adds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "mechanism/simd/record_rows-inl.hpp"
#include "mechanism/simd/regression_factors-inl.hpp"
#include "mechanism/simd/regression_task.hpp"
#include "mechanism/simd/sparse_rows-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Eight records: their numbers, one per lane, and where their whitened features stand.
struct RegressionGroup : RegressionNumbers {
  double* lanes;  // padded_directions vectors, one record per lane
  double* rows;   // eight rows of padded_directions
};

// Directions k ... k + kCount - 1 of eight records.
template <int kCount>
DPINFER_INLINE void whiten(const RegressionTask& task, const double* x, int k, Vec* z) {
  const int n = task.n_coef;
  const double* const row = task.transform + static_cast<std::ptrdiff_t>(k) * n;
  for (int i = 0; i < kCount; ++i) z[i] = splat(0.0);
  for (int j = 0; j < n; ++j) {
    const Vec feature = load(x + j * kLanes);
    for (int i = 0; i < kCount; ++i) z[i] = fused(splat(row[static_cast<std::ptrdiff_t>(i) * n + j]), feature, z[i]);
  }
}

DPINFER_NOINLINE void whitened_group(const RegressionTask& task, const double* x, RegressionGroup& group) {
  const int m = task.n_directions;
  const int pad = task.padded_directions();
  Vec square = splat(0.0);
  for (int k = 0; k < m; k += kLanes) {
    const int here = m - k < kLanes ? m - k : kLanes;
    Vec z[kLanes];
    int i = 0;
    for (; i + 4 <= here; i += 4) whiten<4>(task, x, k + i, z + i);
    for (; i < here; ++i) whiten<1>(task, x, k + i, z + i);
    for (; i < kLanes; ++i) z[i] = splat(0.0);
    for (i = 0; i < kLanes; ++i) {
      square = fused(z[i], z[i], square);
      store(group.lanes + (k + i) * kLanes, z[i]);
    }
    store_transposed(group.rows + k, static_cast<std::size_t>(pad), z);
  }
  group.square = square;
}

// Holds eight records inside the ball: in lattice steps, with a norm of at most task.clip_norm.  Records that are not
// there, or not finite, are left out.
DPINFER_NOINLINE void bound_records(const RegressionTask& task, int count, const RegressionGroup& group,
                                    RegressionFactors& found) {
  Vec looked_at[kLookedAt];
  hold_inside(task, group.square, found, looked_at);
  bool all = count == kLanes;
  for (const Vec& numbers : looked_at) all = all && all_at_most(numbers, splat(kFinite));
  if (all) return;
  double factors[kLanes];
  double extras[kLanes];
  store(factors, found.factor);
  store(extras, found.extra);
  const int pad = task.padded_directions();
  for (int r = 0; r < kLanes; ++r) {
    bool alive = r < count;
    for (const Vec& numbers : looked_at) {
      double values[kLanes];
      store(values, numbers);
      alive = alive && values[r] <= kFinite;
    }
    if (alive) continue;
    factors[r] = extras[r] = 0.0;
    for (int k = 0; k < pad; ++k)
      group.lanes[k * kLanes + r] = group.rows[static_cast<std::ptrdiff_t>(r) * pad + k] = 0.0;
  }
  found.factor = load(factors);
  found.extra = load(extras);
}

// Adds round(factor z) of `count` records, and the scale's coordinate in eight sums.
void add_scores(const RegressionTask& task, int count, const RegressionGroup& group, const RegressionFactors& found,
                std::uint64_t* sums) {
  const int pad = task.padded_directions();
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = as_bits(magic);
  double factors[kLanes];
  store(factors, found.factor);
  for (int k = 0; k < pad; k += kLanes) {
    Bits sum = load(sums + k);
    for (int r = 0; r < count; ++r) {
      const Vec z = load(group.rows + static_cast<std::ptrdiff_t>(r) * pad + k);
      sum = sum + (as_bits(fused(z, splat(factors[r]), magic)) - surplus);
    }
    store(sums + k, sum);
  }
  store(sums + pad, load(sums + pad) + (as_bits(found.extra + magic) - surplus));
}

// Adds the triangle of round(factor z z').  kCount: records, or 0 for `count`.
template <int kCount>
DPINFER_NOINLINE void add_triangles(const RegressionTask& task, int count, const RegressionGroup& group,
                                    const RegressionFactors& found, std::uint64_t* sums) {
  const int n = kCount > 0 ? kCount : count;
  const int m = task.n_directions;
  const int pad = task.padded_directions();
  const double* const rows = group.rows;
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = splat_bits(kRoundBits * static_cast<std::uint64_t>(n));
  // Row i's vector with the diagonal: nothing before it, 1 on it, the root of 2 behind it.
  double steps[2 * kLanes];
  for (int lane = 0; lane < 2 * kLanes; ++lane) steps[lane] = lane < kLanes ? 0.0 : kRootOfTwo;
  steps[kLanes] = 1.0;
  for (int i = 0; i < m; ++i) {
    const Vec diagonal = load(steps + kLanes - i % kLanes);
    const Vec scaled = load(group.lanes + i * kLanes) * found.factor;
    double on[kLanes];
    double off[kLanes];
    store(on, scaled);
    store(off, scaled * splat(kRootOfTwo));
    int j = i / kLanes * kLanes;
    Bits sum = load(sums) - surplus;
    for (int r = 0; r < n; ++r) {
      const Vec z = load(rows + static_cast<std::ptrdiff_t>(r) * pad + j);
      sum = sum + as_bits(fused(splat(on[r]) * diagonal, z, magic));
    }
    store(sums, sum);
    for (j += kLanes, sums += kLanes; j < pad; j += kLanes, sums += kLanes) {
      sum = load(sums) - surplus;
      for (int r = 0; r < n; ++r) {
        const Vec z = load(rows + static_cast<std::ptrdiff_t>(r) * pad + j);
        sum = sum + as_bits(fused(splat(off[r]), z, magic));
      }
      store(sums, sum);
    }
  }
}

// The same triangles of records whose z is mostly zeros: only what is not zero is looked at, and a zero's products
// round to zero.
DPINFER_NOINLINE void add_few(const RegressionTask& task, int count, const RegressionGroup& group,
                              const RegressionFactors& found, std::uint64_t* sums) {
  const int m = task.n_directions;
  const Vec magic = splat(kRoundMagic);
  double factors[kLanes];
  store(factors, found.factor);
  int places[kMostFewDirections + 1];
  double values[kMostFewDirections + kLanes];
  for (int r = 0; r < count; ++r) {
    const double* const z = group.rows + static_cast<std::ptrdiff_t>(r) * task.padded_directions();
    int n = 0;
    for (int k = 0; k < m; ++k) {
      places[n] = k;
      values[n] = z[k];
      n += z[k] != 0.0 ? 1 : 0;
    }
    store(values + n, splat(0.0));
    for (int a = 0; a < n; ++a) {
      const int i = places[a];
      std::uint64_t* const row = sums + (task.triangle_offset(i) - i / kLanes * kLanes);
      const Vec on = splat(values[a]) * splat(factors[r]);
      const Vec off = on * splat(kRootOfTwo);
      std::uint64_t rounded[kLanes];
      store(rounded, as_bits(fused(on, splat(values[a]), magic)) - as_bits(magic));
      row[i] += rounded[0];
      for (int b = a + 1; b < n; b += kLanes) {
        store(rounded, as_bits(fused(off, load(values + b), magic)) - as_bits(magic));
        const int here = n - b < kLanes ? n - b : kLanes;
        for (int lane = 0; lane < here; ++lane) row[places[b + lane]] += rounded[lane];
      }
    }
  }
}

// Adds the indicators of `count` records' sizes.  A record that is not finite is in no interval.
DPINFER_NOINLINE void add_sizes(const RegressionTask& task, int count, const RegressionGroup& group,
                                const RegressionFactors& found, std::uint64_t* sums) {
  double sizes[kLanes];
  double others[kLanes];
  store(sizes, size_of(task, found, group.square));
  store(others, found.size);
  const std::uint64_t one = one_of_sizes(task);
  for (int r = 0; r < count; ++r) {
    const int place = place_of_size(task, sizes[r], others[r]);
    if (place >= 0) sums[place] += one;
  }
}

// Reads eight records feature by feature, into `x`, and whitens them.
DPINFER_NOINLINE void read_dense_group(const RegressionTask& task, const std::int64_t* listed, double* x,
                                       RegressionGroup& group) {
  read_columns(task.records, listed, x);
  whitened_group(task, x, group);
  Vec eta = splat(0.0);
  for (int j = 0; j < task.n_coef; ++j) eta = fused(load(x + j * kLanes), splat(task.loc[j]), eta);
  group.predictor = eta;
}

// The same of sparse records.
void read_sparse_group(const RegressionTask& task, const std::int64_t* listed, RegressionGroup& group) {
  if (task.records.is_float32) {
    sparse_rows<float>(task, listed, group.rows);
  } else {
    sparse_rows<double>(task, listed, group.rows);
  }
  group.square = lanes_of_rows(task, group.rows, group.lanes, group.predictor);
}

void regression_group(const RegressionTask& task, const std::int64_t* rows, int count, double* scratch,
                      std::uint64_t* sums) {
  const Records& records = task.records;
  RegressionGroup group{};
  group.lanes = scratch + kLanes * ((task.n_coef + kLanes - 1) / kLanes * kLanes);
  group.rows = group.lanes + kLanes * task.padded_directions();
  // The last group is filled up with rows that are left out again.
  std::int64_t listed[kLanes];
  double response[kLanes];
  double given[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    listed[r] = rows[r < count ? r : count - 1];
    response[r] = task.output == RegressionOutput::moments ? 0.0 : records.response[listed[r]];
    given[r] = records.weights == nullptr ? 1.0 : records.weights[listed[r]];
  }
  group.response = load(response);
  group.given = load(given);
  if (records.is_sparse()) {
    read_sparse_group(task, listed, group);
  } else {
    read_dense_group(task, listed, scratch, group);
  }
  RegressionFactors found = regression_factors(task, group);
  if (task.is_size()) {
    add_sizes(task, count, group, found, sums);
    return;
  }
  bound_records(task, count, group, found);
  if (!task.is_matrix()) {
    add_scores(task, count, group, found, sums);
  } else if (task.has_few) {
    add_few(task, count, group, found, sums);
  } else if (count == kLanes) {
    add_triangles<kLanes>(task, count, group, found, sums);
  } else {
    add_triangles<0>(task, count, group, found, sums);
  }
}

void regression_rows(const RegressionTask& task, const std::int64_t* rows, int count, double* scratch,
                     std::uint64_t* sums) {
  for (int i = 0; i < count; i += kLanes) {
    regression_group(task, rows + i, count - i < kLanes ? count - i : kLanes, scratch, sums);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// Clipped gradients of rows with few weights: one row per lane, and a vector of lattice sums per coordinate, to be
// added up over its lanes at the end.
//
// Chunks of up to eight groups of eight rows pass through three loops: coordinates and their sums of squares, what a
// row needs once (expectations, clipping factors), rounding and adding.  In each, the groups are independent of each
// other, so that no chain of additions, and no square root, is waited for.  What a lane computes does not depend on the
// others.
#pragma once

#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/record_rows-inl.hpp"
#include "mechanism/simd/slopes-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// What a chunk keeps for each row, beside its coordinates: number k * kNarrowChunk + i is coordinate k of row i.
struct NarrowChunk {
  int count;  // rows
  int n_groups;
  double y[kNarrowChunk];
  double mean[kNarrowChunk];
  double variance[kNarrowChunk];
  double loc_square[kNarrowChunk];
  double raw_square[kNarrowChunk];
  // Stored coordinates times these are what is rounded: for loc, raw, and the noise variance.
  double loc_factor[kNarrowChunk];
  double raw_factor[kNarrowChunk];
  double factor[kNarrowChunk];
};

// Stores v, and adds its square to `square`.
DPINFER_INLINE void store_with_square(const Vec& v, double* target, Vec& square) {
  store(target, v);
  square = fused(v, v, square);
}

// The predictors of group g.  Without offsets, the gradient of loc_j is x_j loc_scale[j] times a factor that a row's
// coordinates share, which waits until the norm is known (raw likewise): the coordinates are stored here without it.
template <bool kOffset>
DPINFER_NOINLINE void narrow_predictors(const GradientTask& task, int g, const double* x, double* coordinates,
                                        NarrowChunk& chunk) {
  const int n = task.n_coef;
  const double* const loc = task.loc;
  const double* const weight_variance = task.variance;
  const double* const loc_scale = task.loc_scale;
  const double* const raw_scale = task.raw_scale;
  double* const loc_target = coordinates + g * kLanes;
  double* const raw_target = loc_target + n * kNarrowChunk;
  Vec mean = splat(0.0);
  Vec variance = splat(0.0);
  Vec loc_square = splat(0.0);
  Vec raw_square = splat(0.0);
  for (int j = 0; j < n; ++j) {
    const Vec a = load(x + j * kLanes);
    const Vec square = a * a;
    mean = fused(a, splat(loc[j]), mean);
    variance = fused(square, splat(weight_variance[j]), variance);
    if (kOffset) {
      store(loc_target + j * kNarrowChunk, a);
    } else {
      store_with_square(a * splat(loc_scale[j]), loc_target + j * kNarrowChunk, loc_square);
      store_with_square(square * splat(raw_scale[j]), raw_target + j * kNarrowChunk, raw_square);
    }
  }
  store(chunk.mean + g * kLanes, mean);
  store(chunk.variance + g * kLanes, variance);
  store(chunk.loc_square + g * kLanes, loc_square);
  store(chunk.raw_square + g * kLanes, raw_square);
}

// With offsets, the gradients themselves are stored, over the rows that narrow_predictors left.
DPINFER_INLINE void narrow_offset_gradients(const GradientTask& task, int g, const Slopes& slopes, double* coordinates,
                                            Vec& loc_square, Vec& raw_square) {
  const int n = task.n_coef;
  for (int j = 0; j < n; ++j) {
    double* target = coordinates + j * kNarrowChunk + g * kLanes;
    const Vec a = load(target);
    store_with_square(a * slopes.first * splat(task.loc_scale[j]) + splat(task.loc_offset[j]), target, loc_square);
    store_with_square(a * a * slopes.second * splat(task.raw_scale[j]) + splat(task.raw_offset[j]),
                      target + n * kNarrowChunk, raw_square);
  }
}

// Takes rows of group g out, those that are not there and those whose norm is not finite: whatever is stored for them
// becomes zero, and what multiplies it.
inline void drop_rows(int g, const Vec& norm, int n_coordinates, double* coordinates, NarrowChunk& chunk) {
  double norms[kLanes];
  store(norms, norm);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int i = g * kLanes + lane;
    if (i < chunk.count && norms[lane] <= kFinite) continue;
    for (int k = 0; k < n_coordinates; ++k) coordinates[k * kNarrowChunk + i] = 0.0;
    chunk.loc_factor[i] = chunk.raw_factor[i] = chunk.factor[i] = 0.0;
  }
}

// Expectations, norm and clipping factors of group g.
template <bool kOffset>
DPINFER_NOINLINE void narrow_factors(const GradientTask& task, int g, double* coordinates, NarrowChunk& chunk) {
  const int n = task.n_coef;
  const Vec y = load(chunk.y + g * kLanes);
  const Vec mean = load(chunk.mean + g * kLanes);
  const Vec variance = load(chunk.variance + g * kLanes);
  Vec loc_square = load(chunk.loc_square + g * kLanes);
  Vec raw_square = load(chunk.raw_square + g * kLanes);
  Slopes slopes = expected_slopes(task, mean, variance, y);
  if (kOffset) {
    narrow_offset_gradients(task, g, slopes, coordinates, loc_square, raw_square);
    slopes = {splat(1.0), splat(1.0)};
  } else {
    loc_square = slopes.first * slopes.first * loc_square;
    raw_square = slopes.second * slopes.second * raw_square;
  }
  if (task.has_dispersion) {
    const DispersionGradients dispersion = dispersion_gradients(task, mean, variance, y);
    double* target = coordinates + 2 * n * kNarrowChunk + g * kLanes;
    store_with_square(dispersion.loc, target, loc_square);
    store_with_square(dispersion.raw, target + kNarrowChunk, raw_square);
  }
  const Vec norm = square_root(loc_square + raw_square);
  const Vec clip = clipping_factor(norm, task.clip_norm);
  store(chunk.loc_factor + g * kLanes, slopes.first * clip);
  store(chunk.raw_factor + g * kLanes, slopes.second * clip);
  store(chunk.factor + g * kLanes, clip);
  if (chunk.count < (g + 1) * kLanes || !all_at_most(norm, splat(kFinite))) {
    drop_rows(g, norm, task.narrow_coordinates(), coordinates, chunk);
  }
}

// sums += round(coordinates * factor), coordinates first ... last - 1.
DPINFER_NOINLINE void narrow_add(int first, int last, int n_groups, const double* coordinates, const double* factor,
                                 std::uint64_t* sums) {
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = splat_bits(kRoundBits * static_cast<std::uint64_t>(n_groups));
  for (int k = first; k < last; ++k) {
    const double* source = coordinates + k * kNarrowChunk;
    Bits sum = load(sums + k * kLanes) - surplus;
    for (int g = 0; g < n_groups; ++g) {
      sum = sum + as_bits(fused(load(source + g * kLanes), load(factor + g * kLanes), magic));
    }
    store(sums + k * kLanes, sum);
  }
}

// `rows` lists whole groups: the last one is filled up with rows that are dropped again.
template <bool kOffset>
void narrow_chunk(const GradientTask& task, const std::int64_t* rows, int count, double* scratch, std::uint64_t* sums) {
  const Records& records = task.records;
  const int n = task.n_coef;
  double* x = scratch;
  double* coordinates = x + task.n_pad * kLanes;
  NarrowChunk chunk;
  chunk.count = count;
  chunk.n_groups = (count + kLanes - 1) / kLanes;
  const double* const response = records.response;
  for (int i = 0; i < chunk.n_groups * kLanes; ++i) chunk.y[i] = response[rows[i]];
  for (int g = 0; g < chunk.n_groups; ++g) {
    read_columns(records, rows + g * kLanes, x);
    narrow_predictors<kOffset>(task, g, x, coordinates, chunk);
  }
  for (int g = 0; g < chunk.n_groups; ++g) narrow_factors<kOffset>(task, g, coordinates, chunk);
  narrow_add(0, n, chunk.n_groups, coordinates, chunk.loc_factor, sums);
  narrow_add(n, 2 * n, chunk.n_groups, coordinates, chunk.raw_factor, sums);
  narrow_add(2 * n, task.narrow_coordinates(), chunk.n_groups, coordinates, chunk.factor, sums);
}

void narrow_rows(const GradientTask& task, const std::int64_t* rows, int count, int available, double* scratch,
                 std::uint64_t* sums) {
  const bool fetch = records_are_far(task.records);
  for (int done = 0; done < count; done += kNarrowChunk) {
    for (int i = done + kNarrowChunk; fetch && i < available && i < done + 2 * kNarrowChunk; ++i) {
      prefetch_row(task.records, rows[i]);
    }
    const int here = count - done < kNarrowChunk ? count - done : kNarrowChunk;
    const std::int64_t* listed = rows + done;
    std::int64_t filled[kNarrowChunk];
    if (here % kLanes != 0) {
      for (int i = 0; i < kNarrowChunk; ++i) filled[i] = listed[i < here ? i : here - 1];
      listed = filled;
    }
    if (task.has_offset) {
      narrow_chunk<true>(task, listed, here, scratch, sums);
    } else {
      narrow_chunk<false>(task, listed, here, scratch, sums);
    }
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

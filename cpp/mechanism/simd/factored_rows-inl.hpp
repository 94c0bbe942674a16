// Clipped gradients of rows with many weights and no offsets: each row is worked on along its weights, eight rows share
// the expectations.  Loc's gradient is x_j loc_scale[j] times a factor that a row's coordinates share (raw likewise):
// one pass finds the sums of squares together with the predictors, and the second multiplies, rounds and adds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/record_rows-inl.hpp"
#include "mechanism/simd/slopes-inl.hpp"
#include "mechanism/simd/wide_rows-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// What the first pass finds for each of eight rows, still spread over the lanes.
struct RowSums {
  Vec mean[kRowGroup];
  Vec variance[kRowGroup];
  Vec loc_square[kRowGroup];
  Vec raw_square[kRowGroup];
};

// The first pass over one row.  kUniform: loc_scale is the same for all weights, and left to the factor.
template <typename Scalar, bool kUniform>
DPINFER_NOINLINE void factored_row(const GradientTask& task, std::int64_t row, const RowTail& tail, int r,
                                   double* coordinates, RowSums& sums) {
  // Local copies of the pointers: a store through `coordinates` might otherwise change them, for all the compiler
  // knows.
  const double* const loc = task.loc;
  const double* const weight_variance = task.variance;
  const double* const loc_scale = task.loc_scale;
  const double* const raw_scale = task.raw_scale;
  const int pad = task.n_pad;
  double* const raw_target = coordinates + pad;
  Vec mean = splat(0.0);
  Vec variance = splat(0.0);
  Vec loc_square = splat(0.0);
  Vec raw_square = splat(0.0);
  for_each_vector<Scalar>(task.records, row, tail, [&](const Vec& a, int j) {
    const Vec square = a * a;
    mean = fused(a, load(loc + j), mean);
    variance = fused(square, load(weight_variance + j), variance);
    if (kUniform) {
      store(coordinates + j, a);
      loc_square = loc_square + square;
    } else {
      const Vec scaled = a * load(loc_scale + j);
      store(coordinates + j, scaled);
      loc_square = fused(scaled, scaled, loc_square);
    }
    const Vec scaled = square * load(raw_scale + j);
    store(raw_target + j, scaled);
    raw_square = fused(scaled, scaled, raw_square);
  });
  sums.mean[r] = mean;
  sums.variance[r] = variance;
  sums.loc_square[r] = loc_square;
  sums.raw_square[r] = raw_square;
}

// What multiplies the stored coordinates of a row before they are rounded: for loc, raw, and the noise variance.
struct RowFactors {
  double loc[kRowGroup];
  double raw[kRowGroup];
  double clip[kRowGroup];
};

// sums[k] += round(coordinates[r][k] * factors[r]) over `count` rows.
template <int kCount>
DPINFER_INLINE void add_scaled(int first, int last, int count, int stride, const double* coordinates,
                               const double* factors, std::uint64_t* sums) {
  const int n = kCount > 0 ? kCount : count;
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = splat_bits(kRoundBits * static_cast<std::uint64_t>(n));
  for (int k = first; k < last; k += kLanes) {
    Bits sum = load(sums + k) - surplus;
    for (int r = 0; r < n; ++r) {
      const Vec coordinate = load(coordinates + static_cast<std::ptrdiff_t>(r) * stride + k);
      sum = sum + as_bits(fused(coordinate, splat(factors[r]), magic));
    }
    store(sums + k, sum);
  }
}

template <int kCount>
DPINFER_NOINLINE void add_scaled_rows(const GradientTask& task, int count, const double* coordinates,
                                      const RowFactors& factors, std::uint64_t* sums) {
  const int pad = task.n_pad;
  const int length = task.gradient_length();
  add_scaled<kCount>(0, pad, count, length, coordinates, factors.loc, sums);
  add_scaled<kCount>(pad, 2 * pad, count, length, coordinates, factors.raw, sums);
  add_scaled<kCount>(2 * pad, length, count, length, coordinates, factors.clip, sums);
}

// Expectations, norms and clipping factors of a group.
template <bool kUniform>
DPINFER_INLINE void factored_factors(const GradientTask& task, const RowSums& found, const double* y, int count,
                                     double* coordinates, RowFactors& factors) {
  const int length = task.gradient_length();
  const Vec response = load(y);
  const Vec mean = lane_sums(found.mean);
  const Vec variance = lane_sums(found.variance);
  const Slopes slopes = expected_slopes(task, mean, variance, response);
  const Vec loc_factor = kUniform ? slopes.first * splat(task.loc_scale[0]) : slopes.first;
  const Vec loc_square = loc_factor * loc_factor * lane_sums(found.loc_square);
  const Vec raw_square = slopes.second * slopes.second * lane_sums(found.raw_square);
  Vec squares = loc_square + raw_square;
  if (task.has_dispersion) {
    const DispersionGradients dispersion = dispersion_gradients(task, mean, variance, response);
    squares = fused(dispersion.loc, dispersion.loc, fused(dispersion.raw, dispersion.raw, squares));
    double ignored[kRowGroup] = {};
    set_dispersion(task, count, dispersion, coordinates, ignored);
  }
  const Vec norm = square_root(squares);
  const Vec clip = clipping_factor(norm, task.clip_norm);
  store(factors.loc, loc_factor * clip);
  store(factors.raw, slopes.second * clip);
  store(factors.clip, clip);
  if (all_at_most(norm, splat(kFinite))) return;
  double norms[kLanes];
  store(norms, norm);
  for (int r = 0; r < count; ++r) {
    if (norms[r] <= kFinite) continue;  // else infinite or NaN: contributes zero
    double* coordinate = coordinates + static_cast<std::ptrdiff_t>(r) * length;
    for (int k = 0; k < length; k += kLanes) store(coordinate + k, splat(0.0));
    factors.loc[r] = factors.raw[r] = factors.clip[r] = 0.0;
  }
}

template <typename Scalar, bool kUniform>
void factored_group(const GradientTask& task, const std::int64_t* rows, int count, const std::int64_t* next,
                    int next_count, double* scratch, std::uint64_t* sums) {
  const int length = task.gradient_length();
  const RowTail tail = row_tail(task.records);
  RowSums found;
  double y[kRowGroup] = {};
  for (int r = 0; r < kRowGroup; ++r) {
    if (r < next_count) prefetch_row(task.records, next[r]);
    if (r < count) {
      factored_row<Scalar, kUniform>(task, rows[r], tail, r, scratch + static_cast<std::ptrdiff_t>(r) * length, found);
      y[r] = task.records.response[rows[r]];
    } else {
      found.mean[r] = found.variance[r] = found.loc_square[r] = found.raw_square[r] = splat(0.0);
    }
  }
  RowFactors factors;
  factored_factors<kUniform>(task, found, y, count, scratch, factors);
  if (count == kRowGroup) {
    add_scaled_rows<kRowGroup>(task, count, scratch, factors, sums);
  } else {
    add_scaled_rows<0>(task, count, scratch, factors, sums);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// Clipped gradients of rows with many weights: each row is worked on along its weights, eight rows share the
// expectations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/simd.hpp"
#include "common/special.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/record_rows-inl.hpp"
#include "mechanism/simd/slopes-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Clips the preconditioned gradients (in lattice steps) of up to eight rows, rounds them to integers and adds them to
// the sums.  `squares` are the squared norms, summed from the very numbers in `gradients`, so that the bound needs no
// argument about how those were computed.
void clip_and_add(const GradientTask& task, int count, double* gradients, const double* squares, std::uint64_t* sums) {
  const int length = task.gradient_length();
  double norms[kRowGroup] = {};
  for (int r = 0; r < count; ++r) {
    norms[r] = square_root(squares[r]);
    if (!(norms[r] <= kFinite)) {  // NaN or infinite: contributes zero
      double* gradient = gradients + static_cast<std::ptrdiff_t>(r) * length;
      for (int k = 0; k < length; k += kLanes) store(gradient + k, splat(0.0));
      norms[r] = 0.0;
    }
  }
  const Vec norm = load(norms);
  const Vec factor = clipping_factor(norm, task.clip_norm);
  double factors[kRowGroup];
  store(factors, factor);
  bool clipped = false;
  for (int r = 0; r < count; ++r) clipped = clipped || factors[r] < 1.0;
  const Vec magic = splat(kRoundMagic);
  const Bits surplus = splat_bits(kRoundBits * static_cast<std::uint64_t>(count));
  if (count == kRowGroup && !clipped) {  // the common case; multiplying by 1 would change nothing
    for (int k = 0; k < length; k += kLanes) {
      Bits sum = load(sums + k) - surplus;
      for (int r = 0; r < kRowGroup; ++r) {
        sum = sum + as_bits(load(gradients + static_cast<std::ptrdiff_t>(r) * length + k) + magic);
      }
      store(sums + k, sum);
    }
    return;
  }
  for (int k = 0; k < length; k += kLanes) {
    Bits sum = load(sums + k) - surplus;
    for (int r = 0; r < count; ++r) {
      const Vec gradient = load(gradients + static_cast<std::ptrdiff_t>(r) * length + k);
      sum = sum + as_bits(fused(gradient, splat(factors[r]), magic));
    }
    store(sums + k, sum);
  }
}

// Writes the preconditioned gradients over what quadrature_rows left: the squares of x in the places of raw_scale.
DPINFER_INLINE void quadrature_gradients(const GradientTask& task, int count, const double* x, const double* first,
                                         const double* second, double* gradients, double* squares) {
  // Local copies of the pointers: a store through `gradients` might otherwise change them, for all the compiler knows.
  const int pad = task.n_pad;
  const int length = task.gradient_length();
  const double* const loc_scale = task.loc_scale;
  const double* const loc_offset = task.loc_offset;
  const double* const raw_scale = task.raw_scale;
  const double* const raw_offset = task.raw_offset;
  for (int r = 0; r < count; ++r) {
    const double* row = x + static_cast<std::ptrdiff_t>(r) * pad;
    double* loc_gradient = gradients + static_cast<std::ptrdiff_t>(r) * length;
    double* raw_gradient = loc_gradient + pad;
    const Vec c1 = splat(first[r]);
    const Vec c2 = splat(second[r]);
    Vec square = splat(0.0);
    for (int j = 0; j < pad; j += kLanes) {
      const Vec loc = load(row + j) * c1 * load(loc_scale + j) + load(loc_offset + j);
      const Vec raw = load(raw_gradient + j) * c2 * load(raw_scale + j) + load(raw_offset + j);
      store(loc_gradient + j, loc);
      store(raw_gradient + j, raw);
      square = fused(raw, raw, fused(loc, loc, square));
    }
    squares[r] = lane_sum(square);
  }
}

// Puts the preconditioned gradients of the noise variance's loc and raw_scale into the last eight places of the
// gradients, and adds their squares.
DPINFER_INLINE void set_dispersion(const GradientTask& task, int count, const DispersionGradients& dispersion,
                                   double* gradients, double* squares) {
  double loc[kRowGroup];
  double raw[kRowGroup];
  store(loc, dispersion.loc);
  store(raw, dispersion.raw);
  for (int r = 0; r < count; ++r) {
    double* extra = gradients + static_cast<std::ptrdiff_t>(r + 1) * task.gradient_length() - kRowGroup;
    store(extra, splat(0.0));
    extra[0] = loc[r];
    extra[1] = raw[r];
    squares[r] += loc[r] * loc[r] + raw[r] * raw[r];
  }
}

// Quadrature with offsets (without them: factored_rows-inl.hpp).
void quadrature_rows(const GradientTask& task, int count, const double* x, const double* y, double* gradients,
                     double* squares) {
  const int pad = task.n_pad;
  const double* const loc = task.loc;
  const double* const weight_variance = task.variance;
  double mean[kRowGroup] = {};
  double variance[kRowGroup] = {};
  for (int r = 0; r < count; ++r) {
    const double* row = x + static_cast<std::ptrdiff_t>(r) * pad;
    // The squares are needed again where the raw_scale gradients will stand.
    double* row_squares = gradients + static_cast<std::ptrdiff_t>(r) * task.gradient_length() + pad;
    Vec m = splat(0.0);
    Vec v = splat(0.0);
    for (int j = 0; j < pad; j += kLanes) {
      const Vec a = load(row + j);
      const Vec square = a * a;
      store(row_squares + j, square);
      m = fused(a, load(loc + j), m);
      v = fused(square, load(weight_variance + j), v);
    }
    mean[r] = lane_sum(m);
    variance[r] = lane_sum(v);
  }
  const Slopes slopes = expected_slopes(task, load(mean), load(variance), load(y));
  double first[kRowGroup];
  double second[kRowGroup];
  store(first, slopes.first);
  store(second, slopes.second);
  quadrature_gradients(task, count, x, first, second, gradients, squares);
  if (!task.has_dispersion) return;
  const DispersionGradients dispersion = dispersion_gradients(task, load(mean), load(variance), load(y));
  set_dispersion(task, count, dispersion, gradients, squares);
}

// Predictors of eight rows under kDraws draws: eta[k * kRowGroup + r].  Pairs of rows, so that what is fetched of the
// draws serves twice.
template <int kDraws>
DPINFER_INLINE void draw_predictors(int pad, int count, const double* x, const double* draws, double* eta) {
  Vec sums[kDraws][kRowGroup];
  for (int r = 0; r < kRowGroup; r += 2) {
    // Rows that are not there repeat one that is, and are ignored later.
    const double* row0 = x + static_cast<std::ptrdiff_t>(r < count ? r : 0) * pad;
    const double* row1 = x + static_cast<std::ptrdiff_t>(r + 1 < count ? r + 1 : 0) * pad;
    Vec sum0[kDraws];
    Vec sum1[kDraws];
    for (int k = 0; k < kDraws; ++k) sum0[k] = sum1[k] = splat(0.0);
    for (int j = 0; j < pad; j += kLanes) {
      const Vec a0 = load(row0 + j);
      const Vec a1 = load(row1 + j);
      for (int k = 0; k < kDraws; ++k) {
        const Vec theta = load(draws + static_cast<std::ptrdiff_t>(k) * pad + j);
        sum0[k] = fused(a0, theta, sum0[k]);
        sum1[k] = fused(a1, theta, sum1[k]);
      }
    }
    for (int k = 0; k < kDraws; ++k) {
      sums[k][r] = sum0[k];
      sums[k][r + 1] = sum1[k];
    }
  }
  for (int k = 0; k < kDraws; ++k) store(eta + k * kRowGroup, lane_sums(sums[k]));
}

// Writes the preconditioned gradients of kRows rows and their squared norms; c1[r] is the mean slope of row r, and
// slopes holds one vector of rows for each draw.
template <int kRows, bool kRaw>
DPINFER_INLINE void draw_gradients(const GradientTask& task, const double* x, const double* c1, const double* slopes,
                                   double* gradients, double* squares) {
  const int pad = task.n_pad;
  const int length = task.gradient_length();
  const int n_draws = task.n_draws;
  const double* const loc_scale = task.loc_scale;
  const double* const loc_offset = task.loc_offset;
  const double* const raw_scale = task.raw_scale;
  const double* const raw_offset = task.raw_offset;
  const double* const standard = task.standard;
  Vec square[kRows];
  for (int r = 0; r < kRows; ++r) square[r] = splat(0.0);
  for (int j = 0; j < pad; j += kLanes) {
    Vec mixed[kRows];
    for (int r = 0; r < kRows; ++r) mixed[r] = splat(0.0);
    for (int k = 0; kRaw && k < n_draws; ++k) {
      const Vec z = load(standard + static_cast<std::ptrdiff_t>(k) * pad + j);
      for (int r = 0; r < kRows; ++r) mixed[r] = fused(splat(slopes[k * kRowGroup + r]), z, mixed[r]);
    }
    for (int r = 0; r < kRows; ++r) {
      const Vec a = load(x + static_cast<std::ptrdiff_t>(r) * pad + j);
      double* gradient = gradients + static_cast<std::ptrdiff_t>(r) * length + j;
      const Vec loc = a * splat(c1[r]) * load(loc_scale + j) + load(loc_offset + j);
      store(gradient, loc);
      square[r] = fused(loc, loc, square[r]);
      if (!kRaw) continue;
      const Vec raw = a * mixed[r] * load(raw_scale + j) + load(raw_offset + j);
      store(gradient + pad, raw);
      square[r] = fused(raw, raw, square[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) squares[r] = lane_sum(square[r]);
}

template <bool kRaw>
DPINFER_INLINE void draw_group_gradients(const GradientTask& task, int count, const double* x, const double* c1,
                                         const double* slopes, double* gradients, double* squares) {
  constexpr int kBlock = 4;
  const auto at = [&](int r) { return gradients + static_cast<std::ptrdiff_t>(r) * task.gradient_length(); };
  int r = 0;
  for (; r + kBlock <= count; r += kBlock) {
    draw_gradients<kBlock, kRaw>(task, x + static_cast<std::ptrdiff_t>(r) * task.n_pad, c1 + r, slopes + r, at(r),
                                 squares + r);
  }
  for (; r < count; ++r) {
    draw_gradients<1, kRaw>(task, x + static_cast<std::ptrdiff_t>(r) * task.n_pad, c1 + r, slopes + r, at(r),
                            squares + r);
  }
}

void draws_rows(const GradientTask& task, int count, const double* x, const double* y, double* gradients,
                double* squares, double* slopes) {
  constexpr int kBlock = 4;
  const int pad = task.n_pad;
  const int n_draws = task.n_draws;
  // The predictors first, in the places of the slopes.
  int k = 0;
  for (; k + kBlock <= n_draws; k += kBlock) {
    draw_predictors<kBlock>(pad, count, x, task.draws + static_cast<std::ptrdiff_t>(k) * pad, slopes + k * kRowGroup);
  }
  for (; k < n_draws; ++k) {
    draw_predictors<1>(pad, count, x, task.draws + static_cast<std::ptrdiff_t>(k) * pad, slopes + k * kRowGroup);
  }
  const Vec response = load(y);
  Vec total = splat(0.0);
  Vec dispersion_loc = splat(0.0);
  Vec dispersion_raw = splat(0.0);
  for (k = 0; k < n_draws; ++k) {
    const Vec eta = load(slopes + k * kRowGroup);
    const double precision = task.has_dispersion ? task.draw_precision[k] : 0.0;
    const Vec slope = loss_slope(task.likelihood, eta, response, precision);
    store(slopes + k * kRowGroup, slope);
    total = total + slope;
    if (task.has_dispersion) {
      const Vec residual = response - eta;
      const Vec excess = splat(1.0) - splat(precision) * residual * residual;
      const Vec of_rho = splat(0.5 * task.draw_log_slope[k]) * excess;
      dispersion_loc = dispersion_loc + of_rho;
      dispersion_raw = dispersion_raw + of_rho * splat(task.draw_standard_rho[k]);
    }
  }
  double c1[kRowGroup];
  store(c1, total / splat(n_draws));
  if (task.has_raw) {
    draw_group_gradients<true>(task, count, x, c1, slopes, gradients, squares);
  } else {
    draw_group_gradients<false>(task, count, x, c1, slopes, gradients, squares);
  }
  if (!task.has_dispersion) return;
  const Vec loc = dispersion_loc / splat(n_draws);
  const DispersionGradients dispersion = {
      loc * splat(task.dispersion_loc_scale) + splat(task.dispersion_loc_offset),
      dispersion_raw * splat(task.dispersion_raw_scale) + splat(task.dispersion_raw_offset)};
  set_dispersion(task, count, dispersion, gradients, squares);
}

template <typename Scalar>
void wide_group(const GradientTask& task, const std::int64_t* rows, int count, const std::int64_t* next, int next_count,
                double* scratch, std::uint64_t* sums) {
  const Records& records = task.records;
  double* x = scratch;
  double* gradients = x + task.n_pad * kRowGroup;
  double* slopes = gradients + task.gradient_length() * kRowGroup;
  double y[kRowGroup] = {};
  double squares[kRowGroup] = {};
  const RowTail tail = row_tail(records);
  for (int r = 0; r < count; ++r) {
    if (r < next_count) prefetch_row(records, next[r]);
    double* target = x + static_cast<std::ptrdiff_t>(r) * task.n_pad;
    for_each_vector<Scalar>(records, rows[r], tail, [&](const Vec& a, int j) { store(target + j, a); });
    y[r] = records.response[rows[r]];
  }
  if (task.expectation == Expectation::quadrature) {
    quadrature_rows(task, count, x, y, gradients, squares);
  } else {
    draws_rows(task, count, x, y, gradients, squares, slopes);
  }
  clip_and_add(task, count, gradients, squares, sums);
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// Reading the private rows: into float64, padded, or eight rows feature by feature.
#pragma once

#include <cstdint>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// The last vector of a row, which may be partial: which bits of it are features, and where the constant is.
struct RowTail {
  Bits features;
  Bits constant;
};

DPINFER_INLINE RowTail row_tail(const Records& records) {
  const int n = records.n_features % kLanes;
  std::uint64_t features[kLanes];
  std::uint64_t constant[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    features[lane] = lane < n ? ~0ULL : 0ULL;
    constant[lane] = records.has_intercept && lane == n ? 0x3ff0000000000000ULL : 0ULL;  // 1.0
  }
  return {load(features), load(constant)};
}

// use(a, j) for each eight places of a row, as float64, with the constant appended and padded with zeros.
template <typename Scalar, typename Use>
DPINFER_INLINE void for_each_vector(const Records& records, std::int64_t row, const RowTail& tail, const Use& use) {
  const int width = records.n_features;
  const std::int64_t start = row * width;
  const std::int64_t total = records.n_rows * width;
  const Scalar* const source = static_cast<const Scalar*>(records.features) + start;
  const int whole = width / kLanes * kLanes;
  for (int j = 0; j < whole; j += kLanes) use(load_as_double(source + j), j);
  if (whole == width && !records.has_intercept) return;
  // Read past the row's end where memory of the records follows: what is not a feature is masked off bit by bit, so
  // that nothing of the next row is left whatever it holds.
  if (start + whole + kLanes <= total) {
    use(as_vec((as_bits(load_as_double(source + whole)) & tail.features) | tail.constant), whole);
    return;
  }
  double last[kLanes] = {};
  for (int j = whole; j < width; ++j) last[j - whole] = static_cast<double>(source[j]);
  use(as_vec(as_bits(load(last)) | tail.constant), whole);
}

// Whether the rows are too many to be in a cache that needs no help.
DPINFER_INLINE bool records_are_far(const Records& records) {
  return records.n_rows * static_cast<std::int64_t>(records.n_features) * (records.is_float32 ? 4 : 8) > (1 << 19);
}

DPINFER_INLINE void prefetch_row(const Records& records, std::int64_t row) {
#if defined(__GNUC__)
  const std::int64_t bytes = static_cast<std::int64_t>(records.n_features) * (records.is_float32 ? 4 : 8);
  const char* start = static_cast<const char*>(records.features) + row * bytes;
  for (std::int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(start + offset);
  __builtin_prefetch(records.response + row);
#else
  (void)records;
  (void)row;
#endif
}

// Eight rows, one per lane: vector j of `x` holds feature j of each.  Four features are read at a time, perhaps past a
// row's end, into the next row, where memory that belongs to the records follows; what that finds lands in vectors that
// nobody reads.  (Not inlined: eight addresses leave no registers for anything else.)
template <typename Scalar>
DPINFER_NOINLINE void read_columns(const Scalar* features, std::int64_t n_rows, std::int64_t width,
                                   const std::int64_t* rows, double* x) {
  const std::int64_t last_start = n_rows * width - (width + 3) / 4 * 4;
  const Scalar* sources[kLanes];
  bool inside = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t start = rows[lane] * width;
    sources[lane] = features + start;
    inside = inside && start <= last_start;
  }
  for (std::int64_t first = 0; first < width; first += 4) {
    Scalar rest[kLanes][4] = {};
    const Scalar* here[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) here[lane] = sources[lane] + first;
    if (!inside) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int j = 0; j < 4 && first + j < width; ++j) rest[lane][j] = here[lane][j];
        here[lane] = rest[lane];
      }
    }
    Vec columns[4];
    load_columns(here, columns);
    for (int j = 0; j < 4; ++j) store(x + (first + j) * kLanes, columns[j]);
  }
}

// The same of records, with the constant behind their features.
DPINFER_INLINE void read_columns(const Records& records, const std::int64_t* rows, double* x) {
  const int width = records.n_features;
  if (records.is_float32) {
    read_columns(static_cast<const float*>(records.features), records.n_rows, width, rows, x);
  } else {
    read_columns(static_cast<const double*>(records.features), records.n_rows, width, rows, x);
  }
  if (records.has_intercept) store(x + width * kLanes, splat(1.0));
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
//
// Smith's (1968) doubling, "Matrix equation XA + BX = C".  With a shift p > 0 and the Moebius transform
//     continuous   W = (S + p)^-1,       C = 1 - 2 p W,
//     discrete     W = (w S + p)^-1,     C = a - (1 + a) p W,  w = 1 - p/2, a = (1 + p/2) / w,
// either equation becomes Y = C Y C' + 2 p W E W', and C's eigenvalues lie within the unit circle exactly where the
// recursion is stable.  Its series is summed by doubling: Y <- Y + C Y C', C <- C C.  It starts from two such steps
// with different shifts, whose product needs no multiplication: W1 W2 = (w2 W2 - w1 W1) / (p1 - p2).
#include "lab/lyapunov_kernels.hpp"

#include <cstddef>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using lab::LyapunovGroup;
using lab::LyapunovKernels;
using lab::LyapunovScale;
static_assert(lab::kLyapunovGroup == static_cast<std::size_t>(kLanes));

constexpr std::size_t kGroup = static_cast<std::size_t>(kLanes);
// Sums of a tile, and the factors they need, fit in the registers.
constexpr std::size_t kTile = kNativeLanes == 8 ? 4 : 2;
// What is left of the series where the squared norm of C is below this, relative to Y.
constexpr double kNegligible = 1e-12;
constexpr double kDiverged = 1e30;
// The two shifts are this far from the middle.
constexpr double kApart = 2.3;
constexpr int kMostDoublings = 24;

// Fetches what comes next, a few cache lines at each call.
class Fetcher {
 public:
  explicit Fetcher(const LyapunovGroup& group) : input_(group.input), output_(group.output) {}
  DPINFER_INLINE void some() {
    for (int line = 0; line < kLines; ++line) {
      fetch(input_);
      fetch(output_);
    }
  }

 private:
  static constexpr int kLines = 2;
  static constexpr std::ptrdiff_t kLineSize = 8;

  DPINFER_INLINE static void fetch(lab::Upcoming& part) {
    if (part.end - part.begin < kLineSize) return;
#if defined(__GNUC__)
    __builtin_prefetch(part.begin, 0, 2);
#endif
    part.begin += kLineSize;
  }

  lab::Upcoming input_;
  lab::Upcoming output_;
};

// Where element (k, j) of a product's right factor lies: at k down + j across.
struct Right {
  const double* values;
  std::size_t down;
  std::size_t across;
};

// Stores a tile at (i, j); with `mirrored` (j, i) too; of a tile on the diagonal the lower triangle counts.
template <bool mirrored, bool diagonal>
DPINFER_INLINE void store_tile(const Vec (&sum)[kTile][kTile], std::size_t i, std::size_t j, std::size_t row,
                               double* out) {
  for (std::size_t r = 0; r < kTile; ++r) {
    for (std::size_t c = 0; c < (diagonal ? r + 1 : kTile); ++c) {
      store(out + (i + r) * row + (j + c) * kGroup, sum[r][c]);
      if (mirrored) store(out + (j + c) * row + (i + r) * kGroup, sum[r][c]);
    }
  }
}

// out = A B, or out + A B; with `triangle` the lower triangle alone, mirrored.
template <bool triangle, bool add>
DPINFER_INLINE void product(const double* a, const Right& b, std::size_t q, double* out, Fetcher& fetcher) {
  const std::size_t row = q * kGroup;
  const Vec zero = splat(0.0);
  for (std::size_t i = 0; i < q; i += kTile) {
    for (std::size_t j = 0; j < (triangle ? i + 1 : q); j += kTile) {
      fetcher.some();
      Vec sum[kTile][kTile];
      for (std::size_t r = 0; r < kTile; ++r) {
        for (std::size_t c = 0; c < kTile; ++c) {
          sum[r][c] = add ? load(out + (i + r) * row + (j + c) * kGroup) : zero;
        }
      }
      const double* left = a + i * row;
      const double* right = b.values + j * b.across;
      for (std::size_t k = 0; k < q; ++k) {
        Vec factor[kTile];
        for (std::size_t r = 0; r < kTile; ++r) factor[r] = load(left + r * row + k * kGroup);
        for (std::size_t c = 0; c < kTile; ++c) {
          const Vec other = load(right + k * b.down + c * b.across);
          for (std::size_t r = 0; r < kTile; ++r) sum[r][c] = fused(factor[r], other, sum[r][c]);
        }
      }
      if (triangle && i == j) {
        store_tile<triangle, true>(sum, i, j, row, out);
      } else {
        store_tile<triangle, false>(sum, i, j, row, out);
      }
    }
  }
}

Right plain(const double* values, std::size_t q) { return {values, q * kGroup, kGroup}; }
// The transpose; of a symmetric matrix by its rows, which are read faster.
Right turned(const double* values, std::size_t q, bool symmetric) {
  return symmetric ? plain(values, q) : Right{values, kGroup, q * kGroup};
}

DPINFER_NOINLINE void multiply(const double* a, const Right& b, std::size_t q, double* out, Fetcher& fetcher) {
  product<false, false>(a, b, q, out, fetcher);
}
DPINFER_NOINLINE void multiply_symmetric(const double* a, const Right& b, std::size_t q, double* out,
                                         Fetcher& fetcher) {
  product<true, false>(a, b, q, out, fetcher);
}
DPINFER_NOINLINE void add_symmetric_product(const double* a, const Right& b, std::size_t q, double* out,
                                            Fetcher& fetcher) {
  product<true, true>(a, b, q, out, fetcher);
}

// One step's shift and what goes with it.
struct Shift {
  Vec p;
  Vec w;
  Vec own;     // a, or 1
  Vec factor;  // -(1 + a) p, or -2 p
};

DPINFER_INLINE Shift shift_of(const Vec& p, bool discrete) {
  const Vec one = splat(1.0);
  const Vec half = discrete ? splat(0.5) * p : splat(0.0);
  const Vec w = one - half;
  const Vec own = (one + half) / w;
  return {p, w, own, splat(0.0) - (one + own) * p};
}

// The middle of the two shifts: between the extremes of S's spectrum, as the harmonic mean of its diagonal is; in
// discrete time, of that of (1 - S/2)^-1 S, and at most 1.
Vec middle_shift(const double* s, std::size_t n, std::size_t q, bool discrete) {
  const Vec one = splat(1.0);
  Vec total = splat(0.0);
  for (std::size_t i = 0; i < n; ++i) total = total + one / absolute(load(s + (i * q + i) * kGroup));
  const Vec mean = splat(static_cast<double>(n)) / total;
  if (!discrete) return mean;
  const Vec bounded = minimum(mean, splat(2.0 / 3.0));
  return bounded / (one - splat(0.5) * bounded);
}

constexpr std::size_t kBlock = 4;
static_assert(kBlock % kTile == 0);

// Gauss-Jordan in place, without pivots: what is lost by that shows in the solution's error.
DPINFER_INLINE void invert(Vec (&a)[kBlock][kBlock]) {
  const Vec zero = splat(0.0);
  for (std::size_t k = 0; k < kBlock; ++k) {
    const Vec reciprocal = splat(1.0) / a[k][k];
    a[k][k] = splat(1.0);
    for (std::size_t j = 0; j < kBlock; ++j) a[k][j] = a[k][j] * reciprocal;
    for (std::size_t i = 0; i < kBlock; ++i) {
      if (i == k) continue;
      const Vec factor = zero - a[i][k];
      a[i][k] = zero;
      for (std::size_t j = 0; j < kBlock; ++j) a[i][j] = fused(factor, a[k][j], a[i][j]);
    }
  }
}

// A tile at (i, j) of A += F R, four columns and rows: those of F at [4 i + k], those of R at [k q + j].
DPINFER_INLINE void update_tile(double* a, const double* f, const double* rows, std::size_t i, std::size_t j,
                                std::size_t q) {
  const std::size_t row = q * kGroup;
  double* target = a + i * row + j * kGroup;
  Vec sum[kTile][kTile];
  for (std::size_t r = 0; r < kTile; ++r) {
    for (std::size_t c = 0; c < kTile; ++c) sum[r][c] = load(target + r * row + c * kGroup);
  }
  for (std::size_t k = 0; k < kBlock; ++k) {
    Vec factor[kTile];
    for (std::size_t r = 0; r < kTile; ++r) factor[r] = load(f + ((i + r) * kBlock + k) * kGroup);
    for (std::size_t c = 0; c < kTile; ++c) {
      const Vec other = load(rows + k * row + (j + c) * kGroup);
      for (std::size_t r = 0; r < kTile; ++r) sum[r][c] = fused(factor[r], other, sum[r][c]);
    }
  }
  for (std::size_t r = 0; r < kTile; ++r) {
    for (std::size_t c = 0; c < kTile; ++c) store(target + r * row + c * kGroup, sum[r][c]);
  }
}

DPINFER_INLINE bool within(std::size_t i, std::size_t k) { return i >= k && i < k + kBlock; }

// The same in place, four rows and columns in the place of one; `factors` holds four columns.
DPINFER_NOINLINE void invert(double* a, std::size_t q, double* factors) {
  const std::size_t row = q * kGroup;
  const Vec zero = splat(0.0);
  for (std::size_t k = 0; k < q; k += kBlock) {
    double* pivots = a + k * row;
    Vec block[kBlock][kBlock];
    for (std::size_t r = 0; r < kBlock; ++r) {
      for (std::size_t c = 0; c < kBlock; ++c) block[r][c] = load(pivots + r * row + (k + c) * kGroup);
    }
    invert(block);
    for (std::size_t j = 0; j < q; ++j) {
      Vec column[kBlock];
      for (std::size_t r = 0; r < kBlock; ++r) column[r] = load(pivots + r * row + j * kGroup);
      for (std::size_t r = 0; r < kBlock; ++r) {
        Vec sum = zero;
        for (std::size_t c = 0; c < kBlock; ++c) sum = fused(block[r][c], column[c], sum);
        store(pivots + r * row + j * kGroup, sum);
      }
    }
    for (std::size_t r = 0; r < kBlock; ++r) {
      for (std::size_t c = 0; c < kBlock; ++c) store(pivots + r * row + (k + c) * kGroup, block[r][c]);
    }
    for (std::size_t i = 0; i < q; ++i) {
      double* own = a + i * row + k * kGroup;
      for (std::size_t c = 0; c < kBlock && !within(i, k); ++c) {
        store(factors + (i * kBlock + c) * kGroup, zero - load(own + c * kGroup));
        store(own + c * kGroup, zero);
      }
    }
    for (std::size_t i = 0; i < q; i += kTile) {
      for (std::size_t j = 0; j < q && !within(i, k); j += kTile) update_tile(a, factors, pivots, i, j, q);
    }
  }
}

// Minus the inverse of a symmetric matrix, from its lower triangle into its lower triangle, by sweeps (Goodnight
// 1979) of four rows and columns at a time; `work` holds eight rows.
DPINFER_NOINLINE void sweep(double* a, std::size_t q, double* work) {
  const std::size_t row = q * kGroup;
  const Vec zero = splat(0.0);
  double* rows = work;
  double* factors = rows + kBlock * row;
  for (std::size_t k = 0; k < q; k += kBlock) {
    double* pivots = a + k * row;
    Vec block[kBlock][kBlock];
    for (std::size_t r = 0; r < kBlock; ++r) {
      for (std::size_t c = 0; c <= r; ++c) block[r][c] = block[c][r] = load(pivots + r * row + (k + c) * kGroup);
    }
    invert(block);
    for (std::size_t j = 0; j < q; ++j) {
      if (within(j, k)) continue;
      Vec column[kBlock];
      Vec product[kBlock];
      double* own = a + j * row + k * kGroup;
      for (std::size_t r = 0; r < kBlock; ++r) {
        column[r] = j < k ? load(pivots + r * row + j * kGroup) : load(own + r * kGroup);
        store(rows + r * row + j * kGroup, column[r]);
      }
      for (std::size_t c = 0; c < kBlock; ++c) {
        product[c] = zero;
        for (std::size_t r = 0; r < kBlock; ++r) product[c] = fused(column[r], block[r][c], product[c]);
        store(factors + (j * kBlock + c) * kGroup, zero - product[c]);
        store(j < k ? pivots + c * row + j * kGroup : own + c * kGroup, product[c]);
      }
    }
    for (std::size_t r = 0; r < kBlock; ++r) {
      for (std::size_t c = 0; c <= r; ++c) store(pivots + r * row + (k + c) * kGroup, zero - block[r][c]);
    }
    for (std::size_t i = 0; i < q; i += kTile) {
      for (std::size_t j = 0; j <= i && !within(i, k); j += kTile) {
        if (!within(j, k)) update_tile(a, factors, rows, i, j, q);
      }
    }
  }
}

// (w S + p)^-1, 1 / p on the diagonal beyond n; of a symmetric S the lower triangle.
void resolvent(const LyapunovGroup& group, const Shift& shift, std::size_t q, double* out, double* scratch) {
  const Vec w = group.symmetric ? splat(0.0) - shift.w : shift.w;
  const Vec p = group.symmetric ? splat(0.0) - shift.p : shift.p;
  for (std::size_t i = 0; i < q; ++i) {
    for (std::size_t j = 0; j < (group.symmetric ? i + 1 : q); ++j) {
      const std::size_t cell = (i * q + j) * kGroup;
      const Vec scaled = w * load(group.s + cell);
      store(out + cell, i == j ? scaled + p : scaled);
    }
  }
  if (group.symmetric) {
    sweep(out, q, scratch);
  } else {
    invert(out, q, scratch);
  }
}

// The sum of the squares of a matrix.
Vec squared_norm(const double* a, std::size_t q) {
  Vec sums[kBlock] = {splat(0.0), splat(0.0), splat(0.0), splat(0.0)};
  for (std::size_t i = 0; i < q * q; i += kBlock) {
    for (std::size_t part = 0; part < kBlock; ++part) {
      const Vec value = load(a + (i + part) * kGroup);
      sums[part] = fused(value, value, sums[part]);
    }
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

enum class Series { kGoing, kLastTerm, kDone };

// How far a doubling has come.  Puts zeros for the matrices whose series is summed, or has no sum.
Series progress(double* c, std::size_t q) {
  const Vec zero = splat(0.0);
  const Vec one = splat(1.0);
  const Vec norm = squared_norm(c, q);
  // A NaN is not less than anything.
  const Vec going = select_less(norm, splat(kDiverged), select_less(splat(kNegligible), norm, one, zero), zero);
  const Vec squared = norm * norm;
  if (lane_sum(going) < static_cast<double>(kLanes)) {
    const Vec half = splat(0.5);
    for (std::size_t i = 0; i < q * q; ++i) {
      double* cell = c + i * kGroup;
      store(cell, select_less(half, going, load(cell), zero));
    }
  }
  if (lane_sum(going) == 0.0) return Series::kDone;
  const Vec more = select_less(splat(kNegligible), squared, going, zero);
  return lane_sum(more) == 0.0 ? Series::kLastTerm : Series::kGoing;
}

// The residual R = S Y + Y S' [- S Y S'] - E bounds the error: the equation's inverse keeps the order of symmetric
// matrices, R lies between -r E and r E for r = |R| / min E, so the error lies between -r Y and r Y.
void bound_error(const LyapunovGroup& group, std::size_t q, double* first, double* second, Fetcher& fetcher) {
  multiply(group.s, plain(group.y, q), q, first, fetcher);
  if (group.discrete) multiply_symmetric(first, turned(group.s, q, group.symmetric), q, second, fetcher);
  Vec least = load(group.energy);
  Vec own = splat(0.0);
  Vec twice = splat(0.0);
  for (std::size_t i = 0; i < group.width; ++i) {
    const Vec energy = load(group.energy + i * kGroup);
    least = minimum(energy, least);
    for (std::size_t j = 0; j <= i; ++j) {
      Vec residual = load(first + (i * q + j) * kGroup) + load(first + (j * q + i) * kGroup);
      if (group.discrete) residual = residual - load(second + (i * q + j) * kGroup);
      if (i == j) {
        residual = residual - energy;
        own = fused(residual, residual, own);
      } else {
        twice = fused(residual, residual, twice);
      }
    }
  }
  store(group.error, square_root(own + (twice + twice)) / least);
}

void solve(const LyapunovGroup& group) {
  const std::size_t n = group.width;
  const std::size_t q = lab::lyapunov_square(n);
  const std::size_t size = q * q * kGroup;
  double* w1 = group.work;
  double* w2 = w1 + size;
  double* c = w2 + size;
  double* other = c + size;
  Fetcher fetcher(group);
  const Vec zero = splat(0.0);
  const Vec middle = middle_shift(group.s, n, q, group.discrete);
  const Vec far = splat(kApart) * middle;
  const Shift one = shift_of(middle / splat(kApart), group.discrete);
  const Shift two = shift_of(group.discrete ? minimum(far, splat(1.0)) : far, group.discrete);
  // Scratch: two matrices, from c on, hold eight rows of any width.
  resolvent(group, one, q, w1, c);
  resolvent(group, two, q, w2, c);
  // C = C1 C2, and in the places of W1 and W2 the factors C2 W1 R1 and W2 R2 of the steps' right-hand sides, where
  // R^2 = 2 p E.
  const Vec apart = splat(1.0) / (one.p - two.p);
  const Vec v1 = two.own - two.factor * apart * one.w;
  const Vec v2 = two.factor * apart * two.w;
  const Vec c0 = one.own * two.own;
  const Vec c1 = one.factor * v1;
  const Vec c2 = one.own * two.factor + one.factor * v2;
  double* r1 = other;
  double* r2 = r1 + q * kGroup;
  for (std::size_t i = 0; i < q; ++i) {
    const Vec energy = i < n ? load(group.energy + i * kGroup) : zero;
    store(r1 + i * kGroup, square_root((one.p + one.p) * energy));
    store(r2 + i * kGroup, square_root((two.p + two.p) * energy));
  }
  for (std::size_t i = 0; i < q; ++i) {
    for (std::size_t j = 0; j < (group.symmetric ? i + 1 : q); ++j) {
      const std::size_t cell = (i * q + j) * kGroup;
      const std::size_t mirrored = (j * q + i) * kGroup;
      const Vec first = load(w1 + cell);
      const Vec second = load(w2 + cell);
      const Vec moved = fused(v1, first, v2 * second);
      const Vec product = fused(c1, first, c2 * second);
      const Vec own = i == j ? product + c0 : product;
      const Vec kept = i < n && j < n ? own : zero;
      store(w1 + cell, moved * load(r1 + j * kGroup));
      store(w2 + cell, second * load(r2 + j * kGroup));
      store(c + cell, kept);
      if (!group.symmetric) continue;
      store(w1 + mirrored, moved * load(r1 + i * kGroup));
      store(w2 + mirrored, second * load(r2 + i * kGroup));
      store(c + mirrored, kept);
    }
  }
  multiply_symmetric(w1, turned(w1, q, false), q, group.y, fetcher);
  add_symmetric_product(w2, turned(w2, q, false), q, group.y, fetcher);
  for (int doubling = 0; doubling < kMostDoublings; ++doubling) {
    const Series series = progress(c, q);
    if (series == Series::kDone) break;
    multiply(c, plain(group.y, q), q, other, fetcher);
    add_symmetric_product(other, turned(c, q, group.symmetric), q, group.y, fetcher);
    if (series == Series::kLastTerm) break;
    if (group.symmetric) {
      multiply_symmetric(c, plain(c, q), q, other, fetcher);
    } else {
      multiply(c, plain(c, q), q, other, fetcher);
    }
    double* const squared = other;
    other = c;
    c = squared;
  }
  bound_error(group, q, c, other, fetcher);
}

// Where the flat element f of a row-major (n, n) matrix lies in a square of q.
class Cells {
 public:
  explicit Cells(std::size_t n) : n_(n), q_(lab::lyapunov_square(n)) {}
  std::size_t row() const { return i_ * kGroup; }
  std::size_t column() const { return j_ * kGroup; }
  std::size_t cell() const { return (i_ * q_ + j_) * kGroup; }
  void next() {
    if (++j_ == n_) {
      j_ = 0;
      ++i_;
    }
  }

 private:
  std::size_t n_;
  std::size_t q_;
  std::size_t i_ = 0;
  std::size_t j_ = 0;
};

void gather(const double* hessians, const LyapunovScale& scale, double* s) {
  const std::size_t size = scale.width * scale.width;
  const std::size_t q = lab::lyapunov_square(scale.width);
  for (std::size_t i = 0; q > scale.width && i < q * q; ++i) store(s + i * kGroup, splat(0.0));
  const Vec kappa = splat(scale.sample_rate);
  Cells cells(scale.width);
  const auto put = [&](const Vec& values) {
    const Vec factor = kappa * load(scale.roots + cells.row()) * load(scale.roots + cells.column());
    store(s + cells.cell(), factor * values);
    cells.next();
  };
  std::size_t f = 0;
  for (; f + kGroup <= size; f += kGroup) {
    Vec rows[kLanes];
    load_transposed(hessians + f, size, rows);
    for (int i = 0; i < kLanes; ++i) put(rows[i]);
  }
  for (; f < size; ++f) {
    double values[kLanes];
    for (std::size_t m = 0; m < kGroup; ++m) values[m] = hessians[m * size + f];
    put(load(values));
  }
}

void scatter(const double* y, const LyapunovScale& scale, double* covariances) {
  const std::size_t size = scale.width * scale.width;
  Cells cells(scale.width);
  const auto take = [&] {
    const Vec value = load(scale.roots + cells.row()) * load(scale.roots + cells.column()) * load(y + cells.cell());
    cells.next();
    return value;
  };
  std::size_t f = 0;
  for (; f + kGroup <= size; f += kGroup) {
    Vec rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = take();
    store_transposed(covariances + f, size, rows);
  }
  for (; f < size; ++f) {
    double values[kLanes];
    store(values, take());
    for (std::size_t m = 0; m < kGroup; ++m) covariances[m * size + f] = values[m];
  }
}

}  // namespace

extern const LyapunovKernels kLyapunovKernels;
const LyapunovKernels kLyapunovKernels = {DPINFER_VARIANT_NAME, gather, scatter, solve};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

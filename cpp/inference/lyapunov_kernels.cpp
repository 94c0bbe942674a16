// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
//
// Smith's (1968) doubling, "Matrix equation XA + BX = C".  With a shift p > 0 and the Moebius transform
//     continuous   W = (S + p)^-1,       C = 1 - 2 p W,
//     discrete     W = (w S + p)^-1,     C = a - (1 + a) p W,  w = 1 - p/2, a = (1 + p/2) / w,
// either equation becomes Y = C Y C' + 2 p W E W', and C's eigenvalues lie within the unit circle exactly where the
// recursion is stable.  Its series is summed by doubling: Y <- Y + C Y C', C <- C C.  It starts from two such steps
// with different shifts, whose product needs no multiplication: W1 W2 = (w2 W2 - w1 W1) / (p1 - p2).
#include "inference/lyapunov_kernels.hpp"

#include <cstddef>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using inference::LyapunovGroup;
using inference::LyapunovKernels;
using inference::LyapunovScale;
static_assert(inference::kLyapunovGroup == static_cast<std::size_t>(kLanes));

constexpr std::size_t kGroup = static_cast<std::size_t>(kLanes);
// Sums of a tile, and the factors they need, fit in the registers.
constexpr std::size_t kTile = kNativeLanes == 8 ? 4 : 2;
// What is left of the series where the squared norm of C is below this, relative to Y.
constexpr double kNegligible = 1e-12;
constexpr double kDiverged = 1e30;
// The two shifts are this far from the middle.
constexpr double kApart = 2.3;
constexpr int kMostDoublings = 24;

// Where element (k, j) of a product's right factor lies: at k down + j across.
struct Right {
  const double* values;
  std::size_t down;
  std::size_t across;
};

// out = A B, or out + A B; with `triangle` the lower triangle alone, mirrored.
template <bool triangle, bool add>
DPINFER_INLINE void product(const double* a, const Right& b, std::size_t q, double* out) {
  const std::size_t row = q * kGroup;
  const Vec zero = splat(0.0);
  for (std::size_t i = 0; i < q; i += kTile) {
    for (std::size_t j = 0; j < (triangle ? i + 1 : q); j += kTile) {
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
      for (std::size_t r = 0; r < kTile; ++r) {
        for (std::size_t c = 0; c < kTile; ++c) {
          if (triangle && j + c > i + r) continue;
          store(out + (i + r) * row + (j + c) * kGroup, sum[r][c]);
          if (triangle) store(out + (j + c) * row + (i + r) * kGroup, sum[r][c]);
        }
      }
    }
  }
}

Right plain(const double* values, std::size_t q) { return {values, q * kGroup, kGroup}; }
// The transpose; of a symmetric matrix by its rows, which are read faster.
Right turned(const double* values, std::size_t q, bool symmetric) {
  return symmetric ? plain(values, q) : Right{values, kGroup, q * kGroup};
}

DPINFER_NOINLINE void multiply(const double* a, const Right& b, std::size_t q, double* out) {
  product<false, false>(a, b, q, out);
}
DPINFER_NOINLINE void multiply_symmetric(const double* a, const Right& b, std::size_t q, double* out) {
  product<true, false>(a, b, q, out);
}
DPINFER_NOINLINE void add_symmetric_product(const double* a, const Right& b, std::size_t q, double* out) {
  product<true, true>(a, b, q, out);
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

// The same, four rows and columns in the place of one.
DPINFER_NOINLINE void invert(double* a, std::size_t q) {
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
      if (i >= k && i < k + kBlock) continue;
      double* other = a + i * row;
      Vec factor[kBlock];
      for (std::size_t r = 0; r < kBlock; ++r) {
        factor[r] = zero - load(other + (k + r) * kGroup);
        store(other + (k + r) * kGroup, zero);
      }
      for (std::size_t j = 0; j < q; ++j) {
        Vec value = load(other + j * kGroup);
        for (std::size_t r = 0; r < kBlock; ++r) value = fused(factor[r], load(pivots + r * row + j * kGroup), value);
        store(other + j * kGroup, value);
      }
    }
  }
}

// (w S + p)^-1, 1 / p on the diagonal beyond n.
void resolvent(const double* s, const Shift& shift, std::size_t q, double* out) {
  for (std::size_t i = 0; i < q; ++i) {
    for (std::size_t j = 0; j < q; ++j) {
      const std::size_t cell = (i * q + j) * kGroup;
      const Vec scaled = shift.w * load(s + cell);
      store(out + cell, i == j ? scaled + shift.p : scaled);
    }
  }
  invert(out, q);
}

// out = 2 p X E, zero beyond n.
void weigh(const double* x, const double* energy, const Vec& p, std::size_t n, std::size_t q, double* out) {
  const Vec zero = splat(0.0);
  const Vec twice = p + p;
  for (std::size_t i = 0; i < q; ++i) {
    for (std::size_t j = 0; j < q; ++j) {
      const std::size_t cell = (i * q + j) * kGroup;
      store(out + cell, i < n && j < n ? twice * load(energy + j * kGroup) * load(x + cell) : zero);
    }
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
void bound_error(const LyapunovGroup& group, std::size_t q, double* first, double* second) {
  multiply(group.s, plain(group.y, q), q, first);
  if (group.discrete) multiply_symmetric(first, turned(group.s, q, group.symmetric), q, second);
  Vec least = load(group.energy);
  for (std::size_t i = 0; i < group.width; ++i) {
    const Vec energy = load(group.energy + i * kGroup);
    least = minimum(energy, least);
    for (std::size_t j = 0; j < i; ++j) {
      double* cell = first + (i * q + j) * kGroup;
      double* mirrored = first + (j * q + i) * kGroup;
      Vec residual = load(cell) + load(mirrored);
      if (group.discrete) residual = residual - load(second + (i * q + j) * kGroup);
      store(cell, residual);
      store(mirrored, residual);
    }
    double* cell = first + (i * q + i) * kGroup;
    Vec residual = load(cell) + load(cell) - energy;
    if (group.discrete) residual = residual - load(second + (i * q + i) * kGroup);
    store(cell, residual);
  }
  store(group.error, square_root(squared_norm(first, q)) / least);
}

void solve(const LyapunovGroup& group) {
  const std::size_t n = group.width;
  const std::size_t q = inference::lyapunov_square(n);
  const std::size_t size = q * q * kGroup;
  double* w1 = group.work;
  double* w2 = w1 + size;
  double* c = w2 + size;
  double* other = c + size;
  const Vec middle = middle_shift(group.s, n, q, group.discrete);
  const Vec far = splat(kApart) * middle;
  const Shift one = shift_of(middle / splat(kApart), group.discrete);
  const Shift two = shift_of(group.discrete ? minimum(far, splat(1.0)) : far, group.discrete);
  resolvent(group.s, one, q, w1);
  resolvent(group.s, two, q, w2);
  // V = C2 W1 in the place of W1, and C = C1 C2.
  const Vec apart = splat(1.0) / (one.p - two.p);
  const Vec v1 = two.own - two.factor * apart * one.w;
  const Vec v2 = two.factor * apart * two.w;
  const Vec c0 = one.own * two.own;
  const Vec c1 = one.factor * v1;
  const Vec c2 = one.own * two.factor + one.factor * v2;
  for (std::size_t i = 0; i < q; ++i) {
    for (std::size_t j = 0; j < q; ++j) {
      const std::size_t cell = (i * q + j) * kGroup;
      const Vec first = load(w1 + cell);
      const Vec second = load(w2 + cell);
      store(w1 + cell, fused(v1, first, v2 * second));
      const Vec product = fused(c1, first, c2 * second);
      const Vec own = i == j ? product + c0 : product;
      store(c + cell, i < n && j < n ? own : splat(0.0));
    }
  }
  weigh(w1, group.energy, one.p, n, q, other);
  multiply_symmetric(other, turned(w1, q, group.symmetric), q, group.y);
  weigh(w2, group.energy, two.p, n, q, other);
  add_symmetric_product(other, turned(w2, q, group.symmetric), q, group.y);
  for (int doubling = 0; doubling < kMostDoublings; ++doubling) {
    const Series series = progress(c, q);
    if (series == Series::kDone) break;
    multiply(c, plain(group.y, q), q, other);
    add_symmetric_product(other, turned(c, q, group.symmetric), q, group.y);
    if (series == Series::kLastTerm) break;
    if (group.symmetric) {
      multiply_symmetric(c, plain(c, q), q, other);
    } else {
      multiply(c, plain(c, q), q, other);
    }
    double* const squared = other;
    other = c;
    c = squared;
  }
  bound_error(group, q, c, other);
}

// Where the flat element f of a row-major (n, n) matrix lies in a square of q.
class Cells {
 public:
  explicit Cells(std::size_t n) : n_(n), q_(inference::lyapunov_square(n)) {}
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
  const std::size_t q = inference::lyapunov_square(scale.width);
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

#include "lab/stationary_groups.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <new>

#include "common/aligned.hpp"
#include "common/simd_dispatch.hpp"
#include "lab/stationary_batch.hpp"

DPINFER_SIMD_COPIES(dpinfer::lab::InverseKernels, kInverseKernels)
DPINFER_SIMD_COPIES(dpinfer::lab::LyapunovKernels, kLyapunovKernels)

namespace dpinfer::lab {

namespace {

constexpr StationaryKernels kPortable{kInverseKernelsCopies.portable, kLyapunovKernelsCopies.portable};
constexpr StationaryKernels kAvx2{kInverseKernelsCopies.avx2, kLyapunovKernelsCopies.avx2};
constexpr StationaryKernels kAvx512{kInverseKernelsCopies.avx512, kLyapunovKernelsCopies.avx512};
constexpr SimdCopies<StationaryKernels> kStationaryCopies{&kPortable, &kAvx2, &kAvx512};

}  // namespace

const StationaryKernels* stationary_kernels(const char* name) { return kStationaryCopies.named(name); }
const StationaryKernels* stationary_kernels() { return kStationaryCopies.best(); }

namespace {

static_assert(kInverseGroup == kLyapunovGroup);
constexpr std::size_t kGroup = kInverseGroup;
// A solution is taken where its error is certain to be below this, relative to the solution.
constexpr double kAccurate = 2e-11;
// Groups that a thread takes at a time: a thread that is held up takes fewer.
constexpr std::int64_t kRun = 8;

// Eight matrices S and 2 - S at a time, whose inverses make up Y.
class InverseSolver {
 public:
  static std::size_t doubles(std::size_t n) { return kGroup * (2 * n * n + 4 * n); }

  InverseSolver(const StationaryKernels& kernels, std::size_t width, double* work)
      : kernels_(*kernels.inverse),
        n_(width),
        first_(work),
        second_(first_ + kGroup * width * width),
        pivots_(second_ + kGroup * width * width),
        other_pivots_(pivots_ + kGroup * width),
        scratch_(other_pivots_ + kGroup * width),
        roots_(scratch_ + kGroup * width) {}

  void solve(const StationaryBatch& batch, std::size_t begin, std::size_t count, std::span<double> out,
             std::span<StationaryStatus> status) {
    for (std::size_t lane = 0; lane < kGroup; ++lane) {
      gather(batch, item_of(batch, begin + std::min(lane, count - 1)), lane);
    }
    kernels_.inverses({first_, pivots_, scratch_, n_});
    if (batch.discrete) kernels_.inverses({second_, other_pivots_, scratch_, n_});
    for (std::size_t lane = 0; lane < count; ++lane) {
      const Item item = item_of(batch, begin + lane);
      const bool stable = positive(pivots_, lane) && (!batch.discrete || positive(other_pivots_, lane));
      status[begin + lane] = stable ? StationaryStatus::kOk : StationaryStatus::kUnstable;
      scatter(batch.discrete, 0.5 * item.rate[0] * item.noise[0] * item.noise[0], lane,
              out.data() + (begin + lane) * n_ * n_);
    }
  }

 private:
  std::size_t at(std::size_t i, std::size_t j, std::size_t lane) const { return (i * n_ + j) * kGroup + lane; }

  void gather(const StationaryBatch& batch, const Item& item, std::size_t lane) {
    for (std::size_t i = 0; i < n_; ++i) roots_[i * kGroup + lane] = std::sqrt(item.rate[i]);
    for (std::size_t i = 0; i < n_; ++i) {
      const double factor = batch.sample_rate * roots_[i * kGroup + lane];
      for (std::size_t j = 0; j <= i; ++j) {
        const double value = factor * roots_[j * kGroup + lane] * item.hessian[i * n_ + j];
        first_[at(i, j, lane)] = value;
        second_[at(i, j, lane)] = (i == j ? 2.0 : 0.0) - value;
      }
    }
  }

  bool positive(const double* pivots, std::size_t lane) const {
    bool all = true;
    for (std::size_t i = 0; i < n_; ++i) all = all && pivots[i * kGroup + lane] > 0.0;
    return all;
  }

  void scatter(bool discrete, double half, std::size_t lane, double* out) const {
    for (std::size_t i = 0; i < n_; ++i) {
      const double factor = half * roots_[i * kGroup + lane];
      for (std::size_t j = 0; j <= i; ++j) {
        const double inverse = first_[at(i, j, lane)] + (discrete ? second_[at(i, j, lane)] : 0.0);
        const double value = factor * roots_[j * kGroup + lane] * inverse;
        out[i * n_ + j] = value;
        out[j * n_ + i] = value;
      }
    }
  }

  const InverseKernels& kernels_;
  std::size_t n_;
  double* first_;
  double* second_;
  double* pivots_;
  double* other_pivots_;
  double* scratch_;
  double* roots_;
};

// Eight equations at a time, by doubling.
class LyapunovSolver {
 public:
  static std::size_t doubles(std::size_t n) { return 6 * cells(n) + kGroup * (2 * n + 1); }

  LyapunovSolver(const StationaryKernels& kernels, std::size_t width, double* work)
      : kernels_(*kernels.lyapunov),
        n_(width),
        s_(work),
        y_(s_ + cells(width)),
        work_(y_ + cells(width)),
        energy_(work_ + 4 * cells(width)),
        roots_(energy_ + kGroup * width),
        error_(roots_ + kGroup * width) {}

  void solve(const StationaryBatch& batch, std::size_t begin, std::size_t count, bool symmetric, std::span<double> out,
             std::span<StationaryStatus> status) {
    const std::size_t size = n_ * n_;
    for (std::size_t lane = 0; lane < kGroup; ++lane) {
      const Item item = item_of(batch, begin + std::min(lane, count - 1));
      for (std::size_t i = 0; i < n_; ++i) {
        roots_[i * kGroup + lane] = std::sqrt(item.rate[i]);
        energy_[i * kGroup + lane] = item.rate[i] * item.noise[i] * item.noise[i];
      }
      // A group that is not full repeats its last matrix.
      if (count < kGroup) std::copy_n(item.hessian, size, work_ + lane * size);
    }
    const LyapunovScale scale{roots_, batch.sample_rate, n_};
    double* const target = out.data() + begin * size;
    kernels_.gather(count < kGroup ? work_ : batch.hessian.data() + begin * size, scale, s_);
    const double* const next = batch.hessian.data() + std::min(begin + kGroup, batch.count) * size;
    const double* const last = batch.hessian.data() + std::min(begin + 2 * kGroup, batch.count) * size;
    kernels_.solve(
        {s_, energy_, y_, work_, error_, n_, symmetric, batch.discrete, {next, last}, {target, target + count * size}});
    kernels_.scatter(y_, scale, count < kGroup ? work_ : target);
    if (count < kGroup) std::copy_n(work_, count * size, target);
    for (std::size_t lane = 0; lane < count; ++lane) {
      status[begin + lane] = error_[lane] < kAccurate ? StationaryStatus::kOk : StationaryStatus::kNotConverged;
    }
  }

 private:
  static std::size_t cells(std::size_t n) { return kGroup * lyapunov_square(n) * lyapunov_square(n); }

  const LyapunovKernels& kernels_;
  std::size_t n_;
  double* s_;
  double* y_;
  double* work_;
  double* energy_;
  double* roots_;
  double* error_;
};

// Groups are the same whoever solves them, and the matrices of a group do not touch each other.
template <typename Solver, typename... Options>
StationaryStatus solve_groups(const StationaryKernels& kernels, const StationaryBatch& batch, int threads,
                              std::span<double> out, std::span<StationaryStatus> status, Options... options) {
  const std::size_t n = batch.width;
  const int team = team_of(batch, threads);
  const std::size_t doubles = Solver::doubles(n);
  AlignedVector<double> work;
  try {
    work.resize(doubles * static_cast<std::size_t>(team));
  } catch (const std::bad_alloc&) {
    return StationaryStatus::kOutOfMemory;
  }
  const auto groups = static_cast<std::int64_t>((batch.count + kGroup - 1) / kGroup);
  std::atomic<std::int64_t> next{0};
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t part = 0; part < team; ++part) {
    Solver solver(kernels, n, work.data() + doubles * static_cast<std::size_t>(part));
    for (std::int64_t first = next.fetch_add(kRun); first < groups; first = next.fetch_add(kRun)) {
      for (std::int64_t group = first; group < std::min(first + kRun, groups); ++group) {
        const std::size_t begin = static_cast<std::size_t>(group) * kGroup;
        solver.solve(batch, begin, std::min(kGroup, batch.count - begin), options..., out, status);
      }
    }
  }
  return StationaryStatus::kOk;
}

}  // namespace

StationaryStatus solve_by_inverses(const StationaryKernels& kernels, const StationaryBatch& batch, int threads,
                                   std::span<double> out, std::span<StationaryStatus> status) {
  return solve_groups<InverseSolver>(kernels, batch, threads, out, status);
}

StationaryStatus solve_by_doubling(const StationaryKernels& kernels, const StationaryBatch& batch, bool symmetric,
                                   int threads, std::span<double> out, std::span<StationaryStatus> status) {
  return solve_groups<LyapunovSolver>(kernels, batch, threads, out, status, symmetric);
}

}  // namespace dpinfer::lab

#include "inference/stationary.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "common/aligned.hpp"
#include "common/parallel.hpp"
#include "common/simd_dispatch.hpp"

namespace dpinfer {

namespace portable {
extern const inference::InverseKernels kInverseKernels;
}
#if defined(DPINFER_HAVE_X86_VARIANTS)
namespace avx2 {
extern const inference::InverseKernels kInverseKernels;
}
namespace avx512 {
extern const inference::InverseKernels kInverseKernels;
}
#endif

namespace inference {

const InverseKernels* inverse_kernels(const char* name) {
  if (!simd_variant_runs_here(name)) return nullptr;
#if defined(DPINFER_HAVE_X86_VARIANTS)
  if (std::strcmp(name, "avx2") == 0) return &avx2::kInverseKernels;
  if (std::strcmp(name, "avx512") == 0) return &avx512::kInverseKernels;
#endif
  return &portable::kInverseKernels;
}

const InverseKernels* inverse_kernels() { return best_simd_table<InverseKernels>(&inverse_kernels); }

namespace {

// Above this width LAPACK has threads of its own, and the batch is gone through one by one.
constexpr std::size_t kSmall = 64;
// Up to this width a batch with the same l tau^2 everywhere is inverted eight matrices at a time.
constexpr std::size_t kInterleaved = 32;
constexpr double kSame = 1e-13;

struct Item {
  const double* hessian;
  const double* rate;
  const double* noise;
};

std::size_t row_of(std::span<const double> values, std::size_t width, std::size_t s) {
  return values.size() == width ? 0 : s * width;
}

Item item_of(const StationaryBatch& batch, std::size_t s) {
  const std::size_t n = batch.width;
  return {batch.hessian.data() + s * n * n, batch.rate.data() + row_of(batch.rate, n, s),
          batch.noise.data() + row_of(batch.noise, n, s)};
}

int team_of(const StationaryBatch& batch, int threads) {
  const bool worth = batch.width <= kSmall && batch.count * batch.width * batch.width > 4096;
  return worth ? resolve_threads(threads) : 1;
}

// S = kappa L A L, column-major: element (i, j) at [i + n j].
void scaled_hessian(const StationaryBatch& batch, const Item& item, const double* root, double* out) {
  const std::size_t n = batch.width;
  for (std::size_t j = 0; j < n; ++j) {
    const double factor = batch.sample_rate * root[j];
    for (std::size_t i = 0; i < n; ++i) out[i + n * j] = factor * root[i] * item.hessian[i * n + j];
  }
}

// V = L Y L from the lower triangle (column-major) of Y.
void unscaled(const double* lower, const double* root, std::size_t n, double* out) {
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = j; i < n; ++i) {
      const double value = lower[i + n * j] * (root[i] * root[j]);
      out[i * n + j] = value;
      out[j * n + i] = value;
    }
  }
}

bool is_isotropic(const Item& item, std::size_t n) {
  double low = item.rate[0] * item.noise[0] * item.noise[0];
  double high = low;
  for (std::size_t j = 1; j < n; ++j) {
    const double energy = item.rate[j] * item.noise[j] * item.noise[j];
    low = std::min(low, energy);
    high = std::max(high, energy);
  }
  return high - low <= kSame * high;
}

class SymmetricSolver {
 public:
  static std::size_t doubles(std::size_t n) { return 3 * n * n + 4 * n + work_size(n); }
  static std::size_t integers(std::size_t n) { return 5 * n + 3; }

  SymmetricSolver(const Lapack& lapack, std::size_t width, double* work, int* integer_work)
      : lapack_(lapack),
        n_(width),
        first_(work),
        second_(first_ + width * width),
        third_(second_ + width * width),
        root_(third_ + width * width),
        energy_(root_ + width),
        eigen_(energy_ + width),
        work_(eigen_ + width),
        iwork_(integer_work) {}

  StationaryStatus solve(const StationaryBatch& batch, const Item& item, double* out) {
    for (std::size_t j = 0; j < n_; ++j) {
      root_[j] = std::sqrt(item.rate[j]);
      energy_[j] = item.rate[j] * item.noise[j] * item.noise[j];
    }
    scaled_hessian(batch, item, root_, first_);
    const StationaryStatus status = is_isotropic(item, n_) ? isotropic(batch.discrete) : in_eigenbasis(batch.discrete);
    if (status == StationaryStatus::kOk) unscaled(first_, root_, n_, out);
    return status;
  }

 private:
  // dsyevd asks for 1 + 6 n + 2 n^2; the three matrices before it are in use.
  static std::size_t work_size(std::size_t n) { return 1 + 6 * n + 2 * n * n; }

  bool inverted(double* matrix) {
    int n = static_cast<int>(n_);
    int info = 0;
    char lower = 'L';
    lapack_.dpotrf(&lower, &n, matrix, &n, &info);
    if (info == 0) lapack_.dpotri(&lower, &n, matrix, &n, &info);
    return info == 0;
  }

  StationaryStatus isotropic(bool discrete) {
    const std::size_t size = n_ * n_;
    if (discrete) {
      for (std::size_t i = 0; i < size; ++i) second_[i] = -first_[i];
      for (std::size_t i = 0; i < n_; ++i) second_[i * (n_ + 1)] += 2.0;
    }
    if (!inverted(first_) || (discrete && !inverted(second_))) return StationaryStatus::kUnstable;
    const double half = 0.5 * energy_[0];
    for (std::size_t i = 0; i < size; ++i) first_[i] = half * (discrete ? first_[i] + second_[i] : first_[i]);
    return StationaryStatus::kOk;
  }

  StationaryStatus in_eigenbasis(bool discrete) {
    int n = static_cast<int>(n_);
    int lwork = static_cast<int>(work_size(n_));
    int liwork = static_cast<int>(integers(n_));
    int info = 0;
    char vectors = 'V';
    char lower = 'L';
    lapack_.dsyevd(&vectors, &lower, &n, first_, &n, eigen_, work_, &lwork, iwork_, &liwork, &info);
    if (info != 0) return StationaryStatus::kNotConverged;
    if (!(eigen_[0] > 0.0) || (discrete && !(eigen_[n_ - 1] < 2.0))) return StationaryStatus::kUnstable;
    for (std::size_t j = 0; j < n_; ++j) {
      for (std::size_t i = 0; i < n_; ++i) second_[i + n_ * j] = std::sqrt(energy_[i]) * first_[i + n_ * j];
    }
    char transpose = 'T';
    char plain = 'N';
    char right = 'R';
    double one = 1.0;
    double zero = 0.0;
    lapack_.dsyrk(&lower, &transpose, &n, &n, &one, second_, &n, &zero, third_, &n);
    for (std::size_t j = 0; j < n_; ++j) {
      for (std::size_t i = j; i < n_; ++i) {
        const double product = discrete ? eigen_[i] * eigen_[j] : 0.0;
        third_[i + n_ * j] /= eigen_[i] + eigen_[j] - product;
      }
      third_[j * (n_ + 1)] *= 0.5;
    }
    // With the solution T + T' in the eigenbasis, U (T + T') U' = (U T) U' + U (U T)'.
    std::copy_n(first_, n_ * n_, second_);
    lapack_.dtrmm(&right, &lower, &plain, &plain, &n, &n, &one, third_, &n, second_, &n);
    lapack_.dsyr2k(&lower, &plain, &n, &n, &one, second_, &n, first_, &n, &zero, third_, &n);
    std::swap(first_, third_);
    return StationaryStatus::kOk;
  }

  const Lapack& lapack_;
  std::size_t n_;
  double* first_;
  double* second_;
  double* third_;
  double* root_;
  double* energy_;
  double* eigen_;
  double* work_;
  int* iwork_;
};

class GeneralSolver {
 public:
  static std::size_t doubles(std::size_t n) { return 5 * n * n + 3 * n + work_size(n); }
  static std::size_t integers(std::size_t n) { return n; }

  GeneralSolver(const Lapack& lapack, std::size_t width, double* work, int* integer_work)
      : lapack_(lapack),
        n_(width),
        schur_(work),
        vectors_(schur_ + width * width),
        half_(vectors_ + width * width),
        right_(half_ + width * width),
        product_(right_ + width * width),
        root_(product_ + width * width),
        real_(root_ + width),
        imaginary_(real_ + width),
        work_(imaginary_ + width),
        iwork_(integer_work) {}

  StationaryStatus solve(const StationaryBatch& batch, const Item& item, double* out) {
    const std::size_t size = n_ * n_;
    int n = static_cast<int>(n_);
    int info = 0;
    for (std::size_t j = 0; j < n_; ++j) root_[j] = std::sqrt(item.rate[j]);
    scaled_hessian(batch, item, root_, schur_);
    std::fill_n(half_, size, 0.0);
    for (std::size_t j = 0; j < n_; ++j) half_[j * (n_ + 1)] = root_[j] * item.noise[j];
    if (batch.discrete && !cayley(&n, &info)) return StationaryStatus::kUnstable;
    char vectors = 'V';
    char unsorted = 'N';
    int sorted = 0;
    int lwork = static_cast<int>(work_size(n_));
    lapack_.dgees(&vectors, &unsorted, nullptr, &n, schur_, &n, &sorted, real_, imaginary_, vectors_, &n, work_, &lwork,
                  iwork_, &info);
    if (info != 0) return StationaryStatus::kNotConverged;
    // The Cayley transform maps |1 - m| < 1 onto the right half plane.
    for (std::size_t j = 0; j < n_; ++j) {
      if (!(real_[j] > 0.0)) return StationaryStatus::kUnstable;
    }
    char plain = 'N';
    char transpose = 'T';
    char lower = 'L';
    double one = 1.0;
    double zero = 0.0;
    lapack_.dgemm(&transpose, &plain, &n, &n, &n, &one, vectors_, &n, half_, &n, &zero, product_, &n);
    lapack_.dsyrk(&lower, &plain, &n, &n, &one, product_, &n, &zero, right_, &n);
    for (std::size_t j = 0; j < n_; ++j) {
      for (std::size_t i = j + 1; i < n_; ++i) right_[j + n_ * i] = right_[i + n_ * j];
    }
    int sign = 1;
    double scale = 1.0;
    lapack_.dtrsyl(&plain, &transpose, &sign, &n, &n, schur_, &n, schur_, &n, right_, &n, &scale, &info);
    if (info != 0) return StationaryStatus::kNotConverged;
    double factor = 1.0 / scale;
    lapack_.dgemm(&plain, &plain, &n, &n, &n, &factor, vectors_, &n, right_, &n, &zero, product_, &n);
    lapack_.dgemm(&plain, &transpose, &n, &n, &n, &one, product_, &n, vectors_, &n, &zero, right_, &n);
    for (std::size_t j = 0; j < n_; ++j) {
      for (std::size_t i = j; i < n_; ++i) {
        right_[i + n_ * j] = 0.5 * (right_[i + n_ * j] + right_[j + n_ * i]);
      }
    }
    unscaled(right_, root_, n_, out);
    return StationaryStatus::kOk;
  }

 private:
  static std::size_t work_size(std::size_t n) { return 40 * n; }

  // S <- (I - S/2)^-1 S and half <- (I - S/2)^-1 half; false where I - S/2 is singular, that is at an eigenvalue 2.
  bool cayley(int* n, int* info) {
    const std::size_t size = n_ * n_;
    for (std::size_t i = 0; i < size; ++i) product_[i] = -0.5 * schur_[i];
    for (std::size_t j = 0; j < n_; ++j) product_[j * (n_ + 1)] += 1.0;
    // Both right-hand sides side by side: `vectors_` and `half_` lie next to each other.
    std::copy_n(schur_, size, vectors_);
    int sides = 2 * *n;
    lapack_.dgesv(n, &sides, product_, n, iwork_, vectors_, n, info);
    std::copy_n(vectors_, size, schur_);
    return *info == 0;
  }

  const Lapack& lapack_;
  std::size_t n_;
  double* schur_;
  double* vectors_;
  double* half_;
  double* right_;
  double* product_;
  double* root_;
  double* real_;
  double* imaginary_;
  double* work_;
  int* iwork_;
};

// Eight small matrices at a time, S and 2 - S, whose inverses make up Y.
class InterleavedSolver {
 public:
  static std::size_t doubles(std::size_t n) { return kInverseGroup * (2 * n * n + 4 * n); }

  InterleavedSolver(const InverseKernels& kernels, std::size_t width, double* work)
      : kernels_(kernels),
        n_(width),
        first_(work),
        second_(first_ + kInverseGroup * width * width),
        pivots_(second_ + kInverseGroup * width * width),
        other_pivots_(pivots_ + kInverseGroup * width),
        scratch_(other_pivots_ + kInverseGroup * width),
        roots_(scratch_ + kInverseGroup * width) {}

  void solve(const StationaryBatch& batch, std::size_t begin, std::size_t count, std::span<double> out,
             std::span<StationaryStatus> status) {
    for (std::size_t lane = 0; lane < kInverseGroup; ++lane) {
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
  std::size_t at(std::size_t i, std::size_t j, std::size_t lane) const { return (i * n_ + j) * kInverseGroup + lane; }

  void gather(const StationaryBatch& batch, const Item& item, std::size_t lane) {
    for (std::size_t i = 0; i < n_; ++i) roots_[i * kInverseGroup + lane] = std::sqrt(item.rate[i]);
    for (std::size_t i = 0; i < n_; ++i) {
      const double factor = batch.sample_rate * roots_[i * kInverseGroup + lane];
      for (std::size_t j = 0; j <= i; ++j) {
        const double value = factor * roots_[j * kInverseGroup + lane] * item.hessian[i * n_ + j];
        first_[at(i, j, lane)] = value;
        second_[at(i, j, lane)] = (i == j ? 2.0 : 0.0) - value;
      }
    }
  }

  bool positive(const double* pivots, std::size_t lane) const {
    bool all = true;
    for (std::size_t i = 0; i < n_; ++i) all = all && pivots[i * kInverseGroup + lane] > 0.0;
    return all;
  }

  void scatter(bool discrete, double half, std::size_t lane, double* out) const {
    for (std::size_t i = 0; i < n_; ++i) {
      const double factor = half * roots_[i * kInverseGroup + lane];
      for (std::size_t j = 0; j <= i; ++j) {
        const double inverse = first_[at(i, j, lane)] + (discrete ? second_[at(i, j, lane)] : 0.0);
        const double value = factor * roots_[j * kInverseGroup + lane] * inverse;
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

StationaryStatus solve_interleaved(const InverseKernels& kernels, const StationaryBatch& batch, int threads,
                                   std::span<double> out, std::span<StationaryStatus> status) {
  const std::size_t n = batch.width;
  const int team = team_of(batch, threads);
  const std::size_t doubles = InterleavedSolver::doubles(n);
  AlignedVector<double> work;
  try {
    work.resize(doubles * static_cast<std::size_t>(team));
  } catch (const std::bad_alloc&) {
    return StationaryStatus::kOutOfMemory;
  }
  const auto groups = static_cast<std::int64_t>((batch.count + kInverseGroup - 1) / kInverseGroup);
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t part = 0; part < team; ++part) {
    InterleavedSolver solver(kernels, n, work.data() + doubles * static_cast<std::size_t>(part));
    for (std::int64_t group = groups * part / team; group < groups * (part + 1) / team; ++group) {
      const std::size_t begin = static_cast<std::size_t>(group) * kInverseGroup;
      solver.solve(batch, begin, std::min(kInverseGroup, batch.count - begin), out, status);
    }
  }
  return StationaryStatus::kOk;
}

bool all_isotropic(const StationaryBatch& batch) {
  const bool shared = batch.rate.size() == batch.width && batch.noise.size() == batch.width;
  const std::size_t rows = shared ? std::min<std::size_t>(batch.count, 1) : batch.count;
  for (std::size_t s = 0; s < rows; ++s) {
    if (!is_isotropic(item_of(batch, s), batch.width)) return false;
  }
  return true;
}

template <typename Solver>
StationaryStatus solve_batch(const Lapack& lapack, const StationaryBatch& batch, int threads, std::span<double> out,
                             std::span<StationaryStatus> status) {
  const std::size_t n = batch.width;
  const int team = team_of(batch, threads);
  const std::size_t doubles = Solver::doubles(n);
  const std::size_t integers = Solver::integers(n);
  std::vector<double> work;
  std::vector<int> integer_work;
  try {
    work.resize(doubles * static_cast<std::size_t>(team));
    integer_work.resize(integers * static_cast<std::size_t>(team));
  } catch (const std::bad_alloc&) {
    return StationaryStatus::kOutOfMemory;
  }
  const auto count = static_cast<std::int64_t>(batch.count);
  // Every item is solved alone, in the same operations whoever solves it: the threads cannot matter.
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t part = 0; part < team; ++part) {
    Solver solver(lapack, n, work.data() + doubles * static_cast<std::size_t>(part),
                  integer_work.data() + integers * static_cast<std::size_t>(part));
    for (std::int64_t s = count * part / team; s < count * (part + 1) / team; ++s) {
      const auto row = static_cast<std::size_t>(s);
      status[row] = solver.solve(batch, item_of(batch, row), out.data() + row * n * n);
    }
  }
  return StationaryStatus::kOk;
}

}  // namespace

void stationary_diagonal(const StationaryBatch& batch, int threads, std::span<double> out,
                         std::span<StationaryStatus> status) {
  const std::size_t n = batch.width;
  const auto count = static_cast<std::int64_t>(batch.count);
  const int team = batch.count * n > 65536 ? resolve_threads(threads) : 1;
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t row = 0; row < count; ++row) {
    const auto s = static_cast<std::size_t>(row);
    const double* a = batch.hessian.data() + s * n;
    const double* l = batch.rate.data() + row_of(batch.rate, n, s);
    const double* tau = batch.noise.data() + row_of(batch.noise, n, s);
    bool stable = true;
    for (std::size_t j = 0; j < n; ++j) {
      const double contraction = l[j] * batch.sample_rate * a[j];
      const double gap = batch.discrete ? 2.0 - contraction : 2.0;
      stable = stable && contraction > 0.0 && gap > 0.0;
      const double step = l[j] * tau[j];
      out[s * n + j] = step * step / (contraction * gap);
    }
    status[s] = stable ? StationaryStatus::kOk : StationaryStatus::kUnstable;
  }
}

StationaryStatus stationary_symmetric(const Lapack& lapack, const InverseKernels& kernels, const StationaryBatch& batch,
                                      int threads, std::span<double> out, std::span<StationaryStatus> status) {
  if (batch.width <= kInterleaved && all_isotropic(batch)) {
    return solve_interleaved(kernels, batch, threads, out, status);
  }
  return solve_batch<SymmetricSolver>(lapack, batch, threads, out, status);
}

StationaryStatus stationary_general(const Lapack& lapack, const StationaryBatch& batch, int threads,
                                    std::span<double> out, std::span<StationaryStatus> status) {
  return solve_batch<GeneralSolver>(lapack, batch, threads, out, status);
}

}  // namespace inference

}  // namespace dpinfer

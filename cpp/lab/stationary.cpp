#include "lab/stationary.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>

#include "common/parallel.hpp"
#include "lab/stationary_batch.hpp"
#include "lab/stationary_groups.hpp"

namespace dpinfer::lab {

namespace {

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

bool all_isotropic(const StationaryBatch& batch) {
  const bool shared = batch.rate.size() == batch.width && batch.noise.size() == batch.width;
  const std::size_t rows = shared ? std::min<std::size_t>(batch.count, 1) : batch.count;
  for (std::size_t s = 0; s < rows; ++s) {
    if (!is_isotropic(item_of(batch, s), batch.width)) return false;
  }
  return true;
}

// Solves what is not solved yet.
template <typename Solver>
StationaryStatus solve_batch(const Lapack& lapack, const StationaryBatch& batch, int threads, std::span<double> out,
                             std::span<StationaryStatus> status) {
  const std::size_t n = batch.width;
  const int team = team_of(batch, threads);
  const std::size_t doubles = Solver::doubles(n);
  const std::size_t integers = Solver::integers(n);
  std::unique_ptr<double[]> work;
  std::unique_ptr<int[]> integer_work;
  try {
    work = std::make_unique_for_overwrite<double[]>(doubles * static_cast<std::size_t>(team));
    integer_work = std::make_unique_for_overwrite<int[]>(integers * static_cast<std::size_t>(team));
  } catch (const std::bad_alloc&) {
    return StationaryStatus::kOutOfMemory;
  }
  const auto count = static_cast<std::int64_t>(batch.count);
  // Every item is solved alone, in the same operations whoever solves it: the threads cannot matter.
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t part = 0; part < team; ++part) {
    Solver solver(lapack, n, work.get() + doubles * static_cast<std::size_t>(part),
                  integer_work.get() + integers * static_cast<std::size_t>(part));
    for (std::int64_t s = count * part / team; s < count * (part + 1) / team; ++s) {
      const auto row = static_cast<std::size_t>(s);
      if (status[row] == StationaryStatus::kOk) continue;
      status[row] = solver.solve(batch, item_of(batch, row), out.data() + row * n * n);
    }
  }
  return StationaryStatus::kOk;
}

// In groups first, and by LAPACK what is left.
template <typename Solver>
StationaryStatus solve_any(const Lapack& lapack, const StationaryKernels& kernels, const StationaryBatch& batch,
                           bool symmetric, int threads, std::span<double> out, std::span<StationaryStatus> status) {
  std::fill(status.begin(), status.end(), StationaryStatus::kNotConverged);
  if (batch.width <= kGrouped) {
    const StationaryStatus result = solve_by_doubling(kernels, batch, symmetric, threads, out, status);
    if (result != StationaryStatus::kOk) return result;
    const auto solved = [](StationaryStatus each) { return each == StationaryStatus::kOk; };
    if (std::all_of(status.begin(), status.end(), solved)) return StationaryStatus::kOk;
  }
  return solve_batch<Solver>(lapack, batch, threads, out, status);
}

}  // namespace

MatrixCheck check_matrices(std::span<const double> matrices, std::size_t count, std::size_t n, int threads) {
  // One large matrix is checked sooner than threads wake up beside LAPACK's.
  const int team = n <= kSmall && matrices.size() > 65536 ? resolve_threads(threads) : 1;
  // Adding one to an exponent of ones alone, a NaN's or an infinity's, carries into the sign.
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
  constexpr std::uint64_t kExponent = std::uint64_t{0x7ff} << 52;
  constexpr std::uint64_t kOne = std::uint64_t{1} << 52;
  int different = 0;
  std::uint64_t infinite = 0;
#pragma omp parallel for num_threads(team) schedule(static) reduction(| : different, infinite) if (team > 1)
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(count * n); ++row) {
    const auto i = static_cast<std::size_t>(row) % n;
    const double* own = matrices.data() + static_cast<std::size_t>(row) * n;
    const double* column = own - i * n + i;
    for (std::size_t j = 0; different == 0 && j < i; ++j) different |= own[j] != column[j * n] ? 1 : 0;
    for (std::size_t j = 0; j < n; ++j) infinite |= (std::bit_cast<std::uint64_t>(own[j]) & kExponent) + kOne;
  }
  return {(infinite & kSign) == 0, different == 0};
}

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

StationaryStatus stationary_symmetric(const Lapack& lapack, const StationaryKernels& kernels,
                                      const StationaryBatch& batch, int threads, std::span<double> out,
                                      std::span<StationaryStatus> status) {
  if (batch.width <= kGrouped && all_isotropic(batch)) {
    return solve_by_inverses(kernels, batch, threads, out, status);
  }
  return solve_any<SymmetricSolver>(lapack, kernels, batch, true, threads, out, status);
}

StationaryStatus stationary_general(const Lapack& lapack, const StationaryKernels& kernels,
                                    const StationaryBatch& batch, int threads, std::span<double> out,
                                    std::span<StationaryStatus> status) {
  return solve_any<GeneralSolver>(lapack, kernels, batch, false, threads, out, status);
}

}  // namespace dpinfer::lab

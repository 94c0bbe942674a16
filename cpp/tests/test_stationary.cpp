// Stationary covariances put back into their equation, for awkward widths, every instruction set and thread count.
//
// LAPACK belongs to SciPy and is not there: only the paths without it run here.
#include <cmath>
#include <cstddef>
#include <vector>

#include "check.hpp"
#include "lab/stationary.hpp"

using namespace dpinfer::lab;

namespace {

constexpr double kRate = 0.6;
constexpr double kNoise = 1.7;
constexpr double kSampleRate = 0.3;

// Positive definite: a diagonal that outweighs its small off-diagonal elements.
std::vector<double> hessians(std::size_t count, std::size_t n) {
  std::vector<double> values(count * n * n);
  for (std::size_t s = 0; s < count; ++s) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const auto apart = static_cast<double>(i > j ? i - j : j - i);
        const double own = 1.0 + 0.1 * static_cast<double>(s % 5) + 0.02 * static_cast<double>(i);
        values[(s * n + i) * n + j] = i == j ? own : 0.2 * std::cos(apart) / static_cast<double>(n);
      }
    }
  }
  return values;
}

struct Case {
  std::size_t count;
  std::size_t n;
  bool discrete;
  bool equal;      // learning rates
  bool symmetric;  // Hessians
};

double rate_of(const Case& one, std::size_t i) {
  return one.equal ? kRate : kRate / (1.0 + 0.1 * static_cast<double>(i));
}

std::vector<double> hessians(const Case& one) {
  std::vector<double> values = hessians(one.count, one.n);
  for (std::size_t s = 0; !one.symmetric && s < one.count; ++s) {
    for (std::size_t i = 1; i < one.n; ++i) values[(s * one.n + i) * one.n + i - 1] += 0.1;
  }
  return values;
}

// Largest element of M V + V M' - M V M' - D.
double residual(const double* a, const double* v, const Case& one) {
  const std::size_t n = one.n;
  std::vector<double> moved(n * n);
  double worst = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double step = kSampleRate * rate_of(one, i);
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < n; ++k) moved[i * n + j] += step * a[i * n + k] * v[k * n + j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const double step = rate_of(one, j);
      double total = moved[i * n + j] + moved[j * n + i] - (i == j ? step * step * kNoise * kNoise : 0.0);
      for (std::size_t k = 0; one.discrete && k < n; ++k) total -= moved[i * n + k] * kSampleRate * step * a[j * n + k];
      worst = std::fmax(worst, std::fabs(total));
    }
  }
  return worst;
}

struct Solved {
  std::vector<double> covariance;
  std::vector<StationaryStatus> status;
};

Solved solve(const StationaryKernels& kernels, const std::vector<double>& a, const Case& one, int threads) {
  std::vector<double> rate;
  for (std::size_t i = 0; i < one.n; ++i) rate.push_back(rate_of(one, i));
  const std::vector<double> noise(one.n, kNoise);
  const StationaryBatch batch{a, rate, noise, kSampleRate, one.count, one.n, one.discrete};
  Solved result{std::vector<double>(a.size()), std::vector<StationaryStatus>(one.count)};
  const auto solver = one.symmetric ? &stationary_symmetric : &stationary_general;
  CHECK(solver(Lapack{}, kernels, batch, threads, result.covariance, result.status) == StationaryStatus::kOk);
  return result;
}

void the_equation_holds(const Case& one) {
  const std::vector<double> a = hessians(one);
  const Solved first = solve(*stationary_kernels("portable"), a, one, 1);
  for (std::size_t s = 0; s < one.count; ++s) {
    const std::size_t place = s * one.n * one.n;
    CHECK(first.status[s] == StationaryStatus::kOk);
    CHECK(residual(a.data() + place, first.covariance.data() + place, one) < 1e-12);
  }
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const StationaryKernels* kernels = stationary_kernels(name);
    for (const int threads : {1, 3}) {
      if (kernels != nullptr) CHECK(solve(*kernels, a, one, threads).covariance == first.covariance);
    }
  }
}

void the_equation_holds() {
  for (const bool discrete : {true, false}) {
    for (const std::size_t n : {1U, 3U, 8U, 9U, 24U}) {
      for (const std::size_t count : {1U, 8U, 17U}) {
        the_equation_holds({count, n, discrete, true, true});
      }
      for (const std::size_t count : {1U, 9U}) {
        the_equation_holds({count, n, discrete, false, true});
        the_equation_holds({count, n, discrete, true, false});
        the_equation_holds({count, n, discrete, false, false});
      }
    }
  }
}

void instability_is_told_per_matrix() {
  const std::size_t n = 5;
  std::vector<double> a = hessians(10, n);
  a[3 * n * n] = -0.5;                         // not positive definite
  a[6 * n * n] = 2.5 / (kSampleRate * kRate);  // beyond the largest stable curvature
  for (const bool discrete : {true, false}) {
    const Solved solved = solve(*stationary_kernels("portable"), a, {10, n, discrete, true, true}, 1);
    for (std::size_t s = 0; s < 10; ++s) {
      const bool stable = s != 3 && (s != 6 || !discrete);
      CHECK((solved.status[s] == StationaryStatus::kOk) == stable);
    }
  }
}

void diagonals_are_the_closed_form() {
  const std::vector<double> a = {2.0, 0.5, -1.0, 3.0};
  const std::vector<double> rate = {0.1, 0.4};
  const std::vector<double> noise = {1.0, 2.0};
  std::vector<double> out(4);
  std::vector<StationaryStatus> status(2);
  stationary_diagonal({a, rate, noise, 0.5, 2, 2, true}, 1, out, status);
  CHECK(status[0] == StationaryStatus::kOk && status[1] == StationaryStatus::kUnstable);
  CHECK(std::fabs(out[0] - 0.01 / (0.1 * 1.9)) < 1e-15);
  CHECK(std::fabs(out[1] - 0.64 / (0.1 * 1.9)) < 1e-14);
}

}  // namespace

int main() {
  the_equation_holds();
  instability_is_told_per_matrix();
  diagonals_are_the_closed_form();
  return check_result();
}

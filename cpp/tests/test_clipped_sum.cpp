// The clipped lattice sum: sensitivity, independence of threads and variants, records that are not finite.
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "mechanism/rows/step_session.hpp"

using namespace dpinfer;

namespace {

struct Data {
  int n_rows;
  int n_features;
  std::vector<double> x;
  std::vector<double> y;
};

Data make_data(int n_rows, int n_features, double scale, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Data data{n_rows, n_features, {}, {}};
  for (int i = 0; i < n_rows * n_features; ++i) data.x.push_back(scale * normal(engine));
  for (int i = 0; i < n_rows; ++i) data.y.push_back(normal(engine) > 0.0 ? 1.0 : 0.0);
  return data;
}

std::vector<std::int64_t> sum_of(const KernelTable& kernels, const Data& data, Likelihood likelihood, bool draws,
                                 int n_threads, double max_norm, double shift = 0.001) {
  const Records records{data.x.data(), data.y.data(), data.n_rows, data.n_features, false, true};
  StepSession session(kernels, records, likelihood, false, 0.5, max_norm, RandomKey{{1, 2, 3, 4, 5, 6, 7, 8}},
                      n_threads);
  const auto n = static_cast<std::size_t>(session.length());
  const auto n_coef = static_cast<std::size_t>(session.n_coef());
  std::vector<double> scale(n, 1.3);
  std::vector<double> offset(n, shift);
  session.set_scales(scale, offset);
  std::vector<double> loc(n_coef, 0.1);
  std::vector<double> variance(n_coef, 0.04);
  if (draws) {
    std::vector<double> theta(3 * n_coef, 0.2);
    std::vector<double> standard(3 * n_coef, -0.7);
    std::vector<double> dispersion(9, 1.5);
    session.set_draws(3, theta, standard, dispersion);
  } else {
    const std::vector<double> nodes{-1.0, 1.0};
    const std::vector<double> weights{0.5, 0.5};
    const std::vector<double> moments{2.0, -1.0, 0.5, 0.3, 0.2};
    session.set_quadrature(loc, variance, nodes, weights, moments);
  }
  std::vector<std::int64_t> sum(n);
  session.clipped_sum(11, sum);
  return sum;
}

// Sessions share nothing: many threads, each with its own, give what one gives.
void sessions_at_once() {
  const Data data = make_data(3000, 9, 1.0, 3);
  const KernelTable& kernels = *kernel_table();
  const auto alone = sum_of(kernels, data, Likelihood::gaussian, false, 1, 1.0, 0.0);
  std::vector<std::vector<std::int64_t>> sums(4);
  std::vector<std::thread> threads;
  threads.reserve(sums.size());
  for (auto& sum : sums) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        sum = sum_of(kernels, data, Likelihood::gaussian, false, 1, 1.0, 0.0);
        if (sum != alone) return;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& sum : sums) CHECK(sum == alone);
}

}  // namespace

int main() {
  sessions_at_once();
  const double max_norm = 1.7;
  const double bound = max_norm / Lattice::from_max_norm(max_norm).step;
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    for (const Likelihood likelihood :
         {Likelihood::logistic, Likelihood::probit, Likelihood::gaussian, Likelihood::poisson}) {
      for (const bool draws : {false, true}) {
        for (const int n_features : {1, 7, 8, 63}) {
          // More than one block of rows where threads share them.
          const Data data = make_data(n_features == 8 ? 2100 : 300, n_features, 1.0, 5);
          const auto reference = sum_of(*kernel_table("portable"), data, likelihood, draws, 1, max_norm);
          const auto plain = sum_of(*kernel_table("portable"), data, likelihood, draws, 1, max_norm, 0.0);
          CHECK(plain != reference);
          for (const int threads : {1, 2, 3}) {
            CHECK(sum_of(*kernels, data, likelihood, draws, threads, max_norm) == reference);
            CHECK(sum_of(*kernels, data, likelihood, draws, threads, max_norm, 0.0) == plain);
          }
          // Replacing one record by a blank one moves the sum by at most two clipping norms; a sampled record that
          // becomes NaN moves it by at most one, to what it would be without that record.
          Data changed = data;
          std::int64_t moved = 0;
          for (int row = 0; row < 3; ++row) {
            changed = data;
            for (const double extreme :
                 {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e308}) {
              changed.x[static_cast<std::size_t>(row) * static_cast<std::size_t>(n_features)] = extreme;
              const auto without = sum_of(*kernels, changed, likelihood, draws, 2, max_norm);
              long double square = 0.0L;
              for (std::size_t j = 0; j < without.size(); ++j) {
                const auto difference = static_cast<long double>(without[j] - reference[j]);
                square += difference * difference;
              }
              CHECK(std::sqrt(square) <= static_cast<long double>(bound) * (extreme == 1e308 ? 2.0L : 1.0L));
              moved += square > 0.0L ? 1 : 0;
            }
          }
          CHECK(moved > 0);
        }
      }
    }
    // One huge record: its contribution alone keeps to the bound, and comes close to it.
    const Data one = make_data(1, 40, 1e6, 9);
    int sampled = 0;
    for (const Likelihood likelihood : {Likelihood::logistic, Likelihood::poisson}) {
      const auto sum = sum_of(*kernels, one, likelihood, false, 1, max_norm);
      long double square = 0.0L;
      for (const std::int64_t k : sum) square += static_cast<long double>(k) * static_cast<long double>(k);
      CHECK(std::sqrt(square) <= static_cast<long double>(bound));
      if (square > 0.0L) {
        CHECK(std::sqrt(square) > 0.999L * static_cast<long double>(bound));
        ++sampled;
      }
    }
    CHECK(sampled == 0 || sampled == 2);
  }
  return check_result();
}

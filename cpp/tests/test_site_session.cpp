// Site sessions: awkward sizes, wild records, every sampling; the numbers themselves are checked from Python.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "mechanism/rows/site_session.hpp"
#include "mechanism/small_matrix.hpp"

using namespace dpinfer;

namespace {

constexpr RandomKey kKey{{1, 2, 3, 4, 5, 6, 7, 8}};

std::vector<double> identities(int blocks, int d, double scale) {
  const auto width = static_cast<std::size_t>(d);
  const auto rows = static_cast<std::size_t>(blocks) * width;
  std::vector<double> out(rows * width, 0.0);
  for (std::size_t row = 0; row < rows; ++row) out[row * width + row % width] = scale;
  return out;
}

std::vector<double> normals(int n, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> out(static_cast<std::size_t>(n));
  for (double& value : out) value = normal(engine);
  return out;
}

void run(SiteSession& session) {
  const auto blocks = session.n_blocks();
  const auto d = session.width();
  const auto length = static_cast<std::size_t>(session.length());
  const auto loc = normals(blocks * d, 3);
  const auto cov = identities(blocks, d, 0.1);
  const std::vector<double> neutral(length, 0.25);
  CHECK(session.set_state({loc, cov, loc, neutral, 0.3}));
  std::vector<double> noisy(length);
  session.poisson_sum(0, 0.5, 1.0, noisy);
  for (std::uint64_t step = 1; step < 5; ++step) {
    session.uniform_sum(step, 1.0, noisy);
    session.permuted_sum(step, 1.0, noisy);
  }
  for (const double value : noisy) CHECK(std::isfinite(value));
  std::vector<std::int64_t> rows(static_cast<std::size_t>(session.n_rows()));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  std::vector<std::int64_t> listed(length);
  std::vector<std::int64_t> sampled(length);
  session.clipped_sum(rows, listed);
  session.clipped_poisson_sum(0, 1.0, sampled);
  CHECK(listed == sampled);
  std::vector<double> plain(length);
  session.plain_sum(1.0, plain);
  for (std::size_t j = 0; j < length; ++j) {
    CHECK(std::abs(plain[j] - static_cast<double>(listed[j]) * session.lattice_step()) < 1e-4);
  }
  std::vector<double> sites(rows.size() * length);
  session.contributions(rows, sites);
  for (const double value : sites) CHECK(std::isfinite(value));
}

}  // namespace

int main() {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const KernelTable& kernels = *kernel_table("portable");
  for (const auto& [blocks, d, n] : {std::tuple{1, 1, 1}, {3, 2, 7}, {2, 5, 40}}) {
    auto points = normals(n * d, 1);
    points[0] = 1e308;
    if (n > 1) points[static_cast<std::size_t>(2 * d - 1)] = nan;
    if (n > 2) points[static_cast<std::size_t>(3 * d - 1)] = -inf;
    const std::vector<double> log_weights(static_cast<std::size_t>(blocks), -0.5);
    const auto covariances = identities(blocks, d, 0.4);
    for (const auto kind : {MixtureContribution::site, MixtureContribution::moments}) {
      SiteSession session(kernels, std::make_unique<MixtureSites>(kind, points, log_weights, covariances, d), n, 1.0,
                          kKey, 2);
      run(session);
    }
    const std::vector<double> nodes{-1.0, 1.0};
    const std::vector<double> weights{0.5, 0.5};
    const std::vector<double> response(static_cast<std::size_t>(n), 1.0);
    for (const auto likelihood : {BinaryLikelihood::probit, BinaryLikelihood::logistic}) {
      for (const bool intercept : {false, true}) {
        SiteSession session(kernels,
                            std::make_unique<BinarySites>(points, response, d, intercept, likelihood, nodes, weights),
                            n, 1.0, kKey, 1);
        run(session);
      }
    }
  }

  // Small matrices: a factor that fails, a system that is singular, an inverse.
  std::vector<double> matrix{4.0, 2.0, 2.0, 3.0};
  CHECK(cholesky(matrix.data(), 2));
  std::vector<double> inverse(4);
  inverse_from_cholesky(matrix.data(), 2, inverse.data());
  CHECK(std::abs(inverse[0] - 0.375) < 1e-15 && std::abs(inverse[1] + 0.25) < 1e-15);
  std::vector<double> indefinite{1.0, 2.0, 2.0, 1.0};
  CHECK(!cholesky(indefinite.data(), 2));
  std::vector<double> swapped{0.0, 1.0, 1.0, 0.0};
  std::vector<double> right{3.0, 5.0};
  CHECK(solve(swapped.data(), right.data(), 2, 1) && right[0] == 5.0 && right[1] == 3.0);
  std::vector<double> singular{1.0, 1.0, 1.0, 1.0};
  CHECK(!solve(singular.data(), right.data(), 2, 1));
  return check_result();
}

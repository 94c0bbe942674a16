// Runs in lockstep, with the threads of a GPU run on the host, against runs one by one: the same bits.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "check.hpp"
#include "lab/study/lockstep.hpp"

using namespace dpinfer;
using namespace dpinfer::study;

namespace {

constexpr std::size_t kRuns = 3;
constexpr std::int64_t kSteps = 4;
constexpr std::array<std::int64_t, 3> kBoundaries{0, 1, kSteps};
constexpr std::array<double, 3> kNodes{-1.7320508075688772, 0.0, 1.7320508075688772};
constexpr std::array<double, 3> kWeights{1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0};

struct Outputs {
  std::size_t d;
  std::vector<double> blocks, side, path, reference, final_params, trace;
  std::array<bool, kRuns> finite{};

  explicit Outputs(std::size_t d_)
      : d(d_),
        blocks(kRuns * 2 * kBlockFields * d),
        side(kRuns * 2 * kSideFields * d / 2),
        path(kRuns * 2 * d),
        reference(kRuns * d),
        final_params(kRuns * d),
        trace(kRuns * kSteps * 3 * d) {}
  std::vector<RunOutput> parts() {
    const auto part = [](std::vector<double>& all, std::size_t run) {
      const std::size_t length = all.size() / kRuns;
      return std::span<double>(all).subspan(run * length, length);
    };
    std::vector<RunOutput> found;
    for (std::size_t i = 0; i < kRuns; ++i) {
      found.push_back(
          {part(blocks, i), part(side, i), part(path, i), part(reference, i), part(final_params, i), part(trace, i)});
    }
    return found;
  }
  bool operator==(const Outputs&) const = default;
};

struct Problem {
  bool gaussian, intercept;
  int n_features;
  std::int64_t n_rows;
  std::vector<double> features, response, ones, schedule, start;
  GlmModel model;
  std::vector<RandomKey> keys;

  Problem(bool gaussian_, bool intercept_, int n_features_, std::int64_t n_rows_, double learning_rate)
      : gaussian(gaussian_), intercept(intercept_), n_features(n_features_), n_rows(n_rows_) {
    std::mt19937 engine(7);
    std::normal_distribution<double> normal;
    const auto rows = static_cast<std::size_t>(n_rows) * kRuns;
    for (std::size_t i = 0; i < rows * static_cast<std::size_t>(n_features); ++i) features.push_back(normal(engine));
    for (std::size_t i = 0; i < rows; ++i) response.push_back(gaussian ? normal(engine) : (i % 3 == 0 ? 1.0 : 0.0));
    features.front() = std::numeric_limits<double>::quiet_NaN();
    features.back() = 1e200;
    const int n_coef = n_features + (intercept ? 1 : 0);
    model = {gaussian, n_coef, 2.0, 20.0, 0.5, std::vector<double>(static_cast<std::size_t>(n_coef), 1.0)};
    const auto n = static_cast<std::size_t>(n_coef + (gaussian ? 1 : 0));
    ones.assign(2 * n, 1.0);
    schedule.assign(kSteps, learning_rate);
    for (std::size_t j = 0; j < 2 * n; ++j) start.push_back(j < n ? 0.1 * static_cast<double>(j) : -3.0);
    for (std::uint32_t i = 0; i < kRuns; ++i) keys.push_back({{i, 2, 3, 4, 5, 6, 7, 8}});
  }
  RunSettings settings(double rate, bool fisher) const {
    return {kSteps, n_rows, rate,     0.7,   5.0,        GradientKind::quadrature, 1, false, fisher, 0.5, 1.0,
            ones,   ones,   schedule, start, kBoundaries};
  }
  std::vector<std::unique_ptr<GlmTarget>> targets(const RunSettings& settings) const {
    std::vector<std::unique_ptr<GlmTarget>> found;
    for (std::size_t i = 0; i < kRuns; ++i) {
      const std::size_t row = i * static_cast<std::size_t>(n_rows);
      const Records records{features.data() + row * static_cast<std::size_t>(n_features),
                            response.data() + row,
                            n_rows,
                            n_features,
                            false,
                            intercept};
      found.push_back(std::make_unique<GlmTarget>(model, records, settings.kind, kNodes, kWeights, *kernel_table(),
                                                  settings.sample_rate, settings.max_grad_norm, keys[i]));
    }
    return found;
  }
  Outputs one_by_one(const RunSettings& settings) const {
    Outputs out(start.size());
    const auto runs = targets(settings);
    const auto parts = out.parts();
    for (std::size_t i = 0; i < kRuns; ++i) {
      out.finite[i] = simulated_run(settings, *runs[i], *kernel_table(), keys[i], parts[i]);
    }
    return out;
  }
  Outputs in_lockstep(const RunSettings& settings) const {
    Outputs out(start.size());
    const auto runs = targets(settings);
    std::vector<GlmTarget*> lent;
    for (const auto& run : runs) lent.push_back(run.get());
    const DeviceRunsShape shape{kRuns,
                                n_rows,
                                n_features,
                                intercept,
                                gaussian ? Likelihood::gaussian : Likelihood::logistic,
                                lent[0]->task().clip_norm,
                                lent[0]->threshold(),
                                kNodes,
                                kWeights};
    lockstep_runs(settings, lent, *kernel_table(), keys, out.parts(), shape, features.data(), response.data(), 2,
                  out.finite.data());
    return out;
  }
};

void check_equal(const Problem& problem, const RunSettings& settings) {
  const Outputs one = problem.one_by_one(settings);
  CHECK(one == problem.in_lockstep(settings));
  for (const bool found : one.finite) CHECK(found);
  if (problem.n_rows < 1000) return;
  // Power: other records.
  Problem other = problem;
  for (double& y : other.response) y = 1.0 - y;
  CHECK(!(one == other.in_lockstep(settings)));
}

}  // namespace

int main() {
  for (const bool gaussian : {true, false}) {
    for (const std::int64_t n_rows : {1, 63, 1100}) {
      const Problem problem(gaussian, n_rows != 63, n_rows == 1100 ? 11 : 3, n_rows, 1e-3);
      for (const double rate : {0.1, 1.0}) {
        for (const bool fisher : {true, false}) check_equal(problem, problem.settings(rate, fisher));
      }
    }
  }
  const Problem long_one(true, true, 2, 8300, 1e-3);  // more rows than are listed at a time
  check_equal(long_one, long_one.settings(0.3, true));
  // Steps that leave the finite numbers.
  const Problem wild(true, true, 4, 100, 1e300);
  const RunSettings settings = wild.settings(0.5, false);
  const Outputs one = wild.one_by_one(settings);
  const Outputs other = wild.in_lockstep(settings);
  for (std::size_t i = 0; i < kRuns; ++i) {
    CHECK(!one.finite[i]);
    CHECK(!other.finite[i]);
  }
  RunSettings refused = settings;
  CHECK(runs_fit_device(refused, kMostDeviceCoef));
  CHECK(!runs_fit_device(refused, kMostDeviceCoef + 1));
  refused.per_example = true;
  CHECK(!runs_fit_device(refused, 1));
  return check_result();
}

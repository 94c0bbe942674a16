// Counts of draws against a direct count, for every instruction set, awkward lengths, ties and thread counts.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "lab/tarp.hpp"

using namespace dpinfer::lab;

namespace {

struct Problem {
  std::size_t n_draws, n_sims, n_dims, repeats;
  std::vector<double> draws, thetas, references, inverse_scales;
};

// Coarse numbers make ties; fine ones make every rounding matter.
Problem make_problem(std::size_t n_draws, std::size_t n_sims, std::size_t n_dims, std::size_t repeats, bool coarse) {
  std::mt19937 engine(static_cast<std::uint32_t>(31 * n_draws + n_sims + n_dims));
  std::normal_distribution<double> normal;
  const auto numbers = [&](std::size_t count) {
    std::vector<double> values(count);
    // Rounded to single precision, so that both kinds of draws hold the same numbers.
    for (double& value : values) value = coarse ? std::round(normal(engine)) : static_cast<float>(normal(engine));
    return values;
  };
  const std::size_t row = n_sims * n_dims;
  Problem problem{n_draws,     n_sims, n_dims, repeats, numbers(n_draws * row), numbers(row), numbers(repeats * row),
                  numbers(row)};
  for (double& scale : problem.inverse_scales) scale = coarse ? 1.0 : 0.1 + scale * scale;
  return problem;
}

struct Result {
  std::vector<std::uint32_t> joint, marginal;
  bool operator==(const Result&) const = default;
};

Result direct(const Problem& p) {
  const std::size_t row = p.n_sims * p.n_dims;
  Result result{std::vector<std::uint32_t>(p.repeats * p.n_sims), std::vector<std::uint32_t>(p.repeats * row)};
  for (std::size_t r = 0; r < p.repeats; ++r) {
    for (std::size_t k = 0; k < p.n_sims; ++k) {
      for (std::size_t s = 0; s < p.n_draws; ++s) {
        double draw_sum = 0.0;
        double truth_sum = 0.0;
        for (std::size_t j = 0; j < p.n_dims; ++j) {
          const std::size_t i = k * p.n_dims + j;
          const double draw = (p.draws[s * row + i] - p.references[r * row + i]) * p.inverse_scales[i];
          const double truth = (p.thetas[i] - p.references[r * row + i]) * p.inverse_scales[i];
          result.marginal[r * row + i] +=
              (draw * draw < truth * truth ? 1U : 0U) + (draw * draw <= truth * truth ? 1U : 0U);
          draw_sum += draw * draw;
          truth_sum += truth * truth;
        }
        result.joint[r * p.n_sims + k] += (draw_sum < truth_sum ? 1U : 0U) + (draw_sum <= truth_sum ? 1U : 0U);
      }
    }
  }
  return result;
}

TarpStatus run(const TarpKernels& kernels, const Problem& p, const Draws& draws, int threads, Result& result) {
  result.joint.assign(p.repeats * p.n_sims, 77);
  result.marginal.assign(p.repeats * p.n_sims * p.n_dims, 77);
  const TarpQuestion question{p.thetas, p.references, p.inverse_scales};
  return tarp_counts(kernels, {draws, p.n_draws, p.n_sims, p.n_dims}, question, threads,
                     {result.joint, result.marginal});
}

void counts_are_exact(const TarpKernels& kernels) {
  for (const std::size_t n_draws : {1U, 7U, 8U, 9U, 15U, 16U, 17U, 33U, 64U}) {
    for (const std::size_t n_dims : {1U, 3U, 8U, 13U}) {
      for (const bool coarse : {false, true}) {
        const Problem problem = make_problem(n_draws, n_dims == 1 ? 301 : 23, n_dims, 2, coarse);
        const std::vector<float> narrow(problem.draws.begin(), problem.draws.end());
        const Result wanted = direct(problem);
        Result result;
        CHECK(run(kernels, problem, std::span<const double>(problem.draws), 1, result) == TarpStatus::kOk);
        CHECK(result == wanted);
        CHECK(run(kernels, problem, std::span<const float>(narrow), 1, result) == TarpStatus::kOk);
        CHECK(result == wanted);
      }
    }
  }
}

void threads_do_not_matter(const TarpKernels& kernels) {
  const Problem problem = make_problem(300, 171, 5, 3, false);
  const std::span<const double> draws(problem.draws);
  const TarpView view{draws, problem.n_draws, problem.n_sims, problem.n_dims};
  const std::size_t row = problem.n_sims * problem.n_dims;
  Result first;
  CHECK(run(kernels, problem, draws, 1, first) == TarpStatus::kOk);
  std::vector<double> mean(row), squares(row);
  CHECK(draw_moments(kernels, view, 1, mean, squares) == TarpStatus::kOk);
  double sum = 0.0;
  for (std::size_t s = 0; s < problem.n_draws; ++s) sum += problem.draws[s * row + 4];
  CHECK(std::abs(mean[4] - sum / 300.0) < 1e-13);
  for (const int threads : {2, 3, 7}) {
    Result other;
    CHECK(run(kernels, problem, draws, threads, other) == TarpStatus::kOk);
    CHECK(other == first);
    std::vector<double> again(row), spread(row);
    CHECK(draw_moments(kernels, view, threads, again, spread) == TarpStatus::kOk);
    CHECK(again == mean && spread == squares);
  }
}

void what_is_not_finite_is_reported(const TarpKernels& kernels) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    for (const std::size_t place : {0U, 50U, 37U * 6U - 1U}) {
      Problem problem = make_problem(37, 3, 2, 1, false);
      problem.draws[place] = bad;
      Result result;
      const std::span<const double> draws(problem.draws);
      CHECK(run(kernels, problem, draws, 1, result) == TarpStatus::kNotFinite);
      std::vector<double> mean(6), squares(6);
      CHECK(draw_moments(kernels, {draws, 37, 3, 2}, 1, mean, squares) == TarpStatus::kNotFinite);
    }
    Problem problem = make_problem(37, 3, 2, 1, false);
    problem.references[3] = bad;
    Result result;
    CHECK(run(kernels, problem, std::span<const double>(problem.draws), 1, result) == TarpStatus::kNotFinite);
  }
}

void bad_shapes_are_reported(const TarpKernels& kernels) {
  const Problem good = make_problem(9, 3, 2, 2, false);
  const std::span<const double> draws(good.draws);
  Result result;
  CHECK(run(kernels, good, draws, 1, result) == TarpStatus::kOk);
  CHECK(run(kernels, good, draws.first(8), 1, result) == TarpStatus::kBadShape);
  CHECK(run(kernels, good, std::span<const float>(), 1, result) == TarpStatus::kBadShape);
  Problem problem = good;
  problem.thetas.pop_back();
  CHECK(run(kernels, problem, draws, 1, result) == TarpStatus::kBadShape);
  problem = good;
  problem.references.pop_back();
  CHECK(run(kernels, problem, draws, 1, result) == TarpStatus::kBadShape);
  problem.references.clear();
  CHECK(run(kernels, problem, draws, 1, result) == TarpStatus::kBadShape);
  problem = good;
  problem.repeats = 1;  // outputs for one, references for two
  CHECK(run(kernels, problem, draws, 1, result) == TarpStatus::kBadShape);
  std::vector<double> mean(6), squares(5);
  CHECK(draw_moments(kernels, {draws, 9, 3, 2}, 1, mean, squares) == TarpStatus::kBadShape);
}

}  // namespace

int main() {
  CHECK(tarp_kernels() != nullptr);
  CHECK(tarp_kernels("portable") != nullptr);
  CHECK(tarp_kernels("abacus") == nullptr);
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const TarpKernels* kernels = tarp_kernels(name);
    if (kernels == nullptr) continue;
    counts_are_exact(*kernels);
    threads_do_not_matter(*kernels);
    what_is_not_finite_is_reported(*kernels);
    bad_shapes_are_reported(*kernels);
  }
  return check_result();
}

// The quadrature: closed forms where there are any, proper results everywhere else, the same bits for any thread count.
#include <cmath>
#include <limits>
#include <vector>

#include "check.hpp"
#include "inference/collapsed_posterior.hpp"

using namespace dpinfer::inference;

namespace {

CollapsedProblem problem(double score, double extra_noise) {
  CollapsedProblem p{};
  p.count = 1000.0;
  p.slope_score = score;
  p.residual = 1000.0;
  p.mean_score = 0.5;
  p.optimum_scale = 10.0;
  p.hessian_unit = 2.0;
  p.wide_scale = 100.0 * std::hypot(score, 1.0);
  p.wide_power = 2.0;
  p.raw_scale = 1.0;
  p.extra_noise = extra_noise;
  return p;
}

double mean_of(const CollapsedNodes& nodes, const std::vector<double>& values) {
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += nodes.weight[i] * values[i];
  return sum;
}

void well_identified_slope_is_normal() {
  // A power of 2 cancels the factor 1 / beta that integrating the optimum leaves: beta ~ N(score, 1).
  const auto nodes = collapsed_posterior(problem(1000.0, 0.0));
  CHECK(nodes.status == PosteriorStatus::kOk);
  const double mean = mean_of(nodes, nodes.slope);
  std::vector<double> square(nodes.slope.size());
  for (std::size_t i = 0; i < square.size(); ++i) square[i] = (nodes.slope[i] - mean) * (nodes.slope[i] - mean);
  CHECK(std::abs(mean - 1000.0) < 1e-3);
  CHECK(std::abs(mean_of(nodes, square) - 1.0) < 1e-5);
}

void prior_alone_is_recovered() {
  // A prior on v so narrow that the trace cannot move it.
  auto p = problem(5.0, 0.0);
  p.wide_scale = 0.0;
  p.raw_loc = 6.0;
  p.raw_scale = 1e-4;
  const auto nodes = collapsed_posterior(p);
  CHECK(nodes.status == PosteriorStatus::kOk);
  const double a = std::log1p(std::exp(6.0));
  CHECK(std::abs(2.0 * mean_of(nodes, nodes.slope) / a - 1.0) < 1e-6);
}

void prior_below_zero_has_its_closed_form() {
  // A normal prior of v that is a million units wide: a third of it and more lies where a = softplus(v) is 0.
  for (const double scale : {1e2, 1e4, 1e6}) {
    for (const double score : {-2.0, 0.0, 1.6, 3.0}) {
      auto p = problem(score, 0.0);
      p.wide_scale = 0.0;
      p.wide_power = 1.0;
      p.hessian_unit = scale;
      p.raw_loc = std::abs(score) * scale;
      p.raw_scale = scale;
      const auto nodes = collapsed_posterior(p);
      CHECK(nodes.status == PosteriorStatus::kOk);
      // By brute force in x = v / scale, where the bend of softplus has a width of 1 / scale.
      const double step = 0.2 / scale > 1e-4 ? 1e-4 : 2e-5;
      double below = 0.0;
      double slope = 0.0;
      double total = 0.0;
      for (double x = std::abs(score) - 8.0; x < std::abs(score) + 8.0; x += step) {
        const double v = x * scale;
        const double beta = (v > 35.0 ? v : std::log1p(std::exp(v))) / scale;
        const double s = 1.0 + beta * beta * p.optimum_scale * p.optimum_scale;
        const double gap = beta - score;
        const double away = x - std::abs(score);
        const double weight =
            std::exp(-0.5 * (gap * gap + std::log(s) + p.mean_score * p.mean_score / s + away * away));
        total += weight;
        slope += weight * beta;
        if (v < -30.0) below += weight;
      }
      double zero = 0.0;
      for (std::size_t i = 0; i < nodes.slope.size(); ++i) {
        if (nodes.slope[i] * scale < 1e-13) zero += nodes.weight[i];
      }
      CHECK(std::abs(mean_of(nodes, nodes.slope) * total / slope - 1.0) < 1e-4);
      CHECK(std::abs(zero - below / total) < 0.02);
      CHECK(nodes.slope.size() < 2000);
    }
  }
}

void inflation_finds_the_residual_variance() {
  auto p = problem(50.0, 1.0);
  p.count = 1e6;
  p.residual = 3e6;
  const auto nodes = collapsed_posterior(p);
  CHECK(nodes.status == PosteriorStatus::kOk);
  CHECK(std::abs(mean_of(nodes, nodes.inflation) - 3.0) < 0.01);
}

void extremes_converge() {
  for (const double score : {-1e4, -30.0, -1.0, 0.0, 1e-12, 0.5, 3.0, 1e6}) {
    for (const double extra : {0.0, 1.0}) {
      for (const double count : {2.0, 15.0, 16.0, 100.0, 1e6}) {
        auto p = problem(score, extra);
        p.count = count;
        p.residual = count;
        const auto nodes = collapsed_posterior(p);
        CHECK(nodes.status == PosteriorStatus::kOk || (count < 20.0 && std::abs(score) > 1e3));
        double total = 0.0;
        for (const double weight : nodes.weight) total += weight;
        CHECK(nodes.weight.empty() || std::abs(total - 1.0) < 1e-12);
      }
    }
  }
}

void not_a_number_is_reported() {
  const auto nodes = collapsed_posterior(problem(std::numeric_limits<double>::quiet_NaN(), 1.0));
  CHECK(nodes.status == PosteriorStatus::kNotConverged);
  CHECK(nodes.weight.empty());
}

void threads_do_not_matter() {
  std::vector<CollapsedProblem> problems;
  problems.reserve(40);
  for (int i = 0; i < 40; ++i) problems.push_back(problem(0.7 * i - 2.0, i % 2));
  std::vector<CollapsedNodes> first(problems.size());
  CHECK(collapsed_posteriors(problems, 1, first) == PosteriorStatus::kOk);
  for (const int threads : {2, 3, 7}) {
    std::vector<CollapsedNodes> other(problems.size());
    CHECK(collapsed_posteriors(problems, threads, other) == PosteriorStatus::kOk);
    for (std::size_t j = 0; j < problems.size(); ++j) {
      CHECK(first[j].weight == other[j].weight && first[j].slope == other[j].slope && first[j].mean == other[j].mean);
    }
  }
}

void marginal_inflation_has_a_closed_form() {
  // Without residual: the integral of cosh(w)^-(n + 1) over the half line is B((n + 1)/2, 1/2) / 2.
  for (const double count : {1.0, 2.0, 10.0, 1000.0}) {
    const double half = 0.5 * (count + 1.0);
    const double log_beta = std::lgamma(half) + std::lgamma(0.5) - std::lgamma(half + 0.5);
    CHECK(std::abs(log_marginal_inflation(count, 0.0) - (log_beta - std::log(2.0))) < 1e-9 * (1.0 + count));
  }
}

}  // namespace

int main() {
  well_identified_slope_is_normal();
  prior_alone_is_recovered();
  prior_below_zero_has_its_closed_form();
  inflation_finds_the_residual_variance();
  extremes_converge();
  not_a_number_is_reported();
  threads_do_not_matter();
  marginal_inflation_has_a_closed_form();
  return check_result();
}

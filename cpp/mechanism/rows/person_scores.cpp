#include "mechanism/rows/person_scores.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/aligned.hpp"
#include "common/parallel.hpp"

namespace dpinfer {
namespace {

constexpr std::int64_t kEight = 8;
// Even steps of an effect, in the narrowest and the prior's standard deviation (Trefethen and Weideman 2014).  With
// them a posterior mean was off by at most 1e-4 of its standard deviation over people, for tau up to 2 and 2 to 100
// rows.
constexpr double kStep = 1.4, kReach = 5.5, kLargestStep = 1.2, kMostReach = 40.0, kMostNodes = 200.0;

// The covariance may be singular.
PersonPoint point_of(const PersonParameters& parameters) noexcept {
  const auto& [v0, between, v1] = parameters.covariance;
  const double first = std::sqrt(std::max(v0, 0.0));
  const double second = first > 0.0 ? between / first : 0.0;
  const double third = std::sqrt(std::max(v1 - second * second, 0.0));
  return {parameters.coef.data(), parameters.scale, {v0, between, v1}, {first, second, third}};
}

// Even steps as good as Gauss's nodes for a density that is as wide as that of a person with most rows at least.
std::vector<double> even_steps(double tau, std::int64_t max_rows) {
  const double narrowest = tau / std::sqrt(1.0 + 0.25 * tau * tau * static_cast<double>(max_rows));
  const double step = std::min(kStep * narrowest, kLargestStep), last = std::min(kReach * tau, kMostReach);
  const auto half = tau > 0.0 ? static_cast<std::int64_t>(std::min(last / step, kMostNodes)) + 1 : 0;
  std::vector<double> effects;
  for (std::int64_t k = -half; k <= half; ++k) effects.push_back(step * static_cast<double>(k));
  return effects;
}

// Persons by their number of rows: eight with equally many are scored together.
std::vector<std::int64_t> by_rows(const PersonModel& model, const double* features, std::int64_t n_persons) {
  const std::int64_t width = 1 + model.max_rows * model.n_columns;
  const auto rows_of = [&](std::int64_t person) {
    const double count = features[person * width];
    return static_cast<std::size_t>(count >= 1.0 ? std::min(count, static_cast<double>(model.max_rows)) : 0.0);
  };
  std::vector<std::int64_t> ends(static_cast<std::size_t>(model.max_rows) + 2),
      order(static_cast<std::size_t>(n_persons));
  for (std::int64_t i = 0; i < n_persons; ++i) ++ends[rows_of(i) + 1];
  for (std::size_t k = 1; k < ends.size(); ++k) ends[k] += ends[k - 1];
  for (std::int64_t i = 0; i < n_persons; ++i) order[static_cast<std::size_t>(ends[rows_of(i)]++)] = i;
  return order;
}

}  // namespace

void person_scores(const PersonKernelTable& kernels, const PersonModel& model, const PersonParameters& point,
                   const PersonParameters& truth, std::span<const double> transform, const double* features,
                   const double* responses, const std::uint64_t* seeds, std::uint64_t stream, std::int64_t n_draws,
                   std::int64_t n_persons, int n_threads, double* result) {
  const PersonPoint at = point_of(point), from = point_of(truth);
  const bool steps = model.family == PersonFamily::binomial && model.slope < 0;
  const std::vector<double> effects = steps ? even_steps(at.root[0], model.max_rows) : std::vector<double>();
  const std::vector<double>& nodes = steps ? effects : model.nodes;
  const PersonTask task{
      .family = model.family,
      .max_rows = static_cast<int>(model.max_rows),
      .n_columns = static_cast<int>(model.n_columns),
      .slope = static_cast<int>(model.slope),
      .n_scores = static_cast<int>(model.n_scores()),
      .n_out = static_cast<int>(static_cast<std::int64_t>(transform.size()) / model.n_scores()),
      .n_nodes = static_cast<int>(nodes.size()),
      .nodes = nodes.data(),
      .weights = steps ? nullptr : model.weights.data(),
      .point = at,
      .truth = from,
      .same = std::ranges::equal(point.coef, truth.coef),
      .transform = transform.data(),
      .first_draw = stream * static_cast<std::uint64_t>(n_draws),
      .n_draws = static_cast<int>(n_draws),
  };
  const std::vector<std::int64_t> order = by_rows(model, features, n_persons);
  const std::int64_t width = 1 + model.max_rows * model.n_columns, sets = n_draws + (responses == nullptr ? 0 : 1);
  const std::int64_t numbers = task.n_out * sets, groups = (n_persons + kEight - 1) / kEight;
#pragma omp parallel num_threads(resolve_threads(n_threads))
  {
    AlignedVector<double> scratch(static_cast<std::size_t>(task.scratch_length()));
    AlignedVector<double> found(static_cast<std::size_t>(kEight * numbers));
#pragma omp for schedule(static)
    for (std::int64_t group = 0; group < groups; ++group) {
      EightPersons eight{};
      std::int64_t persons[kEight];
      for (std::int64_t lane = 0; lane < kEight; ++lane) {
        const std::int64_t place = std::min(kEight * group + lane, n_persons - 1);
        const std::int64_t person = persons[lane] = order[static_cast<std::size_t>(place)];
        eight.features[lane] = features + person * width;
        eight.responses[lane] = responses == nullptr ? nullptr : responses + person * model.max_rows;
        for (std::int64_t word = 0; word < 2; ++word) eight.seeds[word][lane] = seeds[2 * person + word];
      }
      kernels.scores(task, eight, scratch.data(), found.data());
      for (std::int64_t number = 0; number < numbers; ++number) {
        for (std::int64_t lane = 0; lane < kEight; ++lane) {
          result[number * n_persons + persons[lane]] = found[static_cast<std::size_t>(kEight * number + lane)];
        }
      }
    }
  }
}

}  // namespace dpinfer

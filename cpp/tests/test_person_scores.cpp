// Scores of persons: the same bits in every variant, and whoever else is scored; zero, and no fault, for persons far
// out.
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "mechanism/rows/person_scores.hpp"

namespace {

using namespace dpinfer;

constexpr std::int64_t kPersons = 29, kRows = 7, kColumns = 5, kDraws = 4, kWidth = 1 + kRows * kColumns;

struct Records {
  std::vector<double> features, responses;
  std::vector<std::uint64_t> seeds;

  Records part(std::int64_t first, std::int64_t end) const {
    const auto cut = [&](const auto& all, std::int64_t width) {
      return std::remove_cvref_t<decltype(all)>(all.begin() + first * width, all.begin() + end * width);
    };
    return {cut(features, kWidth), cut(responses, kRows), cut(seeds, 2)};
  }
};

Records records(bool counts) {
  Records made;
  for (std::int64_t i = 0; i < kPersons; ++i) {
    const double who = static_cast<double>(i);
    made.features.push_back(static_cast<double>(i % (kRows + 2)));  // none, and too many
    for (std::int64_t k = 1; k < kWidth; ++k)
      made.features.push_back(std::sin(1.7 * who + 0.9 * static_cast<double>(k)));
    for (std::int64_t j = 0; j < kRows; ++j) made.responses.push_back(static_cast<double>((i + j) % (counts ? 60 : 2)));
    for (std::uint64_t word = 0; word < 2; ++word) made.seeds.push_back(977 * static_cast<std::uint64_t>(i) + word);
  }
  const auto person = [&](std::int64_t i) { return made.features.begin() + i * kWidth; };
  person(3)[1] = 1e300;
  person(11)[2] = std::numeric_limits<double>::quiet_NaN();
  person(14)[3] = -std::numeric_limits<double>::infinity();
  return made;
}

std::vector<double> scores(const PersonModel& model, const Records& of, const char* variant) {
  const std::vector<double> coef = {0.3, -0.2, 0.1, 0.4, -0.5, 1.2};
  const PersonParameters at{coef, 0.8, {0.7, 0.2, 0.3}};
  const PersonParameters from{{0.2, -0.2, 0.1, 0.4, -0.5, 3.0}, 1.1, {0.5, -0.1, 0.2}};
  const auto n = static_cast<std::size_t>(model.n_scores());
  std::vector<double> transform(n * n, 0.1);
  for (std::size_t k = 0; k < n; ++k) transform[k * n + k] = 1.0;
  const auto people = static_cast<std::int64_t>(of.seeds.size() / 2);
  std::vector<double> found(n * (kDraws + 1) * static_cast<std::size_t>(people));
  person_scores(*person_kernel_table(variant), model, at, from, transform, of.features.data(), of.responses.data(),
                of.seeds.data(), 5, kDraws, people, 2, found.data());
  return found;
}

void check(PersonFamily family, std::int64_t slope) {
  const bool counts = family == PersonFamily::poisson || family == PersonFamily::negative_binomial;
  const double root = std::sqrt(3.0);
  const PersonModel model{family, kRows, kColumns, slope, {-root, 0.0, root}, {1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0}};
  const Records all = records(counts);
  const std::vector<double> whole = scores(model, all, "portable");
  for (const char* variant : {"avx2", "avx512"}) {
    if (person_kernel_table(variant) != nullptr) CHECK(scores(model, all, variant) == whole);
  }
  const std::size_t sets = static_cast<std::size_t>(model.n_scores()) * (kDraws + 1);
  bool own = true, finite = true, moves = false;
  for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {4, 15}, {12, kPersons}}) {
    const std::vector<double> alone = scores(model, all.part(first, end), "portable");
    for (std::size_t set = 0; set < sets; ++set) {
      for (std::int64_t i = first; i < end; ++i) {
        const auto people = static_cast<std::size_t>(end - first), place = static_cast<std::size_t>(i);
        const double value = whole[set * kPersons + place];
        own = own && value == alone[set * people + place - static_cast<std::size_t>(first)];
        finite = finite && std::isfinite(value);
        moves = moves || value != 0.0;
      }
    }
  }
  CHECK(own);
  CHECK(finite);
  CHECK(moves);
}

}  // namespace

int main() {
  for (const auto family : {PersonFamily::gaussian, PersonFamily::binomial, PersonFamily::probit, PersonFamily::poisson,
                            PersonFamily::negative_binomial}) {
    for (const std::int64_t slope : {-1, 2}) check(family, slope);
  }
  return check_result();
}

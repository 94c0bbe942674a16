// The driver of private sums, over whatever a kernel writes: exact sensitivity, bits across threads, orders, parts and
// variants; sums without privacy; row draws.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "mechanism/rounded_gaussian.hpp"
#include "mechanism/row_draws.hpp"
#include "mechanism/rows/given_rows.hpp"
#include "mechanism/sum/contributions.hpp"
#include "mechanism/sum/partial_sum.hpp"
#include "mechanism/sum/private_sum.hpp"

using namespace dpinfer;

namespace {

constexpr RandomKey kKey{{1, 2, 3, 4, 5, 6, 7, 8}};

// Records are their own contributions.
struct Rows {
  int length;
  std::vector<double> values;

  Rows(int length_, int n_rows, double size, std::uint32_t seed) : length(length_) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < length * n_rows; ++i) values.push_back(size * normal(engine));
  }
  std::int64_t n_rows() const { return static_cast<std::int64_t>(values.size()) / length; }
  GivenRows<double> given() const { return {values.data(), length}; }
};

using Sum = std::vector<std::int64_t>;

Sum sampled(const KernelTable& kernels, const Rows& rows, double rate, double norm, int threads) {
  PrivateSum driver(kernels, norm, kKey, threads);
  Sum sum(static_cast<std::size_t>(rows.length), 5);  // what was there before must not matter
  const GivenRows<double> given = rows.given();
  driver.clipped(ClippedContributions(kernels, given, driver.lattice()), rows.n_rows(), 9,
                 SampleThreshold::from_rate(rate), sum);
  return sum;
}

Sum listed(const KernelTable& kernels, const Rows& rows, const std::vector<std::int64_t>& which, double norm,
           int threads) {
  PrivateSum driver(kernels, norm, kKey, threads);
  Sum sum(static_cast<std::size_t>(rows.length));
  const GivenRows<double> given = rows.given();
  driver.clipped(ClippedContributions(kernels, given, driver.lattice()), which, sum);
  return sum;
}

// The rows first ... last - 1 of a source, where `first` is a whole number of blocks.
void add_part(const KernelTable& kernels, const Rows& rows, std::int64_t first, std::int64_t last, double rate,
              int threads, PartialSum& sum) {
  const GivenRows<double> given(rows.values.data() + first * rows.length, rows.length);
  const ClippedContributions kernel(kernels, given, sum.lattice());
  SumWorkspace workspace;
  Sum part(static_cast<std::size_t>(rows.length));
  add_sampled_rows(kernels, kernel, {kKey, 9, SampleThreshold::from_rate(rate), last - first, first / kRowBlock},
                   threads, workspace, part);
  sum.merge(part);
}

// A coordinate is below 2^31, so that few of them stay exact; many are compared in long double.
long double square(std::span<const std::int64_t> values) {
  long double total = 0.0L;
  for (const std::int64_t value : values) total += static_cast<long double>(value) * static_cast<long double>(value);
  return total;
}

// Parts of a sum, in any order, on any threads, are the sum; noise is drawn once.
void parts_of_a_sum() {
  const KernelTable& kernels = *kernel_table();
  const Rows rows(11, 5000, 1.0, 6);
  using Range = std::pair<std::int64_t, std::int64_t>;
  const std::vector<Range> cuts[] = {
      {{0, 5000}}, {{1024, 2048}, {4096, 5000}, {0, 1024}, {2048, 4096}}, {{3072, 5000}, {3072, 3072}, {0, 3072}}};
  for (const double rate : {1.0, 0.4, 1e-3}) {
    const Sum whole = sampled(kernels, rows, rate, 1.7, 1);
    for (const auto& parts : cuts) {
      PartialSum sum(rows.length, 1.7);
      int threads = 1;
      for (const auto& [first, last] : parts) add_part(kernels, rows, first, last, rate, threads++, sum);
      CHECK(std::equal(whole.begin(), whole.end(), sum.integers().begin()));
      std::vector<double> noisy(whole.size());
      sum.noisy(kernels, kKey, 3, 2.0, noisy);
      Sum expected = whole;
      const double step = sum.lattice().step;
      add_rounded_gaussian(kernels, kKey, 3, 2.0 * 1.7 / step, rows.length, expected.data());
      for (std::size_t j = 0; j < noisy.size(); ++j) CHECK(noisy[j] == static_cast<double>(expected[j]) * step);
      CHECK(std::equal(whole.begin(), whole.end(), sum.integers().begin()));
    }
  }
  // A source that begins elsewhere is sampled elsewhere.
  PartialSum elsewhere(rows.length, 1.7);
  const GivenRows<double> given = rows.given();
  SumWorkspace workspace;
  Sum part(static_cast<std::size_t>(rows.length));
  add_sampled_rows(kernels, ClippedContributions(kernels, given, elsewhere.lattice()),
                   {kKey, 9, SampleThreshold::from_rate(0.4), 5000, 1}, 1, workspace, part);
  CHECK(part != sampled(kernels, rows, 0.4, 1.7, 1));
  // No sum over more rows than its integers hold.
  PartialSum full(1, 1.0);
  full.count_rows(std::int64_t{1} << 31);
  bool refused = false;
  try {
    full.count_rows(1);
  } catch (const std::length_error&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace

int main() {
  parts_of_a_sum();
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const KernelTable& portable = *kernel_table("portable");
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    for (const int length : {1, 7, 8, 9, 56, 65}) {
      const Rows rows(length, 2101, 1.0, 5);
      const auto reference = sampled(portable, rows, 0.4, 2.0, 1);
      for (const int threads : {1, 2, 3, 7}) CHECK(sampled(*kernels, rows, 0.4, 2.0, threads) == reference);

      // A record's own vector stays inside the ball, and saturates it; adding the record adds exactly that.
      for (const double norm : {1e-30, 1.0, 1.7, 9.9e29}) {
        const long double bound = static_cast<long double>(norm) / Lattice::from_max_norm(norm).step;
        for (const double size : {1e-20, 1.0, 1e20}) {
          const Rows few(length, 5, size * norm, 3);
          const auto own = listed(*kernels, few, {4}, norm, 1);
          CHECK(square(own) <= bound * bound);
          if (size > 1.0) CHECK(square(own) > 0.99999L * bound * bound);
          const auto all = listed(*kernels, few, {0, 1, 2, 3, 4}, norm, 3);
          const auto without = listed(*kernels, few, {3, 2, 1, 0}, norm, 2);
          for (std::size_t j = 0; j < own.size(); ++j) CHECK(all[j] - without[j] == own[j]);
        }
      }
      // What is not finite, or overflows, adds nothing.
      for (const double value : {nan, inf, -inf, 1e308}) {
        Rows wild(length, 2, 1.0, 3);
        wild.values[static_cast<std::size_t>(2 * length - 1)] = value;
        CHECK(square(listed(*kernels, wild, {1}, 1.7, 1)) == 0.0L);
      }
    }
  }

  // Plain sums: the same bits for any threads, clipped or not, close to a sum in any other order.
  const Rows rows(9, 1003, 1.0, 8);
  const GivenRows<double> given = rows.given();
  std::vector<double> first(9);
  plain_sum(portable, given, rows.n_rows(), inf, 1, first);
  for (const int threads : {2, 3, 7}) {
    std::vector<double> other(9);
    plain_sum(*kernel_table(), given, rows.n_rows(), inf, threads, other);
    CHECK(first == other);
  }
  double direct = 0.0;
  for (std::int64_t i = 0; i < rows.n_rows(); ++i) direct += rows.values[static_cast<std::size_t>(9 * i)];
  CHECK(std::abs(first[0] - direct) < 1e-10);
  std::vector<double> clipped(9);
  const std::vector<std::int64_t> third{2};
  plain_sum(portable, given, third, 0.5, 1, clipped);
  double norm = 0.0;
  for (const double value : clipped) norm += value * value;
  CHECK(std::abs(std::sqrt(norm) - 0.5) < 1e-14);

  // Row draws: orders are permutations, both are reproducible, and uniform rows fill their range evenly.
  const auto order = row_order(portable, kKey, 3, 1000);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) CHECK(sorted[i] == static_cast<std::int64_t>(i));
  CHECK(order == row_order(portable, kKey, 3, 1000));
  CHECK(order != row_order(portable, kKey, 4, 1000));
  std::vector<int> counts(7);
  for (std::uint64_t step = 0; step < 7000; ++step) {
    ++counts[static_cast<std::size_t>(uniform_row(portable, kKey, step, 7))];
  }
  double chi_square = 0.0;
  for (const int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  CHECK(chi_square < 38.3);  // six degrees of freedom, false-positive rate 1e-6
  return check_result();
}

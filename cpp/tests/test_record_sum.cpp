// Clipped lattice sums of whatever a kernel writes: exact sensitivity, bits across threads and variants, row draws.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "check.hpp"
#include "mechanism/record_sum.hpp"
#include "mechanism/row_draws.hpp"

using namespace dpinfer;

namespace {

constexpr RandomKey kKey{{1, 2, 3, 4, 5, 6, 7, 8}};

// Records are their own contributions.
class Rows final : public ContributionKernel {
 public:
  Rows(int length, int n_rows, double size, std::uint32_t seed) : length_(length) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < length * n_rows; ++i) values.push_back(size * normal(engine));
  }
  int length() const override { return length_; }
  int scratch_length() const override { return 1; }
  void contribution(std::int64_t i, double* scratch, double* out) const noexcept override {
    scratch[0] = 0.0;
    std::copy_n(values.begin() + i * length_, length_, out);
  }
  std::int64_t n_rows() const { return static_cast<std::int64_t>(values.size()) / length_; }

  std::vector<double> values;

 private:
  int length_;
};

std::vector<std::int64_t> sampled(const KernelTable& kernels, const Rows& rows, double rate, double norm, int threads) {
  RecordSumWorkspace workspace;
  std::vector<std::int64_t> sum(static_cast<std::size_t>(rows.length()));
  clipped_record_sum(kernels, rows, rows.n_rows(), Lattice::from_max_norm(norm),
                     {kKey, 9, SampleThreshold::from_rate(rate), threads}, workspace, sum.data());
  return sum;
}

std::vector<std::int64_t> listed(const KernelTable& kernels, const Rows& rows, std::vector<std::int64_t> which,
                                 double norm, int threads) {
  RecordSumWorkspace workspace;
  std::vector<std::int64_t> sum(static_cast<std::size_t>(rows.length()));
  clipped_listed_sum(kernels, rows, which, Lattice::from_max_norm(norm), threads, workspace, sum.data());
  return sum;
}

// A coordinate is below 2^31, so that few of them stay exact; many are compared in long double.
long double square(std::span<const std::int64_t> values) {
  long double total = 0.0L;
  for (const std::int64_t value : values) total += static_cast<long double>(value) * static_cast<long double>(value);
  return total;
}

}  // namespace

int main() {
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
  RecordSumWorkspace workspace;
  std::vector<double> first(9);
  plain_record_sum(rows, rows.n_rows(), inf, 1, workspace, first.data());
  for (const int threads : {2, 3, 7}) {
    std::vector<double> other(9);
    plain_record_sum(rows, rows.n_rows(), inf, threads, workspace, other.data());
    CHECK(first == other);
  }
  double direct = 0.0;
  for (std::int64_t i = 0; i < rows.n_rows(); ++i) direct += rows.values[static_cast<std::size_t>(9 * i)];
  CHECK(std::abs(first[0] - direct) < 1e-10);
  std::vector<double> clipped(9);
  const std::vector<std::int64_t> third{2};
  plain_listed_sum(rows, third, 0.5, 1, workspace, clipped.data());
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

// The clipped lattice sum of affine records: exact sensitivity, bits across threads and variants, wild statistics.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "check.hpp"
#include "mechanism/rows/affine_session.hpp"

using namespace dpinfer;

namespace {

constexpr RandomKey kKey{{1, 2, 3, 4, 5, 6, 7, 8}};

struct Problem {
  int length, n_statistics;
  std::vector<double> matrix, offset, statistics;

  Problem(int length_, int n_statistics_, int n_rows, double size, std::uint32_t seed)
      : length(length_), n_statistics(n_statistics_) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < length * n_statistics; ++i) matrix.push_back(size * normal(engine));
    for (int i = 0; i < length; ++i) offset.push_back(normal(engine));
    for (int i = 0; i < n_rows * n_statistics; ++i) statistics.push_back(normal(engine));
  }
  AffineSession session(const KernelTable& kernels, double rate, double max_norm, int n_threads) const {
    AffineSession session(kernels, statistics, static_cast<std::int64_t>(statistics.size()) / n_statistics,
                          n_statistics, length, rate, max_norm, kKey, n_threads);
    session.set_map(matrix, offset);
    return session;
  }
  std::vector<std::int64_t> sum(const KernelTable& kernels, double rate, double max_norm, int n_threads) const {
    std::vector<std::int64_t> out(static_cast<std::size_t>(length));
    session(kernels, rate, max_norm, n_threads).clipped_sum(11, out);
    return out;
  }
};

// Exact, or 2^63 where it is at least that: a coordinate is below 2^31.
std::uint64_t square(std::span<const std::int64_t> values) {
  std::uint64_t total = 0;
  for (const std::int64_t value : values) {
    CHECK(std::abs(value) < (std::int64_t{1} << 31));
    total = std::min(total + static_cast<std::uint64_t>(value * value), std::uint64_t{1} << 63U);
  }
  return total;
}

// floor((C / g)^2), exactly: C / g = high + low / 2^22 is below 2^31 and has at most 53 bits.
std::uint64_t bound(double max_norm) {
  const double ratio = max_norm / Lattice::from_max_norm(max_norm).step;
  const auto high = static_cast<std::uint64_t>(ratio);
  const auto low = static_cast<std::uint64_t>((ratio - std::floor(ratio)) * 0x1p22);
  return high * high + ((2 * high * low + ((low * low) >> 22U)) >> 22U);
}

}  // namespace

int main() {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> extremes{0.0,   -0.0,  5e-324, 1e-308, 1e-160, 1.0, -1.0, 1e154,
                                     1e155, 1e299, 1e300,  1e308,  -1e308, inf, -inf, nan};
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    for (const auto& [length, n_statistics] : {std::pair{1, 1}, {2, 1}, {4, 2}, {7, 3}, {64, 32}}) {
      // More than one block of rows, so that threads share them, and a last group that is not full.
      const Problem many(length, n_statistics, 2101, 1.0, 7);
      const auto reference = many.sum(*kernel_table("portable"), 0.5, 1.7, 1);
      for (const int threads : {1, 2, 3, 7}) CHECK(many.sum(*kernels, 0.5, 1.7, threads) == reference);

      for (const double max_norm : {1e-30, 1.0, 1.7, 9.9e29}) {
        for (const double size : {1e-20, 1.0, 1e20}) {
          const Problem problem(length, n_statistics, 1, size * max_norm, 3);
          const AffineSession session = problem.session(*kernels, 1.0, max_norm, 1);
          std::vector<double> record(static_cast<std::size_t>(n_statistics));
          std::vector<std::int64_t> gradient(static_cast<std::size_t>(length));
          for (std::size_t i = 0; i < extremes.size() * 4; ++i) {
            // Each extreme alone, and next to another one.
            record.assign(record.size(), i % 2 == 0 ? 0.5 : extremes[(7 * i) % extremes.size()]);
            record[i % record.size()] = extremes[i / 4];
            session.contribution(record, gradient);
            CHECK(square(gradient) <= bound(max_norm));
            if (!std::isfinite(extremes[i / 4])) CHECK(square(gradient) == 0);
          }
        }
      }
      // A record that saturates comes close to the bound: a smaller one would fail above.
      Problem large(length, n_statistics, 1, 1e6, 3);
      const auto alone = large.sum(*kernels, 1.0, 1.7, 1);
      CHECK(static_cast<double>(square(alone)) > 0.99999 * static_cast<double>(bound(1.7)));

      // Adding one record to others adds exactly its own vector; one that is not finite adds nothing.
      Problem some(length, n_statistics, 13, 1.0, 5);
      const auto before = some.sum(*kernels, 1.0, 1.7, 1);
      for (const double value : {0.3, 1e308, nan, inf}) {
        Problem more = some;
        more.statistics.insert(more.statistics.begin(), static_cast<std::size_t>(n_statistics), value);
        const auto after = more.sum(*kernels, 1.0, 1.7, 1);
        std::vector<std::int64_t> own(before.size());
        more.session(*kernels, 1.0, 1.7, 1)
            .contribution(std::span(more.statistics).first(static_cast<std::size_t>(n_statistics)), own);
        for (std::size_t j = 0; j < own.size(); ++j) CHECK(after[j] - before[j] == own[j]);
        CHECK(std::isfinite(value) || square(own) == 0);
      }
    }
  }
  return check_result();
}

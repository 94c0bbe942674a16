// Trace statistics against a direct two-pass computation in extended precision, and across thread counts.
#include <cmath>
#include <cstddef>
#include <vector>

#include "check.hpp"
#include "inference/trace_statistics.hpp"

using namespace dpinfer::inference;

namespace {

// A small linear congruential generator: the tests need numbers, not randomness.
class Numbers {
 public:
  double operator()() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11U) / 9007199254740992.0 - 0.5;
  }

 private:
  unsigned long long state_ = 12345;
};

std::vector<double> numbers(std::size_t count, double offset, double scale) {
  static Numbers next;
  std::vector<double> values(count);
  for (double& value : values) value = offset + scale * next();
  return values;
}

std::vector<double> run(const TraceView& trace, const std::vector<std::size_t>& edges, int threads) {
  std::vector<double> scratch(trace_scratch_size(edges, trace.coordinates));
  std::vector<double> out((edges.size() - 1) * kTraceFields * trace.coordinates);
  CHECK(trace_statistics(trace, edges, threads, scratch, out) == StatisticsStatus::kOk);
  return out;
}

void against_two_passes() {
  for (const std::size_t steps : {1U, 2U, 63U, 64U, 65U, 255U, 256U, 257U, 1000U}) {
    const std::size_t k = 3;
    const auto x = numbers(steps * k, 100.0, 1.0);
    const auto g = numbers(steps * k, -3.0, 20.0);
    const auto tau = numbers(steps * k, 1.0, 0.8);
    const std::vector<double> reference(tau.begin(), tau.begin() + k);
    const auto out = run({x, g, tau, reference, steps, k}, {0, steps}, 1);
    for (std::size_t j = 0; j < k; ++j) {
      long double weight = 0.0L;
      long double mx = 0.0L;
      long double mg = 0.0L;
      const auto w = [&](std::size_t t) {
        const long double ratio = static_cast<long double>(reference[j]) / tau[t * k + j];
        return ratio * ratio;
      };
      for (std::size_t t = 0; t < steps; ++t) {
        weight += w(t);
        mx += w(t) * x[t * k + j];
        mg += w(t) * g[t * k + j];
      }
      mx /= weight;
      mg /= weight;
      long double xg = 0.0L;
      for (std::size_t t = 0; t < steps; ++t) xg += w(t) * (x[t * k + j] - mx) * (g[t * k + j] - mg);
      CHECK(std::abs(out[kWeight * k + j] - static_cast<double>(weight)) <= 1e-12 * static_cast<double>(weight));
      CHECK(std::abs(out[kPositionMean * k + j] - static_cast<double>(mx)) <= 1e-11);
      CHECK(std::abs(out[kXG * k + j] - static_cast<double>(xg)) <= 1e-11 * static_cast<double>(steps) * 20.0);
    }
  }
}

void threads_do_not_matter() {
  const std::size_t steps = 9001;
  const std::size_t k = 17;
  const auto x = numbers(steps * k, 1.0, 1.0);
  const auto g = numbers(steps * k, 0.0, 1.0);
  const std::vector<double> tau(k, 0.5);
  const TraceView trace{x, g, tau, tau, steps, k};
  const auto first = run(trace, {0, 1000, steps}, 1);
  for (const int threads : {2, 3, 7}) CHECK(run(trace, {0, 1000, steps}, threads) == first);
}

void bad_shapes_are_reported() {
  const auto x = numbers(20, 0.0, 1.0);
  const std::vector<double> tau(2, 1.0);
  std::vector<double> scratch(100);
  std::vector<double> out(kTraceFields * 2);
  const TraceView trace{x, x, tau, tau, 10, 2};
  const auto status = [&](const TraceView& view, std::vector<std::size_t> edges) {
    return trace_statistics(view, edges, 1, scratch, out);
  };
  CHECK(status(trace, {0, 10}) == StatisticsStatus::kOk);
  CHECK(status(trace, {0}) == StatisticsStatus::kBadShape);
  CHECK(status(trace, {5, 5}) == StatisticsStatus::kBadShape);
  CHECK(status(trace, {0, 11}) == StatisticsStatus::kBadShape);
  CHECK(status({x, x, tau, tau, 9, 2}, {0, 9}) == StatisticsStatus::kBadShape);
  CHECK(status({x, x, std::span<const double>(tau).first(1), tau, 10, 2}, {0, 10}) == StatisticsStatus::kBadShape);
}

void gram_is_symmetric_and_exact_on_integers() {
  const std::vector<double> x{0.0, 1.0, 2.0, 3.0, 1.0, 5.0, 5.0, 3.0};  // (4, 2), means 2 and 3
  const std::vector<double> g{1.0, 2.0, 3.0, 6.0};                      // (4, 1), mean 3
  const std::vector<double> w(4, 1.0);
  for (const int threads : {1, 2}) {
    std::vector<double> mx(2), mg(1), xx(4), xg(2), gg(1);
    CHECK(gram_statistics(x, g, w, 2, 1, threads, {mx, mg, xx, xg, gg}) == StatisticsStatus::kOk);
    CHECK(mx[0] == 2.0 && mx[1] == 3.0 && mg[0] == 3.0);
    CHECK(xx[0] == 14.0 && xx[1] == 2.0 && xx[2] == 2.0 && xx[3] == 8.0);
    CHECK(xg[0] == 13.0 && xg[1] == 4.0 && gg[0] == 14.0);
    CHECK(gram_statistics(x, g, w, 3, 1, threads, {mx, mg, xx, xg, gg}) == StatisticsStatus::kBadShape);
  }
}

}  // namespace

int main() {
  against_two_passes();
  threads_do_not_matter();
  bad_shapes_are_reported();
  gram_is_symmetric_and_exact_on_integers();
  return check_result();
}

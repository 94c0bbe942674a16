// Scores and matrices of regressions: bits across threads, variants and batches, awkward lengths, one record's norm.
// Values are checked against NumPy in tests/unit/mechanism/test_regression_rows.py.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "mechanism/rows/regression_rows.hpp"
#include "tests/cuda/emulated_sum.hpp"

using namespace dpinfer;

namespace {

using Sum = std::vector<std::int64_t>;

struct Data {
  int n_features;
  std::vector<double> x, y, transform, loc, centre, slope;
  std::vector<double> edges{0.05, 0.2, 0.2, 0.5, 1.0, 2.0};

  // What is not zero of x, as sparse rows have it.
  std::vector<double> values;
  std::vector<std::int32_t> columns;
  std::vector<std::int64_t> starts{0};

  // Every number that `zeros` divides the place of is a zero.
  Data(int n_rows, int n_features_, double size, std::uint32_t seed = 4, int zeros = 1 << 30)
      : n_features(n_features_) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < n_rows * n_features; ++i) x.push_back((i + 1) % zeros == 0 ? 0.0 : size * normal(engine));
    for (int i = 0; i < n_rows * n_features; ++i) {
      if (x[static_cast<std::size_t>(i)] != 0.0) {
        values.push_back(x[static_cast<std::size_t>(i)]);
        columns.push_back(i % n_features);
      }
      if ((i + 1) % n_features == 0) starts.push_back(static_cast<std::int64_t>(values.size()));
    }
    for (int i = 0; i < n_rows; ++i) y.push_back(normal(engine) > 0.0 ? 1.0 : 0.0);
    const int n_coef = n_features + 1;
    for (int i = 0; i < n_coef * n_coef; ++i) transform.push_back(normal(engine) / std::sqrt(n_coef));
    for (int i = 0; i < n_coef; ++i) loc.push_back(0.3 * normal(engine));
    for (int i = 0; i < 50; ++i) {
      centre.push_back(0.1 * std::sin(i));
      slope.push_back(std::exp(-0.01 * i * i));
    }
  }
  std::int64_t n_rows() const { return static_cast<std::int64_t>(y.size()); }
};

struct Kind {
  RegressionOutput output;
  Likelihood link;
  bool has_table;
  bool is_derivative = false;
  bool is_weighted = false;
};

Records records_of(const Data& data, bool sparse = false) {
  Records records{data.x.data(), data.y.data(), data.n_rows(), data.n_features, false, true};
  if (sparse) {
    records.features = data.values.data();
    records.columns = data.columns.data();
    records.starts = data.starts.data();
  }
  return records;
}

RegressionPass pass_of(const Data& data, const Kind& kind, double bound = 1.5) {
  RegressionPass pass;
  pass.output = kind.output;
  pass.link = kind.link;
  pass.is_derivative = kind.is_derivative;
  pass.transform = data.transform;
  pass.n_directions = data.n_features + 1;
  pass.loc = data.loc;
  pass.bound = bound;
  pass.residual_bound = bound;
  pass.scale_weight = kind.output == RegressionOutput::scores && !kind.has_table ? 0.5 : 0.0;
  if (kind.is_weighted) pass.weight_bound = 0.8;
  if (kind.has_table) pass.table = {data.centre, data.slope, -3.0, 0.125};
  if (kind.output == RegressionOutput::score_sizes || kind.output == RegressionOutput::curvature_sizes) {
    pass.edges = data.edges;
  }
  return pass;
}

Sum sum_of(const KernelTable& kernels, const Data& data, const Kind& kind, double max_norm, int n_threads,
           const std::vector<std::int64_t>* rows = nullptr, double bound = 1.5, bool sparse = false,
           double rate = 0.6) {
  PrivateSum driver(kernels, max_norm, RandomKey{{1, 2, 3, 4, 5, 6, 7, 8}}, n_threads);
  const RegressionKernel kernel(kernels, records_of(data, sparse), pass_of(data, kind, bound), driver.lattice());
  Sum sum(static_cast<std::size_t>(kernel.length()));
  if (rows != nullptr) {
    driver.clipped(kernel, *rows, sum);
  } else {
    driver.clipped(kernel, data.n_rows(), 5, SampleThreshold::from_rate(rate), sum);
  }
  return sum;
}

long double square(const Sum& sum) {
  long double total = 0.0L;
  for (const std::int64_t k : sum) total += static_cast<long double>(k) * static_cast<long double>(k);
  return total;
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const RegressionOutput output :
       {RegressionOutput::moments, RegressionOutput::curvature, RegressionOutput::squares, RegressionOutput::scores}) {
    for (const Likelihood link :
         {Likelihood::logistic, Likelihood::probit, Likelihood::gaussian, Likelihood::poisson}) {
      all.push_back({output, link, false});
      if (link == Likelihood::poisson) all.push_back({output, link, true});
      if (link == Likelihood::probit) all.push_back({output, link, false, true});
      if (link == Likelihood::probit) all.push_back({output, link, false, true, true});
      if (link == Likelihood::logistic) all.push_back({output, link, false, false, true});
    }
  }
  return all;
}

}  // namespace

int main() {
  const KernelTable& portable = *kernel_table("portable");
  const double inf = std::numeric_limits<double>::infinity();
  for (const int n_features : {1, 7, 8, 23}) {
    const Data data(n_features == 7 ? 1100 : 43, n_features, 1.0);
    for (const Kind& kind : kinds()) {
      const Sum reference = sum_of(portable, data, kind, 1.7, 1);
      for (const char* name : {"portable", "avx2", "avx512"}) {
        const KernelTable* kernels = kernel_table(name);
        if (kernels == nullptr) continue;
        for (const int threads : {1, 2, 3, 7}) {
          if (threads > 1 && n_features != 7) break;  // one block of rows
          CHECK(sum_of(*kernels, data, kind, 1.7, threads) == reference);
        }
        // Rows one at a time, and in batches of another size and order, add up to the same.
        Sum total(reference.size());
        const std::vector<std::int64_t> chosen{11, 42, 3, 40, 5};
        for (const std::int64_t row : chosen) {
          const std::vector<std::int64_t> one{row};
          const Sum own = sum_of(*kernels, data, kind, 1.7, 1, &one);
          for (std::size_t j = 0; j < total.size(); ++j) total[j] += own[j];
        }
        CHECK(sum_of(*kernels, data, kind, 1.7, 2, &chosen) == total);
      }
    }
  }
  // Sparse rows have the bits of dense ones, whatever the instruction set.
  for (const int n_features : {1, 7, 15, 63, 70}) {
    const Data data(43, n_features, 1.0, 4, 3);
    // The same with a transform that has a number or two in each row.
    Data mostly_zeros(data);
    for (std::size_t i = 0; i < data.transform.size(); ++i) {
      const auto n_coef = static_cast<std::size_t>(n_features) + 1;
      if (i / n_coef != i % n_coef && (i / n_coef + 1) % n_coef != i % n_coef) mostly_zeros.transform[i] = 0.0;
    }
    for (const Kind& kind : kinds()) {
      const Sum dense = sum_of(portable, data, kind, 1.7, 1);
      const Sum few = sum_of(portable, mostly_zeros, kind, 1.7, 1);
      for (const char* name : {"portable", "avx2", "avx512"}) {
        const KernelTable* kernels = kernel_table(name);
        if (kernels == nullptr) continue;
        CHECK(sum_of(*kernels, data, kind, 1.7, 1, nullptr, 1.5, true) == dense);
        CHECK(sum_of(*kernels, mostly_zeros, kind, 1.7, 1, nullptr, 1.5, true) == few);
      }
    }
  }
  // A GPU's threads find the same bits, records of which no number is left among them.
  const Lattice lattice = Lattice::from_max_norm(1.7);
  for (const int n_features : {1, 7, 18}) {
    Data data(45, n_features, 1.0);
    data.x[3] = std::numeric_limits<double>::quiet_NaN();
    data.x[data.x.size() / 2] = 1e200;
    data.y[40] = inf;
    std::vector<float> narrow(data.x.begin(), data.x.end());
    Data rounded(data);
    rounded.x.assign(narrow.begin(), narrow.end());
    Records narrow_records = records_of(data);
    narrow_records.features = narrow.data();
    narrow_records.is_float32 = true;
    std::vector<Kind> all = kinds();
    for (const Likelihood link : {Likelihood::logistic, Likelihood::gaussian, Likelihood::poisson}) {
      all.push_back({RegressionOutput::score_sizes, link, false});
      all.push_back({RegressionOutput::curvature_sizes, link, false});
    }
    for (const Kind& kind : all) {
      const RegressionPass pass = pass_of(data, kind);
      const Sum want = sum_of(portable, data, kind, 1.7, 1, nullptr, 1.5, false, 1.0);
      CHECK(emulated_sum(records_of(data), pass, lattice, {1, 1, 32}) == want);
      CHECK(emulated_sum(records_of(data), pass, lattice, {3, 7, 5, ThreadOrder::at_once}) == want);
      CHECK(emulated_sum(records_of(data), pass, lattice, {64, 128, 1, ThreadOrder::backwards}) == want);
      const Sum narrow_want = sum_of(portable, rounded, kind, 1.7, 1, nullptr, 1.5, false, 1.0);
      CHECK(emulated_sum(narrow_records, pass, lattice, {4, 128, 32, ThreadOrder::backwards}) == narrow_want);
      // By products: what a record contributes is found by the same code for every link.
      if (n_features != 7 || !pass.edges.empty() || (kind.link != Likelihood::gaussian && !kind.has_table)) continue;
      CHECK(emulated_products(narrow_records, pass, lattice, 1) == narrow_want);
    }
  }
  // Products of every width, with more records than a block takes at a time, and by several blocks.
  for (const int n_features : {3, 14, 22, 30, 36, 52, 70, 81, 102}) {
    Data data(n_features == 3 ? 530 : 45, n_features, 1.0);
    data.x.back() = inf;
    for (const Kind& kind : {Kind{RegressionOutput::scores, Likelihood::gaussian, false},
                             Kind{RegressionOutput::curvature, Likelihood::logistic, false}}) {
      const RegressionPass pass = pass_of(data, kind);
      CHECK(emulated_products(records_of(data), pass, lattice, n_features == 14 ? 2 : 1) ==
            sum_of(portable, data, kind, 1.7, 1, nullptr, 1.5, false, 1.0));
    }
  }
  // One record's vector stays inside the ball, whatever is in it, and reaches its surface.
  const std::vector<std::int64_t> one{0};
  for (const Kind& kind : kinds()) {
    long double largest = 0.0L;
    for (const double max_norm : {1e-30, 1.7, 9.9e29}) {
      const long double bound = static_cast<long double>(max_norm) / Lattice::from_max_norm(max_norm).step;
      for (const double size : {1e-150, 1.0, 1e20, 1e70, 1e160}) {
        for (const double weights : {1.5, inf}) {
          const Sum sum = sum_of(portable, Data(1, 12, size), kind, max_norm, 1, &one, weights);
          CHECK(square(sum) <= bound * bound);
          largest = std::max(largest, square(sum) / (bound * bound));
        }
      }
    }
    CHECK(largest > 0.999L);
    for (const double size : {inf, std::numeric_limits<double>::quiet_NaN()}) {
      CHECK(square(sum_of(portable, Data(1, 12, size), kind, 1.7, 1, &one)) == 0.0L);
    }
  }
  return check_result();
}

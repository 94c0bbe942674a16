// The network's contributions: the same bits in every variant, nothing written past their end, finite in the tails.
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "check.hpp"
#include "common/aligned.hpp"
#include "mechanism/simd/network_kernels.hpp"

namespace {

using namespace dpinfer;

constexpr double kCanary = 12345.0;

std::vector<double> contribution(const NetworkKernelTable& table, NetworkOutput output, int d, int hidden, double mean,
                                 double y) {
  const NetworkShape shape = NetworkShape::of(d, hidden);
  AlignedVector<double> means(static_cast<std::size_t>(shape.padded_length()), 0.0);
  AlignedVector<double> variances(means.size(), 0.0);
  AlignedVector<double> ones(means.size(), 1.0);
  for (int row = 0; row <= shape.n_rows(); ++row) {
    for (int h = 0; h < (row < shape.n_rows() ? hidden : 1); ++h) {
      const std::size_t k =
          static_cast<std::size_t>(row) * static_cast<std::size_t>(shape.pad) + static_cast<std::size_t>(h);
      means[k] = mean * std::sin(1.0 + 0.7 * static_cast<double>(k));
      variances[k] = 0.02 + 0.01 * std::cos(static_cast<double>(k));
    }
  }
  const NetworkTask task = {.shape = shape,
                            .output = output,
                            .hidden_scale = 0.5,
                            .output_scale = 0.3,
                            .mean = means.data(),
                            .variance = variances.data(),
                            .noise_variance = 0.2,
                            .noise_weight = 0.1,
                            .site_weight = 0.4,
                            .mean_scale = ones.data(),
                            .variance_scale = ones.data()};
  std::vector<double> x(static_cast<std::size_t>(d));
  for (int j = 0; j < d; ++j) x[static_cast<std::size_t>(j)] = std::cos(0.3 + j);
  AlignedVector<double> scratch(static_cast<std::size_t>(task.scratch_length()));
  std::vector<double> out(static_cast<std::size_t>(task.length()) + 8, kCanary);
  table.contribution(task, x.data(), y, scratch.data(), out.data());
  return out;
}

}  // namespace

int main() {
  const NetworkKernelTable* portable = network_kernel_table("portable");
  CHECK(portable != nullptr);
  for (const int hidden : {1, 7, 8, 9, 50}) {
    for (const int d : {1, 4, 13}) {
      for (const double mean : {0.0, 1.0, 1e3, 1e8}) {
        for (const NetworkOutput output : {NetworkOutput::site, NetworkOutput::gradient}) {
          const std::vector<double> want = contribution(*portable, output, d, hidden, mean, 0.7);
          const std::size_t length = want.size() - 8;
          for (std::size_t k = 0; k < length; ++k) CHECK(std::isfinite(want[k]));
          for (std::size_t k = length; k < want.size(); ++k) CHECK(want[k] == kCanary);
          for (const char* name : {"avx2", "avx512"}) {
            const NetworkKernelTable* table = network_kernel_table(name);
            if (table == nullptr) continue;
            CHECK(contribution(*table, output, d, hidden, mean, 0.7) == want);
          }
        }
      }
    }
  }
  const std::vector<double> bad =
      contribution(*portable, NetworkOutput::site, 2, 3, 1.0, std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(bad[0]));
  return check_result();
}

#include "mechanism/rounded_gaussian.hpp"

#include <cmath>
#include <vector>

namespace dpinfer {

void add_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev, int n,
                          std::int64_t* sums) {
  std::vector<double> normals(static_cast<std::size_t>(n));
  standard_normals(kernels, key, RandomDomain::noise, step, normals.size(), normals.data());
  for (int i = 0; i < n; ++i) sums[i] += std::llrint(stddev * normals[static_cast<std::size_t>(i)]);
}

}  // namespace dpinfer

// DeviceRows without a GPU: for the tests, and never installed.
#define DPINFER_ONE_LANE
#define DPINFER_SIMD_VARIANT cuda_emulation
#include <algorithm>
#include <cstddef>

#include "tests/cuda/emulated_lanes.hpp"

// Behind the lanes that it needs.
#include "mechanism/cuda/device_rows.hpp"
#include "mechanism/cuda/product_pass.hpp"
#include "mechanism/cuda/tile_columns.hpp"
#include "mechanism/cuda/tile_pass.hpp"
#include "tests/cuda/emulated_sum.hpp"

namespace dpinfer {

std::vector<std::int64_t> emulated_sum(const Records& records, const RegressionPass& pass, const Lattice& lattice,
                                       const Emulation& emulation) {
  const std::vector<double> columns = tile_columns(pass);
  const cuda_emulation::TilePass tiles{regression_task(records, pass, lattice), columns.data(), emulation.tile_records};
  const auto length = static_cast<std::size_t>(tiles.task.released_length());
  const auto n_doubles = static_cast<std::size_t>(tiles.tile_doubles());
  std::vector<std::int64_t> total(length);
  for (int block = 0; block < emulation.n_blocks; ++block) {
    std::vector<double> memory(n_doubles);
    std::vector<std::uint64_t> sums(length);
    run_phases(emulation.n_threads, emulation.order, [&](const auto& each) {
      cuda_emulation::add_tiles(tiles, block, emulation.n_blocks, memory.data(), sums.data(), each);
    });
    for (std::size_t j = 0; j < length; ++j) total[j] += static_cast<std::int64_t>(sums[j]);
  }
  return total;
}

int most_product_directions() { return cuda_emulation::kMostProductDirections; }

std::vector<std::int64_t> emulated_products(const Records& records, const RegressionPass& pass, const Lattice& lattice,
                                            int n_blocks) {
  const std::vector<double> columns = tile_columns(pass);
  const cuda_emulation::TilePass tiles{regression_task(records, pass, lattice), columns.data(), 0};
  const cuda_emulation::ProductKernel kernel =
      cuda_emulation::product_kernel(pass.n_directions, tiles.task.is_matrix());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(tiles.task.released_length()));
  cuda_emulation::run_on_host(n_blocks, kernel.n_threads, kernel.shared_bytes(tiles.task.n_coef),
                              [&] { kernel.run(&tiles, sums.data()); });
  return {sums.begin(), sums.end()};
}

struct DeviceRows::Memory {
  std::vector<unsigned char> features;
  std::vector<double> response;
};

int device_count() { return 1; }
std::int64_t free_bytes() { return std::int64_t{1} << 32; }

DeviceRows::DeviceRows(const Records& records) : records_(records), memory_(std::make_unique<Memory>()) {
  const auto* const bytes = static_cast<const unsigned char*>(records.features);
  memory_->features.assign(bytes, bytes + records.n_rows * records.n_features * (records.is_float32 ? 4 : 8));
  memory_->response.assign(records.response, records.response + records.n_rows);
  records_.features = memory_->features.data();
  records_.response = memory_->response.data();
}

DeviceRows::~DeviceRows() = default;

bool DeviceRows::fits(int n_coef, int n_directions) { return cuda_emulation::tile_records(n_coef, n_directions) > 0; }

void DeviceRows::sum(const RegressionPass& pass, const Lattice& lattice, std::span<std::int64_t> part) const {
  const int n_coef = records_.n_features + (records_.has_intercept ? 1 : 0);
  const int tile_records = cuda_emulation::tile_records(n_coef, pass.n_directions);
  const std::vector<std::int64_t> sums = emulated_sum(records_, pass, lattice, {3, 32, tile_records});
  std::copy(sums.begin(), sums.end(), part.begin());
}

}  // namespace dpinfer

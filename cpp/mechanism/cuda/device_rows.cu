// Compiled with --fmad=false: nothing is contracted but where the code says `fused`.
#define DPINFER_ONE_LANE
#define DPINFER_SIMD_VARIANT cuda
#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mechanism/cuda/device_rows.hpp"
#include "mechanism/cuda/tile_columns.hpp"
#include "mechanism/cuda/tile_pass.hpp"

namespace dpinfer {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerProcessor = 4;
// What the sums of all blocks may take.
constexpr std::int64_t kSumsBytes = std::int64_t{1} << 29;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// Memory of the GPU; it may hold records, and is wiped before it is given back.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t size) : size_(size) {
    if (size > 0) check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) {
    if (size_ > 0) check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceArray() {
    if (data_ == nullptr) return;
    clear();
    cudaFree(data_);
  }
  cudaError_t clear() { return size_ > 0 ? cudaMemset(data_, 0, size_ * sizeof(T)) : cudaSuccess; }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

__global__ void add_tiles_of_block(cuda::TilePass pass, std::uint64_t* sums, std::int64_t length) {
  extern __shared__ double memory[];
  cuda::add_tiles(pass, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), memory, sums + blockIdx.x * length,
                  [](const auto& phase) {
                    phase(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
                    __syncthreads();
                  });
}

// Adds the blocks' sums up.
__global__ void add_blocks(const std::uint64_t* sums, int n_blocks, std::int64_t length, std::uint64_t* total) {
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= length) return;
  std::uint64_t sum = 0;
  for (int block = 0; block < n_blocks; ++block) sum += sums[block * length + j];
  total[j] = sum;
}

}  // namespace

struct DeviceRows::Memory {
  DeviceArray<unsigned char> features;
  DeviceArray<double> response;
};

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

bool DeviceRows::fits(int n_coef, int n_directions) { return cuda::tile_records(n_coef, n_directions) > 0; }

DeviceRows::DeviceRows(const Records& records) : records_(records), memory_(std::make_unique<Memory>()) {
  const auto n_rows = static_cast<std::size_t>(records.n_rows);
  const std::size_t bytes = n_rows * static_cast<std::size_t>(records.n_features) * (records.is_float32 ? 4U : 8U);
  memory_->features = DeviceArray<unsigned char>(std::span(static_cast<const unsigned char*>(records.features), bytes));
  memory_->response = DeviceArray<double>(std::span(records.response, n_rows));
  records_.features = memory_->features.data();
  records_.response = memory_->response.data();
}

DeviceRows::~DeviceRows() = default;

void DeviceRows::sum(const RegressionPass& pass, const Lattice& lattice, std::span<std::int64_t> part) const {
  const std::vector<double> columns = tile_columns(pass);
  const DeviceArray<double> by_column{std::span<const double>(columns)};
  const DeviceArray<double> centre(pass.table.centre);
  const DeviceArray<double> slope(pass.table.slope);
  cuda::TilePass tiles{regression_task(records_, pass, lattice), by_column.data(), 0};
  tiles.task.transform = tiles.task.loc = nullptr;  // the host's
  tiles.task.centre = centre.data();
  tiles.task.slope = slope.data();
  tiles.tile_records = cuda::tile_records(tiles.task.n_coef, tiles.task.n_directions);
  int device = 0;
  int processors = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto length = static_cast<std::int64_t>(part.size());
  const std::int64_t most = std::max<std::int64_t>(1, kSumsBytes / (8 * length));
  const auto n_blocks = static_cast<int>(std::max<std::int64_t>(
      1, std::min({most, tiles.n_tiles(), static_cast<std::int64_t>(kBlocksPerProcessor) * processors})));
  DeviceArray<std::uint64_t> sums(static_cast<std::size_t>(n_blocks * length));
  DeviceArray<std::uint64_t> total(part.size());
  check(sums.clear());
  const auto shared = static_cast<std::size_t>(tiles.tile_doubles()) * sizeof(double);
  add_tiles_of_block<<<static_cast<unsigned>(n_blocks), kThreads, shared>>>(tiles, sums.data(), length);
  check(cudaGetLastError());
  const auto groups = static_cast<unsigned>((length + kThreads - 1) / kThreads);
  add_blocks<<<groups, kThreads>>>(sums.data(), n_blocks, length, total.data());
  check(cudaGetLastError());
  check(cudaMemcpy(part.data(), total.data(), part.size() * sizeof(std::int64_t), cudaMemcpyDeviceToHost));
}

}  // namespace dpinfer

// Compiled with --fmad=false: nothing is contracted but where the code says `fused`.
#define DPINFER_ONE_LANE
#define DPINFER_SIMD_VARIANT cuda
#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mechanism/cuda/device_rows.hpp"
#include "mechanism/cuda/product_pass.hpp"
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

// `pass` is in the GPU's memory: a captured launch finds the numbers of the present pass there.
__global__ void add_tiles_of_block(const cuda::TilePass* pass, std::uint64_t* sums, std::int64_t length) {
  extern __shared__ double memory[];
  const cuda::TilePass own = *pass;
  cuda::add_tiles(own, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), memory, sums + blockIdx.x * length,
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

// Memory of the host that a captured copy reads or writes; it may hold sums, and is wiped before it is given back.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t size) : size_(size) {
    if (size > 0) check(cudaMallocHost(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() {
    if (data_ == nullptr) return;
    volatile unsigned char* const bytes = reinterpret_cast<unsigned char*>(data_);
    for (std::size_t i = 0; i < size_ * sizeof(T); ++i) bytes[i] = 0;
    cudaFreeHost(data_);
  }
  std::size_t size() const { return size_; }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Public numbers of a pass: where they are written, and where the GPU reads them.
template <typename T>
struct Public {
  explicit Public(std::size_t size) : host(size), device(size) {}
  void set(std::span<const T> values) const { std::copy(values.begin(), values.end(), host.data()); }
  void upload(cudaStream_t stream) const {
    if (host.size() == 0) return;
    check(cudaMemcpyAsync(device.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
  }

  PinnedArray<T> host;
  DeviceArray<T> device;
};

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

// What makes two passes the same graph, with other numbers in it.
struct PassShape {
  int n_directions;
  bool is_matrix, is_size;
  std::size_t length, n_centre, n_slope;
  bool operator==(const PassShape&) const = default;
};

PassShape shape_of(const RegressionPass& pass, std::size_t length) {
  const bool is_size = !pass.edges.empty();
  return {pass.n_directions,
          !is_size && pass.output != RegressionOutput::scores,
          is_size,
          length,
          pass.table.centre.size(),
          pass.table.slope.size()};
}

// How a pass is launched.
struct Launch {
  int n_blocks = 1;
  std::size_t shared = 0;
};

// A pass as one graph: public numbers to the GPU, the sum, and that to the host.
class CapturedPass {
 public:
  CapturedPass(const PassShape& shape, int n_coef, std::int64_t n_rows)
      : shape_(shape),
        tile_records_(cuda::tile_records(n_coef, shape.n_directions)),
        tiles_(1),
        by_column_(static_cast<std::size_t>(n_coef) * static_cast<std::size_t>(shape.n_directions + 1)),
        centre_(shape.n_centre),
        slope_(shape.n_slope),
        edges_(shape.is_size ? shape.length - 1 : 0),
        result_(shape.length),
        total_(shape.length) {
    if (!shape.is_size && shape.n_directions <= cuda::kMostProductDirections) {
      product_ = cuda::product_kernel(shape.n_directions, shape.is_matrix);
      launch_.shared = product_.shared_bytes(n_coef);
      if (launch_.shared > static_cast<std::size_t>(device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))) {
        product_.run = nullptr;
      }
    }
    if (product_.run != nullptr) {
      prepare_product(n_rows);
    } else {
      prepare_tiles(n_coef, n_rows);
    }
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    try {
      capture();
    } catch (...) {
      release();
      throw;
    }
  }
  CapturedPass(const CapturedPass&) = delete;
  CapturedPass& operator=(const CapturedPass&) = delete;
  ~CapturedPass() { release(); }

  const PassShape& shape() const { return shape_; }

  void run(const RegressionTask& task, const RegressionPass& pass, std::span<std::int64_t> part) const {
    cuda::TilePass tiles{task, by_column_.device.data(), tile_records_};
    tiles.task.transform = tiles.task.by_column = tiles.task.loc = nullptr;  // the host's
    tiles.task.centre = centre_.device.data();
    tiles.task.slope = slope_.device.data();
    tiles.task.edges = edges_.device.data();
    tiles_.set(std::span<const cuda::TilePass>(&tiles, 1));
    by_column_.set(tile_columns(pass));
    centre_.set(pass.table.centre);
    slope_.set(pass.table.slope);
    edges_.set(pass.edges);
    check(cudaGraphLaunch(ready_, stream_));
    check(cudaStreamSynchronize(stream_));
    std::copy(result_.data(), result_.data() + result_.size(), part.begin());
  }

 private:
  void prepare_product(std::int64_t n_rows) {
    const auto* const kernel = reinterpret_cast<const void*>(product_.run);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(launch_.shared)));
    int resident = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, product_.n_threads, launch_.shared));
    const std::int64_t wanted = std::int64_t{std::max(1, resident)} * device_attribute(cudaDevAttrMultiProcessorCount);
    const std::int64_t useful = (n_rows + product_.n_records - 1) / product_.n_records;
    launch_.n_blocks = static_cast<int>(std::max<std::int64_t>(1, std::min(wanted, useful)));
  }

  void prepare_tiles(int n_coef, std::int64_t n_rows) {
    const auto length = static_cast<std::int64_t>(shape_.length);
    const std::int64_t n_tiles = (n_rows + tile_records_ - 1) / tile_records_;
    const std::int64_t most = std::max<std::int64_t>(1, kSumsBytes / (8 * length));
    const std::int64_t wanted = std::int64_t{kBlocksPerProcessor} * device_attribute(cudaDevAttrMultiProcessorCount);
    launch_.n_blocks = static_cast<int>(std::max<std::int64_t>(1, std::min({most, n_tiles, wanted})));
    launch_.shared = static_cast<std::size_t>(tile_records_) * sizeof(double) *
                     static_cast<std::size_t>(cuda::TilePass::record_doubles(n_coef, shape_.n_directions));
    sums_ = DeviceArray<std::uint64_t>(static_cast<std::size_t>(launch_.n_blocks) * shape_.length);
    // A kernel that is loaded only when it is launched would be loaded within the capture.
    cudaFuncAttributes loaded;
    check(cudaFuncGetAttributes(&loaded, add_tiles_of_block));
    check(cudaFuncGetAttributes(&loaded, add_blocks));
  }

  void capture() {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph));
    const cudaError_t error = cudaGraphInstantiateWithFlags(&ready_, graph, 0);
    cudaGraphDestroy(graph);
    check(error);
  }

  void enqueue() {
    tiles_.upload(stream_);
    by_column_.upload(stream_);
    centre_.upload(stream_);
    slope_.upload(stream_);
    edges_.upload(stream_);
    if (product_.run != nullptr) {
      enqueue_product();
    } else {
      enqueue_tiles();
    }
    check(cudaMemcpyAsync(result_.data(), total_.data(), shape_.length * 8, cudaMemcpyDeviceToHost, stream_));
  }

  void enqueue_product() {
    check(cudaMemsetAsync(total_.data(), 0, shape_.length * 8, stream_));
    product_.run<<<static_cast<unsigned>(launch_.n_blocks), static_cast<unsigned>(product_.n_threads), launch_.shared,
                   stream_>>>(tiles_.device.data(), total_.data());
    check(cudaGetLastError());
  }

  void enqueue_tiles() {
    const auto length = static_cast<std::int64_t>(shape_.length);
    const auto n_blocks = static_cast<std::size_t>(launch_.n_blocks);
    check(cudaMemsetAsync(sums_.data(), 0, n_blocks * shape_.length * 8, stream_));
    add_tiles_of_block<<<static_cast<unsigned>(n_blocks), kThreads, launch_.shared, stream_>>>(tiles_.device.data(),
                                                                                               sums_.data(), length);
    check(cudaGetLastError());
    const auto groups = static_cast<unsigned>((length + kThreads - 1) / kThreads);
    add_blocks<<<groups, kThreads, 0, stream_>>>(sums_.data(), launch_.n_blocks, length, total_.data());
    check(cudaGetLastError());
  }

  void release() {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  PassShape shape_;
  cuda::ProductKernel product_{};  // no kernel: in tiles
  int tile_records_;
  Launch launch_;
  Public<cuda::TilePass> tiles_;
  Public<double> by_column_, centre_, slope_, edges_;
  PinnedArray<std::int64_t> result_;
  DeviceArray<std::uint64_t> sums_, total_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace

struct DeviceRows::Memory {
  DeviceArray<unsigned char> features;
  DeviceArray<double> response;
  // The last pass: the next one is often another of its shape.  One pass at a time uses it.
  std::mutex in_use;
  std::unique_ptr<CapturedPass> last;
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
  // Passes have a stream of their own, which would not wait for the copies.
  check(cudaDeviceSynchronize());
  records_.features = memory_->features.data();
  records_.response = memory_->response.data();
}

DeviceRows::~DeviceRows() = default;

void DeviceRows::sum(const RegressionPass& pass, const Lattice& lattice, std::span<std::int64_t> part) const {
  const RegressionTask task = regression_task(records_, pass, lattice);
  const PassShape shape = shape_of(pass, part.size());
  const std::lock_guard<std::mutex> alone(memory_->in_use);
  if (memory_->last == nullptr || memory_->last->shape() != shape) {
    memory_->last.reset();  // its memory first
    memory_->last = std::make_unique<CapturedPass>(shape, task.n_coef, records_.n_rows);
  }
  memory_->last->run(task, pass, part);
}

}  // namespace dpinfer

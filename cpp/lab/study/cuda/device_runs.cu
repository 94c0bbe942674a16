// Compiled with --fmad=false: nothing is contracted but where the code says `fused`.
#define DPINFER_ONE_LANE
#define DPINFER_SIMD_VARIANT cuda
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/study/cuda/device_runs.hpp"
#include "lab/study/cuda/run_block.hpp"

namespace dpinfer::study {

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// Memory of the GPU, of simulated records.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) { check(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T))); }
  DeviceArray(const T* values, std::size_t size) : DeviceArray(size) {
    const cudaError_t error = cudaMemcpy(data_, values, size * sizeof(T), cudaMemcpyHostToDevice);
    if (error != cudaSuccess) {
      cudaFree(data_);
      data_ = nullptr;
    }
    check(error);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Memory of the host that copies may use while it works.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t size) {
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), size * sizeof(T)));
    std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() { cudaFreeHost(data_); }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A block of threads a run.
__global__ void __launch_bounds__(cuda::kMostThreads) sum_runs(const cuda::RunsPass pass, std::int64_t first) {
  extern __shared__ double memory[];
  cuda::sum_run(pass, first + static_cast<std::int64_t>(blockIdx.x), *reinterpret_cast<cuda::BlockMemory*>(memory),
                [](const auto& phase) {
                  phase(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
                  __syncthreads();
                });
}

std::vector<std::uint32_t> key_words(std::span<const RandomKey> keys) {
  std::vector<std::uint32_t> words;
  for (const RandomKey& key : keys) words.insert(words.end(), key.words, key.words + 8);
  return words;
}

}  // namespace

struct DeviceRuns::Memory {
  Memory(const DeviceRunsShape& shape, const double* given_features, const double* given_response,
         std::span<const RandomKey> given_keys)
      : n_runs(static_cast<std::size_t>(shape.n_runs)),
        n_sums(static_cast<std::size_t>(shape.n_sums())),
        features(given_features, n_runs * static_cast<std::size_t>(shape.n_rows * shape.n_features)),
        response(given_response, n_runs * static_cast<std::size_t>(shape.n_rows)),
        nodes(shape.nodes.data(), shape.nodes.size()),
        node_weights(shape.node_weights.data(), shape.node_weights.size()),
        keys(key_words(given_keys).data(), 8 * n_runs),
        numbers(n_runs),
        sums(n_runs * n_sums),
        host_numbers(n_runs),
        host_sums(n_runs * n_sums),
        pass(cuda::runs_pass(shape)) {
    pass.task.records.features = features.data();
    pass.task.records.response = response.data();
    pass.task.nodes = nodes.data();
    pass.task.node_weights = node_weights.data();
    pass.keys = keys.data();
    pass.numbers = numbers.data();
    pass.sums = sums.data();
    // The streams would not wait for the copies.
    check(cudaDeviceSynchronize());
    check(cudaFuncSetAttribute(sum_runs, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(sizeof(cuda::BlockMemory))));
  }

  std::size_t n_runs, n_sums;
  DeviceArray<double> features, response, nodes, node_weights;
  DeviceArray<std::uint32_t> keys;
  DeviceArray<StepNumbers> numbers;
  DeviceArray<std::int64_t> sums;
  PinnedArray<StepNumbers> host_numbers;
  PinnedArray<std::int64_t> host_sums;
  cuda::RunsPass pass;
  Stream streams[kDeviceHalves];
};

DeviceRuns::DeviceRuns(const DeviceRunsShape& shape, const double* features, const double* response,
                       std::span<const RandomKey> keys)
    : shape_(shape), memory_(std::make_unique<Memory>(shape, features, response, keys)) {}

DeviceRuns::~DeviceRuns() = default;

StepNumbers& DeviceRuns::numbers(std::int64_t run) const { return memory_->host_numbers.data()[run]; }

void DeviceRuns::start(int half, std::uint64_t step) {
  const Memory& m = *memory_;
  const std::int64_t begin = first(half);
  const std::int64_t count = first(half + 1) - begin;
  if (count == 0) return;
  cudaStream_t stream = m.streams[half].get();
  const auto n = static_cast<std::size_t>(count);
  check(cudaMemcpyAsync(m.numbers.data() + begin, m.host_numbers.data() + begin, n * sizeof(StepNumbers),
                        cudaMemcpyHostToDevice, stream));
  cuda::RunsPass pass = m.pass;
  pass.step = step;
  sum_runs<<<static_cast<unsigned>(count), cuda::kMostThreads, sizeof(cuda::BlockMemory), stream>>>(pass, begin);
  check(cudaGetLastError());
  const std::int64_t place = begin * shape_.n_sums();
  check(cudaMemcpyAsync(m.host_sums.data() + place, m.sums.data() + place, n * m.n_sums * sizeof(std::int64_t),
                        cudaMemcpyDeviceToHost, stream));
}

void DeviceRuns::wait(int half) { check(cudaStreamSynchronize(memory_->streams[half].get())); }

std::span<const std::int64_t> DeviceRuns::sums(std::int64_t run) const {
  return {memory_->host_sums.data() + static_cast<std::size_t>(run) * memory_->n_sums, memory_->n_sums};
}

}  // namespace dpinfer::study

// DeviceRuns without a GPU: for the tests, and never installed.
#define DPINFER_ONE_LANE
#define DPINFER_SIMD_VARIANT cuda_emulation
#include <cstddef>
#include <iterator>
#include <vector>

#include "lab/study/cuda/device_runs.hpp"
#include "lab/study/cuda/run_block.hpp"
#include "tests/cuda/emulated_phases.hpp"

namespace dpinfer::study {

namespace {

constexpr int kThreads = 24;
// Of every step another.
constexpr ThreadOrder kOrders[] = {ThreadOrder::forwards, ThreadOrder::backwards, ThreadOrder::at_once};

}  // namespace

struct DeviceRuns::Memory {
  std::vector<double> features, response, nodes, node_weights;
  std::vector<std::uint32_t> keys;
  std::vector<StepNumbers> numbers;
  std::vector<std::int64_t> sums;
  std::unique_ptr<cuda_emulation::BlockMemory> block = std::make_unique<cuda_emulation::BlockMemory>();
  cuda_emulation::RunsPass pass{};
};

DeviceRuns::DeviceRuns(const DeviceRunsShape& shape, const double* features, const double* response,
                       std::span<const RandomKey> keys)
    : shape_(shape), memory_(std::make_unique<Memory>()) {
  Memory& m = *memory_;
  const std::int64_t n_rows = shape.n_runs * shape.n_rows;
  m.features.assign(features, features + n_rows * shape.n_features);
  m.response.assign(response, response + n_rows);
  m.nodes.assign(shape.nodes.begin(), shape.nodes.end());
  m.node_weights.assign(shape.node_weights.begin(), shape.node_weights.end());
  for (const RandomKey& key : keys) m.keys.insert(m.keys.end(), key.words, key.words + 8);
  m.numbers.resize(static_cast<std::size_t>(shape.n_runs));
  m.sums.resize(static_cast<std::size_t>(shape.n_runs * shape.n_sums()));
  m.pass = cuda_emulation::runs_pass(shape);
  m.pass.task.records.features = m.features.data();
  m.pass.task.records.response = m.response.data();
  m.pass.task.nodes = m.nodes.data();
  m.pass.task.node_weights = m.node_weights.data();
  m.pass.keys = m.keys.data();
  m.pass.numbers = m.numbers.data();
  m.pass.sums = m.sums.data();
}

DeviceRuns::~DeviceRuns() = default;

StepNumbers& DeviceRuns::numbers(std::int64_t run) const { return memory_->numbers[static_cast<std::size_t>(run)]; }

void DeviceRuns::start(int half, std::uint64_t step) {
  memory_->pass.step = step;
  for (std::int64_t run = first(half); run < first(half + 1); ++run) {
    run_phases(kThreads, kOrders[step % std::size(kOrders)],
               [&](const auto& each) { cuda_emulation::sum_run(memory_->pass, run, *memory_->block, each); });
  }
}

void DeviceRuns::wait(int) {}

std::span<const std::int64_t> DeviceRuns::sums(std::int64_t run) const {
  const auto length = static_cast<std::size_t>(shape_.n_sums());
  return {memory_->sums.data() + static_cast<std::size_t>(run) * length, length};
}

}  // namespace dpinfer::study

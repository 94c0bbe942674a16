// The sum of one run's sampled records at one step, by a block of threads: the integers of narrow_rows-inl.hpp over the
// rows of poisson_sample.cpp, bit for bit.  A record's numbers are found in the same order of operations, by one
// thread; its integers are added as integers, in any order.
//
// Included once per namespace DPINFER_SIMD_VARIANT, with one lane (one_lane.hpp): by the kernel that a GPU runs, and by
// the host's emulation of it.
#pragma once

#include <bit>
#include <cstdint>

#include "lab/study/cuda/device_runs.hpp"
#include "lab/study/cuda/step_numbers.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/simd/chacha20_lanes-inl.hpp"
#include "mechanism/simd/clipping-inl.hpp"
#include "mechanism/simd/slopes-inl.hpp"

#if defined(__CUDACC__)
#define DPINFER_UNROLL _Pragma("unroll")
#else
#define DPINFER_UNROLL
#endif

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using study::kMostDeviceCoef;
using study::kMostDeviceSums;
using study::StepNumbers;

// Rows that are sampled, listed and summed at a time.
inline constexpr int kGroupRows = 8192;
inline constexpr int kGroupWords = kGroupRows / 64;
inline constexpr int kBlockWords = static_cast<int>(kRowBlock) / 64;
inline constexpr int kMostThreads = 128;
// Each sum's parts over the threads are added up by so many threads first.
inline constexpr int kParts = 8;

// What all runs of a launch share.  The pointers are to the memory of whoever runs it.
struct RunsPass {
  GradientTask task;  // its arrays over weights are each run's own
  SampleThreshold threshold;
  std::uint64_t step;
  const std::uint32_t* keys;  // eight words a run
  const StepNumbers* numbers;
  std::int64_t* sums;  // n_sums a run, in the order of a release
  int n_sums;
};

// What the pass has in common; its pointers are set by whoever runs it.
inline RunsPass runs_pass(const study::DeviceRunsShape& shape) {
  RunsPass pass{};
  pass.task.records.n_rows = shape.n_rows;
  pass.task.records.n_features = shape.n_features;
  pass.task.records.has_intercept = shape.has_intercept;
  pass.task.likelihood = shape.likelihood;
  pass.task.expectation = Expectation::quadrature;
  pass.task.n_coef = shape.n_coef();
  pass.task.has_raw = true;
  pass.task.has_dispersion = shape.has_dispersion();
  pass.task.n_nodes = static_cast<int>(shape.nodes.size());
  pass.task.clip_norm = shape.clip_norm;
  pass.threshold = shape.threshold;
  pass.n_sums = shape.n_sums();
  return pass;
}

// What a block of threads shares.
struct BlockMemory {
  StepNumbers numbers;
  std::uint32_t key[8];
  std::uint64_t sampled[kGroupWords];  // bit i of word w: row 64 w + i of the group
  std::uint64_t tied[kGroupWords];
  int count;
  std::uint16_t listed[kGroupRows];
  std::uint64_t sums[kMostDeviceSums * kMostThreads];  // of each thread, sum by sum
};

DPINFER_INLINE int bits_of(std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __popcll(word);
#else
  return std::popcount(word);
#endif
}

DPINFER_INLINE int lowest_bit(std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  return __ffsll(static_cast<long long>(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

DPINFER_INLINE void stream_block(const std::uint32_t* key, RandomDomain domain, std::uint64_t step,
                                 std::uint32_t counter, Words* words) {
  const std::uint32_t nonce[3] = {static_cast<std::uint32_t>(domain), static_cast<std::uint32_t>(step),
                                  static_cast<std::uint32_t>(step >> 32)};
  Words initial[16];
  set_block(key, nonce, initial);
  initial[12] = counter;
  scramble(initial, words);
}

// Which of the 64 rows from 64 `word` on are in, or tie.
DPINFER_INLINE void sample_word(const RunsPass& pass, const BlockMemory& memory, std::int64_t word,
                                std::uint64_t& sampled, std::uint64_t& tied) {
  const std::int64_t left = pass.task.records.n_rows - 64 * word;
  const std::uint64_t there = left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
  if (pass.threshold.everything) {
    sampled = there;
    tied = 0;
    return;
  }
  Words words[16];
  stream_block(memory.key, RandomDomain::subsample, pass.step, static_cast<std::uint32_t>(word), words);
  std::uint64_t at_most = 0;
  std::uint64_t equal = 0;
  DPINFER_UNROLL
  for (int i = 0; i < 64; ++i) {
    const std::uint32_t byte = (words[i / 4] >> (8 * (i % 4))) & 255U;
    at_most |= static_cast<std::uint64_t>(byte <= pass.threshold.byte ? 1 : 0) << i;
    equal |= static_cast<std::uint64_t>(byte == pass.threshold.byte ? 1 : 0) << i;
  }
  sampled = at_most & there;
  tied = equal & sampled;
}

// Decides the ties of a block of kRowBlock rows, which take the words of its tie stream in row order.
DPINFER_INLINE void settle_ties(const RunsPass& pass, BlockMemory& memory, std::int64_t row_block, int first_word,
                                int n_words) {
  std::uint32_t ties = 0;
  Words words[16] = {};
  for (int w = first_word; w < n_words && w < first_word + kBlockWords; ++w) {
    for (std::uint64_t tied = memory.tied[w]; tied != 0; tied &= tied - 1, ++ties) {
      if (ties % 16 == 0) {
        stream_block(memory.key, RandomDomain::subsample_ties, pass.step,
                     static_cast<std::uint32_t>(row_block * (kRowBlock / 16)) + ties / 16, words);
      }
      std::uint32_t word = 0;
      DPINFER_UNROLL
      for (std::uint32_t i = 0; i < 16; ++i) word = i == ties % 16 ? words[i] : word;
      if (word >= pass.threshold.word) memory.sampled[w] ^= tied & (~tied + 1);
    }
  }
}

// Lists the rows of a word behind those of the words before it.
DPINFER_INLINE void list_word(BlockMemory& memory, int word, int n_words) {
  int at = 0;
  for (int w = 0; w < word; ++w) at += bits_of(memory.sampled[w]);
  for (std::uint64_t left = memory.sampled[word]; left != 0; left &= left - 1) {
    memory.listed[at++] = static_cast<std::uint16_t>(64 * word + lowest_bit(left));
  }
  if (word == n_words - 1) memory.count = at;
}

// The sums of one thread, by coordinate: static places, which a GPU keeps in registers.
struct ThreadSums {
  std::uint64_t loc[kMostDeviceCoef] = {};
  std::uint64_t raw[kMostDeviceCoef] = {};
  std::uint64_t dispersion_loc = 0;
  std::uint64_t dispersion_raw = 0;
};

DPINFER_INLINE std::uint64_t rounded(const Vec& a, const Vec& b) {
  const Vec magic = splat(kRoundMagic);
  return (as_bits(fused(a, b, magic)) - as_bits(magic)).value;
}

DPINFER_INLINE void add_row(const GradientTask& task, std::int64_t row, ThreadSums& sums) {
  const Records& records = task.records;
  const int n = task.n_coef;
  const double* const source = static_cast<const double*>(records.features) + row * records.n_features;
  const Vec y = {records.response[row]};
  double x[kMostDeviceCoef];
  DPINFER_UNROLL
  for (int j = 0; j < kMostDeviceCoef; ++j) x[j] = j < records.n_features ? source[j] : 1.0;
  Vec mean = splat(0.0);
  Vec variance = splat(0.0);
  Vec loc_square = splat(0.0);
  Vec raw_square = splat(0.0);
  DPINFER_UNROLL
  for (int j = 0; j < kMostDeviceCoef; ++j) {
    if (j >= n) continue;
    const Vec a = {x[j]};
    const Vec square = a * a;
    mean = fused(a, {task.loc[j]}, mean);
    variance = fused(square, {task.variance[j]}, variance);
    const Vec loc = a * Vec{task.loc_scale[j]};
    const Vec raw = square * Vec{task.raw_scale[j]};
    loc_square = fused(loc, loc, loc_square);
    raw_square = fused(raw, raw, raw_square);
  }
  const Slopes slopes = expected_slopes(task, mean, variance, y);
  loc_square = slopes.first * slopes.first * loc_square;
  raw_square = slopes.second * slopes.second * raw_square;
  DispersionGradients dispersion = {splat(0.0), splat(0.0)};
  if (task.has_dispersion) {
    dispersion = dispersion_gradients(task, mean, variance, y);
    loc_square = fused(dispersion.loc, dispersion.loc, loc_square);
    raw_square = fused(dispersion.raw, dispersion.raw, raw_square);
  }
  const Vec norm = square_root(loc_square + raw_square);
  if (!all_at_most(norm, splat(kFinite))) return;
  const Vec clip = clipping_factor(norm, task.clip_norm);
  const Vec loc_factor = slopes.first * clip;
  const Vec raw_factor = slopes.second * clip;
  DPINFER_UNROLL
  for (int j = 0; j < kMostDeviceCoef; ++j) {
    if (j >= n) continue;
    const Vec a = {x[j]};
    sums.loc[j] += rounded(a * Vec{task.loc_scale[j]}, loc_factor);
    sums.raw[j] += rounded(a * a * Vec{task.raw_scale[j]}, raw_factor);
  }
  if (!task.has_dispersion) return;
  sums.dispersion_loc += rounded(dispersion.loc, clip);
  sums.dispersion_raw += rounded(dispersion.raw, clip);
}

// Adds a thread's sums to its places.
DPINFER_INLINE void keep_sums(const GradientTask& task, const ThreadSums& own, std::uint64_t* sums, int thread,
                              int n_threads) {
  const int n = task.n_coef;
  const int n_params = n + (task.has_dispersion ? 1 : 0);
  DPINFER_UNROLL
  for (int j = 0; j < kMostDeviceCoef; ++j) {
    if (j >= n) continue;
    sums[j * n_threads + thread] += own.loc[j];
    sums[(n_params + j) * n_threads + thread] += own.raw[j];
  }
  if (!task.has_dispersion) return;
  sums[n * n_threads + thread] += own.dispersion_loc;
  sums[(n_params + n) * n_threads + thread] += own.dispersion_raw;
}

// Samples the group's rows from `first` on, and lists them.
template <typename Each>
DPINFER_INLINE void list_group(const RunsPass& pass, std::int64_t first, int n_words, BlockMemory& memory,
                               const Each& each) {
  each([&](int thread, int n_threads) {
    for (int w = thread; w < n_words; w += n_threads) {
      sample_word(pass, memory, first / 64 + w, memory.sampled[w], memory.tied[w]);
    }
  });
  each([&](int thread, int n_threads) {
    for (int b = thread; b * kBlockWords < n_words; b += n_threads) {
      settle_ties(pass, memory, first / kRowBlock + b, b * kBlockWords, n_words);
    }
  });
  each([&](int thread, int n_threads) {
    for (int w = thread; w < n_words; w += n_threads) list_word(memory, w, n_words);
  });
}

// The sum of one run.  each(phase) calls phase(thread, n_threads) for all threads of the block, at most kMostThreads of
// them, and returns when all are through.
template <typename Each>
DPINFER_INLINE void sum_run(const RunsPass& pass, std::int64_t run, BlockMemory& memory, const Each& each) {
  GradientTask task = pass.task;
  const Records& records = pass.task.records;
  task.records.features = static_cast<const double*>(records.features) + run * records.n_rows * records.n_features;
  task.records.response = records.response + run * records.n_rows;
  task.loc = memory.numbers.loc;
  task.variance = memory.numbers.variance;
  task.loc_scale = memory.numbers.loc_scale;
  task.raw_scale = memory.numbers.raw_scale;
  each([&](int thread, int n_threads) {
    constexpr int kDoubles = static_cast<int>(sizeof(StepNumbers) / sizeof(double));
    const auto* const from = reinterpret_cast<const double*>(pass.numbers + run);
    auto* const to = reinterpret_cast<double*>(&memory.numbers);
    for (int i = thread; i < kDoubles; i += n_threads) to[i] = from[i];
    for (int i = thread; i < 8; i += n_threads) memory.key[i] = pass.keys[8 * run + i];
    for (int i = thread; i < pass.n_sums * n_threads; i += n_threads) memory.sums[i] = 0;
  });
  task.moments = memory.numbers.moments;
  task.dispersion_loc_scale = memory.numbers.dispersion_loc_scale;
  task.dispersion_raw_scale = memory.numbers.dispersion_raw_scale;
  for (std::int64_t first = 0; first < records.n_rows; first += kGroupRows) {
    const std::int64_t left = records.n_rows - first;
    const int n_words = left < kGroupRows ? static_cast<int>((left + 63) / 64) : kGroupWords;
    list_group(pass, first, n_words, memory, each);
    each([&](int thread, int n_threads) {
      ThreadSums own;
      for (int i = thread; i < memory.count; i += n_threads) add_row(task, first + memory.listed[i], own);
      keep_sums(task, own, memory.sums, thread, n_threads);
    });
  }
  each([&](int thread, int n_threads) {
    for (int item = thread; item < pass.n_sums * kParts; item += n_threads) {
      std::uint64_t* const own = memory.sums + item / kParts * n_threads;
      for (int i = item % kParts + kParts; i < n_threads; i += kParts) own[item % kParts] += own[i];
    }
  });
  each([&](int thread, int n_threads) {
    for (int k = thread; k < pass.n_sums; k += n_threads) {
      std::uint64_t sum = 0;
      for (int part = 0; part < kParts && part < n_threads; ++part) sum += memory.sums[k * n_threads + part];
      pass.sums[run * pass.n_sums + k] = static_cast<std::int64_t>(sum);
    }
  });
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// The host's part of a GPU, for tests: the threads of a block are threads of the host, all at the same time.  What a
// thread sanitizer reports of them is a race on a GPU, too: they meet where a block's threads wait for each other
// (and those of a warp where they hand numbers on), nowhere else.  Shared memory is as long as the GPU's would be, so
// that an address sanitizer sees what is read or written beyond it.
#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#define DPINFER_KERNEL(n_threads) void
#define DPINFER_DEVICE inline
#define DPINFER_SHARED(name) double* const name = host_thread->block->shared.get()

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

inline constexpr int kLanesOfWarp = 32;

struct alignas(16) Pair {
  double x, y;
};

// What the lanes of a warp hand each other.
struct HostWarp {
  struct Handed {
    double a[4];
    Pair b;
    double number;
    std::uint64_t integer;
    bool said;
  };
  std::barrier<> together{kLanesOfWarp};
  Handed handed[2][kLanesOfWarp] = {};  // by turns: who waits for the others has read what they handed on before
};

struct HostBlock {
  HostBlock(int n_threads_, std::size_t n_shared)
      : n_threads(n_threads_), together(n_threads_), shared(new double[n_shared]) {}

  int n_threads;
  std::barrier<> together;
  std::unique_ptr<double[]> shared;
  std::vector<HostWarp> warps = std::vector<HostWarp>(static_cast<std::size_t>(n_threads) / kLanesOfWarp);
};

struct HostThread {
  int thread, block_in_grid, n_blocks;
  HostBlock* block;
  int turn = 0;

  int lane() const { return thread % kLanesOfWarp; }
  HostWarp& warp() const { return block->warps[static_cast<std::size_t>(thread / kLanesOfWarp)]; }
};

thread_local HostThread* host_thread = nullptr;

// Calls kernel() in all threads of all blocks, one block after the other.
template <typename Kernel>
void run_on_host(int n_blocks, int n_threads, std::size_t shared_bytes, const Kernel& kernel) {
  for (int index = 0; index < n_blocks; ++index) {
    HostBlock block(n_threads, shared_bytes / sizeof(double));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(n_threads));
    for (int thread = 0; thread < n_threads; ++thread) {
      threads.emplace_back([&kernel, &block, thread, index, n_blocks] {
        HostThread own{thread, index, n_blocks, &block};
        host_thread = &own;
        kernel();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

inline int thread_in_block() { return host_thread->thread; }
inline int threads_of_block() { return host_thread->block->n_threads; }
inline int block_in_grid() { return host_thread->block_in_grid; }
inline int blocks_of_grid() { return host_thread->n_blocks; }

inline void wait_for_block() { host_thread->block->together.arrive_and_wait(); }

// set(own) hands on what a lane has; get(all) finds what it takes, when all have handed on.
template <typename Set, typename Get>
auto exchanged(const Set& set, const Get& get) {
  HostThread& own = *host_thread;
  HostWarp& warp = own.warp();
  HostWarp::Handed* const handed = warp.handed[own.turn];
  own.turn = 1 - own.turn;
  set(handed[own.lane()]);
  warp.together.arrive_and_wait();
  return get(handed);
}

inline double from_lane(double value, int lane) {
  return exchanged([&](HostWarp::Handed& own) { own.number = value; },
                   [&](const HostWarp::Handed* all) { return all[lane].number; });
}

inline std::uint64_t from_lane_across(std::uint64_t value, int mask) {
  const int lane = host_thread->lane();
  return exchanged([&](HostWarp::Handed& own) { own.integer = value; },
                   [&](const HostWarp::Handed* all) { return all[lane ^ mask].integer; });
}

inline unsigned said_by_lanes(bool value) {
  return exchanged([&](HostWarp::Handed& own) { own.said = value; },
                   [&](const HostWarp::Handed* all) {
                     unsigned bits = 0;
                     for (int lane = 0; lane < kLanesOfWarp; ++lane) bits |= (all[lane].said ? 1U : 0U) << lane;
                     return bits;
                   });
}

inline void add_to(std::uint64_t* total, std::uint64_t sum) {
  std::atomic_ref<std::uint64_t>(*total).fetch_add(sum, std::memory_order_relaxed);
}

// sums += a b for 16 x 8, 8 x 8 matrices in the lanes of a warp: the terms in their order, as tensor cores add them.
inline void add_product(double (&sums)[4], const double (&a)[4], const Pair& b) {
  const int group = host_thread->lane() / 4;
  const int turn = host_thread->lane() % 4;
  struct Sums {
    double values[4];
  };
  const Sums found = exchanged(
      [&](HostWarp::Handed& own) {
        for (int i = 0; i < 4; ++i) own.a[i] = a[i];
        own.b = b;
      },
      [&](const HostWarp::Handed* all) {
        Sums own{{sums[0], sums[1], sums[2], sums[3]}};
        for (int k = 0; k < 8; ++k) {
          for (int i = 0; i < 4; ++i) {
            const double left = all[4 * group + k % 4].a[i / 2 + k / 4 * 2];
            const HostWarp::Handed& right = all[4 * (2 * turn + i % 2) + k % 4];
            own.values[i] = std::fma(left, k < 4 ? right.b.x : right.b.y, own.values[i]);
          }
        }
        return own;
      });
  for (int i = 0; i < 4; ++i) sums[i] = found.values[i];
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

// What a kernel needs of the GPU: its place among the threads, memory that a block of threads shares, and what the 32
// threads of a warp do together.  Only for CUDA's compiler; tests/cuda/emulated_lanes.hpp is the same on the host.
#pragma once

#include <cstdint>

// A kernel of blocks of at most so many threads.
#define DPINFER_KERNEL(n_threads) __global__ void __launch_bounds__(n_threads)
#define DPINFER_DEVICE __device__ __forceinline__
// The memory that a block shares, as doubles.
#define DPINFER_SHARED(name) extern __shared__ double name[]

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

inline constexpr unsigned kAllLanes = 0xffffffffU;

using Pair = double2;

DPINFER_DEVICE int thread_in_block() { return static_cast<int>(threadIdx.x); }
DPINFER_DEVICE int threads_of_block() { return static_cast<int>(blockDim.x); }
DPINFER_DEVICE int block_in_grid() { return static_cast<int>(blockIdx.x); }
DPINFER_DEVICE int blocks_of_grid() { return static_cast<int>(gridDim.x); }

// Returns when all threads of the block are there.
DPINFER_DEVICE void wait_for_block() { __syncthreads(); }

// The value of another lane of the warp: all of them call this, and each names one.
DPINFER_DEVICE double from_lane(double value, int lane) { return __shfl_sync(kAllLanes, value, lane); }
DPINFER_DEVICE std::uint64_t from_lane_across(std::uint64_t value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
// Bit i: what lane i says.
DPINFER_DEVICE unsigned said_by_lanes(bool value) { return __ballot_sync(kAllLanes, value); }

DPINFER_DEVICE void add_to(std::uint64_t* total, std::uint64_t sum) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(sum));
}

// sums += a b for 16 x 8, 8 x 8 matrices in the lanes of a warp.
DPINFER_DEVICE void add_product(double (&sums)[4], const double (&a)[4], const Pair& b) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b.x), "d"(b.y));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i % 2;
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sums[2 * half]), "+d"(sums[2 * half + 1])
        : "d"(a[i]), "d"(i < 2 ? b.x : b.y));
  }
#endif
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

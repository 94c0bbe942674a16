// The instruction-set specific half of tarp.hpp: what it computes for one block of simulations, and the table of
// variants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dpinfer::lab {

// Draws are taken kTarpPass at a time, so that counters and reference points are touched once for that many.
inline constexpr std::size_t kTarpPass = 16;

// The simulations of one block.  Every pointer points at the block's first simulation; `row` is K d, the distance
// between draws, and also between repeats in the references and marginal counts; `sims` is K, that between repeats in
// `joint`.
struct TarpBlock {
  const void* draws;
  std::size_t n_draws;
  std::size_t row;
  std::size_t sims;
  std::size_t n_sims;  // in this block
  std::size_t n_dims;
  std::size_t n_repeats;
  std::size_t tile_sims;  // simulations whose draws are rearranged together
  const double* thetas;
  const double* references;
  const double* inverse_scales;
  std::uint32_t* joint;
  std::uint32_t* marginal;
  double* scratch;  // aligned to a cache line

  static std::size_t scratch_length(std::size_t tile_sims, std::size_t n_sims, std::size_t n_dims,
                                    std::size_t n_repeats) {
    return tile_sims * n_dims * kTarpPass + n_repeats * n_sims * (n_dims + 1);
  }
};

// Coordinates of one block of draws; `draws`, `mean` and `squares` point at its first one.
struct MomentsBlock {
  const void* draws;
  std::size_t n_draws;
  std::size_t row;
  std::size_t length;
  double* mean;
  double* squares;
};

struct TarpKernels {
  const char* name;
  // Each returns whether everything was finite.
  bool (*counts_double)(const TarpBlock& block);
  bool (*counts_float)(const TarpBlock& block);
  bool (*moments_double)(const MomentsBlock& block);
  bool (*moments_float)(const MomentsBlock& block);
};

// The widest variant that this processor runs, or the one named by the environment variable DPINFER_SIMD; nullptr when
// that is not there.
const TarpKernels* tarp_kernels();

// A named variant, or nullptr when this build or this processor does not have it.
const TarpKernels* tarp_kernels(const char* name);

}  // namespace dpinfer::lab

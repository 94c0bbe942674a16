// The one source of randomness of the mechanism: ChaCha20 keystreams addressed by (domain, step, block).
//
// The nonce is (domain, low word of the step, high word of the step) and the block counter addresses a slice of that
// step's stream, so that any thread regenerates its own slice and no word is used for two purposes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mechanism/simd/kernel_table.hpp"

namespace dpinfer {

enum class RandomDomain : std::uint32_t {
  noise = 1,
  subsample = 2,
  subsample_ties = 3,
  monte_carlo = 4,
  noise_ties = 5
};

inline constexpr std::size_t kChaChaBlockBytes = 64;

struct RandomKey {
  std::uint32_t words[8];

  // From 32 bytes, little endian as in RFC 8439.
  static RandomKey from_bytes(const std::uint8_t* bytes);
};

// Writes `n_blocks` keystream blocks from block `counter` of the stream (domain, step).
void keystream(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
               std::uint32_t counter, std::size_t n_blocks, std::uint8_t* out);

// The same as little-endian 64-bit words, eight a block.
void keystream_words(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
                     std::uint32_t counter, std::size_t n_blocks, std::uint64_t* out);

// `n` independent standard normals of the stream (domain, step), by Box-Muller on 53-bit uniforms.
void standard_normals(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
                      std::size_t n, double* out);

}  // namespace dpinfer

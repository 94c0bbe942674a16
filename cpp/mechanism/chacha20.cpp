#include "mechanism/chacha20.hpp"

#include <algorithm>

namespace dpinfer {

RandomKey RandomKey::from_bytes(const std::uint8_t* bytes) {
  RandomKey key{};
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t byte = 0; byte < 4; ++byte) {
      key.words[i] |= static_cast<std::uint32_t>(bytes[4 * i + byte]) << (8 * byte);
    }
  }
  return key;
}

void keystream(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
               std::uint32_t counter, std::size_t n_blocks, std::uint8_t* out) {
  const std::uint32_t nonce[3] = {static_cast<std::uint32_t>(domain), static_cast<std::uint32_t>(step),
                                  static_cast<std::uint32_t>(step >> 32)};
  kernels.chacha20_blocks(key.words, nonce, counter, n_blocks, out);
}

void standard_normals(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
                      std::size_t n, double* out) {
  // A block gives four pairs of words; eight pairs are transformed at a time, and a few are kept on the stack.
  constexpr std::size_t kChunkBlocks = 16;
  constexpr std::size_t kChunkPairs = 4 * kChunkBlocks;
  std::uint8_t bytes[kChunkBlocks * kChaChaBlockBytes];
  std::uint64_t words[2 * kChunkPairs];
  double normals[2 * kChunkPairs];
  for (std::size_t first = 0; first < n; first += 2 * kChunkPairs) {
    const std::size_t here = std::min(n - first, 2 * kChunkPairs);
    const std::size_t n_pairs = (here + 15) / 16 * 8;
    keystream(kernels, key, domain, step, static_cast<std::uint32_t>(first / 8), n_pairs / 4, bytes);
    for (std::size_t i = 0; i < 2 * n_pairs; ++i) {
      std::uint64_t word = 0;
      for (std::size_t byte = 0; byte < 8; ++byte) {
        word |= static_cast<std::uint64_t>(bytes[8 * i + byte]) << (8 * byte);
      }
      words[i] = word;
    }
    kernels.box_muller(words, n_pairs, normals);
    for (std::size_t i = 0; i < here; ++i) out[first + i] = normals[i % 2 == 0 ? i / 2 : n_pairs + i / 2];
  }
}

}  // namespace dpinfer

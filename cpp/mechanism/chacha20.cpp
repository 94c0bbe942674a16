#include "mechanism/chacha20.hpp"

#include <algorithm>
#include <bit>

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

void keystream_words(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
                     std::uint32_t counter, std::size_t n_blocks, std::uint64_t* out) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  keystream(kernels, key, domain, step, counter, n_blocks, bytes);
  if constexpr (std::endian::native != std::endian::little) {
    for (std::size_t i = 0; i < 8 * n_blocks; ++i) std::reverse(bytes + 8 * i, bytes + 8 * i + 8);
  }
}

void standard_normals(const KernelTable& kernels, const RandomKey& key, RandomDomain domain, std::uint64_t step,
                      std::size_t n, double* out) {
  // A block gives four pairs of words; eight pairs are transformed at a time, and a few are kept on the stack.
  constexpr std::size_t kChunkBlocks = 16;
  constexpr std::size_t kChunk = 8 * kChunkBlocks;
  std::uint64_t words[kChunk];
  double normals[kChunk];
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t here = std::min(n - first, kChunk);
    const std::size_t n_pairs = (here + 15) / 16 * 8;
    keystream_words(kernels, key, domain, step, static_cast<std::uint32_t>(first / 8), n_pairs / 4, words);
    kernels.box_muller(words, n_pairs, normals);
    std::copy(normals, normals + here, out + first);
  }
}

}  // namespace dpinfer

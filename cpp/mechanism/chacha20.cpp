#include "mechanism/chacha20.hpp"

#include <algorithm>
#include <vector>

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
  // A block gives four pairs of words; eight pairs are transformed at a time.
  const std::size_t n_pairs = (n + 1) / 2;
  const std::size_t padded = (n_pairs + 7) / 8 * 8;
  const std::size_t n_blocks = padded / 4;
  std::vector<std::uint8_t> bytes(n_blocks * kChaChaBlockBytes);
  keystream(kernels, key, domain, step, 0, n_blocks, bytes.data());
  std::vector<std::uint64_t> words(2 * padded);
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint64_t word = 0;
    for (std::size_t byte = 0; byte < 8; ++byte) {
      word |= static_cast<std::uint64_t>(bytes[8 * i + byte]) << (8 * byte);
    }
    words[i] = word;
  }
  std::vector<double> normals(2 * padded);
  kernels.box_muller(words.data(), padded, normals.data());
  for (std::size_t i = 0; i < n; ++i) out[i] = normals[i % 2 == 0 ? i / 2 : padded + i / 2];
}

}  // namespace dpinfer

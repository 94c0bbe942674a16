#include "mechanism/poisson_sample.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace dpinfer {

static_assert(std::endian::native == std::endian::little, "flags are scanned in little-endian words");

SampleThreshold SampleThreshold::from_rate(double rate) {
  if (rate >= 1.0) return {0, 0, true};
  const auto scaled = static_cast<std::uint64_t>(std::floor(std::ldexp(rate, 40)));
  return {static_cast<std::uint32_t>(scaled >> 32), static_cast<std::uint32_t>(scaled), false};
}

double SampleThreshold::effective_rate() const {
  return everything ? 1.0 : std::ldexp(static_cast<double>(byte) * 4294967296.0 + word, -40);
}

int poisson_sample(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, std::int64_t block,
                   std::int64_t n_rows, const SampleThreshold& threshold, std::int64_t* rows) {
  const std::int64_t first = block * kRowBlock;
  const int here = static_cast<int>(std::min(kRowBlock, n_rows - first));
  if (threshold.everything) {
    for (int i = 0; i < here; ++i) rows[i] = first + i;
    return here;
  }
  constexpr std::size_t kBlocks = static_cast<std::size_t>(kRowBlock) / kChaChaBlockBytes;
  std::uint8_t bytes[kBlocks * kChaChaBlockBytes];
  keystream(kernels, key, RandomDomain::subsample, step, static_cast<std::uint32_t>(block * kBlocks), kBlocks, bytes);
  // Bit 0 of a row's flag: it is in.  Bit 1: its byte ties, and a further word decides.
  std::uint8_t flags[kRowBlock] = {};
  const auto limit = static_cast<std::uint8_t>(threshold.byte);
  for (int i = 0; i < here; ++i) {
    flags[i] = static_cast<std::uint8_t>((bytes[i] < limit ? 1 : 0) | (bytes[i] == limit ? 2 : 0));
  }
  // One row in 256 ties; ties take the words of the block's tie stream in row order.
  std::uint8_t tie_bytes[kChaChaBlockBytes];
  std::uint32_t ties = 0;
  int count = 0;
  for (int base = 0; base < here; base += 8) {
    std::uint64_t chunk = 0;
    std::memcpy(&chunk, flags + base, sizeof chunk);
    while (chunk != 0) {
      const int bit = std::countr_zero(chunk);
      chunk &= chunk - 1;
      const int row = base + bit / 8;
      if (bit % 8 == 1) {
        const std::uint32_t slot = ties % 16;
        if (slot == 0) {
          keystream(kernels, key, RandomDomain::subsample_ties, step,
                    static_cast<std::uint32_t>(block * (kRowBlock / 16)) + ties / 16, 1, tie_bytes);
        }
        std::uint32_t word = 0;
        for (std::uint32_t b = 0; b < 4; ++b) word |= static_cast<std::uint32_t>(tie_bytes[4 * slot + b]) << (8 * b);
        ++ties;
        if (word >= threshold.word) continue;
      }
      rows[count++] = first + row;
    }
  }
  return count;
}

}  // namespace dpinfer

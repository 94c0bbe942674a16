#include "mechanism/rounded_gaussian.hpp"

#include <algorithm>
#include <bit>

#include "mechanism/exact_normal.hpp"
#include "mechanism/mutants.hpp"

namespace dpinfer {

namespace {

// Draws transformed at a time: as many as sixteen blocks of the keystream give.
constexpr std::size_t kChunkBlocks = 16;
constexpr std::size_t kChunk = 8 * kChunkBlocks;

struct NoiseStream {
  const KernelTable& kernels;
  const RandomKey& key;
  std::uint64_t step;

  // The words of the pairs from 4 first_block on.
  void read(std::size_t first_block, std::size_t n_blocks, std::uint64_t* words) const {
    keystream_words(kernels, key, RandomDomain::noise, step, static_cast<std::uint32_t>(first_block), n_blocks, words);
  }

  // Pair `pair` with the further bits that are its own: a block of another domain.
  struct FurtherBits {
    std::uint64_t radius[2], angle[2];
  };
  FurtherBits further_bits(std::size_t pair) const {
    std::uint64_t extra[8];
    keystream_words(kernels, key, RandomDomain::noise_ties, step, static_cast<std::uint32_t>(pair), 1, extra);
    return {{extra[0], extra[1]}, {extra[2], extra[3]}};
  }

  // By 192-bit arithmetic.
  RoundedPair exact(std::size_t pair, const std::uint64_t* pair_words, double stddev) const {
    const FurtherBits extra = further_bits(pair);
    return exact_rounded_pair({pair_words[0], pair_words[1]}, extra.radius, extra.angle, stddev);
  }

  // The same integers, by 128-bit arithmetic where that proves them.
  RoundedPair decided(std::size_t pair, const std::uint64_t* pair_words, double stddev) const {
    const FurtherBits extra = further_bits(pair);
    const std::uint64_t words[2] = {pair_words[0], pair_words[1]};
    RoundedPair found{};
    if (rounded_pair_128(words, extra.radius, extra.angle, stddev, found)) return found;
    return exact_rounded_pair(words, extra.radius, extra.angle, stddev);
  }
};

}  // namespace

std::int64_t add_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev,
                                  int n, std::int64_t* sums) {
  DPINFER_MUTATE(step = mutants::noise_step(step); mutants::before_noise(sums, n);
                 stddev = mutants::noise_stddev(stddev);)
  const NoiseStream stream{kernels, key, step};
  const auto length = static_cast<std::size_t>(n);
  std::uint64_t words[kChunk];
  std::int64_t rounded[kChunk];
  std::uint64_t unsure[kChunk / 64];
  std::int64_t n_exact = 0;
  for (std::size_t first = 0; first < length; first += kChunk) {
    const std::size_t here = std::min(length - first, kChunk);
    const std::size_t n_pairs = (here + 15) / 16 * 8;
    stream.read(first / 8, n_pairs / 4, words);
    kernels.round_normals(words, n_pairs, stddev, rounded, unsure);
    for (std::size_t group = 0; 64 * group < here; ++group) {
      for (std::uint64_t left = unsure[group]; left != 0; left &= left - 1) {
        const std::size_t i = 64 * group + static_cast<std::size_t>(std::countr_zero(left));
        const RoundedPair pair = stream.decided((first + i) / 2, words + i / 2 * 2, stddev);
        rounded[i] = i % 2 == 0 ? pair.cosine : pair.sine;
        n_exact += i < here ? 1 : 0;
      }
    }
    for (std::size_t i = 0; i < here; ++i) sums[first + i] += rounded[i];
  }
  DPINFER_MUTATE(mutants::after_noise(sums, n);)
  return n_exact;
}

void exact_rounded_gaussian(const KernelTable& kernels, const RandomKey& key, std::uint64_t step, double stddev, int n,
                            std::int64_t* draws) {
  const NoiseStream stream{kernels, key, step};
  const auto length = static_cast<std::size_t>(n);
  std::uint64_t words[8];
  for (std::size_t i = 0; i < length; i += 2) {
    if (i % 8 == 0) stream.read(i / 8, 1, words);
    const RoundedPair pair = stream.exact(i / 2, words + i % 8, stddev);
    draws[i] = pair.cosine;
    if (i + 1 < length) draws[i + 1] = pair.sine;
  }
}

}  // namespace dpinfer

// ChaCha20 (RFC 8439), several blocks at a time: lane i of a vector works on block counter + i.  With one lane
// (one_lane.hpp) a block at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

#if defined(__GNUC__) && !defined(DPINFER_ONE_LANE)
#define DPINFER_WORD_VECTORS
#endif

#if !defined(DPINFER_WORD_VECTORS)
constexpr int kBlockLanes = 1;
#elif defined(__AVX512F__)
constexpr int kBlockLanes = 16;
#elif defined(__AVX2__)
constexpr int kBlockLanes = 8;
#else
constexpr int kBlockLanes = 4;
#endif

#if defined(DPINFER_WORD_VECTORS)
using Words = std::uint32_t __attribute__((vector_size(kBlockLanes * 4)));
#else
using Words = std::uint32_t;
#endif

DPINFER_INLINE Words splat_word(std::uint32_t x) { return x - Words{}; }

template <int kBits>
DPINFER_INLINE Words rotate_left(const Words& x) {
  return (x << kBits) | (x >> (32 - kBits));
}

DPINFER_INLINE void quarter_round(Words& a, Words& b, Words& c, Words& d) {
  a += b;
  d = rotate_left<16>(d ^ a);
  c += d;
  b = rotate_left<12>(b ^ c);
  a += b;
  d = rotate_left<8>(d ^ a);
  c += d;
  b = rotate_left<7>(b ^ c);
}

// The first words of the state, and its last ones but for the counter's, initial[12].
DPINFER_INLINE void set_block(const std::uint32_t* key, const std::uint32_t* nonce, Words* initial) {
  initial[0] = splat_word(0x61707865u);  // "expand 32-byte k"
  initial[1] = splat_word(0x3320646eu);
  initial[2] = splat_word(0x79622d32u);
  initial[3] = splat_word(0x6b206574u);
  for (int i = 0; i < 8; ++i) initial[4 + i] = splat_word(key[i]);
  for (int i = 0; i < 3; ++i) initial[13 + i] = splat_word(nonce[i]);
}

// The sixteen words of the blocks with this initial state.
DPINFER_INLINE void scramble(const Words* initial, Words* x) {
  for (int i = 0; i < 16; ++i) x[i] = initial[i];
  for (int round = 0; round < 10; ++round) {
    quarter_round(x[0], x[4], x[8], x[12]);
    quarter_round(x[1], x[5], x[9], x[13]);
    quarter_round(x[2], x[6], x[10], x[14]);
    quarter_round(x[3], x[7], x[11], x[15]);
    quarter_round(x[0], x[5], x[10], x[15]);
    quarter_round(x[1], x[6], x[11], x[12]);
    quarter_round(x[2], x[7], x[8], x[13]);
    quarter_round(x[3], x[4], x[9], x[14]);
  }
  for (int i = 0; i < 16; ++i) x[i] += initial[i];
}

#if !defined(DPINFER_ONE_LANE)

// Shuffles within each 128 bits, as the instructions of the same names.
#if defined(DPINFER_WORD_VECTORS) && defined(__AVX512F__)
#define DPINFER_SHUFFLE_QUADS(a, b, i0, i1, i2, i3)                                                                   \
  __builtin_shufflevector(a, b, i0, i1, i2, i3, (i0) + 4, (i1) + 4, (i2) + 4, (i3) + 4, (i0) + 8, (i1) + 8, (i2) + 8, \
                          (i3) + 8, (i0) + 12, (i1) + 12, (i2) + 12, (i3) + 12)
#elif defined(DPINFER_WORD_VECTORS) && defined(__AVX2__)
#define DPINFER_SHUFFLE_QUADS(a, b, i0, i1, i2, i3) \
  __builtin_shufflevector(a, b, i0, i1, i2, i3, (i0) + 4, (i1) + 4, (i2) + 4, (i3) + 4)
#elif defined(DPINFER_WORD_VECTORS)
#define DPINFER_SHUFFLE_QUADS(a, b, i0, i1, i2, i3) __builtin_shufflevector(a, b, i0, i1, i2, i3)
#endif

// Writes sixteen words of kBlockLanes blocks as kBlockLanes blocks of sixteen words.
DPINFER_INLINE void store_blocks(const Words* x, std::uint8_t* out) {
#if defined(DPINFER_WORD_VECTORS)
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are stored as they lie");
  for (int g = 0; g < 4; ++g) {
    const Words* w = x + 4 * g;
    const Words low01 = DPINFER_SHUFFLE_QUADS(w[0], w[1], 0, kBlockLanes, 1, kBlockLanes + 1);
    const Words high01 = DPINFER_SHUFFLE_QUADS(w[0], w[1], 2, kBlockLanes + 2, 3, kBlockLanes + 3);
    const Words low23 = DPINFER_SHUFFLE_QUADS(w[2], w[3], 0, kBlockLanes, 1, kBlockLanes + 1);
    const Words high23 = DPINFER_SHUFFLE_QUADS(w[2], w[3], 2, kBlockLanes + 2, 3, kBlockLanes + 3);
    // The q-th 128 bits of quads[c]: words 4 g ... 4 g + 3 of block 4 q + c.
    const Words quads[4] = {DPINFER_SHUFFLE_QUADS(low01, low23, 0, 1, kBlockLanes, kBlockLanes + 1),
                            DPINFER_SHUFFLE_QUADS(low01, low23, 2, 3, kBlockLanes + 2, kBlockLanes + 3),
                            DPINFER_SHUFFLE_QUADS(high01, high23, 0, 1, kBlockLanes, kBlockLanes + 1),
                            DPINFER_SHUFFLE_QUADS(high01, high23, 2, 3, kBlockLanes + 2, kBlockLanes + 3)};
    for (int c = 0; c < 4; ++c) {
      std::uint8_t bytes[sizeof(Words)];
      std::memcpy(bytes, &quads[c], sizeof bytes);
      for (int q = 0; q < kBlockLanes / 4; ++q) std::memcpy(out + 64 * (4 * q + c) + 16 * g, bytes + 16 * q, 16);
    }
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int byte = 0; byte < 4; ++byte) out[4 * i + byte] = static_cast<std::uint8_t>(x[i] >> (8 * byte));
  }
#endif
}

void chacha20_blocks(const std::uint32_t key[8], const std::uint32_t nonce[3], std::uint32_t counter,
                     std::size_t n_blocks, std::uint8_t* out) {
  Words initial[16];
  set_block(key, nonce, initial);
  for (std::size_t first = 0; first < n_blocks; first += kBlockLanes) {
    std::uint32_t lanes[kBlockLanes];
    for (int lane = 0; lane < kBlockLanes; ++lane) {
      lanes[lane] = counter + static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(lane);
    }
    std::memcpy(&initial[12], lanes, sizeof(Words));
    Words x[16];
    scramble(initial, x);
    if (n_blocks - first >= kBlockLanes) {
      store_blocks(x, out + 64 * first);
    } else {
      std::uint8_t blocks[64 * kBlockLanes];
      store_blocks(x, blocks);
      std::memcpy(out + 64 * first, blocks, 64 * (n_blocks - first));
    }
  }
}

#endif

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

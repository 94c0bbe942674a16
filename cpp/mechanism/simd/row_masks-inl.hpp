// Sets of rows as bits: from bytes and a threshold, and to lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Eight flags of 0 or 1 as bits: the multiplication moves the bit of byte k to bit 56 + k.
[[maybe_unused]] DPINFER_INLINE std::uint64_t pack_flags(const std::uint8_t* flags) {
  std::uint64_t eight = 0;
  for (int byte = 0; byte < 8; ++byte) eight |= static_cast<std::uint64_t>(flags[byte]) << (8 * byte);
  return (eight * 0x0102040810204080ULL) >> 56;
}

void threshold_masks(const std::uint8_t* bytes, std::size_t n, std::uint8_t limit, std::uint64_t* at_most,
                     std::uint64_t* equal) {
  for (std::size_t i = 0; i < n; i += 64) {
#if defined(__GNUC__) && defined(__AVX512BW__)
    __m512i chunk;
    std::memcpy(&chunk, bytes + i, sizeof chunk);
    const __m512i limits = _mm512_set1_epi8(static_cast<char>(limit));
    at_most[i / 64] = _mm512_cmple_epu8_mask(chunk, limits);
    equal[i / 64] = _mm512_cmpeq_epu8_mask(chunk, limits);
#elif defined(__GNUC__) && defined(__AVX2__)
    const __m256i limits = _mm256_set1_epi8(static_cast<char>(limit));
    at_most[i / 64] = 0;
    equal[i / 64] = 0;
    for (std::size_t k = 0; k < 64; k += 32) {
      __m256i chunk;
      std::memcpy(&chunk, bytes + i + k, sizeof chunk);
      const __m256i below = _mm256_cmpeq_epi8(_mm256_min_epu8(chunk, limits), chunk);
      const __m256i same = _mm256_cmpeq_epi8(chunk, limits);
      at_most[i / 64] |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(below))} << k;
      equal[i / 64] |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(same))} << k;
    }
#else
    std::uint8_t below[64];
    std::uint8_t same[64];
    for (std::size_t k = 0; k < 64; ++k) below[k] = bytes[i + k] <= limit ? 1 : 0;
    for (std::size_t k = 0; k < 64; ++k) same[k] = bytes[i + k] == limit ? 1 : 0;
    at_most[i / 64] = 0;
    equal[i / 64] = 0;
    for (int k = 0; k < 64; k += 8) {
      at_most[i / 64] |= pack_flags(below + k) << k;
      equal[i / 64] |= pack_flags(same + k) << k;
    }
#endif
  }
}

int list_rows(const std::uint64_t* masks, int n, std::int64_t first, std::int64_t* rows) {
  int count = 0;
  for (int i = 0; i < n; ++i) {
    std::uint64_t mask = masks[i];
#if defined(__GNUC__)
    // Eight rows at a time, however few are left: what is written beyond them is overwritten, and a branch that the
    // processor cannot foresee costs more than eight stores.
    const int here = __builtin_popcountll(mask);
    for (int k = 0; k < here; k += 8) {
      for (int offset = 0; offset < 8; ++offset) {
        rows[count + k + offset] = first + 64 * i + __builtin_ctzll(mask | (std::uint64_t{1} << 63));
        mask &= mask - 1;
      }
    }
    count += here;
#else
    for (int bit = 0; mask != 0; ++bit, mask >>= 1) {
      if ((mask & 1) != 0) rows[count++] = first + 64 * i + bit;
    }
#endif
  }
  return count;
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT

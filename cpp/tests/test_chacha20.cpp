// ChaCha20 against the test vectors of RFC 8439, the same in every variant; Poisson sampling and normals.
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "check.hpp"
#include "mechanism/chacha20.hpp"
#include "mechanism/poisson_sample.hpp"

using namespace dpinfer;

namespace {

void rfc_vector(const KernelTable& kernels) {
  // RFC 8439, section 2.3.2.
  std::uint8_t bytes[32];
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const RandomKey key = RandomKey::from_bytes(bytes);
  const std::uint32_t nonce[3] = {0x09000000u, 0x4a000000u, 0x00000000u};
  std::uint8_t out[64];
  kernels.chacha20_blocks(key.words, nonce, 1, 1, out);
  const std::uint8_t want[64] = {0x10, 0xf1, 0xe7, 0xe4, 0xd1, 0x3b, 0x59, 0x15, 0x50, 0x0f, 0xdd, 0x1f, 0xa3,
                                 0x20, 0x71, 0xc4, 0xc7, 0xd1, 0xf4, 0xc7, 0x33, 0xc0, 0x68, 0x03, 0x04, 0x22,
                                 0xaa, 0x9a, 0xc3, 0xd4, 0x6c, 0x4e, 0xd2, 0x82, 0x64, 0x46, 0x07, 0x9f, 0xaa,
                                 0x09, 0x14, 0xc2, 0xd7, 0x05, 0xd9, 0x8b, 0x02, 0xa2, 0xb5, 0x12, 0x9c, 0xd1,
                                 0xde, 0x16, 0x4e, 0xb9, 0xcb, 0xd0, 0x83, 0xe8, 0xa2, 0x50, 0x3c, 0x4e};
  CHECK(std::memcmp(out, want, 64) == 0);

  // RFC 8439, appendix A.1, test vector 1: all zero.
  const RandomKey zero{};
  const std::uint32_t zero_nonce[3] = {0, 0, 0};
  kernels.chacha20_blocks(zero.words, zero_nonce, 0, 1, out);
  const std::uint8_t head[8] = {0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90};
  CHECK(std::memcmp(out, head, 8) == 0);

  // Many blocks equal the blocks one at a time, whatever the number of lanes.
  std::vector<std::uint8_t> many(64 * 37);
  kernels.chacha20_blocks(key.words, nonce, 0xfffffff0u, 37, many.data());
  for (std::uint32_t i = 0; i < 37; ++i) {
    kernels.chacha20_blocks(key.words, nonce, 0xfffffff0u + i, 1, out);
    CHECK(std::memcmp(out, many.data() + 64 * i, 64) == 0);
  }
}

void sampling(const KernelTable& kernels) {
  const RandomKey key{{1, 2, 3, 4, 5, 6, 7, 8}};
  std::int64_t rows[kRowBlock];
  for (const double rate : {0.001, 0.1, 0.5, 0.999}) {
    const auto threshold = SampleThreshold::from_rate(rate);
    CHECK(threshold.effective_rate() <= rate);
    CHECK(rate - threshold.effective_rate() < 1e-12);
    std::int64_t total = 0;
    const std::int64_t n_steps = 400;
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      total += poisson_sample(kernels, key, step, 3, 4 * kRowBlock, threshold, rows);
    }
    const double n = static_cast<double>(n_steps * kRowBlock);
    CHECK(std::fabs(static_cast<double>(total) - n * rate) < 6.0 * std::sqrt(n * rate * (1.0 - rate)));
  }
  CHECK(poisson_sample(kernels, key, 0, 0, 5, SampleThreshold::from_rate(1.0), rows) == 5);
  CHECK(poisson_sample(kernels, key, 0, 0, 5, SampleThreshold::from_rate(1e-13), rows) == 0);
}

void normals(const KernelTable& kernels) {
  const RandomKey key{{9, 8, 7, 6, 5, 4, 3, 2}};
  std::vector<double> z(200001);
  standard_normals(kernels, key, RandomDomain::noise, 77, z.size(), z.data());
  double sum = 0.0;
  double square = 0.0;
  double fourth = 0.0;
  for (const double x : z) {
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  const double n = static_cast<double>(z.size());
  CHECK(std::fabs(sum / n) < 6.0 / std::sqrt(n));
  CHECK(std::fabs(square / n - 1.0) < 6.0 * std::sqrt(2.0 / n));
  CHECK(std::fabs(fourth / n - 3.0) < 6.0 * std::sqrt(96.0 / n));
  // A shorter request is a prefix in pairs: numbers do not depend on how many are asked for, up to padding.
  std::vector<double> few(16);
  std::vector<double> fewer(15);
  standard_normals(kernels, key, RandomDomain::noise, 77, few.size(), few.data());
  standard_normals(kernels, key, RandomDomain::noise, 77, fewer.size(), fewer.data());
  for (std::size_t i = 0; i < fewer.size(); ++i) CHECK(few[i] == fewer[i] && few[i] == z[i]);
}

}  // namespace

int main() {
  for (const char* name : {"portable", "avx2", "avx512"}) {
    const KernelTable* kernels = kernel_table(name);
    if (kernels == nullptr) continue;
    rfc_vector(*kernels);
    sampling(*kernels);
    normals(*kernels);
  }
  CHECK(kernel_table("no such variant") == nullptr);
  return check_result();
}

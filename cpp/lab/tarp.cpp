#include "lab/tarp.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "common/aligned.hpp"
#include "common/parallel.hpp"
#include "common/simd_dispatch.hpp"

DPINFER_SIMD_COPIES(dpinfer::lab::TarpKernels, kTarpKernels)

namespace dpinfer::lab {

const TarpKernels* tarp_kernels(const char* name) { return kTarpKernelsCopies.named(name); }
const TarpKernels* tarp_kernels() { return kTarpKernelsCopies.best(); }

namespace {

constexpr std::size_t kTileCoordinates = 128;  // rearranged together: 16 KiB, half a first-level cache
constexpr std::size_t kBlockBytes =
    512u << 10u;  // reference points, truths and counters of a block stay in a second-level cache
constexpr std::size_t kMomentsBlock = 1024;       // coordinates whose sums stay in a first-level cache
constexpr std::size_t kWorthThreads = 1u << 16u;  // below this many numbers, starting threads costs more than it saves
constexpr std::size_t kBlocksPerThread = 4;       // so that a thread that was held up does not hold up the others

bool all_finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

std::size_t length_of(const Draws& draws) {
  return std::visit([](const auto& values) { return values.size(); }, draws);
}

const std::byte* bytes_of(const Draws& draws) {
  return std::visit([](const auto& values) { return reinterpret_cast<const std::byte*>(values.data()); }, draws);
}

bool well_shaped(const TarpView& view) {
  if (view.n_draws == 0 || view.n_sims == 0 || view.n_dims == 0) return false;
  // A doubled count fits 32 bits.
  return view.n_draws <= std::numeric_limits<std::uint32_t>::max() / 2 &&
         length_of(view.draws) == view.n_draws * view.n_sims * view.n_dims;
}

// Runs work(worker, block) for every block < blocks; returns whether all of them did.
template <typename Work>
bool every_block(std::size_t blocks, int team, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> good{true};
#pragma omp parallel for num_threads(team) schedule(static, 1) if (team > 1)
  for (int worker = 0; worker < team; ++worker) {
    for (std::size_t block = next.fetch_add(1); block < blocks; block = next.fetch_add(1)) {
      if (!work(static_cast<std::size_t>(worker), block)) good.store(false);
    }
  }
  return good.load();
}

}  // namespace

TarpStatus tarp_counts(const TarpKernels& kernels, const TarpView& view, const TarpQuestion& question, int threads,
                       const TarpCounts& out) {
  const std::size_t d = view.n_dims;
  const std::size_t row = view.n_sims * d;
  if (!well_shaped(view) || question.thetas.size() != row || question.inverse_scales.size() != row ||
      question.references.empty() || question.references.size() % row != 0) {
    return TarpStatus::kBadShape;
  }
  const std::size_t repeats = question.references.size() / row;
  if (out.joint.size() != repeats * view.n_sims || out.marginal.size() != repeats * row) return TarpStatus::kBadShape;
  if (!all_finite(question.thetas) || !all_finite(question.references) || !all_finite(question.inverse_scales)) {
    return TarpStatus::kNotFinite;
  }
  const int team = view.n_draws * row < kWorthThreads ? 1 : resolve_threads(threads);
  const std::size_t per_sim = d * (sizeof(double) + repeats * (2 * sizeof(double) + sizeof(std::uint32_t)));
  const std::size_t fair = view.n_sims / (static_cast<std::size_t>(team) * kBlocksPerThread);
  const std::size_t tile_sims = std::max<std::size_t>(1, kTileCoordinates / d);
  const std::size_t block_sims =
      std::min(view.n_sims, std::max(tile_sims, std::min(kBlockBytes / per_sim, std::max<std::size_t>(1, fair))));
  const std::size_t blocks = (view.n_sims + block_sims - 1) / block_sims;
  // Whole cache lines per worker.
  const std::size_t scratch_length = (TarpBlock::scratch_length(tile_sims, block_sims, d, repeats) + 7) / 8 * 8;
  AlignedVector<double> scratch(scratch_length * static_cast<std::size_t>(team));
  const bool narrow = std::holds_alternative<std::span<const float>>(view.draws);
  const std::size_t width = narrow ? sizeof(float) : sizeof(double);
  const std::byte* draws = bytes_of(view.draws);
  const bool finite = every_block(blocks, team, [&](std::size_t worker, std::size_t block) {
    const std::size_t first = block * block_sims;
    const TarpBlock task{draws + first * d * width,
                         view.n_draws,
                         row,
                         view.n_sims,
                         std::min(block_sims, view.n_sims - first),
                         d,
                         repeats,
                         tile_sims,
                         question.thetas.data() + first * d,
                         question.references.data() + first * d,
                         question.inverse_scales.data() + first * d,
                         out.joint.data() + first,
                         out.marginal.data() + first * d,
                         scratch.data() + worker * scratch_length};
    return narrow ? kernels.counts_float(task) : kernels.counts_double(task);
  });
  return finite ? TarpStatus::kOk : TarpStatus::kNotFinite;
}

TarpStatus draw_moments(const TarpKernels& kernels, const TarpView& view, int threads, std::span<double> mean,
                        std::span<double> squares) {
  const std::size_t row = view.n_sims * view.n_dims;
  if (!well_shaped(view) || mean.size() != row || squares.size() != row) return TarpStatus::kBadShape;
  const int team = view.n_draws * row < kWorthThreads ? 1 : resolve_threads(threads);
  const bool narrow = std::holds_alternative<std::span<const float>>(view.draws);
  const std::size_t width = narrow ? sizeof(float) : sizeof(double);
  const std::byte* draws = bytes_of(view.draws);
  const bool finite = every_block((row + kMomentsBlock - 1) / kMomentsBlock, team, [&](std::size_t, std::size_t block) {
    const std::size_t first = block * kMomentsBlock;
    const MomentsBlock task{draws + first * width, view.n_draws,          row, std::min(kMomentsBlock, row - first),
                            mean.data() + first,   squares.data() + first};
    return narrow ? kernels.moments_float(task) : kernels.moments_double(task);
  });
  return finite ? TarpStatus::kOk : TarpStatus::kNotFinite;
}

}  // namespace dpinfer::lab

// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
//
// A tile of draws is rearranged so that eight draws of one coordinate lie side by side, one per lane: then the squared
// distance of a draw is a plain sum down the coordinates in its own lane, whatever the number of dimensions, and one
// tile serves every reference point.
#include "lab/tarp_kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

using lab::kTarpPass;
using lab::MomentsBlock;
using lab::TarpBlock;
using lab::TarpKernels;

constexpr std::size_t kGroup = static_cast<std::size_t>(kLanes);
constexpr std::size_t kGroups = kTarpPass / kGroup;

// Counts lanes over several vectors; comparisons with NaN are false.
class LaneCount {
 public:
#if defined(__GNUC__) && defined(__AVX512F__)
  DPINFER_INLINE void add_less(const Vec& a, const Vec& b) {
    total_ += __builtin_popcount(_mm512_cmp_pd_mask(a.part[0], b.part[0], _CMP_LT_OQ));
  }
  DPINFER_INLINE void add_less_equal(const Vec& a, const Vec& b) {
    total_ += __builtin_popcount(_mm512_cmp_pd_mask(a.part[0], b.part[0], _CMP_LE_OQ));
  }
  DPINFER_INLINE std::uint32_t total() const { return static_cast<std::uint32_t>(total_); }

 private:
  int total_ = 0;
#else
  // A true comparison is a lane of ones, that is -1: subtracting it counts.
  DPINFER_INLINE void add_less(const Vec& a, const Vec& b) {
    for (int p = 0; p < kParts; ++p) lanes_ -= as_count(a.part[p] < b.part[p]);
  }
  DPINFER_INLINE void add_less_equal(const Vec& a, const Vec& b) {
    for (int p = 0; p < kParts; ++p) lanes_ -= as_count(a.part[p] <= b.part[p]);
  }
  DPINFER_INLINE std::uint32_t total() const {
#if defined(__GNUC__)
    std::int64_t sum = 0;
    for (int i = 0; i < kNativeLanes; ++i) sum += lanes_[i];
    return static_cast<std::uint32_t>(sum);
#else
    return static_cast<std::uint32_t>(lanes_);
#endif
  }

 private:
#if defined(__GNUC__)
  static DPINFER_INLINE NativeInt as_count(const NativeInt& mask) { return mask; }
#else
  static DPINFER_INLINE NativeInt as_count(bool hit) { return hit ? -1 : 0; }
#endif
  NativeInt lanes_ = {};
#endif
};

DPINFER_INLINE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

DPINFER_INLINE void fetch_ahead(const void* address) {
#if defined(__GNUC__)
  __builtin_prefetch(address, 0, 2);
#else
  (void)address;
#endif
}

// Coordinates [0, length) of `count` draws of one group; `lanes` is the group's place in the tile, whose coordinates
// lie kTarpPass numbers apart.  Lanes without a draw hold NaN, which no comparison counts.
template <typename Scalar>
DPINFER_INLINE void rearrange(const Scalar* draws, std::size_t row, std::size_t count, std::size_t length,
                              double* lanes) {
  if (count == kGroup && length >= kGroup) {
    for (std::size_t at = 0; at < length; at += kGroup) {
      const std::size_t i = smaller(at, length - kGroup);  // the last step overlaps the one before
      Vec rows[kLanes];
      load_transposed(draws + i, row, rows);
      for (std::size_t lane = 0; lane < kGroup; ++lane) fetch_ahead(draws + lane * row + i + length);
      for (std::size_t lane = 0; lane < kGroup; ++lane) store(lanes + (i + lane) * kTarpPass, rows[lane]);
    }
    return;
  }
  for (std::size_t i = 0; i < length; ++i) {
    for (std::size_t lane = 0; lane < kGroup; ++lane) {
      lanes[i * kTarpPass + lane] =
          lane < count ? static_cast<double>(draws[lane * row + i]) : std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// One simulation, one reference point, kTarpPass draws.  `limits` holds the squared distances of theta, coordinate by
// coordinate and then their sum.  Returns how many draws have a finite distance.
DPINFER_INLINE std::uint32_t count_pass(const double* lanes, const double* reference, const double* inverse_scale,
                                        const double* limits, std::size_t n_dims, std::uint32_t* joint,
                                        std::uint32_t* marginal) {
  Vec distance[kGroups];
  for (std::size_t g = 0; g < kGroups; ++g) distance[g] = splat(0.0);
  for (std::size_t j = 0; j < n_dims; ++j) {
    const Vec centre = splat(reference[j]);
    const Vec scale = splat(inverse_scale[j]);
    const Vec limit = splat(limits[j]);
    LaneCount near;
    for (std::size_t g = 0; g < kGroups; ++g) {
      const Vec scaled = (load(lanes + j * kTarpPass + g * kGroup) - centre) * scale;
      const Vec squared = scaled * scaled;
      near.add_less(squared, limit);
      near.add_less_equal(squared, limit);
      distance[g] = distance[g] + squared;
    }
    marginal[j] += near.total();
  }
  LaneCount near;
  LaneCount finite;
  const Vec limit = splat(limits[n_dims]);
  const Vec infinity = splat(std::numeric_limits<double>::infinity());
  for (std::size_t g = 0; g < kGroups; ++g) {
    near.add_less(distance[g], limit);
    near.add_less_equal(distance[g], limit);
    finite.add_less(distance[g], infinity);
  }
  *joint += near.total();
  return finite.total();
}

// Clears the counters and computes the squared distances of theta by the operations that the draws see: an equal draw
// is an exact tie.
bool prepare(const TarpBlock& block, double* limits) {
  const std::size_t d = block.n_dims;
  bool finite = true;
  for (std::size_t r = 0; r < block.n_repeats; ++r) {
    for (std::size_t k = 0; k < block.n_sims; ++k) {
      const double* reference = block.references + r * block.row + k * d;
      double* own = limits + (r * block.n_sims + k) * (d + 1);
      double sum = 0.0;
      for (std::size_t j = 0; j < d; ++j) {
        const double scaled = (block.thetas[k * d + j] - reference[j]) * block.inverse_scales[k * d + j];
        own[j] = scaled * scaled;
        sum = sum + own[j];
      }
      own[d] = sum;
      finite = finite && sum < std::numeric_limits<double>::infinity();
      block.joint[r * block.sims + k] = 0;
    }
    for (std::size_t i = 0; i < block.n_sims * d; ++i) block.marginal[r * block.row + i] = 0;
  }
  return finite;
}

template <typename Scalar>
bool counts(const TarpBlock& block) {
  const std::size_t d = block.n_dims;
  double* tile = block.scratch;
  double* limits = block.scratch + block.tile_sims * d * kTarpPass;
  bool finite = prepare(block, limits);
  for (std::size_t s = 0; s < block.n_draws; s += kTarpPass) {
    const std::size_t present = smaller(kTarpPass, block.n_draws - s);
    for (std::size_t first = 0; first < block.n_sims; first += block.tile_sims) {
      const std::size_t sims = smaller(block.tile_sims, block.n_sims - first);
      const Scalar* draws = static_cast<const Scalar*>(block.draws) + s * block.row + first * d;
      for (std::size_t g = 0; g < kGroups; ++g) {
        const std::size_t before = smaller(g * kGroup, present);
        rearrange(draws + before * block.row, block.row, smaller(kGroup, present - before), sims * d,
                  tile + g * kGroup);
      }
      for (std::size_t r = 0; r < block.n_repeats; ++r) {
        for (std::size_t k = 0; k < sims; ++k) {
          const std::size_t sim = first + k;
          const std::size_t at = r * block.row + sim * d;
          const std::uint32_t good = count_pass(
              tile + k * d * kTarpPass, block.references + at, block.inverse_scales + sim * d,
              limits + (r * block.n_sims + sim) * (d + 1), d, block.joint + r * block.sims + sim, block.marginal + at);
          finite = finite && good == present;
        }
      }
    }
  }
  return finite;
}

// Differences from the first draw keep the squares from cancelling.
template <typename Scalar>
bool moments(const MomentsBlock& block) {
  const auto* origin = static_cast<const Scalar*>(block.draws);
  for (std::size_t i = 0; i < block.length; ++i) {
    block.mean[i] = 0.0;
    block.squares[i] = 0.0;
  }
  for (std::size_t s = 1; s < block.n_draws; ++s) {
    const Scalar* draws = origin + s * block.row;
    std::size_t i = 0;
    for (; i + kGroup <= block.length; i += kGroup) {
      const Vec offset = load_as_double(draws + i) - load_as_double(origin + i);
      fetch_ahead(draws + block.row + i);
      store(block.mean + i, load(block.mean + i) + offset);
      store(block.squares + i, load(block.squares + i) + offset * offset);
    }
    for (; i < block.length; ++i) {
      const double offset = static_cast<double>(draws[i]) - static_cast<double>(origin[i]);
      block.mean[i] += offset;
      block.squares[i] += offset * offset;
    }
  }
  const auto count = static_cast<double>(block.n_draws);
  bool finite = true;
  for (std::size_t i = 0; i < block.length; ++i) {
    const double shift = block.mean[i] / count;
    const double centred = block.squares[i] - shift * block.mean[i];
    block.mean[i] = static_cast<double>(origin[i]) + shift;
    block.squares[i] = centred > 0.0 ? centred : 0.0;
    // Not finite when a draw, the mean or the sum of squares is not.
    finite = finite && (block.mean[i] + centred) - (block.mean[i] + centred) == 0.0;
  }
  return finite;
}

}  // namespace

extern const TarpKernels kTarpKernels;
const TarpKernels kTarpKernels = {DPINFER_VARIANT_NAME, counts<double>, counts<float>, moments<double>, moments<float>};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT

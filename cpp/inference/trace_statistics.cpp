#include "inference/trace_statistics.hpp"

#include <algorithm>
#include <cstdint>

#include "common/parallel.hpp"

namespace dpinfer::inference {
namespace {

constexpr std::size_t kChunk = 256;   // steps centred together: large against the merge, small against a cache
constexpr std::size_t kGramTile = 8;  // rows of the Gram matrix that one thread keeps in its first-level cache
constexpr std::size_t kWorthThreads = 1u << 17u;  // below this many numbers, starting threads costs more than it saves

std::size_t chunks_in(std::size_t first, std::size_t last) { return (last - first + kChunk - 1) / kChunk; }

// Statistics of the steps first <= t < last into rows (kTraceFields, k).
void centre_chunk(const TraceView& trace, std::size_t first, std::size_t last, double* rows) {
  const std::size_t k = trace.coordinates;
  const bool varies = trace.noise_stddev.size() != k;
  double* weight = rows + kWeight * k;
  double* mx = rows + kPositionMean * k;
  double* mg = rows + kGradientMean * k;
  double* xx = rows + kXX * k;
  double* xg = rows + kXG * k;
  double* gg = rows + kGG * k;
  std::fill(rows, rows + kTraceFields * k, 0.0);
  const auto squared_ratio = [&](std::size_t j, double stddev) {
    const double ratio = trace.reference[j] / stddev;
    return ratio * ratio;
  };
  // Relative to the weight that all steps have in common, where they have one.
  const auto w_at = [&](std::size_t t, std::size_t j) {
    return varies ? squared_ratio(j, trace.noise_stddev[t * k + j]) : 1.0;
  };
  for (std::size_t t = first; t < last; ++t) {
    const double* x = trace.positions.data() + t * k;
    const double* g = trace.gradients.data() + t * k;
    for (std::size_t j = 0; j < k; ++j) {
      const double w = w_at(t, j);
      weight[j] += w;
      mx[j] += w * x[j];
      mg[j] += w * g[j];
    }
  }
  for (std::size_t j = 0; j < k; ++j) {
    mx[j] /= weight[j];
    mg[j] /= weight[j];
  }
  for (std::size_t t = first; t < last; ++t) {
    const double* x = trace.positions.data() + t * k;
    const double* g = trace.gradients.data() + t * k;
    for (std::size_t j = 0; j < k; ++j) {
      const double dx = x[j] - mx[j];
      const double dg = g[j] - mg[j];
      const double w = w_at(t, j);
      xx[j] += w * dx * dx;
      xg[j] += w * dx * dg;
      gg[j] += w * dg * dg;
    }
  }
  for (std::size_t j = 0; !varies && j < k; ++j) {
    const double w = squared_ratio(j, trace.noise_stddev[j]);
    for (double* sums : {weight, xx, xg, gg}) sums[j] *= w;
  }
}

// Chan's update of `total` by `part`, both (kTraceFields, k).
void merge(double* total, const double* part, std::size_t k) {
  for (std::size_t j = 0; j < k; ++j) {
    const double w = total[kWeight * k + j] + part[kWeight * k + j];
    const double share = part[kWeight * k + j] / w;
    const double cross = total[kWeight * k + j] * share;
    const double dx = part[kPositionMean * k + j] - total[kPositionMean * k + j];
    const double dg = part[kGradientMean * k + j] - total[kGradientMean * k + j];
    total[kWeight * k + j] = w;
    total[kPositionMean * k + j] += share * dx;
    total[kGradientMean * k + j] += share * dg;
    total[kXX * k + j] += part[kXX * k + j] + cross * dx * dx;
    total[kXG * k + j] += part[kXG * k + j] + cross * dx * dg;
    total[kGG * k + j] += part[kGG * k + j] + cross * dg * dg;
  }
}

}  // namespace

std::size_t trace_scratch_size(std::span<const std::size_t> boundaries, std::size_t coordinates) {
  std::size_t chunks = 0;
  for (std::size_t s = 0; s + 1 < boundaries.size(); ++s) {
    if (boundaries[s] < boundaries[s + 1]) chunks += chunks_in(boundaries[s], boundaries[s + 1]);
  }
  return chunks * kTraceFields * coordinates;
}

StatisticsStatus trace_statistics(const TraceView& trace, std::span<const std::size_t> boundaries, int threads,
                                  std::span<double> scratch, std::span<double> out) {
  const std::size_t k = trace.coordinates;
  const std::size_t cells = trace.steps * k;
  if (boundaries.size() < 2 || k == 0 || trace.positions.size() != cells || trace.gradients.size() != cells ||
      (trace.noise_stddev.size() != k && trace.noise_stddev.size() != cells) || trace.reference.size() != k) {
    return StatisticsStatus::kBadShape;
  }
  const std::size_t segments = boundaries.size() - 1;
  for (std::size_t s = 0; s < segments; ++s) {
    if (boundaries[s] >= boundaries[s + 1] || boundaries[s + 1] > trace.steps) return StatisticsStatus::kBadShape;
  }
  const std::size_t row = kTraceFields * k;
  if (scratch.size() < trace_scratch_size(boundaries, k) || out.size() != segments * row) {
    return StatisticsStatus::kBadShape;
  }
  const int team = cells < kWorthThreads ? 1 : resolve_threads(threads);
  std::size_t offset = 0;
  for (std::size_t s = 0; s < segments; ++s) {
    const std::size_t first = boundaries[s];
    const std::size_t last = boundaries[s + 1];
    const auto chunks = static_cast<std::int64_t>(chunks_in(first, last));
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1 && chunks > 1)
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::size_t begin = first + static_cast<std::size_t>(c) * kChunk;
      centre_chunk(trace, begin, std::min(begin + kChunk, last),
                   scratch.data() + (offset + static_cast<std::size_t>(c)) * row);
    }
    double* total = out.data() + s * row;
    std::copy_n(scratch.data() + offset * row, row, total);
    for (std::int64_t c = 1; c < chunks; ++c) {
      merge(total, scratch.data() + (offset + static_cast<std::size_t>(c)) * row, k);
    }
    offset += static_cast<std::size_t>(chunks);
  }
  return StatisticsStatus::kOk;
}

StatisticsStatus gram_statistics(std::span<const double> positions, std::span<const double> gradients,
                                 std::span<const double> weights, std::size_t coordinates, std::size_t responses,
                                 int threads, GramOutput out) {
  const std::size_t steps = weights.size();
  const std::size_t k = coordinates;
  const std::size_t m = responses;
  if (steps == 0 || k == 0 || m == 0 || positions.size() != steps * k || gradients.size() != steps * m ||
      out.position_mean.size() != k || out.gradient_mean.size() != m || out.xx.size() != k * k ||
      out.xg.size() != k * m || out.gg.size() != m) {
    return StatisticsStatus::kBadShape;
  }
  for (const std::span<double> cells : {out.position_mean, out.gradient_mean, out.xx, out.xg, out.gg}) {
    std::fill(cells.begin(), cells.end(), 0.0);
  }
  double total = 0.0;
  for (std::size_t t = 0; t < steps; ++t) {
    const double w = weights[t];
    total += w;
    for (std::size_t j = 0; j < k; ++j) out.position_mean[j] += w * positions[t * k + j];
    for (std::size_t j = 0; j < m; ++j) out.gradient_mean[j] += w * gradients[t * m + j];
  }
  for (double& value : out.position_mean) value /= total;
  for (double& value : out.gradient_mean) value /= total;
  const int team = steps * k * (k + m) < kWorthThreads ? 1 : resolve_threads(threads);
  const auto tiles = static_cast<std::int64_t>((k + kGramTile - 1) / kGramTile);
  // Every output element is summed over t in order by one thread, whatever the number of threads.
#pragma omp parallel for num_threads(team) schedule(static) if (team > 1)
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::size_t first = static_cast<std::size_t>(tile) * kGramTile;
    const std::size_t last = std::min(first + kGramTile, k);
    for (std::size_t t = 0; t < steps; ++t) {
      const double* x = positions.data() + t * k;
      const double* g = gradients.data() + t * m;
      for (std::size_t i = first; i < last; ++i) {
        const double wdx = weights[t] * (x[i] - out.position_mean[i]);
        double* xx = out.xx.data() + i * k;
        double* xg = out.xg.data() + i * m;
        for (std::size_t j = 0; j < k; ++j) xx[j] += wdx * (x[j] - out.position_mean[j]);
        for (std::size_t j = 0; j < m; ++j) xg[j] += wdx * (g[j] - out.gradient_mean[j]);
      }
    }
  }
  for (std::size_t t = 0; t < steps; ++t) {
    for (std::size_t j = 0; j < m; ++j) {
      const double dg = gradients[t * m + j] - out.gradient_mean[j];
      out.gg[j] += weights[t] * dg * dg;
    }
  }
  return StatisticsStatus::kOk;
}

}  // namespace dpinfer::inference

#include "study/simulated_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dpinfer::study {

namespace {

constexpr double kSmall = 1e-300;
constexpr double kSmallestScale = 1e-20;
constexpr double kPoint = -700.0;  // the raw scale of a point

// Sums of one block about its first position and gradient, so that no precision is lost; closed into means.
class BlockSums {
 public:
  explicit BlockSums(std::size_t width) : width_(width), origin_(2 * width), sums_(kBlockFields * width) {}

  void open(std::span<const double> x, std::span<const double> g) {
    std::copy(x.begin(), x.end(), origin_.begin());
    std::copy(g.begin(), g.end(), origin_.begin() + static_cast<std::ptrdiff_t>(width_));
    std::fill(sums_.begin(), sums_.end(), 0.0);
  }
  void add(std::span<const double> x, std::span<const double> g, std::span<const double> weight) {
    double* const w = sums_.data();
    double* const sx = w + width_;
    double* const sg = sx + width_;
    double* const xx = sg + width_;
    double* const xg = xx + width_;
    double* const gg = xg + width_;
    for (std::size_t j = 0; j < width_; ++j) {
      const double dx = x[j] - origin_[j];
      const double dg = g[j] - origin_[width_ + j];
      const double wx = weight[j] * dx;
      const double wg = weight[j] * dg;
      w[j] += weight[j];
      sx[j] += wx;
      sg[j] += wg;
      xx[j] += wx * dx;
      xg[j] += wx * dg;
      gg[j] += wg * dg;
    }
  }
  void close(std::span<double> out) const {
    for (std::size_t j = 0; j < width_; ++j) {
      const double w = sums_[j];
      const double mx = sums_[width_ + j] / w;
      const double mg = sums_[2 * width_ + j] / w;
      out[j] = w;
      out[width_ + j] = origin_[j] + mx;
      out[2 * width_ + j] = origin_[width_ + j] + mg;
      out[3 * width_ + j] = sums_[3 * width_ + j] - w * mx * mx;
      out[4 * width_ + j] = sums_[4 * width_ + j] - w * mx * mg;
      out[5 * width_ + j] = sums_[5 * width_ + j] - w * mg * mg;
    }
  }

 private:
  std::size_t width_;
  std::vector<double> origin_, sums_;
};

}  // namespace

bool simulated_run(const RunSettings& s, Target& target, const KernelTable& kernels, const RandomKey& key,
                   const RunOutput& out) {
  const std::size_t d = s.start.size();
  const std::size_t n = d / 2;
  const bool aligned = s.kind == GradientKind::aligned;
  const std::size_t width = aligned ? n : d;
  const double noise = s.noise_multiplier * s.max_grad_norm;
  const double share = s.per_example ? 1.0 / static_cast<double>(s.n_records) : 0.0;
  const auto total_records = static_cast<double>(s.n_records);

  Iterate q(s.start);
  BlockSums block(width);
  std::vector<double> beta(d), rate(d), information(n), prior(d), offset(width), released(width), full(d), tau(width),
      scaled(width), weight(width), position(width), chain(n), draws, path(d), side(kSideFields * n);
  if (s.kind != GradientKind::quadrature) draws.resize(static_cast<std::size_t>(aligned ? 1 : s.n_draws) * n);
  if (!s.fisher) {
    std::copy(s.grad_scale.begin(), s.grad_scale.end(), beta.begin());
    std::copy(s.learning_rate.begin(), s.learning_rate.end(), rate.begin());
  }
  // Aligned gradients are taken, and scaled, at a sampled point, whose spread around loc is public.
  Iterate point(s.start);
  std::fill(point.params.begin() + static_cast<std::ptrdiff_t>(n), point.params.end(), kPoint);
  const Iterate& at = s.fisher && aligned ? point : q;
  std::size_t block_index = 0;
  for (std::int64_t t = 0; t < s.n_steps; ++t) {
    if (!draws.empty()) {
      standard_normals(kernels, key, RandomDomain::monte_carlo, static_cast<std::uint64_t>(t), draws.size(),
                       draws.data());
    }
    if (s.fisher && aligned) {
      for (double& z : draws) z *= s.excursion;
    }
    if (aligned) {
      for (std::size_t j = 0; j < n; ++j) point.params[j] = q.loc(j) + q.scale[j] * draws[j];
      point.update();
    }
    if (s.fisher) {
      target.information(at, information);
      for (std::size_t j = 0; j < n; ++j) {
        const double info = information[j];
        const double slope2 = q.slope[j] * q.slope[j];
        beta[j] = 1.0 / std::sqrt(info);
        rate[j] = 1.0 / (s.sample_rate * total_records * info);
        if (aligned) continue;
        beta[n + j] = s.raw_ratio / std::max(q.scale[j] * q.slope[j] * info, kSmallestScale);
        const double curvature = slope2 * (total_records * info + 1.0 / std::max(q.scale[j] * q.scale[j], kSmall));
        rate[n + j] = 1.0 / (s.sample_rate * std::max(curvature, kSmallestScale));
      }
    }
    target.prepare(q, draws);
    target.prior_gradient(q, {prior.data(), width});
    const auto entropy = [&](std::size_t j) {  // gradient of -H in raw
      return q.raw(j) > -30.0 ? -q.slope[j] / std::max(q.scale[j], kSmall) : -1.0;
    };
    if (!aligned) {
      for (std::size_t j = 0; j < n; ++j) prior[n + j] += entropy(j);
    }
    for (std::size_t k = 0; k < width; ++k) offset[k] = beta[k] * share * prior[k];
    target.noisy_sum(static_cast<std::uint64_t>(t), q, {beta.data(), width}, offset, s.noise_multiplier, released);
    for (std::size_t k = 0; k < width; ++k) {
      released[k] /= beta[k];
      if (share == 0.0) released[k] += s.sample_rate * prior[k];
      tau[k] = noise / beta[k];
    }
    if (aligned) {
      for (std::size_t j = 0; j < n; ++j) {
        position[j] = point.loc(j);
        full[j] = released[j];
        full[n + j] = draws[j] * q.slope[j] * released[j] + s.sample_rate * entropy(j);
      }
    } else {
      std::copy(q.params.begin(), q.params.end(), position.begin());
      std::copy(released.begin(), released.end(), full.begin());
    }
    // The trace model of a Fisher-scaled run divides gradients by the information at the iterate, so that the slope no
    // longer changes with it, in coordinates in which the quotient is linear.
    std::copy(released.begin(), released.end(), scaled.begin());
    if (s.fisher) {
      target.linear_coordinates(at, {position.data(), n}, chain);
      for (std::size_t j = 0; j < n; ++j) {
        scaled[j] = released[j] / information[j] * chain[j];
        tau[j] *= chain[j] / information[j];
      }
    }
    if (t == 0) std::copy(tau.begin(), tau.end(), out.reference.begin());
    if (t == s.boundaries[block_index]) {
      block.open(position, scaled);
      std::fill(side.begin(), side.end(), 0.0);
      std::fill(path.begin(), path.end(), 0.0);
    }
    for (std::size_t k = 0; k < width; ++k) {
      const double ratio = out.reference[k] / tau[k];
      weight[k] = ratio * ratio;
    }
    block.add(position, scaled, weight);
    for (std::size_t j = 0; j < d; ++j) path[j] += q.params[j];
    if (!aligned) {
      for (std::size_t j = 0; j < n; ++j) {
        const double design = s.sample_rate * q.slope[j] * q.scale[j] * (s.fisher ? information[j] : 1.0) / tau[n + j];
        const double response =
            (released[n + j] + s.sample_rate * q.slope[j] / std::max(q.scale[j], kSmall)) / tau[n + j];
        side[j] += design * design;
        side[n + j] += design * response;
        side[2 * n + j] += response * response;
        side[3 * n + j] += design;
        side[4 * n + j] += response;
      }
    }
    if (s.fisher || !aligned) {
      for (std::size_t j = 0; j < n; ++j) {
        side[5 * n + j] += weight[n - 1] * position[j];
        side[6 * n + j] += weight[n - 1] * position[j] * position[j];
      }
    }
    if (!out.trace.empty()) {
      const std::size_t stride = d + 2 * width;
      const auto row = out.trace.subspan(static_cast<std::size_t>(t) * stride, stride);
      std::copy(q.params.begin(), q.params.end(), row.begin());
      std::copy(released.begin(), released.end(), row.begin() + static_cast<std::ptrdiff_t>(d));
      std::copy(tau.begin(), tau.end(), row.begin() + static_cast<std::ptrdiff_t>(d + width));
    }
    if (t + 1 == s.boundaries[block_index + 1]) {
      const double steps = static_cast<double>(t + 1 - s.boundaries[block_index]);
      block.close(out.blocks.subspan(block_index * kBlockFields * width, kBlockFields * width));
      for (std::size_t j = 0; j < d; ++j) out.path[block_index * d + j] = path[j] / steps;
      if (s.fisher || !aligned)
        std::copy(side.begin(), side.end(), out.side.begin() + static_cast<std::ptrdiff_t>(block_index * side.size()));
      ++block_index;
    }
    const double schedule = s.schedule[static_cast<std::size_t>(t)];
    bool finite = true;
    for (std::size_t j = 0; j < (s.fisher ? width : d); ++j) {
      q.params[j] -= schedule * rate[j] * full[j];
      finite = finite && std::abs(q.params[j]) < 1e6;
    }
    if (!finite) return false;
    q.update();
    if (s.fisher && aligned) {
      std::copy_n(q.params.begin(), n, point.params.begin());
      point.update();
      target.information(point, information);
      for (std::size_t j = 0; j < n; ++j) {
        q.params[n + j] = softplus_inverse(1.0 / std::sqrt(total_records * information[j]));
      }
      q.update();
    }
  }
  std::copy(q.params.begin(), q.params.end(), out.final_params.begin());
  return true;
}

}  // namespace dpinfer::study

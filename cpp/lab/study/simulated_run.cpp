#include "lab/study/simulated_run.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace dpinfer::study {

namespace {

constexpr double kSmall = 1e-300;
constexpr double kSmallestScale = 1e-20;
constexpr double kPoint = -700.0;  // the raw scale of a point

}  // namespace

SimulatedRun::SimulatedRun(const RunSettings& settings, Target& target, const KernelTable& kernels,
                           const RandomKey& key, const RunOutput& out)
    : s_(settings),
      target_(target),
      kernels_(kernels),
      key_(key),
      out_(out),
      d_(settings.start.size()),
      n_(d_ / 2),
      aligned_(settings.kind == GradientKind::aligned),
      width_(aligned_ ? n_ : d_),
      noise_(settings.noise_multiplier * settings.max_grad_norm),
      share_(settings.per_example ? 1.0 / static_cast<double>(settings.n_records) : 0.0),
      total_records_(static_cast<double>(settings.n_records)),
      q_(settings.start),
      point_(settings.start),
      block_(width_),
      beta_(d_),
      rate_(d_),
      information_(n_),
      prior_(d_),
      offset_(width_),
      released_(width_),
      full_(d_),
      tau_(width_),
      scaled_(width_),
      weight_(width_),
      position_(width_),
      chain_(n_),
      path_(d_),
      side_(kSideFields * n_) {
  if (s_.kind != GradientKind::quadrature) draws_.resize(static_cast<std::size_t>(aligned_ ? 1 : s_.n_draws) * n_);
  if (!s_.fisher) {
    std::copy(s_.grad_scale.begin(), s_.grad_scale.end(), beta_.begin());
    std::copy(s_.learning_rate.begin(), s_.learning_rate.end(), rate_.begin());
  }
  std::fill(point_.params.begin() + static_cast<std::ptrdiff_t>(n_), point_.params.end(), kPoint);
}

double SimulatedRun::entropy(std::size_t j) const {
  return q_.raw(j) > -30.0 ? -q_.slope[j] / std::max(q_.scale[j], kSmall) : -1.0;
}

void SimulatedRun::scale_by_information(const Iterate& at) {
  target_.information(at, information_);
  for (std::size_t j = 0; j < n_; ++j) {
    const double info = information_[j];
    const double slope2 = q_.slope[j] * q_.slope[j];
    beta_[j] = 1.0 / std::sqrt(info);
    rate_[j] = 1.0 / (s_.sample_rate * total_records_ * info);
    if (aligned_) continue;
    beta_[n_ + j] = s_.raw_ratio / std::max(q_.scale[j] * q_.slope[j] * info, kSmallestScale);
    const double curvature = slope2 * (total_records_ * info + 1.0 / std::max(q_.scale[j] * q_.scale[j], kSmall));
    rate_[n_ + j] = 1.0 / (s_.sample_rate * std::max(curvature, kSmallestScale));
  }
}

void SimulatedRun::begin_step() {
  if (!draws_.empty()) {
    standard_normals(kernels_, key_, RandomDomain::monte_carlo, static_cast<std::uint64_t>(step_), draws_.size(),
                     draws_.data());
  }
  if (s_.fisher && aligned_) {
    for (double& z : draws_) z *= s_.excursion;
  }
  if (aligned_) {
    for (std::size_t j = 0; j < n_; ++j) point_.params[j] = q_.loc(j) + q_.scale[j] * draws_[j];
    point_.update();
  }
  if (s_.fisher) scale_by_information(aligned_ ? point_ : q_);
  target_.prepare(q_, draws_);
  target_.prior_gradient(q_, {prior_.data(), width_});
  if (!aligned_) {
    for (std::size_t j = 0; j < n_; ++j) prior_[n_ + j] += entropy(j);
  }
  for (std::size_t k = 0; k < width_; ++k) offset_[k] = beta_[k] * share_ * prior_[k];
  target_.set_scales(q_, {beta_.data(), width_}, offset_);
}

bool SimulatedRun::finish_step() {
  for (std::size_t k = 0; k < width_; ++k) {
    released_[k] /= beta_[k];
    if (share_ == 0.0) released_[k] += s_.sample_rate * prior_[k];
    tau_[k] = noise_ / beta_[k];
  }
  if (aligned_) {
    for (std::size_t j = 0; j < n_; ++j) {
      position_[j] = point_.loc(j);
      full_[j] = released_[j];
      full_[n_ + j] = draws_[j] * q_.slope[j] * released_[j] + s_.sample_rate * entropy(j);
    }
  } else {
    std::copy(q_.params.begin(), q_.params.end(), position_.begin());
    std::copy(released_.begin(), released_.end(), full_.begin());
  }
  add_to_block(s_.fisher && aligned_ ? point_ : q_);
  return move();
}

void SimulatedRun::add_to_block(const Iterate& at) {
  // The trace model of a Fisher-scaled run divides gradients by the information at the iterate, so that the slope no
  // longer changes with it, in coordinates in which the quotient is linear.
  std::copy(released_.begin(), released_.end(), scaled_.begin());
  if (s_.fisher) {
    target_.linear_coordinates(at, {position_.data(), n_}, chain_);
    for (std::size_t j = 0; j < n_; ++j) {
      scaled_[j] = released_[j] / information_[j] * chain_[j];
      tau_[j] *= chain_[j] / information_[j];
    }
  }
  if (step_ == 0) std::copy(tau_.begin(), tau_.end(), out_.reference.begin());
  if (step_ == s_.boundaries[block_index_]) {
    block_.open(position_, scaled_);
    std::fill(side_.begin(), side_.end(), 0.0);
    std::fill(path_.begin(), path_.end(), 0.0);
  }
  for (std::size_t k = 0; k < width_; ++k) {
    const double ratio = out_.reference[k] / tau_[k];
    weight_[k] = ratio * ratio;
  }
  block_.add(position_, scaled_, weight_);
  for (std::size_t j = 0; j < d_; ++j) path_[j] += q_.params[j];
  add_to_side();
  if (!out_.trace.empty()) keep_trace();
  if (step_ + 1 != s_.boundaries[block_index_ + 1]) return;
  const double steps = static_cast<double>(step_ + 1 - s_.boundaries[block_index_]);
  block_.close(out_.blocks.subspan(block_index_ * kBlockFields * width_, kBlockFields * width_));
  for (std::size_t j = 0; j < d_; ++j) out_.path[block_index_ * d_ + j] = path_[j] / steps;
  if (s_.fisher || !aligned_) {
    std::copy(side_.begin(), side_.end(), out_.side.begin() + static_cast<std::ptrdiff_t>(block_index_ * side_.size()));
  }
  ++block_index_;
}

void SimulatedRun::add_to_side() {
  if (!aligned_) {
    for (std::size_t j = 0; j < n_; ++j) {
      const double noise = tau_[n_ + j];
      const double design = s_.sample_rate * q_.slope[j] * q_.scale[j] * (s_.fisher ? information_[j] : 1.0) / noise;
      const double response =
          (released_[n_ + j] + s_.sample_rate * q_.slope[j] / std::max(q_.scale[j], kSmall)) / noise;
      side_[j] += design * design;
      side_[n_ + j] += design * response;
      side_[2 * n_ + j] += response * response;
      side_[3 * n_ + j] += design;
      side_[4 * n_ + j] += response;
    }
  }
  if (s_.fisher || !aligned_) {
    for (std::size_t j = 0; j < n_; ++j) {
      side_[5 * n_ + j] += weight_[n_ - 1] * position_[j];
      side_[6 * n_ + j] += weight_[n_ - 1] * position_[j] * position_[j];
    }
  }
}

void SimulatedRun::keep_trace() {
  const std::size_t stride = d_ + 2 * width_;
  const auto row = out_.trace.subspan(static_cast<std::size_t>(step_) * stride, stride);
  std::copy(q_.params.begin(), q_.params.end(), row.begin());
  std::copy(released_.begin(), released_.end(), row.begin() + static_cast<std::ptrdiff_t>(d_));
  std::copy(tau_.begin(), tau_.end(), row.begin() + static_cast<std::ptrdiff_t>(d_ + width_));
}

bool SimulatedRun::move() {
  const double schedule = s_.schedule[static_cast<std::size_t>(step_)];
  bool finite = true;
  for (std::size_t j = 0; j < (s_.fisher ? width_ : d_); ++j) {
    q_.params[j] -= schedule * rate_[j] * full_[j];
    finite = finite && std::abs(q_.params[j]) < 1e6;
  }
  if (!finite) return false;
  q_.update();
  if (s_.fisher && aligned_) {
    std::copy_n(q_.params.begin(), n_, point_.params.begin());
    point_.update();
    target_.information(point_, information_);
    for (std::size_t j = 0; j < n_; ++j) {
      q_.params[n_ + j] = softplus_inverse(1.0 / std::sqrt(total_records_ * information_[j]));
    }
    q_.update();
  }
  if (++step_ == s_.n_steps) std::copy(q_.params.begin(), q_.params.end(), out_.final_params.begin());
  return true;
}

bool simulated_run(const RunSettings& settings, Target& target, const KernelTable& kernels, const RandomKey& key,
                   const RunOutput& out) {
  SimulatedRun run(settings, target, kernels, key, out);
  while (run.step() < settings.n_steps) {
    run.begin_step();
    target.noisy_sum(static_cast<std::uint64_t>(run.step()), settings.noise_multiplier, run.released());
    if (!run.finish_step()) return false;
  }
  return true;
}

}  // namespace dpinfer::study

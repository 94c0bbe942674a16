#include "inference/mixture_quantiles.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "common/aligned.hpp"
#include "inference/posterior_kernels.hpp"

namespace dpinfer::inference {

namespace {

constexpr double kNegligible = 1e-12;
constexpr int kMostIterations = 200;
// From here on every other step halves the bracket: about a narrow component Newton's steps can go to and fro for ever.
constexpr int kPatience = 50;

// One mixture without its negligible components.
class Mixture {
 public:
  explicit Mixture(const PosteriorKernels& kernels) : kernels_(kernels) {}

  void take(const NormalMixtureView& view, std::size_t index) {
    for (auto* array : {&weight_, &mean_, &inverse_scale_}) array->clear();
    variance_.clear();
    double total = 0.0;
    for (auto i = static_cast<std::size_t>(view.offsets[index]); i < static_cast<std::size_t>(view.offsets[index + 1]);
         ++i) {
      if (!(view.weight[i] > kNegligible)) continue;
      weight_.push_back(view.weight[i]);
      mean_.push_back(view.mean[i]);
      variance_.push_back(view.variance[i]);
      total += view.weight[i];
    }
    centre_ = 0.0;
    for (std::size_t i = 0; i < variance_.size(); ++i) {
      weight_[i] /= total;
      centre_ += weight_[i] * mean_[i];
    }
    double square = 0.0;
    for (std::size_t i = 0; i < variance_.size(); ++i) {
      square += weight_[i] * (variance_[i] + (mean_[i] - centre_) * (mean_[i] - centre_));
      inverse_scale_.push_back(1.0 / scale(i));
    }
    spread_ = std::sqrt(square);
    while (weight_.size() % kComponentGroup != 0) {
      weight_.push_back(0.0);
      mean_.push_back(0.0);
      inverse_scale_.push_back(1.0);
    }
  }

  double quantile(double level, double standard) const {
    if (std::none_of(variance_.begin(), variance_.end(), [](double v) { return v > 0.0; })) return of_points(level);
    if (!std::isfinite(standard)) return standard;
    // Every quantile of a mixture lies between the extreme quantiles of its components.
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (std::size_t i = 0; i < variance_.size(); ++i) {
      const double own = mean_[i] + standard * scale(i);
      low = std::min(low, own);
      high = std::max(high, own);
    }
    if (!(low <= high)) return std::numeric_limits<double>::quiet_NaN();
    const MixtureComponents components{weight_.data(), mean_.data(), inverse_scale_.data(), weight_.size()};
    double x = std::clamp(centre_ + standard * spread_, low, high);
    for (int iteration = 0; iteration < kMostIterations; ++iteration) {
      double below = 0.0;
      double density = 0.0;
      kernels_.mixture(components, x, below, density);
      const double gap = below - level;
      if (gap == 0.0) return x;
      (gap < 0.0 ? low : high) = x;
      const double newton = x - gap / density;
      const bool halved = iteration > kPatience && iteration % 2 == 0;
      const double next = !halved && newton > low && newton < high ? newton : 0.5 * (low + high);
      const double moved = std::abs(next - x);
      x = next;
      if (moved <= 1e-12 * spread_ + 4e-16 * std::abs(x)) return x;
    }
    return std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double scale(std::size_t i) const { return std::sqrt(std::max(variance_[i], std::numeric_limits<double>::min())); }

  double of_points(double level) const {
    const std::size_t n = variance_.size();
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return mean_[i] < mean_[j]; });
    double sum = 0.0;
    for (const std::size_t i : order) {
      sum += weight_[i];
      if (sum >= level * (1.0 - 1e-12)) return mean_[i];
    }
    return n > 0 ? mean_[order.back()] : std::numeric_limits<double>::quiet_NaN();
  }

  const PosteriorKernels& kernels_;
  AlignedVector<double> weight_, mean_, inverse_scale_;
  std::vector<double> variance_;
  double centre_ = 0.0, spread_ = 0.0;
};

}  // namespace

void mixture_quantiles(const NormalMixtureView& mixtures, std::span<const double> levels,
                       std::span<const double> standard, std::span<double> out) {
  const std::size_t size = mixtures.size();
  Mixture own(posterior_kernels());
  for (std::size_t j = 0; j < size; ++j) {
    own.take(mixtures, j);
    for (std::size_t l = 0; l < levels.size(); ++l) out[l * size + j] = own.quantile(levels[l], standard[l]);
  }
}

}  // namespace dpinfer::inference

// Weighted sums over one block of a run's steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace dpinfer::study {

// Fields of one block and coordinate: sums of weights, means and centred sums as in inference/trace_statistics.hpp.
inline constexpr std::size_t kBlockFields = 6;

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

}  // namespace dpinfer::study

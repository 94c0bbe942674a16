// What a simulated run needs of a model: expectations of its prior, its information, and its private sums.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace dpinfer::study {

inline double softplus(double x) { return x > 0.0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
inline double sigmoid(double x) {
  const double decay = std::exp(-std::abs(x));
  return (x >= 0.0 ? 1.0 : decay) / (1.0 + decay);
}
inline double softplus_inverse(double y) { return y + std::log(-std::expm1(-y)); }

// The released variational parameters of q = N(loc, diag(scale^2)), scale = softplus(raw), slope = its derivative.
struct Iterate {
  std::vector<double> params;  // loc, then raw
  std::vector<double> scale, slope;

  explicit Iterate(std::span<const double> start) : params(start.begin(), start.end()), scale(n()), slope(n()) {
    update();
  }
  std::size_t n() const { return params.size() / 2; }
  double loc(std::size_t j) const { return params[j]; }
  double raw(std::size_t j) const { return params[n() + j]; }
  void update() {
    for (std::size_t j = 0; j < n(); ++j) {
      scale[j] = softplus(raw(j));
      slope[j] = sigmoid(raw(j));
    }
  }
};

// How expectations under q are taken, and which gradients are released.
enum class GradientKind { quadrature, draws, aligned };

class Target {
 public:
  virtual ~Target() = default;

  // Expected information of one record about each parameter at the iterate (n numbers).
  virtual void information(const Iterate& q, std::span<double> out) = 0;
  // After prepare: coordinates in which the expected gradient over the information is linear, and their derivative in
  // loc (n numbers each).  For aligned gradients q is the point at which they are taken.
  virtual void linear_coordinates(const Iterate& q, std::span<double> position, std::span<double> slope) const {
    for (std::size_t j = 0; j < q.n(); ++j) {
      position[j] = q.loc(j);
      slope[j] = 1.0;
    }
  }
  // Takes the expectations that the two calls below use: by its own rule, or over n_draws standard normal draws (rows
  // of n numbers).
  virtual void prepare(const Iterate& q, std::span<const double> draws) = 0;
  // -grad E_q[log prior], loc then raw (2 n); for aligned gradients at the one draw (n).
  virtual void prior_gradient(const Iterate& q, std::span<double> out) = 0;
  // What the loss gradients are preconditioned with; beta and offset have the sum's length (2 n, or n when aligned).
  virtual void set_scales(const Iterate& q, std::span<const double> beta, std::span<const double> offset) = 0;
  // The noisy sum of clipped, preconditioned loss gradients.
  virtual void noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> out) = 0;
};

}  // namespace dpinfer::study

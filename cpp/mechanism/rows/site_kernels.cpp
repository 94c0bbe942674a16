#include "mechanism/rows/site_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "mechanism/small_matrix.hpp"

namespace dpinfer {

namespace {

constexpr double kRootTwo = std::numbers::sqrt2;

// svec of weight * L for a symmetric L (both halves are read and averaged).
double* write_svec(const double* matrix, std::size_t n, std::size_t row_length, double weight, double* out) {
  for (std::size_t i = 0; i < n; ++i) {
    *out++ = weight * matrix[i * row_length + i];
    for (std::size_t j = i + 1; j < n; ++j) {
      *out++ = weight * kRootTwo * 0.5 * (matrix[i * row_length + j] + matrix[j * row_length + i]);
    }
  }
  return out;
}

// d log Z / d mean and -d^2 log Z / d mean^2 of a record's evidence.
struct EvidenceSlopes {
  double first, second;
};

// Z = Phi(sign mean / sqrt(1 + variance)) (Rasmussen and Williams 2006, eqs. 3.82 and 3.85).
EvidenceSlopes probit_slopes(double sign, double mean, double variance) {
  const double scale = 1.0 / std::sqrt(1.0 + variance);
  const double z = sign * mean * scale;
  double mills = 0.0;   // phi(z) / Phi(z)
  double excess = 0.0;  // mills + z
  if (z > -4.0) {
    mills = std::exp(-0.5 * z * z) / (std::sqrt(2.0 * std::numbers::pi) * 0.5 * std::erfc(-z / kRootTwo));
    excess = mills + z;
  } else {
    // Laplace's continued fraction, phi(x) / Phi(-x) = x + 1/(x + 2/(x + 3/(x + ...))): nothing cancels.
    for (int k = 60; k > 0; --k) excess = k / (excess - z);
    mills = excess - z;
  }
  const double first = sign * mills * scale;
  return {first, mills * excess * scale * scale};
}

// Gauss-Hermite with derivatives taken under the integral: no cancellation as the variance goes to zero.
EvidenceSlopes logistic_slopes(double sign, double mean, double variance, std::span<const double> nodes,
                               std::span<const double> weights) {
  const double spread = std::sqrt(variance);
  double z = 0.0;
  double z1 = 0.0;
  double z2 = 0.0;
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const double eta = sign * (mean + spread * nodes[k]);
    const double decay = std::exp(-std::abs(eta));
    const double up = (eta < 0.0 ? decay : 1.0) / (1.0 + decay);
    const double down = (eta < 0.0 ? 1.0 : decay) / (1.0 + decay);
    z += weights[k] * up;
    z1 += weights[k] * up * down;
    z2 += weights[k] * up * down * (down - up);
  }
  const double first = z1 / z;
  return {sign * first, first * first - z2 / z};
}

}  // namespace

bool SiteKernel::set_state(const SiteState& state) {
  loc_.assign(state.cavity_loc.begin(), state.cavity_loc.end());
  cov_.assign(state.cavity_cov.begin(), state.cavity_cov.end());
  centre_.assign(state.centre.begin(), state.centre.end());
  neutral_.assign(state.neutral.begin(), state.neutral.end());
  block_weight_ = state.block_weight;
  return true;
}

void SiteKernel::contribution(std::int64_t i, double* scratch, double* out) const noexcept {
  bool valid = site(i, scratch, out);
  for (int j = 0; j < length() && valid; ++j) valid = std::isfinite(out[j]);
  if (!valid) std::copy(neutral_.begin(), neutral_.end(), out);
}

MixtureSites::MixtureSites(MixtureContribution kind, std::span<const double> points,
                           std::span<const double> log_weights, std::span<const double> covariances, int width)
    : SiteKernel(static_cast<int>(log_weights.size()), width),
      kind_(kind),
      points_(points),
      log_weights_(log_weights),
      covariances_(covariances) {}

int MixtureSites::length() const {
  return kind_ == MixtureContribution::moments ? n_blocks() * (width() + 1) : SiteKernel::length();
}

int MixtureSites::scratch_length() const {
  return n_blocks() * (width() + 1) + width() * width() + width() * (width() + 1);
}

bool MixtureSites::set_state(const SiteState& state) {
  SiteKernel::set_state(state);
  const std::size_t d = size();
  evidence_.assign(blocks() * d * d, 0.0);
  log_norm_.assign(blocks(), 0.0);
  AlignedVector<double> total(d * d);
  for (std::size_t j = 0; j < blocks(); ++j) {
    for (std::size_t k = 0; k < d * d; ++k) total[k] = cov_[j * d * d + k] + covariances_[j * d * d + k];
    if (!cholesky(total.data(), d)) return false;
    inverse_from_cholesky(total.data(), d, evidence_.data() + j * d * d);
    log_norm_[j] = log_weights_[j];
    for (std::size_t k = 0; k < d; ++k) log_norm_[j] -= std::log(total[k * d + k]);
  }
  return true;
}

bool MixtureSites::responsibilities(const double* x, double* whitened, double* share) const noexcept {
  const std::size_t d = size();
  double largest = -HUGE_VAL;
  for (std::size_t j = 0; j < blocks(); ++j) {
    const double* w = evidence_.data() + j * d * d;
    const double* m = loc_.data() + j * d;
    double distance = 0.0;
    for (std::size_t a = 0; a < d; ++a) {
      double value = 0.0;
      for (std::size_t b = 0; b < d; ++b) value += w[a * d + b] * (x[b] - m[b]);
      whitened[j * d + a] = value;
      distance += value * (x[a] - m[a]);
    }
    share[j] = log_norm_[j] - 0.5 * distance;
    largest = std::max(largest, share[j]);
  }
  double total = 0.0;
  for (std::size_t j = 0; j < blocks(); ++j) total += share[j] = std::exp(share[j] - largest);
  for (std::size_t j = 0; j < blocks(); ++j) share[j] /= total;
  return total > 0.0 && std::isfinite(total);
}

bool MixtureSites::moments(const double* x, double* scratch, double* out) const noexcept {
  const std::size_t d = size();
  double* share = out + blocks() * d;
  if (!responsibilities(x, scratch, share)) return false;
  for (std::size_t j = 0; j < blocks(); ++j) {
    for (std::size_t a = 0; a < d; ++a) out[j * d + a] = share[j] * (x[a] - centre_[j * d + a]);
  }
  for (std::size_t j = 0; j < blocks(); ++j) share[j] *= block_weight_;
  return true;
}

bool MixtureSites::site(std::int64_t i, double* scratch, double* out) const noexcept {
  const std::size_t d = size();
  const double* x = points_.data() + static_cast<std::size_t>(i) * d;
  if (kind_ == MixtureContribution::moments) return moments(x, scratch, out);
  double* whitened = scratch;               // W (x - m) of each block
  double* share = whitened + blocks() * d;  // responsibilities
  double* left = share + blocks();          // I - M V
  double* right = left + d * d;             // [M | g + M (m - c)]
  if (!responsibilities(x, whitened, share)) return false;
  double* linear = out;
  double* precision = out + blocks() * d;
  for (std::size_t j = 0; j < blocks(); ++j) {
    const double r = share[j];
    const double* w = evidence_.data() + j * d * d;
    const double* v = cov_.data() + j * d * d;
    const double* g = whitened + j * d;
    const double* m = loc_.data() + j * d;
    const double* c = centre_.data() + j * d;
    for (std::size_t a = 0; a < d; ++a) {
      double* row = right + a * (d + 1);
      row[d] = r * g[a];
      for (std::size_t b = 0; b < d; ++b) {
        row[b] = r * (w[a * d + b] - (1.0 - r) * g[a] * g[b]);
        row[d] += row[b] * (m[b] - c[b]);
      }
    }
    for (std::size_t a = 0; a < d; ++a) {
      for (std::size_t b = 0; b < d; ++b) {
        double value = a == b ? 1.0 : 0.0;
        for (std::size_t k = 0; k < d; ++k) value -= right[a * (d + 1) + k] * v[k * d + b];
        left[a * d + b] = value;
      }
    }
    if (!solve(left, right, d, d + 1)) return false;
    for (std::size_t a = 0; a < d; ++a) *linear++ = right[a * (d + 1) + d];
    precision = write_svec(right, d, d + 1, block_weight_, precision);
  }
  return true;
}

BinarySites::BinarySites(std::span<const double> features, std::span<const double> response, int n_features,
                         bool has_intercept, BinaryLikelihood likelihood, std::span<const double> nodes,
                         std::span<const double> node_weights)
    : SiteKernel(1, n_features + (has_intercept ? 1 : 0)),
      features_(features),
      response_(response),
      n_features_(static_cast<std::size_t>(n_features)),
      has_intercept_(has_intercept),
      likelihood_(likelihood),
      nodes_(nodes),
      node_weights_(node_weights) {}

bool BinarySites::site(std::int64_t i, double* scratch, double* out) const noexcept {
  const std::size_t d = size();
  double* x = scratch;
  std::copy_n(features_.data() + static_cast<std::size_t>(i) * n_features_, n_features_, x);
  if (has_intercept_) x[n_features_] = 1.0;
  double mean = 0.0;
  double offset = 0.0;
  double variance = 0.0;
  for (std::size_t a = 0; a < d; ++a) {
    mean += x[a] * loc_[a];
    offset += x[a] * (loc_[a] - centre_[a]);
    double value = 0.0;
    for (std::size_t b = 0; b < d; ++b) value += cov_[a * d + b] * x[b];
    variance += x[a] * value;
  }
  variance = std::max(variance, 0.0);
  const double sign = response_[static_cast<std::size_t>(i)] > 0.5 ? 1.0 : -1.0;
  const EvidenceSlopes slopes = likelihood_ == BinaryLikelihood::probit
                                    ? probit_slopes(sign, mean, variance)
                                    : logistic_slopes(sign, mean, variance, nodes_, node_weights_);
  const double left = 1.0 - slopes.second * variance;
  if (!(left > 0.0)) return false;
  const double linear = (slopes.first + slopes.second * offset) / left;
  const double curvature = block_weight_ * slopes.second / left;
  for (std::size_t a = 0; a < d; ++a) out[a] = linear * x[a];
  double* precision = out + d;
  for (std::size_t a = 0; a < d; ++a) {
    const double row = curvature * x[a];
    *precision++ = row * x[a];
    for (std::size_t b = a + 1; b < d; ++b) *precision++ = kRootTwo * row * x[b];
  }
  return true;
}

}  // namespace dpinfer

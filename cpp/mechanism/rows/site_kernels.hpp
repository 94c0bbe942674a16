// Local sites of expectation propagation, as contributions to a private sum.
//
// q is a product of Gaussian blocks.  Given the cavity N(m, V) of a block and the record's log-evidence log Z under it,
// with g = d log Z / dm and M = -d^2 log Z / dm dm', moment matching gives the site (docs/derivations/dp-sep.md)
//   precision  L = (I - M V)^-1 M,      linear term  (I - M V)^-1 (g + M (m - c))   relative to a centre c,
// which is eta - L c in natural parameters (c = 0: eta itself).  A contribution is
//   [linear terms of every block | block_weight * svec(L) of every block],
// svec: the upper triangle, row by row, off-diagonal entries times sqrt(2), so that norms are Frobenius norms.
// A site without valid moments is the neutral one: the shared site, a public vector.
#pragma once

#include <cstdint>
#include <span>

#include "common/aligned.hpp"
#include "mechanism/sum/contributions.hpp"

namespace dpinfer {

// The public state of a step.
struct SiteState {
  std::span<const double> cavity_loc;  // n_blocks x width
  std::span<const double> cavity_cov;  // n_blocks x width x width
  std::span<const double> centre;      // n_blocks x width
  std::span<const double> neutral;     // length(): the contribution of a site without valid moments
  double block_weight;                 // of the precisions
};

class SiteKernel : public Contributions {
 public:
  SiteKernel(int n_blocks, int width) : n_blocks_(n_blocks), width_(width) {}

  int n_blocks() const { return n_blocks_; }
  int width() const { return width_; }
  int length() const override { return n_blocks_ * (width_ + width_ * (width_ + 1) / 2); }
  void contribution(std::int64_t i, double* scratch, double* out) const noexcept final;

  // False when a matrix of the state is not positive definite; the state is then not to be used.
  virtual bool set_state(const SiteState& state);

 protected:
  // False when the moments are not valid; `out` is then overwritten.
  virtual bool site(std::int64_t i, double* scratch, double* out) const noexcept = 0;
  std::size_t blocks() const { return static_cast<std::size_t>(n_blocks_); }
  std::size_t size() const { return static_cast<std::size_t>(width_); }

  AlignedVector<double> loc_, cov_, centre_, neutral_;
  double block_weight_ = 1.0;

 private:
  int n_blocks_, width_;
};

// What a record of a mixture contributes: its site, or for EM the expected sufficient statistics at the means of the
// state (with cavity_cov = 0), [r_j (x - c_j) of every block | block_weight r_j of every block].
enum class MixtureContribution { site, moments };

// Mixture of Gaussians with known weights and covariances; a block for the mean of each component.  The label of a
// record is summed out: Z = sum_j w_j N(x; m_j, V_j + S_j).
class MixtureSites final : public SiteKernel {
 public:
  // points: n_rows x width; log_weights: one per component; covariances: n_blocks x width x width.  All outlive this.
  MixtureSites(MixtureContribution kind, std::span<const double> points, std::span<const double> log_weights,
               std::span<const double> covariances, int width);

  int length() const override;
  int scratch_length() const override;
  bool set_state(const SiteState& state) override;

 protected:
  bool site(std::int64_t i, double* scratch, double* out) const noexcept override;

 private:
  // The posterior probability of each component given a record, and W (x - m) of each block; false when they are not
  // finite.
  bool responsibilities(const double* x, double* whitened, double* share) const noexcept;
  bool moments(const double* x, double* scratch, double* out) const noexcept;

  MixtureContribution kind_;
  std::span<const double> points_, log_weights_, covariances_;
  AlignedVector<double> evidence_;  // (V_j + S_j)^-1
  AlignedVector<double> log_norm_;  // log w_j - log det(V_j + S_j) / 2
};

enum class BinaryLikelihood { probit, logistic };

// Binary regression: one block for all weights; log Z depends on x'm and x'Vx alone, so that sites have rank one.
class BinarySites final : public SiteKernel {
 public:
  // features: n_rows x n_features; response: 0 or 1; a constant 1 is appended for an intercept.  nodes and
  // node_weights: E f(Z) = sum node_weights f(nodes) for a standard normal Z (logistic).  All outlive this.
  BinarySites(std::span<const double> features, std::span<const double> response, int n_features, bool has_intercept,
              BinaryLikelihood likelihood, std::span<const double> nodes, std::span<const double> node_weights);

  int scratch_length() const override { return 2 * width(); }

 protected:
  bool site(std::int64_t i, double* scratch, double* out) const noexcept override;

 private:
  std::span<const double> features_, response_;
  std::size_t n_features_;
  bool has_intercept_;
  BinaryLikelihood likelihood_;
  std::span<const double> nodes_, node_weights_;
};

}  // namespace dpinfer

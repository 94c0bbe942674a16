// The conjugate models on one unconstrained space: their records enter through a sufficient statistic t.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lab/study/target.hpp"
#include "mechanism/rows/affine_session.hpp"

namespace dpinfer::study {

// Gamma-exponential: rate = softplus(theta), t = y.  Beta-binomial (Bernoulli: one trial): p = sigmoid(theta), t = y.
// Dirichlet-categorical: t = indicators of all categories but the last; sticks: sigmoid(theta_j) is the share that
// category j takes of what the earlier ones left; softmax: p = softmax(theta, 0).
enum class ConjugateFamily { exponential, binomial, sticks, softmax };

struct ConjugateModel {
  ConjugateFamily family;
  int n_params;
  std::vector<double> prior;  // (shape, rate), (a, b), concentrations
  double n_trials;
};

// Records one by one, or, where few distinct values occur, the values and how often each occurs: then the number of
// sampled records of each value is binomial, and the released sum has the same distribution.
struct ConjugateData {
  std::span<const double> statistics;    // rows x n_params, row-major: records, or distinct values
  std::span<const std::int64_t> counts;  // per distinct value; empty for records
};

class ConjugateTarget final : public Target {
 public:
  ConjugateTarget(const ConjugateModel& model, const ConjugateData& data, GradientKind kind,
                  std::span<const double> nodes, std::span<const double> weights, const KernelTable& kernels,
                  double sample_rate, double max_grad_norm, const RandomKey& key);

  void information(const Iterate& q, std::span<double> out) override;
  void prepare(const Iterate& q, std::span<const double> draws) override;
  void prior_gradient(const Iterate& q, std::span<double> out) override;
  void set_scales(const Iterate& q, std::span<const double> beta, std::span<const double> offset) override;
  void noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> out) override;

 private:
  void add_node(const Iterate& q, std::span<const double> z, double weight);
  void grouped_sum(std::uint64_t step, std::span<std::int64_t> sum);

  const ConjugateModel& model_;
  ConjugateData data_;
  GradientKind kind_;
  std::size_t n_, width_;
  std::vector<double> nodes_, weights_;  // standard normal nodes (m x n) of the quadrature
  const KernelTable& kernels_;
  RandomKey key_;
  double rate_;
  AffineSession session_;
  std::vector<std::vector<double>> sampled_;  // per distinct value: distribution function of the sampled count
  std::vector<std::int64_t> first_;           // the smallest count in it
  // E_q of the gradient of -log p(record | theta): slope (2 n x n) times t plus a constant, loc then raw; and of -log
  // prior.
  std::vector<double> slope_, constant_, prior_;
  std::vector<double> matrix_, scaled_;
};

}  // namespace dpinfer::study

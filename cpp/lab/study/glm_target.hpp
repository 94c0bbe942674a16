// Linear regression with unknown noise variance, and logistic regression, on records.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lab/study/dispersion.hpp"
#include "lab/study/target.hpp"
#include "mechanism/rows/step_session.hpp"

namespace dpinfer::study {

struct GlmModel {
  bool gaussian;  // otherwise logistic
  int n_coef;
  double prior_scale;                    // of a weight; gaussian: relative to the noise's standard deviation
  double variance_shape, variance_rate;  // gaussian: of the inverse-gamma prior
  std::vector<double> second_moments;    // public E[x_j^2], per weight
};

class GlmTarget final : public Target {
 public:
  GlmTarget(const GlmModel& model, const Records& records, GradientKind kind, std::span<const double> nodes,
            std::span<const double> weights, const KernelTable& kernels, double sample_rate, double max_grad_norm,
            const RandomKey& key);

  void information(const Iterate& q, std::span<double> out) override;
  // The noise variance's own value is linear, not its rho.
  void linear_coordinates(const Iterate& q, std::span<double> position, std::span<double> slope) const override;
  void prepare(const Iterate& q, std::span<const double> draws) override;
  void prior_gradient(const Iterate& q, std::span<double> out) override;
  void set_scales(const Iterate& q, std::span<const double> beta, std::span<const double> offset) override;
  void noisy_sum(std::uint64_t step, double noise_multiplier, std::span<double> out) override;

  // For sums that are made elsewhere: what they are of, and what becomes of them.
  const GradientTask& task() const { return session_.task(); }
  const SampleThreshold& threshold() const { return session_.threshold(); }
  void clipped_sum(std::uint64_t step, std::span<std::int64_t> sum) { session_.clipped_sum(step, sum); }
  void release(std::uint64_t step, double noise_multiplier, std::span<std::int64_t> sum, std::span<double> out) const {
    session_.release(step, noise_multiplier, sum, out);
  }

 private:
  void point_prior(std::span<const double> theta, std::span<double> out) const;

  const GlmModel& model_;
  GradientKind kind_;
  std::size_t n_, n_coef_;
  std::vector<double> nodes_, weights_;
  StepSession session_;
  DispersionExpectations dispersion_{};
  std::vector<double> variance_, multiplier_, theta_, standard_, draw_dispersion_;
};

}  // namespace dpinfer::study

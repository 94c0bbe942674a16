// A run's view of its private rows and of the current step's public inputs, with the padding that the kernels need.
#pragma once

#include <cstdint>
#include <span>

#include "common/aligned.hpp"
#include "mechanism/rows/glm_rows.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

// Sessions share nothing: many threads may each drive one of their own.  A session is driven by one thread at a time,
// and with n_threads = 1 it starts no others.
class StepSession : public SampledSession<StepSession> {
 public:
  // `records` must outlive the session.  Aligned sessions release the loc-gradient only.
  StepSession(const KernelTable& kernels, const Records& records, Likelihood likelihood, bool aligned,
              double sample_rate, double max_grad_norm, const RandomKey& key, int n_threads);

  int n_coef() const { return task_.n_coef; }
  bool has_dispersion() const { return task_.has_dispersion; }
  int length() const { return rows().length(); }
  std::int64_t n_rows() const { return task_.records.n_rows; }
  GlmRows rows() const { return {sum_.kernels(), task_}; }
  const GradientTask& task() const { return task_; }
  const SampleThreshold& threshold() const { return threshold_; }

  // Multipliers and offsets of the preconditioned gradient in released order; see GradientTask.  Length
  // length() each.
  void set_scales(std::span<const double> scale, std::span<const double> offset);
  // loc, variance: n_coef; nodes, weights: any length; moments: five numbers (see DispersionMoments) or empty.
  void set_quadrature(std::span<const double> loc, std::span<const double> variance, std::span<const double> nodes,
                      std::span<const double> weights, std::span<const double> moments);
  // draws, standard: n_draws x n_coef; dispersion: precision, log slope and standard normal of rho, n_draws each.
  void set_draws(int n_draws, std::span<const double> draws, std::span<const double> standard,
                 std::span<const double> dispersion);

 private:
  void pad_rows(std::span<const double> source, int n_rows, AlignedVector<double>& target) const;

  GradientTask task_{};
  AlignedVector<double> loc_scale_, loc_offset_, raw_scale_, raw_offset_;
  AlignedVector<double> loc_, variance_, nodes_, weights_, draws_, standard_, dispersion_;
};

}  // namespace dpinfer

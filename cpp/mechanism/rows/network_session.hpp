// The network's records and the current step's public inputs: its private sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/aligned.hpp"
#include "mechanism/simd/network_kernels.hpp"
#include "mechanism/sum/contributions.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

// features: n_rows x n_features, row-major; both outlive whatever holds them.
struct NetworkRecords {
  const double* features;
  const double* response;
  std::int64_t n_rows;
};

// Writes numbers of every weight as padded rows, `filling` between them.
void pad(const NetworkShape& shape, std::span<const double> source, double filling, AlignedVector<double>& target);

// See NetworkTask.
struct SiteWeights {
  double eta = 1.0;
  double precision = 1.0;
  double noise = 0.0;
  double norm = NetworkTask::kNone;
  double noise_limit = NetworkTask::kNone;
};

class NetworkContribution final : public Contributions {
 public:
  NetworkContribution(const NetworkKernelTable& kernels, const NetworkRecords& records, const NetworkTask& task)
      : kernels_(kernels), records_(records), task_(task) {}

  int length() const override { return task_.length(); }
  int scratch_length() const override { return task_.scratch_length(); }
  void contribution(std::int64_t i, double* scratch, double* out) const noexcept override {
    kernels_.contribution(task_, records_.features + i * task_.shape.n_features, records_.response[i], scratch, out);
  }

 private:
  const NetworkKernelTable& kernels_;
  NetworkRecords records_;
  const NetworkTask& task_;
};

class NetworkSession : public SampledSession<NetworkSession> {
 public:
  // The tables and records must outlive the session.  hidden_scale, output_scale: see NetworkTask.
  NetworkSession(const KernelTable& kernels, const NetworkKernelTable& network, const NetworkRecords& records,
                 NetworkShape shape, double hidden_scale, double output_scale, double sample_rate, double max_norm,
                 const RandomKey& key, int n_threads);

  // It refers to itself.
  NetworkSession(const NetworkSession&) = delete;
  NetworkSession& operator=(const NetworkSession&) = delete;

  int length() const { return task_.length(); }
  int n_params() const { return task_.shape.n_params(); }
  std::int64_t n_rows() const { return records_.n_rows; }
  ClippedContributions rows() const { return {sum_.kernels(), contribution_, sum_.lattice()}; }

  // mean, variance: n_params each, of the cavity.  See NetworkTask.
  void set_sites(std::span<const double> mean, std::span<const double> variance, double noise_variance,
                 const SiteWeights& weights);
  // mean_scale, variance_scale: n_params each.
  void set_gradients(std::span<const double> mean, std::span<const double> variance, double noise_variance,
                     std::span<const double> mean_scale, std::span<const double> variance_scale, double noise_weight);

  // Not private; writes length() numbers.
  void plain_sum(std::span<const std::int64_t> rows, double max_norm, std::span<double> sum);

 private:
  void set_state(std::span<const double> mean, std::span<const double> variance, double noise_variance);

  NetworkRecords records_;
  NetworkTask task_;
  NetworkContribution contribution_;
  AlignedVector<double> mean_, variance_, mean_scale_, variance_scale_;
};

}  // namespace dpinfer

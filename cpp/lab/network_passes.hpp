// Passes of ADF, SEP and EP over the records of a network one at a time.  Not private.
#pragma once

#include <cstdint>
#include <span>

#include "common/aligned.hpp"
#include "mechanism/rows/network_session.hpp"
#include "mechanism/simd/network_kernels.hpp"

namespace dpinfer {

// The state of a pass over the records one at a time.  eta and precision are those of q; a record's site is removed
// from q before the record is worked on, and what it has become is added.
struct NetworkPass {
  NetworkTask task;                   // its mean and variance point into scratch
  double* eta = nullptr;              // padded
  double* precision = nullptr;        // padded
  const double* prior_eta = nullptr;  // padded
  const double* prior_precision = nullptr;
  double* noise_gamma = nullptr;        // shape and rate of the noise precision's gamma distribution
  const double* prior_gamma = nullptr;  // the same of its prior
  double site_share = 0.0;  // the record's share of q over prior: 1 / N (SEP), 0 (ADF); ignored where it has its own
  double step = 1.0;        // how far q moves towards the record's new site: gamma / N; 1 for standard SEP, ADF and EP
  double clip_norm = NetworkTask::kNone;  // of (a t, site_weight b t)

  int scratch_length() const { return task.scratch_length() + 6 * task.shape.padded_length(); }
};

struct NetworkUpdates {
  const char* name;
  // Works in one record.  `site` is the record's own (eta and precision, padded, then the gamma's shape and rate), or
  // nullptr for the shared one.
  void (*update)(const NetworkPass& pass, const double* x, double y, double* site, double* scratch);
};

// As kernel_table (kernel_table.hpp).
const NetworkUpdates* network_updates();

// q, its prior and, for EP, every record's site: what passes over the records one at a time change.  Not private.
class NetworkPasses {
 public:
  // eta, precision and those of the prior: n_params each; gamma: shape and rate of the noise precision, and of its
  // prior.  own_sites: EP's, which take 2 n_params numbers a record.
  NetworkPasses(const NetworkUpdates& updates, const NetworkRecords& records, NetworkShape shape, bool own_sites,
                double clip_norm, double site_weight, std::span<const double> eta, std::span<const double> precision,
                std::span<const double> prior_precision, std::span<const double> gamma,
                std::span<const double> prior_gamma);

  int n_params() const { return pass_.task.shape.n_params(); }

  // Works in the records of `order`, one after the other.  share, step: see NetworkPass.
  void run(std::span<const std::int64_t> order, double share, double step);
  // Moves the prior's precisions; q moves with them.
  void set_prior(std::span<const double> prior_precision);
  // Adds to q's natural parameters; a precision that would not be positive stays.
  void add(std::span<const double> eta, std::span<const double> precision);
  void state(std::span<double> eta, std::span<double> precision, std::span<double> gamma) const;

 private:
  const NetworkUpdates& updates_;
  NetworkRecords records_;
  AlignedVector<double> eta_, precision_, prior_eta_, prior_precision_, scratch_, sites_;
  double gamma_[2];
  double prior_gamma_[2];
  NetworkPass pass_{};
};

}  // namespace dpinfer

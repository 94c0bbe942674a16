// A run over records whose contributions are sites: sampling of each kind, clipped lattice sums, noise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "mechanism/rows/site_kernels.hpp"
#include "mechanism/sum/private_sum.hpp"

namespace dpinfer {

class SiteSession {
 public:
  SiteSession(const KernelTable& kernels, std::unique_ptr<SiteKernel> sites, std::int64_t n_rows, double max_site_norm,
              const RandomKey& key, int n_threads);

  int length() const { return sites_->length(); }
  int n_blocks() const { return sites_->n_blocks(); }
  int width() const { return sites_->width(); }
  std::int64_t n_rows() const { return n_rows_; }
  double lattice_step() const { return sum_.lattice().step; }

  bool set_state(const SiteState& state) { return sites_->set_state(state); }

  // Private.  Over a Poisson sample, over one uniformly drawn row, over row step % n_rows of the order of epoch
  // step / n_rows; with noise of standard deviation noise_multiplier * max_site_norm.
  void poisson_sum(std::uint64_t step, double sample_rate, double noise_multiplier, std::span<double> sum);
  void uniform_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum);
  void permuted_sum(std::uint64_t step, double noise_multiplier, std::span<double> sum);

  // For audits: the lattice sum without noise over a Poisson sample or over listed rows.
  void clipped_poisson_sum(std::uint64_t step, double sample_rate, std::span<std::int64_t> sum);
  void clipped_sum(std::span<const std::int64_t> listed, std::span<std::int64_t> sum);

  // Not private: the sum of all rows without noise, clipped to max_norm (infinity: not), and the contributions of
  // listed rows themselves (listed.size() x length()).
  void plain_sum(double max_norm, std::span<double> sum);
  void contributions(std::span<const std::int64_t> listed, std::span<double> out) const;

  // The rows of the epoch's order, or the row of a step: what permuted_sum and uniform_sum read.
  const std::vector<std::int64_t>& order(std::uint64_t epoch);
  std::int64_t uniform(std::uint64_t step) const;

 private:
  ClippedContributions rows() const { return {sum_.kernels(), *sites_, sum_.lattice()}; }

  PrivateSum sum_;
  std::unique_ptr<SiteKernel> sites_;
  std::int64_t n_rows_;
  std::vector<std::int64_t> order_;
  std::uint64_t order_epoch_ = 0;
};

}  // namespace dpinfer

// Chains over second moments that a noisy release leaves open, side by side: python/dpinfer/inference/newton/
// moments_law.py states the law, docs/derivations/private-newton.md derives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "inference/lapack.hpp"

namespace dpinfer::inference {

inline constexpr std::size_t kMostFlattened = 2;

// All in the eigenbasis of the release; copied by the chains.
struct MomentsProblem {
  std::size_t width = 0;
  std::size_t flattened = 0;              // columns of the frame
  double noise = 0.0;                     // variance of a diagonal entry of the release
  double unit = 0.0;                      // the centre at which the guide looks
  double low = 0.0, high = 0.0;           // ends of the centre
  std::vector<double> eigenvalues;        // of the release
  std::vector<double> levels, log_prior;  // of the flattening
  std::vector<double> spreads;            // even in their log
  std::vector<double> proposals;          // (p, 3, width, width): of directions, a factor, the covariance, its inverse
  std::vector<double> score, position;    // mean of the scores over their slopes, and of where they were taken
  std::vector<double> prior, prior_factor;        // (width, width): the weights' prior covariance, and F with F F' = it
  double score_noise = 0.0, sampling = 0.0;       // variance of the mean score; kappa squared
  std::vector<double> precision;                  // of each score
  std::vector<double> away_score, away_position;  // (scores, width): each score less their mean
};

// Where chains begin.
struct MomentsStart {
  std::vector<double> frames;        // (chains, flattened, width)
  std::vector<std::int64_t> level;   // (chains, flattened)
  std::vector<std::int64_t> spread;  // (chains)
};

class MomentsChains {
 public:
  MomentsChains(const Lapack& lapack, MomentsProblem problem, const MomentsStart& start, std::uint64_t seed);
  ~MomentsChains();
  MomentsChains(const MomentsChains&) = delete;
  MomentsChains& operator=(const MomentsChains&) = delete;

  std::size_t size() const;
  std::size_t width() const;

  // Moves that the release alone accepts, then those that the scores accept or refuse.  The same for any `threads`.
  void advance(std::size_t alone, std::size_t steps, int threads);

  // The second moments (chains, width, width), and the log density of the scores, -inf where they are not positive
  // definite.
  void moments(std::span<double> out) const;
  void log_density(std::span<double> out) const;

 private:
  class Chain;
  const Lapack& lapack_;
  MomentsProblem problem_;
  std::vector<Chain> chains_;
};

}  // namespace dpinfer::inference

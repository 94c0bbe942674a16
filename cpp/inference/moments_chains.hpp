// Chains over flattened directions and errors of the weights, side by side, with the second moments integrated out:
// python/dpinfer/inference/newton/moments_law.py states the law, docs/derivations/private-newton.md derives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dpinfer::inference {

inline constexpr std::size_t kMostFlattened = 2;

// All in the eigenbasis of the release; copied by the chains.
struct MomentsProblem {
  std::size_t width = 0;
  std::size_t flattened = 0;              // columns of the frame
  double noise = 0.0;                     // variance of a diagonal entry of the release
  double unit = 0.0;                      // where the centre begins
  double low = 0.0, high = 0.0;           // ends of the centre
  std::vector<double> eigenvalues;        // of the release
  std::vector<double> levels, log_prior;  // of the flattening
  std::vector<double> spreads;            // even in their log
  std::vector<double> proposals;          // (p, 3, width, width): of directions, a factor, the covariance, its inverse
  std::vector<double> score, position;    // mean of the scores over their slopes, and of where they were taken
  std::vector<double> prior_precision;    // (width, width): of the weights
  double score_noise = 0.0, sampling = 0.0;  // variance of the mean score; kappa squared
};

// One state: the matrix is normal given it.
struct MomentsState {
  std::vector<double> frame;                        // (flattened, width)
  std::array<std::size_t, kMostFlattened> level{};  // of each column
  std::size_t spread = 0;
  double centre = 0.0;
  std::vector<double> error;  // of the weights at `position`
};

class MomentsChains {
 public:
  MomentsChains(MomentsProblem problem, std::vector<MomentsState> start, std::uint64_t seed);
  ~MomentsChains();
  MomentsChains(const MomentsChains&) = delete;
  MomentsChains& operator=(const MomentsChains&) = delete;

  std::size_t size() const;
  const MomentsProblem& problem() const { return problem_; }
  const MomentsState& state(std::size_t chain) const;
  double log_density(std::size_t chain) const;

  // Sweeps over all that is unknown.  The same for any `threads`.
  void advance(std::size_t sweeps, int threads);

 private:
  class Chain;
  MomentsProblem problem_;
  std::vector<Chain> chains_;
};

}  // namespace dpinfer::inference

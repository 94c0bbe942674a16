#include "inference/moments_chains.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/parallel.hpp"

namespace dpinfer::inference {

namespace {

constexpr double kLeastTurn = -3.912023005428146;  // log 0.02: of a walk of a direction, up to 1
constexpr double kFlips = 0.1;                     // of the moves along a direction: to the other side
constexpr double kWider = 1.2;                     // what is drawn is wider than the law that it is drawn for
constexpr std::size_t kMostBlock = kMostFlattened + 1;

// xoshiro256++ (Blackman and Vigna), one stream a chain; nothing private is drawn from it.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15ULL;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }

  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

  std::size_t below(std::size_t count) {
    return std::min(static_cast<std::size_t>(uniform() * static_cast<double>(count)), count - 1);
  }

  double normal() {
    if (kept_) {
      kept_ = false;
      return other_;
    }
    double u = 0.0;
    double v = 0.0;
    double square = 0.0;
    do {
      u = 2.0 * uniform() - 1.0;
      v = 2.0 * uniform() - 1.0;
      square = u * u + v * v;
    } while (square >= 1.0 || square == 0.0);
    const double scale = std::sqrt(-2.0 * std::log(square) / square);
    other_ = v * scale;
    kept_ = true;
    return u * scale;
  }

 private:
  static std::uint64_t rotated(std::uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

  std::uint64_t next() {
    const std::uint64_t result = rotated(state_[0] + state_[3], 23) + state_[0];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotated(state_[3], 45);
    return result;
  }

  std::array<std::uint64_t, 4> state_{};
  bool kept_ = false;
  double other_ = 0.0;
};

// In four sums side by side, which the processor adds at once.
double dot(const double* a, const double* b, std::size_t n) {
  std::array<double, 4> sums{};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

class MomentsChains::Chain {
 public:
  Chain(const MomentsProblem& problem, MomentsState start, std::uint64_t seed)
      : stream_(seed), state_(std::move(start)) {
    const std::size_t d = problem.width;
    drawn_.resize(d);
    turned_.resize(d);
    missed_.resize(d);
    reach_.resize(d);
    // Steps along an eigenvector: from what the score would tell there to what the prior does.
    for (std::size_t i = 0; i < d; ++i) {
      const double noise = problem.score_noise + problem.sampling * problem.unit;
      const double value = std::max(problem.eigenvalues[i], std::sqrt(problem.noise));
      const double prior = problem.prior_precision[i * d + i];
      reach_[i] = {-0.5 * std::log(value * value / noise + prior), -0.5 * std::log(prior)};
    }
    matrix_.resize(d * d);
    scaled_.resize(d * d);
    guessed_.resize(d);
    usual_ = dot(state_.error.data(), state_.error.data(), d);
    density_ = weigh(problem, state_);
  }

  const MomentsState& state() const { return state_; }
  double density() const { return density_; }

  void advance(const MomentsProblem& problem, std::size_t sweeps) {
    proposed_ = state_;
    for (std::size_t i = 0; i < sweeps; ++i) {
      for (std::size_t k = 0; k < problem.flattened; ++k) {
        turn_anew(problem, k);
        turn_a_little(problem, k);
        stretch(problem, k);
      }
      leap(problem);
      respread(problem);
      recentre(problem);
      for (std::size_t axis = 0; axis < problem.width; ++axis) shift(problem, axis);
    }
  }

 private:
  // Accepts or refuses what is proposed; `change` is the log of the proposals' ratio.
  void decide(const MomentsProblem& problem, double change) {
    const double density = weigh(problem, proposed_);
    if (std::log(stream_.uniform()) < density - density_ + change) {
      density_ = density;
      state_ = proposed_;
    } else {
      proposed_ = state_;
    }
  }

  double log_uniform(double low, double high) { return std::exp(low + (high - low) * stream_.uniform()); }

  void perhaps_relevel(const MomentsProblem& problem, std::size_t k) {
    if (stream_.uniform() < 0.5) proposed_.level[k] = stream_.below(problem.levels.size());
  }

  // Holds a draw of N(0, covariance) to the complement of the other direction; no covariance is the identity.
  void hold_beside(const MomentsProblem& problem, const double* covariance, std::size_t k) {
    if (problem.flattened < 2) return;
    const std::size_t d = problem.width;
    const double* other = state_.frame.data() + (1 - k) * d;
    for (std::size_t i = 0; i < d; ++i) {
      turned_[i] = covariance == nullptr ? other[i] : dot(covariance + i * d, other, d);
    }
    const double by = dot(other, drawn_.data(), d) / dot(other, turned_.data(), d);
    for (std::size_t i = 0; i < d; ++i) drawn_[i] -= by * turned_[i];
  }

  void normalise() {
    const double norm = std::sqrt(dot(drawn_.data(), drawn_.data(), drawn_.size()));
    for (auto& number : drawn_) number /= norm;
  }

  static double quadratic(const double* matrix, const double* at, std::size_t d) {
    double sum = 0.0;
    for (std::size_t i = 0; i < d; ++i) sum += at[i] * dot(matrix + i * d, at, d);
    return sum;
  }

  // Draws a direction near eigenvectors of small eigenvalues, or where the weights' prior is wide, whatever it was.
  double draw_direction(const MomentsProblem& problem, std::size_t k) {
    const std::size_t d = problem.width;
    const double* factor = problem.proposals.data() + 3 * d * d * stream_.below(problem.proposals.size() / (3 * d * d));
    for (auto& number : missed_) number = stream_.normal();
    for (std::size_t i = 0; i < d; ++i) drawn_[i] = dot(factor + i * d, missed_.data(), d);
    hold_beside(problem, factor + d * d, k);
    normalise();
    double* own = proposed_.frame.data() + k * d;
    const double* precision = factor + 2 * d * d;
    const double change = 0.5 * static_cast<double>(d - problem.flattened + 1) *
                          std::log(quadratic(precision, drawn_.data(), d) / quadratic(precision, own, d));
    std::copy(drawn_.begin(), drawn_.end(), own);
    return change;
  }

  void turn_anew(const MomentsProblem& problem, std::size_t k) {
    const double change = draw_direction(problem, k);
    perhaps_relevel(problem, k);
    decide(problem, change);
  }

  // A walk of a direction, with which every second time the error turns.
  void turn_a_little(const MomentsProblem& problem, std::size_t k) {
    const std::size_t d = problem.width;
    const double far = log_uniform(kLeastTurn, 0.0) / std::sqrt(static_cast<double>(d));
    double* own = proposed_.frame.data() + k * d;
    for (auto& number : drawn_) number = stream_.normal();
    hold_beside(problem, nullptr, k);
    for (std::size_t i = 0; i < d; ++i) drawn_[i] = own[i] + far * drawn_[i];
    normalise();
    if (stream_.uniform() < 0.5) {
      // The rotation that takes the one direction to the other, in their plane.
      const double cosine = dot(own, drawn_.data(), d);
      const double first = dot(own, proposed_.error.data(), d);
      const double second = dot(drawn_.data(), proposed_.error.data(), d);
      const double along = (first + second) / (1.0 + cosine);
      for (std::size_t i = 0; i < d; ++i) {
        proposed_.error[i] += 2.0 * first * drawn_[i] - along * (own[i] + drawn_[i]);
      }
    }
    std::copy(drawn_.begin(), drawn_.end(), own);
    perhaps_relevel(problem, k);
    decide(problem, 0.0);
  }

  // The error along a direction grows as its level falls, or by any factor, or changes sides.
  void stretch(const MomentsProblem& problem, std::size_t k) {
    const std::size_t d = problem.width;
    const double* own = proposed_.frame.data() + k * d;
    const double along = dot(own, proposed_.error.data(), d);
    const std::size_t before = proposed_.level[k];
    perhaps_relevel(problem, k);
    double change = std::log(problem.levels[before] / problem.levels[proposed_.level[k]]);
    if (proposed_.level[k] == before) change = log_uniform(-3.0, 1.0) * stream_.normal();
    const double by = std::exp(change) * (stream_.uniform() < kFlips ? -1.0 : 1.0);
    for (std::size_t i = 0; i < d; ++i) proposed_.error[i] += (by - 1.0) * along * own[i];
    decide(problem, change);
  }

  // All of the error is drawn from about what it is given the rest, with another direction and level.
  void leap(const MomentsProblem& problem) {
    double change = log_guess(problem, state_);
    if (problem.flattened > 0) {
      const std::size_t k = stream_.below(problem.flattened);
      if (stream_.uniform() < 0.5) change += draw_direction(problem, k);
      perhaps_relevel(problem, k);
    }
    draw_guess(problem, proposed_);
    decide(problem, change - log_guess(problem, proposed_));
  }

  // About the law of the error given the rest: a factor of its precision, and its mean.  The noise of the score is that
  // at an error of usual size.
  void guess(const MomentsProblem& problem, const MomentsState& state) {
    const std::size_t d = problem.width;
    const std::size_t m = problem.flattened;
    const double spread = problem.spreads[state.spread] * problem.spreads[state.spread];
    const double kept = spread / (spread + problem.noise);
    const double* value = problem.eigenvalues.data();
    std::fill(matrix_.begin(), matrix_.end(), 0.0);
    for (std::size_t i = 0; i < d; ++i) matrix_[i * d + i] = (1.0 - kept) * state.centre + kept * value[i];
    std::array<double, kMostFlattened> own_noise{};
    double wide = problem.score_noise + problem.sampling * state.centre + 0.5 * problem.noise * kept * usual_;
    for (std::size_t k = 0; k < m; ++k) {
      const double* own = state.frame.data() + k * d;
      const double level = problem.levels[state.level[k]];
      const double beside = spread * level / (spread * level + problem.noise);
      const double part = spread * level * level / (spread * level * level + problem.noise);
      double inside = 0.0;
      for (std::size_t i = 0; i < d; ++i) inside += own[i] * own[i] * value[i];
      const double mean = part * inside + (1.0 - part) * state.centre * level;
      const double noise = problem.score_noise + problem.sampling * state.centre * level;
      const double prior = quadratic(problem.prior_precision.data(), own, d);
      own_noise[k] = noise + 0.5 * problem.noise * beside * usual_;
      wide += 0.5 * problem.noise * beside / (prior + mean * mean / own_noise[k]);
      // From what it is beside the frame to what it is along it: M + u v' + v u'.
      auto& pushed = turned_;
      for (std::size_t i = 0; i < d; ++i) pushed[i] = dot(matrix_.data() + i * d, own, d);
      const double held = dot(own, pushed.data(), d);
      for (std::size_t i = 0; i < d; ++i) {
        pushed[i] = beside * (value[i] - inside) * own[i] - pushed[i] + 0.5 * (held + mean) * own[i];
      }
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < d; ++j) matrix_[i * d + j] += pushed[i] * own[j] + own[i] * pushed[j];
      }
    }
    for (std::size_t i = 0; i < d; ++i) missed_[i] = problem.score[i] / wide;
    std::fill(scaled_.begin(), scaled_.end(), 0.0);
    for (std::size_t i = 0; i < d * d; ++i) scaled_[i] = matrix_[i] / wide;
    for (std::size_t k = 0; k < m; ++k) {
      const double* own = state.frame.data() + k * d;
      const double by = 1.0 / own_noise[k] - 1.0 / wide;
      const double score = by * dot(own, problem.score.data(), d);
      for (std::size_t i = 0; i < d; ++i) missed_[i] += score * own[i];
      for (std::size_t j = 0; j < d; ++j) {
        const double pushed = by * dot(matrix_.data() + j * d, own, d);
        for (std::size_t i = 0; i < d; ++i) scaled_[i * d + j] += pushed * own[i];
      }
    }
    // The precision, its Cholesky factor by rows, and the mean.
    for (std::size_t i = 0; i < d; ++i) {
      guessed_[i] = dot(matrix_.data() + i * d, missed_.data(), d) -
                    dot(problem.prior_precision.data() + i * d, problem.position.data(), d);
    }
    factor_ = problem.prior_precision;
    for (std::size_t l = 0; l < d; ++l) {
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j <= i; ++j) factor_[i * d + j] += matrix_[l * d + i] * scaled_[l * d + j];
      }
    }
    for (std::size_t j = 0; j < d; ++j) {
      double* row = factor_.data() + j * d;
      row[j] = std::sqrt(std::max(row[j] - dot(row, row, j), 1e-300));
      for (std::size_t i = j + 1; i < d; ++i) {
        double* below = factor_.data() + i * d;
        below[j] = (below[j] - dot(below, row, j)) / row[j];
      }
    }
    for (std::size_t i = 0; i < d; ++i) {
      const double* row = factor_.data() + i * d;
      guessed_[i] = (guessed_[i] - dot(row, guessed_.data(), i)) / row[i];
    }
    solve_transposed(guessed_);
  }

  void solve_transposed(std::vector<double>& at) const {
    const std::size_t d = at.size();
    for (std::size_t i = d; i-- > 0;) {
      at[i] /= factor_[i * d + i];
      for (std::size_t j = 0; j < i; ++j) at[j] -= factor_[i * d + j] * at[i];
    }
  }

  void draw_guess(const MomentsProblem& problem, MomentsState& state) {
    guess(problem, state);
    for (auto& number : drawn_) number = kWider * stream_.normal();
    solve_transposed(drawn_);
    for (std::size_t i = 0; i < drawn_.size(); ++i) state.error[i] = guessed_[i] + drawn_[i];
  }

  double log_guess(const MomentsProblem& problem, const MomentsState& state) {
    guess(problem, state);
    const std::size_t d = problem.width;
    double density = 0.0;
    for (std::size_t i = 0; i < d; ++i) {
      double along = 0.0;
      for (std::size_t j = i; j < d; ++j) along += factor_[j * d + i] * (state.error[j] - guessed_[j]);
      density += std::log(factor_[i * d + i]) - 0.5 * along * along / (kWider * kWider);
    }
    return density;
  }

  void respread(const MomentsProblem& problem) {
    const auto size = static_cast<double>(problem.spreads.size());
    const double by = std::nearbyint(log_uniform(0.0, std::log(size)) * stream_.normal());
    const double to = static_cast<double>(state_.spread) + by;
    if (to < 0.0 || to >= size) return;
    proposed_.spread = static_cast<std::size_t>(to);
    decide(problem, 0.0);
  }

  void recentre(const MomentsProblem& problem) {
    proposed_.centre += log_uniform(-4.0, 0.0) * problem.unit * stream_.normal();
    if (proposed_.centre < problem.low || proposed_.centre > problem.high) {
      proposed_.centre = state_.centre;
      return;
    }
    decide(problem, 0.0);
  }

  void shift(const MomentsProblem& problem, std::size_t axis) {
    proposed_.error[axis] += log_uniform(reach_[axis].first, reach_[axis].second) * stream_.normal();
    decide(problem, 0.0);
  }

  // The log density of release, scores, weights and all that is learned, the matrix integrated out.
  double weigh(const MomentsProblem& problem, const MomentsState& state) {
    const std::size_t d = problem.width;
    const std::size_t m = problem.flattened;
    const auto n = static_cast<double>(d - m);
    const double noise = problem.noise;
    const double spread = problem.spreads[state.spread] * problem.spreads[state.spread];
    const double kept = spread / (spread + noise);
    const auto* value = problem.eigenvalues.data();
    const auto* error = state.error.data();
    double twice = 0.0;  // minus twice the log density
    const auto count = [&](double variance, double square, double times) {
      twice += times * std::log(variance) + square / variance;
    };
    // What the frame says of the release, and of the error.
    std::array<std::array<double, kMostFlattened>, kMostFlattened> inside{};
    std::array<std::array<double, kMostFlattened>, kMostFlattened> part{};
    std::array<double, kMostFlattened> along{};
    std::array<double, kMostFlattened> pushed{};
    std::array<double, kMostFlattened> scored{};
    std::array<double, kMostFlattened> beside{};
    std::array<double, kMostFlattened> level{};
    double energy = dot(value, value, d);
    double trace = 0.0;
    for (std::size_t i = 0; i < d; ++i) trace += value[i];
    for (std::size_t k = 0; k < m; ++k) {
      const double* own = state.frame.data() + k * d;
      double squares = 0.0;
      level[k] = problem.levels[state.level[k]];
      for (std::size_t i = 0; i < d; ++i) {
        const double there = value[i] * own[i];
        squares += there * there;
        along[k] += own[i] * error[i];
        pushed[k] += there * error[i];
        scored[k] += own[i] * problem.score[i];
        for (std::size_t a = 0; a <= k; ++a) inside[k][a] += state.frame[a * d + i] * there;
      }
      double outside = squares;
      for (std::size_t a = 0; a <= k; ++a) inside[a][k] = inside[k][a];
      energy -= 2.0 * squares;
      trace -= inside[k][k];
      const double missed = inside[k][k] - state.centre * level[k];
      count(noise + spread * level[k] * level[k], missed * missed, 1.0);
      beside[k] = spread * level[k] / (spread * level[k] + noise);
      // The squared norm of P S v, P what is beside the frame.
      if (k == 1) count(noise + spread * level[0] * level[1], 2.0 * inside[1][0] * inside[1][0], 1.0);
      for (std::size_t a = 0; a < m; ++a) {
        const double both = spread * level[k] * problem.levels[state.level[a]];
        part[k][a] = both / (both + noise);
        double other = 0.0;
        if (a > k) {
          for (std::size_t i = 0; i < d; ++i) other += state.frame[a * d + i] * value[i] * own[i];
        } else {
          other = inside[k][a];
        }
        outside -= other * other;
        energy += other * other;
      }
      count(noise + spread * level[k], 2.0 * std::max(outside, 0.0), n);
      twice -= 2.0 * problem.log_prior[state.level[k]];
    }
    energy += state.centre * (state.centre * n - 2.0 * trace);
    count(noise + spread, energy, 0.5 * n * (n + 1.0));
    twice -= std::log(spread);
    // The scores less their mean, beside the frame and along it.
    double length = 0.0;
    double missed_square = 0.0;
    double missed_along = 0.0;
    double wide = problem.score_noise + problem.sampling * state.centre;
    for (std::size_t i = 0; i < d; ++i) {
      double free = error[i];
      double mixed = 0.0;
      for (std::size_t k = 0; k < m; ++k) {
        const double own = state.frame[k * d + i] * along[k];
        free -= own;
        mixed += beside[k] * own;
      }
      missed_[i] = problem.score[i] - (1.0 - kept) * state.centre * free - value[i] * (kept * free + mixed);
      length += free * free;
      missed_square += missed_[i] * missed_[i];
      missed_along += missed_[i] * free;
    }
    std::array<std::array<double, kMostBlock>, kMostBlock> block{};
    std::array<double, kMostBlock> missed{};
    wide += 0.5 * noise * kept * length;
    for (std::size_t k = 0; k < m; ++k) {
      const double outside = dot(state.frame.data() + k * d, missed_.data(), d);
      missed_square -= outside * outside;
      wide += 0.5 * noise * beside[k] * along[k] * along[k];
      double mean = pushed[k];
      for (std::size_t a = 0; a < m; ++a) mean -= inside[k][a] * along[a];
      mean *= beside[k];
      auto& own = block[k + 1];
      own[k + 1] = problem.score_noise + problem.sampling * state.centre * level[k] + 0.5 * noise * beside[k] * length;
      for (std::size_t a = 0; a < m; ++a) {
        mean += part[k][a] * inside[k][a] * along[a];
        own[k + 1] += (a == k ? 1.0 : 0.5) * noise * part[k][a] * along[a] * along[a];
        if (a < k) own[a + 1] = 0.5 * noise * part[k][a] * along[k] * along[a];
      }
      mean += (1.0 - part[k][k]) * state.centre * level[k] * along[k];
      missed[k + 1] = scored[k] - mean;
      own[0] = 0.5 * noise * beside[k] * along[k] * std::sqrt(length);
    }
    block[0][0] = wide + 0.5 * noise * kept * length;
    missed[0] = length > 0.0 ? missed_along / std::sqrt(length) : 0.0;
    count(wide, std::max(missed_square - missed[0] * missed[0], 0.0), n - 1.0);
    for (std::size_t i = 0; i <= m; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        for (std::size_t l = 0; l < j; ++l) block[i][j] -= block[i][l] * block[j][l];
        if (j < i) block[i][j] /= block[j][j];
      }
      for (std::size_t j = 0; j < i; ++j) missed[i] -= block[i][j] * missed[j];
      count(block[i][i], missed[i] * missed[i], 1.0);
      block[i][i] = std::sqrt(std::max(block[i][i], 1e-300));
      missed[i] /= block[i][i];
    }
    for (std::size_t i = 0; i < d; ++i) missed_[i] = error[i] + problem.position[i];
    return -0.5 * (twice + quadratic(problem.prior_precision.data(), missed_.data(), d));
  }

  Stream stream_;
  MomentsState state_, proposed_;
  std::vector<double> drawn_, turned_, missed_, matrix_, scaled_, factor_, guessed_;
  std::vector<std::pair<double, double>> reach_;
  double density_ = 0.0, usual_ = 0.0;
};

MomentsChains::MomentsChains(MomentsProblem problem, std::vector<MomentsState> start, std::uint64_t seed)
    : problem_(std::move(problem)) {
  chains_.reserve(start.size());
  for (auto& state : start) {
    const std::uint64_t own = seed * 0x2545f4914f6cdd1dULL + 0x632be59bd9b4e019ULL * (chains_.size() + 1);
    chains_.emplace_back(problem_, std::move(state), own);
  }
}

MomentsChains::~MomentsChains() = default;

std::size_t MomentsChains::size() const { return chains_.size(); }

const MomentsState& MomentsChains::state(std::size_t chain) const { return chains_[chain].state(); }

double MomentsChains::log_density(std::size_t chain) const { return chains_[chain].density(); }

void MomentsChains::advance(std::size_t sweeps, int threads) {
  const int team = std::min(resolve_threads(threads), static_cast<int>(chains_.size()));
#pragma omp parallel for num_threads(team) schedule(dynamic) if (team > 1)
  for (std::size_t i = 0; i < chains_.size(); ++i) chains_[i].advance(problem_, sweeps);
}

}  // namespace dpinfer::inference

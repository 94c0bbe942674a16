#include "inference/moments_chains.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/parallel.hpp"

namespace dpinfer::inference {

namespace {

constexpr double kLeastTurn = -3.912023005428146;                // log 0.02: of a walk of a direction, up to 1
constexpr std::array<double, 4> kKept = {0.0, 0.7, 0.95, 0.99};  // shares of the numbers that make a matrix
constexpr double kLeastEigenvalue = 1e-5;
constexpr int kTries = 64;

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

double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Turns log weights into weights over the largest; returns the log of their sum.
double exponentiate(std::vector<double>& values) {
  const double most = *std::max_element(values.begin(), values.end());
  double sum = 0.0;
  for (auto& value : values) sum += (value = std::exp(value - most));
  return most + std::log(sum);
}

std::size_t picked(const std::vector<double>& weights, Stream& stream) {
  double left = 0.0;
  for (const double weight : weights) left += weight;
  left *= stream.uniform();
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0.0) return i;
  }
  return weights.size() - 1;
}

// A state, of which the matrix is a function.
struct State {
  std::vector<double> frame;                                                // (flattened, width)
  std::array<std::array<double, kMostFlattened>, kMostFlattened> inside{};  // V'SV
  std::array<double, kMostFlattened> squares{};                             // of V'SSV, the diagonal
  std::array<std::size_t, kMostFlattened> level{};
  std::size_t spread = 0;
  double centre = 0.0;
  std::vector<double> resolved;  // standard normal, upper triangle by rows, beside the diagonal over sqrt 2
  std::vector<double> beside;    // (flattened, width)
  std::array<double, 3> mixed{};
};

// What threads work in.
struct Workspace {
  std::vector<double> matrix, product, covariance, vector, direction, levels, proposed, spreads;
};

}  // namespace

class MomentsChains::Chain {
 public:
  Chain(const MomentsProblem& problem, const MomentsStart& start, std::size_t index, std::uint64_t seed)
      : stream_(seed) {
    const std::size_t d = problem.width;
    const std::size_t m = problem.flattened;
    const auto at = start.frames.begin() + static_cast<std::ptrdiff_t>(index * m * d);
    state_.frame.assign(at, at + static_cast<std::ptrdiff_t>(m * d));
    for (std::size_t k = 0; k < m; ++k) {
      state_.level[k] = static_cast<std::size_t>(start.level[index * m + k]);
      push(problem, state_, k);
    }
    state_.spread = static_cast<std::size_t>(start.spread[index]);
    state_.centre = problem.unit;
    state_.resolved.resize(d * (d + 1) / 2);
    state_.beside.resize(m * d);
    renew(state_, 0.0);
    matrix_.resize(d * d);
    density_ = -std::numeric_limits<double>::infinity();
  }

  const std::vector<double>& matrix() const { return matrix_; }
  double density() const { return density_; }

  void advance(const Lapack& lapack, const MomentsProblem& problem, std::size_t alone, std::size_t steps,
               Workspace& work) {
    for (std::size_t i = 0; i < alone; ++i) move(problem, state_, work);
    if (alone > 0) {
      fill(problem, state_, work);
      density_ = weigh(lapack, problem, state_, work);
      matrix_ = work.matrix;
    }
    for (std::size_t i = 0; i < steps; ++i) {
      proposed_ = state_;
      move(problem, proposed_, work);
      renew(proposed_, kKept[stream_.below(kKept.size())]);
      fill(problem, proposed_, work);
      const double density = weigh(lapack, problem, proposed_, work);
      // A state without a density, whose matrix is not positive definite, goes on until it has one.
      if (!std::isfinite(density_) || std::log(stream_.uniform()) < density - density_) {
        std::swap(state_, proposed_);
        density_ = density;
        matrix_ = work.matrix;
      }
    }
  }

 private:
  // Takes up a direction of the frame that has changed.
  static void push(const MomentsProblem& problem, State& state, std::size_t k) {
    const std::size_t d = problem.width;
    const double* own = state.frame.data() + k * d;
    double squares = 0.0;
    std::array<double, kMostFlattened> inside{};
    for (std::size_t i = 0; i < d; ++i) {
      const double pushed = problem.eigenvalues[i] * own[i];
      squares += pushed * pushed;
      for (std::size_t a = 0; a < problem.flattened; ++a) inside[a] += state.frame[a * d + i] * pushed;
    }
    for (std::size_t a = 0; a < problem.flattened; ++a) state.inside[k][a] = state.inside[a][k] = inside[a];
    state.squares[k] = squares;
  }

  void renew(State& state, double kept) {
    const double rest = std::sqrt(1.0 - kept * kept);
    for (auto* numbers : {&state.resolved, &state.beside}) {
      for (auto& number : *numbers) number = kept * number + rest * stream_.normal();
    }
    for (auto& number : state.mixed) number = kept * number + rest * stream_.normal();
  }

  void move(const MomentsProblem& problem, State& state, Workspace& work) {
    const std::size_t kind = stream_.below(problem.flattened + 2);
    if (kind < problem.flattened) {
      turn(problem, state, kind, work);
    } else if (kind == problem.flattened) {
      respread(problem, state, work.spreads);
    } else {
      recentre(problem, state);
    }
  }

  // Holds a draw of N(0, covariance) to the complement of the other direction; no covariance is the identity.
  static void hold_beside(const double* covariance, const double* other, std::vector<double>& drawn,
                          std::vector<double>& turned) {
    if (other == nullptr) return;
    const std::size_t d = drawn.size();
    turned.assign(other, other + d);
    if (covariance != nullptr) {
      for (std::size_t i = 0; i < d; ++i) turned[i] = dot(covariance + i * d, other, d);
    }
    const double by = dot(other, drawn.data(), d) / dot(other, turned.data(), d);
    for (std::size_t i = 0; i < d; ++i) drawn[i] -= by * turned[i];
  }

  static double quadratic(const double* matrix, const double* at, std::size_t d) {
    double sum = 0.0;
    for (std::size_t i = 0; i < d; ++i) sum += at[i] * dot(matrix + i * d, at, d);
    return sum;
  }

  // Metropolis steps on one direction, its level summed out, and a draw of the level.
  void turn(const MomentsProblem& problem, State& state, std::size_t k, Workspace& work) {
    const std::size_t d = problem.width;
    double* own = state.frame.data() + k * d;
    const double* other = problem.flattened > 1 ? state.frame.data() + (1 - k) * d : nullptr;
    weigh_levels(problem, state, k, work.levels);
    double found = exponentiate(work.levels);
    auto& drawn = work.direction;
    drawn.resize(d);
    for (const bool guided : {true, false}) {
      double change = 0.0;
      for (auto& number : drawn) number = stream_.normal();
      if (guided) {
        const std::size_t which = stream_.below(problem.proposals.size() / (3 * d * d));
        const double* factor = problem.proposals.data() + 3 * d * d * which;
        auto& rotated = work.vector;
        rotated.resize(d);
        for (std::size_t i = 0; i < d; ++i) rotated[i] = dot(factor + i * d, drawn.data(), d);
        std::swap(drawn, rotated);
        hold_beside(factor + d * d, other, drawn, rotated);
        const double norm = std::sqrt(dot(drawn.data(), drawn.data(), d));
        for (auto& number : drawn) number /= norm;
        const double* precision = factor + 2 * d * d;
        change = 0.5 * static_cast<double>(d - problem.flattened + 1) *
                 std::log(quadratic(precision, drawn.data(), d) / quadratic(precision, own, d));
      } else {
        const double far = std::exp(kLeastTurn * stream_.uniform()) / std::sqrt(static_cast<double>(d));
        hold_beside(nullptr, other, drawn, work.vector);
        double square = 0.0;
        for (std::size_t i = 0; i < d; ++i) {
          drawn[i] = own[i] + far * drawn[i];
          square += drawn[i] * drawn[i];
        }
        for (auto& number : drawn) number /= std::sqrt(square);
      }
      const auto inside = state.inside;
      const auto squares = state.squares;
      std::swap_ranges(drawn.begin(), drawn.end(), own);
      push(problem, state, k);
      weigh_levels(problem, state, k, work.proposed);
      const double there = exponentiate(work.proposed);
      if (std::log(stream_.uniform()) < there - found + change) {
        found = there;
        std::swap(work.levels, work.proposed);
      } else {
        std::swap_ranges(drawn.begin(), drawn.end(), own);
        state.inside = inside;
        state.squares = squares;
      }
    }
    state.level[k] = picked(work.levels, stream_);
  }

  // What the scores say of an eigenvalue along a direction.
  static double said(const MomentsProblem& problem, double prior, double score, double position, double eigenvalue) {
    const double variance = problem.score_noise + problem.sampling * eigenvalue + prior * eigenvalue * eigenvalue;
    const double missed = score + eigenvalue * position;
    return -0.5 * (std::log(variance) + missed * missed / variance);
  }

  // The guide: what the scores say of levels over what they say of 1.
  template <typename Take>
  static void guide(const MomentsProblem& problem, const double* direction, Take take) {
    const std::size_t d = problem.width;
    double prior = 0.0;
    for (std::size_t i = 0; i < d; ++i) prior += direction[i] * dot(problem.prior.data() + i * d, direction, d);
    const double score = dot(problem.score.data(), direction, d);
    const double position = dot(problem.position.data(), direction, d);
    const double usual = said(problem, prior, score, position, problem.unit);
    take([&](double level) { return said(problem, prior, score, position, problem.unit * level) - usual; });
  }

  // The log density of the state and each level of direction k.
  static void weigh_levels(const MomentsProblem& problem, const State& state, std::size_t k, std::vector<double>& out) {
    const std::size_t m = problem.flattened;
    const double noise = problem.noise;
    const double spread = problem.spreads[state.spread] * problem.spreads[state.spread];
    double outside = state.squares[k];
    for (std::size_t a = 0; a < m; ++a) outside -= state.inside[k][a] * state.inside[k][a];
    outside = std::max(outside, 0.0);
    const auto others = static_cast<double>(problem.width - m);
    const std::size_t other = 1 - k;
    double rest = -0.5 * resolved_energy(problem, state) / (noise + spread);
    double cross = 0.0;
    double beside = 0.0;
    if (m > 1) {
      cross = state.inside[k][other] * state.inside[k][other];
      beside = spread * problem.levels[state.level[other]];
    }
    out.resize(problem.levels.size());
    guide(problem, state.frame.data() + k * problem.width, [&](auto said_of) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        const double level = problem.levels[i];
        const double own = noise + spread * level * level;
        const double mixed = noise + spread * level;
        const double missed = state.inside[k][k] - state.centre * level;
        double value = missed * missed / own + others * std::log(mixed) + 2.0 * outside / mixed + std::log(own);
        if (m > 1) value += std::log(noise + beside * level) + 2.0 * cross / (noise + beside * level);
        out[i] = rest - 0.5 * value + problem.log_prior[i] + said_of(level);
      }
    });
  }

  // The trace of P S P, and the squared norm of P (S - c I) P, P = I - V V'.
  static double resolved_trace(const MomentsProblem& problem, const State& state) {
    double trace = 0.0;
    for (const double value : problem.eigenvalues) trace += value;
    for (std::size_t k = 0; k < problem.flattened; ++k) trace -= state.inside[k][k];
    return trace;
  }

  static double resolved_energy(const MomentsProblem& problem, const State& state) {
    double energy = dot(problem.eigenvalues.data(), problem.eigenvalues.data(), problem.width);
    for (std::size_t k = 0; k < problem.flattened; ++k) {
      energy -= 2.0 * state.squares[k];
      for (std::size_t a = 0; a < problem.flattened; ++a) energy += state.inside[k][a] * state.inside[k][a];
    }
    const auto n = static_cast<double>(problem.width - problem.flattened);
    return energy + state.centre * (state.centre * n - 2.0 * resolved_trace(problem, state));
  }

  // Draws the spread given the rest.
  void respread(const MomentsProblem& problem, State& state, std::vector<double>& out) {
    const std::size_t m = problem.flattened;
    const auto n = static_cast<double>(problem.width - m);
    const double energy = resolved_energy(problem, state);
    out.resize(problem.spreads.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double spread = problem.spreads[i] * problem.spreads[i];
      const auto count = [&](double variance, double square, double times) {
        return times * std::log(variance) + square / variance;
      };
      double value = count(problem.noise + spread, energy, 0.5 * n * (n + 1.0));
      for (std::size_t k = 0; k < m; ++k) {
        const double level = problem.levels[state.level[k]];
        const double missed = state.inside[k][k] - state.centre * level;
        double outside = state.squares[k];
        for (std::size_t a = 0; a < m; ++a) outside -= state.inside[k][a] * state.inside[k][a];
        value += count(problem.noise + spread * level * level, missed * missed, 1.0);
        value += count(problem.noise + spread * level, 2.0 * std::max(outside, 0.0), n);
        if (k > 0) {
          const double mixed = problem.noise + spread * level * problem.levels[state.level[0]];
          value += count(mixed, 2.0 * state.inside[1][0] * state.inside[1][0], 1.0);
        }
      }
      out[i] = 0.5 * std::log(spread) - 0.5 * value;
    }
    exponentiate(out);
    state.spread = picked(out, stream_);
  }

  // Draws the centre, normal between its ends, given the rest.
  void recentre(const MomentsProblem& problem, State& state) {
    const double spread = problem.spreads[state.spread] * problem.spreads[state.spread];
    double precision = static_cast<double>(problem.width - problem.flattened) / (problem.noise + spread);
    double mean = resolved_trace(problem, state) / (problem.noise + spread);
    for (std::size_t k = 0; k < problem.flattened; ++k) {
      const double level = problem.levels[state.level[k]];
      const double variance = problem.noise + spread * level * level;
      precision += level * level / variance;
      mean += level * state.inside[k][k] / variance;
    }
    mean /= precision;
    // A draw beyond the ends is drawn again; where that does not end, a Metropolis step that is even between them.
    for (int i = 0; i < kTries; ++i) {
      const double drawn = mean + stream_.normal() / std::sqrt(precision);
      if (drawn >= problem.low && drawn <= problem.high) {
        state.centre = drawn;
        return;
      }
    }
    const double drawn = problem.low + (problem.high - problem.low) * stream_.uniform();
    const double change =
        0.5 * precision * ((state.centre - mean) * (state.centre - mean) - (drawn - mean) * (drawn - mean));
    if (std::log(stream_.uniform()) < change) state.centre = drawn;
  }

  // Makes the matrix of a state: P X P + V H V' + P Y V' + V Y'P with P = I - V V'.
  static void fill(const MomentsProblem& problem, const State& state, Workspace& work) {
    const std::size_t d = problem.width;
    const std::size_t m = problem.flattened;
    const double noise = problem.noise;
    const double square = problem.spreads[state.spread] * problem.spreads[state.spread];
    const double share = square / (square + noise);
    const double scale = std::sqrt(share * noise);
    auto& matrix = work.matrix;
    matrix.resize(d * d);
    const double* number = state.resolved.data();
    for (std::size_t i = 0; i < d; ++i) {
      matrix[i * d + i] = state.centre + share * (problem.eigenvalues[i] - state.centre) + scale * *number++;
      for (std::size_t j = i + 1; j < d; ++j) {
        matrix[i * d + j] = matrix[j * d + i] = scale * std::sqrt(0.5) * *number++;
      }
    }
    if (m == 0) return;
    auto& pushed = work.vector;
    pushed.resize(m * d);
    auto& turned = work.product;
    turned.resize(m * d);
    std::array<std::array<double, kMostFlattened>, kMostFlattened> held{};
    for (std::size_t k = 0; k < m; ++k) {
      const double* own = state.frame.data() + k * d;
      for (std::size_t i = 0; i < d; ++i) pushed[k * d + i] = dot(matrix.data() + i * d, own, d);
    }
    for (std::size_t k = 0; k < m; ++k) {
      const double level = problem.levels[state.level[k]];
      const double* own = state.frame.data() + k * d;
      for (std::size_t a = 0; a < m; ++a) {
        const double part = square * level * problem.levels[state.level[a]];
        const double kept = part / (part + noise);
        const double drawn = k == a ? state.mixed[k] : std::sqrt(0.5) * state.mixed[2];
        held[a][k] = kept * state.inside[k][a] + std::sqrt(kept * noise) * drawn;
        if (a == k) held[a][k] += (1.0 - kept) * state.centre * level;
      }
      const double kept = square * level / (square * level + noise);
      for (std::size_t i = 0; i < d; ++i) {
        turned[k * d + i] =
            kept * problem.eigenvalues[i] * own[i] + std::sqrt(0.5 * kept * noise) * state.beside[k * d + i];
      }
      std::array<double, kMostFlattened> along{};
      for (std::size_t a = 0; a < m; ++a) along[a] = dot(state.frame.data() + a * d, turned.data() + k * d, d);
      for (std::size_t i = 0; i < d; ++i) turned[k * d + i] -= pushed[k * d + i];
      for (std::size_t a = 0; a < m; ++a) {
        const double* there = state.frame.data() + a * d;
        const double by = 0.5 * (dot(there, pushed.data() + k * d, d) + held[a][k]) - along[a];
        for (std::size_t i = 0; i < d; ++i) turned[k * d + i] += by * there[i];
      }
    }
    for (std::size_t k = 0; k < m; ++k) {
      const double* own = state.frame.data() + k * d;
      const double* by = turned.data() + k * d;
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < d; ++j) matrix[i * d + j] += by[i] * own[j] + own[i] * by[j];
      }
    }
  }

  // The log density of the scores given the matrix in `work`, less what the guide has taken in.
  static double weigh(const Lapack& lapack, const MomentsProblem& problem, const State& state, Workspace& work) {
    const std::size_t d = problem.width;
    int n = static_cast<int>(d);
    int info = 0;
    char lower = 'L';
    char plain = 'N';
    char transposed = 'T';
    auto& covariance = work.covariance;
    covariance = work.matrix;
    for (std::size_t i = 0; i < d; ++i) covariance[i * d + i] -= kLeastEigenvalue;
    lapack.dpotrf(&lower, &n, covariance.data(), &n, &info);
    if (info != 0) return -std::numeric_limits<double>::infinity();
    auto& product = work.product;
    product.resize(d * d);
    double one = 1.0;
    double zero = 0.0;
    std::vector<double>& factor = const_cast<std::vector<double>&>(problem.prior_factor);
    lapack.dgemm(&plain, &transposed, &n, &n, &n, &one, work.matrix.data(), &n, factor.data(), &n, &zero,
                 product.data(), &n);
    for (std::size_t i = 0; i < d * d; ++i) covariance[i] = problem.sampling * work.matrix[i];
    for (std::size_t i = 0; i < d; ++i) covariance[i * d + i] += problem.score_noise;
    lapack.dsyrk(&lower, &plain, &n, &n, &one, product.data(), &n, &one, covariance.data(), &n);
    lapack.dpotrf(&lower, &n, covariance.data(), &n, &info);
    if (info != 0) return -std::numeric_limits<double>::infinity();
    auto& target = work.vector;
    target.resize(d);
    double density = 0.0;
    for (std::size_t t = 0; t < problem.precision.size(); ++t) {
      const double* away = problem.away_position.data() + t * d;
      double square = 0.0;
      for (std::size_t i = 0; i < d; ++i) {
        const double missed = problem.away_score[t * d + i] + dot(work.matrix.data() + i * d, away, d);
        square += missed * missed;
      }
      density -= 0.5 * problem.precision[t] * square;
    }
    for (std::size_t i = 0; i < d; ++i) {
      target[i] = problem.score[i] + dot(work.matrix.data() + i * d, problem.position.data(), d);
    }
    for (std::size_t j = 0; j < d; ++j) {
      const double* column = covariance.data() + j * d;
      target[j] /= column[j];
      density -= std::log(column[j]) + 0.5 * target[j] * target[j];
      for (std::size_t i = j + 1; i < d; ++i) target[i] -= column[i] * target[j];
    }
    for (std::size_t k = 0; k < problem.flattened; ++k) {
      guide(problem, state.frame.data() + k * d,
            [&](auto said_of) { density -= said_of(problem.levels[state.level[k]]); });
    }
    return std::isfinite(density) ? density : -std::numeric_limits<double>::infinity();
  }

  Stream stream_;
  State state_, proposed_;
  std::vector<double> matrix_;
  double density_ = 0.0;
};

MomentsChains::MomentsChains(const Lapack& lapack, MomentsProblem problem, const MomentsStart& start,
                             std::uint64_t seed)
    : lapack_(lapack), problem_(std::move(problem)) {
  chains_.reserve(start.spread.size());
  for (std::size_t i = 0; i < start.spread.size(); ++i) {
    chains_.emplace_back(problem_, start, i, seed * 0x2545f4914f6cdd1dULL + 0x632be59bd9b4e019ULL * (i + 1));
  }
}

MomentsChains::~MomentsChains() = default;

std::size_t MomentsChains::size() const { return chains_.size(); }

std::size_t MomentsChains::width() const { return problem_.width; }

void MomentsChains::advance(std::size_t alone, std::size_t steps, int threads) {
  const int team = std::min(resolve_threads(threads), static_cast<int>(chains_.size()));
#pragma omp parallel num_threads(team) if (team > 1)
  {
    Workspace work;
#pragma omp for schedule(dynamic)
    for (std::size_t i = 0; i < chains_.size(); ++i) chains_[i].advance(lapack_, problem_, alone, steps, work);
  }
}

void MomentsChains::moments(std::span<double> out) const {
  auto at = out.begin();
  for (const auto& chain : chains_) at = std::copy(chain.matrix().begin(), chain.matrix().end(), at);
}

void MomentsChains::log_density(std::span<double> out) const {
  for (std::size_t i = 0; i < chains_.size(); ++i) out[i] = chains_[i].density();
}

}  // namespace dpinfer::inference

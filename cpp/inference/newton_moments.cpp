#include "inference/newton_moments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dpinfer::inference {

namespace {

constexpr double kLost = -std::numeric_limits<double>::infinity();
// A trajectory beyond these has run away.
constexpr double kLargestSquares = 1e5;
constexpr double kLargestLogit = 50.0;

// Four sums, whose additions do not wait for each other.
double dot(const double* x, const double* y, std::size_t n) {
  double sum[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) sum[k] += x[i + k] * y[i + k];
  }
  for (; i < n; ++i) sum[0] += x[i] * y[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void add(double factor, const double* x, std::size_t n, double* y) {
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// out = A x, A row-major (d, d).
void times(const double* a, const double* x, std::size_t d, double* out) {
  for (std::size_t i = 0; i < d; ++i) out[i] = dot(a + i * d, x, d);
}

// out = A' x, A row-major (d, d).
void transposed_times(const double* a, const double* x, std::size_t d, double* out) {
  std::fill(out, out + d, 0.0);
  for (std::size_t i = 0; i < d; ++i) add(x[i], a + i * d, d, out);
}

double expit(double x) { return x >= 0.0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x)); }

// A direction that is flattened by a factor 1 - shrink.
double shrink_of(const MomentsPrior& prior, double logit) {
  return (1.0 - prior.flattest) * (1.0 - std::pow(expit(logit), prior.power));
}

// log of the sum over concentrations of weight times exp(concentration x), and its slope.
struct Mixed {
  double value;
  double slope;
};

Mixed mixed_concentrations(const MomentsPrior& prior, double x) {
  const std::size_t n = prior.concentrations.size();
  double most = kLost;
  for (std::size_t k = 0; k < n; ++k) most = std::max(most, prior.log_weights[k] + prior.concentrations[k] * x);
  double sum = 0.0;
  double first = 0.0;
  for (std::size_t k = 0; k < n; ++k) {
    const double weight = std::exp(prior.log_weights[k] + prior.concentrations[k] * x - most);
    sum += weight;
    first += weight * prior.concentrations[k];
  }
  return {most + std::log(sum), first / sum};
}

// log density of the logits, their location integrated out; adds its gradient where there is room for one.
double mixed_logits(const MomentsPrior& prior, const double* logit, std::size_t m, double* gradient) {
  double odds[kMostFlattened];
  double slope[kMostFlattened] = {};
  for (std::size_t k = 0; k < m; ++k) odds[k] = std::exp(logit[k]);
  double sum = 0.0;
  for (std::size_t g = 0; g < prior.rates.size(); ++g) {
    double weight = prior.rate_weights[g];
    double along[kMostFlattened];
    for (std::size_t k = 0; k < m; ++k) {
      const double t = odds[k] * prior.rates[g];
      const double inverse = 1.0 / (1.0 + t);
      weight *= t * inverse * inverse;
      along[k] = (1.0 - t) * inverse;
    }
    sum += weight;
    for (std::size_t k = 0; k < m; ++k) slope[k] += weight * along[k];
  }
  if (gradient != nullptr) {
    for (std::size_t k = 0; k < m; ++k) gradient[k] += slope[k] / sum;
  }
  return std::log(sum);
}

// The work arrays of one evaluation, and one evaluation.
class Evaluation {
 public:
  static std::size_t doubles(const MomentsShape& shape, std::size_t steps) {
    const std::size_t square = shape.d * shape.d;
    return (7 + shape.flattened) * square + 3 * shape.flattened * shape.d + 4 * shape.flattened + (steps + 4) * shape.d;
  }

  Evaluation(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
             const ReleasedMoments& released, const LinearScores& scores, double* work)
      : lapack_(lapack),
        shape_(shape),
        prior_(prior),
        released_(released),
        scores_(scores),
        d_(shape.d),
        square_(shape.d * shape.d),
        stages_(work),
        moments_(stages_ + (shape.flattened + 1) * square_),
        covariance_(moments_ + square_),
        product_(covariance_ + square_),
        in_moments_(product_ + square_),
        declared_(in_moments_ + square_),
        bent_product_(declared_ + square_),
        unit_(bent_product_ + square_),
        along_below_(unit_ + shape.flattened * d_),
        in_unit_(along_below_ + shape.flattened * d_),
        norm_(in_unit_ + shape.flattened * d_),
        level_(norm_ + shape.flattened),
        shrink_(level_ + shape.flattened),
        bent_(shrink_ + shape.flattened),
        fits_(bent_ + shape.flattened),
        error_(fits_ + scores.steps * d_),
        solved_(error_ + d_),
        first_(solved_ + d_),
        second_(first_ + d_) {}

  // Without a gradient where there is no room for one.
  double operator()(const double* point, double* gradient) {
    with_gradient_ = gradient != nullptr;
    expand(point);
    double value = matrix_terms();
    const double log_determinant = log_determinant_of_factor();
    if (!std::isfinite(log_determinant)) return kLost;
    const double trace_terms = score_terms();
    if (!std::isfinite(trace_terms)) return kLost;
    const Mixed mixed =
        mixed_concentrations(prior_, log_determinant - 0.5 * static_cast<double>(d_) * std::log(trace_));
    value += trace_terms + mixed.value + prior_terms(point);
    if (with_gradient_) pull_back(point, mixed.slope, gradient);
    return value;
  }

 private:
  double* stage(std::size_t k) { return stages_ + k * square_; }
  double* factor() { return stage(shape_.flattened); }

  // The lower triangle (column-major) copied to the upper.
  void mirror(double* a) {
    for (std::size_t j = 0; j < d_; ++j) {
      for (std::size_t i = j + 1; i < d_; ++i) a[i * d_ + j] = a[j * d_ + i];
    }
  }

  // out = A' A for A column-major, hence B B' for the row-major B in the same memory.
  void gram(double* a, double scale, double* out) {
    int n = static_cast<int>(d_);
    double zero = 0.0;
    char lower = 'L';
    char trans = 'T';
    lapack_.dsyrk(&lower, &trans, &n, &n, &scale, a, &n, &zero, out, &n);
  }

  // a becomes its inverse; returns log |a|, minus infinity where it is not positive definite.
  double invert(double* a) {
    int n = static_cast<int>(d_);
    int info = 0;
    char lower = 'L';
    lapack_.dpotrf(&lower, &n, a, &n, &info);
    if (info != 0) return kLost;
    double sum = 0.0;
    for (std::size_t i = 0; i < d_; ++i) sum += std::log(a[i * d_ + i]);
    lapack_.dpotri(&lower, &n, a, &n, &info);
    if (info != 0) return kLost;
    mirror(a);
    return 2.0 * sum;
  }

  // Row-major out = alpha A B + beta out, A and B row-major, A transposed where said.
  void multiply(bool transpose, double alpha, double* a, double* b, double beta, double* out) {
    int n = static_cast<int>(d_);
    char no = 'N';
    char other = transpose ? 'T' : 'N';
    lapack_.dgemm(&no, &other, &n, &n, &n, &alpha, b, &n, a, &n, &beta, out, &n);
  }

  void expand(const double* point) {
    const std::size_t m = shape_.flattened;
    const double* direction = point + square_;
    const double* logit = direction + m * d_;
    double* first = stage(0);
    for (std::size_t i = 0; i < d_; ++i) {
      std::copy(point + i * d_, point + i * d_ + i + 1, first + i * d_);
      std::fill(first + i * d_ + i + 1, first + (i + 1) * d_, 0.0);
    }
    trace_ = dot(first, first, square_);
    for (std::size_t k = 0; k < m; ++k) {
      norm_[k] = std::sqrt(dot(direction + k * d_, direction + k * d_, d_));
      for (std::size_t i = 0; i < d_; ++i) unit_[k * d_ + i] = direction[k * d_ + i] / norm_[k];
      level_[k] = expit(logit[k]);
      const double power = std::pow(level_[k], prior_.power);
      shrink_[k] = (1.0 - prior_.flattest) * (1.0 - power);
      bent_[k] = -(1.0 - prior_.flattest) * prior_.power * power * (1.0 - level_[k]);
      const double* unit = unit_ + k * d_;
      double* along = along_below_ + k * d_;
      transposed_times(stage(k), unit, d_, along);
      std::copy(stage(k), stage(k) + square_, stage(k + 1));
      for (std::size_t i = 0; i < d_; ++i) add(-shrink_[k] * unit[i], along, d_, stage(k + 1) + i * d_);
    }
    gram(factor(), 1.0, moments_);
    mirror(moments_);
  }

  // log p(released matrices | M); in_moments_ begins with its gradient but for the diagonal's.
  double matrix_terms() {
    double squares = 0.0;
    for (std::size_t i = 0; i < square_; ++i) {
      const double missed = released_.noisy[i] - moments_[i];
      squares += missed * missed;
      in_moments_[i] = released_.precision * missed;
    }
    double value = -0.5 * released_.precision * squares;
    if (released_.to_declared == nullptr) return value;
    // Row i of to_declared G has the square norm of the declared diagonal's entry i; the common level is integrated
    // out.
    multiply(false, 1.0, const_cast<double*>(released_.to_declared), factor(), 0.0, declared_);
    double sum = 0.0;
    for (std::size_t i = 0; i < d_; ++i) {
      first_[i] = dot(declared_ + i * d_, declared_ + i * d_, d_);
      sum += first_[i] - prior_.level;
    }
    const double spread2 = prior_.stddev * prior_.stddev;
    const double level2 = prior_.level_stddev * prior_.level_stddev;
    const double shared = sum * level2 / (spread2 + static_cast<double>(d_) * level2);
    for (std::size_t i = 0; i < d_; ++i) {
      const double missed = released_.diagonal[i] - first_[i];
      const double away = first_[i] - prior_.level;
      const double known = released_.diagonal_precision[i] * missed;
      value -= 0.5 * (known * missed + away * (away - shared) / spread2);
      const double inner = known - (away - shared) / spread2;
      for (std::size_t j = 0; j < d_; ++j) declared_[i * d_ + j] *= inner;
    }
    return value;
  }

  double log_determinant_of_factor() {
    double sum = 0.0;
    for (std::size_t i = 0; i < d_; ++i) sum += std::log(std::abs(stage(0)[i * d_ + i]));
    return sum;
  }

  // log p(scores | M) with u* and u integrated out.
  double score_terms() {
    int n = static_cast<int>(d_);
    double one = 1.0;
    double zero = 0.0;
    char left = 'L';
    char upper = 'U';
    char no = 'N';
    char trans = 'T';
    // The memory of the row-major R is R', upper, to BLAS; product = R' M, column-major.
    auto* root = const_cast<double*>(released_.prior_factor);
    std::copy(moments_, moments_ + square_, product_);
    lapack_.dtrmm(&left, &upper, &no, &no, &n, &n, &one, root, &n, product_, &n);
    gram(product_, scores_.prior_variance, covariance_);
    for (std::size_t j = 0; j < d_; ++j) {
      for (std::size_t i = j; i < d_; ++i) covariance_[j * d_ + i] += scores_.sampling * moments_[j * d_ + i];
      covariance_[j * d_ + j] += 1.0 / scores_.total;
    }
    const double log_determinant = invert(covariance_);
    if (!std::isfinite(log_determinant)) return kLost;
    transposed_times(moments_, scores_.mean_position, d_, error_);
    add(1.0, scores_.mean_score, d_, error_);
    transposed_times(covariance_, error_, d_, solved_);
    double value = -0.5 * (log_determinant + dot(error_, solved_, d_));
    if (!with_gradient_) return value + deviations(false);
    // covariance becomes half = -(inverse - solved solved') / 2, the gradient in the covariance.
    for (std::size_t i = 0; i < d_; ++i) {
      double* row = covariance_ + i * d_;
      for (std::size_t j = 0; j < d_; ++j) row[j] = -0.5 * (row[j] - solved_[i] * solved_[j]);
      add(scores_.sampling, row, d_, in_moments_ + i * d_);
      // Of d in M the symmetric part counts: the other half of each term below is its transpose.
      add(-0.5 * solved_[i], scores_.mean_position, d_, in_moments_ + i * d_);
      add(-0.5 * scores_.mean_position[i], solved_, d_, in_moments_ + i * d_);
    }
    value += deviations(true);
    // 2 v half M Q, symmetrised: its transpose is R (R' M half).
    lapack_.dgemm(&no, &no, &n, &n, &n, &one, product_, &n, covariance_, &n, &zero, bent_product_, &n);
    lapack_.dtrmm(&left, &upper, &trans, &no, &n, &n, &one, root, &n, bent_product_, &n);
    for (std::size_t i = 0; i < d_; ++i) {
      for (std::size_t j = 0; j < d_; ++j) {
        in_moments_[i * d_ + j] += scores_.prior_variance * (bent_product_[i * d_ + j] + bent_product_[j * d_ + i]);
      }
    }
    return value;
  }

  // The part of the scores' deviations from their mean, and of its gradient in M if asked for.
  double deviations(bool with_gradient) {
    double value = 0.0;
    for (std::size_t t = 0; t < scores_.steps; ++t) {
      const double* moved = scores_.moved + t * d_;
      double* fit = fits_ + t * d_;
      transposed_times(moments_, moved, d_, fit);
      add(1.0, scores_.deviation + t * d_, d_, fit);
      value -= 0.5 * scores_.precision[t] * dot(fit, fit, d_);
      if (!with_gradient) continue;
      for (std::size_t i = 0; i < d_; ++i) {
        add(-0.5 * scores_.precision[t] * fit[i], moved, d_, in_moments_ + i * d_);
        add(-0.5 * scores_.precision[t] * moved[i], fit, d_, in_moments_ + i * d_);
      }
    }
    return value;
  }

  // What the prior says of all but the concentration: of F, whose diagonal entry i of Bartlett's decomposition has a
  // power that falls with i, and of the directions and logits.
  double prior_terms(const double* point) {
    const std::size_t m = shape_.flattened;
    double value = 0.0;
    for (std::size_t i = 0; i < d_; ++i) value -= static_cast<double>(i + 1) * std::log(std::abs(stage(0)[i * d_ + i]));
    value -= 0.5 * dot(point + square_, point + square_, m * d_);
    if (m > 0) value += mixed_logits(prior_, point + square_ + m * d_, m, nullptr);
    return value;
  }

  // From the gradient in M to that in the coordinates.
  void pull_back(const double* point, double concentration, double* gradient) {
    const std::size_t m = shape_.flattened;
    double* upper = gradient;
    multiply(false, 2.0, in_moments_, factor(), 0.0, upper);
    if (released_.to_declared != nullptr) {
      multiply(true, 2.0, const_cast<double*>(released_.to_declared), declared_, 1.0, upper);
    }
    double* direction = gradient + square_;
    double* logit = direction + m * d_;
    const double* at_direction = point + square_;
    const double* at_logit = at_direction + m * d_;
    for (std::size_t k = m; k-- > 0;) {
      const double* unit = unit_ + k * d_;
      const double* along_below = along_below_ + k * d_;
      double* along_upper = first_;
      transposed_times(upper, unit, d_, along_upper);
      const double product = dot(along_upper, along_below, d_);
      logit[k] = -bent_[k] * product;
      double* in_unit = in_unit_ + k * d_;
      times(upper, along_below, d_, in_unit);
      times(stage(k), along_upper, d_, second_);
      for (std::size_t i = 0; i < d_; ++i) in_unit[i] = -shrink_[k] * (in_unit[i] + second_[i]);
      add(-dot(unit, in_unit, d_), unit, d_, in_unit);
      for (std::size_t i = 0; i < d_; ++i) {
        direction[k * d_ + i] = in_unit[i] / norm_[k] - at_direction[k * d_ + i];
        add(-shrink_[k] * unit[i], along_upper, d_, upper + i * d_);
      }
    }
    if (m > 0) mixed_logits(prior_, at_logit, m, logit);
    const double pull = concentration * static_cast<double>(d_) / trace_;
    for (std::size_t i = 0; i < d_; ++i) {
      double* row = gradient + i * d_;
      add(-pull, point + i * d_, i + 1, row);
      row[i] += (concentration - static_cast<double>(i + 1)) / point[i * d_ + i];
      std::fill(row + i + 1, row + d_, 0.0);
    }
  }

  const Lapack& lapack_;
  const MomentsShape& shape_;
  const MomentsPrior& prior_;
  const ReleasedMoments& released_;
  const LinearScores& scores_;
  std::size_t d_;
  std::size_t square_;
  double* stages_;  // F, C_1 F, C_2 C_1 F, ...
  double* moments_;
  double* covariance_;
  double* product_;
  double* in_moments_;
  double* declared_;
  double* bent_product_;
  double* unit_;
  double* along_below_;
  double* in_unit_;
  double* norm_;
  double* level_;
  double* shrink_;
  double* bent_;  // d shrink / d logit
  double* fits_;
  double* error_;
  double* solved_;
  double* first_;
  double* second_;
  double trace_ = 0.0;
  bool with_gradient_ = true;
};

// Proposes a direction that keeps some of the present one, another logit, or both, for one of the flattenings:
// reversible under the prior but for the logits' density.  Group: directions, then logits.
bool propose_group(const MomentsShape& shape, std::span<const double> numbers, const double* group, double* proposed) {
  const std::size_t d = shape.d;
  const double kind = numbers[d + 1];
  const double place = numbers[d + 2] * static_cast<double>(shape.flattened);
  if (!(place >= 0.0 && place < static_cast<double>(shape.flattened))) return false;
  const auto k = static_cast<std::size_t>(place);
  std::copy(group, group + shape.flattened * (d + 1), proposed);
  double& logit = proposed[shape.flattened * d + k];
  if (kind < 0.4) {
    logit += (kind < 0.15 ? 0.5 : kind < 0.3 ? 1.5 : 4.0) * numbers[d];
  } else {
    const double keep = kind < 0.55 ? 0.998 : kind < 0.7 ? 0.97 : kind < 0.85 ? 0.7 : 0.0;
    const double fresh = std::sqrt(1.0 - keep * keep);
    double* direction = proposed + k * d;
    for (std::size_t i = 0; i < d; ++i) direction[i] = keep * direction[i] + fresh * numbers[i];
    if (keep == 0.0) logit += 1.5 * numbers[d];
  }
  return std::abs(logit) < kLargestLogit;
}

// Other directions and levels for the same M = G G': F = C^-1 G.
class Regrouping {
 public:
  static std::size_t doubles(const MomentsShape& shape) {
    return 3 * shape.d * shape.d + 2 * shape.flattened * (shape.d + 1) + shape.d;
  }

  Regrouping(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior, std::span<const double> point,
             std::span<double> work)
      : lapack_(lapack),
        shape_(shape),
        prior_(prior),
        d_(shape.d),
        square_(shape.d * shape.d),
        whole_(work.data()),
        factor_(whole_ + square_),
        square_factor_(factor_ + square_),
        current_(square_factor_ + square_),
        proposed_(current_ + shape.flattened * (shape.d + 1)),
        along_(proposed_ + shape.flattened * (shape.d + 1)) {
    std::copy(point.begin() + square_, point.end(), current_);
    std::fill(whole_, whole_ + square_, 0.0);
    for (std::size_t i = 0; i < d_; ++i) {
      std::copy(point.begin() + i * d_, point.begin() + i * d_ + i + 1, whole_ + i * d_);
      log_determinant_ += std::log(std::abs(whole_[i * d_ + i]));
    }
    log_density_ = density_of(log_determinant_, dot(whole_, whole_, square_), current_);
    for (std::size_t k = 0; k < shape_.flattened; ++k) flatten(whole_, current_, k, false);
  }

  bool propose(std::span<const double> numbers) {
    if (!propose_group(shape_, numbers, current_, proposed_)) return false;
    const double log_determinant = log_determinant_ + bends(current_) - bends(proposed_);
    unflatten();
    const double log_density = density_of(log_determinant, dot(factor_, factor_, square_), proposed_);
    if (!(std::log(numbers[d_ + 3]) < log_density - log_density_)) return false;
    std::swap(current_, proposed_);
    log_determinant_ = log_determinant;
    log_density_ = log_density;
    return true;
  }

  // Writes F as a triangle, and the rest, unless F F' is singular to rounding.
  void finish(std::span<double> factor, std::span<double> rest) {
    std::copy(current_, current_ + shape_.flattened * (d_ + 1), proposed_);
    unflatten();
    int n = static_cast<int>(d_);
    int info = 0;
    double one = 1.0;
    double zero = 0.0;
    char upper = 'U';
    char trans = 'T';
    // The memory of the row-major F is F' to BLAS; the upper triangle there is the lower one here.
    lapack_.dsyrk(&upper, &trans, &n, &n, &one, factor_, &n, &zero, square_factor_, &n);
    lapack_.dpotrf(&upper, &n, square_factor_, &n, &info);
    if (info != 0) return;
    for (std::size_t i = 0; i < d_; ++i) {
      std::copy(square_factor_ + i * d_, square_factor_ + i * d_ + i + 1, factor.begin() + i * d_);
      std::fill(factor.begin() + i * d_ + i + 1, factor.begin() + (i + 1) * d_, 0.0);
    }
    std::copy(current_, current_ + shape_.flattened * (d_ + 1), rest.begin());
  }

 private:
  // The log density that depends on how M is grouped.
  double density_of(double log_determinant, double trace, const double* group) {
    const double x = log_determinant - 0.5 * static_cast<double>(d_) * std::log(trace);
    return mixed_concentrations(prior_, x).value +
           mixed_logits(prior_, group + shape_.flattened * d_, shape_.flattened, nullptr);
  }

  double bends(const double* group) {
    double sum = 0.0;
    for (std::size_t k = 0; k < shape_.flattened; ++k) {
      sum += std::log1p(-shrink_of(prior_, group[shape_.flattened * d_ + k]));
    }
    return sum;
  }

  // a becomes C_k a, or its inverse times a.
  void flatten(double* a, const double* group, std::size_t k, bool inverse) {
    const double* direction = group + k * d_;
    const double norm2 = dot(direction, direction, d_);
    const double shrink = shrink_of(prior_, group[shape_.flattened * d_ + k]);
    const double size = (inverse ? shrink / (1.0 - shrink) : -shrink) / norm2;
    transposed_times(a, direction, d_, along_);
    for (std::size_t i = 0; i < d_; ++i) add(size * direction[i], along_, d_, a + i * d_);
  }

  // factor = C^-1 G with the proposed C.
  void unflatten() {
    std::copy(whole_, whole_ + square_, factor_);
    for (std::size_t k = shape_.flattened; k-- > 0;) flatten(factor_, proposed_, k, true);
  }

  const Lapack& lapack_;
  const MomentsShape& shape_;
  const MomentsPrior& prior_;
  std::size_t d_;
  std::size_t square_;
  double* whole_;  // G
  double* factor_;
  double* square_factor_;
  double* current_;  // directions, logits
  double* proposed_;
  double* along_;
  double log_determinant_ = 0.0;
  double log_density_ = 0.0;
};

double kinetic(std::span<const double> momentum) {
  return 0.5 * dot(momentum.data(), momentum.data(), momentum.size());
}

}  // namespace

std::size_t moments_work_size(const MomentsShape& shape, std::size_t steps) {
  return 3 * shape.coordinates() + std::max(Evaluation::doubles(shape, steps), Regrouping::doubles(shape));
}

double moments_density(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                       const ReleasedMoments& released, const LinearScores& scores, std::span<const double> point,
                       std::span<double> gradient, std::span<double> work) {
  return Evaluation(lapack, shape, prior, released, scores, work.data())(point.data(), gradient.data());
}

double moments_leapfrog(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                        const ReleasedMoments& released, const LinearScores& scores, std::size_t leaps, double step,
                        std::span<const double> scale, std::span<double> point, std::span<double> momentum,
                        std::span<double> work) {
  const std::size_t all = shape.coordinates();
  double* gradient = work.data();
  Evaluation density(lapack, shape, prior, released, scores, gradient + all);
  const auto move = [&](double size, const double* along, double* what) {
    for (std::size_t k = 0; k < all; ++k) what[k] += size * scale[k] * along[k];
  };
  const double before = kinetic(momentum);
  const double first = density(point.data(), gradient);
  double last = first;
  if (!std::isfinite(first)) return kLost;
  move(0.5 * step, gradient, momentum.data());
  for (std::size_t leap = 0; leap < leaps; ++leap) {
    move(step, momentum.data(), point.data());
    if (!(dot(point.data(), point.data(), all) < kLargestSquares)) return kLost;
    for (std::size_t k = all - shape.flattened; k < all; ++k) {
      if (!(std::abs(point[k]) < kLargestLogit)) return kLost;
    }
    last = density(point.data(), gradient);
    if (!std::isfinite(last)) return kLost;
    move(leap + 1 < leaps ? step : 0.5 * step, gradient, momentum.data());
  }
  const double change = (last - first) - (kinetic(momentum) - before);
  return std::isfinite(change) ? change : kLost;
}

std::size_t regroup_numbers(const MomentsShape& shape) { return shape.d + 4; }

void moments_follow(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                    const ReleasedMoments& released, const LinearScores& scores, std::span<const double> numbers,
                    std::span<double> point, std::span<double> work) {
  const std::size_t d = shape.d;
  const std::size_t group = shape.coordinates() - d * d;
  if (group == 0 || numbers.empty()) return;
  double* proposed = work.data();
  Evaluation density(lapack, shape, prior, released, scores, proposed + shape.coordinates());
  // Proposals are reversible under the directions' prior: the density is taken without it.
  const auto value_at = [&](const double* at) {
    return density(at, nullptr) + 0.5 * dot(at + d * d, at + d * d, shape.flattened * d);
  };
  double current = value_at(point.data());
  const std::size_t each = regroup_numbers(shape);
  std::copy(point.begin(), point.begin() + static_cast<std::ptrdiff_t>(d * d), proposed);
  for (std::size_t p = 0; p + each <= numbers.size(); p += each) {
    const std::span<const double> one = numbers.subspan(p, each);
    if (!propose_group(shape, one, point.data() + d * d, proposed + d * d)) continue;
    const double value = value_at(proposed);
    if (!(std::log(one[d + 3]) < value - current)) continue;
    std::copy(proposed + d * d, proposed + d * d + group, point.begin() + static_cast<std::ptrdiff_t>(d * d));
    current = value;
  }
}

void moments_regroup(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                     std::span<const double> numbers, std::span<double> point, std::span<double> work) {
  if (shape.flattened == 0 || numbers.empty()) return;
  const std::size_t square = shape.d * shape.d;
  Regrouping regrouping(lapack, shape, prior, point, work);
  const std::size_t each = regroup_numbers(shape);
  bool moved = false;
  for (std::size_t p = 0; p + each <= numbers.size(); p += each) {
    moved = regrouping.propose(numbers.subspan(p, each)) || moved;
  }
  if (moved) regrouping.finish(point.first(square), point.subspan(square));
}

double moments_step(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                    const ReleasedMoments& released, const LinearScores& scores, const MomentsStep& step,
                    std::span<const double> numbers, std::span<double> point, std::span<double> momentum,
                    std::span<double> work) {
  const std::size_t half = numbers.size() / 2;
  const std::size_t follows = std::min(step.follows * regroup_numbers(shape), half);
  const std::span<double> path = work.first(shape.coordinates());
  const std::span<double> rest = work.subspan(shape.coordinates());
  moments_regroup(lapack, shape, prior, numbers.first(half - follows), point, rest);
  moments_follow(lapack, shape, prior, released, scores, numbers.subspan(half - follows, follows), point, rest);
  std::copy(point.begin(), point.end(), path.begin());
  const double change =
      moments_leapfrog(lapack, shape, prior, released, scores, step.leaps, step.size, step.scale, path, momentum, rest);
  const double probability = std::exp(std::min(0.0, change));
  if (step.uniform < probability) std::copy(path.begin(), path.end(), point.begin());
  moments_follow(lapack, shape, prior, released, scores, numbers.subspan(half, follows), point, rest);
  moments_regroup(lapack, shape, prior, numbers.subspan(half + follows), point, rest);
  return probability;
}

}  // namespace dpinfer::inference

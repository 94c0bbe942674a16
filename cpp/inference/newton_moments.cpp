#include "inference/newton_moments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dpinfer::inference {

namespace {

constexpr double kLost = -std::numeric_limits<double>::infinity();
// A trajectory beyond these has run away.
constexpr double kLargestSquares = 1e5;
constexpr double kLargestLogit = 60.0;

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
double log_expit(double x) { return x >= 0.0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }

// The work arrays of one evaluation, and one evaluation.
class Evaluation {
 public:
  static std::size_t doubles(const MomentsShape& shape, std::size_t steps) {
    const std::size_t square = shape.d * shape.d;
    return (8 + shape.flattened) * square + 3 * shape.flattened * shape.d + 4 * shape.flattened + (steps + 4) * shape.d;
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
        inverse_(moments_ + square_),
        covariance_(inverse_ + square_),
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

  double operator()(const double* point, double* gradient) {
    expand(point);
    double value = matrix_terms();
    const double log_determinant = invert_moments();
    if (!std::isfinite(log_determinant)) return kLost;
    const double trace_terms = score_terms();
    if (!std::isfinite(trace_terms)) return kLost;
    value += trace_terms + prior_terms(point, log_determinant);
    pull_back(point, gradient);
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
    std::copy(point, point + square_, stage(0));
    bends_ = 0.0;
    for (std::size_t k = 0; k < m; ++k) {
      norm_[k] = std::sqrt(dot(direction + k * d_, direction + k * d_, d_));
      for (std::size_t i = 0; i < d_; ++i) unit_[k * d_ + i] = direction[k * d_ + i] / norm_[k];
      level_[k] = expit(logit[k]);
      const double power = std::pow(level_[k], prior_.power);
      shrink_[k] = (1.0 - prior_.flattest) * (1.0 - power);
      bent_[k] = -(1.0 - prior_.flattest) * prior_.power * power * (1.0 - level_[k]);
      bends_ += std::log1p(-shrink_[k]);
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

  double invert_moments() {
    std::copy(moments_, moments_ + square_, inverse_);
    return invert(inverse_);
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
    // covariance becomes half = -(inverse - solved solved') / 2, the gradient in the covariance.
    for (std::size_t i = 0; i < d_; ++i) {
      double* row = covariance_ + i * d_;
      for (std::size_t j = 0; j < d_; ++j) row[j] = -0.5 * (row[j] - solved_[i] * solved_[j]);
      add(scores_.sampling, row, d_, in_moments_ + i * d_);
      // Of d in M the symmetric part counts: the other half of each term below is its transpose.
      add(-0.5 * solved_[i], scores_.mean_position, d_, in_moments_ + i * d_);
      add(-0.5 * scores_.mean_position[i], solved_, d_, in_moments_ + i * d_);
    }
    for (std::size_t t = 0; t < scores_.steps; ++t) {
      const double* moved = scores_.moved + t * d_;
      double* fit = fits_ + t * d_;
      transposed_times(moments_, moved, d_, fit);
      add(1.0, scores_.deviation + t * d_, d_, fit);
      value -= 0.5 * scores_.precision[t] * dot(fit, fit, d_);
      for (std::size_t i = 0; i < d_; ++i) {
        add(-0.5 * scores_.precision[t] * fit[i], moved, d_, in_moments_ + i * d_);
        add(-0.5 * scores_.precision[t] * moved[i], fit, d_, in_moments_ + i * d_);
      }
    }
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

  double prior_terms(const double* point, double log_determinant) {
    const std::size_t m = shape_.flattened;
    const double nu = scores_.concentration;
    const double width = static_cast<double>(d_);
    trace_ = dot(point, point, square_);
    double value = (nu - width) * (0.5 * log_determinant - bends_) - 0.5 * nu * width * std::log(trace_);
    value -= 0.5 * dot(point + square_, point + square_, m * d_);
    const double* logit = point + square_ + m * d_;
    for (std::size_t k = 0; k < m; ++k) {
      value += log_expit(logit[k] - scores_.flatness) + log_expit(scores_.flatness - logit[k]);
    }
    add(0.5 * (nu - width), inverse_, square_, in_moments_);
    return value;
  }

  // From the gradient in M to that in the coordinates.
  void pull_back(const double* point, double* gradient) {
    const std::size_t m = shape_.flattened;
    const double nu = scores_.concentration;
    const double width = static_cast<double>(d_);
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
      // log |F| = log |M| / 2 - sum log(1 - shrink)
      logit[k] = bent_[k] * ((nu - width) / (1.0 - shrink_[k]) - product);
      logit[k] += 1.0 - 2.0 * expit(at_logit[k] - scores_.flatness);
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
    add(-nu * width / trace_, point, square_, gradient);
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
  double* inverse_;
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
  double bends_ = 0.0;
  double trace_ = 0.0;
};

double kinetic(std::span<const double> momentum) {
  return 0.5 * dot(momentum.data(), momentum.data(), momentum.size());
}

}  // namespace

std::size_t moments_work_size(const MomentsShape& shape, std::size_t steps) {
  return shape.coordinates() + Evaluation::doubles(shape, steps);
}

double moments_density(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                       const ReleasedMoments& released, const LinearScores& scores, std::span<const double> point,
                       std::span<double> gradient, std::span<double> work) {
  return Evaluation(lapack, shape, prior, released, scores, work.data())(point.data(), gradient.data());
}

double moments_leapfrog(const Lapack& lapack, const MomentsShape& shape, const MomentsPrior& prior,
                        const ReleasedMoments& released, const LinearScores& scores, std::size_t leaps, double step,
                        double ratio, std::span<double> point, std::span<double> momentum, std::span<double> work) {
  const std::size_t square = shape.d * shape.d;
  const std::size_t all = shape.coordinates();
  double* gradient = work.data();
  Evaluation density(lapack, shape, prior, released, scores, gradient + all);
  const auto kick = [&](double size) {
    add(size, gradient, square, momentum.data());
    add(size * ratio, gradient + square, all - square, momentum.data() + square);
  };
  const double before = kinetic(momentum);
  const double first = density(point.data(), gradient);
  double last = first;
  if (!std::isfinite(first)) return kLost;
  kick(0.5 * step);
  for (std::size_t leap = 0; leap < leaps; ++leap) {
    add(step, momentum.data(), square, point.data());
    add(step * ratio, momentum.data() + square, all - square, point.data() + square);
    if (!(dot(point.data(), point.data(), all) < kLargestSquares)) return kLost;
    for (std::size_t k = all - shape.flattened; k < all; ++k) {
      if (!(std::abs(point[k]) < kLargestLogit)) return kLost;
    }
    last = density(point.data(), gradient);
    if (!std::isfinite(last)) return kLost;
    kick(leap + 1 < leaps ? step : 0.5 * step);
  }
  const double change = (last - first) - (kinetic(momentum) - before);
  return std::isfinite(change) ? change : kLost;
}

}  // namespace dpinfer::inference

#include "mechanism/rows/person_scores.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "common/parallel.hpp"

namespace dpinfer {
namespace {

constexpr double kLargestLogMean = 10.0;  // of what is drawn
constexpr double kFarthest = 60.0;        // of a likelihood's predictor: squares of its exponential are doubles
constexpr double kSmallRate = 30.0;
constexpr int kMostSteps = 25;
constexpr double kNear = 1e-5;         // of the mode, in squared standard deviations: nodes need no more
constexpr double kLargestOdds = 80.0;  // of their logarithm: four of two together are doubles
constexpr std::int64_t kRowsOfProduct = 4;
constexpr double kStep = 1.2, kReach = 6.5,
                 kMostNodes = 200.0;  // in the narrowest, and the prior's, standard deviation

std::uint64_t mixed(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// SplitMix64 from a person's seed, a pass and a draw.
class Stream {
 public:
  Stream(const std::uint64_t* seed, std::uint64_t number) noexcept
      : state_(mixed(seed[0] + mixed(seed[1] ^ mixed((number + 1) * kGolden)))) {}

  double uniform() noexcept {  // inside of (0, 1)
    state_ += kGolden;
    return (static_cast<double>(mixed(state_) >> 12) + 0.5) * 0x1p-52;
  }

  double normal() noexcept {  // Marsaglia and Bray (1964)
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double u, v, square;
    do {
      u = 2.0 * uniform() - 1.0;
      v = 2.0 * uniform() - 1.0;
      square = u * u + v * v;
    } while (square >= 1.0);
    const double factor = std::sqrt(-2.0 * std::log(square) / square);
    spare_ = v * factor;
    has_spare_ = true;
    return u * factor;
  }

  double gamma(double shape) noexcept {  // Marsaglia and Tsang (2000)
    if (shape < 1.0) return gamma(shape + 1.0) * std::pow(uniform(), 1.0 / shape);
    const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
    for (;;) {
      const double x = normal(), root = 1.0 + c * x;
      if (!(root > 0.0)) {
        if (std::isnan(root)) return root;
        continue;
      }
      const double v = root * root * root;
      if (std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

  double poisson(double rate) noexcept {
    if (!(rate < kSmallRate)) return large_poisson(rate);
    double density = std::exp(-rate), count = 0.0;
    double rest = uniform() - density;
    while (rest > 0.0 && density > 0.0) {
      count += 1.0;
      density *= rate / count;
      rest -= density;
    }
    return count;
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

  double large_poisson(double rate) noexcept {  // Hoermann (1993), PTRS
    if (!std::isfinite(rate)) return std::numeric_limits<double>::quiet_NaN();
    const double b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
    const double inverse = 1.1239 + 1.1328 / (b - 3.4), accepted = 0.9277 - 3.6224 / (b - 2.0);
    for (;;) {
      const double u = uniform() - 0.5, v = uniform(), us = 0.5 - std::abs(u);
      const double count = std::floor((2.0 * a / us + b) * u + rate + 0.43);
      if (us >= 0.07 && v <= accepted) return count;
      if (count < 0.0 || (us < 0.013 && v > us)) continue;
      if (std::log(v) + std::log(inverse) - std::log(a / (us * us) + b) <=
          count * std::log(rate) - rate - std::lgamma(count + 1.0)) {
        return count;
      }
    }
  }

  std::uint64_t state_;
  double spare_ = 0.0;
  bool has_spare_ = false;
};

double digamma(double x) noexcept {  // x > 0: recurrence, then the asymptotic series
  double value = 0.0;
  for (; x < 8.0; x += 1.0) value -= 1.0 / x;
  const double inverse = 1.0 / (x * x);
  return value + std::log(x) - 0.5 / x -
         inverse * (1.0 / 12.0 -
                    inverse * (1.0 / 120.0 - inverse * (1.0 / 252.0 - inverse * (1.0 / 240.0 - inverse / 132.0))));
}

double log_normal_cdf(double x) noexcept {
  if (x > -20.0) return std::log(0.5 * std::erfc(-x / std::numbers::sqrt2));
  const double inverse = 1.0 / (x * x);  // Mills' ratio
  return -0.5 * x * x - std::log(-x) - 0.5 * std::log(2.0 * std::numbers::pi) +
         std::log1p(-inverse * (1.0 - inverse * (3.0 - 15.0 * inverse)));
}

// Lower factor of a covariance that may be singular: (0,0), (1,0), (1,1).
std::array<double, 3> root_of(const std::array<double, 3>& covariance) noexcept {
  const double first = std::sqrt(std::max(covariance[0], 0.0));
  const double between = first > 0.0 ? covariance[1] / first : 0.0;
  return {first, between, std::sqrt(std::max(covariance[2] - between * between, 0.0))};
}

// log p(y | eta) less what does not depend on eta, its slope and minus its curvature.
struct Term {
  double value, slope, weight;
};

Term term_of(PersonFamily family, double eta, double y, double size) noexcept {
  switch (family) {
    case PersonFamily::binomial: {
      const double small = std::exp(-std::abs(eta)), share = 1.0 / (1.0 + small);
      const double mean = eta >= 0.0 ? share : small * share;
      return {y * eta - (std::max(eta, 0.0) + std::log1p(small)), y - mean, small * share * share};
    }
    case PersonFamily::probit: {
      const double sign = 2.0 * y - 1.0, at = sign * eta, log_below = log_normal_cdf(at);
      const double ratio = std::exp(-0.5 * at * at - 0.5 * std::log(2.0 * std::numbers::pi) - log_below);
      return {log_below, sign * ratio, ratio * (ratio + at)};
    }
    case PersonFamily::poisson: {
      const double held = std::min(eta, kFarthest), mean = std::exp(held);
      return {y * held - mean, y - mean, mean};
    }
    default: {
      const double held = std::min(eta, kFarthest), mean = std::exp(held), share = size / (size + mean);
      return {y * held - (y + size) * std::log(size + mean), (y - mean) * share,
              mean * share * (size + y) / (size + mean)};
    }
  }
}

// In the logarithm of the size: what log p(y | eta) has of it.
double size_slope(double eta, double y, double size) noexcept {
  const double mean = std::exp(std::min(eta, kFarthest));
  return size * (digamma(y + size) - digamma(size) + std::log(size / (size + mean)) + 1.0 - (size + y) / (size + mean));
}

// The rows of one person, and what is used for every draw.
class Person {
 public:
  Person(const PersonModel& model, const PersonParameters& point, const PersonParameters& truth)
      : model_(model),
        point_(point),
        truth_(truth),
        point_root_(root_of(point.covariance)),
        truth_root_(root_of(truth.covariance)),
        q_(model.n_effects()),
        p_(model.n_columns + 1),
        at_point_(static_cast<std::size_t>(model.max_rows)),
        at_truth_(static_cast<std::size_t>(model.max_rows)),
        y_(static_cast<std::size_t>(model.max_rows)),
        slopes_(static_cast<std::size_t>(model.max_rows)),
        sums_(static_cast<std::size_t>(p_)),
        crossed_(static_cast<std::size_t>(2 * p_)),
        rates_(static_cast<std::size_t>(model.max_rows)),
        rated_(static_cast<std::size_t>(p_)),
        by_sum_(static_cast<std::size_t>((model.max_rows + 1) * (p_ + 1))),
        known_(static_cast<std::size_t>(model.max_rows + 1)) {}

  void read(const double* features) noexcept {
    const double count = features[0];
    rows_ = count >= 1.0 ? static_cast<std::int64_t>(std::min(count, static_cast<double>(model_.max_rows))) : 0;
    x_ = features + 1;
    for (std::int64_t j = 0; j < rows_; ++j) {
      at_point_[index(j)] = predictor(point_.coef, j);
      at_truth_[index(j)] = predictor(truth_.coef, j);
    }
    if (model_.family == PersonFamily::gaussian) prepare();
    if (separable()) prepare_rates();
  }

  void observe(const double* responses) noexcept { std::copy_n(responses, rows_, y_.begin()); }

  void draw(Stream& stream) noexcept {
    double effects[2] = {0.0, 0.0}, normal[2] = {0.0, 0.0};
    for (std::int64_t k = 0; k < q_; ++k) normal[k] = stream.normal();
    effects[0] = truth_root_[0] * normal[0];
    effects[1] = truth_root_[1] * normal[0] + truth_root_[2] * normal[1];
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double effect = effects[0] + (q_ == 2 ? effects[1] * varying(j) : 0.0);
      y_[index(j)] = response(at_truth_[index(j)], effect, stream);
    }
  }

  // Scores of the current responses in the model's own coordinates.
  void scores(double* result) noexcept {
    if (model_.family == PersonFamily::gaussian) {
      gaussian_scores(result);
    } else if (separable()) {
      separable_scores(result);
    } else {
      quadrature_scores(result);
    }
  }

 private:
  static std::size_t index(std::int64_t place) noexcept { return static_cast<std::size_t>(place); }

  double column(std::int64_t row, std::int64_t k) const noexcept { return x_[row * model_.n_columns + k]; }
  double varying(std::int64_t row) const noexcept { return column(row, model_.slope); }

  double predictor(const std::vector<double>& coef, std::int64_t row) const noexcept {
    double eta = coef.back();
    for (std::int64_t k = 0; k < model_.n_columns; ++k) eta += column(row, k) * coef[index(k)];
    return eta;
  }

  double response(double eta, double effect, Stream& stream) const noexcept {
    switch (model_.family) {
      case PersonFamily::gaussian:
        return eta + truth_.scale * (effect + stream.normal());
      case PersonFamily::binomial:
        return stream.uniform() < 1.0 / (1.0 + std::exp(-(eta + effect))) ? 1.0 : 0.0;
      case PersonFamily::probit:
        return stream.normal() < eta + effect ? 1.0 : 0.0;
      case PersonFamily::poisson:
        return stream.poisson(std::exp(std::min(eta + effect, kLargestLogMean)));
      default: {
        const double mean = std::exp(std::min(eta + effect, kLargestLogMean));
        return stream.poisson(mean * (stream.gamma(truth_.scale) / truth_.scale));
      }
    }
  }

  // What the closed form has of the columns alone: G = Z'Z, X'Z, and A = (I + LZ'Z)^-1 L with L the covariance.
  void prepare() noexcept {
    gram_ = {0.0, 0.0, 0.0};
    std::ranges::fill(crossed_, 0.0);
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double z = q_ == 2 ? varying(j) : 0.0;
      gram_[0] += 1.0;
      gram_[1] += z;
      gram_[2] += z * z;
      for (std::int64_t k = 0; k < p_; ++k) {
        const double x = k == model_.n_columns ? 1.0 : column(j, k);
        crossed_[index(2 * k)] += x;
        crossed_[index(2 * k + 1)] += x * z;
      }
    }
    const auto& [l00, l01, l11] = point_.covariance;
    const auto& [g00, g01, g11] = gram_;
    // M = I + L G, A = M^-1 L, which is symmetric.
    const double m00 = 1.0 + l00 * g00 + l01 * g01, m01 = l00 * g01 + l01 * g11;
    const double m10 = l01 * g00 + l11 * g01, m11 = 1.0 + l01 * g01 + l11 * g11;
    const double determinant = m00 * m11 - m01 * m10;
    inner_[0] = (m11 * l00 - m01 * l01) / determinant;
    inner_[1] = (m11 * l01 - m01 * l11) / determinant;
    inner_[2] = (m00 * l11 - m10 * l01) / determinant;
    // H = I - G A, W = H G.
    h_ = {1.0 - (g00 * inner_[0] + g01 * inner_[1]), -(g00 * inner_[1] + g01 * inner_[2]),
          -(g01 * inner_[0] + g11 * inner_[1]), 1.0 - (g01 * inner_[1] + g11 * inner_[2])};
    informed_ = {h_[0] * g00 + h_[1] * g01, h_[0] * g01 + h_[1] * g11, h_[2] * g01 + h_[3] * g11};
  }

  void gaussian_scores(double* result) noexcept {
    double square = 0.0, t0 = 0.0, t1 = 0.0;
    std::ranges::fill(sums_, 0.0);
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double residual = y_[index(j)] - at_point_[index(j)];
      square += residual * residual;
      t0 += residual;
      if (q_ == 2) t1 += residual * varying(j);
      for (std::int64_t k = 0; k < model_.n_columns; ++k) sums_[index(k)] += column(j, k) * residual;
    }
    sums_.back() = t0;
    const double precision = 1.0 / (point_.scale * point_.scale);
    const double b0 = inner_[0] * t0 + inner_[1] * t1, b1 = inner_[1] * t0 + inner_[2] * t1;
    double* out = result;
    for (std::int64_t k = 0; k < p_; ++k) {
      *out++ = precision * (sums_[index(k)] - crossed_[index(2 * k)] * b0 - crossed_[index(2 * k + 1)] * b1);
    }
    *out++ = precision * (square - (t0 * b0 + t1 * b1)) - static_cast<double>(rows_);
    const double u0 = h_[0] * t0 + h_[1] * t1, u1 = h_[2] * t0 + h_[3] * t1;
    *out++ = 0.5 * (precision * u0 * u0 - informed_[0]);
    if (q_ == 2) {
      *out++ = precision * u0 * u1 - informed_[1];
      *out++ = 0.5 * (precision * u1 * u1 - informed_[2]);
    }
  }

  // Canonical links with an intercept that varies: exp(eta + b) = exp(eta) exp(b), and of the responses the density has
  // their sum alone.
  bool separable() const noexcept {
    return q_ == 1 && (model_.family == PersonFamily::binomial || model_.family == PersonFamily::poisson);
  }

  void prepare_rates() noexcept {
    std::ranges::fill(rated_, 0.0);
    for (std::int64_t j = 0; j < rows_; ++j) {
      const bool counts = model_.family == PersonFamily::poisson;
      const double eta = std::clamp(at_point_[index(j)], -kLargestOdds, counts ? kFarthest : kLargestOdds);
      const double rate = std::exp(eta);
      rates_[index(j)] = rate;
      for (std::int64_t k = 0; k < p_; ++k) rated_[index(k)] += (k < model_.n_columns ? column(j, k) : 1.0) * rate;
    }
    std::ranges::fill(known_, false);
    if (model_.family == PersonFamily::binomial) prepare_grid();
  }

  // Sums over the rows at even steps of b, which are as good as Gauss's nodes for a density that is as wide as this one
  // at least (Trefethen and Weideman 2014), and serve for all responses.
  void prepare_grid() noexcept {
    const double tau = point_root_[0];
    const double narrowest = tau / std::sqrt(1.0 + 0.25 * tau * tau * static_cast<double>(rows_));
    const double step = kStep * narrowest, last = std::min(kReach * tau, kLargestOdds);
    const auto half = tau > 0.0 ? static_cast<std::int64_t>(std::min(last / step, kMostNodes)) + 1 : 0;
    const std::size_t size = index(2 * half + 1);
    effects_.resize(size);
    log_norms_.assign(size, 0.0);
    variances_.assign(size, 0.0);
    means_.assign(size * index(p_), 0.0);
    odds_.resize(size);
    products_.assign(size, 1.0);
    for (std::size_t k = 0; k < size; ++k) {
      effects_[k] = step * (static_cast<double>(k) - static_cast<double>(half));
      odds_[k] = std::exp(effects_[k]);
    }
    for (std::int64_t j = 0; j < rows_; ++j) {
      for (std::size_t k = 0; k < size; ++k) {
        const double odds = rates_[index(j)] * odds_[k], share = 1.0 / (1.0 + odds);
        const double mean = odds * share;
        products_[k] *= 1.0 + odds;
        variances_[k] += mean * share;
        shares_at(k, size) = mean;
      }
      for (std::int64_t c = 0; c < p_; ++c) {
        const double x = c < model_.n_columns ? column(j, c) : 1.0;
        double* sum = means_.data() + index(c) * size;
        for (std::size_t k = 0; k < size; ++k) sum[k] += x * shares_[k];
      }
      if (j % kRowsOfProduct == kRowsOfProduct - 1 || j == rows_ - 1) {
        for (std::size_t k = 0; k < size; ++k) {
          log_norms_[k] += std::log(products_[k]);
          products_[k] = 1.0;
        }
      }
    }
  }

  double& shares_at(std::size_t k, std::size_t size) {
    if (shares_.size() < size) shares_.resize(size);
    return shares_[k];
  }

  // Posterior means given the sum of the responses: of the rows' means by column, then of g^2 - w.
  const double* given_sum(double sum) noexcept {
    const bool whole = model_.family == PersonFamily::binomial && sum >= 0.0 && sum <= static_cast<double>(rows_);
    const std::size_t place = whole ? static_cast<std::size_t>(sum) : 0;
    double* found = by_sum_.data() + place * index(p_ + 1);
    if (whole && known_[place]) return found;
    if (model_.family == PersonFamily::binomial) {
      on_grid(sum, found);
    } else {
      of_rate(sum, found);
    }
    known_[place] = whole;
    return found;
  }

  void on_grid(double sum, double* found) noexcept {
    const std::size_t size = effects_.size();
    const double precision = point_root_[0] > 0.0 ? 1.0 / (point_root_[0] * point_root_[0]) : 0.0;
    double top = -std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < size; ++k) {
      odds_[k] = sum * effects_[k] - log_norms_[k] - 0.5 * precision * effects_[k] * effects_[k];
      top = std::max(top, odds_[k]);
    }
    double total = 0.0, square = 0.0;
    const double* overall = means_.data() + index(model_.n_columns) * size;
    for (std::size_t k = 0; k < size; ++k) {
      const double weight = std::exp(odds_[k] - top), slope = sum - overall[k];
      odds_[k] = weight;
      total += weight;
      square += weight * (slope * slope - variances_[k]);
    }
    for (std::int64_t c = 0; c < p_; ++c) {
      double mean = 0.0;
      for (std::size_t k = 0; k < size; ++k) mean += odds_[k] * means_[index(c) * size + k];
      found[c] = mean / total;
    }
    found[p_] = square / total;
  }

  void of_rate(double sum, double* found) noexcept {
    const double root = point_root_[0], all = rated_.back();
    const auto value = [&](double v) { return sum * root * v - all * std::exp(root * v) - 0.5 * v * v; };
    double v = 0.0, here = value(v), precision = 1.0 + root * root * all;
    for (int step = 0; step < kMostSteps; ++step) {
      const double rate = all * std::exp(root * v), slope = root * (sum - rate) - v;
      precision = 1.0 + root * root * rate;
      double move = slope / precision;
      if (!(move * slope > kNear)) break;
      double there = value(v + move);
      for (int half = 0; half < 40 && !(there >= here); ++half) there = value(v + (move *= 0.5));
      if (!(there >= here)) break;
      v += move;
      here = there;
    }
    const double spread = 1.0 / std::sqrt(precision);
    double total = 0.0, effect = 0.0, square = 0.0;
    for (std::size_t k = 0; k < model_.nodes.size(); ++k) {
      const double node = model_.nodes[k], at = v + spread * node, factor = std::exp(root * at);
      const double level = sum * root * at - all * factor - 0.5 * at * at;
      const double weight = model_.weights[k] * std::exp(level - here + 0.5 * node * node);
      const double slope = sum - all * factor;
      total += weight;
      effect += weight * factor;
      square += weight * (slope * slope - all * factor);
    }
    for (std::int64_t c = 0; c < p_; ++c) found[c] = rated_[index(c)] * (effect / total);
    found[p_] = square / total;
  }

  void separable_scores(double* result) noexcept {
    std::ranges::fill(sums_, 0.0);
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double y = y_[index(j)];
      sums_.back() += y;
      if (y == 0.0) continue;
      for (std::int64_t k = 0; k < model_.n_columns; ++k) sums_[index(k)] += column(j, k) * y;
    }
    const double* given = given_sum(sums_.back());
    for (std::int64_t k = 0; k < p_; ++k) result[k] = sums_[index(k)] - given[k];
    result[p_] = 0.5 * given[p_];
  }

  // Of the rows at effects T v: the log density less |v|^2 / 2, its slope in the effects, and minus their curvature.
  struct AtEffects {
    double value, g0, g1, w00, w01, w11;
  };

  AtEffects at_effects(double v0, double v1, bool keep) noexcept {
    const double b0 = point_root_[0] * v0, b1 = point_root_[1] * v0 + point_root_[2] * v1;
    AtEffects found{-0.5 * (v0 * v0 + v1 * v1), 0.0, 0.0, 0.0, 0.0, 0.0};
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double z = q_ == 2 ? varying(j) : 0.0, eta = at_point_[index(j)] + b0 + b1 * z;
      const Term term = term_of(model_.family, eta, y_[index(j)], point_.scale);
      found.value += term.value;
      found.g0 += term.slope;
      found.w00 += term.weight;
      if (q_ == 2) {
        found.g1 += z * term.slope;
        found.w01 += z * term.weight;
        found.w11 += z * z * term.weight;
      }
      if (keep) slopes_[index(j)] = term.slope;
    }
    return found;
  }

  // In v, where effects are T v: slope and I + T'W T.
  struct Mode {
    double v0, v1;
    std::array<double, 3> spread;  // lower root of the inverse of minus the curvature
  };

  Mode mode() noexcept {
    const auto& [r0, r1, r2] = point_root_;
    double v0 = 0.0, v1 = 0.0;
    AtEffects here = at_effects(v0, v1, false);
    std::array<double, 3> precision{1.0, 0.0, 1.0};
    for (int step = 0; step < kMostSteps; ++step) {
      const double s0 = r0 * here.g0 + r1 * here.g1 - v0, s1 = r2 * here.g1 - v1;
      precision = {1.0 + r0 * r0 * here.w00 + 2.0 * r0 * r1 * here.w01 + r1 * r1 * here.w11,
                   r2 * (r0 * here.w01 + r1 * here.w11), 1.0 + r2 * r2 * here.w11};
      const double determinant = precision[0] * precision[2] - precision[1] * precision[1];
      double d0 = (precision[2] * s0 - precision[1] * s1) / determinant;
      double d1 = (precision[0] * s1 - precision[1] * s0) / determinant;
      if (q_ == 1) d1 = 0.0;
      const double length = d0 * s0 + d1 * s1;
      if (!(length > kNear)) break;
      // Log-concave: a step that does not gain was too long.
      bool moved = false;
      for (int half = 0; half < 30 && !moved; ++half) {
        const AtEffects there = at_effects(v0 + d0, v1 + d1, false);
        if (there.value >= here.value) {
          v0 += d0;
          v1 += d1;
          here = there;
          moved = true;
        } else {
          d0 *= 0.5;
          d1 *= 0.5;
        }
      }
      if (!moved) break;
    }
    const double determinant = precision[0] * precision[2] - precision[1] * precision[1];
    return {v0, v1, root_of({precision[2] / determinant, -precision[1] / determinant, precision[0] / determinant})};
  }

  void quadrature_scores(double* result) noexcept {
    const std::int64_t n = model_.n_scores();
    const Mode centre = mode();
    const auto& [c0, c1, c2] = centre.spread;
    const std::size_t size = model_.nodes.size();
    std::fill_n(result, n, 0.0);
    double total = 0.0, top = -std::numeric_limits<double>::infinity();
    for (std::size_t one = 0; one < size; ++one) {
      for (std::size_t other = 0; other < (q_ == 2 ? size : 1); ++other) {
        const double e0 = model_.nodes[one], e1 = q_ == 2 ? model_.nodes[other] : 0.0;
        const double v0 = centre.v0 + c0 * e0, v1 = centre.v1 + c1 * e0 + c2 * e1;
        const AtEffects at = at_effects(v0, v1, true);
        const double level = at.value + 0.5 * (e0 * e0 + e1 * e1);
        if (level > top) {
          const double factor = std::exp(top - level);
          for (std::int64_t k = 0; k < n; ++k) result[k] *= factor;
          total *= factor;
          top = level;
        }
        const double weight = model_.weights[one] * (q_ == 2 ? model_.weights[other] : 1.0) * std::exp(level - top);
        total += weight;
        add_node(weight, at, v0, v1, result);
      }
    }
    for (std::int64_t k = 0; k < n; ++k) result[k] /= total;
  }

  void add_node(double weight, const AtEffects& at, double v0, double v1, double* result) const noexcept {
    for (std::int64_t j = 0; j < rows_; ++j) {
      const double slope = weight * slopes_[index(j)];
      for (std::int64_t k = 0; k < model_.n_columns; ++k) result[k] += column(j, k) * slope;
    }
    double* out = result + model_.n_columns;
    *out++ += weight * at.g0;
    if (model_.has_scale()) {
      const double b0 = point_root_[0] * v0, b1 = point_root_[1] * v0 + point_root_[2] * v1;
      double sum = 0.0;
      for (std::int64_t j = 0; j < rows_; ++j) {
        const double eta = at_point_[index(j)] + b0 + (q_ == 2 ? b1 * varying(j) : 0.0);
        sum += size_slope(eta, y_[index(j)], point_.scale);
      }
      *out++ += weight * sum;
    }
    // The normal density solves a heat equation: its slope in the covariance is half its curvature.
    *out++ += 0.5 * weight * (at.g0 * at.g0 - at.w00);
    if (q_ == 2) {
      *out++ += weight * (at.g0 * at.g1 - at.w01);
      *out++ += 0.5 * weight * (at.g1 * at.g1 - at.w11);
    }
  }

  const PersonModel& model_;
  const PersonParameters& point_;
  const PersonParameters& truth_;
  std::array<double, 3> point_root_, truth_root_;
  std::int64_t q_, p_, rows_ = 0;
  const double* x_ = nullptr;
  std::vector<double> at_point_, at_truth_, y_, slopes_, sums_, crossed_;
  std::vector<double> rates_, rated_, by_sum_;
  std::vector<char> known_;  // whether by_sum_ is that of this person
  std::vector<double> effects_, log_norms_, variances_, means_, odds_, products_, shares_;
  std::array<double, 3> gram_{}, inner_{}, informed_{};
  std::array<double, 4> h_{};
};

}  // namespace

void person_scores(const PersonModel& model, const PersonParameters& point, const PersonParameters& truth,
                   std::span<const double> transform, const double* features, const double* responses,
                   const std::uint64_t* seeds, std::uint64_t stream, std::int64_t n_draws, std::int64_t n_persons,
                   int n_threads, double* result) {
  const std::int64_t n = model.n_scores(), n_out = static_cast<std::int64_t>(transform.size()) / n;
  const std::int64_t sets = n_draws + (responses == nullptr ? 0 : 1);
  const std::int64_t width = 1 + model.max_rows * model.n_columns;
  const int team = resolve_threads(n_threads);
#pragma omp parallel num_threads(team)
  {
    Person person(model, point, truth);
    std::vector<double> own(static_cast<std::size_t>(n));
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < n_persons; ++i) {
      person.read(features + i * width);
      for (std::int64_t set = 0; set < sets; ++set) {
        if (set < n_draws) {
          Stream draws(seeds + 2 * i, stream * static_cast<std::uint64_t>(n_draws) + static_cast<std::uint64_t>(set));
          person.draw(draws);
        } else {
          person.observe(responses + i * model.max_rows);
        }
        person.scores(own.data());
        const bool finite = std::ranges::all_of(own, [](double value) { return std::isfinite(value); });
        for (std::int64_t a = 0; a < n_out; ++a) {
          double value = 0.0;
          for (std::int64_t k = 0; k < n && finite; ++k) {
            value += transform[static_cast<std::size_t>(a * n + k)] * own[static_cast<std::size_t>(k)];
          }
          result[(a * sets + set) * n_persons + i] = value;
        }
      }
    }
  }
}

}  // namespace dpinfer

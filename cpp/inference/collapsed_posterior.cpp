#include "inference/collapsed_posterior.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>

#include "common/parallel.hpp"
#include "inference/collapsed_density.hpp"
#include "inference/posterior_kernels.hpp"

namespace dpinfer::inference {
namespace {

using namespace detail;

constexpr double kSearchDrop = 42.0;       // the range is searched to this drop of the log density ...
constexpr double kBorderDrop = 36.0;       // ... and every point of its border must have dropped by this
constexpr double kPruneDrop = 37.0;        // nodes lighter than exp(-37) of the heaviest are left out
constexpr double kStepPerWidth = 0.6;      // even and odd nodes of a Gaussian then agree to 2e-6
constexpr double kParityTolerance = 1e-5;  // the full rule is then right to about the square of this
constexpr double kNarrowInflation = 0.1;   // relative spread of nu up to which three Gauss nodes err below 1e-8
constexpr int kMaxRefinements = 12;
constexpr std::size_t kMaxNodes = 1u << 21u;
constexpr double kMomentTolerance = 1e-6;
constexpr std::size_t kMostForMoments = 1u << 16u;  // no finer for second moments alone, which hardly exist at times

struct Axis {
  double low = 0.0;
  double high = 0.0;
  double step = 1.0;
  std::size_t nodes() const { return static_cast<std::size_t>(std::floor((high - low) / step + 0.5)) + 1; }
  double at(std::size_t i) const { return low + static_cast<double>(i) * step; }
  // Makes the range a whole number of steps.
  void fit() {
    const double count = std::max(2.0, std::ceil((high - low) / step));
    step = (high - low) / count;
  }
  // Becomes another range, or the one around both, with the smaller step.
  void include(const Axis& other, bool first) {
    low = first ? other.low : std::min(low, other.low);
    high = first ? other.high : std::max(high, other.high);
    step = first ? other.step : std::min(step, other.step);
  }
};

// Finds the modes and the rectangle around all of them that matters.
void locate(const Density& density, Axis& y_axis, Axis& w_axis) {
  std::size_t count = 0;
  const auto starts = density.starts(count);
  std::array<double, 3> mode_y{};
  std::array<double, 3> mode_w{};
  std::array<double, 3> value{};
  std::array<double, 3> width_w{};
  double best = -std::numeric_limits<double>::infinity();
  // The highest point of a row, climbed to from that of the row before.
  double y = 0.0;
  double step = 0.5;
  Peak peak{};
  const auto profile = [&](double w) {
    const auto row = density.row(w);
    peak = climb([&](double z) { return density.at(density.column(z), row); }, y, step);
    y = peak.at;
    step = 0.5 * peak.width;
    return peak.value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    y = starts[i];
    step = 0.5;
    if (density.has_inflation()) {
      const Peak across = climb(profile, density.start_inflation(), 0.05);
      mode_w[i] = std::abs(across.at);
      width_w[i] = across.width;
    }
    value[i] = profile(mode_w[i]);
    mode_y[i] = y;
    best = std::max(best, value[i]);
  }
  const double threshold = best - kSearchDrop;
  bool first = true;
  for (std::size_t i = 0; i < count; ++i) {
    if (value[i] <= threshold) continue;
    Axis wide;
    wide.low = wide.high = mode_w[i];
    y = mode_y[i];
    step = 0.5;
    if (density.has_inflation()) {
      wide.high =
          descend(profile, mode_w[i], 1.0, 3.0 * width_w[i], threshold, std::numeric_limits<double>::infinity());
      y = mode_y[i];
      wide.low = mode_w[i] > 0.0 ? descend(profile, mode_w[i], -1.0, 3.0 * width_w[i], threshold, 0.0) : 0.0;
      wide.step = kStepPerWidth * width_w[i];
    }
    const std::array<double, 3> rows{mode_w[i], 0.5 * (mode_w[i] + wide.low), 0.5 * (mode_w[i] + wide.high)};
    Axis tall;
    for (std::size_t r = 0; r < (density.has_inflation() ? rows.size() : 1); ++r) {
      y = mode_y[i];
      step = 0.5;
      const double top = profile(rows[r]);
      const double low_limit = -std::numeric_limits<double>::infinity();
      double low = peak.at;
      double high = peak.at;
      if (top > threshold) {
        const auto row = density.row(rows[r]);
        const auto slice = [&](double z) { return density.at(density.column(z), row); };
        low = descend(slice, peak.at, -1.0, 3.0 * peak.width, threshold, low_limit);
        high = descend(slice, peak.at, 1.0, 3.0 * peak.width, threshold, -low_limit);
      }
      tall.include({low, high, kStepPerWidth * peak.width}, r == 0);
    }
    y_axis.include(tall, first);
    w_axis.include(wide, first);
    first = false;
  }
  // Around the mode softplus(y) bends on a scale of 1, whatever the width of the peak.
  y_axis.step = std::min(y_axis.step, 1.0);
}

struct Table {
  std::size_t on_grid = 0;  // columns of the grid; the slope 0 has one more behind them
  std::vector<Density::Column> columns;
  std::vector<Density::Row> rows;
  std::vector<double> log_density;  // (rows, columns)
  double top = 0.0;
};

void fill(const Density& density, const Axis& y_axis, const Axis& w_axis, Table& table) {
  table.on_grid = y_axis.nodes();
  const std::size_t ny = table.on_grid + (density.has_zero() ? 1 : 0);
  const std::size_t nw = density.has_inflation() ? w_axis.nodes() : 1;
  table.columns.resize(ny);
  table.rows.resize(nw);
  table.log_density.resize(ny * nw);
  for (std::size_t i = 0; i < table.on_grid; ++i) table.columns[i] = density.column(y_axis.at(i));
  if (density.has_zero()) table.columns[table.on_grid] = density.zero(y_axis.step);
  double top = -std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < nw; ++r) {
    table.rows[r] = density.row(w_axis.at(r));
    double* out = table.log_density.data() + r * ny;
    for (std::size_t i = 0; i < ny; ++i) {
      out[i] = density.at(table.columns[i], table.rows[r]);
      top = std::max(top, out[i]);
    }
  }
  table.top = top;
}

// Widens the axes where the border of the table is too high; true when something was widened.
bool widen(const Table& table, bool has_inflation, Axis& y_axis, Axis& w_axis) {
  const std::size_t ny = table.columns.size();
  const std::size_t nw = table.rows.size();
  const double threshold = table.top - kBorderDrop;
  bool left = false;
  bool right = false;
  bool below = false;
  bool above = false;
  for (std::size_t r = 0; r < nw; ++r) {
    left = left || table.log_density[r * ny] > threshold;
    right = right || table.log_density[r * ny + table.on_grid - 1] > threshold;
  }
  if (has_inflation) {
    for (std::size_t i = 0; i < ny; ++i) {
      below = below || (w_axis.low > 0.0 && table.log_density[i] > threshold);
      above = above || table.log_density[(nw - 1) * ny + i] > threshold;
    }
  }
  const double margin_y = 0.25 * (y_axis.high - y_axis.low);
  const double margin_w = 0.25 * (w_axis.high - w_axis.low);
  if (left) y_axis.low -= margin_y;
  if (right) y_axis.high += margin_y;
  if (below) w_axis.low = std::max(0.0, w_axis.low - margin_w);
  if (above) w_axis.high += margin_w;
  return left || right || below || above;
}

// Turns log densities into weights and measures how far even and odd nodes disagree along either axis.
void weigh(Table& table, bool half_first_row, double& parity_y, double& parity_w, double& total) {
  const std::size_t ny = table.columns.size();
  const std::size_t nw = table.rows.size();
  std::array<double, 2> by_y{};
  std::array<double, 2> by_w{};
  total = 0.0;
  for (std::size_t r = 0; r < nw; ++r) {
    // The density is even in w: on a grid that starts at w = 0 the first node stands for half a cell.
    const double share = r == 0 && half_first_row ? 0.5 : 1.0;
    double* cells = table.log_density.data() + r * ny;
    std::array<double, 2> row{};
    for (std::size_t i = 0; i < ny; ++i) {
      cells[i] = share * std::exp(cells[i] - table.top);
      if (i < table.on_grid) row[i % 2] += cells[i];
    }
    // The closed form has no error along this axis.
    for (std::size_t i = table.on_grid; i < ny; ++i) {
      for (double& half : row) half += 0.5 * cells[i];
    }
    by_y[0] += row[0];
    by_y[1] += row[1];
    by_w[r % 2] += row[0] + row[1];
  }
  total = by_y[0] + by_y[1];
  parity_y = std::abs(by_y[0] - by_y[1]) / total;
  parity_w = nw > 1 ? std::abs(by_w[0] - by_w[1]) / total : 0.0;
}

// How far even and odd nodes of a weighed table disagree, along the slope's axis, on the second moments of slope and
// optimum: with Student tails they settle after the mass.
double moment_parity(const Density& density, const Table& table) {
  const std::size_t ny = table.columns.size();
  std::array<double, 2> slope{};
  std::array<double, 2> optimum{};
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    for (std::size_t i = 0; i < ny; ++i) {
      const double cell = table.log_density[r * ny + i];
      double mean = 0.0;
      double variance = 0.0;
      density.optimum(table.columns[i], table.rows[r], mean, variance);
      slope[i % 2] += cell * table.columns[i].square;
      optimum[i % 2] += cell * (variance + mean * mean);
    }
  }
  return std::max(std::abs(slope[0] - slope[1]) / (slope[0] + slope[1]),
                  std::abs(optimum[0] - optimum[1]) / (optimum[0] + optimum[1]));
}

// Three-node Gauss rule of the discrete measure (x_i, weight_i), which is exact to the fifth degree; false when the
// measure is too narrow for three nodes.
bool gauss_rule(std::span<const double> x, std::span<const double> weight, double total, std::array<double, 3>& node,
                std::array<double, 3>& share) {
  double mean = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) mean += weight[i] * x[i];
  mean /= total;
  double variance = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) variance += weight[i] * (x[i] - mean) * (x[i] - mean);
  variance /= total;
  if (!(variance > 1e-24 * mean * mean)) return false;
  const double scale = std::sqrt(variance);
  double third = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double z = (x[i] - mean) / scale;
    third += weight[i] * z * z * z;
  }
  third /= total;
  // Monic orthogonal polynomials in z = (x - mean) / scale: z, then (z - third) z - 1.
  double norm = 0.0;
  double shifted = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double z = (x[i] - mean) / scale;
    const double p = (z - third) * z - 1.0;
    norm += weight[i] * p * p;
    shifted += weight[i] * z * p * p;
  }
  norm /= total;
  if (!(norm > 1e-12)) return false;
  const double last = shifted / total / norm;
  // Eigenvalues of the Jacobi matrix [[0, 1, 0], [1, third, r], [0, r, last]], r^2 = norm (Smith 1961).
  const double centre = (third + last) / 3.0;
  const double a = -centre;
  const double b = third - centre;
  const double c = last - centre;
  const double spread = std::sqrt((a * a + b * b + c * c + 2.0 * (1.0 + norm)) / 6.0);
  const double determinant = (a * (b * c - norm) - c) / (spread * spread * spread);
  const double angle = std::acos(std::clamp(0.5 * determinant, -1.0, 1.0)) / 3.0;
  for (std::size_t k = 0; k < 3; ++k) {
    const double z = centre + 2.0 * spread * std::cos(angle + 2.0943951023931953 * static_cast<double>(k));
    const double p = (z - third) * z - 1.0;
    node[k] = mean + scale * z;
    share[k] = 1.0 / (1.0 + z * z + p * p / norm);
  }
  return true;
}

// Relative spread of nu under the whole table.
double inflation_spread(const Table& table, double total) {
  const std::size_t ny = table.columns.size();
  double mean = 0.0;
  double square = 0.0;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    double mass = 0.0;
    for (std::size_t i = 0; i < ny; ++i) mass += table.log_density[r * ny + i];
    mean += mass * table.rows[r].inflation;
    square += mass * table.rows[r].inflation * table.rows[r].inflation;
  }
  mean /= total;
  return std::sqrt(std::max(square / total - mean * mean, 0.0)) / mean;
}

void collect(const Density& density, const Table& table, double total, CollapsedNodes& nodes) {
  const std::size_t ny = table.columns.size();
  const std::size_t nw = table.rows.size();
  const double smallest = std::exp(-kPruneDrop);
  double sum = 0.0;
  const auto add = [&](const Density::Column& column, double own_inflation, double own_weight) {
    double mean = 0.0;
    double variance = 0.0;
    density.optimum(column, {own_inflation, 1.0 / own_inflation, 0.0}, mean, variance);
    nodes.slope.push_back(column.beta);
    nodes.inflation.push_back(own_inflation);
    nodes.weight.push_back(own_weight);
    nodes.mean.push_back(mean);
    nodes.variance.push_back(variance);
    sum += own_weight;
  };
  // Everything downstream is smooth in nu: where nu is known well, three nodes per slope say all of it.
  const bool compress = nw > 3 && inflation_spread(table, total) < kNarrowInflation;
  std::vector<double> inflation(nw);
  std::vector<double> weight(nw);
  for (std::size_t i = 0; i < ny; ++i) {
    double mass = 0.0;
    for (std::size_t r = 0; r < nw; ++r) {
      inflation[r] = table.rows[r].inflation;
      weight[r] = table.log_density[r * ny + i];
      mass += weight[r];
    }
    std::array<double, 3> node{};
    std::array<double, 3> share{};
    if (compress && mass > smallest && gauss_rule(inflation, weight, mass, node, share)) {
      for (std::size_t k = 0; k < 3; ++k) add(table.columns[i], node[k], mass * share[k]);
      continue;
    }
    for (std::size_t r = 0; r < nw; ++r) {
      if (weight[r] > smallest) add(table.columns[i], inflation[r], weight[r]);
    }
  }
  for (double& value : nodes.weight) value /= sum;
}

void solve(const CollapsedProblem& problem, Table& table, CollapsedNodes& nodes) {
  const Density density(problem);
  Axis y_axis;
  Axis w_axis;
  locate(density, y_axis, w_axis);
  y_axis.fit();
  if (density.has_inflation()) w_axis.fit();
  for (int round = 0; round < kMaxRefinements; ++round) {
    const std::size_t rows = density.has_inflation() ? w_axis.nodes() : 1;
    if (y_axis.nodes() > kMaxNodes / rows) break;
    fill(density, y_axis, w_axis, table);
    if (!std::isfinite(table.top)) break;
    if (widen(table, density.has_inflation(), y_axis, w_axis)) {
      y_axis.fit();
      if (density.has_inflation()) w_axis.fit();
      continue;
    }
    double parity_y = 0.0;
    double parity_w = 0.0;
    double total = 0.0;
    weigh(table, density.has_inflation() && !(w_axis.low > 0.0), parity_y, parity_w, total);
    const bool finer = density.student_tails() && round + 1 < kMaxRefinements &&
                       y_axis.nodes() < kMostForMoments / rows && moment_parity(density, table) > kMomentTolerance;
    if (parity_y <= kParityTolerance && parity_w <= kParityTolerance && !finer) {
      collect(density, table, total, nodes);
      return;
    }
    if (finer || !(parity_y <= kParityTolerance)) y_axis.step *= 0.5;
    if (!(parity_w <= kParityTolerance)) w_axis.step *= 0.5;
  }
  nodes.status = PosteriorStatus::kNotConverged;
}

}  // namespace

double log_marginal_inflation(double count, double residual) {
  // Outside, or for a NaN, the sums below would not end.
  if (!(count >= 0.0 && count <= 1e15 && residual >= 0.0 && residual <= 1e300)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double power = count + 1.0;
  const double ratio = residual / power;
  const double mode = ratio > 1.0 ? std::acosh(std::sqrt(ratio)) : 0.0;
  const double bend = std::tanh(mode);
  const double curvature = std::max({2.0 * power * bend * bend, power - residual, std::sqrt(power)});
  const double step = 0.4 / std::sqrt(curvature);
  const auto term = [&](double w) {
    const double log_c = log_cosh(w);
    return -power * log_c - 0.5 * residual * std::exp(-2.0 * log_c);
  };
  // Nodes at whole multiples of the step, so that the even integrand may start with half a cell at zero.
  const auto centre = static_cast<std::int64_t>(std::floor(mode / step));
  const double top = term(static_cast<double>(centre) * step);
  static const PosteriorKernels& kernels = posterior_kernels();
  const double sum = kernels.inflation({power, residual, step, centre, top, -kSearchDrop});
  return top + std::log(sum * step);
}

CollapsedNodes collapsed_posterior(const CollapsedProblem& problem) {
  Table table;
  CollapsedNodes nodes;
  solve(problem, table, nodes);
  return nodes;
}

PosteriorStatus collapsed_posteriors(std::span<const CollapsedProblem> problems, int threads,
                                     std::span<CollapsedNodes> nodes) {
  const int team = problems.size() < 16 ? 1 : resolve_threads(threads);
#pragma omp parallel num_threads(team) if (team > 1)
  {
    Table table;
#pragma omp for schedule(dynamic, 4)
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(problems.size()); ++j) {
      const auto index = static_cast<std::size_t>(j);
      try {
        solve(problems[index], table, nodes[index]);
      } catch (const std::bad_alloc&) {
        nodes[index].status = PosteriorStatus::kOutOfMemory;
      }
    }
  }
  PosteriorStatus worst = PosteriorStatus::kOk;
  for (const auto& item : nodes) worst = std::max(worst, item.status);
  return worst;
}

}  // namespace dpinfer::inference

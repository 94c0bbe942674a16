#include "mechanism/rows/step_session.hpp"

#include <algorithm>
#include <cstddef>

#include "mechanism/mutants.hpp"

namespace dpinfer {

StepSession::StepSession(const KernelTable& kernels, const Records& records, Likelihood likelihood, bool aligned,
                         double sample_rate, double max_grad_norm, const RandomKey& key, int n_threads)
    : SampledSession(kernels, sample_rate, max_grad_norm, key, n_threads) {
  task_.records = records;
  task_.likelihood = likelihood;
  task_.expectation = aligned ? Expectation::draws : Expectation::quadrature;
  task_.n_coef = records.n_features + (records.has_intercept ? 1 : 0);
  task_.n_pad = (task_.n_coef + kRowGroup - 1) / kRowGroup * kRowGroup;
  task_.has_raw = !aligned;
  task_.has_dispersion = likelihood == Likelihood::gaussian;
  task_.clip_norm = sum_.lattice().clip_norm / lattice_step();
  const auto pad = static_cast<std::size_t>(task_.n_pad);
  for (auto* array : {&loc_scale_, &loc_offset_, &raw_scale_, &raw_offset_}) array->assign(pad, 0.0);
  task_.loc_scale = loc_scale_.data();
  task_.loc_offset = loc_offset_.data();
  task_.raw_scale = raw_scale_.data();
  task_.raw_offset = raw_offset_.data();
}

void StepSession::pad_rows(std::span<const double> source, int n_rows, AlignedVector<double>& target) const {
  const auto width = static_cast<std::size_t>(task_.n_coef);
  const auto pad = static_cast<std::size_t>(task_.n_pad);
  target.assign(static_cast<std::size_t>(n_rows) * pad, 0.0);
  for (std::size_t row = 0; row < static_cast<std::size_t>(n_rows); ++row) {
    for (std::size_t j = 0; j < width; ++j) target[row * pad + j] = source[row * width + j];
  }
}

void StepSession::set_scales(std::span<const double> scale, std::span<const double> offset) {
  DPINFER_MUTATE(const mutants::Scales wrong = mutants::scales(scale, offset, lattice_step()); scale = wrong.scale;
                 offset = wrong.offset;)
  task_.has_offset = std::any_of(offset.begin(), offset.end(), [](double value) { return value != 0.0; });
  const auto width = static_cast<std::size_t>(task_.n_coef);
  const std::size_t n = width + (task_.has_dispersion ? 1 : 0);
  task_.uniform_loc_scale =
      std::all_of(scale.begin(), scale.begin() + task_.n_coef, [&](double value) { return value == scale[0]; });
  // Into lattice steps: the step is a power of two, so that this is exact.
  const double unit = 1.0 / lattice_step();
  for (std::size_t j = 0; j < width; ++j) {
    loc_scale_[j] = scale[j] * unit;
    loc_offset_[j] = offset[j] * unit;
    if (task_.has_raw) {
      raw_scale_[j] = scale[n + j] * unit;
      raw_offset_[j] = offset[n + j] * unit;
    }
  }
  if (task_.has_dispersion) {
    task_.dispersion_loc_scale = scale[width] * unit;
    task_.dispersion_loc_offset = offset[width] * unit;
    task_.dispersion_raw_scale = task_.has_raw ? scale[n + width] * unit : 0.0;
    task_.dispersion_raw_offset = task_.has_raw ? offset[n + width] * unit : 0.0;
  }
}

void StepSession::set_quadrature(std::span<const double> loc, std::span<const double> variance,
                                 std::span<const double> nodes, std::span<const double> weights,
                                 std::span<const double> moments) {
  task_.expectation = Expectation::quadrature;
  task_.n_draws = 0;
  pad_rows(loc, 1, loc_);
  pad_rows(variance, 1, variance_);
  nodes_.assign(nodes.begin(), nodes.end());
  weights_.assign(weights.begin(), weights.end());
  task_.loc = loc_.data();
  task_.variance = variance_.data();
  task_.nodes = nodes_.data();
  task_.node_weights = weights_.data();
  task_.n_nodes = static_cast<int>(nodes_.size());
  if (task_.has_dispersion) task_.moments = {moments[0], moments[1], moments[2], moments[3], moments[4]};
}

void StepSession::set_draws(int n_draws, std::span<const double> draws, std::span<const double> standard,
                            std::span<const double> dispersion) {
  task_.expectation = Expectation::draws;
  task_.n_draws = n_draws;
  pad_rows(draws, n_draws, draws_);
  pad_rows(standard, n_draws, standard_);
  dispersion_.assign(dispersion.begin(), dispersion.end());
  task_.draws = draws_.data();
  task_.standard = standard_.data();
  if (task_.has_dispersion) {
    task_.draw_precision = dispersion_.data();
    task_.draw_log_slope = dispersion_.data() + n_draws;
    task_.draw_standard_rho = dispersion_.data() + 2 * static_cast<std::ptrdiff_t>(n_draws);
  }
}

}  // namespace dpinfer

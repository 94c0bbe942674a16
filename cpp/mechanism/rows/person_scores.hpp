// Scores of the marginal likelihood of a person with several rows, whose effects are normal and integrated out, and
// those of the model's own draws of the person's responses.  docs/derivations/people.md has the formulas.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "mechanism/simd/person_kernels.hpp"

namespace dpinfer {

// Parameters in the model's own space.
struct PersonParameters {
  std::vector<double> coef;          // of the columns of a row, then of the constant
  double scale = 1.0;                // standard deviation of the noise (gaussian), or the size (negative binomial)
  std::array<double, 3> covariance;  // of the effects, over the noise's variance for gaussian: (0,0), (0,1), (1,1)
};

// One likelihood for all persons.
struct PersonModel {
  PersonFamily family;
  std::int64_t max_rows;
  std::int64_t n_columns;
  std::int64_t slope;                  // the column whose coefficient varies, -1 where none does
  std::vector<double> nodes, weights;  // of Gauss-Hermite quadrature for the standard normal law

  bool has_scale() const noexcept {
    return family == PersonFamily::gaussian || family == PersonFamily::negative_binomial;
  }
  // Coefficients, log(scale), and the covariance's (0,0), or (0,0), (0,1), (1,1).
  std::int64_t n_scores() const noexcept { return n_columns + 1 + (has_scale() ? 1 : 0) + (slope < 0 ? 1 : 3); }
};

// Scores at `point`, transformed, of persons; first those of draws at `truth`, then the observed ones.
// features: (n_persons, 1 + max_rows n_columns), the number of rows first.  responses: (n_persons, max_rows), or null
// where only draws are wanted.  seeds: (n_persons, 2).  transform: (n_out, n_scores).  result: (n_out, n_draws +
// observed, n_persons).  A person's scores depend on that person and public numbers alone.
void person_scores(const PersonKernelTable& kernels, const PersonModel& model, const PersonParameters& point,
                   const PersonParameters& truth, std::span<const double> transform, const double* features,
                   const double* responses, const std::uint64_t* seeds, std::uint64_t stream, std::int64_t n_draws,
                   std::int64_t n_persons, int n_threads, double* result);

}  // namespace dpinfer

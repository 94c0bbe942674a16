// Persons with several rows, eight at a time: the kernels' table.  rows/person_scores.hpp has what they compute.
#pragma once

#include <cstdint>

namespace dpinfer {

enum class PersonFamily { gaussian, binomial, probit, poisson, negative_binomial };

// Parameters in the model's own space, with the lower root of the effects' covariance: (0,0), (1,0), (1,1).
struct PersonPoint {
  const double* coef;  // of the columns of a row, then of the constant
  double scale;
  double covariance[3];
  double root[3];
};

constexpr int kSideOfPairs = 16;  // most even steps of either effect of a pair, from the middle

struct PersonTask {
  PersonFamily family;
  int max_rows, n_columns;
  int slope;  // the column whose coefficient varies, -1 where none does
  int n_scores, n_out;
  int n_nodes;
  const double* nodes;    // of quadrature; effects at even steps where `weights` is null
  const double* weights;  // of the standard normal law
  PersonPoint point, truth;
  bool same;  // whether the two are equal
  const double* transform;
  std::uint64_t first_draw;
  int n_draws;

  int n_effects() const { return slope < 0 ? 1 : 2; }
  bool pairs() const { return slope >= 0 && family == PersonFamily::binomial; }
  int n_places() const { return pairs() ? (2 * kSideOfPairs + 1) * (2 * kSideOfPairs + 1) : n_nodes; }
  // Numbers of eight lanes: nine for each row and one more, for each column sums, and those of quadrature.
  int scratch_length() const {
    return 8 * (max_rows * n_columns + 9 * (max_rows + 1) + 3 * (n_columns + 1) + n_scores +
                n_places() * (n_columns + (pairs() ? 9 : 4)));
  }
};

// Eight persons; fewer are filled up by repeating one.
struct EightPersons {
  const double* features[8];
  const double* responses[8];  // null where draws alone are wanted
  std::uint64_t seeds[2][8];
};

struct PersonKernelTable {
  const char* name;
  // result: (n_out, n_draws + observed, 8), aligned as scratch.
  void (*scores)(const PersonTask& task, const EightPersons& persons, double* scratch, double* result);
};

// As kernel_table (kernel_table.hpp).
const PersonKernelTable* person_kernel_table();
const PersonKernelTable* person_kernel_table(const char* name);

}  // namespace dpinfer

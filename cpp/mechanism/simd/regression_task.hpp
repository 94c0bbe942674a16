// The public inputs of a pass over the records of a regression with few parameters: second moments, weighted scores and
// curvatures, each in whitened coordinates z = transform x.
#pragma once

#include "mechanism/simd/records.hpp"

namespace dpinfer {

// With more directions, no whitened features are looked through for the few that are not zero.
inline constexpr int kMostFewDirections = 2048;

// What a record contributes, before it is held inside its ball; sizes are one-hot vectors among public edges.  w is its
// survey weight times its Mallows weight min(1, square_bound / |z|^2); eta = loc'x its linear predictor, r = y - E[y |
// eta] its residual, psi = the residual cut off at +-residual_bound, less what the centre table says it is on average,
// and slope = -E[d psi / d eta].  Of a probit likelihood, r is its derivative in eta, and slope minus the second one.
// With a weight bound L, w is also times min(1, L / (w max |r| |z|)), the largest |r| of the two possible responses: a
// function of x, so that the score still has the expectation zero where its model is true.
enum class RegressionOutput {
  moments,          // w z z'
  curvature,        // w slope z z'
  squares,          // w^2 psi^2 z z'
  score_sizes,      // the indicator of the interval in which |w psi z| lies
  curvature_sizes,  // the indicator of the interval in which |w slope z z'|^(1/2) lies
  scores  // (w psi z, scale_weight * (min(|r| / scale_unit, 1) - scale_centre)); the latter where scale_weight != 0
};

// Matrices are released as their upper triangle, row by row, off-diagonal entries times sqrt(2): a record's vector then
// has the Frobenius norm of its matrix.
struct RegressionTask {
  Records records;
  RegressionOutput output;
  Likelihood link;
  bool is_derivative;       // probit: r is the derivative of the log-likelihood, not y - E[y | eta]
  int n_coef;               // of x, with the intercept
  int n_directions;         // of z
  const double* transform;  // n_directions x n_coef
  const double* by_column;  // for sparse records: the transpose of (transform, loc), n_coef x padded_directions
  bool has_few;             // sparse records whose whitened features are mostly zeros too
  const double* loc;        // n_coef
  double square_bound;      // B^2, or infinity: the weights are then 1
  double residual_bound;    // c, or infinity
  double weight_bound;      // L, or infinity: of yes/no responses alone
  double scale_weight;
  double scale_unit;
  double scale_centre;

  // Functions of eta on an even grid, between whose nodes they are linear, and beyond which constant; n_nodes = 0 for
  // none.  Without them the centre is 0, and the slope that of the uncut residual where it is within its bound.
  const double* centre;
  const double* slope;
  int n_nodes;
  double first_node;
  double nodes_per_unit;

  const double* edges;  // of sizes, increasing
  int n_edges;

  double unit;       // one over the lattice step
  double clip_norm;  // in lattice steps, a little below the norm that a record may have: see lattice.hpp

  // Whether a record contributes a matrix.
  constexpr bool is_matrix() const { return output != RegressionOutput::scores && !is_size(); }
  // Whether it contributes an indicator.
  constexpr bool is_size() const {
    return output == RegressionOutput::score_sizes || output == RegressionOutput::curvature_sizes;
  }
  // Sparse records have their linear predictor behind the directions: it is found as they are.
  constexpr int padded_directions() const {
    return (n_directions + (records.is_sparse() ? 1 : 0) + kRowGroup - 1) / kRowGroup * kRowGroup;
  }
  constexpr int released_length() const {
    if (is_matrix()) return n_directions * (n_directions + 1) / 2;
    if (is_size()) return n_edges + 1;
    return n_directions + (scale_weight != 0.0 ? 1 : 0);
  }
  // Sums: whole vectors of each row of the triangle, from the one that holds the diagonal on; or the padded score and
  // eight sums, to be added up, of the scale's coordinate.
  constexpr int triangle_offset(int row) const {
    const int full = row / kRowGroup;  // whole groups of rows before: each is a vector shorter than the one before it
    const int vectors = padded_directions() / kRowGroup;
    return kRowGroup * (kRowGroup * (full * vectors - full * (full - 1) / 2) + row % kRowGroup * (vectors - full));
  }
  constexpr int sums_length() const {
    if (is_size()) return n_edges + 1;
    return is_matrix() ? triangle_offset(padded_directions()) : padded_directions() + kRowGroup;
  }
  // Eight rows of x and of z, one row per lane; z row by row.
  constexpr int scratch_length() const {
    const int features = (n_coef + kRowGroup - 1) / kRowGroup * kRowGroup;
    return kRowGroup * (features + 2 * padded_directions());
  }
};

}  // namespace dpinfer

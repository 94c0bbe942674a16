// What the instruction-set specific kernels compute, and the table through which the rest of the mechanism calls them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mechanism/simd/records.hpp"
#include "mechanism/simd/regression_task.hpp"

namespace dpinfer {

// Up to this many weights, quadrature works on one row per lane, in chunks of so many rows; with more, a chunk no
// longer stays in the fastest cache.
inline constexpr int kMaxNarrowCoef = 24;
inline constexpr int kNarrowChunk = 32;

// How the expectation under q is taken: Gauss-Hermite (or closed form) in the linear predictor, or shared draws.
enum class Expectation { quadrature, draws };

// E_q of functions of the Gaussian noise variance and their derivatives in its (loc, raw_scale); see
// dpinfer.models.glm.DispersionMoments.
struct DispersionMoments {
  double precision, precision_loc, precision_raw, log_variance_loc, log_variance_raw;
};

// One step's public inputs.  Arrays over weights have padded length n_pad (a multiple of eight, zero beyond n_coef).
//
// The preconditioned gradient of one record's loss, in lattice steps, is for weight j
//   loc:  x_j c1 loc_scale[j] + loc_offset[j]              c1 = -E f'(eta)
//   raw:  x_j^2 c2 raw_scale[j] + raw_offset[j]            c2 = -E f''(eta)          (quadrature: Bonnet, Price)
//   raw:  x_j (-sum_k f'(eta_k) z_kj) raw_scale[j] + raw_offset[j]                   (draws: reparameterised)
// followed, for a Gaussian likelihood, by the gradients of the noise variance's two variational parameters.
struct GradientTask {
  Records records;
  Likelihood likelihood;
  Expectation expectation;
  int n_coef;
  int n_pad;
  bool has_raw;  // false for aligned gradients: the loc-gradient only, at one draw
  bool has_dispersion;
  bool has_offset;         // whether any offset is not zero
  bool uniform_loc_scale;  // whether loc_scale[0 ... n_coef) are equal

  const double* loc;       // quadrature: mean of the weights
  const double* variance;  // quadrature: variance of the weights
  const double* nodes;     // quadrature: E f(Z) = sum weights f(nodes), Z standard normal
  const double* node_weights;
  int n_nodes;

  const double* draws;     // draws: theta_k, n_draws x n_pad
  const double* standard;  // draws: z_k, n_draws x n_pad
  int n_draws;
  const double* draw_precision;     // draws, Gaussian: 1 / variance_k
  const double* draw_log_slope;     // draws, Gaussian: d log variance / d rho at draw k
  const double* draw_standard_rho;  // draws, Gaussian: z_k of rho

  const double* loc_scale;
  const double* loc_offset;
  const double* raw_scale;
  const double* raw_offset;

  DispersionMoments moments;
  double dispersion_loc_scale, dispersion_loc_offset;
  double dispersion_raw_scale, dispersion_raw_offset;

  double clip_norm;  // in lattice steps, a little below max_grad_norm: see lattice.hpp

  // Length of a preconditioned gradient in its padded layout: [loc | raw | dispersion loc, dispersion raw, 0 ...].
  int gradient_length() const { return n_pad * (has_raw ? 2 : 1) + (has_dispersion ? kRowGroup : 0); }
  // Whether rows are short enough to be worked on eight at a time, one per lane.
  bool is_narrow() const { return expectation == Expectation::quadrature && n_coef <= kMaxNarrowCoef; }
  // Whether a gradient is its row's coordinates times factors that they share.
  bool is_factored() const { return expectation == Expectation::quadrature && !has_offset; }
  // Coordinates of a gradient without padding, as narrow rows keep them: [loc | raw | dispersion loc, dispersion raw].
  int narrow_coordinates() const { return 2 * (n_coef + (has_dispersion ? 1 : 0)); }
  // How many sums clipped_rows adds to.  Narrow: eight, to be added up, for each coordinate.  Otherwise one for each
  // place of the padded layout.
  int sums_length() const { return is_narrow() ? kRowGroup * narrow_coordinates() : gradient_length(); }
  // Doubles of scratch that clipped_rows needs.
  int scratch_length() const {
    if (is_narrow()) return kRowGroup * n_pad + kNarrowChunk * narrow_coordinates();
    return kRowGroup * (n_pad + gradient_length() + n_draws);
  }
};

// One step's public inputs for records whose gradient is affine in a few sufficient statistics t:
//   preconditioned gradient in lattice steps = matrix t + offset.
struct AffineTask {
  int length;            // of a gradient, at most kMaxAffineLength
  int n_statistics;      // at most kMaxStatistics
  const double* matrix;  // length x n_statistics
  const double* offset;  // length
  double clip_norm;      // in lattice steps
};
inline constexpr int kMaxAffineLength = 64;
inline constexpr int kMaxStatistics = 32;

struct KernelTable {
  const char* name;
  // ChaCha20 keystream blocks counter, counter + 1, ... in the order of RFC 8439; out holds 64 * n_blocks bytes.
  void (*chacha20_blocks)(const std::uint32_t key[8], const std::uint32_t nonce[3], std::uint32_t counter,
                          std::size_t n_blocks, std::uint8_t* out);
  // Bit i % 64 of at_most[i / 64] says whether bytes[i] <= limit, of equal[i / 64] whether they are equal; n is a
  // multiple of 64.
  void (*threshold_masks)(const std::uint8_t* bytes, std::size_t n, std::uint8_t limit, std::uint64_t* at_most,
                          std::uint64_t* equal);
  // Writes first + i for every bit i of the n masks that is set, in increasing order; returns how many.  `rows` holds
  // 64 n.
  int (*list_rows)(const std::uint64_t* masks, int n, std::int64_t first, std::int64_t* rows);
  // Box-Muller: words[2i], words[2i + 1] give normals[2i], normals[2i + 1]; n_pairs is a multiple of eight.
  void (*box_muller)(const std::uint64_t* words, std::size_t n_pairs, double* normals);
  // The same times stddev, rounded.  Bit i % 64 of unsure[i / 64] says that rounded[i] may not be the integer nearest
  // to what the exact transform gives of some real numbers that begin with these words.
  void (*round_normals)(const std::uint64_t* words, std::size_t n_pairs, double stddev, std::int64_t* rounded,
                        std::uint64_t* unsure);
  // Adds the clipped, rounded gradients of rows[0 ... count) to `sums` (two's complement, wrapping).  The rows listed
  // from there up to `available` are fetched ahead.  A row whose gradient is not finite adds zero.
  void (*clipped_rows)(const GradientTask& task, const std::int64_t* rows, int count, int available, double* scratch,
                       std::uint64_t* sums);
  // The same for gradients affine in sufficient statistics, given statistic by statistic (n_statistics x kRowGroup).
  void (*affine_rows)(const AffineTask& task, const double* statistics, int count, std::uint64_t* sums);
  // Scales one record's contribution to lattice steps, clips it to `clip_norm` steps, rounds it and adds it to `sums`;
  // one that is not finite adds zero.  `values` is overwritten; `length` is a multiple of eight.
  void (*clipped_vector)(double* values, int length, double inverse_step, double clip_norm, std::uint64_t* sums);
  // Adds the clipped, rounded scores or matrices of rows[0 ... count); see RegressionTask.
  void (*regression_rows)(const RegressionTask& task, const std::int64_t* rows, int count, double* scratch,
                          std::uint64_t* sums);
  // Without privacy: adds a contribution clipped to `max_norm` (infinity for none); one that is not finite adds zero.
  void (*plain_vector)(const double* values, int length, double max_norm, double* sums);
};

// The table for this processor: the widest variant it runs, or the one named by the environment variable DPINFER_SIMD
// ("portable", "avx2", "avx512"); nullptr when that variable names a variant that is not there.
const KernelTable* kernel_table();

// The table of a named variant, or nullptr when this build or this processor does not have it.
const KernelTable* kernel_table(const char* name);

}  // namespace dpinfer

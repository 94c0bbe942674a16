// Moments of a Bayesian network with one hidden ReLU layer for one record, forward and backward (probabilistic
// back-propagation, Hernandez-Lobato and Adams, 2015), and the table of the instruction-set specific kernels.
//
//   hidden    g_h = sum_j W_jh x_j / sqrt(d + 1),  a_h = max(g_h, 0)           (x_d = 1: the bias)
//   output    f = (sum_h w_h a_h + w_H) / sqrt(H + 1),  y ~ N(f, noise variance)
//
// Every weight has an independent Gaussian.  g_h is then exactly Gaussian, the a_h are independent, and the mean and
// variance of f are exact; only the density of y given them is approximated, by a Gaussian (docs/derivations/
// dp-sep-network.md).
#pragma once

#include <limits>

namespace dpinfer {

// Arrays over weights are padded rows of `pad` (a multiple of eight, zero beyond n_hidden): d + 1 rows of the hidden
// layer, the output layer's row, and eight places that begin with the output's bias.
struct NetworkShape {
  int n_features;  // d
  int n_hidden;    // H
  int pad;

  static NetworkShape of(int n_features, int n_hidden) { return {n_features, n_hidden, (n_hidden + 7) / 8 * 8}; }
  int n_rows() const { return n_features + 2; }
  int n_params() const { return n_rows() * n_hidden + 1; }
  int padded_length() const { return n_rows() * pad + 8; }
  int bias_place() const { return n_rows() * pad; }
};

enum class NetworkOutput {
  site,     // of the weights, centred at the cavity's mean: eta_weight a t, site_weight b t with t = 1 / (1 - v b)
  gradient  // of E_q log p(y | weights), which is in closed form: mean_scale dm, variance_scale dv
};

struct NetworkTask {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  NetworkShape shape;
  NetworkOutput output = NetworkOutput::site;
  double hidden_scale = 1.0;  // 1 / sqrt(d + 1), or 1
  double output_scale = 1.0;  // 1 / sqrt(H + 1), or 1
  const double* mean = nullptr;
  const double* variance = nullptr;
  double noise_variance = 1.0;
  double noise_weight = 0.0;   // what the noise variance's statistic is multiplied by
  double noise_limit = kNone;  // at most so much of the weighted statistic

  // Sites.
  double eta_weight = 1.0;
  double site_weight = 1.0;  // of the precisions
  double site_norm = kNone;  // what the weights' block is clipped to beforehand

  // Gradients; padded.
  const double* mean_scale = nullptr;
  const double* variance_scale = nullptr;

  // One record: [a of every weight | b of every weight | the noise variance's statistic], without padding.
  int length() const { return 2 * shape.n_params() + 1; }
  int scratch_length() const { return 10 * shape.pad + 8; }
};

struct NetworkKernelTable {
  const char* name;
  // Writes task.length() numbers; `scratch` holds task.scratch_length().
  void (*contribution)(const NetworkTask& task, const double* x, double y, double* scratch, double* out);
};

// As kernel_table (kernel_table.hpp).
const NetworkKernelTable* network_kernel_table();
const NetworkKernelTable* network_kernel_table(const char* name);

}  // namespace dpinfer

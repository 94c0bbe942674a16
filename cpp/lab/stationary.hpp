// Stationary covariance of the noisy gradient recursion, for one Hessian or a batch of them.
//
// Legend: A the Hessian (n, n) or its diagonal (n,), S of them; l learning rates (n,), all positive; kappa the sampling
// rate; tau noise standard deviations (n,).  The recursion x' = x - l (kappa A x + tau eta) has the covariance V of
//     discrete     M V + V M' - M V M' = D,      M = kappa diag(l) A,  D = diag((l tau)^2),
//     continuous   M V + V M' = D                (the Ornstein-Uhlenbeck process that takes one step per unit of time).
// With L = diag(sqrt(l)) and V = L Y L this is the same equation for S = kappa L A L and E = diag(l tau^2), and S is
// symmetric where A is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lab/inverse_kernels.hpp"
#include "lab/lapack.hpp"
#include "lab/lyapunov_kernels.hpp"

namespace dpinfer::lab {

enum class StationaryStatus : std::uint8_t { kOk, kUnstable, kNotConverged, kOutOfMemory };

struct StationaryKernels {
  const InverseKernels* inverse;
  const LyapunovKernels* lyapunov;
};

// Of the widest instruction set that this processor has, or of the one named by the environment variable DPINFER_SIMD;
// nullptr when that is not there.
const StationaryKernels* stationary_kernels();

// Of a named instruction set, or nullptr when this build or this processor does not have it.
const StationaryKernels* stationary_kernels(const char* name);

struct StationaryBatch {
  std::span<const double> hessian;  // (S, n) or (S, n, n), row-major
  std::span<const double> rate;     // (n,) or (S, n)
  std::span<const double> noise;    // (n,) or (S, n)
  double sample_rate;
  std::size_t count;  // S
  std::size_t width;  // n
  bool discrete;
};

struct MatrixCheck {
  bool finite;
  bool symmetric;  // each equals its transpose
};

// Of `count` matrices (n, n), in one pass.
MatrixCheck check_matrices(std::span<const double> matrices, std::size_t count, std::size_t n, int threads);

// Variances (S, n) of diagonal Hessians: tau^2 l / (kappa a (2 - l kappa a)), or without the last term.
void stationary_diagonal(const StationaryBatch& batch, int threads, std::span<double> out,
                         std::span<StationaryStatus> status);

// Covariances (S, n, n) of symmetric Hessians.  Where l tau^2 is the same e for every coordinate,
// Y = (e / 2)(S^-1 + (2 - S)^-1), by two Cholesky factorisations; both are positive definite exactly where the
// recursion is stable.  Otherwise in the eigenbasis of S.  Small ones in groups (stationary_groups.hpp).
StationaryStatus stationary_symmetric(const Lapack& lapack, const StationaryKernels& kernels,
                                      const StationaryBatch& batch, int threads, std::span<double> out,
                                      std::span<StationaryStatus> status);

// Covariances (S, n, n) of any Hessians, by the real Schur form; the discrete equation becomes the continuous one of
// N = (I - S/2)^-1 S and (I - S/2)^-1 E (I - S/2)^-T.  Small ones in groups.
StationaryStatus stationary_general(const Lapack& lapack, const StationaryKernels& kernels,
                                    const StationaryBatch& batch, int threads, std::span<double> out,
                                    std::span<StationaryStatus> status);

}  // namespace dpinfer::lab

// Dense matrices of a few rows, row-major: factorisations that report failure instead of throwing.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

namespace dpinfer {

// Lower Cholesky factor of a symmetric n x n matrix, in place (what is above the diagonal is left); false when it is
// not positive definite.
inline bool cholesky(double* a, std::size_t n) {
  for (std::size_t j = 0; j < n; ++j) {
    double pivot = a[j * n + j];
    for (std::size_t k = 0; k < j; ++k) pivot -= a[j * n + k] * a[j * n + k];
    if (!(pivot > 0.0) || !std::isfinite(pivot)) return false;
    const double root = std::sqrt(pivot);
    a[j * n + j] = root;
    for (std::size_t i = j + 1; i < n; ++i) {
      double value = a[i * n + j];
      for (std::size_t k = 0; k < j; ++k) value -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = value / root;
    }
  }
  return true;
}

// Inverse of L L' into `inverse` (n x n), from its lower factor L.
inline void inverse_from_cholesky(const double* factor, std::size_t n, double* inverse) {
  for (std::size_t column = 0; column < n; ++column) {
    for (std::size_t i = 0; i < n; ++i) {
      double value = i == column ? 1.0 : 0.0;
      for (std::size_t k = 0; k < i; ++k) value -= factor[i * n + k] * inverse[k * n + column];
      inverse[i * n + column] = value / factor[i * n + i];
    }
    for (std::size_t i = n; i-- > 0;) {
      double value = inverse[i * n + column];
      for (std::size_t k = i + 1; k < n; ++k) value -= factor[k * n + i] * inverse[k * n + column];
      inverse[i * n + column] = value / factor[i * n + i];
    }
  }
}

// Solves A X = B in place (A: n x n, overwritten; B: n x m), by elimination with partial pivoting; false when A is
// singular or a number is not finite.
inline bool solve(double* a, double* b, std::size_t n, std::size_t m) {
  for (std::size_t j = 0; j < n; ++j) {
    std::size_t pivot = j;
    for (std::size_t i = j + 1; i < n; ++i) {
      if (std::abs(a[i * n + j]) > std::abs(a[pivot * n + j])) pivot = i;
    }
    const double value = a[pivot * n + j];
    if (!std::isfinite(value) || value == 0.0) return false;
    if (pivot != j) {
      for (std::size_t k = 0; k < n; ++k) std::swap(a[j * n + k], a[pivot * n + k]);
      for (std::size_t k = 0; k < m; ++k) std::swap(b[j * m + k], b[pivot * m + k]);
    }
    for (std::size_t i = j + 1; i < n; ++i) {
      const double factor = a[i * n + j] / value;
      for (std::size_t k = j; k < n; ++k) a[i * n + k] -= factor * a[j * n + k];
      for (std::size_t k = 0; k < m; ++k) b[i * m + k] -= factor * b[j * m + k];
    }
  }
  for (std::size_t j = n; j-- > 0;) {
    for (std::size_t k = 0; k < m; ++k) {
      double value = b[j * m + k];
      for (std::size_t i = j + 1; i < n; ++i) value -= a[j * n + i] * b[i * m + k];
      b[j * m + k] = value / a[j * n + j];
    }
  }
  return true;
}

}  // namespace dpinfer

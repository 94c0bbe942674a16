"""Divergences between Gaussian posteriors with and without clipping and noise: exact ones, and the published bound."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval

__all__ = [
    "ExpectedDivergence",
    "clipped_divergence",
    "divergence_bound",
    "expected_divergence",
    "gaussian_divergence",
]


def gaussian_divergence(
    eta_q: npt.ArrayLike, precision_q: npt.ArrayLike, eta_p: npt.ArrayLike, precision_p: npt.ArrayLike
) -> float:
    """Return KL(q || p) of two Gaussians in natural parameters (eta = precision mean).

    **Privacy.** Arithmetic on its arguments.

    Parameters
    ----------
    eta_q, eta_p : (d,) float64
    precision_q, precision_p : (d, d) float64
        Symmetric, positive definite.

    Returns
    -------
    float
        In nats, at least 0.

    Raises
    ------
    ValueError
        If shapes disagree or a precision is not positive definite.

    Notes
    -----
    1/2 (tr(P_p S_q) + (m_p - m_q)' P_p (m_p - m_q) - d + log det P_q - log det P_p), through Cholesky factors.

    Examples
    --------
    >>> gaussian_divergence([0.0], [[1.0]], [1.0], [[1.0]])
    0.5
    """
    eta_q, precision_q = _natural("q", eta_q, precision_q)
    eta_p, precision_p = _natural("p", eta_p, precision_p)
    if eta_p.size != eta_q.size:
        raise ValueError(f"eta_p must have the length of eta_q, {eta_q.size}, got {eta_p.size}")
    factor_q, factor_p = _cholesky("q", precision_q), _cholesky("p", precision_p)
    gap = np.linalg.solve(precision_p, eta_p) - np.linalg.solve(precision_q, eta_q)
    ratio = np.linalg.solve(factor_q, factor_p)
    log_ratio = 2.0 * float(np.sum(np.log(np.diag(factor_q))) - np.sum(np.log(np.diag(factor_p))))
    value = 0.5 * (float(np.sum(ratio**2)) + float(np.sum((factor_p.T @ gap) ** 2)) - eta_q.size + log_ratio)
    return max(value, 0.0)


def clipped_divergence(eta: npt.ArrayLike, precision: npt.ArrayLike, max_norm: float) -> tuple[float, float]:
    """Return KL(q || p) for p with q's eta and precision each clipped to `max_norm`: exact, and as published.

    **Privacy.** Arithmetic on its arguments.

    Parameters
    ----------
    eta : (d,) float64
    precision : (d, d) float64
        Symmetric, positive definite.
    max_norm : float
        Positive; for eta in the Euclidean norm, for the precision in the Frobenius norm.

    Returns
    -------
    exact, published : float
        The published formula differs where the precision is clipped: its trace term is d times the clipping factor,
        where it must be divided by it, and the norm in its logarithm is that of the covariance.

    Raises
    ------
    ValueError
        If shapes disagree or the precision is not positive definite.

    Notes
    -----
    Vinaroz and Park (2021), appendix A.  With c = max(1, ||Lambda||_F / C), a = max(1, ||eta|| / C) and b = c / a - 1,

        exact      1/2 (d / c + b^2 / c eta' Lambda^-1 eta - d + d log c)
        published  1/2 (d c   + b^2 / c eta' Lambda^-1 eta - d + d log max(1, ||Lambda^-1||_F / C))

    Examples
    --------
    >>> exact, published = clipped_divergence([0.0], [[2.0]], 1.0)
    >>> round(exact, 4), round(published, 4)
    (0.0966, 0.5)
    """
    eta, precision = _natural("q", eta, precision)
    norm = check_interval("max_norm", max_norm, 0.0)
    _cholesky("q", precision)
    d = eta.size
    c = max(1.0, float(np.linalg.norm(precision)) / norm)
    a = max(1.0, float(np.linalg.norm(eta)) / norm)
    quadratic = (c / a - 1.0) ** 2 / c * float(eta @ np.linalg.solve(precision, eta))
    exact = 0.5 * (d / c + quadratic - d + d * math.log(c))
    spread = max(1.0, float(np.linalg.norm(np.linalg.inv(precision))) / norm)
    return max(exact, 0.0), 0.5 * (d * c + quadratic - d + d * math.log(spread))


@dataclass(frozen=True)
class ExpectedDivergence:
    """A Monte Carlo estimate of E KL(q || p) over the privacy noise in p.

    Parameters
    ----------
    mean, standard_error : float
        Of the divergence.
    shifted_share : float
        Share of draws with a precision that was shifted until it was positive definite.
    """

    mean: float
    standard_error: float
    shifted_share: float


def expected_divergence(
    eta: npt.ArrayLike,
    precision: npt.ArrayLike,
    noise_stddev: float,
    *,
    least_eigenvalue: float,
    always_shift: bool = False,
    n_draws: int = 1000,
    seed: int = 0,
) -> ExpectedDivergence:
    """Return the Monte Carlo expectation of KL(q || p), p = q with Gaussian noise in its natural parameters.

    **Privacy.** Arithmetic on its arguments.

    Parameters
    ----------
    eta : (d,) float64
    precision : (d, d) float64
        Symmetric, positive definite.
    noise_stddev : float
        Of every coordinate of eta and of every entry of the precision's upper triangle (mirrored), at least 0.
    least_eigenvalue : float
        rho, positive: the precision is shifted by a multiple of the identity until its least eigenvalue is rho.
    always_shift : bool
        Whether the shift is made, up or down, for every draw (definition 4.2 of the paper), or, by default, only if
        the least eigenvalue is below rho (as an implementation would do).
    n_draws : int
        At least 2.

    Raises
    ------
    ValueError
        If shapes disagree or the precision is not positive definite.

    Notes
    -----
    Vinaroz and Park (2021), definitions 4.1 and 4.2.

    Examples
    --------
    >>> result = expected_divergence([1.0, 0.0], np.eye(2), 0.01, least_eigenvalue=0.1)
    >>> result.mean < 1e-3, result.shifted_share
    (True, 0.0)
    """
    eta, precision = _natural("q", eta, precision)
    stddev = check_interval("noise_stddev", noise_stddev, 0.0, low_open=False)
    rho = check_interval("least_eigenvalue", least_eigenvalue, 0.0)
    n_draws = check_integer("n_draws", n_draws, 2)
    rng = np.random.default_rng(check_integer("seed", seed, 0))
    _cholesky("q", precision)
    d = eta.size
    values, shifted = np.empty(n_draws), 0
    for draw in range(n_draws):
        noise = np.triu(stddev * rng.standard_normal((d, d)))
        noisy = precision + noise + np.triu(noise, 1).T
        least = float(np.linalg.eigvalsh(noisy)[0])
        if always_shift or least < rho:
            noisy = noisy + (rho - least) * np.eye(d)
            shifted += least < rho
        values[draw] = gaussian_divergence(eta, precision, eta + stddev * rng.standard_normal(d), noisy)
    return ExpectedDivergence(
        float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(n_draws)), shifted / n_draws
    )


def divergence_bound(
    eta: npt.ArrayLike, precision: npt.ArrayLike, noise_stddev: float, *, least_eigenvalue: float, spread: float
) -> tuple[float, float]:
    """Return the bound of Theorem 4.1 as printed, and the probability with which it is claimed.

    Not a guarantee: the proof diagonalises sums of matrices that commute only by chance, its step
    lambda_i(Lambda + E + A) / lambda_i(Lambda) in place of the eigenvalues of the product.  Compare with
    :func:`expected_divergence`.

    **Privacy.** Arithmetic on its arguments.

    Parameters
    ----------
    eta : (d,) float64
    precision : (d, d) float64
        Symmetric, positive definite.
    noise_stddev : float
        sigma_1 = sigma_2, at least 0.
    least_eigenvalue : float
        rho, positive.
    spread : float
        M, positive.

    Returns
    -------
    bound, probability : float
        The bound is NaN where a logarithm in it has a negative argument; the claimed probability may be negative.

    Raises
    ------
    ValueError
        If shapes disagree or the precision is not positive definite.

    Notes
    -----
    Vinaroz and Park (2021), Theorem 4.1, with v(E) = d sigma_2^2: the series of E has a matrix e_i e_i' for each
    diagonal entry and e_i e_j' + e_j e_i' for each pair, whose squares sum to d times the identity. The fifth term is
    printed with a a', an outer product: the inner product a'a of the proof is taken.

    Examples
    --------
    >>> bound, probability = divergence_bound([1.0, 0.0], np.eye(2), 0.0, least_eigenvalue=1.0, spread=1e-9)
    >>> abs(bound) < 1e-6, probability
    (True, 1.0)
    """
    eta, precision = _natural("q", eta, precision)
    stddev = check_interval("noise_stddev", noise_stddev, 0.0, low_open=False)
    rho = check_interval("least_eigenvalue", least_eigenvalue, 0.0)
    m = check_interval("spread", spread, 0.0)
    _cholesky("q", precision)
    d = eta.size
    eigenvalues, vectors = np.linalg.eigh(precision)
    least = float(eigenvalues[0])
    variance = d * stddev**2
    expected = math.sqrt(2.0 * variance * math.log(d))
    shift = -least + expected + rho
    h = 1.0 + (-2.0 * m - least + rho) / eigenvalues
    big_h = 1.0 + (2.0 * m - least + rho) / eigenvalues
    ratio = (h + big_h - 1.0 + (least + expected - rho) / eigenvalues) / (h * big_h)
    b = (vectors.T @ eta) / np.sqrt(eigenvalues)
    a = np.linalg.solve(precision, eta)
    logs = float(np.sum(np.log(ratio))) if np.all(ratio > 0.0) else math.nan
    terms = (
        shift * float(np.sum(1.0 / eigenvalues))
        + stddev**2 / least * float(np.sum(ratio))
        + float(np.sum(b**2 * ratio))
        - float(eta @ a)
        + float(a @ a) * shift
        + logs
    )
    probability = 1.0 if variance == 0.0 else 1.0 - d * math.exp(-(m**2) / (2.0 * variance))
    return 0.5 * terms, probability


def _natural(name: str, eta: npt.ArrayLike, precision: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    vector = check_float_array(f"eta of {name}", eta, (None,))
    if vector.size == 0:
        raise ValueError(f"eta of {name} must have at least one entry, got none")
    matrix = check_float_array(f"precision of {name}", precision, (vector.size, vector.size))
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=0.0):
        raise ValueError(f"precision of {name} must be symmetric")
    return vector, matrix


def _cholesky(name: str, precision: FloatArray) -> FloatArray:
    try:
        return np.asarray(np.linalg.cholesky(precision))
    except np.linalg.LinAlgError:
        raise ValueError(f"precision of {name} must be positive definite") from None

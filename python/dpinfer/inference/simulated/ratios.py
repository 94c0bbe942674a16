"""Ratio of the slope of the records' mean score to that of simulated records: the effect of the features."""

import math

import numpy as np

from dpinfer._arrays import FloatArray

_LEVEL_SPREAD = 0.25  # the prior of the level, N(1, 1/4 squared) (docs/derivations/any-model.md)
_LEAST_SPREAD = 0.02  # of the deviations: 2%, so that a release with little noise is not taken as exact
_LEAST_EIGENVALUE = 0.15  # of a ratio, relative to its level: it stays positive definite
_LEAST_SHARE = 0.05  # of a slope's eigenvalues, relative to their mean, as in `own_model`


def ratio_draws(
    released: FloatArray, simulated: FloatArray, stddev: float, size: int, rng: np.random.Generator
) -> FloatArray:
    """Draw the matrix R with released = R simulated, near the identity.

    Parameters
    ----------
    released, simulated : (n, n) arrays
        Symmetric slopes; the simulated one is positive definite, or held so.
    stddev : float
        Of the noise in the diagonal of `released`; beside it 1 / sqrt(2) of that.

    Returns
    -------
    (size, n, n) array

    Notes
    -----
    In coordinates in which the simulated slope is the identity: a level with a normal prior (mean 1, standard deviation
    1/4), and deviations from it with a spread that is learned, less the part that noise alone exceeds with probability
    1/6.
    """
    n = len(simulated)
    eigenvalues, eigenvectors = np.linalg.eigh(simulated)
    eigenvalues = np.maximum(eigenvalues, _LEAST_SHARE * float(np.mean(np.abs(eigenvalues))))
    inverse = (eigenvectors / np.sqrt(eigenvalues)) @ eigenvectors.T
    root = (eigenvectors * np.sqrt(eigenvalues)) @ eigenvectors.T
    ratio = inverse @ released @ inverse
    noise = stddev * float(np.mean(1.0 / eigenvalues))
    mean = float(np.trace(ratio)) / n
    level_variance = 1.0 / (_LEVEL_SPREAD**-2 + n / noise**2)
    level = level_variance * (_LEVEL_SPREAD**-2 + n * mean / noise**2)
    variance = np.where(np.eye(n) > 0.0, noise**2, 0.5 * noise**2)
    deviation = ratio - mean * np.eye(n)
    free = max(0.5 * n * (n + 1) - 1.0, 1.0)
    hidden = float(np.mean(variance)) * (1.0 + math.sqrt(2.0 / free))
    energy = max(float(np.sum(deviation**2)) / n**2 - hidden, _LEAST_SPREAD**2)
    share = energy / (energy + variance)
    upper = np.triu(rng.standard_normal((size, n, n)))
    symmetric = upper + np.triu(upper, 1).swapaxes(1, 2)
    levels = level + math.sqrt(level_variance) * rng.standard_normal(size)
    drawn = levels[:, None, None] * np.eye(n) + share * deviation + np.sqrt(share * variance) * symmetric
    values, vectors = np.linalg.eigh(drawn)
    bounded = np.maximum(values, _LEAST_EIGENVALUE * max(level, _LEVEL_SPREAD))
    return np.asarray(root @ (vectors * bounded[:, None, :]) @ vectors.swapaxes(1, 2) @ inverse)

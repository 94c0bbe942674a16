"""The normal scale mixture behind Laplace noise: the step of a Gibbs sampler that makes the noise Gaussian."""

import numpy as np

from dpinfer._arrays import FloatArray

__all__ = ["draw_noise_variance", "draw_prior_noise_variance"]


def draw_prior_noise_variance(scale: FloatArray, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Draw variances v ~ Exponential with mean ``2 scale**2``: N(0, v) noise is then Laplace(scale)."""
    return np.asarray(2.0 * scale**2 * rng.standard_exponential(shape))


def draw_noise_variance(residual: FloatArray, scale: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw the variances of Laplace noise, given the noise.

    **Privacy.** Post-processing; reads no records.

    Parameters
    ----------
    residual : (..., s) float64
        The noise, ``z - s``.
    scale : (s,) or (..., s) float64
        Laplace scale b, positive.
    rng : numpy.random.Generator

    Returns
    -------
    (..., s) float64
        v with ``1 / v ~ InverseGaussian(mean 1 / (b |residual|), shape 1 / b**2)``.

    Notes
    -----
    Park and Casella (2008); used by Bernstein and Sheldon (2018).  The transformation of Michael, Schucany and Haas
    (1976) is written for v itself: with y a squared standard normal and r = |residual|, its two roots are
    ``A = b r + b**2 y / 2 + sqrt((b**2 y / 2)**2 + b**3 r y)``, taken with probability ``A / (A + b r)``, and
    ``(b r)**2 / A``.  Nothing cancels, and r = 0 needs no care.
    """
    product = scale * np.abs(residual)
    half = 0.5 * scale**2 * rng.standard_normal(residual.shape) ** 2
    root = product + half + np.sqrt(half * (half + 2.0 * product))
    first = rng.random(residual.shape) * (root + product) <= root
    return np.asarray(np.where(first, root, product**2 / np.maximum(root, 1e-300)))

"""Privacy curves by other routes than the package's: high precision, quadrature, and grids without tilting."""

import math

import mpmath
import numpy as np
from scipy import special

mpmath.mp.dps = 40


def _mass_above(threshold, mean):
    return mpmath.ncdf(mpmath.mpf(mean) - threshold)


def gaussian_delta(shift, epsilon):
    """Balle and Wang (2018), Theorem 8, in 40 digits."""
    shift, epsilon = mpmath.mpf(shift), mpmath.mpf(epsilon)
    return mpmath.ncdf(shift / 2 - epsilon / shift) - mpmath.exp(epsilon) * mpmath.ncdf(-shift / 2 - epsilon / shift)


def remove_delta(shift, rate, epsilon):
    """Hockey-stick divergence of (1 - q) N(0, 1) + q N(mu, 1) from N(0, 1), for every real epsilon, in 40 digits."""
    shift, rate, epsilon = mpmath.mpf(shift), mpmath.mpf(rate), mpmath.mpf(epsilon)
    inside = (mpmath.exp(epsilon) - (1 - rate)) / rate
    if inside <= 0:
        return 1 - mpmath.exp(epsilon)
    threshold = shift / 2 + mpmath.log(inside) / shift
    mixed = (1 - rate) * _mass_above(threshold, 0) + rate * _mass_above(threshold, shift)
    return mixed - mpmath.exp(epsilon) * _mass_above(threshold, 0)


def add_delta(shift, rate, epsilon):
    """The same with the two exchanged, from H_a(Q, P) = 1 - a + a H_(1/a)(P, Q)."""
    epsilon = mpmath.mpf(epsilon)
    return 1 - mpmath.exp(epsilon) + mpmath.exp(epsilon) * remove_delta(shift, rate, -epsilon)


def subset_delta(shift, rate, epsilon):
    """Zhu, Dong and Wang (2022): amplification by sampling without replacement, for every real epsilon."""
    epsilon, rate = mpmath.mpf(epsilon), mpmath.mpf(rate)
    if epsilon < 0:
        return 1 - mpmath.exp(epsilon) + mpmath.exp(epsilon) * subset_delta(shift, rate, -epsilon)
    return rate * gaussian_delta(shift, mpmath.log(1 + (mpmath.exp(epsilon) - 1) / rate))


ONE_STEP = {"remove": remove_delta, "add": add_delta, "subset": subset_delta}


def _remove_loss(shift, rate, noise):
    return np.logaddexp(np.log1p(-rate), np.log(rate) + shift * noise - 0.5 * shift**2)


def _curve(shift, rate, epsilon, direction):
    """delta(epsilon) of one step for an array of real epsilons, in double precision."""
    sign = 1.0 if direction == "remove" else -1.0
    inside = (np.exp(sign * epsilon) - (1.0 - rate)) / rate
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = np.where(inside > 0.0, 0.5 * shift + np.log(np.maximum(inside, 1e-300)) / shift, -np.inf)
    near, far = special.ndtr(-threshold), special.ndtr(shift - threshold)
    remove = (1.0 - rate) * near + rate * far - np.exp(sign * epsilon) * near
    if direction == "remove":
        return remove
    return 1.0 - np.exp(epsilon) + np.exp(epsilon) * remove


def two_step_delta(shift, rate, epsilon, direction):
    """Composition of two steps: the one-step curve averaged over the first step's loss, by Gauss-Legendre panels."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(-9.0, shift + 9.0, 1001)
    half = 0.5 * np.diff(edges)[:, None]
    noise = (0.5 * (edges[1:] + edges[:-1]))[:, None] + half * nodes
    density = np.exp(-0.5 * noise**2)
    loss = _remove_loss(shift, rate, noise)
    if direction == "remove":
        density = (1.0 - rate) * density + rate * np.exp(-0.5 * (noise - shift) ** 2)
    else:
        loss = -loss
    values = density / math.sqrt(2.0 * math.pi) * _curve(shift, rate, epsilon - loss, direction)
    return float(np.sum(half * weights * values))

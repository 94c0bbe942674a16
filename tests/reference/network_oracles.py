"""Probabilistic back-propagation for one hidden ReLU layer in plain NumPy, straight from the formulas.

The moments of a rectified Gaussian follow Hernandez-Lobato and Adams (2015), eqs. 16-17, through the ratio of density
and distribution function; derivatives are finite differences.
"""

import numpy as np
from scipy import special


def rectified_moments(mean, variance):
    """Mean and variance of max(g, 0), g ~ N(mean, variance)."""
    sd = np.sqrt(variance)
    alpha = mean / sd
    log_cdf = special.log_ndtr(alpha)
    log_ratio = -0.5 * alpha**2 - 0.5 * np.log(2 * np.pi) - log_cdf
    ratio = np.where(alpha > -30, np.exp(log_ratio), -alpha - 1 / alpha + 2 / alpha**3)
    cdf, other = np.exp(log_cdf), special.ndtr(-alpha)
    inner = mean + sd * ratio
    activation = cdf * inner
    return activation, activation * inner * other + cdf * variance * (1 - ratio * (ratio + alpha))


def split(weights, d, hidden):
    """The hidden layer (d + 1, H), the output layer (H,) and its bias."""
    return weights[: (d + 1) * hidden].reshape(d + 1, hidden), weights[(d + 1) * hidden : -1], weights[-1]


def output_moments(mean, variance, x, hidden, hidden_scale=None, output_scale=None):
    """Mean and variance of the network's output at one x."""
    d = x.size
    first = 1 / np.sqrt(d + 1) if hidden_scale is None else hidden_scale
    second = 1 / np.sqrt(hidden + 1) if output_scale is None else output_scale
    W, w, bias = split(mean, d, hidden)
    V, v, bias_variance = split(variance, d, hidden)
    z = np.append(x, 1.0)
    a, va = rectified_moments(first * (z @ W), first**2 * (z**2 @ V))
    f = second * (w @ a + bias)
    return f, second**2 * (v @ (va + a**2) + w**2 @ va + bias_variance)


def log_evidence(mean, variance, noise_variance, x, y, hidden):
    """log of the Gaussian approximation of p(y | x)."""
    f, s = output_moments(mean, variance, x, hidden)
    total = s + noise_variance
    return -0.5 * np.log(2 * np.pi * total) - 0.5 * (y - f) ** 2 / total


def expected_log_likelihood(mean, variance, noise_variance, x, y, hidden, scales=(None, None)):
    """E_q log N(y; f(x), noise_variance)."""
    f, s = output_moments(mean, variance, x, hidden, *scales)
    return -0.5 * np.log(2 * np.pi * noise_variance) - 0.5 * ((y - f) ** 2 + s) / noise_variance


def numeric_gradient(function, mean, variance):
    """d function / d(mean, variance) by central differences of four points."""
    gradients = []
    for which in (0, 1):
        gradient = np.empty(mean.size)
        for k in range(mean.size):
            point = (mean, variance)[which]
            step = 1e-3 * (1.0 if which == 0 else point[k])

            def at(offset, which=which, k=k, point=point):
                moved = point.copy()
                moved[k] += offset
                return function(moved, variance) if which == 0 else function(mean, moved)

            gradient[k] = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
        gradients.append(gradient)
    return gradients


def centred_sites(mean, variance, d_mean, d_variance):
    """(a, b) / (1 - v b), a = d log Z / dm, b = a^2 - 2 d log Z / dv: the sites of each weight, centred at `mean`."""
    b = d_mean**2 - 2 * d_variance
    left = 1 - variance * b
    factor = np.where(left > 1e-6, 1 / np.where(left > 1e-6, left, 1.0), 0.0)
    return d_mean * factor, b * factor


def tilted_gamma(shape, rate, residual, spread):
    """Shape and rate of the gamma with the moments of gamma(shape, rate) N(residual; 0, spread + E noise)."""

    def log_z(a):
        variance = spread + rate / (a - 1)
        return -0.5 * np.log(variance) - 0.5 * residual**2 / variance

    z0, z1, z2 = log_z(shape), log_z(shape + 1), log_z(shape + 2)
    new_shape = 1 / (np.exp(z2 - 2 * z1 + z0) * (shape + 1) / shape - 1)
    new_rate = 1 / (np.exp(z2 - z1) * (shape + 1) / rate - np.exp(z1 - z0) * shape / rate)
    return new_shape, new_rate


class SequentialPass:
    """ADF (share 0, step 1), SEP (share 1 / N, step gamma / N) and EP (own sites, step 1), record by record."""

    def __init__(
        self, eta, precision, prior_precision, gamma, prior_gamma, hidden, n_records=0, clip=np.inf, weight=1.0
    ):
        self.eta, self.precision = eta.copy(), precision.copy()
        self.prior_precision = prior_precision
        self.gamma, self.prior_gamma = np.array(gamma, dtype=float), np.array(prior_gamma, dtype=float)
        self.hidden, self.clip, self.weight = hidden, clip, weight
        self.sites = np.zeros((n_records, 2, eta.size)) if n_records else None
        self.gamma_sites = np.zeros((n_records, 2)) if n_records else None

    def update(self, i, x, y, share, step):
        """Work in record i; the derivatives of log Z are finite differences."""
        if self.sites is None:
            own_eta, own_precision = share * self.eta, share * (self.precision - self.prior_precision)
            own_gamma = share * (self.gamma - self.prior_gamma)
        else:
            (own_eta, own_precision), own_gamma = self.sites[i].copy(), self.gamma_sites[i].copy()
        precision = self.precision - own_precision
        mean, variance = (self.eta - own_eta) / precision, 1 / precision
        shape, rate = self.gamma - own_gamma

        def evidence(m, v):
            return log_evidence(m, v, rate / (shape - 1), x, y, self.hidden)

        a, b = centred_sites(mean, variance, *numeric_gradient(evidence, mean, variance))
        norm = np.sqrt(np.sum(a**2) + np.sum((self.weight * b) ** 2))
        factor = min(1.0, self.clip / norm)
        a, b = factor * a, factor * b
        self.eta += step * (a + mean * b - own_eta)
        self.precision += step * (b - own_precision)
        f, s = output_moments(mean, variance, x, self.hidden)
        site_gamma = np.array(tilted_gamma(shape, rate, y - f, s)) - (shape, rate)
        self.gamma += step * (site_gamma - own_gamma)
        if self.sites is not None:
            self.sites[i] = (own_eta + step * (a + mean * b - own_eta), own_precision + step * (b - own_precision))
            self.gamma_sites[i] = own_gamma + step * (site_gamma - own_gamma)

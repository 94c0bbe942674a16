"""Per-record DPVI gradients written from the formulas in float64 NumPy, one record at a time."""

import numpy as np
from scipy import special


def softplus(x):
    return np.logaddexp(0.0, x)


def slopes(likelihood, eta, y, precision=1.0):
    """First and second derivative of log p(y | eta)."""
    if likelihood == "logistic":
        p = special.expit(eta)
        return y - p, -p * (1.0 - p)
    if likelihood == "probit":
        sign = 2.0 * y - 1.0
        t = sign * eta
        ratio = np.exp(-0.5 * t * t - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(t))
        return sign * ratio, -ratio * (t + ratio)
    if likelihood == "poisson":
        rate = np.exp(eta)
        return y - rate, -rate
    return precision * (y - eta), np.full_like(eta, -precision)


def gauss_hermite(n):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / np.sqrt(2.0 * np.pi)


def quadrature_gradient(likelihood, x, y, loc, raw, n_nodes=64):
    """Gradient of -E_q[log p(y | x, theta)] in (loc, raw), by Bonnet and Price; rho comes last if Gaussian."""
    n_coef = x.size
    s, slope = softplus(raw), special.expit(raw)
    m = x @ loc[:n_coef]
    v = (x**2) @ (s[:n_coef] ** 2)
    nodes, weights = gauss_hermite(n_nodes)
    precision = 1.0
    extra_loc, extra_raw = [], []
    if likelihood == "gaussian":
        rho = loc[-1] + s[-1] * nodes
        variance, d1 = softplus(rho), special.expit(rho)
        precision = weights @ (1.0 / variance)
        square = (y - m) ** 2 + v
        # d/d rho of E over the weights, then the chain rule of rho = loc + s z under the expectation.
        slope_rho = 0.5 * d1 / variance - 0.5 * d1 / variance**2 * square
        extra_loc = [weights @ slope_rho]
        extra_raw = [weights @ (slope_rho * nodes) * slope[-1]]
    first, second = slopes(likelihood, m + np.sqrt(v) * nodes, y, precision)
    g_loc = -(weights @ first) * x
    g_raw = -(weights @ second) * x**2 * s[:n_coef] * slope[:n_coef]
    return np.concatenate((g_loc, extra_loc, g_raw, extra_raw))


def draws_gradient(likelihood, x, y, loc, raw, z):
    """Reparameterised gradient of -log p averaged over the draws theta_k = loc + s z_k."""
    n_coef = x.size
    s, slope = softplus(raw), special.expit(raw)
    total = np.zeros(2 * loc.size)
    for draw in z:
        theta = loc + s * draw
        gradient = np.zeros(loc.size)
        precision = 1.0 / softplus(theta[-1]) if likelihood == "gaussian" else 1.0
        eta = x @ theta[:n_coef]
        gradient[:n_coef] = -slopes(likelihood, np.array(eta), y, precision)[0] * x
        if likelihood == "gaussian":
            variance, d1 = softplus(theta[-1]), special.expit(theta[-1])
            gradient[-1] = 0.5 * d1 / variance - 0.5 * d1 / variance**2 * (y - eta) ** 2
        total += np.concatenate((gradient, gradient * draw * slope))
    return total / len(z)


def clip(gradient, norm):
    length = np.linalg.norm(gradient)
    return gradient * min(1.0, norm / length) if length > 0 else gradient

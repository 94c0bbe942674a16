"""Four models that a user might bring, in NumPy: gradient, log-likelihood, sampler by uniforms, made-up features.

Negative binomial with unknown dispersion, censored Weibull, ordinal logistic, logistic with group effects.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer.models import from_gradient

N_GROUPS = 8


def correlated(size, rng, n_features, rho=0.5):
    X = rng.standard_normal((size, n_features))
    for column in range(1, n_features):
        X[:, column] = rho * X[:, column - 1] + np.sqrt(1.0 - rho**2) * X[:, column]
    return X


def columns(*parts):
    return np.concatenate([part if part.ndim == 2 else part[:, None] for part in parts], axis=1)


# Negative binomial: mean exp(intercept + X coef), variance mean + mean**2 / size


def nb_parts(params, X):
    return params[0] + np.sum(X * params[1:-1], axis=1), params[-1]


def nb_log_likelihood(params, X, y):
    eta, size = nb_parts(params, X)
    constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
    return constant + size * np.log(size) + y * eta - (size + y) * np.logaddexp(np.log(size), eta)


def nb_gradient(params, X, y):
    eta, size = nb_parts(params, X)
    mean = np.exp(eta)
    slope = (y - mean) * size / (size + mean)
    in_size = special.digamma(y + size) - special.digamma(size) + np.log(size) + 1.0
    in_size += -np.log(size + mean) - (size + y) / (size + mean)
    return columns(slope, X * slope[:, None], in_size)


def nb_sampler(params, X, u, most=100_000):
    """Inversion: counts up until the distribution function passes u."""
    eta, size = nb_parts(params, X)
    mean = np.exp(np.minimum(eta, 12.0))
    density = np.exp(-size * np.log1p(mean / size))
    ratio = mean / (size + mean)
    y, left, open_rows = np.zeros(len(X)), u[:, 0] - density, np.flatnonzero(u[:, 0] > density)
    for count in range(1, most):
        if not open_rows.size:
            break
        density[open_rows] *= ratio[open_rows] * (size + count - 1.0) / count
        left[open_rows] -= density[open_rows]
        y[open_rows] = count
        open_rows = open_rows[left[open_rows] > 0.0]
    return y


# Weibull, log time = intercept + X coef + log(exponential) / shape, censored at the time in the last column of X


def weibull_parts(params, X):
    return params[0] + np.sum(X[:, :-1] * params[1:-1], axis=1), params[-1], X[:, -1]


def weibull_log_likelihood(params, X, y):
    eta, shape, limit = weibull_parts(params, X)
    z = shape * (np.log(y) - eta)
    return (y < limit) * (np.log(shape) - np.log(y) + z) - np.exp(z)


def weibull_gradient(params, X, y):
    eta, shape, limit = weibull_parts(params, X)
    event, log_time = (y < limit) * 1.0, np.log(y) - eta
    hazard = np.exp(shape * log_time)
    in_eta = shape * (hazard - event)
    return columns(in_eta, X[:, :-1] * in_eta[:, None], event * (1.0 / shape + log_time) - hazard * log_time)


def weibull_sampler(params, X, u):
    eta, shape, limit = weibull_parts(params, X)
    time = np.exp(np.clip(eta + np.log(-np.log(u[:, 0])) / shape, -60.0, 60.0))
    return np.minimum(time, limit)


def weibull_features(size, rng, rho=0.0):
    return columns(correlated(size, rng, 4, rho), np.full(size, 2.0))


# Ordinal: P(y > k) = sigmoid(X coef - cut_k), cuts = first, first + gap_1, first + gap_1 + gap_2; y in 0 ... 3


def ordinal_cuts(params):
    return np.cumsum(params[4:])


def ordinal_edges(params, X, y):
    eta = np.sum(X * params[:4], axis=1)
    edges = np.concatenate(([-np.inf], ordinal_cuts(params), [np.inf]))
    level = np.clip(y, 0, 3).astype(int)
    return eta, edges[level] - eta, edges[level + 1] - eta, level


def ordinal_log_likelihood(params, X, y):
    _, low, high, _ = ordinal_edges(params, X, y)
    gap = np.maximum(high - low, 1e-12)
    inside = np.log(-np.expm1(-gap))
    return np.where(np.isinf(gap), 0.0, inside) + special.log_expit(high) + special.log_expit(-low)


def ordinal_gradient(params, X, y):
    _, low, high, level = ordinal_edges(params, X, y)
    # d/dhigh and d/dlow of log(sigmoid(high) - sigmoid(low))
    gap = np.maximum(high - low, 1e-12)
    share = np.where(np.isinf(gap), 0.0, 1.0 / np.expm1(gap))
    in_high = np.where(level < 3, special.expit(-high) + share, 0.0)
    in_low = np.where(level > 0, -special.expit(low) - share, 0.0)
    cuts = [in_high * (level >= cut) + in_low * (level > cut) for cut in range(3)]
    return columns(-X * (in_high + in_low)[:, None], *cuts)


def ordinal_sampler(params, X, u):
    latent = np.sum(X * params[:4], axis=1) + special.logit(u[:, 0])
    return sum((latent > cut) * 1.0 for cut in ordinal_cuts(params))


# Logistic with group effects: the group is the last column of X


def group_eta(params, X):
    return np.sum(X[:, :3] * params[:3], axis=1) + params[3 + np.clip(X[:, 3], 0, N_GROUPS - 1).astype(int)]


def group_log_likelihood(params, X, y):
    eta = group_eta(params, X)
    return y * eta - np.logaddexp(0.0, eta)


def group_gradient(params, X, y):
    residual = y - special.expit(group_eta(params, X))
    own = X[:, 3, None] == np.arange(N_GROUPS)
    return columns(X[:, :3] * residual[:, None], own * residual[:, None])


def group_sampler(params, X, u):
    return (u[:, 0] < special.expit(group_eta(params, X))) * 1.0


def group_features(size, rng, rho=0.0):
    return columns(correlated(size, rng, 3, rho), rng.integers(0, N_GROUPS, size).astype(float))


# Zero-inflated Poisson without features: a zero is structural with probability sigmoid(zero)


def zip_parts(params, y):
    structural = special.expit(params[0])
    return structural, params[1], structural + (1.0 - structural) * np.exp(-params[1]), y == 0.0


def zip_log_likelihood(params, X, y):
    structural, rate, empty, zero = zip_parts(params, y)
    counted = np.log1p(-structural) + y * np.log(rate) - rate - special.gammaln(y + 1.0)
    return np.where(zero, np.log(empty), counted)


def zip_gradient(params, X, y):
    structural, rate, empty, zero = zip_parts(params, y)
    slope = structural * (1.0 - structural)
    in_zero = np.where(zero, slope * -np.expm1(-rate) / empty, -structural)
    in_rate = np.where(zero, -(1.0 - structural) * np.exp(-rate) / empty, y / rate - 1.0)
    return columns(in_zero, in_rate)


def zip_sampler(params, X, u):
    structural, rate, *_ = zip_parts(params, np.zeros(len(X)))
    rest = np.maximum(u[:, 0] - structural, 0.0) / (1.0 - structural)
    y, density, total = np.zeros(len(X)), np.exp(-rate), np.exp(-rate)
    for count in range(1, 1000):
        if not np.any(rest > total):
            break
        y[rest > total] = count
        density *= rate / count
        total = min(total + density, 1.0)
    return y


# A two-layer network with tanh units and binary responses: as framework_models has it in PyTorch, several times faster

N_HIDDEN = 3


def network_parts(params, X):
    weights, bias, out = params[:6].reshape(N_HIDDEN, 2), params[6:9], params[9:12]
    hidden = [np.tanh(X[:, 0] * row[0] + X[:, 1] * row[1] + shift) for row, shift in zip(weights, bias, strict=True)]
    eta = params[12] + sum(size * unit for size, unit in zip(out, hidden, strict=True))
    return hidden, out, eta


def network_log_likelihood(params, X, y):
    *_, eta = network_parts(params, X)
    return y * eta - np.logaddexp(0.0, eta)


def network_gradient(params, X, y):
    hidden, out, eta = network_parts(params, X)
    residual = y - special.expit(eta)
    inner = [residual * size * (1.0 - unit**2) for size, unit in zip(out, hidden, strict=True)]
    first = [slope * X[:, column] for slope in inner for column in range(2)]
    return columns(*first, *inner, *(residual * unit for unit in hidden), residual)


def network_sampler(params, X, u):
    return (u[:, 0] < special.expit(network_parts(params, X)[2])) * 1.0


@dataclass(frozen=True)
class Example:
    """A model, its features at a given correlation, the indices of its awkward parameters, and its twin in NumPy."""

    model: object
    features: object
    awkward: tuple
    twin: object = None


def negative_binomial():
    model = from_gradient(
        nb_gradient,
        {"intercept": (), "coef": (5,), "size": ()},
        n_features=5,
        log_likelihood=nb_log_likelihood,
        sampler=nb_sampler,
        bijectors={"size": "exp"},
        prior_scale={"intercept": 0.7, "coef": 0.4, "size": 0.7},
        response="count",
        name="negative binomial",
    )
    return Example(model, lambda size, rng, rho=0.5: correlated(size, rng, 5, rho), (6,))


def censored_weibull():
    model = from_gradient(
        weibull_gradient,
        {"intercept": (), "coef": (4,), "shape": ()},
        n_features=5,
        log_likelihood=weibull_log_likelihood,
        sampler=weibull_sampler,
        features=weibull_features,
        bijectors={"shape": "exp"},
        prior_scale={"intercept": 0.7, "coef": 0.6, "shape": 0.5},
        response="positive",
        name="censored Weibull",
    )
    return Example(model, lambda size, rng, rho=0.5: weibull_features(size, rng, rho), (5,))


def ordinal():
    model = from_gradient(
        ordinal_gradient,
        {"coef": (4,), "first_cut": (), "gaps": (2,)},
        n_features=4,
        log_likelihood=ordinal_log_likelihood,
        sampler=ordinal_sampler,
        bijectors={"gaps": "exp"},
        prior_scale={"coef": 1.0, "first_cut": 1.0, "gaps": 0.6},
        response="count",
        name="ordinal",
    )
    return Example(model, lambda size, rng, rho=0.5: correlated(size, rng, 4, rho), (5, 6))


def group_effects():
    model = from_gradient(
        group_gradient,
        {"coef": (3,), "group": (N_GROUPS,)},
        n_features=4,
        log_likelihood=group_log_likelihood,
        sampler=group_sampler,
        features=group_features,
        prior_scale={"coef": 1.0, "group": 0.7},
        response="binary",
        name="group effects",
    )
    return Example(model, lambda size, rng, rho=0.5: group_features(size, rng, rho), tuple(range(3, 3 + N_GROUPS)))


def zero_inflated():
    """Rare counts, of which the share of structural zeros and the rate are hardly told apart: a curved ridge."""
    model = from_gradient(
        zip_gradient,
        {"zero": (), "rate": ()},
        n_features=1,
        log_likelihood=zip_log_likelihood,
        sampler=zip_sampler,
        bijectors={"rate": "exp"},
        prior_mean={"zero": 0.0, "rate": -1.2},
        prior_scale={"zero": 1.5, "rate": 0.7},
        response="count",
        name="zero-inflated",
    )
    return Example(model, lambda size, rng, rho=0.0: rng.standard_normal((size, 1)), (0,))


def network():
    """The prior's mean tells the units apart: their order would not be identified."""
    angles = 2.0 * np.pi * np.arange(N_HIDDEN) / N_HIDDEN
    model = from_gradient(
        network_gradient,
        {"0.weight": (N_HIDDEN, 2), "0.bias": (N_HIDDEN,), "2.weight": (1, N_HIDDEN), "2.bias": (1,)},
        n_features=2,
        log_likelihood=network_log_likelihood,
        sampler=network_sampler,
        prior_mean={
            "0.weight": 1.5 * np.column_stack((np.cos(angles), np.sin(angles))),
            "0.bias": np.zeros(N_HIDDEN),
            "2.weight": np.array([[2.0, -2.0, 2.0]]),
            "2.bias": np.zeros(1),
        },
        prior_scale={"0.weight": 0.3, "0.bias": 0.3, "2.weight": 0.5, "2.bias": 0.5},
        response="binary",
        name="network",
    )
    return Example(model, lambda size, rng, rho=0.0: correlated(size, rng, 2, rho), tuple(range(9)))


# Posteriors that are not near normal at a few hundred records, or whatever their number.
CURVED = {"zero-inflated": zero_inflated, "network": network}

EXAMPLES = {
    "negative binomial": negative_binomial,
    "censored Weibull": censored_weibull,
    "ordinal": ordinal,
    "group effects": group_effects,
}

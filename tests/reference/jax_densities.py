"""The log-likelihoods of own_models.py in JAX, of all records together: for NumPyro's NUTS."""

import jax
from jax import numpy as jnp
from jax.scipy.special import gammaln

from .own_models import N_GROUPS, N_HIDDEN


def bernoulli(eta, y):
    return jnp.sum(y * eta - jnp.logaddexp(0.0, eta))


def negative_binomial(params, X, y):
    eta, size = params[0] + X @ params[1:-1], params[-1]
    constant = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0)
    return jnp.sum(constant + size * jnp.log(size) + y * eta - (size + y) * jnp.logaddexp(jnp.log(size), eta))


def censored_weibull(params, X, y):
    shape, limit = params[-1], X[:, -1]
    z = shape * (jnp.log(y) - params[0] - X[:, :-1] @ params[1:-1])
    return jnp.sum((y < limit) * (jnp.log(shape) - jnp.log(y) + z) - jnp.exp(z))


def ordinal(params, X, y):
    eta, cuts = X @ params[:4], jnp.cumsum(params[4:])
    below = jax.nn.sigmoid(jnp.concatenate((jnp.array([-jnp.inf]), cuts, jnp.array([jnp.inf]))) - eta[:, None])
    level = y.astype(int)[:, None]
    return jnp.sum(jnp.log(jnp.take_along_axis(below, level + 1, 1) - jnp.take_along_axis(below, level, 1)))


def group_effects(params, X, y):
    return bernoulli(X[:, :3] @ params[:3] + params[3:][jnp.clip(X[:, 3], 0, N_GROUPS - 1).astype(int)], y)


def network(params, X, y):
    hidden = jnp.tanh(X @ params[:6].reshape(N_HIDDEN, 2).T + params[6:9])
    return bernoulli(hidden @ params[9:12] + params[12], y)


DENSITIES = {
    "negative binomial": negative_binomial,
    "censored Weibull": censored_weibull,
    "ordinal": ordinal,
    "group effects": group_effects,
    "network": network,
}

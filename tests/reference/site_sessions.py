"""Compiled site sessions and states for tests."""

import numpy as np

from dpinfer.mechanism import _native

KEY = bytes(range(32))


def mixture(points, weights, covariances, norm=3.0, n_threads=1):
    return _native.mixture_sites(
        contribution="site",
        points=points,
        log_weights=np.log(weights),
        covariances=covariances,
        max_site_norm=norm,
        key=KEY,
        n_threads=n_threads,
    )


def binary(features, response, likelihood, intercept=False, norm=3.0, n_threads=1, n_nodes=32):
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return _native.binary_sites(
        features=features,
        response=response,
        intercept=intercept,
        likelihood=likelihood,
        nodes=nodes,
        weights=node_weights / np.sqrt(2.0 * np.pi),
        max_site_norm=norm,
        key=KEY,
        n_threads=n_threads,
    )


def spd(rng, blocks, d, scale):
    root = rng.normal(size=(blocks, d, d))
    return np.ascontiguousarray(scale * (root @ np.swapaxes(root, 1, 2) / d + 0.5 * np.eye(d)))


def set_state(session, loc, cov, centre, weight, neutral=None):
    session.set_state(
        cavity_loc=loc,
        cavity_cov=cov,
        centre=centre,
        neutral=np.zeros(session.length) if neutral is None else neutral,
        block_weight=weight,
    )

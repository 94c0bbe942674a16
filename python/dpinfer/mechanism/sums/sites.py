"""Models whose sites the engine computes: their records as the kernels read them, behind one interface.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism; the others are for audits and for the
methods that are not private.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency
from dpinfer.mechanism import _native
from dpinfer.mechanism.records import load_records
from dpinfer.mechanism.sites.state import Cavity, SitePrior
from dpinfer.mechanism.sums.numpy_sums import EvidenceSession
from dpinfer.mechanism.sums.registry import find_sum, sums
from dpinfer.models import BayesianNeuralNetwork, GaussianMixture, GeneralizedLinearModel, SiteModel


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """Checked records: features (N, p), and responses (N,) for a regression.

    **Privacy.** Holds the records.
    """

    features: FloatArray
    response: FloatArray | None

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """Everything that the kernels read."""
        return (self.features,) if self.response is None else (self.features, self.response)


def check_site_model(model: Any) -> SiteModel:
    """Return the model if its records have sites."""
    if not isinstance(model, SiteModel) or model.site_sum is None:
        network = isinstance(model, BayesianNeuralNetwork)
        raise TypeError(
            f"model must be a mixture or a regression with binary responses, got {type(model).__name__}"
            + ("; for a network call run_network_dp_sep or run_network_sep" if network else "")
        )
    return model


def site_prior(model: SiteModel) -> SitePrior:
    """Return the prior as Gaussian blocks."""
    return SitePrior(model.site_prior_loc, model.prior_scale)


def check_site_records(model: SiteModel, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> SiteRecords:
    """Return the records in the kernels' format, without null records.

    **Privacy.** Reads the records.  Raises, if at all, before the mechanism starts, and names no value and no row.

    Raises TypeError if an array does not hold real numbers, or `y` is missing or superfluous. Raises RecordError if
    shapes disagree, there is no record, a value is not finite, or a response is outside of the model's range.
    """
    features, *response = load_records(model, X, y, adjacency)
    return SiteRecords(np.ascontiguousarray(features, dtype=np.float64), response[0] if response else None)


def open_session(
    model: SiteModel,
    records: SiteRecords,
    *,
    max_site_norm: float,
    key: bytes,
    n_threads: int,
    n_nodes: int,
    temperature: float = 1.0,
) -> _native.SiteSession:
    """Return a compiled session over checked records.

    Parameters
    ----------
    model, records
    max_site_norm : float
        Clipping norm C of a contribution.
    n_threads : int
        0: all cores.
    n_nodes : int
        Gauss-Hermite nodes of the logistic evidence.
    temperature : float
        Factor of the covariances of a mixture.
    """
    opener = find_sum("sites", model.site_sum)
    session: _native.SiteSession = opener(
        model,
        records,
        max_site_norm=max_site_norm,
        key=key,
        n_threads=n_threads,
        rule=_rule(n_nodes),
        temperature=temperature,
    )
    return session


@cache
def _rule(n_nodes: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes, weights / np.sqrt(2.0 * np.pi)


@sums("sites", "mixture")
def _open_mixture(
    model: GaussianMixture, records: SiteRecords, *, temperature: float, rule: Any, **common: Any
) -> _native.SiteSession:
    return _native.mixture_sites(
        contribution="site",
        points=records.features,
        log_weights=model.log_weights,
        covariances=np.ascontiguousarray(model.covariances * temperature),
        **common,
    )


@sums("sites", "binary")
def _open_binary(
    model: GeneralizedLinearModel, records: SiteRecords, *, temperature: float, rule: Any, **common: Any
) -> _native.SiteSession:
    return _native.binary_sites(
        features=records.features,
        response=np.asarray(records.response),
        intercept=model.fit_intercept,
        likelihood=model.likelihood,
        nodes=rule[0],
        weights=rule[1],
        **common,
    )


@sums("sites", "evidence")
def _open_evidence(
    model: GeneralizedLinearModel, records: SiteRecords, *, temperature: float, n_threads: int, **common: Any
) -> EvidenceSession:
    return EvidenceSession(model, records.features, np.asarray(records.response), **common)


def set_cavity(session: _native.SiteSession, cavity: Cavity, block_weight: float) -> None:
    """Give the session the public state of a step."""
    session.set_state(
        cavity_loc=np.ascontiguousarray(cavity.loc),
        cavity_cov=np.ascontiguousarray(cavity.cov),
        centre=cavity.centre,
        neutral=cavity.neutral,
        block_weight=block_weight,
    )


def open_moment_session(
    model: GaussianMixture, points: FloatArray, *, max_site_norm: float, key: bytes, n_threads: int
) -> _native.SiteSession:
    """Return a session whose contributions are a mixture's expected sufficient statistics, for EM."""
    return _native.mixture_sites(
        contribution="moments",
        points=points,
        log_weights=model.log_weights,
        covariances=model.covariances,
        max_site_norm=max_site_norm,
        key=key,
        n_threads=n_threads,
    )


def public_normals(key: bytes, stream: int, size: int) -> FloatArray:
    """Return standard normals of a stream of their own, for starts: knowing them gives no noise away."""
    return _native.monte_carlo_normals(key, stream, size)

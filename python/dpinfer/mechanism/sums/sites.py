"""Models whose sites the engine computes: their records as the kernels read them, behind one interface.

**Privacy.** Sessions hold the records.  Only sums with noise leave the mechanism; the others are for audits and for the
methods that are not private.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency
from dpinfer.mechanism import _native
from dpinfer.mechanism.records import load_records
from dpinfer.mechanism.sites.state import Cavity, SitePrior
from dpinfer.models import BayesianNeuralNetwork, GeneralizedLinearModel, SiteModel
from dpinfer.models.adapters import FRAMEWORK_BLOCK


class EvidenceSession:
    """Sites of a binary regression of any link, by Gauss-Hermite in the linear predictor.

    With Z(m, v) = E p(y | eta), eta ~ N(m, v), and a = d log Z / dm, b = -d^2 log Z / dm^2, taken under the integral,
    the site has precision b / (1 - b v) x x' and the linear term (a + b x'(m - c)) / (1 - b v) x; where 1 - b v is not
    positive, and if anything is not finite, it is the neutral one: docs/derivations/dp-sep.md.

    **Privacy.** Holds the records.  Has the interface of compiled sessions.
    """

    def __init__(
        self,
        model: GeneralizedLinearModel,
        features: FloatArray,  # (N, n_features) float64
        response: FloatArray,  # (N,) float64
        *,
        rule: tuple[FloatArray, FloatArray],  # (nodes, weights)
        max_site_norm: float,
        key: bytes,
    ) -> None:
        self._model, self._features, self._response = model, features, response
        self._rule, self._norm, self._key = rule, max_site_norm, key
        d = model.n_coef
        self._pairs = np.triu_indices(d)
        self._roots = np.where(self._pairs[0] == self._pairs[1], 1.0, np.sqrt(2.0))
        self.length = d + self._roots.size

    def set_state(
        self,
        *,
        cavity_loc: FloatArray,
        cavity_cov: FloatArray,
        centre: FloatArray,
        neutral: FloatArray,
        block_weight: float,
    ) -> None:
        """Take the public state of a step."""
        self._state = (cavity_loc[0], cavity_cov[0], centre[0], neutral, block_weight)

    def poisson_sum(self, step: int, sample_rate: float, noise_multiplier: float) -> FloatArray:
        """Return the noisy sum of the sampled records' clipped sites."""
        rows = _native.poisson_sample(self._key, step, sample_rate, self._features.shape[0])
        total = _native.PartialSum(length=self.length, max_norm=self._norm)
        for first in range(0, rows.size, FRAMEWORK_BLOCK):
            total.add_contributions(self.contributions(rows[first : first + FRAMEWORK_BLOCK]))
        return total.noisy_sum(self._key, step, noise_multiplier)

    def plain_sum(self, max_norm: float) -> FloatArray:
        """Return the sum of all records' sites, clipped to `max_norm`: not private."""
        total = np.zeros(self.length)
        for first in range(0, self._features.shape[0], FRAMEWORK_BLOCK):
            sites = self.contributions(np.arange(first, min(first + FRAMEWORK_BLOCK, self._features.shape[0])))
            norms = np.linalg.norm(sites, axis=1, keepdims=True)
            total += np.sum(sites * np.minimum(1.0, max_norm / np.maximum(norms, 1e-300)), axis=0)
        return total

    def contributions(self, rows: npt.NDArray[np.int64]) -> FloatArray:
        """Return these records' sites before clipping, (B, length): not private."""
        loc, cov, centre, neutral, weight = self._state
        design = self._model._design(np.ascontiguousarray(self._features[rows]))
        with np.errstate(all="ignore"):
            mean = np.sum(design * loc, axis=1)
            spread = [design[:, i] * design[:, j] * cov[i, j] for i in range(loc.size) for j in range(loc.size)]
            variance = np.sum(spread, axis=0)
            first, second = self._slopes(mean, variance, self._response[rows])
            remaining = 1.0 - second * variance
            precision = second / remaining
            linear = (first + second * np.sum(design * (loc - centre), axis=1)) / remaining
            pairs = design[:, self._pairs[0]] * design[:, self._pairs[1]] * (weight * self._roots)
            sites = np.concatenate((design * linear[:, None], pairs * precision[:, None]), axis=1)
            invalid = ~((remaining > 0.0) & np.all(np.isfinite(sites), axis=1))
        sites[invalid] = neutral
        return np.ascontiguousarray(sites)

    def _slopes(self, mean: FloatArray, variance: FloatArray, response: FloatArray) -> tuple[FloatArray, FloatArray]:
        nodes, weights = self._rule
        root = np.sqrt(variance)
        densities, firsts, seconds = [], [], []
        for node in nodes:
            eta = mean + root * node
            slopes = self._model.loss_slopes(eta, response, self._state[0])
            densities.append(self._model.log_density(eta, response))
            firsts.append(-slopes[0])
            seconds.append(-slopes[1])
        most = np.max(densities, axis=0)
        z, z1, z2 = np.zeros((3, mean.size))
        for weight, density, f1, f2 in zip(weights, densities, firsts, seconds, strict=True):
            share = weight * np.exp(density - most)
            z, z1, z2 = z + share, z1 + share * f1, z2 + share * (f2 + f1**2)
        return z1 / z, (z1 / z) ** 2 - z2 / z


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """Checked records: features (N, p), and responses (N,) for a regression."""

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
    """Return the records in the kernels' format, without null records, or the errors of :func:`load_records`.

    **Privacy.** Reads the records.
    """
    features, *response = load_records(model, X, y, adjacency)
    return SiteRecords(np.ascontiguousarray(features, dtype=np.float64), response[0] if response else None)


def open_session(
    model: Any,
    records: SiteRecords,
    *,
    max_site_norm: float,  # clipping norm C of a contribution
    key: bytes,
    n_threads: int,  # 0: all cores
    n_nodes: int,  # Gauss-Hermite nodes of the logistic evidence
    temperature: float = 1.0,  # factor of the covariances of a mixture
) -> _native.SiteSession:
    """Return a session over checked records, of the model's kind of sites: a compiled one, or one with its interface.

    Raises TypeError if no code sums the sites of the model.
    """
    nodes, weights = _rule(n_nodes)
    response = np.asarray(records.response)
    match model.site_sum:
        case "mixture":
            return _native.mixture_sites(
                contribution="site",
                points=records.features,
                log_weights=model.log_weights,
                covariances=np.ascontiguousarray(model.covariances * temperature),
                max_site_norm=max_site_norm,
                key=key,
                n_threads=n_threads,
            )
        case "binary":
            return _native.binary_sites(
                features=records.features,
                response=response,
                intercept=model.fit_intercept,
                likelihood=model.likelihood,
                nodes=nodes,
                weights=weights,
                max_site_norm=max_site_norm,
                key=key,
                n_threads=n_threads,
            )
        case "evidence":
            common: dict[str, Any] = {"rule": (nodes, weights), "max_site_norm": max_site_norm, "key": key}
            return cast("_native.SiteSession", EvidenceSession(model, records.features, response, **common))
    raise TypeError(f"no code sums the sites of models of kind {model.site_sum!r}")


@cache
def _rule(n_nodes: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes, weights / np.sqrt(2.0 * np.pi)


def set_cavity(session: _native.SiteSession, cavity: Cavity, block_weight: float) -> None:
    """Give the session the public state of a step."""
    session.set_state(
        cavity_loc=np.ascontiguousarray(cavity.loc),
        cavity_cov=np.ascontiguousarray(cavity.cov),
        centre=cavity.centre,
        neutral=cavity.neutral,
        block_weight=block_weight,
    )


def public_normals(key: bytes, stream: int, size: int) -> FloatArray:
    """Return standard normals of a stream of their own, for starts: knowing them gives no noise away."""
    return _native.monte_carlo_normals(key, stream, size)


def open_network_session(
    features: FloatArray, response: FloatArray, *, scales: tuple[float, float], **settings: Any
) -> _native.NetworkSession:
    """Return a compiled session; `scales` are the public scales of the hidden and the output weights.

    **Privacy.** The session reads the records.
    """
    hidden, output = scales
    return _native.NetworkSession(
        features=features, response=response, hidden_scale=hidden, output_scale=output, **settings
    )

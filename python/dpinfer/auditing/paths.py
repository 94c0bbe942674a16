"""The production paths that an audit drives: a model, artificial records, and the private sum of one step.

**Privacy.** The records here are simulated; no caller's records are read. The audit runs the code of ``run_dpvi``:
the session's clipping, summing and noise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.auditing import tuning
from dpinfer.mechanism.sites.state import SiteIterate
from dpinfer.mechanism.sources.row_source import RowSource
from dpinfer.mechanism.sums.gradients import GradientSession, SessionSettings, open_gradients
from dpinfer.mechanism.sums.sites import SiteRecords, open_network_session, open_session, set_cavity, site_prior
from dpinfer.models import (
    BetaBinomial,
    ConjugateModel,
    DirichletCategorical,
    GammaExponential,
    GaussianMixture,
    GeneralizedLinearModel,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    SiteModel,
)

Opened: TypeAlias = Callable[[int, float], FloatArray]


@dataclass(frozen=True, eq=False)
class AuditPath:
    """One production path with records that push its sum either way."""

    name: str
    max_norm: float  # clipping norm C; never 1, which would hide a factor of C
    # ``open(records, key, sample_rate, n_threads)`` returns ``release(step, noise_multiplier)``, the released sum
    open: Callable[[FloatArray, bytes, float, int], Opened]
    base: FloatArray  # (m, k) float64: ordinary records
    # plus, minus: (k,) float64: records whose contributions are clipped, to opposite vectors or nearly so
    plus: FloatArray
    minus: FloatArray
    # (k,) float64 or None: a record whose contribution is half the norm, where the path has one at hand
    modest: FloatArray | None = None

    def opposed(self, canary: FloatArray) -> FloatArray:
        """Return fifty records that each pull the sum by C away from where `canary`, plus or minus, pulls it."""
        other = self.minus if canary is self.plus else self.plus
        return np.tile(other, (tuning.TUNING.opposed, 1))

    @property
    def lattice_step(self) -> float:
        """Step of the sums' lattice, 2**(floor(log2 C) - 30)."""
        return math.ldexp(1.0, math.frexp(self.max_norm)[1] - 31)


def _settings(norm: float, key: bytes, rate: float, threads: int, *, aligned: bool = False) -> SessionSettings:
    nodes, weights = np.polynomial.hermite_e.hermegauss(10)
    return SessionSettings(
        aligned=aligned,
        nodes=nodes,
        weights=weights / weights.sum(),
        sample_rate=rate,
        max_grad_norm=norm,
        key=key,
        n_threads=threads,
    )


def _release(session: GradientSession, beta: FloatArray, offset: FloatArray) -> Opened:
    return lambda step, noise: session.noisy_sum(step, beta, offset, noise)


def _glm(
    name: str,
    model: GeneralizedLinearModel,
    norm: float,
    *,
    scale: float = 1.0,
    n_draws: int = 0,
    aligned: bool = False,
    prior_share: float = 0.0,
) -> AuditPath:
    """Return the path of a regression at q = N(0, tiny): the response is fixed, and -x pulls where x does not."""
    n, p = model.n_params, model.n_features
    width = n if aligned else 2 * n
    beta = np.full(width, scale)
    # Of each record's clipped vector; as large as the norm allows to matter, and along the canary's.
    offset = np.zeros(width)
    offset[0] = -prior_share * norm

    def open_path(records: FloatArray, key: bytes, rate: float, threads: int) -> Opened:
        features = np.ascontiguousarray(records[:, :p])
        response = np.ascontiguousarray(records[:, p])
        settings = _settings(norm, key, rate, threads, aligned=aligned)
        session = open_gradients(model, RowSource.of_arrays((features, response)), settings)
        draws = np.full((n_draws, n), 0.1) if n_draws else None
        session.prepare(np.zeros(n), np.full(n, -12.0), draws)
        return _release(session, beta, offset)

    response = 0.0 if model.response == "count" else 1.0
    rng = np.random.default_rng(20)
    base = np.column_stack((rng.normal(size=(20, p)), np.full(20, response)))

    def record(length: float) -> FloatArray:
        return np.concatenate(([length], np.zeros(p - 1), [response]))

    # At zero the logistic gradient in loc is -x / 2; the others' are of that order, so that this saturates them too.
    huge = 2.0 * tuning.TUNING.huge * norm / scale
    has_modest = (
        model.gradient_sum == "glm" and isinstance(model, LogisticRegression) and not n_draws and not prior_share
    )
    modest = record(2.0 * tuning.TUNING.modest * norm / scale) if has_modest else None
    return AuditPath(name, norm, open_path, base, record(huge), record(-huge), modest)


def _conjugate(name: str, model: ConjugateModel, norm: float, plus: float, minus: float, base: FloatArray) -> AuditPath:
    def open_path(records: FloatArray, key: bytes, rate: float, threads: int) -> Opened:
        values = np.ascontiguousarray(records[:, 0])
        session = open_gradients(model, RowSource.of_arrays((values,)), _settings(norm, key, rate, threads))
        n = model.n_params
        session.prepare(np.zeros(n), np.full(n, -3.0), None)
        return _release(session, np.full(2 * n, 4.0), np.zeros(2 * n))

    return AuditPath(name, norm, open_path, base[:, None], np.array([plus]), np.array([minus]))


def _sites(
    name: str,
    model: SiteModel,
    norm: float,
    base: FloatArray,
    plus: FloatArray,
    minus: FloatArray,
    sampling: str = "poisson",
) -> AuditPath:
    """Return the path of DP-SEP at the prior's mean; a regression's records end with the response."""
    weight = 0.1
    iterate = SiteIterate(
        site_prior(model),
        site_prior(model).loc,
        model.expected_site_precision(100),
        n_records=100,
        centred=True,
        isotropic=False,
        block_weight=weight,
        trust_radius=math.inf,
    )
    cavity = iterate.cavity(iterate.used(1.0))

    def open_path(records: FloatArray, key: bytes, rate: float, threads: int) -> Opened:
        p = model.n_features
        features = np.ascontiguousarray(records[:, :p])
        response = None if model.record_form == "points" else np.ascontiguousarray(records[:, p])
        session = open_session(
            model, SiteRecords(features, response), max_site_norm=norm, key=key, n_threads=threads, n_nodes=10
        )
        set_cavity(session, cavity, weight)
        if sampling == "uniform":
            return session.uniform_sum
        if sampling == "permutation":
            return session.permuted_sum
        return lambda step, noise: session.poisson_sum(step, rate, noise)

    return AuditPath(name, norm, open_path, base, plus, minus)


def _network(name: str, norm: float, *, gradient: bool) -> AuditPath:
    """Return the path of a network: sites of DP-SEP, or gradients of variational inference; responses pull the sum."""
    d, hidden = 2, 3
    n = (d + 2) * hidden + 1
    rng = np.random.default_rng(23)
    mean, variance = rng.normal(size=n), np.full(n, 0.1)
    # As in the production run: a quarter of the norm for the noise variance, the rest for the weights.
    share = 0.25

    def open_path(records: FloatArray, key: bytes, rate: float, threads: int) -> Opened:
        session = open_network_session(
            np.ascontiguousarray(records[:, :d]),
            np.ascontiguousarray(records[:, d]),
            n_hidden=hidden,
            scales=(1.0 / math.sqrt(d + 1.0), 1.0 / math.sqrt(hidden + 1.0)),
            sample_rate=rate,
            max_norm=norm,
            key=key,
            n_threads=threads,
        )
        if gradient:
            session.set_gradients(mean, variance, 0.3, np.full(n, 4.0), variance, 0.1)
        else:
            session.set_sites(mean, variance, 0.3, 1.0, 0.4, 0.1, norm * math.sqrt(1.0 - share**2), norm * share)
        return session.noisy_sum

    base = rng.normal(size=(20, d + 1))
    return AuditPath(name, norm, open_path, base, np.array([1.0, 1.0, 1e6]), np.array([1.0, 1.0, -1e6]))


def audit_paths() -> tuple[AuditPath, ...]:
    """Return the paths of an audit: every kernel of the regressions, the conjugate models, sites, and networks."""
    points = np.random.default_rng(22).normal(size=(20, 2))
    return (
        _glm("logistic, quadrature", LogisticRegression(3), 3.0, scale=4.0),
        _glm("logistic, per-example loss", LogisticRegression(3), 0.25, prior_share=0.5),
        _glm("logistic, 40 features", LogisticRegression(40), 0.25, scale=4.0),
        _glm("logistic, draws", LogisticRegression(3), 0.25, n_draws=5),
        _glm("probit, aligned", ProbitRegression(3), 3.0, n_draws=1, aligned=True),
        _glm("linear regression", LinearRegression(3), 0.25),
        _glm("Poisson regression", PoissonRegression(3), 3.0),
        _conjugate("exponential", GammaExponential(), 0.25, 1e6, 0.0, np.linspace(0.1, 3.0, 20)),
        _conjugate("binomial", BetaBinomial(5), 3.0, 5.0, 0.0, np.arange(20.0) % 6.0),
        _conjugate("categorical", DirichletCategorical((1.0,) * 4), 0.25, 0.0, 3.0, np.arange(20.0) % 4.0),
        _binary_sites(3, 0.05),
        _sites("DP-SEP, mixture", GaussianMixture(2, 2), 0.25, points, np.array([50.0, 0.0]), np.array([-50.0, 0.0])),
        _network("DP-SEP, network", 0.25, gradient=False),
        _network("network, gradients", 3.0, gradient=True),
    )


def model_paths(model: GeneralizedLinearModel) -> tuple[AuditPath, ...]:
    """Return the paths of a regression of the caller's: quadrature, draws, aligned, and its sites if it has them."""
    if not isinstance(model, GeneralizedLinearModel) or model.has_dispersion:
        raise TypeError(f"models must be regressions without a noise variance, got {type(model).__name__}")
    name = type(model).__name__
    paths = (
        _glm(f"{name}, quadrature", model, 3.0, scale=4.0),
        _glm(f"{name}, draws", model, 0.25, n_draws=5),
        _glm(f"{name}, aligned", model, 3.0, n_draws=1, aligned=True),
    )
    if model.site_sum is None:
        return paths
    return (*paths, _sites(f"DP-SEP, {name}", model, 0.05, *_binary_records(model.n_features, 24)))


def _binary_sites(n_features: int, norm: float, sampling: str = "poisson") -> AuditPath:
    """Return the path of probit sites."""
    name = "DP-SEP, probit" if sampling == "poisson" else f"DP-SEP, {sampling} draws"
    return _sites(name, ProbitRegression(n_features), norm, *_binary_records(n_features, 21), sampling)


def _binary_records(n_features: int, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ordinary records, and records far out on either side of one feature."""
    rng = np.random.default_rng(seed)
    base = np.column_stack((rng.normal(size=(20, n_features)), np.arange(20.0) % 2.0))
    plus, minus = np.zeros(n_features + 1), np.zeros(n_features + 1)
    plus[[0, -1]], minus[[0, -1]] = (5.0, 1.0), (-5.0, 1.0)
    return base, plus, minus


def sampling_paths() -> tuple[tuple[AuditPath, FloatArray], ...]:
    """Return paths with records whose vectors are linearly independent: a sum then identifies the sample."""
    width = 48
    glm = _glm("logistic", LogisticRegression(width), 3.0)
    rows = np.column_stack((6.0 * np.eye(width), np.ones(width)))
    categories = 24
    categorical = DirichletCategorical((1.0,) * categories)
    conjugate = _conjugate("categorical", categorical, 0.25, 0.0, 1.0, np.arange(float(categories)))
    columns = 12
    directions = np.column_stack((2.0 * np.eye(columns), np.ones(columns)))
    # The last category's vector is a combination of the others': leave it out.
    return (
        (glm, rows),
        (conjugate, np.arange(float(categories - 1))[:, None]),
        (_binary_sites(columns, 0.5), directions),
    )


def draw_paths() -> tuple[tuple[AuditPath, FloatArray, bool], ...]:
    """Return paths with one record a step, their records, and whether each pass is a permutation of them."""
    columns = 12
    directions = np.column_stack((2.0 * np.eye(columns), np.ones(columns)))
    return tuple(
        (_binary_sites(columns, 0.5, sampling), directions, sampling == "permutation")
        for sampling in ("uniform", "permutation")
    )

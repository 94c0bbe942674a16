"""Simulated truths and records of a study's runs, and the release statistics of the mechanism on them."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.errors import BackendUnavailableError
from dpinfer.inference.trace import tuning
from dpinfer.inference.trace.scales.fisher import SideSums, TiedTrace
from dpinfer.inference.trace.statistics import TraceStatistics, merge_segments
from dpinfer.lab import _native
from dpinfer.lab.studies.random_streams import run_generator
from dpinfer.models import ConjugateModel, GeneralizedLinearModel, LinearRegression
from dpinfer.models.base import softplus, softplus_inverse
from dpinfer.recipes import GradientRun

__all__ = ["N_BLOCKS", "N_NODES", "RunData", "RunReleases", "Settings", "simulate_data", "simulate_releases"]

StudyModel = ConjugateModel | GeneralizedLinearModel

N_BLOCKS = 100  # blocks of a trace, for statistics of all burn-ins in one pass
_DATA, _KEYS = 0, 1  # numbers of streams
# Memory of a GPU besides the records of a chunk.
_WORKING_BYTES = 2**28
# Of the Gauss-Hermite rules of a study.
N_NODES = 16


@dataclass(frozen=True, eq=False)
class RunData:
    """Truths and records of k runs.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    truth : (k, n) float64
        On the unconstrained space.
    statistics : (k, N, n) or (values, n) float64
        Sufficient statistics of conjugate models: of each record, or of each distinct value.
    counts : (k, values) int64
        How often each value occurs; (0, 0) for records.
    features, response : (k, N, p), (k, N) float64
        Of regressions; empty otherwise.
    reference_width90 : (k, n) float64
        Width of the 90% interval without privacy; nan where the exact posterior is not known.
    """

    truth: FloatArray
    statistics: FloatArray
    counts: npt.NDArray[np.int64]
    features: FloatArray
    response: FloatArray
    reference_width90: FloatArray


@dataclass(frozen=True)
class Settings:
    """Public settings of a study's mechanism, as the compiled engine takes them."""

    n_steps: int
    n_records: int
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    kind: str
    n_draws: int
    per_example: bool
    fisher: bool
    raw_ratio: float
    excursion: float
    grad_scale: FloatArray
    learning_rate: FloatArray
    schedule: FloatArray
    start: FloatArray

    @classmethod
    def of(cls, run: GradientRun) -> "Settings":
        """Return the settings of a run as the engine takes them: the same recipe that :func:`dpinfer.run_dpvi` runs by.

        Raises
        ------
        ValueError
            If the preconditioner or the rates are functions of the caller's, which the engine cannot call.
        """
        if run.own_functions:
            raise ValueError("grad_scale and learning_rate must not be functions in a study")
        chosen, plan, fisher = run.settings, run.plan, run.fisher
        ones = np.ones(2 * run.model.n_params)
        beta = ones if fisher is not None else run.policy.grad_scale(0, run.start)
        kinds = {"quadrature": "quadrature", "monte_carlo": "draws"}
        return cls(
            n_steps=plan.n_steps,
            n_records=run.n_records,
            sample_rate=plan.sample_rate,
            noise_multiplier=plan.noise_multiplier,
            max_grad_norm=run.max_grad_norm,
            kind="aligned" if chosen.gradient == "aligned" else kinds[chosen.expectation],
            n_draws=chosen.n_draws,
            per_example=chosen.loss == "per_example",
            fisher=fisher is not None,
            raw_ratio=1.0 if chosen.raw_ratio is None else chosen.raw_ratio,
            excursion=1.0 if fisher is None else fisher.excursion,
            grad_scale=beta,
            learning_rate=ones if fisher is not None else run.policy.learning_rate(0, run.start, beta),
            schedule=np.array([1.0 if fisher is None else fisher.rate(step) for step in range(plan.n_steps)]),
            start=run.start,
        )

    @property
    def boundaries(self) -> npt.NDArray[np.int64]:
        """First steps of the blocks of statistics, and the number of steps."""
        return np.linspace(0, self.n_steps, min(N_BLOCKS, self.n_steps) + 1).astype(np.int64)


def simulate_data(model: StudyModel, n_records: int, *, first: int, count: int, seed: int) -> RunData:
    """Draw truths from the prior and records given them, run i from its own generator.

    **Privacy.** Simulated records only.

    Parameters
    ----------
    model : conjugate or generalised linear model
    n_records : int
    first, count, seed : int

    Returns
    -------
    RunData
    """
    n = model.n_params
    truth, width = np.empty((count, n)), np.full((count, n), np.nan)
    grouped = isinstance(model, ConjugateModel) and model.few_values
    regression = isinstance(model, GeneralizedLinearModel)
    n_features = model.n_features if isinstance(model, GeneralizedLinearModel) else 0
    statistics = np.empty((0, n) if grouped or regression else (count, n_records, n))
    features = np.empty((count, n_records, n_features) if regression else (0, 0, 0))
    response = np.empty((count, n_records) if regression else (0, 0))
    tallies = []
    for row in range(count):
        rng = run_generator(seed, _DATA, first + row)
        params = model.sample_prior(1, rng)[0]
        truth[row] = model.unconstrain(params)
        if isinstance(model, GeneralizedLinearModel):
            features[row] = model.simulate_features(n_records, rng, np.square(model.feature_scale))
            response[row] = model.simulate(params, features[row], rng)
            if isinstance(model, LinearRegression):
                width[row] = _regression_width(model, features[row], response[row])
            continue
        if grouped:
            statistics, weights = model.reference_records(truth[row], 0, rng)
            tallies.append(rng.multinomial(n_records, weights / weights.sum()))
            total = tallies[-1] @ statistics
        else:
            statistics[row] = model.sufficient_statistics(model.simulate(params, n_records, rng))
            total = statistics[row].sum(axis=0)
        low, high = model.posterior_from_total(total, n_records).interval(0.9, "unconstrained")
        width[row] = high - low
    counts = np.array(tallies, dtype=np.int64) if tallies else np.empty((0, 0), dtype=np.int64)
    return RunData(truth, np.ascontiguousarray(statistics), counts, features, response, width)


def _regression_width(model: LinearRegression, features: FloatArray, response: FloatArray) -> FloatArray:
    interval = model.exact_posterior(features, response).interval(0.9)
    interval[:, -1] = softplus_inverse(interval[:, -1])
    return np.asarray(interval[1] - interval[0])


@dataclass(frozen=True, eq=False)
class RunReleases:
    """Input of the posteriors from k releases: block by block, or at the end.

    **Privacy.** Of simulated runs, with noise from a seeded generator.

    Parameters
    ----------
    settings : Settings
    blocks : (k, blocks, 6, width) float64
        Statistics of each block of steps: see :class:`dpinfer.inference.trace.statistics.TraceStatistics`.
    side : (k, blocks, 7, n) float64
        Sums of the raw-scale regression (see :class:`dpinfer.inference.trace.scales.fisher.SideSums`; 0 for aligned
        gradients), and of positions and their squares with the weights of the last parameter.
    path : (k, blocks, 2 n) float64
        Mean of the iterates in each block.
    reference : (k, width) float64
        The noise that weight 1 belongs to.
    final_params : (k, 2 n) float64
    finite : (k,) bool
    """

    settings: Settings
    blocks: FloatArray
    side: FloatArray
    path: FloatArray
    reference: FloatArray
    final_params: FloatArray
    finite: npt.NDArray[np.bool_]

    def take(self, row: int) -> "RunReleases":
        """Return the release of one run."""
        part = slice(row, row + 1)
        return replace(
            self,
            blocks=self.blocks[part],
            side=self.side[part],
            path=self.path[part],
            reference=self.reference[part],
            final_params=self.final_params[part],
            finite=self.finite[part],
        )

    def first_block(self, burn_in: float) -> int:
        """Return the block that a share of the steps ends at."""
        blocks: int = self.settings.boundaries.shape[0] - 1
        return round(burn_in * blocks)

    def statistics(self, burn_in: float, width: int) -> TraceStatistics:
        """Return the trace statistics of the first `width` coordinates of every run, run by run."""
        first = self.first_block(burn_in)
        blocks = self.blocks[:, first:, :, :width]
        segments = np.moveaxis(blocks, 0, 2).reshape(*blocks.shape[1:3], -1)
        steps = self.settings.n_steps - int(self.settings.boundaries[first])
        return TraceStatistics(steps, self.reference[:, :width].ravel(), *merge_segments(segments))

    def tied_trace(self, burn_in: float) -> TiedTrace:
        """Return the statistics of the tied posterior, run by run."""
        n = self.side.shape[3]
        first = self.first_block(burn_in)
        aligned = self.settings.kind == "aligned"

        def part(share: float) -> tuple[TraceStatistics, SideSums | None, FloatArray]:
            statistics = self.statistics(share, n)
            sums = np.moveaxis(self.side[:, self.first_block(share) :].sum(axis=1), 1, 0).reshape(7, -1)
            weight = np.repeat(statistics.weight.reshape(-1, n)[:, -1], n)
            side = None if aligned else SideSums(statistics.count, *sums[:5])
            return statistics, side, sums[5:] / weight

        statistics, side, (position, square) = part(burn_in)
        whole_statistics, whole_side, _ = part(min(burn_in, tuning.TUNING.whole_trace))
        scale_square = np.mean(softplus(self.path[:, first:, n:]) ** 2, axis=1).ravel()
        return TiedTrace(
            statistics=statistics,
            side=side,
            scale_square=np.zeros_like(scale_square) if aligned else scale_square,
            last_position=position,
            last_spread=np.sqrt(np.maximum(square - position**2, 0.0)),
            whole_statistics=whole_statistics,
            whole_side=whole_side,
        )


def simulate_releases(
    model: StudyModel, data: RunData, settings: Settings, *, first: int, seed: int, n_threads: int, backend: str = "cpu"
) -> RunReleases:
    """Run the mechanism on every run's records and return the statistics of its releases.

    **Privacy.** Simulated records; the noise comes from keys that depend on (seed, run) only.

    Parameters
    ----------
    model : conjugate or generalised linear model
    data : RunData
    settings : Settings
    first, seed : int
    n_threads : int
        0: as many as there are.  No result depends on it.
    backend : {"cpu", "cuda"}
        Where private sums are made; nor on it.

    Returns
    -------
    RunReleases
    """
    keys = run_keys(seed, first, data.truth.shape[0])
    runs = engine_runs(model, data, settings, keys, n_threads=n_threads, backend=backend)
    return RunReleases(
        settings, runs["blocks"], runs["side"], runs["path"], runs["reference"], runs["final_params"], runs["finite"]
    )


def _cuda_engine(model: StudyModel, data: RunData) -> ModuleType:
    """Return the engine that sums on a GPU.

    Raises
    ------
    BackendUnavailableError
        If the package was built without it, there is no GPU, or its free memory is less than the records need.
    ValueError
        If the model is not a regression.
    """
    if not isinstance(model, GeneralizedLinearModel):
        raise ValueError(f"backend must be 'cpu' for {type(model).__name__}: a GPU sums records of regressions")
    try:
        from dpinfer.lab import _cuda
    except ImportError as error:
        raise BackendUnavailableError(
            "studies on a GPU (backend='cuda') need a build of the package with -DDPINFER_CUDA=ON, and CUDA's library"
        ) from error
    if _cuda.device_count() == 0:
        raise BackendUnavailableError("studies on a GPU (backend='cuda') need a GPU, and CUDA finds none")
    if data.features.nbytes + data.response.nbytes + _WORKING_BYTES > _cuda.free_bytes():
        raise BackendUnavailableError(
            "the records of a chunk need more memory than is free on the GPU: use a smaller chunk_size"
        )
    return _cuda


def run_keys(seed: int, first: int, count: int) -> list[bytes]:
    """Return the keys of simulated runs, each a function of the seed and the run's number."""
    return [run_generator(seed, _KEYS, first + row).bytes(32) for row in range(count)]


def engine_runs(
    model: StudyModel,
    data: RunData,
    settings: Settings,
    keys: list[bytes],
    *,
    n_threads: int,
    keep_trace: bool = False,
    backend: str = "cpu",
) -> dict[str, Any]:
    """Run the compiled mechanism on every run's records, each with its key, and return the engine's result.

    **Privacy.** Simulated records; the keys determine the noise.
    """
    engine = _native if backend == "cpu" else _cuda_engine(model, data)
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    arguments: dict[str, Any] = {
        "settings": dict(vars(settings)),
        "boundaries": settings.boundaries,
        "nodes": nodes,
        "weights": weights / weights.sum(),
        "keys": keys,
        "n_threads": n_threads,
        "keep_trace": keep_trace,
    }
    runs: dict[str, Any]
    if isinstance(model, GeneralizedLinearModel):
        runs = engine.simulate_glm(
            likelihood=model.likelihood,
            features=data.features,
            response=data.response,
            intercept=model.fit_intercept,
            prior_scale=model.prior_scale,
            variance_shape=getattr(model, "variance_shape", 1.0),
            variance_rate=getattr(model, "variance_rate", 1.0),
            second_moments=model.second_moments,
            **arguments,
        )
        return runs
    family, prior, trials = model.engine_family()
    runs = _native.simulate_conjugate(
        family=family, prior=prior, n_trials=trials, statistics=data.statistics, counts=data.counts, **arguments
    )
    return runs

"""DP-SEP for a network: private sums of centred sites of every weight, releasing the whole trace."""

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import (
    as_record_array,
    check_finite,
    check_float_array,
    check_integer,
    check_interval,
    check_layout,
    settings_of,
)
from dpinfer.accounting import Adjacency, LedgerAccount, PrivacyPlan
from dpinfer.mechanism.noise_keys import RandomSource, noise_step
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.mechanism.records import check_arguments, without_null_records
from dpinfer.mechanism.run import Algorithm, check_plan, guarantee_fields, hash_numbers, run_steps
from dpinfer.mechanism.sites import tuning
from dpinfer.mechanism.sources.row_source import Arrays, total_rows
from dpinfer.mechanism.sums.sites import open_network_session
from dpinfer.models import BayesianNeuralNetwork
from dpinfer.models.bayesian_neural_network import output_moments
from dpinfer.release import NetworkRelease
from dpinfer.release.sites.trace import late_steps


class NetworkOptions(TypedDict, total=False):
    """Fields of :class:`NetworkSettings` as keyword arguments."""

    max_site_norm: float
    block_weight: float
    movement: tuple[float, float]
    floor: float
    hidden_start: float
    output_start: float
    start_seed: int
    n_replicas: int


@dataclass(frozen=True)
class NetworkSettings:
    """Public settings of a private run; :meth:`rule` is the one for every data set.

    Everything is in units that do not depend on the data: contributions are scaled by the noise's released standard
    deviation, so that the clipping norm follows the residuals as they shrink.

    **Privacy.** Data-independent, so free.

    Parameters
    ----------
    max_site_norm : float
        Clipping norm C of a contribution.
    block_weight : float
        Weight of the precisions in it, relative to the linear terms.
    movement : (float, float)
        Rate times number of steps, at the first step and the last; linear in between.
    floor : float
        Precisions are used at no less than the prior's plus so many standard deviations of their noise.
    hidden_start, output_start : float
        Standard deviations of the random weights at which a run starts, in the two layers.
    start_seed : int
        Of those weights; public.
    n_replicas : int
        Replicas of the run, which show how far the privacy noise moves predictions: none, or at least 4.

    Examples
    --------
    >>> NetworkSettings.rule(8000, 1.0).max_site_norm
    0.4
    >>> NetworkSettings().rates(300).shape
    (300,)
    """

    max_site_norm: float = 0.4
    block_weight: float = 0.4
    movement: tuple[float, float] = (300.0, 10.0)
    floor: float = 1.0
    hidden_start: float = 0.6
    output_start: float = 0.0
    start_seed: int = 0
    n_replicas: int = tuning.TUNING.replicas

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "max_site_norm", check_interval("max_site_norm", self.max_site_norm, 1e-30, 1e30))
        put(self, "block_weight", check_interval("block_weight", self.block_weight, 0.0))
        first, last = (float(x) for x in check_float_array("movement", self.movement, (2,)))
        put(self, "movement", (check_interval("movement[0]", first, 0.0), check_interval("movement[1]", last, 0.0)))
        put(self, "floor", check_interval("floor", self.floor, 0.0))
        for name in ("hidden_start", "output_start"):
            put(self, name, check_interval(name, getattr(self, name), 0.0, low_open=False))
        put(self, "start_seed", check_integer("start_seed", self.start_seed, 0))
        if check_integer("n_replicas", self.n_replicas, 0) in (1, 2, 3):
            raise ValueError(f"n_replicas must be 0 or at least 4, got {self.n_replicas}")

    @classmethod
    def rule(cls, n_records: int, epsilon: float) -> "NetworkSettings":
        """Return the settings for a public number of records and a privacy target.

        With more signal, N epsilon, less of it is clipped away, and q may move further before noise accumulates. The
        forms were chosen on simulated data; results on three of the benchmark's sets prompted revisions of them:
        docs/dp-sep-network.md.

        **Privacy.** Reads no records.
        """
        n_records = check_integer("n_records", n_records, 1)
        signal = n_records * check_interval("epsilon", epsilon, 0.0) / tuning.TUNING.signal
        root = math.sqrt(signal)
        norm = cls.max_site_norm * min(max(root, 1.0), 2.0)
        speed = max(signal, 0.1) if signal < 1.0 else min(root, 4.0 / 3.0)
        return cls(
            max_site_norm=norm,
            block_weight=cls.block_weight * min(1.0, max(root, 0.25), cls.max_site_norm / norm),
            movement=(cls.movement[0] * speed, cls.movement[1] * speed),
        )

    def rates(self, n_steps: int) -> FloatArray:
        """Return the rate r of each step, (n_steps,), at most 0.9."""
        return np.minimum(np.linspace(*self.movement, n_steps) / n_steps, 0.9)


def network_plan_arguments(n_records: int) -> dict[str, Any]:
    """Return the rule's ``sample_rate`` and ``n_steps`` for :func:`dpinfer.plan_privacy`, from the public N.

    About 300 records a step, at least 2% of them: a smaller share would cost noise, a larger one only time.  Steps are
    many because parallel updates of correlated weights are stable only when each is small.

    **Privacy.** Reads no records.

    Examples
    --------
    >>> network_plan_arguments(6000)
    {'sample_rate': 0.05, 'n_steps': 2000}
    """
    n_records = check_integer("n_records", n_records, 1)
    return {"sample_rate": min(1.0, max(0.02, 300.0 / n_records)), "n_steps": 2000}


@standard_arithmetic()
def run_network_dp_sep(
    model: BayesianNeuralNetwork,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    plan: PrivacyPlan,
    n_records: int,
    settings: NetworkSettings | None = None,
    start: npt.ArrayLike | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[NetworkOptions],
) -> NetworkRelease:
    """Run DP-SEP for a Bayesian network and release its whole trace.

    A step takes one shared site out of q, computes for each sampled record the sites of all weights by probabilistic
    back-propagation, relative to the cavity's mean, clips the record's vector, sums on an integer lattice and adds
    Gaussian noise.  The mean moves by a rate r times the noisy sum of linear terms divided by the precision; the
    precision moves to the prior's plus the noisy sum of the sites' precisions.

    **Privacy.** Reads the records.  Adjacency: that of `plan` (add/remove one record).  The L2 sensitivity of each sum
    is at most C = ``settings.max_site_norm`` for any record (docs/derivations/dp-sep-network.md); the noise is
    that of the sum itself, so no convention about damping can lower it.  The release is (epsilon,
    delta)-differentially private with the plan's numbers.  Bad records are refused before the first step, in which
    case nothing is drawn; once it has started, the mechanism never raises because of a record, and a record whose
    contribution is not finite contributes zero.  The noise precision's statistic is a coordinate of the same vector;
    the weights' prior precision is fixed.

    Raises RecordError if the records cannot be used, or are not those of the interrupted run. Raises CheckpointError if
    `checkpoint` is of a run with other settings, is in use, or is not a checkpoint.

    Parameters
    ----------
    model : BayesianNeuralNetwork
        Its scales must be public.
    X : (N, n_features) array
    y : (N,) array
    plan : PrivacyPlan
        With Poisson sampling; :func:`network_plan_arguments` gives the rule's sampling rate and number of steps.
    n_records : int
        A *public* number of records.
    settings : NetworkSettings, optional
        ``NetworkSettings.rule(n_records, plan.epsilon)`` by default; with an infinite epsilon, that of 10.
    start : (n,) array, optional
        Weights at which to start; must not depend on the records.  By default random ones of
        ``settings.start_seed``.
    n_threads, progress, ledger, random_source, checkpoint
        As in :func:`dpinfer.run_dpvi`.
    **options
        Fields of :class:`NetworkSettings`, such as ``start_seed=1``: they replace those of `settings`.

    Returns
    -------
    NetworkRelease
        :func:`dpinfer.inference.network_posterior` makes predictions of it.

    Notes
    -----
    Vinaroz and Park (2021), Algorithm 3, with Poisson-sampled minibatches and centred sites; Hernandez-Lobato and Adams
    (2015) for the moments.  The noise precision's gamma site has the shape 1/2 of its Gaussian limit, and as rate half
    the second moment of the residual under the tilted distribution, which stays bounded where the published moment
    matching of the gamma would not.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2)); y = np.maximum(X[:, 0], 0.0) - X[:, 1]
    >>> plan = dpi.plan_privacy(target_epsilon=5.0, target_delta=1e-5, sample_rate=0.2, n_steps=20)
    >>> release = run_network_dp_sep(BayesianNeuralNetwork(2, 10), X, y, plan=plan, n_records=500)
    >>> release.noisy_sums.shape
    (20, 83)
    """
    if not isinstance(model, BayesianNeuralNetwork):
        raise TypeError(f"model must be a BayesianNeuralNetwork, got {type(model).__name__}")
    check_arguments(model, y, X)
    n_records = check_plan(plan, n_records)
    if settings is None:
        settings = NetworkSettings.rule(n_records, min(plan.epsilon, 10.0))
    settings = settings_of("run_network_dp_sep", NetworkSettings, settings, options)
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    if start is None:
        loc = model.start_loc(settings.start_seed, hidden=settings.hidden_start, output=settings.output_start)
    else:
        loc = check_float_array("start", start, (model.n_params,)).copy()
    make = partial(_NetworkSites, model, plan, settings, loc, n_records)
    run = make()
    charged = run_steps(run, plan, control, lambda: check_network_records(model, X, y, plan.adjacency))
    release = NetworkRelease(
        **run.trace(),
        noise_stddev=plan.noise_multiplier * settings.max_site_norm,
        sample_rate=plan.sample_rate,
        n_records=n_records,
        prior_precision=model.prior_precision,
        names=model.names,
        max_site_norm=settings.max_site_norm,
        noise_multiplier=plan.noise_multiplier,
        model_spec=model.to_dict(),
        settings=charged
        | {
            "block_weight": settings.block_weight,
            "movement": list(settings.movement),
            "floor": settings.floor,
            "start_seed": None if start is not None else settings.start_seed,
        },
        **guarantee_fields(plan, control),
    )
    return _with_replicas(release, model, [make() for _ in range(settings.n_replicas)], control)


def _with_replicas(
    release: NetworkRelease, model: BayesianNeuralNetwork, runs: Sequence["_NetworkSites"], control: RunControl
) -> NetworkRelease:
    """Return the release with replicas of its run: the same steps on records that the released network makes up.

    Features are standard normal, responses the network's mean plus its noise.  A replica's noise need not be secret.

    **Privacy.** Post-processing of a release: no record is read.
    """
    if not runs:
        return release
    rng = np.random.default_rng(list(hashlib.sha256(release.loc[-1].tobytes()).digest()))
    rows = min(release.n_records, max(tuning.TUNING.replica_rows, 2 * round(release.sample_rate * release.n_records)))
    X = rng.standard_normal((rows, model.n_features))
    mean, _ = output_moments(model, release.loc[-1], 1.0 / release.used_precision[-1], X)
    noise = np.empty(len(runs))
    try:
        for number, run in enumerate(runs):
            y = mean + math.sqrt(release.late_noise) * rng.standard_normal(rows)
            # Of fewer rows more are sampled: the sum over a step's sample stays that over the run's.
            run.start((X, y), control, rng.bytes(32), rate=release.sample_rate * release.n_records / rows)
            with np.errstate(all="ignore"):
                for step in range(release.n_steps):
                    run.update(step, run.query(step))
            noise[number] = run.kept["noise"][late_steps(release.n_steps)].mean()
    except (KeyboardInterrupt, MemoryError) as error:  # the run is paid for: its release is not lost
        warnings.warn(f"{type(error).__name__} in a replica: the release has none", RuntimeWarning, stacklevel=3)
        return release
    return release.replace(replica_loc=np.array([run.state["next_loc"] for run in runs]), replica_noise=noise)


class _NetworkSites(Algorithm[Arrays]):
    """Centred sites of all weights: the public arithmetic around their noisy sums."""

    mechanism = "dp_sep"
    _model: BayesianNeuralNetwork

    def __init__(
        self,
        model: BayesianNeuralNetwork,
        plan: PrivacyPlan,
        settings: NetworkSettings,
        loc: FloatArray,
        n_records: int,
    ) -> None:
        self._model, self._plan, self._settings, self.n_records = model, plan, settings, n_records
        self._start = loc
        self._rates = settings.rates(plan.n_steps)
        norm = settings.max_site_norm
        self._site_norm = norm * math.sqrt(1.0 - tuning.TUNING.noise_norm**2)
        self._noise_norm = norm * tuning.TUNING.noise_norm
        self._sum_stddev = plan.noise_multiplier * norm / plan.sample_rate
        n, steps = model.n_params, plan.n_steps
        self.kept = {
            "loc": np.empty((steps, n)),
            "precision": np.empty((steps, n)),
            "noise": np.empty(steps),
            "floor": np.empty(steps),
            "sums": np.empty((steps, 2 * n + 1)),
            "weights": np.empty((steps, 3)),
        }
        noise = tuning.TUNING.start_noise
        self.state = _state(loc, np.full(n, self._floor(noise, self._rates[0], 0.0)), noise, 0.0)

    def description(self) -> Mapping[str, Any]:
        settings = asdict(self._settings)
        del (
            settings["start_seed"],
            settings["n_replicas"],
        )  # the start itself contains the one; no sum depends on the other
        return {
            "model": self._model.to_dict(),
            "n_records": self.n_records,
            "settings": settings,
            "start": hash_numbers(self._start),
        }

    def start(self, records: Arrays, control: RunControl, key: bytes, rate: float | None = None) -> None:
        self._key = key
        self._session = open_network_session(
            *records,
            n_hidden=self._model.n_hidden,
            scales=(self._model.hidden_scale, self._model.output_scale),
            sample_rate=self._plan.sample_rate if rate is None else min(rate, 1.0),
            max_norm=self._settings.max_site_norm,
            key=key,
            n_threads=control.n_threads,
        )

    def _weights(self, noise: float) -> tuple[float, float, float]:
        """Return the factors of the linear terms, precisions and noise statistic of a contribution."""
        return (
            math.sqrt(noise),
            self._settings.block_weight * noise,
            tuning.TUNING.noise_weight * self._settings.max_site_norm / noise,
        )

    def _floor(self, noise: float, rate: float, accumulated: float) -> float:
        """Return the least precision used: prior plus deviations of its noise, stationary at `rate` or accumulated."""
        stationary = self._sum_stddev / (self._settings.block_weight * noise) * math.sqrt(0.5 * rate)
        return self._model.prior_precision + self._settings.floor * max(stationary, math.sqrt(accumulated))

    def query(self, step: int) -> FloatArray:
        loc, precision, noise, accumulated = _unpacked(self.state)
        self._used_floor = self._floor(noise, self._rates[step], accumulated)
        self._used = used = np.maximum(precision, self._used_floor)
        # The cavity is q without one of the N shared sites; its mean is that of q up to terms of order 1 / N.
        cavity = used - (used - self._model.prior_precision) / self.n_records
        self._used_weights = weights = self._weights(noise)
        asked = (loc, 1.0 / cavity, noise, *weights, self._site_norm, self._noise_norm)
        self._session.set_sites(*asked)
        sigma, steps = self._plan.noise_multiplier, self._plan.n_steps
        stream = noise_step(self._key, step, steps, asked, self._settings.max_site_norm, sigma)
        return self._session.noisy_sum(stream, sigma)

    def update(self, step: int, noisy: FloatArray) -> None:
        loc, precision, noise, accumulated = _unpacked(self.state)
        model, n, rate, r = self._model, self._model.n_params, self._plan.sample_rate, self._rates[step]
        prior, weights, kept = model.prior_precision, self._used_weights, self.kept
        kept["loc"][step], kept["precision"][step], kept["noise"][step] = loc, precision, noise
        kept["floor"][step], kept["sums"][step], kept["weights"][step] = self._used_floor, noisy, weights
        linear = noisy[:n] / (rate * weights[0])
        site_precision = noisy[n:-1] / (rate * weights[1])
        residuals = noisy[-1] / (rate * weights[2])
        loc = loc + r * (linear - prior * loc) / self._used
        precision = (1.0 - r) * precision + r * (prior + site_precision)
        accumulated = (1.0 - r) ** 2 * accumulated + (r * self._sum_stddev / weights[1]) ** 2
        chosen = tuning.TUNING
        slow = max(r, chosen.least_noise_rate)
        shape = model.noise_shape + 0.5 * self.n_records
        moved = (1.0 - slow) * noise + slow * (model.noise_rate + residuals) / (shape - 1.0)
        noise = max(min(max(moved, chosen.noise_fall * noise), chosen.noise_rise * noise), chosen.least_noise)
        self.state = _state(loc, precision, noise, accumulated)

    def trace(self) -> dict[str, Any]:
        """Return the arrays of the release, q after the last step included."""
        loc, precision, noise, accumulated = _unpacked(self.state)
        floor = self._model.prior_precision + self._settings.floor * math.sqrt(accumulated)
        return {
            "loc": np.concatenate((self.kept["loc"], loc[None])),
            "precision": np.concatenate((self.kept["precision"], precision[None])),
            "noise_variance": np.append(self.kept["noise"], noise),
            "noisy_sums": self.kept["sums"],
            "weights": self.kept["weights"],
            "damping": self._rates,
            "floor": np.append(self.kept["floor"], floor),
        }


def _state(loc: FloatArray, precision: FloatArray, noise: float, accumulated: float) -> dict[str, FloatArray]:
    return {"next_loc": loc, "next_precision": precision, "next_scalars": np.array([noise, accumulated])}


def _unpacked(state: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray, float, float]:
    noise, accumulated = (float(value) for value in state["next_scalars"])
    return state["next_loc"], state["next_precision"], noise, accumulated


def check_network_records(
    model: BayesianNeuralNetwork, X: Any, y: Any, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> tuple[FloatArray, FloatArray]:
    """Return (X, y), standardised by the model's public scales, as the kernels read them, without null records.

    Without scales in the model, C-contiguous float64 records are not copied.

    **Privacy.** Reads the records.  Errors are those of :mod:`dpinfer.mechanism.records`.
    """
    features, response = as_record_array("X", X), as_record_array("y", y)
    check_layout(model, features, response)
    total_rows(len(features))
    features, response = without_null_records(adjacency, features, response)
    check_finite("X", features)
    check_finite("y", response)
    # Overflow is no matter, and no warning: a contribution that is not finite is zero.
    with np.errstate(all="ignore"):
        if model.feature_loc != 0.0 or model.feature_scale != 1.0:
            features = model.standardise_features(features)
        if model.target_loc != 0.0 or model.target_scale != 1.0:
            response = model.standardise_target(response)
    return np.ascontiguousarray(features, dtype=np.float64), np.ascontiguousarray(response, dtype=np.float64)

"""DP-SEP: stochastic expectation propagation on private sums of sites, releasing the whole noisy trace."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import check_choice, check_integer, check_interval, known_shape, settings_of
from dpinfer.accounting import Adjacency, LedgerAccount, PrivacyPlan
from dpinfer.mechanism.noise_keys import RandomSource, noise_step
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.mechanism.records import check_arguments
from dpinfer.mechanism.run import Algorithm, check_plan, guarantee_fields, hash_numbers, run_steps
from dpinfer.mechanism.sites import tuning
from dpinfer.mechanism.sites.settings import SiteArguments, SiteOptions, damping_rates, start_loc, typical_site_norm
from dpinfer.mechanism.sites.state import SiteIterate
from dpinfer.mechanism.sources.row_source import Arrays
from dpinfer.mechanism.sums.sites import (
    SiteRecords,
    check_site_model,
    check_site_records,
    open_session,
    public_normals,
    set_cavity,
    site_prior,
)
from dpinfer.models import SiteModel
from dpinfer.release import SiteRelease
from dpinfer.release.sites.trace import SITES, smat, svec

_START_STREAM = 2**40  # beyond the numbers of all steps: format


@standard_arithmetic()
def run_dp_sep(
    model: SiteModel,
    X: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    *,
    plan: PrivacyPlan,
    n_records: int,
    settings: SiteArguments | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[SiteOptions],
) -> SiteRelease:
    """Run differentially private stochastic expectation propagation and release its whole trace.

    A step takes one shared site out of q, matches moments with each sampled record's likelihood, clips the record's
    site to norm C, sums on an integer lattice, adds Gaussian noise of standard deviation sigma C, and moves q towards
    the prior times the sites that the noisy sum estimates.

    **Privacy.** Reads the records.  Adjacency: that of `plan`.  The sum is over clipped site vectors, so the L2
    sensitivity of each sum is at most C when a record is added or removed and 2 C when one is replaced, and the noise
    in q is the noise of the sum times the step actually made: for one record per step gamma / N times sigma C, where
    sigma C is twice the published 2 C sigma / 2 (docs/derivations/dp-sep.md).  The release is (epsilon,
    delta)-differentially private with the plan's numbers.  Bad records are refused before the first step, in which
    case nothing is drawn; once it has started, the mechanism never raises because of a record, and a record whose
    tilted moments are not valid contributes the shared site.

    Raises TypeError or ValueError if an argument is wrong, or the plan's event does not fit the sampling. Raises
    RecordError if the records cannot be used, or are not those of the interrupted run. Raises CheckpointError if
    `checkpoint` is of a run with other settings, is in use, or is not a checkpoint.

    Parameters
    ----------
    model : GaussianMixture or regression with binary responses
        A regression may have a link of your own (docs/own-models.md).  For a network call
        :func:`dpinfer.mechanism.run_network_dp_sep`.
    X : (N, n_features) array
        Arrays, or features; float64, C-contiguous arrays are not copied.
    y : (N,) array, optional
        Responses 0 or 1; None for a mixture.
    plan : PrivacyPlan
        From :func:`dpinfer.plan_privacy`; fixes noise_multiplier, sampling, sample_rate and n_steps.
    n_records : int
        A *public* number of records; ``len(X)`` would be private under add/remove adjacency.
    settings : SiteArguments, optional
        Damping, clipping norm, kind of sites, annealing, start and numerical settings.
    n_threads, progress, ledger, random_source, checkpoint
        As in :func:`dpinfer.run_dpvi`.
    **options
        Fields of :class:`dpinfer.mechanism.SiteArguments`, such as ``damping=0.1``: they replace those of `settings`.

    Notes
    -----
    Source: Vinaroz and Park (2021), Algorithm 3 and eq. 5.  Deviations: Poisson sampling, centred sites and minibatches
    are ours; the raw precision is kept and only its used copy is made positive definite; the shared site is not clipped
    again (it is public).  With permutations, amplification by subsampling is not claimed.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(500, 2)); y = (X[:, 0] > 0).astype(float)
    >>> plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=50)
    >>> release = dpi.run_dp_sep(dpi.models.ProbitRegression(2), X, y, plan=plan, n_records=500)
    >>> release.loc.shape
    (51, 1, 2)
    """
    arguments = settings_of("run_dp_sep", SiteArguments, settings, options)
    check_site_model(model)
    check_arguments(model, y, X)
    n_records = check_plan(plan, n_records, sampling=None)
    _check_sampling(model, plan, n_records, arguments.sampling)
    _check_rows(known_shape(X), plan, n_records)
    chosen = _site_settings(model, arguments)
    rates = damping_rates(model, arguments.damping, plan)
    annealing = _annealing(model, arguments)
    temperatures = _temperatures(model, annealing, plan.n_steps)
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    public_start = None if arguments.start is None else start_loc(model, arguments.start, np.zeros)
    run = _Sites(model, plan, chosen, n_records, rates, temperatures, public_start)
    charged = run_steps(run, plan, control, lambda: _load(model, X, y, plan, n_records))
    prior = site_prior(model)
    return SiteRelease(
        **run.trace(),
        damping=rates,
        floor=run.floors,
        prior_loc=prior.loc,
        prior_scale=prior.scale,
        noise_stddev=plan.noise_multiplier * chosen.max_site_norm,
        block_weight=chosen.block_weight,
        sample_rate=plan.sample_rate,
        n_records=n_records,
        names=model.names,
        sites=chosen.sites,
        sampling=plan.sampling,
        isotropic=chosen.isotropic,
        max_site_norm=chosen.max_site_norm,
        noise_multiplier=plan.noise_multiplier,
        model_spec=model.to_dict(),
        settings=charged
        | {
            "n_nodes": chosen.n_nodes,
            "trust_radius": arguments.trust_radius,
            "annealing": None if annealing is None else [float(value) for value in annealing],
        },
        **guarantee_fields(plan, control),
    )


def _check_sampling(model: SiteModel, plan: PrivacyPlan, n_records: int, sampling: str | None) -> None:
    if sampling is not None:
        check_choice("sampling", sampling, ("poisson", "uniform", "permutation"))
    if sampling not in (None, plan.sampling):
        raise ValueError(f"sampling must be the plan's, {plan.sampling!r}, got {sampling!r}")
    if plan.n_records is not None and plan.n_records != n_records:
        raise ValueError(f"n_records must be the plan's, {plan.n_records}, got {n_records}")
    if plan.sampling != "poisson" and model.site_sum == "evidence":
        raise ValueError(f"plan must be for Poisson sampling for {type(model).__name__}, got {plan.sampling!r}")
    if plan.sampling != "poisson" and plan.adjacency is Adjacency.ZERO_OUT:
        # A null record would have to keep its place in the order, and no kernel has one that contributes nothing.
        raise ValueError(f"plan must be for 'replace_one' adjacency with sampling={plan.sampling!r}, got 'zero_out'")


def _annealing(model: SiteModel, asked: SiteArguments) -> tuple[float, float] | None:
    if not isinstance(asked.annealing, str):
        return asked.annealing
    check_choice("annealing", asked.annealing, ("auto",))
    return tuning.TUNING.annealing if model.exchangeable_blocks and asked.start is None else None


@dataclass(frozen=True)
class _SiteSettings:
    """Public settings of the sites, resolved."""

    sites: str
    block_weight: float
    isotropic: bool
    floor: float
    trust_radius: float | None
    max_site_norm: float
    n_nodes: int


def _site_settings(model: SiteModel, asked: SiteArguments) -> _SiteSettings:
    check_choice("sites", asked.sites, SITES)
    centred = asked.sites == "centred"
    block_weight, isotropic, trust_radius = asked.block_weight, asked.isotropic, asked.trust_radius
    if block_weight is None:
        block_weight = tuning.TUNING.mixture_weight if centred and model.exchangeable_blocks else 1.0
    block_weight = check_interval("block_weight", block_weight, 0.0)
    if isotropic is None:
        isotropic = model.isotropic
    elif not isinstance(isotropic, (bool, np.bool_)):
        raise TypeError(f"isotropic must be a bool, got {type(isotropic).__name__}")
    if trust_radius is not None:
        trust_radius = check_interval("trust_radius", trust_radius, 0.0)
        if not centred:
            raise ValueError("trust_radius must not be given with natural sites")
    return _SiteSettings(
        sites=asked.sites,
        block_weight=block_weight,
        isotropic=bool(isotropic),
        floor=check_interval("floor", asked.floor, 0.0, low_open=False),
        trust_radius=trust_radius,
        max_site_norm=_site_norm(model, asked.max_site_norm, block_weight, centred=centred),
        n_nodes=check_integer("n_nodes", asked.n_nodes, 1, 200),
    )


def _load(model: SiteModel, X: Any, y: Any, plan: PrivacyPlan, n_records: int) -> tuple[FloatArray, ...]:
    records = check_site_records(model, X, y, plan.adjacency)
    _check_rows(records.features.shape, plan, n_records)
    return records.arrays


def _check_rows(shape: tuple[int, ...] | None, plan: PrivacyPlan, n_records: int) -> None:
    """Refuse a number of rows other than `n_records` if the number is public, as under "replace_one"."""
    if plan.n_records is not None and shape is not None and shape[0] != n_records:
        raise ValueError(f"X must have n_records = {n_records} rows with sampling={plan.sampling!r}")


class _Sites(Algorithm[Arrays]):
    """Sites of a mixture or a regression: the public arithmetic around their noisy sums."""

    mechanism = "dp_sep"

    def __init__(
        self,
        model: SiteModel,
        plan: PrivacyPlan,
        settings: _SiteSettings,
        n_records: int,
        rates: FloatArray,
        temperatures: FloatArray,
        start: FloatArray | None,
    ) -> None:
        self._model, self._plan, self._settings, self.n_records = model, plan, settings, n_records
        self._rates, self._temperatures, self._start = rates, temperatures, start
        deviation = plan.noise_multiplier * settings.max_site_norm / (plan.sample_rate * settings.block_weight)
        self._used: FloatArray | None = None
        self.floors = _floors(site_prior(model).precision, settings.floor, rates, deviation)

    @property
    def state(self) -> dict[str, FloatArray]:
        return self._iterate.state

    @state.setter
    def state(self, values: Mapping[str, FloatArray]) -> None:
        self._iterate.state = values
        self._used = None

    def description(self) -> Mapping[str, Any]:
        return {
            "model": self._model.to_dict(),
            "n_records": self.n_records,
            **asdict(self._settings),
            "damping": hash_numbers(self._rates),
            "annealing": hash_numbers(self._temperatures),
            "start": None if self._start is None else hash_numbers(self._start),
        }

    def start(self, records: Arrays, control: RunControl, key: bytes) -> None:
        """Draw where q starts; sessions are opened at the first step of a temperature."""
        settings = self._settings
        self._iterate = SiteIterate(
            site_prior(self._model),
            start_loc(self._model, self._start, lambda size: public_normals(key, _START_STREAM, size)),
            self._model.expected_site_precision(self.n_records),
            n_records=self.n_records,
            centred=settings.sites == "centred",
            isotropic=settings.isotropic,
            block_weight=settings.block_weight,
            trust_radius=math.inf if settings.trust_radius is None else settings.trust_radius,
        )
        self._records = SiteRecords(records[0], records[1] if len(records) > 1 else None)
        self._key, self._n_threads, self._warmth = key, control.n_threads, math.nan
        steps = self._plan.n_steps
        blocks, d = self._iterate.loc.shape
        triangle = d * (d + 1) // 2
        self.kept = {
            "loc": np.empty((steps, blocks, d)),
            "precision": np.empty((steps, blocks, triangle)),
            "sums": np.empty((steps, blocks * (d + triangle))),
        }

    def query(self, step: int) -> FloatArray:
        if self._temperatures[step] != self._warmth:
            self._warmth = float(self._temperatures[step])
            self._session = open_session(
                self._model,
                self._records,
                max_site_norm=self._settings.max_site_norm,
                key=self._key,
                n_threads=self._n_threads,
                n_nodes=self._settings.n_nodes,
                temperature=self._warmth,
            )
        used = self._iterate.used(self.floors[step]) if self._used is None else self._used
        plan, settings, cavity = self._plan, self._settings, self._iterate.cavity(used)
        sigma, weight = plan.noise_multiplier, settings.block_weight
        set_cavity(self._session, cavity, weight)
        if plan.sampling == "permutation":
            # An epoch's order is drawn from its steps.
            return self._session.permuted_sum(step, sigma)
        asked = (cavity, weight, settings.max_site_norm, settings.n_nodes, self._warmth, sigma)
        stream = noise_step(self._key, step, plan.n_steps, asked)
        if plan.sampling == "poisson":
            return self._session.poisson_sum(stream, plan.sample_rate, sigma)
        return self._session.uniform_sum(stream, sigma)

    def update(self, step: int, noisy: FloatArray) -> None:
        iterate, rate = self._iterate, self._plan.sample_rate
        blocks, d = iterate.loc.shape
        self.kept["loc"][step], self.kept["precision"][step] = iterate.loc, svec(iterate.precision)
        self.kept["sums"][step] = noisy
        linear = noisy[: blocks * d].reshape(blocks, d) / rate
        precision = smat(noisy[blocks * d :].reshape(blocks, -1), d) / (rate * self._settings.block_weight)
        self._used = iterate.move(linear, precision, self._rates[step], self.floors[step + 1])

    def trace(self) -> dict[str, Any]:
        """Return the arrays of the release, q after the last step included."""
        last = svec(self._iterate.precision)[None]
        return {
            "loc": np.concatenate((self.kept["loc"], self._iterate.loc[None])),
            "precision": np.concatenate((self.kept["precision"], last)),
            "noisy_sums": self.kept["sums"],
        }


def _floors(prior: float, deviations: float, rates: FloatArray, stddev: float) -> FloatArray:
    """Return the least eigenvalue used before each step and after the last: prior plus noise deviations, (T + 1,).

    The precision's noise follows the same recursion as the precision, so that its standard deviation is known.
    """
    variance = np.zeros(rates.size + 1)
    for step, rate in enumerate(rates):
        variance[step + 1] = (1.0 - rate) ** 2 * variance[step] + (rate * stddev) ** 2
    return np.asarray(prior + deviations * np.sqrt(variance))


def _site_norm(model: SiteModel, value: float | str, block_weight: float, *, centred: bool) -> float:
    if isinstance(value, str):
        check_choice("max_site_norm", value, ("auto",))
        if not centred:
            raise ValueError("max_site_norm must be a number with natural sites, got 'auto'")
        quantile = tuning.TUNING.mixture_quantile if model.exchangeable_blocks else tuning.TUNING.regression_quantile
        return typical_site_norm(model, block_weight, quantile)
    return check_interval("max_site_norm", value, 1e-30, 1e30, low_open=False, high_open=False)


def _temperatures(model: SiteModel, annealing: Any, steps: int) -> FloatArray:
    if annealing is None:
        return np.ones(steps)
    if not model.exchangeable_blocks:
        raise ValueError("annealing must be None unless the model is a mixture")
    if not isinstance(annealing, tuple) or len(annealing) != 2:
        raise TypeError("annealing must be a pair (temperature, share)")
    hottest = check_interval("annealing[0]", annealing[0], 1.0, low_open=False)
    share = check_interval("annealing[1]", annealing[1], 0.0, 1.0, low_open=False, high_open=False)
    length = max(1.0, share * steps)
    return np.asarray(hottest ** np.maximum(0.0, 1.0 - np.arange(steps) / length))

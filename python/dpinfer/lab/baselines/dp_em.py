"""DP-EM (Park et al. 2017) for mixtures of Gaussians: Gaussian noise on the expected sufficient statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import check_choice, check_interval, settings_of
from dpinfer.accounting import Event, LedgerAccount, PrivacyPlan
from dpinfer.mechanism import RandomSource, _native
from dpinfer.mechanism.noise_keys import noise_step
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.mechanism.records import check_arguments
from dpinfer.mechanism.run import Algorithm, check_plan, guarantee_fields, hash_numbers, run_steps
from dpinfer.mechanism.sites.settings import start_loc
from dpinfer.mechanism.sites.state import Cavity
from dpinfer.mechanism.sources.row_source import Arrays
from dpinfer.mechanism.sums import sites as site_sums
from dpinfer.models import GaussianMixture
from dpinfer.release.guarantee import Stated

__all__ = ["EMArguments", "EMOptions", "EMRelease", "run_dp_em"]

STATISTICS = ("published", "centred")
_START_STREAM = 2**40  # beyond the numbers of all steps


@dataclass(frozen=True, eq=False, kw_only=True)
class EMRelease(Stated):
    """Means and counts of every step of DP-EM, all computed from noisy statistics.

    **Privacy.** Safe to publish: only noisy statistics and public settings are in it.

    Parameters
    ----------
    loc : (T + 1, J, d) float64
        Means before each step and after the last.
    counts : (T, J) float64
        Noisy expected number of records of each component, floored at a public number.
    model : GaussianMixture
    settings : mapping
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks
        As in :class:`dpinfer.Release`.
    """

    loc: FloatArray
    counts: FloatArray
    model: GaussianMixture
    event: Event
    settings: Mapping[str, Any]
    _part_name: ClassVar[str] = "DP-EM trace"
    _frozen: ClassVar[tuple[str, ...]] = ("settings",)

    def __post_init__(self) -> None:
        self._check_guarantee()
        self.loc.flags.writeable = False
        self.counts.flags.writeable = False

    def moments(self, average: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return mean (J, d) and Laplace covariance (J, d, d) of the means, averaged over a last share of the steps.

        Parameters
        ----------
        average : float in [0, 1)
            Share of the steps; 0 is the last step.
        """
        steps = self.counts.shape[0]
        first = steps - max(1, int(check_interval("average", average, 0.0, 1.0, low_open=False) * steps))
        counts = self.counts[first:].mean(axis=0)
        prior = np.eye(self.model.n_features) / self.model.prior_scale**2
        precision = prior + counts[:, None, None] * np.linalg.inv(self.model.covariances)
        return self.loc[first + 1 :].mean(axis=0), np.asarray(np.linalg.inv(precision))


class EMOptions(TypedDict, total=False):
    """Fields of :class:`EMArguments` as keyword arguments."""

    max_site_norm: float
    statistics: str
    count_weight: float
    damping: float
    start: npt.ArrayLike | None


@dataclass(frozen=True, eq=False, kw_only=True)
class EMArguments:
    """Arguments of :func:`run_dp_em`; checked by the call, before anything is spent.

    **Privacy.** Public; holds no records.  None of them may depend on the records.

    Parameters
    ----------
    max_site_norm : float
        Clipping norm C of a record's statistics.
    statistics : {"published", "centred"}
        Relative to c = 0, as published, or to the released means: then a record near its component's mean contributes
        little, for any mean.
    count_weight : float
        Weight of the counts in a contribution, positive.
    damping : float in (0, 1]
        Of each M-step.
    start : (J, d) array, optional
        By default normal draws near the prior's mean.

    Examples
    --------
    >>> EMArguments(max_site_norm=1.0).statistics
    'published'
    """

    max_site_norm: float
    statistics: str = "published"
    count_weight: float = 1.0
    damping: float = 1.0
    start: npt.ArrayLike | None = None


def run_dp_em(
    model: GaussianMixture,
    X: npt.ArrayLike,
    *,
    plan: PrivacyPlan,
    n_records: int,
    settings: EMArguments | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[EMOptions],
) -> EMRelease:
    """Run differentially private EM for the means of a mixture with known weights and covariances.

    **Privacy.** Reads the records.  A record contributes (r_j (x - c_j), count_weight r_j) for every component j, r its
    responsibilities under released means, clipped to norm C and summed on the integer lattice of
    :func:`dpinfer.run_dp_sep`: the L2 sensitivity is at most C under add/remove and 2 C under replacement, and the
    guarantee is the plan's.

    Parameters
    ----------
    model : GaussianMixture
    X : (N, d) array
    plan : PrivacyPlan
        For Poisson sampling; a rate of 1 reads every record in every step, as published.
    n_records : int
        The *public* number of records.
    settings : EMArguments, optional
        Its `max_site_norm` has no default: give it, or that by keyword.
    n_threads, progress, random_source, ledger, checkpoint
        As for :func:`dpinfer.run_dp_sep`.
    **options
        Fields of :class:`dpinfer.lab.baselines.EMArguments`, such as ``max_site_norm=1.0``: they replace those of
        `settings`.

    Returns
    -------
    EMRelease

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used, or are not those of the interrupted run.
    BudgetExceededError
        If the data set's budget would be exceeded; nothing was spent.
    CheckpointError
        If `checkpoint` is of a run with other settings, is in use, or is not a checkpoint.

    Notes
    -----
    Park, Foulds, Chaudhuri and Welling (2017), for the parameters that are unknown here, with a Gaussian prior on the
    means (MAP) and the accounting of this library.  Counts are used with at least 1 plus the standard deviation of
    their noise.
    """
    if not isinstance(model, GaussianMixture):
        raise TypeError(f"model must be a GaussianMixture, got {type(model).__name__}")
    check_arguments(model, None, X)
    n_records = check_plan(plan, n_records)
    arguments = settings_of("run_dp_em", EMArguments, settings, options)
    run = _ExpectationMaximisation(
        model,
        plan,
        n_records=n_records,
        max_site_norm=check_interval("max_site_norm", arguments.max_site_norm, 1e-30, 1e30),
        centred=check_choice("statistics", arguments.statistics, STATISTICS) == "centred",
        count_weight=check_interval("count_weight", arguments.count_weight, 0.0),
        damping=check_interval("damping", arguments.damping, 0.0, 1.0, high_open=False),
        start=None if arguments.start is None else start_loc(model, arguments.start, np.zeros),
    )
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    charged = run_steps(run, plan, control, lambda: site_sums.check_site_records(model, X, None, plan.adjacency).arrays)
    return EMRelease(
        loc=np.concatenate((run.kept["loc"], run.state["next"][None])),
        counts=run.kept["counts"],
        model=model,
        settings=charged
        | {"statistics": arguments.statistics, "max_site_norm": run.max_site_norm, "n_records": run.n_records},
        **guarantee_fields(plan, control),
    )


class _ExpectationMaximisation(Algorithm[Arrays]):
    """E-steps on noisy sums of expected statistics, M-steps on their releases."""

    mechanism = "dp_em"

    def __init__(
        self,
        model: GaussianMixture,
        plan: PrivacyPlan,
        *,
        n_records: int,
        max_site_norm: float,
        centred: bool,
        count_weight: float,
        damping: float,
        start: FloatArray | None,
    ) -> None:
        self._model, self._plan, self._start = model, plan, start
        self.n_records, self.max_site_norm = n_records, max_site_norm
        self._centred, self._weight, self._damping = centred, count_weight, damping
        self._inverse = np.linalg.inv(model.covariances)
        self._prior = np.eye(model.n_features) / model.prior_scale**2
        self._least = 1.0 + plan.noise_multiplier * max_site_norm / (plan.sample_rate * count_weight)

    def description(self) -> Mapping[str, Any]:
        """Return every public setting."""
        return {
            "model": self._model.to_dict(),
            "n_records": self.n_records,
            "max_site_norm": self.max_site_norm,
            "centred": self._centred,
            "count_weight": self._weight,
            "damping": self._damping,
            "start": None if self._start is None else hash_numbers(self._start),
        }

    def start(self, records: Arrays, control: RunControl, key: bytes) -> None:
        """Open the session, and draw where the means start."""
        self._key = key
        self._session = _native.mixture_sites(
            contribution="moments",
            points=records[0],
            log_weights=self._model.log_weights,
            covariances=self._model.covariances,
            max_site_norm=self.max_site_norm,
            key=key,
            n_threads=control.n_threads,
        )
        loc = start_loc(self._model, self._start, lambda size: site_sums.public_normals(key, _START_STREAM, size))
        self.state = {"next": loc}
        steps = self._plan.n_steps
        self.kept = {"loc": np.empty((steps, *loc.shape)), "counts": np.empty((steps, loc.shape[0]))}

    @property
    def _centre(self) -> FloatArray:
        loc = self.state["next"]
        return loc if self._centred else np.zeros_like(loc)

    def query(self, step: int) -> FloatArray:
        """Return the noisy sum of clipped expected statistics."""
        loc = self.state["next"]
        blocks, d = loc.shape
        cavity = Cavity(loc, np.zeros((blocks, d, d)), np.zeros(blocks * (d + 1)), np.ascontiguousarray(self._centre))
        site_sums.set_cavity(self._session, cavity, self._weight)
        plan, sigma = self._plan, self._plan.noise_multiplier
        query = (cavity, self._weight, self.max_site_norm, sigma)
        return self._session.poisson_sum(noise_step(self._key, step, plan.n_steps, query), plan.sample_rate, sigma)

    def update(self, step: int, noisy: FloatArray) -> None:
        """Move the means by the M-step."""
        loc, centre, prior = self.state["next"], self._centre, self._prior
        blocks, d = loc.shape
        sums = noisy / self._plan.sample_rate
        self.kept["loc"][step] = loc
        counts = np.maximum(sums[blocks * d :] / self._weight, self._least)
        self.kept["counts"][step] = counts
        # Relative to c: the count of c's own share is the floored one, so that the omitted part is not divided by.
        linear = sums[: blocks * d].reshape(blocks, d)
        total = prior + counts[:, None, None] * self._inverse
        gradient = (self._inverse @ linear[..., None])[..., 0]
        gradient = gradient + (prior @ (self._model.prior_means - centre)[..., None])[..., 0]
        target = centre + np.linalg.solve(total, gradient[..., None])[..., 0]
        self.state = {"next": np.asarray((1.0 - self._damping) * loc + self._damping * target)}

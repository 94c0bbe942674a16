"""DP-EM (Park et al. 2017) for mixtures of Gaussians: Gaussian noise on the expected sufficient statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._progress import ProgressCallback, resolve_progress
from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting import Adjacency, Event, PrivacyPlan
from dpinfer.baselines.lattice_sums import check_source
from dpinfer.mechanism import RandomSource, site_sessions
from dpinfer.mechanism.site_settings import start_loc
from dpinfer.mechanism.site_state import Cavity
from dpinfer.models import GaussianMixture
from dpinfer.release.guarantee import guarantee_in_words, stated_epsilon

__all__ = ["EMRelease", "run_dp_em"]

FloatArray = npt.NDArray[np.float64]

STATISTICS = ("published", "centred")
_START_STREAM = 2**40


@dataclass(frozen=True, eq=False)
class EMRelease:
    """Means and counts of every step of DP-EM, all computed from noisy statistics.

    **Privacy.** Safe to publish: only noisy statistics and public settings are in it.

    Parameters
    ----------
    loc : (T + 1, J, d) float64
        Means before each step and after the last.
    counts : (T, J) float64
        Noisy expected number of records of each component, floored at a public number.
    model : GaussianMixture
    event : Event
    adjacency : Adjacency
    delta, certified_epsilon : float
    secure : bool
    settings : mapping
    """

    loc: FloatArray
    counts: FloatArray
    model: GaussianMixture
    event: Event
    adjacency: Adjacency
    delta: float
    certified_epsilon: float
    secure: bool
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.loc.flags.writeable = False
        self.counts.flags.writeable = False
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    @property
    def epsilon(self) -> float:
        """The certified epsilon at `delta`; see :attr:`dpinfer.Release.epsilon`."""
        return stated_epsilon(self.certified_epsilon, secure=self.secure)

    @property
    def guarantee(self) -> str:
        """The privacy guarantee in words."""
        return guarantee_in_words(self.certified_epsilon, self.delta, self.adjacency, secure=self.secure)

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


def run_dp_em(
    model: GaussianMixture,
    X: npt.ArrayLike,
    *,
    plan: PrivacyPlan,
    n_records: int,
    max_site_norm: float,
    statistics: str = "published",
    count_weight: float = 1.0,
    damping: float = 1.0,
    start: npt.ArrayLike | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
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
    max_site_norm : float
        Clipping norm C of a record's statistics.
    statistics : {"published", "centred"}
        Relative to c = 0, as published, or to the released means: then a record near its component's mean contributes
        little, whatever the mean is.
    count_weight : float
        Weight of the counts in a contribution, positive.
    damping : float in (0, 1]
        Of each M-step.
    start : (J, d) array, optional
        By default normal draws near the prior's mean.
    n_threads, progress, random_source
        As for :func:`dpinfer.run_dp_sep`.

    Returns
    -------
    EMRelease

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.

    Notes
    -----
    Park, Foulds, Chaudhuri and Welling (2017), for the parameters that are unknown here, with a Gaussian prior on the
    means (MAP) and the accounting of this library.  Counts are used with at least 1 plus the standard deviation of
    their noise.
    """
    if not isinstance(model, GaussianMixture):
        raise TypeError(f"model must be a GaussianMixture, got {type(model).__name__}")
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    if plan.sampling != "poisson":
        raise ValueError(f"plan must be for Poisson sampling, got {plan.sampling!r}")
    n_records = check_integer("n_records", n_records, 1)
    norm = check_interval("max_site_norm", max_site_norm, 1e-30, 1e30)
    check_choice("statistics", statistics, STATISTICS)
    weight = check_interval("count_weight", count_weight, 0.0)
    damping = check_interval("damping", damping, 0.0, 1.0, high_open=False)
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1, 4096)
    source = check_source(random_source)
    report = resolve_progress(progress, "private steps")
    if start is not None:
        start_loc(model, start, np.zeros)
    records = site_sessions.check_site_records(model, X, None)
    key = source.take_key()
    session = site_sessions.open_moment_session(model, records, max_site_norm=norm, key=key, n_threads=threads)
    loc = start_loc(model, start, lambda size: site_sessions.public_normals(key, _START_STREAM, size))
    blocks, d = loc.shape
    steps, rate = plan.n_steps, plan.sample_rate
    inverse = np.linalg.inv(model.covariances)
    prior = np.eye(d) / model.prior_scale**2
    least = 1.0 + plan.noise_multiplier * norm / (rate * weight)
    locs, counts = np.empty((steps + 1, blocks, d)), np.empty((steps, blocks))
    zero = np.zeros((blocks, d, d))
    neutral = np.zeros(blocks * (d + 1))
    for step in range(steps):
        locs[step] = loc
        centre = loc if statistics == "centred" else np.zeros_like(loc)
        site_sessions.set_cavity(session, Cavity(loc, zero, neutral, np.ascontiguousarray(centre)), weight)
        noisy = session.poisson_sum(step, rate, plan.noise_multiplier) / rate
        counts[step] = np.maximum(noisy[blocks * d :] / weight, least)
        # Relative to c: the count of c's own share is the floored one, so that what is left out is not divided by.
        linear = noisy[: blocks * d].reshape(blocks, d)
        total = prior + counts[step][:, None, None] * inverse
        gradient = (inverse @ linear[..., None])[..., 0] + (prior @ (model.prior_means - centre)[..., None])[..., 0]
        target = centre + np.linalg.solve(total, gradient[..., None])[..., 0]
        loc = np.asarray((1.0 - damping) * loc + damping * target)
        report(step + 1, steps)
    locs[steps] = loc
    return EMRelease(
        locs,
        counts,
        model,
        plan.event,
        plan.adjacency,
        plan.delta,
        plan.epsilon,
        source.secure,
        {"mechanism": "dp_em", "statistics": statistics, "max_site_norm": norm, "n_records": n_records},
    )

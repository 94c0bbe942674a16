"""DPVIm (Jalko et al. 2023): aligned gradients, preconditioning, iterate averaging, and the iterates' own spread."""

from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._surroundings import ProgressCallback
from dpinfer._validate import settings_of
from dpinfer.accounting import LedgerAccount, PrivacyPlan
from dpinfer.inference import Posterior, noise_aware_posterior
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.request import parse_burn_in
from dpinfer.mechanism import RandomSource, run_dpvi
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.models import GeneralizedLinearModel
from dpinfer.recipes import GradScale, LearningRate
from dpinfer.release import GradientTrace

__all__ = ["DPVIMArguments", "DPVIMOptions", "run_dpvim"]


class DPVIMOptions(TypedDict, total=False):
    """Fields of :class:`DPVIMArguments` as keyword arguments."""

    max_grad_norm: float
    grad_scale: GradScale | None
    learning_rate: LearningRate | None
    loss: str
    start: tuple[npt.ArrayLike, npt.ArrayLike] | None
    burn_in: str | float | int
    noise_aware: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class DPVIMArguments:
    """Arguments of :func:`run_dpvim`; checked by the call, before anything is spent.

    **Privacy.** Public; holds no records.  None of them may depend on the records.

    Parameters
    ----------
    max_grad_norm : float
        Clipping norm C.
    grad_scale, learning_rate, loss, start
        As in :class:`dpinfer.mechanism.GradientArguments`.
    burn_in : "auto", float in [0, 1), or int
        First iterate averaged; "auto" is found by a trend test and averages the last half at most.
    noise_aware : bool
        Add the sample variance of the averaged iterates of loc to the variance of q (the default, as the paper does),
        or leave it out.

    Examples
    --------
    >>> DPVIMArguments(max_grad_norm=2.0).noise_aware
    True
    """

    max_grad_norm: float
    grad_scale: GradScale | None = None
    learning_rate: LearningRate | None = None
    loss: str = "split"
    start: tuple[npt.ArrayLike, npt.ArrayLike] | None = None
    burn_in: str | float | int = "auto"
    noise_aware: bool = True


def run_dpvim(
    model: GeneralizedLinearModel,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    plan: PrivacyPlan,
    n_records: int,
    settings: DPVIMArguments | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[DPVIMOptions],
) -> tuple[GradientTrace, Posterior]:
    """Run DPVI with aligned gradients and return its release and q around the average of the converged iterates.

    **Privacy.** Reads the records, through :func:`dpinfer.run_dpvi` only: adjacency, L2 sensitivity (C, on the n
    preconditioned gradients of loc alone) and guarantee are those of `plan`.  Average and spread are post-processing.

    Parameters
    ----------
    model : GeneralizedLinearModel
    X : (N, n_features) array of float64 or float32
    y : (N,) array
    plan : PrivacyPlan
    n_records : int
        The *public* number of records.
    settings : DPVIMArguments, optional
        Its `max_grad_norm` has no default: give it, or that by keyword.
    n_threads, progress, random_source, ledger, checkpoint
        As in :func:`dpinfer.run_dpvi`.
    **options
        Fields of :class:`dpinfer.lab.baselines.DPVIMArguments`, such as ``max_grad_norm=2.0``: they replace those of
        `settings`.

    Returns
    -------
    release : GradientTrace
    posterior : Posterior
        Its ``approximation`` is "averaged".

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.

    Notes
    -----
    Jalko, Prediger, Honkela and Kaski (2023).  The gradient of raw_scale follows from the noisy gradient of loc at the
    sampled theta, so it is neither clipped nor noised again.  The spread of the iterates is that of the last one around
    the optimum, so it overstates the error of an average of many; where the iterates mix slowly it is about right.
    Deviations: the loss is "split" by default, and the converged part of the trace is found by this
    package's trend test.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(500, 2)); y = (X[:, 0] > 0).astype(float)
    >>> plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=20)
    >>> model = dpi.models.LogisticRegression(2)
    >>> release, posterior = run_dpvim(model, X, y, plan=plan, n_records=500, max_grad_norm=2.0)
    >>> release.gradient, posterior.approximation
    ('aligned', 'averaged')
    """
    arguments = settings_of("run_dpvim", DPVIMArguments, settings, options)
    # Before anything is spent: a release whose posterior is refused would be lost.
    parse_burn_in(arguments.burn_in, plan.n_steps if isinstance(plan, PrivacyPlan) else None)
    release = run_dpvi(
        model,
        X,
        y,
        plan=plan,
        n_records=n_records,
        max_grad_norm=arguments.max_grad_norm,
        grad_scale=arguments.grad_scale,
        learning_rate=arguments.learning_rate,
        loss=arguments.loss,
        gradient="aligned",
        start=arguments.start,
        n_threads=n_threads,
        progress=progress,
        random_source=random_source,
        ledger=ledger,
        checkpoint=checkpoint,
    )
    posterior = noise_aware_posterior(release, approximation="averaged", burn_in=arguments.burn_in)
    if not arguments.noise_aware:
        return release, posterior
    n = release.n_params
    spread = release.params[posterior.burn_in :, :n].var(axis=0)
    mean, zero = posterior.optimum_mean, np.zeros(n)
    theta = IndependentTheta(
        NormalMixtures.single(mean[:n].copy(), spread), np.ones(n), zero, NormalMixtures.single(mean[n:].copy(), zero)
    )
    stddev = np.concatenate((np.sqrt(spread), zero))
    return release, replace(posterior, distribution=theta, optimum_stddev=stddev)

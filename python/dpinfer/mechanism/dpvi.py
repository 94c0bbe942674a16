"""DPVI: DP-SGD on the evidence lower bound, releasing the whole noisy gradient trace."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._float_environment import standard_arithmetic
from dpinfer._progress import ProgressCallback, resolve_progress
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer._version import __version__
from dpinfer.accounting import LedgerAccount, PrivacyPlan
from dpinfer.accounting.cautions import caution_of_count, caution_of_delta
from dpinfer.mechanism import _native
from dpinfer.mechanism.private_run import CheckpointArgument, PrivateRun, private_run, refuse_fork
from dpinfer.mechanism.random_source import OSRandomSource, RandomSource
from dpinfer.mechanism.records import check_conjugate_records, check_records
from dpinfer.mechanism.run_state import hash_numbers, restore, snapshot
from dpinfer.mechanism.scaling import (
    FisherScaling,
    GradScale,
    LearningRate,
    StepPolicy,
    largest_natural_rate,
    steady_rate,
)
from dpinfer.mechanism.sessions import ConjugateSession, GlmSession, GradientSession, SessionSettings
from dpinfer.models import ConjugateModel, GeneralizedLinearModel, LinearRegression, Model, default_max_grad_norm
from dpinfer.models.bijectors import sigmoid, softplus
from dpinfer.release import Release

__all__ = ["run_dpvi"]

FloatArray = npt.NDArray[np.float64]

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"loss": "per_example", "expectation": "monte_carlo", "gradient": "reparameterised"},
    "plain": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
    "tied": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
    "steady": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
}
_PAPER_RAW_SCALE = 550.0
_PAPER_CONJUGATE_RAW_SCALE = 100.0
_SMALL = 1e-300


@standard_arithmetic()
def run_dpvi(
    model: GeneralizedLinearModel | ConjugateModel,
    X: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    *,
    plan: PrivacyPlan,
    n_records: int,
    max_grad_norm: float | str = "auto",
    grad_scale: GradScale | FisherScaling | None = None,
    learning_rate: LearningRate | None = None,
    loss: str | None = None,
    expectation: str | None = None,
    gradient: str | None = None,
    recipe: str | None = None,
    n_draws: int = 10,
    n_nodes: int = 10,
    start: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
) -> Release:
    """Run differentially private variational inference and release its noisy gradient trace.

    One step samples each record with probability kappa, clips the preconditioned gradient of each sampled record's
    loss to norm C, sums on an integer lattice, adds Gaussian noise of standard deviation sigma C, and moves the
    variational parameters of q(theta) = N(loc, diag(softplus(raw_scale)**2)).

    **Privacy.** Reads the records.  Adjacency: that of `plan` (add/remove one record).  The L2 sensitivity of each sum
    is at most C (docs/derivations/dpvi-mechanism.md); the release is (epsilon, delta)-differentially private with the
    plan's numbers.  Bad records are refused before the first step, in which case nothing is drawn; once it has started,
    the mechanism never raises because of a record, and a record with a non-finite gradient contributes zero.

    Parameters
    ----------
    model : GeneralizedLinearModel or ConjugateModel
    X : (N, n_features) array of float64 or float32
        Not copied when C-contiguous.  For a conjugate model the records themselves, (N,) or (N, 1).
    y : (N,) array, optional
        Responses: 0 or 1, counts, or real numbers, as the model says.  None for a conjugate model.
    plan : PrivacyPlan
        From :func:`dpinfer.plan_privacy`; fixes noise_multiplier, sample_rate and n_steps.
    n_records : int
        A *public* number of records; ``len(X)`` would be private under add/remove adjacency.
    max_grad_norm : "auto" or float in [1e-30, 1e30]
        Clipping norm C of the preconditioned gradient.  "auto" (default), for Fisher scaling only: the 98.5% quantile
        (93% for linear regression) of the gradient's norm among the records that the model itself expects, for all but
        1% of its prior.
    grad_scale : FisherScaling, float, (loc, raw_scale) pair, (2 n,) array, or callable, optional
        Preconditioner beta, in [1e-30, 1e30]; a callable gets (step, params) of the released iterate.  The default is
        (1, 550), for a conjugate model (1, 100), or that of the recipe.
    learning_rate : "heuristic", float, (2 n,) array, or callable, optional
        "heuristic" (default) is beta / (sigma C sqrt(T)): A55 of the paper with lambda_c = sqrt(d / 2).
    loss : {"split", "per_example"}, optional
        Whether the prior and entropy are added after the noise (default) or, a share of 1 / n_records each, inside the
        clipped gradients (the paper).
    expectation : {"quadrature", "monte_carlo"}, optional
        Expectations under q by Gauss-Hermite in the linear predictor (default; closed form for Gaussian and Poisson
        likelihoods), for a conjugate model in its parameters, or by `n_draws` draws shared by the batch (the paper).
    gradient : {"reparameterised", "aligned"}, optional
        Whether both gradients are released, or the gradient at one sampled theta per step, from which the other
        follows (Jalko et al. 2023).  With Fisher scaling (``recipe="tied"``) the spread of the samples is public and
        follows no gradient: the release is that of natural steps on theta, half as long.
    recipe : {"tied", "steady", "plain", "paper"}, optional
        Fills what is not given.  "tied": :class:`dpinfer.mechanism.FisherScaling` with its start and steps; "steady":
        the same with steps of at least :func:`dpinfer.mechanism.steady_rate`, for a linear regression
        whose features may be correlated (docs/coverage.md): the iterate moves enough to show it; "plain": constant
        preconditioner and rate; "paper": the same with per_example and monte_carlo.  The default is "tied" for the
        conjugate models and linear regression, "plain" for the other models and where `grad_scale`, `learning_rate` or
        aligned gradients are given.
    n_draws : int
        Draws per step for "monte_carlo".
    n_nodes : int
        Gauss-Hermite nodes.  With the default 10 the error of the logistic expectations is below 2e-6 while the
        standard deviation of the linear predictor is at most 1, and below 8e-4 at 2.
    start : (loc, raw_scale), optional
        Where to start; must not depend on the records.
    n_threads : int, optional
        All cores by default.  The release does not depend on it.
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total).
    random_source : RandomSource, optional
        The operating system's generator by default.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible releases
        that are marked NOT PRIVATE.
    ledger : LedgerAccount, optional
        The data set's account in a :class:`dpinfer.PrivacyLedger`.  The run is charged there, on the disk, before its
        records are looked at, and stays counted if it dies, or if they are refused: see :class:`dpinfer.LedgerAccount`.
    checkpoint : path-like or RunCheckpoint, optional
        Save the state of the run there from time to time, and go on from it: the same call after a crash gives the
        release that one call would have given, bit for bit, for one charge.  The file is SECRET (it holds the key of
        the noise) and is removed when the run returns; with a :class:`dpinfer.mechanism.RunCheckpoint`, when the
        caller says that the release is safe.  Records that have changed are refused.

    Returns
    -------
    Release

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.
    BudgetExceededError
        If the data set's budget would be exceeded; nothing was spent.
    InsecureReleaseError
        If `ledger` is given together with an insecure `random_source`.
    LedgerError
        If the ledger cannot be read or written; nothing was spent.
    CheckpointError
        If `checkpoint` names a file that is not a checkpoint, or is damaged.

    Notes
    -----
    Source: NA-DPVI, Algorithm 3 and eq. A59.  Deviations: "split" keeps the data-independent part out of the clipped
    sum; "quadrature" has no Monte Carlo noise; with "monte_carlo" the entropy's gradient, and that of a generalised
    linear model's prior, are exact rather than averaged over the draws.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(500, 2)); y = (X[:, 0] > 0).astype(float)
    >>> plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=20)
    >>> release = dpi.run_dpvi(dpi.models.LogisticRegression(2), X, y, plan=plan, n_records=500, max_grad_norm=2.0)
    >>> release.noisy_gradients.shape
    (20, 4)
    >>> waits = dpi.models.GammaExponential()
    >>> dpi.run_dpvi(waits, rng.exponential(0.3, 500), plan=plan, n_records=500, max_grad_norm=2.0).names
    ('rate',)
    """
    if not isinstance(model, (GeneralizedLinearModel, ConjugateModel)):
        raise TypeError(f"model must be a generalised linear or a conjugate model, got {type(model).__name__}")
    if isinstance(model, ConjugateModel) and y is not None:
        raise TypeError(f"y must be None for {type(model).__name__}, whose records are X")
    if isinstance(model, GeneralizedLinearModel) and y is None:
        raise TypeError(f"y must be given for {type(model).__name__}")
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    if plan.sampling != "poisson":
        raise ValueError(f"plan must be for Poisson sampling, got {plan.sampling!r}")
    n_records = check_integer("n_records", n_records, 1)
    caution_of_delta(plan.delta, n_records)
    if recipe is None:
        own = grad_scale is not None or learning_rate is not None or gradient == "aligned"
        tied = isinstance(model, (ConjugateModel, LinearRegression)) and not own
        recipe = "tied" if tied or isinstance(grad_scale, FisherScaling) else "plain"
    preset = RECIPES[check_choice("recipe", recipe, RECIPES)]
    fisher = None
    if isinstance(grad_scale, FisherScaling):
        fisher, grad_scale = grad_scale, None
    scaled = fisher is not None or recipe in ("tied", "steady")
    if scaled and fisher is None and (grad_scale is not None or learning_rate is not None):
        raise ValueError(f"recipe {recipe!r} must not be given with grad_scale or learning_rate: it has its own")
    if scaled and learning_rate is not None:
        raise ValueError("learning_rate must not be given with Fisher scaling")
    if fisher is not None and (
        fisher.model != model or fisher.n_records != n_records or fisher.n_steps != plan.n_steps
    ):
        raise ValueError("grad_scale must be a FisherScaling of the same model, n_records and n_steps")
    raw_ratio = FisherScaling.raw_ratio if fisher is None else fisher.raw_ratio
    raw_ratio = 0.0 if gradient == "aligned" else raw_ratio
    max_grad_norm = _max_grad_norm(model, max_grad_norm, raw_ratio if scaled else None)
    if scaled and fisher is None:
        noise = plan.noise_multiplier * max_grad_norm / (plan.sample_rate * n_records)
        rate = largest_natural_rate(plan.n_steps, model.n_params, noise)
        least = steady_rate(model.n_params, noise) if recipe == "steady" else 0.0
        fisher = FisherScaling(model, n_records, plan.sample_rate, plan.n_steps, largest_rate=rate, smallest_rate=least)
    settings = _Settings(
        loss=check_choice("loss", preset["loss"] if loss is None else loss, ("split", "per_example")),
        expectation=check_choice(
            "expectation", preset["expectation"] if expectation is None else expectation, ("quadrature", "monte_carlo")
        ),
        gradient=check_choice(
            "gradient", preset["gradient"] if gradient is None else gradient, ("reparameterised", "aligned")
        ),
        n_draws=check_integer("n_draws", n_draws, 1, 10_000),
        n_nodes=check_integer("n_nodes", n_nodes, 1, 200),
    )
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1, 4096)
    source = OSRandomSource() if random_source is None else random_source
    if not isinstance(source, RandomSource):
        raise TypeError(f"random_source must be a RandomSource, got {type(source).__name__}")
    report = resolve_progress(progress, "private steps")
    if grad_scale is None:
        paper = _PAPER_CONJUGATE_RAW_SCALE if isinstance(model, ConjugateModel) else _PAPER_RAW_SCALE
        grad_scale = (1.0, paper)
    pointwise = fisher if settings.gradient == "aligned" else None
    if fisher is not None:
        grad_scale = fisher.grad_scale if pointwise is None else fisher.point_grad_scale
        learning_rate = fisher.learning_rate if pointwise is None else fisher.point_learning_rate
    elif learning_rate is None:
        learning_rate = "heuristic"
    policy = StepPolicy(
        grad_scale,
        learning_rate,
        n_params=model.n_params,
        heuristic_rate=1.0 / (plan.noise_multiplier * max_grad_norm * math.sqrt(plan.n_steps)),
    )
    params = fisher.start() if start is None and fisher is not None else _start(model, start)
    nodes, weights = np.polynomial.hermite_e.hermegauss(settings.n_nodes)
    if (
        isinstance(model, ConjugateModel)
        and settings.expectation == "quadrature"
        and settings.gradient == "reparameterised"
    ):
        model.check_points(settings.n_nodes)

    def description() -> dict[str, Any]:
        if fisher is None and (callable(grad_scale) or callable(learning_rate)):
            raise ValueError(
                "checkpoint must be None when grad_scale or learning_rate is a function: that a resumed run has the "
                "same one cannot be checked"
            )
        beta = policy.grad_scale(0, params)
        return {
            "version": __version__,
            "model": model.to_dict(),
            "plan": plan.to_dict(),
            "n_records": n_records,
            "max_grad_norm": max_grad_norm,
            "settings": asdict(settings),
            "scaling": None if fisher is None else [getattr(fisher, item.name) for item in fields(fisher)[1:]],
            "numbers": hash_numbers(params, beta, policy.learning_rate(0, params, beta)),
        }

    with private_run(
        plan,
        mechanism="dpvi",
        source=source,
        ledger=ledger,
        checkpoint=checkpoint,
        description=description,
    ) as private:
        # From here on the records are read; nothing is drawn before private.begin().
        records = _check(model, X, y)
        caution_of_count(plan.adjacency, n_records, len(records[0]), stacklevel=4)
        shared = SessionSettings(
            aligned=settings.gradient == "aligned",
            nodes=nodes,
            weights=weights / np.sqrt(2.0 * np.pi),
            sample_rate=plan.sample_rate,
            max_grad_norm=max_grad_norm,
            key=private.key,
            n_threads=threads,
        )
        session = _session(model, records, shared)
        run = _Run(
            model,
            plan,
            settings,
            session,
            pointwise,
            n_records=n_records,
            max_grad_norm=max_grad_norm,
            key=private.key,
        )
        trace = run.trace(params, policy, report, private, *private.begin(records))
    return Release(
        **trace,
        sample_rate=plan.sample_rate,
        names=model.names,
        n_records=n_records,
        gradient=settings.gradient,
        max_grad_norm=max_grad_norm,
        noise_multiplier=plan.noise_multiplier,
        event=plan.event,
        adjacency=plan.adjacency,
        delta=plan.delta,
        accountant=plan.accountant,
        secure=source.secure,
        model_spec=model.to_dict(),
        settings={
            "mechanism": "dpvi",
            "version": __version__,
            "recipe": recipe,
            "scaling": "fisher" if fisher is not None else "given",
            **({} if fisher is None else {"raw_ratio": raw_ratio, "tolerance": fisher.tolerance}),
            **({} if pointwise is None else {"excursion": pointwise.excursion}),
            "loss": settings.loss,
            "expectation": settings.expectation,
            "n_draws": settings.n_draws,
            "n_nodes": settings.n_nodes,
            **({"ledger": private.ledger_settings} if private.ledger_settings else {}),
        },
    )


def _check(model: GeneralizedLinearModel | ConjugateModel, X: Any, y: Any) -> tuple[npt.NDArray[Any], ...]:
    return (check_conjugate_records(model, X),) if isinstance(model, ConjugateModel) else check_records(model, X, y)


def _session(
    model: GeneralizedLinearModel | ConjugateModel, records: tuple[npt.NDArray[Any], ...], shared: SessionSettings
) -> GradientSession:
    if isinstance(model, ConjugateModel):
        return ConjugateSession(model, records[0], shared)
    return GlmSession(model, records[0], records[1], shared)


@dataclass(frozen=True)
class _Settings:
    loss: str
    expectation: str
    gradient: str
    n_draws: int
    n_nodes: int


class _Run:
    """One private run: the records' session, and the public arithmetic around its noisy sums."""

    def __init__(
        self,
        model: Model,
        plan: PrivacyPlan,
        settings: _Settings,
        session: GradientSession,
        pointwise: FisherScaling | None,
        *,
        n_records: int,
        max_grad_norm: float,
        key: bytes,
    ) -> None:
        self._n_params = model.n_params
        self._plan = plan
        self._session = session
        self._key = key
        self._process = os.getpid()
        self._aligned = settings.gradient == "aligned"
        self._pointwise = pointwise
        self._n_draws = 1 if self._aligned else settings.n_draws if settings.expectation == "monte_carlo" else 0
        self._share = 1.0 / n_records if settings.loss == "per_example" else 0.0
        self._noise = plan.noise_multiplier * max_grad_norm

    def trace(
        self,
        params: FloatArray,
        policy: StepPolicy,
        report: ProgressCallback,
        private: PrivateRun,
        done: int,
        saved: Mapping[str, FloatArray],
    ) -> dict[str, Any]:
        """Run the steps that are not `done`, and return the arrays of the release."""
        n, steps = self._n_params, self._plan.n_steps
        width = n if self._aligned else 2 * n
        all_params = np.empty((steps, 2 * n))
        gradients = np.empty((steps, width))
        points = np.empty((steps, width)) if self._aligned else all_params
        scales = np.empty((steps if policy.varying_scale else 1, width))
        rates = np.empty((steps if policy.varying_rate else 1, 2 * n))
        kept = {"params": all_params, "gradients": gradients, "points": points, "scales": scales, "rates": rates}
        params = restore(kept, {"next": params}, done, saved)["next"]
        for step in range(done, steps):
            all_params[step] = params
            draws = self._draws(step)
            if self._aligned:
                points[step] = params[:n] + softplus(params[n:]) * draws[0]
            at = params if self._pointwise is None else np.concatenate((points[step], params[n:]))
            beta = policy.grad_scale(step, at)
            stepsize = policy.learning_rate(step, at, beta)
            scales[step if policy.varying_scale else 0] = beta[:width]
            rates[step if policy.varying_rate else 0] = stepsize
            gradients[step], full = self._step(step, params, beta, draws)
            params = params - stepsize * full
            if self._pointwise is not None:
                params[n:] = self._pointwise.point_raw_scale(params[:n])
            made = step + 1
            private.save(made, partial(snapshot, kept, {"next": params}, made), last=made == steps)
            report(made, steps)
        beta_used = scales if policy.varying_scale else scales[0]
        return {
            "params": all_params,
            "positions": points,
            "noisy_gradients": gradients,
            "noise_stddev": self._noise / beta_used,
            "final_params": params,
            "grad_scale": beta_used,
            "learning_rate": rates if policy.varying_rate else rates[0],
        }

    def _draws(self, step: int) -> FloatArray:
        """Return the public draws of a step in units of q's scale, (draws, n); none for quadrature."""
        if not self._n_draws:
            return np.empty((0, self._n_params))
        draws = _native.monte_carlo_normals(self._key, step, self._n_draws * self._n_params)
        excursion = 1.0 if self._pointwise is None else self._pointwise.excursion
        return np.asarray(excursion * draws.reshape(-1, self._n_params))

    def _step(
        self, step: int, params: FloatArray, beta: FloatArray, draws: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the released gradient (k,) and the gradient that moves the parameters (2 n,)."""
        refuse_fork(self._process)
        n, rate = self._n_params, self._plan.sample_rate
        loc, raw = params[:n], params[n:]
        s, slope = softplus(raw), sigmoid(raw)
        entropy = -np.where(raw > -30.0, slope / np.maximum(s, _SMALL), 1.0)  # gradient of -H in raw_scale
        prior = self._session.prepare(loc, raw, draws if self._n_draws else None)
        if not self._aligned:
            prior[n:] += entropy
        beta = beta[: prior.size]
        offset = beta * (self._share * prior)
        released = self._session.noisy_sum(step, beta, offset, self._plan.noise_multiplier) / beta
        if self._share == 0.0:
            released += rate * prior
        if not self._aligned:
            return released, released
        return released, np.concatenate((released, draws[0] * slope * released + rate * entropy))


def _max_grad_norm(model: Model, value: float | str, raw_ratio: float | None) -> float:
    if isinstance(value, str):
        check_choice("max_grad_norm", value, ("auto",))
        if raw_ratio is None:
            raise ValueError("max_grad_norm must be a number without Fisher scaling, got 'auto'")
        return default_max_grad_norm(model, raw_ratio)
    return check_interval("max_grad_norm", value, 1e-30, 1e30, low_open=False, high_open=False)


def _start(model: Model, start: tuple[npt.ArrayLike, npt.ArrayLike] | None) -> FloatArray:
    if start is None:
        return np.concatenate(model.default_start())
    if not isinstance(start, tuple) or len(start) != 2:
        raise TypeError("start must be a pair (loc, raw_scale)")
    parts = []
    for name, value in zip(("start[0]", "start[1]"), start, strict=True):
        array = np.asarray(value)
        if array.ndim == 0:
            array = np.full(model.n_params, check_float_array(name, array))
        parts.append(check_float_array(name, array, (model.n_params,)))
    return np.concatenate(parts)

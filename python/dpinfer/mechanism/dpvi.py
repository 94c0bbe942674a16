"""DPVI: DP-SGD on the evidence lower bound, releasing the whole noisy gradient trace."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._float_environment import standard_arithmetic
from dpinfer._progress import ProgressCallback
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import LedgerAccount, PrivacyPlan
from dpinfer.mechanism import _native
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.mechanism.random_source import RandomSource
from dpinfer.mechanism.records import check_arguments, load_source
from dpinfer.mechanism.run import Algorithm, RunControl, check_plan, guarantee_fields, run_steps
from dpinfer.mechanism.run_state import hash_numbers
from dpinfer.mechanism.scaling import (
    FisherScaling,
    GradScale,
    LearningRate,
    StepPolicy,
    largest_natural_rate,
    steady_rate,
)
from dpinfer.mechanism.sums import Records, RowSource, SessionSettings, open_gradients
from dpinfer.models import GeneralizedLinearModel, GradientModel, Model, default_max_grad_norm
from dpinfer.models.bijectors import sigmoid, softplus
from dpinfer.models.gradient_model import check_row_gradients
from dpinfer.release import Release

__all__ = ["run_dpvi"]

FloatArray = npt.NDArray[np.float64]

RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"loss": "per_example", "expectation": "monte_carlo", "gradient": "reparameterised"},
    "plain": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
    "tied": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
    "steady": {"loss": "split", "expectation": "quadrature", "gradient": "reparameterised"},
}
_SMALL = 1e-300


@standard_arithmetic()
def run_dpvi(
    model: Model,
    X: npt.ArrayLike | RowSource,
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
    plan's numbers.  Bad records are refused before the first step, in which case nothing is spent; once it has started,
    the mechanism never raises because of a record, and a record with a non-finite gradient contributes zero.

    Parameters
    ----------
    model : GeneralizedLinearModel, ConjugateModel or GradientModel
        The library's, or one of your own: docs/own-models.md.
    X : (N, n_features) array of float64 or float32, or RowSource
        Not copied when C-contiguous.  For a conjugate model the records themselves, (N,) or (N, 1).  A
        :class:`dpinfer.mechanism.RowSource` reads its blocks, responses included, anew in every step; the release has
        the same bits.
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
        records are looked at, and stays counted if it dies; a charge is cancelled only when the records are refused.
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
    if not isinstance(model, Model) or model.gradient_sum is None:
        raise TypeError(
            f"model must be a generalised linear, a conjugate or a gradient model, got {type(model).__name__}"
        )
    if isinstance(X, RowSource):
        if y is not None:
            raise TypeError("y must be None with a RowSource, whose blocks are (X, y)")
    else:
        check_arguments(model, y)
    n_records = check_plan(plan, n_records)
    if recipe is None:
        own = grad_scale is not None or learning_rate is not None or gradient == "aligned"
        recipe = "tied" if (model.natural_steps and not own) or isinstance(grad_scale, FisherScaling) else "plain"
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
            "expectation",
            (preset["expectation"] if model.has_quadrature else "monte_carlo") if expectation is None else expectation,
            ("quadrature", "monte_carlo"),
        ),
        gradient=check_choice(
            "gradient", preset["gradient"] if gradient is None else gradient, ("reparameterised", "aligned")
        ),
        n_draws=check_integer("n_draws", n_draws, 1, 10_000),
        n_nodes=check_integer("n_nodes", n_nodes, 1, 200),
    )
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    if grad_scale is None:
        grad_scale = (1.0, model.published_raw_scale)
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
    if settings.expectation == "quadrature" and settings.gradient == "reparameterised":
        if not model.has_quadrature:
            raise ValueError(f"expectation must be 'monte_carlo' for {type(model).__name__}, got 'quadrature'")
        model.check_points(settings.n_nodes)
    if isinstance(model, (GeneralizedLinearModel, GradientModel)) and model.gradient_sum == "numpy":
        check_row_gradients(model)

    if checkpoint is not None and fisher is None and (callable(grad_scale) or callable(learning_rate)):
        raise ValueError(
            "checkpoint must be None when grad_scale or learning_rate is a function: that a resumed run has the "
            "same one cannot be checked"
        )
    run = _Gradients(model, plan, settings, policy, fisher, params, n_records=n_records, max_grad_norm=max_grad_norm)
    said = run_steps(run, plan, control, lambda: load_source(model, X, y, plan.adjacency))
    return Release(
        **run.trace(),
        sample_rate=plan.sample_rate,
        names=model.names,
        n_records=n_records,
        gradient=settings.gradient,
        max_grad_norm=max_grad_norm,
        noise_multiplier=plan.noise_multiplier,
        model_spec=model.to_dict(),
        settings=said
        | {
            "recipe": recipe,
            "scaling": "fisher" if fisher is not None else "given",
            **({} if fisher is None else {"raw_ratio": raw_ratio, "tolerance": fisher.tolerance}),
            **({} if pointwise is None else {"excursion": pointwise.excursion}),
            "loss": settings.loss,
            "expectation": settings.expectation,
            "n_draws": settings.n_draws,
            "n_nodes": settings.n_nodes,
        },
        **guarantee_fields(plan, control),
    )


@dataclass(frozen=True)
class _Settings:
    loss: str
    expectation: str
    gradient: str
    n_draws: int
    n_nodes: int


class _Gradients(Algorithm[Records | RowSource]):
    """Descent along noisy sums of preconditioned gradients: the public arithmetic around them."""

    mechanism = "dpvi"

    def __init__(
        self,
        model: Model,
        plan: PrivacyPlan,
        settings: _Settings,
        policy: StepPolicy,
        fisher: FisherScaling | None,
        params: FloatArray,
        *,
        n_records: int,
        max_grad_norm: float,
    ) -> None:
        self._model, self._plan, self._settings, self._policy = model, plan, settings, policy
        self._fisher, self.n_records, self._max_grad_norm = fisher, n_records, max_grad_norm
        self._aligned = settings.gradient == "aligned"
        self._pointwise = fisher if self._aligned else None
        self._n_draws = 1 if self._aligned else settings.n_draws if settings.expectation == "monte_carlo" else 0
        self._share = 1.0 / n_records if settings.loss == "per_example" else 0.0
        n, steps = model.n_params, plan.n_steps
        width = n if self._aligned else 2 * n
        self.kept = {
            "params": np.empty((steps, 2 * n)),
            "gradients": np.empty((steps, width)),
            "points": np.empty((steps, width)),
            "scales": np.empty((steps if policy.varying_scale else 1, width)),
            "rates": np.empty((steps if policy.varying_rate else 1, 2 * n)),
        }
        if not self._aligned:
            self.kept["points"] = self.kept["params"]
        self.state = {"next": params}

    def description(self) -> Mapping[str, Any]:
        """Return every public setting."""
        params = self.state["next"]
        beta = self._policy.grad_scale(0, params)
        fisher = self._fisher
        return {
            "model": self._model.to_dict(),
            "n_records": self.n_records,
            "max_grad_norm": self._max_grad_norm,
            "settings": asdict(self._settings),
            "scaling": None if fisher is None else [getattr(fisher, item.name) for item in fields(fisher)[1:]],
            "numbers": hash_numbers(params, beta, self._policy.learning_rate(0, params, beta)),
        }

    def start(self, records: Records | RowSource, control: RunControl, key: bytes) -> None:
        """Open the session."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(self._settings.n_nodes)
        shared = SessionSettings(
            aligned=self._aligned,
            nodes=nodes,
            weights=weights / np.sqrt(2.0 * np.pi),
            sample_rate=self._plan.sample_rate,
            max_grad_norm=self._max_grad_norm,
            key=key,
            n_threads=control.n_threads,
        )
        self._key = key
        self._session = open_gradients(self._model, records, shared)

    def query(self, step: int) -> FloatArray:
        """Return the noisy sum of preconditioned gradients, and keep where and with what scales it was taken."""
        params, n = self.state["next"], self._model.n_params
        loc, raw = params[:n], params[n:]
        self._draws = draws = self._public_draws(step)
        kept = self.kept
        kept["params"][step] = params
        if self._aligned:
            kept["points"][step] = loc + softplus(raw) * draws[0]
        at = params if self._pointwise is None else np.concatenate((kept["points"][step], raw))
        beta = self._policy.grad_scale(step, at)
        self._rate = self._policy.learning_rate(step, at, beta)
        width = kept["gradients"].shape[1]
        kept["scales"][step if self._policy.varying_scale else 0] = beta[:width]
        kept["rates"][step if self._policy.varying_rate else 0] = self._rate
        s, slope = softplus(raw), sigmoid(raw)
        self._entropy = -np.where(raw > -30.0, slope / np.maximum(s, _SMALL), 1.0)  # gradient of -H in raw_scale
        self._prior = self._session.prepare(loc, raw, draws if self._n_draws else None)
        if not self._aligned:
            self._prior[n:] += self._entropy
        self._beta = beta[:width]
        offset = self._beta * (self._share * self._prior)
        return self._session.noisy_sum(step, self._beta, offset, self._plan.noise_multiplier)

    def update(self, step: int, noisy: FloatArray) -> None:
        """Move the variational parameters along the released gradient."""
        params, n, rate = self.state["next"], self._model.n_params, self._plan.sample_rate
        released = noisy / self._beta
        if self._share == 0.0:
            released += rate * self._prior
        self.kept["gradients"][step] = full = released
        if self._aligned:
            full = np.concatenate((released, self._draws[0] * sigmoid(params[n:]) * released + rate * self._entropy))
        params = params - self._rate * full
        if self._pointwise is not None:
            params[n:] = self._pointwise.point_raw_scale(params[:n])
        self.state = {"next": params}

    def trace(self) -> dict[str, Any]:
        """Return the arrays of the release."""
        kept, policy = self.kept, self._policy
        beta = kept["scales"] if policy.varying_scale else kept["scales"][0]
        return {
            "params": kept["params"],
            "positions": kept["points"],
            "noisy_gradients": kept["gradients"],
            "noise_stddev": self._plan.noise_multiplier * self._max_grad_norm / beta,
            "final_params": self.state["next"],
            "grad_scale": beta,
            "learning_rate": kept["rates"] if policy.varying_rate else kept["rates"][0],
        }

    def _public_draws(self, step: int) -> FloatArray:
        """Return the public draws of a step in units of q's scale, (draws, n); none for quadrature."""
        n = self._model.n_params
        if not self._n_draws:
            return np.empty((0, n))
        draws = _native.monte_carlo_normals(self._key, step, self._n_draws * n)
        excursion = 1.0 if self._pointwise is None else self._pointwise.excursion
        return np.asarray(excursion * draws.reshape(-1, n))


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

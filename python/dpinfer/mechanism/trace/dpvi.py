"""DPVI: DP-SGD on the evidence lower bound, releasing the whole noisy gradient trace."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import TINY, FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import settings_of
from dpinfer.accounting import LedgerAccount, PrivacyPlan
from dpinfer.mechanism import _native
from dpinfer.mechanism.noise_keys import RandomSource, noise_step
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.mechanism.records import check_arguments, load_source
from dpinfer.mechanism.run import Algorithm, check_plan, guarantee_fields, hash_numbers, run_steps
from dpinfer.mechanism.sources.row_source import RowSource
from dpinfer.mechanism.sums.gradients import SessionSettings, open_gradients
from dpinfer.models import Model
from dpinfer.models.base import sigmoid, softplus
from dpinfer.recipes import GradientArguments, GradientOptions, GradientRun, choose_gradient_run
from dpinfer.recipes.full_rank import moved_guide, unpack_guide
from dpinfer.release import GradientTrace

_FARTHEST = 1e100  # an iterate's squares stay far from overflow


@standard_arithmetic()
def run_dpvi(
    model: Model,
    X: npt.ArrayLike | RowSource,
    y: npt.ArrayLike | None = None,
    *,
    plan: PrivacyPlan,
    n_records: int,
    settings: GradientArguments | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[GradientOptions],
) -> GradientTrace:
    """Run differentially private variational inference and release its noisy gradient trace.

    One step samples each record with probability kappa, clips the preconditioned gradient of each sampled record's
    loss to norm C, sums on an integer lattice, adds Gaussian noise of standard deviation sigma C, and moves the
    variational parameters of q(theta) = N(loc, diag(softplus(raw_scale)**2)), or N(loc, L L') with guide="full_rank".

    **Privacy.** Reads the records.  Adjacency: that of `plan` (add/remove one record).  The L2 sensitivity of each sum
    is at most C (docs/derivations/dpvi-mechanism.md); the release is (epsilon, delta)-differentially private with the
    plan's numbers.  Bad records are refused before the first step, in which case nothing is drawn; once it has started,
    the mechanism never raises because of a record, and a record with a non-finite gradient contributes zero.

    Raises InsecureReleaseError if `ledger` is given together with an insecure `random_source`. Raises CheckpointError
    if `checkpoint` names a file that is not a checkpoint, or is damaged.

    Parameters
    ----------
    model : GeneralizedLinearModel, ConjugateModel or GradientModel
        The library's, or one of your own: docs/own-models.md.
    X : (N, n_features) array of float64 or float32, or RowSource
        Not copied when C-contiguous.  For a conjugate model the records themselves, (N,) or (N, 1).  A
        :class:`dpinfer.mechanism.RowSource` reads its blocks, responses included, anew in every step; the release has
        the same bits.
    y : (N,) array, optional
        Responses: 0 or 1, counts, or real numbers, depending on the model. None for a conjugate model.
    plan : PrivacyPlan
        From :func:`dpinfer.plan_privacy`; fixes noise_multiplier, sample_rate and n_steps.
    n_records : int
        A *public* number of records; ``len(X)`` would be private under add/remove adjacency.
    settings : GradientArguments, optional
        Clipping norm, recipe, preconditioner, learning rate, loss, start and numerical settings.
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
        caller discards it.  Records that have changed are refused.
    **options
        Fields of :class:`dpinfer.mechanism.GradientArguments`, such as ``max_grad_norm=2.0`` or ``recipe="steady"``:
        they replace those of `settings`.

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
    check_arguments(model, y, X, ("blocks",))
    n_records = check_plan(plan, n_records)
    arguments = settings_of("run_dpvi", GradientArguments, settings, options)
    chosen = choose_gradient_run(model, plan, n_records, arguments)
    if checkpoint is not None and chosen.own_functions:
        raise ValueError(
            "checkpoint must be None when grad_scale or learning_rate is a function: that a resumed run has the "
            "same one cannot be checked"
        )
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    run = _Gradients(chosen)
    charged = run_steps(run, plan, control, lambda: load_source(model, X, y, plan.adjacency))
    return GradientTrace(
        **run.trace(),
        sample_rate=plan.sample_rate,
        names=model.names,
        n_records=n_records,
        family="full_rank" if chosen.settings.guide == "full_rank" else "mean_field",
        gradient=chosen.settings.gradient,
        max_grad_norm=chosen.max_grad_norm,
        noise_multiplier=plan.noise_multiplier,
        model_spec=model.to_dict(),
        settings=charged | chosen.settings.to_dict(),
        **guarantee_fields(plan, control),
    )


class _Gradients(Algorithm[RowSource]):
    """Descent along noisy sums of preconditioned gradients: the public arithmetic around them."""

    mechanism = "dpvi"

    def __init__(self, chosen: GradientRun) -> None:
        settings, policy = chosen.settings, chosen.policy
        self._chosen, self._model, self._plan, self._policy = chosen, chosen.model, chosen.plan, policy
        self.n_records = chosen.n_records
        self._aligned = settings.gradient == "aligned"
        self._full_rank = settings.guide == "full_rank"
        self._pointwise = chosen.pointwise
        self._n_draws = 1 if self._aligned else settings.n_draws if settings.expectation == "monte_carlo" else 0
        self._share = 1.0 / chosen.n_records if settings.loss == "per_example" else 0.0
        n, steps = self._model.n_params, self._plan.n_steps
        width = n if self._aligned else 2 * n
        self.kept = {
            "params": np.empty((steps, chosen.start.size)),
            "gradients": np.empty((steps, width)),
            "points": np.empty((steps, width)),
            "scales": np.empty((steps if policy.varying_scale else 1, width)),
            "rates": np.empty((steps if policy.varying_rate else 1, 2 * n)),
        }
        if not self._aligned:
            self.kept["points"] = self.kept["params"]
        self.state = {"next": chosen.start}

    def description(self) -> Mapping[str, Any]:
        params = self.state["next"]
        beta = self._policy.grad_scale(0, params)
        fisher = self._chosen.fisher
        return {
            "model": self._model.to_dict(),
            "n_records": self.n_records,
            "max_grad_norm": self._chosen.max_grad_norm,
            "settings": asdict(self._chosen.settings),
            "scaling": None if fisher is None else [getattr(fisher, item.name) for item in fields(fisher)[1:]],
            "numbers": hash_numbers(params, beta, self._policy.learning_rate(0, params, beta)),
        }

    def arrays(self, records: RowSource) -> Iterable[npt.NDArray[Any]]:
        return records.arrays()

    def start(self, records: RowSource, control: RunControl, key: bytes) -> None:
        nodes, weights = np.polynomial.hermite_e.hermegauss(self._chosen.settings.n_nodes)
        shared = SessionSettings(
            aligned=self._aligned,
            nodes=nodes,
            weights=weights / np.sqrt(2.0 * np.pi),
            sample_rate=self._plan.sample_rate,
            max_grad_norm=self._chosen.max_grad_norm,
            key=key,
            n_threads=control.n_threads,
        )
        self._key = key
        self._session = open_gradients(self._model, records, shared)

    def query(self, step: int) -> FloatArray:
        """Return the noisy sum of preconditioned gradients, and keep its position and scales."""
        params, n = self.state["next"], self._model.n_params
        self._draws = draws = self._public_draws(step)
        kept = self.kept
        kept["params"][step] = params
        if self._full_rank:
            # A diagonal guide at the point, without spread.
            loc, factor = unpack_guide(params, n)
            loc, raw, draws = loc + factor @ draws[0], np.zeros(n), np.zeros((1, n))
            kept["points"][step] = loc
            params = np.concatenate((loc, raw))
        else:
            loc, raw = params[:n], params[n:]
        if self._aligned and not self._full_rank:
            kept["points"][step] = loc + softplus(raw) * draws[0]
        at = params if self._pointwise is None else np.concatenate((kept["points"][step], raw))
        beta = self._policy.grad_scale(step, at)
        self._rate = self._policy.learning_rate(step, at, beta)
        width = kept["gradients"].shape[1]
        kept["scales"][step if self._policy.varying_scale else 0] = beta[:width]
        kept["rates"][step if self._policy.varying_rate else 0] = self._rate
        s, self._slope = softplus(raw), sigmoid(raw)
        self._entropy = -np.where(raw > -30.0, self._slope / np.maximum(s, TINY), 1.0)  # gradient of -H in raw_scale
        self._prior = self._session.prepare(loc, raw, draws if self._n_draws else None)
        if not self._aligned:
            self._prior[n:] += self._entropy
        if not np.all(np.isfinite(self._prior)):
            self._prior = np.nan_to_num(self._prior, nan=0.0, posinf=_FARTHEST, neginf=-_FARTHEST)
        self._beta = beta[:width]
        offset = self._beta * (self._share * self._prior)
        norm, sigma, steps = self._chosen.max_grad_norm, self._plan.noise_multiplier, self._plan.n_steps
        stream = noise_step(self._key, step, steps, loc, raw, s, draws, self._beta, offset, self._aligned, norm, sigma)
        return self._session.noisy_sum(stream, self._beta, offset, sigma)

    def update(self, step: int, noisy: FloatArray) -> None:
        params, n, rate = self.state["next"], self._model.n_params, self._plan.sample_rate
        released = noisy / self._beta
        if self._share == 0.0:
            released += rate * self._prior
        self.kept["gradients"][step] = full = released
        if self._full_rank:
            stddev = self._plan.noise_multiplier * self._chosen.max_grad_norm / self._beta / rate
            moved = moved_guide(params, self._draws[0], full / rate, stddev, self._plan.n_steps)
            if np.all(np.abs(moved) <= _FARTHEST):
                self.state = {"next": moved}
            return
        if self._aligned:
            full = np.concatenate((released, self._draws[0] * self._slope * released + rate * self._entropy))
        moved = params - self._rate * full
        # Too much noise for the steps can make the iterate overflow: then it stays at its last value.
        params = np.where(np.abs(moved) <= _FARTHEST, moved, params)
        if self._pointwise is not None:
            params[n:] = self._pointwise.point_raw_scale(params[:n])
        self.state = {"next": params}

    def trace(self) -> dict[str, Any]:
        kept, policy = self.kept, self._policy
        beta = kept["scales"] if policy.varying_scale else kept["scales"][0]
        return {
            "params": kept["params"],
            "positions": kept["points"],
            "noisy_gradients": kept["gradients"],
            "noise_stddev": self._plan.noise_multiplier * self._chosen.max_grad_norm / beta,
            "final_params": self.state["next"],
            "grad_scale": beta,
            "learning_rate": None if self._full_rank else kept["rates"] if policy.varying_rate else kept["rates"][0],
        }

    def _public_draws(self, step: int) -> FloatArray:
        """Return the public draws of a step in units of q's scale, (draws, n); none for quadrature."""
        n = self._model.n_params
        if not self._n_draws:
            return np.empty((0, n))
        draws = _native.monte_carlo_normals(self._key, step, self._n_draws * n)
        excursion = 1.0 if self._pointwise is None else self._pointwise.excursion
        return np.asarray(excursion * draws.reshape(-1, n))

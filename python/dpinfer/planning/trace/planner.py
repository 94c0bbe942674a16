"""The planner: which settings, and how wide the posterior will be, before any record is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_float_array, check_integer, check_interval, settings_of
from dpinfer.accounting import PrivacyPlan
from dpinfer.accounting.guarantee import caution_of_delta
from dpinfer.inference.request import PosteriorOptions, has_model_hessian
from dpinfer.models import LogisticRegression, Model
from dpinfer.planning import tuning
from dpinfer.planning.trace.drift import Drift, LogisticPilot, QuadraticLoss
from dpinfer.planning.trace.fisher import Prediction, predict_tied
from dpinfer.planning.trace.result import InferencePlan, PlanGrid
from dpinfer.planning.trace.settings import (
    PILOT_RECORDS,
    PRIORS,
    SEED,
    PlanOptions,
    PlanSettings,
    check_informed,
    fewest_passes,
    needs_small_steps,
    pilot_design,
    usual_grad_norm,
)
from dpinfer.planning.trace.simulated import PlainRun, predict_simulated

_TRIAL: PosteriorOptions = {"n_samples": 60, "n_warmup": 40, "check_convergence": False}  # format
_PAPER_POSTERIOR: PosteriorOptions = {"prior": "empirical", "burn_in": 0.2, "extra_noise": False}  # format


@dataclass(frozen=True)
class _Choice:
    """A simulated run, its posterior, and their results."""

    factor: float
    run: PlainRun
    posterior: PosteriorOptions
    prediction: Prediction


def plan_inference(
    model: Model,
    settings: PlanSettings | None = None,
    *,
    n_records: int,
    target_epsilon: float,
    target_delta: float,
    progress: bool | ProgressCallback = False,
    **options: Unpack[PlanOptions],
) -> InferencePlan:
    """Predict the width of a noise-aware posterior, and recommend the settings that are not given.

    **Privacy.** Reads no records.  `pilot` and `curvature` must be public: nothing here adds noise to them.

    Raises NumericalError if no simulated run gave a posterior.

    Parameters
    ----------
    model : Model
        A conjugate or generalised linear model.
    settings : PlanSettings, optional
        All settings from `recipe` to `seed` in one object; those given by name change it.
    n_records : int
        Public number of records.
    target_epsilon : float
    target_delta : float in (0, 1)
    recipe : {"auto", "tied", "plain", "paper"}
        As in :func:`dpinfer.run_dpvi`, with the posterior that :func:`dpinfer.noise_aware_posterior` gives by default;
        "paper": with the published prior and burn-in.  "auto" is the default of `run_dpvi`.
    sample_rate, n_steps : float, int, optional
        Recommended: the fewest passes over the records that widen within 1% of the least.
    max_grad_norm : float, optional
        Recommended for "tied": as in `run_dpvi`; otherwise the 98.5% quantile of the gradients' norm under
        the model, on the pilot features if given.
    learning_rate_factor : float, optional
        Learning rate over the heuristic ``beta / (sigma C sqrt(T))``; "plain" only.  Recommended, together with the
        prior of a diagonal Hessian: the one of seven from 1/8 to 2 that gives the narrowest intervals in simulated runs
        with a simulated coverage of at least 0.88 (with a full Hessian: less one Monte Carlo error), or, if none
        reaches that, the best interval score among those that cover most.
    hessian : {"auto", "diagonal"}
        Hessian of the predicted posterior, as in :func:`dpinfer.noise_aware_posterior`; "plain" only. "auto": as in a
        fit, for logistic, probit and Poisson regression the full Hessian.  "diagonal": without sampling.
    prior : {"weak", "model"}, optional
        Of the posterior, likewise; "plain" only.  By default "model" with a full Hessian, else recommended as above.
    pilot : (m, n_features) array, optional
        *Public* features, from the same source as the records but not themselves to be protected.  No labels.  Without
        it a regression's features are normal, with the model's public moments.
    curvature : (n,) or (n, n) array, optional
        Information of one record about the parameters, instead of the model's expectation at its prior.
    n_simulations : int
        Simulated runs behind a prediction for "plain" and "paper"; 4 by default.
    seed : int
        Of the simulated runs.
    progress : bool or callable
        True: a bar on a terminal's stderr; a callable gets (done, total).

    Notes
    -----
    "tied" is a closed form; "plain" and "paper" simulate the trace model, several steps at a time, and put the traces
    through the library's own posterior.  With a full Hessian of 57 weights every simulated run takes about as long as
    the posterior of a fit; learning rates are compared on fewer draws.  Derivation, validation, cost:
    docs/derivations/planner.md.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> plan = dpi.plan_inference(dpi.models.BetaBernoulli(), n_records=5000, target_epsilon=0.3, target_delta=1e-5)
    >>> plan.recipe, bool(plan.widening[0] < 1.1)
    ('tied', True)
    """
    check_informed(model)
    n_records = check_integer("n_records", n_records, 1)
    target_epsilon = check_interval("target_epsilon", target_epsilon, 0.0)
    target_delta = check_interval("target_delta", target_delta, 0.0, 1.0)
    caution_of_delta(target_delta, n_records)
    settings = settings_of("plan_inference", PlanSettings, settings, options).resolve(model)
    features = pilot_design(model, settings.pilot)
    information = _curvature(model, settings.curvature)
    posteriors = _posteriors(model, settings)
    max_grad_norm = usual_grad_norm(model, settings, features)
    slow = needs_small_steps(model, settings)
    privacy = fewest_passes(target_epsilon, target_delta, n_records, max_grad_norm, settings, slow=slow)
    if settings.recipe == "tied":
        about = np.diagonal(information).copy() if information is not None and information.ndim == 2 else information
        prediction = predict_tied(
            model,
            n_records=n_records,
            sample_rate=privacy.sample_rate,
            n_steps=privacy.n_steps,
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=max_grad_norm,
            information=about,
        )
        rate, scale, factor, posterior = None, None, None, PosteriorOptions()
    else:
        choice = _simulated(
            model,
            settings,
            privacy,
            max_grad_norm,
            _drift(model, settings, n_records, features, information, max_grad_norm),
            n_records=n_records,
            posteriors=posteriors,
            report=resolve_progress(progress, "simulated posteriors"),
        )
        factor, prediction, posterior = choice.factor, choice.prediction, choice.posterior
        rate = choice.run.learning_rate
        scale = (float(choice.run.grad_scale[0]), float(choice.run.grad_scale[-1]))
    return InferencePlan(
        names=model.names,
        recipe=settings.recipe,
        n_records=n_records,
        privacy=privacy,
        max_grad_norm=max_grad_norm,
        learning_rate=rate,
        learning_rate_factor=factor,
        grad_scale=scale,
        posterior=posterior,
        prediction=prediction,
        recommended=_recommended(settings, posteriors),
    )


def widening_grid(
    model: Model,
    settings: PlanSettings | None = None,
    *,
    n_records: Sequence[int],
    target_epsilon: Sequence[float],
    target_delta: float,
    progress: bool | ProgressCallback = False,
    **options: Unpack[PlanOptions],
) -> PlanGrid:
    """Plan for several numbers of records and epsilons.

    **Privacy.** Reads no records; see :func:`plan_inference`.

    Parameters
    ----------
    model : Model
    settings : PlanSettings, optional
        Of every plan.
    n_records : sequence of int
    target_epsilon : sequence of float
    target_delta : float in (0, 1)
    progress : bool or callable
        As in :func:`plan_inference`, for all plans together.
    **options
        Single settings, as in :func:`plan_inference`.
    """
    counts, epsilons = tuple(n_records), tuple(target_epsilon)
    if not counts or not epsilons:
        raise ValueError("n_records and target_epsilon must not be empty")
    settings = settings_of("widening_grid", PlanSettings, settings, options)
    report = resolve_progress(progress, "plans")
    size = len(counts) * len(epsilons)

    def plan(place: int, count: int, epsilon: float) -> InferencePlan:
        return plan_inference(
            model,
            settings,
            n_records=count,
            target_epsilon=epsilon,
            target_delta=target_delta,
            progress=lambda done, total: report(place * total + done, size * total),
        )

    plans = tuple(
        tuple(plan(row * len(epsilons) + column, count, epsilon) for column, epsilon in enumerate(epsilons))
        for row, count in enumerate(counts)
    )
    report(1, 1)
    return PlanGrid(counts, epsilons, plans)


def _recommended(settings: PlanSettings, posteriors: list[PosteriorOptions]) -> tuple[str, ...]:
    """Return the names of the settings that the planner chose."""
    given: dict[str, Any] = {
        "sample_rate": settings.sample_rate,
        "n_steps": settings.n_steps,
        "max_grad_norm": settings.max_grad_norm,
    }
    if settings.recipe == "plain":
        given["learning_rate"] = settings.learning_rate_factor
        if "prior" in posteriors[0]:
            given["prior"] = settings.prior
    return tuple(name for name, value in given.items() if value is None)


def _curvature(model: Model, curvature: npt.ArrayLike | None) -> FloatArray | None:
    if curvature is None:
        return None
    values = check_float_array("curvature", curvature)
    n = model.n_params
    if values.shape not in ((n,), (n, n)):
        raise ValueError(f"curvature must have shape ({n},) or ({n}, {n}), got {values.shape}")
    if values.ndim == 1 and not np.all(values > 0.0):
        raise ValueError("curvature must be positive")
    if values.ndim == 2 and not (np.array_equal(values, values.T) and np.linalg.eigvalsh(values)[0] > 0.0):
        raise ValueError("curvature must be symmetric and positive definite")
    return values


def _drift(
    model: Model,
    settings: PlanSettings,
    n_records: int,
    features: FloatArray | None,
    information: FloatArray | None,
    max_grad_norm: float,
) -> Drift:
    """Return the expected gradients of simulated runs with parameters from the prior."""
    informed: Any = model
    n_simulations = settings.n_simulations
    rng = np.random.default_rng((SEED, settings.seed))
    theta = informed.unconstrain(informed.sample_prior(n_simulations, rng))
    _, prior_stddev = model.prior_moments()
    if isinstance(model, LogisticRegression) and information is None:
        if features is None:
            features = informed.reference_records(theta[0], PILOT_RECORDS, rng)[0][0]
        return LogisticPilot(
            design=features,
            truth=theta,
            scale_up=n_records / features.shape[0],
            prior_precision=model.prior_scale**-2.0,
            max_grad_norm=max_grad_norm,
            raw_grad_scale=model.published_raw_scale,
        )
    if information is None:
        about = np.maximum(informed.information(theta), 1e-12)
        per_record = np.einsum("ri,ij->rij", about, np.eye(model.n_params))
        if features is not None:
            k = features.shape[1]
            moments = features.T @ features / features.shape[0]
            scale = about[:, :k] / informed.second_moments
            per_record[:, :k, :k] = scale[:, :1, None] * moments
    else:
        matrix = np.diag(information) if information.ndim == 1 else information
        per_record = np.broadcast_to(matrix, (n_simulations, *matrix.shape))
    return QuadraticLoss(theta, n_records * per_record, prior_stddev**-2.0)


def _simulated(
    model: Model,
    settings: PlanSettings,
    privacy: PrivacyPlan,
    max_grad_norm: float,
    drift: Drift,
    *,
    n_records: int,
    posteriors: list[PosteriorOptions],
    report: ProgressCallback,
) -> _Choice:
    """Return the run and its prediction, with the best of several learning rates and priors if none is given."""
    n = model.n_params
    grad_scale = np.repeat([1.0, model.published_raw_scale], n)
    heuristic = grad_scale / (privacy.noise_multiplier * max_grad_norm * math.sqrt(privacy.n_steps))
    factor = settings.learning_rate_factor
    factors: tuple[float, ...] = (1.0 if factor is None else factor,)
    if settings.recipe == "plain" and factor is None:
        sharpest = float(np.max(np.linalg.eigvalsh(drift.hessian()))) * privacy.sample_rate * float(heuristic[0])
        chosen = tuning.TUNING
        factors = tuple(f for f in chosen.factors if f <= 1.0 or f * sharpest <= chosen.largest_contraction)
    # Fewer draws suffice to compare learning rates; the chosen one gets as many as a fit.
    trial = _TRIAL if not posteriors[0] and len(factors) > 1 else PosteriorOptions()
    rounds = len(factors) + bool(trial)

    def predict(multiple: float, finished: int, extra: PosteriorOptions) -> list[_Choice]:
        run = PlainRun(
            n_steps=privacy.n_steps,
            sample_rate=privacy.sample_rate,
            noise_multiplier=privacy.noise_multiplier,
            max_grad_norm=max_grad_norm,
            grad_scale=grad_scale,
            learning_rate=multiple * heuristic,
            start=np.concatenate(model.default_start()),
        )
        predictions = predict_simulated(
            run,
            drift,
            model,
            [options | extra for options in posteriors],
            n_records=n_records,
            seed=settings.seed,
            report=lambda done, total: report(finished * total + done, rounds * total),
        )
        return [
            _Choice(multiple, run, options, prediction)
            for options, prediction in zip(posteriors, predictions, strict=True)
        ]

    best = _best([choice for index, each in enumerate(factors) for choice in predict(each, index, trial)])
    return predict(best.factor, len(factors), PosteriorOptions())[0] if trial else best


def _posteriors(model: Model, settings: PlanSettings) -> list[PosteriorOptions]:
    """Return the arguments of :func:`dpinfer.noise_aware_posterior` to choose from; none for the default."""
    prior = settings.prior
    if settings.recipe == "paper":
        return [_PAPER_POSTERIOR.copy()]
    if settings.hessian == "auto" and prior != "weak" and has_model_hessian(model):
        return [{}]
    return [{"hessian": "diagonal", "prior": name} for name in (PRIORS if prior is None else (prior,))]


def _covers(choice: _Choice) -> bool:
    """Return whether the intervals cover enough, or may do so where the posterior has no known flaw."""
    prediction = choice.prediction
    doubt = 0.0 if choice.posterior or not math.isfinite(prediction.coverage_stderr) else prediction.coverage_stderr
    return prediction.coverage90 + doubt >= tuning.TUNING.least_coverage


def _best(choices: list[_Choice]) -> _Choice:
    good = [choice for choice in choices if _covers(choice)]
    if good:
        return min(good, key=lambda choice: choice.prediction.typical_widening)
    highest = max(choice.prediction.coverage90 for choice in choices)
    best = [choice for choice in choices if choice.prediction.coverage90 >= highest - tuning.TUNING.coverage_slack]
    return min(best, key=lambda choice: choice.prediction.score90)

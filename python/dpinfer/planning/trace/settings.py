"""Settings of a plan, checked alone and against the model, its features, and the settings that are recommended."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import PrivacyPlan, plan_privacy
from dpinfer.models import ConjugateModel, InformedModel, LinearRegression, Model, default_max_grad_norm
from dpinfer.models import tuning as common
from dpinfer.planning import tuning
from dpinfer.recipes import FisherScaling

PILOT_RECORDS = 1000  # simulated moments err by 1 / sqrt(1000), 3%
SEED = 20_261_121  # a date


def pilot_design(model: Model, pilot: npt.ArrayLike | None) -> FloatArray | None:  # (m, n) or None
    """Return the first thousand rows of the pilot (m, n_features), the intercept's column included.

    Without a pilot: normal features with the model's `feature_moments`, if it has any.

    **Privacy.** The pilot must be public.

    Raises TypeError or ValueError if the pilot does not fit the model.
    """
    moments = getattr(model, "feature_moments", None)
    if pilot is None and moments is None:
        return None
    if isinstance(model, ConjugateModel):
        raise ValueError("pilot must not be given with a conjugate model: it has no features")
    if pilot is None:
        matrix = np.array(moments, dtype=np.float64)
        mean = matrix[-1, :-1]
        values, vectors = np.linalg.eigh(matrix[:-1, :-1] - np.outer(mean, mean))
        noise = np.random.default_rng(SEED).standard_normal((PILOT_RECORDS, mean.size))
        features = mean + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    else:
        width: int = model.n_features  # type: ignore[attr-defined]
        features = check_float_array("pilot", pilot, (None, width))
        if features.shape[0] < 2:
            raise ValueError(f"pilot must have at least 2 rows, got {features.shape[0]}")
        features = features[:PILOT_RECORDS]
    if getattr(model, "fit_intercept", False):
        features = np.column_stack((features, np.ones(features.shape[0])))
    return np.asarray(features)


RECIPES = ("auto", "tied", "plain", "paper")
HESSIANS = ("auto", "diagonal")
PRIORS = ("weak", "model")


class PlanOptions(TypedDict, total=False):
    """Fields of a :class:`PlanSettings` as keyword arguments."""

    recipe: str
    sample_rate: float | None
    n_steps: int | None
    max_grad_norm: float | None
    learning_rate_factor: float | None
    hessian: str
    prior: str | None
    pilot: npt.ArrayLike | None
    curvature: npt.ArrayLike | None
    n_simulations: int
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanSettings:
    """The settings of a plan, checked one by one when made; None is for the planner to recommend or to expect.

    **Privacy.** Public; holds no records.  `pilot` and `curvature` must be public: nothing adds noise to them.

    Raises TypeError or ValueError if a field is wrong by itself.  The shapes of `pilot` and `curvature` are checked
    with the model.

    Parameters
    ----------
    recipe, sample_rate, n_steps, max_grad_norm, learning_rate_factor, hessian, prior, pilot, curvature, \
n_simulations, seed
        As in :func:`dpinfer.plan_inference`.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> settings = PlanSettings(sample_rate=0.1, n_steps=2500)
    >>> model = dpi.models.BetaBernoulli()
    >>> plan = dpi.plan_inference(model, settings, n_records=5000, target_epsilon=0.3, target_delta=1e-5)
    >>> plan.recommended
    ('max_grad_norm',)
    """

    recipe: str = "auto"
    sample_rate: float | None = None
    n_steps: int | None = None
    max_grad_norm: float | None = None
    learning_rate_factor: float | None = None
    hessian: str = "auto"
    prior: str | None = None
    pilot: npt.ArrayLike | None = None
    curvature: npt.ArrayLike | None = None
    n_simulations: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, RECIPES)
        check_choice("hessian", self.hessian, HESSIANS)
        put = object.__setattr__
        if self.prior is not None:
            check_choice("prior", self.prior, PRIORS)
        if self.sample_rate is not None:
            put(self, "sample_rate", check_interval("sample_rate", self.sample_rate, 0.0, 1.0, high_open=False))
        if self.n_steps is not None:
            put(self, "n_steps", check_integer("n_steps", self.n_steps, 1))
        if self.max_grad_norm is not None:
            put(self, "max_grad_norm", check_interval("max_grad_norm", self.max_grad_norm, 1e-30, 1e30))
        if self.learning_rate_factor is not None:
            put(self, "learning_rate_factor", check_interval("learning_rate_factor", self.learning_rate_factor, 0.0))
        put(self, "n_simulations", check_integer("n_simulations", self.n_simulations, 1, 1000))
        put(self, "seed", check_integer("seed", self.seed, 0))

    def resolve(self, model: Model) -> "PlanSettings":
        """Return the settings with the recipe of the model's run, after refusing settings that do not fit it.

        Raises ValueError if a setting does not belong to the recipe, or one that the recipe needs is not given.
        """
        usual = "tied" if model.natural_steps else "plain"
        recipe = usual if self.recipe == "auto" else self.recipe
        is_set = {
            "learning_rate_factor": self.learning_rate_factor is not None,
            "hessian": self.hessian != "auto",
            "prior": self.prior is not None,
        }
        for name, changed in is_set.items():
            if changed and recipe != "plain":
                raise ValueError(f"{name} must not be given with recipe {recipe!r}: it has its own")
        if recipe == "paper" and None in (self.sample_rate, self.n_steps, self.max_grad_norm):
            raise ValueError("sample_rate, n_steps and max_grad_norm must be given with recipe 'paper'")
        return replace(self, recipe=recipe)


def recommended_run(
    model: Model, *, n_records: int, target_epsilon: float, target_delta: float
) -> tuple[PrivacyPlan, float]:
    """Return the privacy plan and the clipping norm that :func:`plan_inference` recommends, without a prediction.

    Arguments are as there.

    Raises TypeError if the model has no expected information.
    """
    check_informed(model)
    settings = PlanSettings().resolve(model)
    norm = usual_grad_norm(model, settings, pilot_design(model, None))
    slow = needs_small_steps(model, settings)
    return fewest_passes(target_epsilon, target_delta, n_records, norm, settings, slow=slow), norm


def check_informed(model: Model) -> None:
    """Refuse a model without an expected information."""
    if not isinstance(model, InformedModel) or not isinstance(model, Model):
        raise TypeError(f"model must be a model with an expected information, got {type(model).__name__}")


def usual_grad_norm(model: Model, settings: PlanSettings, features: FloatArray | None) -> float:
    """Return the clipping norm of the settings, or the usual one of the model's gradients."""
    if settings.max_grad_norm is not None:
        return settings.max_grad_norm
    norm = _clipping_norm(model, settings.recipe, features)
    if not 1e-30 < norm < 1e30:
        raise ValueError("max_grad_norm must be given for a prior whose draws have gradients of no usual size")
    return norm


def needs_small_steps(model: Model, settings: PlanSettings) -> bool:
    """Return whether the trace bends, so that its steps must be small."""
    return settings.recipe != "tied" or isinstance(model, LinearRegression)


def _clipping_norm(model: Model, recipe: str, features: FloatArray | None) -> float:
    if recipe == "tied":
        return default_max_grad_norm(model, FisherScaling.raw_ratio)
    informed: Any = model
    rng = np.random.default_rng(SEED)
    norms = []
    for theta in informed.unconstrain(informed.sample_prior(20, rng)):
        if features is None:
            records, weights = informed.reference_records(theta, PILOT_RECORDS, rng)
        else:
            # Draws of the prior may be extreme: if no response can be drawn, the nearest possible ones are used.
            eta = np.minimum(features @ theta[: features.shape[1]], informed.largest_predictor)
            response = informed.draw_response(eta, informed.constrain(theta), rng)
            records, weights = (features, response), np.full(features.shape[0], 1.0 / features.shape[0])
        norm = np.linalg.norm(informed.record_derivatives(records, theta)[0], axis=1)
        norms.append(np.quantile(norm, common.TUNING.clip_quantile, weights=weights, method="inverted_cdf"))
    return float(np.median(norms))


@cache
def _calibrated(epsilon: float, delta: float, sample_rate: float, n_steps: int) -> PrivacyPlan:
    return plan_privacy(target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, n_steps=n_steps)


def fewest_passes(
    epsilon: float, delta: float, n_records: int, max_grad_norm: float, settings: PlanSettings, *, slow: bool
) -> PrivacyPlan:
    """Return the plan with the fewest passes over the records that widens within 1% of the least.

    The noise of a step is sigma C in the sum and that of the sampling; T steps at rate kappa carry the information
    ``T kappa**2 / (sigma**2 C**2 + kappa (1 - kappa) N)`` per unit of squared curvature.  `slow` asks for small steps.
    """
    sample_rate, n_steps = settings.sample_rate, settings.n_steps
    if sample_rate is not None and n_steps is not None:
        return _calibrated(epsilon, delta, sample_rate, n_steps)
    rates = tuning.TUNING.sample_rates if sample_rate is None else (sample_rate,)
    counts = tuple(count for count in tuning.TUNING.steps if not (slow and count < 2500))
    steps = counts if n_steps is None else (n_steps,)
    # sigma is kappa sqrt(T) times a number that hardly changes: calibrating the cheapest and the dearest will do.
    unit = _calibrated(epsilon, delta, rates[-1], steps[-1])
    slope = unit.noise_multiplier / (unit.sample_rate * math.sqrt(unit.n_steps))

    def width(rate: float, count: int) -> float:
        sampling = (1.0 - rate) * n_records / (rate * count)
        return math.sqrt(1.0 + ((slope * max_grad_norm) ** 2 + sampling) / n_records)

    options = [(rate * count, count, rate) for rate in rates for count in steps]
    least = min(width(rate, count) for _, count, rate in options)
    _, count, rate = min(option for option in options if width(option[2], option[1]) <= tuning.TUNING.slack * least)
    return _calibrated(epsilon, delta, rate, count)

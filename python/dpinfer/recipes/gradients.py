"""Settings of runs of DPVI: recipes, their defaults, and their record in a release."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import PrivacyPlan
from dpinfer.models import GeneralizedLinearModel, GradientModel, Model, OwnModel, default_max_grad_norm, tuning
from dpinfer.models.gradient_model import check_row_gradients
from dpinfer.recipes.full_rank import GuideStart, full_rank_start, simulated_start
from dpinfer.recipes.scaling import (
    FisherScaling,
    GradScale,
    LearningRate,
    StepPolicy,
    largest_natural_rate,
    steady_rate,
)
from dpinfer.release import GradientTrace

# Defaults of the recipes; "tied" and "steady" also have Fisher scaling.
RECIPES: dict[str, tuple[str, str]] = {
    "paper": ("per_example", "monte_carlo"),
    "plain": ("split", "quadrature"),
    "tied": ("split", "quadrature"),
    "steady": ("split", "quadrature"),
}
_FISHER_RECIPES = ("tied", "steady")


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    """Settings of the sum and the release of a step of DPVI."""

    recipe: str
    loss: str  # {"split", "per_example"}
    expectation: str  # {"quadrature", "monte_carlo"}
    gradient: str  # {"reparameterised", "aligned"}
    n_draws: int
    n_nodes: int
    # raw_ratio, tolerance: of Fisher scaling; None with another preconditioner
    raw_ratio: float | None = None
    tolerance: float | None = None
    excursion: float | None = None  # of Fisher scaling with aligned gradients
    guide: str = "diagonal"  # {"diagonal", "full_rank"}

    @property
    def fisher(self) -> bool:
        """Whether gradients are preconditioned by the expected information at the released iterate."""
        return self.raw_ratio is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of a release's settings, as JSON values; the release has a field for `gradient`."""
        optional = {"raw_ratio": self.raw_ratio, "tolerance": self.tolerance, "excursion": self.excursion}
        return {
            "recipe": self.recipe,
            "scaling": "fisher" if self.fisher else "given",
            **{name: value for name, value in optional.items() if value is not None},
            **({"guide": self.guide} if self.guide != "diagonal" else {}),
            "loss": self.loss,
            "expectation": self.expectation,
            "n_draws": self.n_draws,
            "n_nodes": self.n_nodes,
        }

    @classmethod
    def of_release(cls, release: GradientTrace) -> "GradientSettings":
        """Return the settings recorded in a release."""
        return cls.from_dict(release.settings, release.gradient)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], gradient: str) -> "GradientSettings":
        """Read the entries of a release's settings; those of a release from elsewhere are the defaults of "plain"."""
        fisher = settings.get("scaling") == "fisher"

        if fisher and not {"raw_ratio", "tolerance"} <= set(settings):
            raise ValueError("settings must hold raw_ratio and tolerance, since their scaling is 'fisher'")

        def number(name: str) -> float | None:
            value = settings.get(name)
            return float(value) if fisher and value is not None else None

        return cls(
            recipe=str(settings.get("recipe", "plain")),
            loss=str(settings.get("loss", "split")),
            expectation=str(settings.get("expectation", "quadrature")),
            gradient=gradient,
            n_draws=int(settings.get("n_draws", 1)),
            n_nodes=int(settings.get("n_nodes", 10)),
            raw_ratio=number("raw_ratio"),
            tolerance=number("tolerance"),
            excursion=number("excursion"),
            guide=str(settings.get("guide", "diagonal")),
        )


class GradientOptions(TypedDict, total=False):
    """Fields of :class:`GradientArguments` as keyword arguments."""

    max_grad_norm: float | str
    grad_scale: GradScale | FisherScaling | None
    learning_rate: LearningRate | None
    loss: str | None
    expectation: str | None
    gradient: str | None
    guide: str
    recipe: str | None
    n_draws: int
    n_nodes: int
    start: tuple[npt.ArrayLike, npt.ArrayLike] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientArguments:
    """Arguments of :func:`dpinfer.run_dpvi`; None leaves a setting to the recipe.

    They are checked, together and against model and plan, when the run is called, before anything is spent.

    **Privacy.** Public; holds no records.  None of them may depend on the records.

    Parameters
    ----------
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
    guide : {"diagonal", "full_rank"}
        The covariance of q: diagonal (default), or L L' with a lower triangle L.  A full-rank q has aligned gradients,
        natural steps with rates of their own, and recipe "plain".  For a model of your own with a sampler,
        `max_grad_norm` ("auto"), `grad_scale` and `start` come from made-up records; `start` is (loc, raw_scale), of
        independent parameters.
    recipe : {"tied", "steady", "plain", "paper"}, optional
        Fills missing settings. "tied": :class:`dpinfer.mechanism.FisherScaling` with its start and steps; "steady": the
        same with steps of at least :func:`dpinfer.mechanism.steady_rate`, for a linear regression whose features may be
        correlated (docs/coverage.md): the iterate moves enough to show it; "plain": constant preconditioner and rate;
        "paper": the same with per_example and monte_carlo.  The default is "tied" for the conjugate models and linear
        regression, "plain" for the other models and where `grad_scale`, `learning_rate` or aligned gradients are given.
    n_draws : int
        Draws per step for "monte_carlo".
    n_nodes : int
        Gauss-Hermite nodes.  With the default 10 the error of the logistic expectations is below 2e-6 while the
        standard deviation of the linear predictor is at most 1, and below 8e-4 at 2.
    start : (loc, raw_scale), optional
        Where to start; must not depend on the records.

    Examples
    --------
    >>> GradientArguments(recipe="plain", max_grad_norm=2.0).n_nodes
    10
    """

    max_grad_norm: float | str = "auto"
    grad_scale: GradScale | FisherScaling | None = None
    learning_rate: LearningRate | None = None
    loss: str | None = None
    expectation: str | None = None
    gradient: str | None = None
    guide: str = "diagonal"
    recipe: str | None = None
    n_draws: int = 10
    n_nodes: int = 10
    start: tuple[npt.ArrayLike, npt.ArrayLike] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientRun:
    """Everything public that a run of DPVI depends on."""

    model: Model
    plan: PrivacyPlan
    n_records: int
    max_grad_norm: float
    settings: GradientSettings
    fisher: FisherScaling | None
    policy: StepPolicy
    start: FloatArray  # (2 n,); with a full-rank guide (n + n (n + 1) / 2,)
    # whether the preconditioner or the rates are functions of the caller's, which nothing can compare
    own_functions: bool

    @property
    def pointwise(self) -> FisherScaling | None:
        """The Fisher scaling of aligned gradients, taken at the sampled points."""
        return self.fisher if self.settings.gradient == "aligned" else None


def natural_scaling(
    model: Model,
    n_records: int,
    sample_rate: float,
    n_steps: int,
    noise: float,  # standard deviation of each sum's noise, sigma C
    *,
    recipe: str = "tied",  # or "steady", whose steps do not shrink without end
    **options: Any,  # changed fields of FisherScaling
) -> FisherScaling:
    """Return the Fisher scaling of a run: natural steps as large as its noise allows."""
    relative = noise / (sample_rate * n_records)
    rates = {
        "largest_rate": largest_natural_rate(n_steps, model.n_params, relative),
        "smallest_rate": steady_rate(model.n_params, relative) if recipe == "steady" else 0.0,
    }
    return FisherScaling(model, n_records, sample_rate, n_steps, **(rates | options))


def choose_gradient_run(model: Model, plan: PrivacyPlan, n_records: int, asked: GradientArguments) -> GradientRun:
    """Return the requested run, completed by the recipe, and checked."""
    grad_scale: Any = asked.grad_scale
    learning_rate = asked.learning_rate
    scaling = grad_scale if isinstance(grad_scale, FisherScaling) else None
    if check_choice("guide", asked.guide, ("diagonal", "full_rank")) == "full_rank":
        return _full_rank_run(model, plan, n_records, asked)
    recipe = check_choice("recipe", _recipe(model, asked), RECIPES)
    gradient = "reparameterised" if asked.gradient is None else asked.gradient
    check_choice("gradient", gradient, ("reparameterised", "aligned"))
    scaled = scaling is not None or recipe in _FISHER_RECIPES
    if scaled and scaling is None and (grad_scale is not None or learning_rate is not None):
        raise ValueError(f"recipe {recipe!r} must not be given with grad_scale or learning_rate: it has its own")
    if scaled and learning_rate is not None:
        raise ValueError("learning_rate must not be given with Fisher scaling")
    if scaling is not None and (
        scaling.model != model or scaling.n_records != n_records or scaling.n_steps != plan.n_steps
    ):
        raise ValueError("grad_scale must be a FisherScaling of the same model, n_records and n_steps")
    raw_ratio = FisherScaling.raw_ratio if scaling is None else scaling.raw_ratio
    raw_ratio = 0.0 if gradient == "aligned" else raw_ratio
    norm = _max_grad_norm(model, asked.max_grad_norm, raw_ratio if scaled else None)
    fisher = scaling
    if scaled and scaling is None:
        noise = plan.noise_multiplier * norm
        fisher = natural_scaling(model, n_records, plan.sample_rate, plan.n_steps, noise, recipe=recipe)
    settings = _settings(model, asked, recipe, gradient, fisher, raw_ratio)
    if fisher is not None and gradient == "aligned":
        grad_scale, learning_rate = fisher.point_grad_scale, fisher.point_learning_rate
    elif fisher is not None:
        grad_scale, learning_rate = fisher.grad_scale, fisher.learning_rate
    policy = StepPolicy(
        (1.0, model.published_raw_scale) if grad_scale is None else grad_scale,
        "heuristic" if learning_rate is None else learning_rate,
        n_params=model.n_params,
        heuristic_rate=1.0 / (plan.noise_multiplier * norm * math.sqrt(plan.n_steps)),
    )
    if fisher is None and settings.loss == "split" and not policy.varying_rate:
        nowhere, n = np.empty(0), model.n_params
        rate = policy.learning_rate(0, nowhere, policy.grad_scale(0, nowhere))[:n]
        _check_stable(model, plan.sample_rate * rate, plan.n_steps)
    if isinstance(model, (GeneralizedLinearModel, GradientModel)) and model.gradient_sum == "numpy":
        check_row_gradients(model)
    return GradientRun(
        model=model,
        plan=plan,
        n_records=n_records,
        max_grad_norm=norm,
        settings=settings,
        fisher=fisher,
        policy=policy,
        start=fisher.start() if asked.start is None and fisher is not None else _start(model, asked.start),
        own_functions=fisher is None and (callable(grad_scale) or callable(learning_rate)),
    )


def _check_stable(model: Model, rate: FloatArray, n_steps: int) -> None:
    """Refuse steps that a normal prior makes grow without end; `rate`, (n,), multiplies its gradient.

    The records' part of a step is clipped and the prior's is not: along the prior of precision p alone a step
    multiplies the distance by 1 - rate p.  A prior whose gradient is not linear far out is not judged.
    """
    mean, stddev = model.prior_moments()
    at = [model.log_prior_gradient(mean + far * stddev) for far in (0.0, 1e3, 2e3)]
    precision, again = (at[0] - at[1]) / (1e3 * stddev), (at[1] - at[2]) / (1e3 * stddev)
    largest = float(np.max(rate * precision))
    if not np.allclose(precision, again, rtol=1e-6, atol=0.0) or largest <= 2.0:
        return
    if (n_steps - 1) * math.log(largest - 1.0) > math.log(tuning.TUNING.growth):
        raise ValueError(
            f"learning_rate must be at most {2.0 / largest:.3g} times what it is: sample_rate * learning_rate * the "
            "prior's precision must be at most 2, or parameters grow without bound for any records"
        )


def _full_rank_run(model: Model, plan: PrivacyPlan, n_records: int, asked: GradientArguments) -> GradientRun:
    """Return a run with a full-rank guide: aligned gradients, and natural steps."""
    for name, allowed in {"gradient": "aligned", "recipe": "plain", "loss": "split"}.items():
        value = getattr(asked, name)
        if value not in (None, allowed):
            raise ValueError(f"{name} must be {allowed!r} with guide='full_rank', got {value!r}")
    if asked.learning_rate is not None:
        raise ValueError("learning_rate must not be given with guide='full_rank': its natural steps have their own")
    if callable(asked.grad_scale) or isinstance(asked.grad_scale, FisherScaling):
        raise ValueError("grad_scale must be a number or an array with guide='full_rank'")
    simulated: GuideStart | None = None
    if isinstance(model, OwnModel) and model.has_sampler:
        simulated = simulated_start(model, n_records)
    norm, scale, start = asked.max_grad_norm, asked.grad_scale, asked.start
    if simulated is None and isinstance(norm, str):
        raise ValueError(
            "max_grad_norm must be a number with guide='full_rank', unless the model is one of your own with a sampler"
        )
    if simulated is not None and scale is None:
        scale = np.concatenate((simulated.grad_scale, simulated.grad_scale))
        norm = simulated.max_grad_norm if norm == "auto" else norm
    elif isinstance(norm, str):
        raise ValueError("max_grad_norm must be a number where grad_scale is given: it is in its units")
    if start is None and simulated is not None:
        params = simulated.params
    else:
        params = full_rank_start(*np.split(_start(model, start), 2))
    if isinstance(model, (GeneralizedLinearModel, GradientModel)) and model.gradient_sum == "numpy":
        check_row_gradients(model)
    return GradientRun(
        model=model,
        plan=plan,
        n_records=n_records,
        max_grad_norm=_max_grad_norm(model, norm, None),
        settings=replace(_settings(model, asked, "plain", "aligned", None, 0.0), guide="full_rank"),
        fisher=None,
        policy=StepPolicy(1.0 if scale is None else scale, 0.0, n_params=model.n_params, heuristic_rate=0.0),
        start=params,
        own_functions=False,
    )


def _recipe(model: Model, asked: GradientArguments) -> str:
    if asked.recipe is not None:
        return asked.recipe
    if isinstance(asked.grad_scale, FisherScaling):
        return "tied"
    custom = asked.grad_scale is not None or asked.learning_rate is not None or asked.gradient == "aligned"
    return "tied" if model.natural_steps and not custom else "plain"


def _settings(
    model: Model, asked: GradientArguments, recipe: str, gradient: str, fisher: FisherScaling | None, raw_ratio: float
) -> GradientSettings:
    loss, expectation = RECIPES[recipe]
    expectation = expectation if model.has_quadrature else "monte_carlo"
    expectation = expectation if asked.expectation is None else asked.expectation
    settings = GradientSettings(
        recipe=recipe,
        loss=check_choice("loss", loss if asked.loss is None else asked.loss, ("split", "per_example")),
        expectation=check_choice("expectation", expectation, ("quadrature", "monte_carlo")),
        gradient=gradient,
        n_draws=check_integer("n_draws", asked.n_draws, 1, 10_000),
        n_nodes=check_integer("n_nodes", asked.n_nodes, 1, 200),
        raw_ratio=None if fisher is None else raw_ratio,
        tolerance=None if fisher is None else fisher.tolerance,
        excursion=None if fisher is None or gradient != "aligned" else fisher.excursion,
    )
    if settings.expectation == "quadrature" and gradient == "reparameterised":
        if not model.has_quadrature:
            raise ValueError(f"expectation must be 'monte_carlo' for {type(model).__name__}, got 'quadrature'")
        model.check_points(settings.n_nodes)
    return settings


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

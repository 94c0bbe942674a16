"""Settings of a plan, checked alone and against the model, and its features: a pilot data set, or declared moments."""

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.models import ConjugateModel, Model
from dpinfer.recipes import default_recipe

PILOT_RECORDS = 1000  # simulated moments err by 1 / sqrt(1000), 3%
_SEED = 20_261_121  # a date


def pilot_design(model: Model, pilot: npt.ArrayLike | None) -> FloatArray | None:
    """Return the pilot's first thousand rows, the intercept's column included.

    **Privacy.** The pilot must be public.

    Raises TypeError or ValueError if the pilot does not fit the model.

    Parameters
    ----------
    pilot : (m, n_features) array, optional
        Without it normal features with the model's `feature_moments`, if it has any.

    Returns
    -------
    (m, n) array or None
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
        noise = np.random.default_rng(_SEED).standard_normal((PILOT_RECORDS, mean.size))
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

    Parameters
    ----------
    recipe, sample_rate, n_steps, max_grad_norm, learning_rate_factor, hessian, prior, pilot, curvature, \
n_simulations, seed
        As in :func:`dpinfer.plan_inference`.

    Raises
    ------
    TypeError, ValueError
        If a field is wrong by itself.  The shapes of `pilot` and `curvature` are checked with the model.

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

        **Privacy.** Reads no records.

        Parameters
        ----------
        model : Model

        Raises
        ------
        ValueError
            If a setting does not belong to the recipe, or one that the recipe needs is not given.
        """
        recipe = default_recipe(model) if self.recipe == "auto" else self.recipe
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

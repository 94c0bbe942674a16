"""Public facts of a release, known before its run too, that decide which posteriors it has."""

from dataclasses import dataclass

import numpy as np

from dpinfer.models import GeneralizedLinearModel, LinearRegression, Model, model_from_dict
from dpinfer.recipes import GradientSettings
from dpinfer.release import GradientTrace, Release

_LARGEST_MODEL = 200  # the time of a draw grows as its cube; more were not measured (docs/coverage.md)


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """The public facts of a gradient trace that decide which posteriors it has: known before the run, too.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    model : Model or None
    n_params, n_steps : int
    n_records : int or None
        The public number of records.
    family : {"mean_field", "point", "full_rank"}
    gradient : {"reparameterised", "aligned"}
    fisher_scaled : bool
        Whether the run scaled gradients by the model's expected information (recipes "tied" and "steady").
    noise : {"constant", "proportional", "varying"}
        Whether the noise is the same at every step; "proportional": the same for all weights up to a factor of the
        step.
    """

    model: Model | None
    n_params: int
    n_steps: int
    n_records: int | None
    family: str = "mean_field"
    gradient: str = "reparameterised"
    fisher_scaled: bool = False
    noise: str = "constant"

    @classmethod
    def of(cls, release: GradientTrace, model: Model | None = None) -> "ReleaseFacts":
        """Return the facts of a release.

        Parameters
        ----------
        release : GradientTrace
        model : Model, optional
            In place of the one that ``release.model_spec`` describes.

        Raises
        ------
        TypeError, ValueError
            If `model` is not one of the release's parameters.
        """
        model = model_of(release, model)
        noise = "constant" if release.noise_stddev.ndim == 1 else "varying"
        if isinstance(model, LinearRegression):
            stddev = np.atleast_2d(release.noise_stddev)[:, : model.n_coef]
            if np.allclose(stddev * stddev[0, 0], stddev[:, :1] * stddev[0], rtol=1e-9, atol=0.0):
                noise = "proportional"
        return cls(
            model=model,
            n_params=release.n_params,
            n_steps=release.n_steps,
            n_records=release.n_records,
            family=release.family,
            gradient=release.gradient,
            fisher_scaled=GradientSettings.of_release(release).fisher,
            noise=noise,
        )

    @classmethod
    def planned(
        cls, model: Model, *, n_steps: int, n_records: int, fisher_scaled: bool, gradient: str = "reparameterised"
    ) -> "ReleaseFacts":
        """Return the facts of the release that :func:`dpinfer.run_dpvi` will make, preconditioners that change apart.

        Parameters
        ----------
        model : Model
        n_steps, n_records : int
        fisher_scaled : bool
            Whether the recipe is "tied" or "steady".
        gradient : {"reparameterised", "aligned"}
        """
        linear = isinstance(model, LinearRegression)
        return cls(
            model=model,
            n_params=model.n_params,
            n_steps=n_steps,
            n_records=n_records,
            gradient=gradient,
            fisher_scaled=fisher_scaled,
            noise="proportional" if linear else "varying" if fisher_scaled else "constant",
        )

    @property
    def has_model_hessian(self) -> bool:
        """Whether a full Hessian can be inferred under the model's own prior."""
        model = self.model
        if not isinstance(model, GeneralizedLinearModel) or model.n_params > _LARGEST_MODEL:
            return False
        if self.n_records is None or self.gradient != "reparameterised":
            return False
        if isinstance(model, LinearRegression):
            return self.family == "mean_field" and self.noise != "varying"
        return has_model_hessian(model) and self.noise == "constant"

    def width(self, hessian: str) -> int:
        """Return the number of coordinates that have a prior of their own."""
        alone = self.family == "point" or self.gradient == "aligned" or hessian == "tied"
        return self.n_params if alone else 2 * self.n_params


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """Public facts about the planned release of a mechanism other than DPVI.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    kind : type
        Of the release.
    model : Model
    n_steps : int
    """

    kind: type[Release]
    model: Model | None
    n_steps: int = 1


def has_model_hessian(model: Model | None) -> bool:
    """Return whether the model has an expectation of its full Hessian, and is small enough for it."""
    return isinstance(model, GeneralizedLinearModel) and not model.has_dispersion and model.n_params <= _LARGEST_MODEL


def model_of(release: Release, model: Model | None) -> Model | None:
    """Return the model that was given, or else the release's own, checked."""
    if model is None and release.model_spec:
        model = model_from_dict(dict(release.model_spec))
    if model is not None and not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    if model is not None and release.n_params is not None and model.n_params != release.n_params:
        raise ValueError(f"model must have {release.n_params} parameters like the release, got {model.n_params}")
    return model

"""Regressions with effects of persons: what lme4 and MixedLM show, from the release of a run that protects persons."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.formulas.arviz_export import regression_to_arviz
from dpinfer.formulas.coefficients import LINK_VARIANCE, NOT_TOLD_FROM_ZERO, CoefficientTable
from dpinfer.formulas.effects import DRAWS, SEED, complete_points, moments_at
from dpinfer.formulas.factors import Values
from dpinfer.formulas.familiar import like
from dpinfer.formulas.records import predictors
from dpinfer.formulas.result import RegressionFit, RegressionSummary
from dpinfer.inference.newton.own_model import law_of_effects
from dpinfer.inference.newton.persons import NOT_TOLD, BoundedEffects
from dpinfer.models import PersonModel

_ENDS = 16_384  # draws for ends of intervals


@dataclass(frozen=True)
class EffectComparison:
    """How much a release speaks for an effect of persons: a standard deviation that is not zero.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    without : str
        The standard deviation that is zero in the smaller model.
    log_bayes_factor : float
        Of the model with the effect against the one without: Savage and Dickey's ratio of prior to posterior density at
        zero, under the half-t prior of the standard deviation.  nan with a slope.
    distance : float
        Of the variance from zero, in standard deviations of the likelihood.
    p_value : float
        One-sided: zero is at the boundary, where the law of a likelihood ratio is half zero and half chi-squared of one
        degree (Self and Liang 1987).
    """

    without: str
    log_bayes_factor: float
    distance: float
    p_value: float

    def __str__(self) -> str:
        factor = "" if np.isnan(self.log_bayes_factor) else f"log Bayes factor  {self.log_bayes_factor:.3g}\n"
        return (
            f"with against without {self.without}\n{factor}distance from zero  {self.distance:.3g} standard deviations"
            f" of the likelihood, p = {self.p_value:.2g}\n"
            "A standard deviation of zero is at the boundary: the test is one-sided, and both count the privacy noise."
        )

    __repr__ = __str__


@dataclass(frozen=True, eq=False, kw_only=True)
class PersonFit(RegressionFit):
    """A regression with effects of persons, ``score ~ week + (1 | person)`` and ``unit=Units("person", ...)``.

    It is a :class:`RegressionFit`, too: its coefficients are the fixed effects, those of a median person.

    **Privacy.** Holds no records: a release, what follows from it, and public knowledge.
    """

    @property
    def _model(self) -> PersonModel:
        model: Any = self.design.model
        return cast(PersonModel, model)

    @property
    def _column(self) -> str:
        person = self.design.formula.person
        return "" if person is None else person.name

    @cached_property
    def _law(self) -> BoundedEffects:
        release: Any = self.release
        return law_of_effects(release, self._model)

    def _names(self) -> tuple[str, ...]:
        """Names of the standard deviations, correlation, and noise or size, in the order of :meth:`_scale_draws`."""
        person = self.design.formula.person
        slope = "" if person is None else person.slope
        found: tuple[str, ...] = (f"sd by {self._column}",)
        if self._model.n_effects == 2:
            found += (f"sd of {slope} by {self._column}", f"correlation by {self._column}")
        return found + (("sigma",) if self._model.family == "gaussian" else ("size",) if self._model.has_scale else ())

    def _scale_draws(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return draws in the table's units from unconstrained draws (S, n).

        The effects are those at zero of the scaled columns, so of a pair the intercept is that at the public mean of
        the slope's column.
        """
        model, unit = self._model, self.design.response_scale
        own = model.constrain(theta)
        at = model.first_effect
        values = [own[:, at] * unit]
        if model.n_effects == 2:
            values += [own[:, at + 2] * unit / self.design.columns[model.slope].scale, own[:, at + 1]]
        if model.has_scale:
            values.append(own[:, model.n_coef] * (unit if model.family == "gaussian" else 1.0))
        return dict(zip(self._names(), values, strict=True))

    def _remarks(self) -> dict[str, str]:
        names = self._names()
        return {names[k]: NOT_TOLD_FROM_ZERO for k, far in enumerate(self._law.distance) if far < NOT_TOLD}

    def _drawn(self, draws: dict[str, FloatArray], level: float, remarks: dict[str, str]) -> CoefficientTable:
        """Return a table of draws; of what is not told from zero, the interval begins there."""
        size, response = float(len(self._law.location)), self.design.response.label
        return CoefficientTable.of_draws(draws, level, ess=size, from_zero=True, response=response, remarks=remarks)

    def scales(self, level: float = 0.9) -> CoefficientTable:
        """Return standard deviations of the effects, their correlation, and the noise's, in the table's units.

        A row is marked "not told from zero" where the release is as likely without the effect, but for chance at 5%.
        Its interval then begins at zero, and has its level by the upper end alone.
        """
        theta = self.posterior.sample(_ENDS, seed=SEED, space="unconstrained")
        return self._drawn(self._scale_draws(theta), level, self._remarks())

    def intraclass_correlation(self, level: float = 0.9) -> CoefficientTable:
        """Return the correlation of two responses of a person: the effects' share of the variance.

        Of a binomial response on the scale of its link, where the noise has variance pi**2 / 3, of a probit 1 (Nakagawa
        and Schielzeth 2010).  With a slope it is that at the public mean of the slope's column.

        Raises ValueError for counts, whose noise depends on the mean.
        """
        model = self._model
        if model.family not in ("gaussian", *LINK_VARIANCE):
            raise ValueError(f"intraclass_correlation() is not there for family {model.family!r}: its noise varies")
        theta = self.posterior.sample(_ENDS, seed=SEED, space="unconstrained")
        variance = np.maximum(model.covariance(theta)[:, 0, 0], 0.0)
        share = variance / (variance + LINK_VARIANCE.get(model.family, 1.0))
        name = f"intraclass correlation by {self._column}"
        return self._drawn({name: share}, level, {name: NOT_TOLD_FROM_ZERO} if self._law.distance[0] < NOT_TOLD else {})

    def compare_effect(self) -> EffectComparison:
        """Compare the model with one without the effects' standard deviation, of a pair that of the slope."""
        law = self._law
        far = float(law.distance[-1])
        name = self._names()[len(law.distance) - 1]
        return EffectComparison(name, law.log_bayes_factor, far, float(special.ndtr(-far)))

    def predict(
        self,
        new_data: Any,
        *,
        return_std: bool = False,
        interval: str | None = None,
        level: float = 0.9,
        conditional: bool = False,
    ) -> Any:
        """Return E[y | x] of a person who is not known, in the table's units: the mean over persons.

        Parameters
        ----------
        new_data, return_std, interval, level
            As in :meth:`RegressionFit.predict`.
        conditional : bool
            Of a person in the middle, whose effects are zero, instead of the mean over persons; the same for gaussian.
        """
        if not conditional:
            return super().predict(new_data, return_std=return_std, interval=interval, level=level)
        if interval is not None:
            raise ValueError("interval must be None with conditional=True: return_std has a standard deviation")
        theta = self.posterior.sample(DRAWS, seed=SEED, space="unconstrained")

        def draw(points: Values) -> FloatArray:
            drawn = self._model.predict_mean(theta, self.design.encode(points), conditional=True)
            return self.design.response_units(drawn, points)

        mean, sd = moments_at(predictors(new_data, self.design), draw)
        shown = like(new_data, {self.design.response.label: mean})
        return (shown, like(new_data, {"sd": sd})) if return_std else shown

    def to_arviz(self, new_data: Any = None, *, n_samples: int = 1000, n_chains: int = 4, seed: int = 0) -> Any:
        """Return draws as in :meth:`RegressionFit.to_arviz`, with ``scale`` along ``scale_of``: see :meth:`scales`.

        Responses are those of unknown persons, one each.
        """
        points = None if new_data is None else complete_points(self.design, new_data)
        theta = self.posterior.sample(n_samples * n_chains, seed=seed, space="unconstrained")
        draws = self._scale_draws(theta)
        scales = ("scale_of", list(draws), np.column_stack(list(draws.values())))
        chains: Any = {"n_samples": n_samples, "n_chains": n_chains, "seed": seed}
        return regression_to_arviz(self.design, self.posterior, points, **chains, drawn=(theta, {"scale": scales}))

    def summary(self, level: float = 0.9, *, exp: bool = False) -> RegressionSummary:
        """Return the regression in words and numbers, the standard deviations after the coefficients."""
        found = super().summary(level, exp=exp)
        if self.fit.maybe_posterior is None:
            return found
        units = self.release.settings["unit"]
        told = (
            f"a record is all rows of one {self._column}, the first {self._model.max_rows} of those with more; "
            f"{units['n_units']} of them are declared"
        )
        title = found.title.replace(", n_records", f", {self._column!r}: n_records")
        return replace(found, title=title, notes=(str(self.scales(level)), told, *found.notes))

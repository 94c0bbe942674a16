"""Regressions with learned scales: groups, curves and horseshoes, as post-processing of a release."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import one_blas_thread
from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.formulas.arviz_export import regression_to_arviz
from dpinfer.formulas.coefficients import LINK_VARIANCE, NOT_TOLD_FROM_ZERO, SIGMA, CoefficientTable, ends_of
from dpinfer.formulas.comparison import ModelComparison
from dpinfer.formulas.effects import DRAWS, SEED, complete_points, moments_at
from dpinfer.formulas.factors import FormulaError, Values
from dpinfer.formulas.familiar import like
from dpinfer.formulas.levels import Effects, Layout, layout_of
from dpinfer.formulas.records import predictors
from dpinfer.formulas.result import RegressionFit, RegressionSummary
from dpinfer.inference import Posterior
from dpinfer.inference.newton.likelihood import large_effect, likelihoods_of
from dpinfer.inference.newton.pooling import Block, Pooled, ScalePrior, pooled
from dpinfer.inference.newton.posterior import theta_of_draws
from dpinfer.inference.posterior.mixture import mixture_quantile
from dpinfer.models import GeneralizedLinearModel, LinearRegression

_TOLD_FROM_ZERO = -1.353  # of twice the log ratio, 5%: the law at a scale of zero is half zero, half chi-squared


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedFit(RegressionFit):
    """A regression whose priors have learned scales: made by :meth:`RegressionFit.with_prior`, or from a formula.

    It is a :class:`RegressionFit` too: contrasts, predictions, marginal effects, synthetic tables and reports are those
    of its posterior.  ``fit`` and ``posterior`` are under the learned scales.

    **Privacy.** Post-processing of a release: it costs nothing.

    Parameters
    ----------
    plain : RegressionFit
        The same release under independent priors.
    terms : tuple of str
    layout : Layout
    priors : tuple of ScalePrior
        Of each term's standard deviations, in the model's units.
    pooled : Pooled
    """

    plain: RegressionFit
    terms: tuple[str, ...]
    layout: Layout
    priors: tuple[tuple[ScalePrior, ...], ...]
    pooled: Pooled

    def _places(self, effects: Effects) -> list[slice]:
        """Return the coefficients of each of a term's maps."""
        first = len(self.layout.names)
        for each in self.layout.effects:
            if each is effects:
                break
            first += len(each.labels) * len(each.maps)
        size = len(effects.labels)
        return [slice(first + place * size, first + (place + 1) * size) for place in range(len(effects.maps))]

    def _table(
        self, names: Sequence[str], rows: FloatArray, shift: FloatArray, level: float, *, exp: bool = False
    ) -> CoefficientTable:
        """Return linear combinations `rows` (k, m) of the coefficients."""
        ends = ends_of(level)
        mean = self.pooled.mean @ rows.T + shift
        inner = np.einsum("ki,cij,kj->ck", rows, self.pooled.covariance, rows)
        weight = np.full(len(mean), 1.0 / len(mean))
        quantiles = np.array([mixture_quantile(weight, *each, ends) for each in zip(mean.T, inner.T, strict=True)]).T
        total = inner.mean(axis=0) + mean.var(axis=0)
        data = np.einsum("ki,ij,kj->k", rows, self.pooled.data, rows)
        privacy = np.clip(1.0 - data / np.maximum(total, 1e-300), 0.0, 1.0)
        blank = np.full(len(rows), np.nan)
        columns = (mean.mean(axis=0), np.sqrt(total), *quantiles, privacy, blank, *self.pooled.error(mean), blank)
        return CoefficientTable.of_quantiles(names, columns, level, exp=exp, response=self.design.response.label)

    def coefficients(self, level: float = 0.9, *, exp: bool = False) -> CoefficientTable:
        """Return the fixed coefficients in the user's units; the intercept is that of the middle of the groups."""
        self._check_exp(exp)
        layout = self.layout
        rows = np.pad(layout.matrix, ((0, 0), (0, self.pooled.mean.shape[1] - len(layout.names))))
        return self._table(layout.names, rows, layout.shift, level, exp=exp)

    def _effects(self, term: str | None) -> Effects:
        effects = self.layout.effects
        if not effects and term is None:
            raise ValueError("term must be of effects, and this prior has none")
        for each in effects:
            short = f"s({each.column})" if each.kind == "curve" else each.term
            if term is None or term.replace(" ", "") in (each.term.replace(" ", ""), short, each.column):
                return each
        names = dict.fromkeys([*(each.term for each in effects), *(each.column for each in effects)])
        raise ValueError(f"term must be one of {', '.join(names)}, got {term!r}")

    def effects(self, term: str | None = None, level: float = 0.9) -> CoefficientTable:
        """Return the effects of groups in the user's units: differences from the middle of the groups, shrunken.

        `term` is ``"(1 | site)"`` or ``"site"``; the first by default.  An effect of a pair ``(1 + x | site)`` is that
        at the public mean of x; its slopes follow.  Of a curve, the coefficients of its functions: see :meth:`curve`.
        """
        found = self._effects(term)
        places = self._places(found)
        size = sum(own.stop - own.start for own in places)
        rows = np.zeros((size, self.pooled.mean.shape[1]))
        rows[:, places[0].start : places[-1].stop] = np.diag(np.repeat(found.units, size // len(places)))
        return self._table(found.effect_names(), rows, np.zeros(size), level)

    def curve(self, term: str | None = None, at: Any = None, level: float = 0.9) -> CoefficientTable:
        """Return a curve ``s(age)``, its line and its bends, in the user's units: zero on average on the public bounds.

        Parameters
        ----------
        term : str, optional
            The first curve by default.
        at : sequence of floats, optional
            Where; 21 points of the public bounds by default.
        level : float in (0, 1)
        """
        curves = [each for each in self.layout.effects if each.kind == "curve"]
        if not curves:
            raise ValueError("term must be of a curve, and this prior has none")
        chosen = curves[0] if term is None else self._effects(term)
        if chosen.kind != "curve":
            raise ValueError(f"term must be of a curve, got {term!r}")
        low, high = chosen.grid[0], chosen.grid[-1]
        points = np.linspace(low, high, 21) if at is None else np.clip(np.asarray(at, dtype=np.float64), low, high)
        rows = np.zeros((len(points), self.pooled.mean.shape[1]))
        (own,) = self._places(chosen)
        for place, values in zip(range(own.start, own.stop), chosen.functions.T, strict=True):
            rows[:, place] = np.interp(points, chosen.grid, values) * chosen.units[0]
        rows[:, chosen.line] = (points - 0.5 * (low + high)) * self.layout.matrix[chosen.line, chosen.line]
        return self._table([f"{chosen.column} = {point:g}" for point in points], rows, np.zeros(len(points)), level)

    def _scale_draws(self) -> Iterator[tuple[str, FloatArray, str]]:
        """Yield name, draws in the user's units and remark of standard deviations and correlations."""
        mixture = self.pooled
        for number, each in enumerate(self.layout.effects):
            draws = mixture.stddev_draws[number]
            draws = draws.reshape(len(draws), -1) * np.array(each.units)
            remark = NOT_TOLD_FROM_ZERO if mixture.log_ratio_at_zero[number] > _TOLD_FROM_ZERO else ""
            for name, own in zip(each.names, draws.T, strict=True):
                yield name, own, remark
            if each.kind == "pair":
                yield f"correlation by {each.column}", mixture.correlation[number], ""

    def scales(self, level: float = 0.9) -> CoefficientTable:
        """Return the standard deviations of the effects, correlations and the noise's, in the user's units.

        A row is marked "not told from zero" if the release is as likely without the effects, by a test at 5%.
        The standard deviation of a slope is per unit of its column.  `level` in (0, 1) is that of the intervals.
        """
        rows = list(self._scale_draws())
        if isinstance(self.design.model, LinearRegression):
            variance = self.posterior.sample(DRAWS, seed=SEED)[:, -1]
            rows.append((SIGMA, np.sqrt(variance) * self.design.response_scale, ""))
        remarks = {name: remark for name, _, remark in rows if remark}
        return self._drawn_table({name: draws for name, draws, _ in rows}, level, remarks)

    def _drawn_table(
        self, draws: dict[str, FloatArray], level: float, remarks: dict[str, str] | None = None
    ) -> CoefficientTable:
        mcse, ess = np.array([self.pooled.error(each) for each in draws.values()]).reshape(len(draws), 2).T
        response = self.design.response.label
        return CoefficientTable.of_draws(draws, level, ess=ess, mcse=mcse, response=response, remarks=remarks)

    def variance_shares(self, level: float = 0.9) -> CoefficientTable:
        """Return shares of the variance of a response given the fixed coefficients: of the effects, and of the noise.

        With one term of groups the first is the intraclass correlation.  The noise of a binomial response is that on
        the scale of its link: pi**2 / 3 of a logit, 1 of a probit (Nakagawa and Schielzeth 2010).  Slopes count at the
        public mean of their column, at which they vanish; a curve by its bends.

        Raises ValueError for a poisson family, whose noise depends on the mean.
        """
        model = self.design.model
        rng = np.random.default_rng(SEED)
        chosen = rng.integers(len(self.pooled.mean), size=DRAWS)
        if isinstance(model, LinearRegression):
            location = self.posterior.distribution.draw(DRAWS, rng)
            noise = model.constrain(location)[:, -1]
        elif self.design.family in LINK_VARIANCE:
            noise = np.full(DRAWS, LINK_VARIANCE[self.design.family])
        else:
            raise ValueError("variance_shares() is not there for family 'poisson': its noise depends on the mean")
        parts = {}
        for each, stddev in zip(self.layout.effects, self.pooled.stddev, strict=True):
            if each.kind != "slope":
                parts[each.names[0].removeprefix("sd ")] = np.square(stddev.reshape(len(stddev), -1)[chosen, 0])
        total = sum(parts.values(), noise)
        shares = {name: draws / total for name, draws in parts.items()} | {"noise": noise / total}
        return self._drawn_table(shares, level)

    def _covariance(self) -> tuple[tuple[str, ...], FloatArray]:
        names, matrix = self.layout.names, self.layout.matrix
        size, means = len(names), self.pooled.mean
        covariance = self.pooled.covariance.mean(axis=0) + np.cov(means, rowvar=False, bias=True)
        return names, np.asarray(matrix @ covariance[:size, :size] @ matrix.T)

    def predict(
        self,
        new_data: Any,
        *,
        return_std: bool = False,
        interval: str | None = None,
        level: float = 0.9,
        new: Sequence[str] | str = (),
    ) -> Any:
        """Return E[y | x] at new points, in the user's units.

        Parameters
        ----------
        new_data, return_std, interval, level
            As in :meth:`RegressionFit.predict`.
        new : str or sequence of str
            Columns of groups that the points are not of: ``new="site"`` is for a site that the release has not seen,
            whose effect is drawn from the law of the effects.  `new_data` need not have them.  The standard deviation
            then has the spread of new groups.
        """
        columns = (new,) if isinstance(new, str) else tuple(new)
        if not columns:
            return super().predict(new_data, return_std=return_std, interval=interval, level=level)
        if interval is not None:
            raise ValueError("interval must be None with new groups: return_std has a standard deviation")
        grouped = [each.column for each in self.layout.effects if each.kind != "curve"]
        for name in columns:
            check_choice("new", name, tuple(dict.fromkeys(grouped)))
        labels = {each.column: each.labels[0] for each in self.layout.effects}
        size = len(next(iter(dict(new_data).values())))
        table = {name: dict(new_data)[name] for name in dict(new_data) if name not in columns}
        table |= {name: [labels[name]] * size for name in columns}
        mean, sd = moments_at(predictors(table, self.design), partial(self._new_groups, columns))
        shown = like(new_data, {self.design.response.label: mean})
        return (shown, like(new_data, {"sd": sd})) if return_std else shown

    def _new_groups(self, columns: tuple[str, ...], points: Values) -> FloatArray:
        """Return draws of E[y | x] with new groups of `columns`, (DRAWS, N); `points` are of their first groups."""
        rng = np.random.default_rng(SEED)
        u, chosen = self._draw(DRAWS, rng)
        for number, each in enumerate(self.layout.effects):
            if each.column not in columns:
                continue
            stddev = self.pooled.stddev[number].reshape(len(self.pooled.mean), -1)[chosen]
            normal = rng.standard_normal(stddev.shape)
            if each.kind == "pair":
                rho = self.pooled.correlation[number][chosen]
                normal[:, 1] = rho * normal[:, 0] + np.sqrt(1.0 - rho**2) * normal[:, 1]
            for own, effect in zip(self._places(each), (stddev * normal).T, strict=True):
                u[:, own.start] = effect
        theta = self._theta(u, chosen, rng)
        model = self.design.model
        if not isinstance(model, GeneralizedLinearModel):
            raise FormulaError("new must be empty for this family")
        return self.design.response_units(model.predict_mean(theta, self.design.encode(points)), points)

    def _draw(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Return draws of all coefficients, (size, m), and the component of each."""
        mixture = self.pooled
        chosen = rng.integers(len(mixture.mean), size=size)
        normal = rng.standard_normal((size, mixture.mean.shape[1]))
        return mixture.mean[chosen] + np.einsum("sij,sj->si", self._roots[chosen], normal), chosen

    @cached_property
    def _roots(self) -> FloatArray:
        return np.asarray(np.linalg.cholesky(self.pooled.covariance))

    def _theta(self, u: FloatArray, chosen: npt.NDArray[np.int64], rng: np.random.Generator) -> FloatArray:
        """Return the model's unconstrained parameters for draws of the coefficients."""
        weights = u @ self.pooled.columns.T
        if not isinstance(self.design.model, LinearRegression):
            return np.asarray(weights)
        found: Any = self.posterior.distribution
        spread = 1.0 / found.q_factor[chosen, -1, -1]
        return np.column_stack((weights, found.location[chosen, -1] + spread * rng.standard_normal(len(u))))

    def compare(self, without: str | Sequence[str]) -> ModelComparison:
        """Raise ValueError: ``fit.plain.compare`` compares fixed coefficients, whose prior is known there."""
        raise ValueError(
            "compare() needs independent priors: use fit.plain.compare(...); scales() marks effects near zero"
        )

    def with_posterior(self, posterior: Posterior) -> RegressionFit:
        """Return the plain regression with another posterior; see :meth:`RegressionFit.with_posterior`."""
        return self.plain.with_posterior(posterior)

    def with_prior(self, *terms: str, scale: float | None = None, df: float = 3.0, seed: int = 0) -> "RegressionFit":
        """Return the regression under another prior; see :meth:`RegressionFit.with_prior`."""
        return self.plain.with_prior(*terms, scale=scale, df=df, seed=seed)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save the plain regression: ``load_regression(folder).with_prior(...)`` gives the same numbers again.

        :func:`load_regression` does so by itself where the terms are in the formula.
        """
        self.plain.save(folder)

    def summary(self, level: float = 0.9, *, exp: bool = False) -> RegressionSummary:
        """Return the regression in words and numbers: fixed coefficients, then the scales."""
        plain = super().summary(level, exp=exp)
        scales = str(self.scales(level)).splitlines()
        return replace(plain, notes=(f"learned scales of {', '.join(self.terms)}:", *scales, "", *plain.notes))

    def to_arviz(self, new_data: Any = None, *, n_samples: int = 1000, n_chains: int = 4, seed: int = 0) -> Any:
        """Return draws as ArviZ's containers, in the table's units: see :meth:`RegressionFit.to_arviz`.

        The group ``posterior`` has ``scale`` along ``scale_of`` and ``effect`` along ``effect_of`` besides, from the
        same draws.
        """
        points = None if new_data is None else complete_points(self.design, new_data)
        rng = np.random.default_rng([seed, 2])
        u, chosen = self._draw(check_integer("n_samples", n_samples, 1) * check_integer("n_chains", n_chains, 1), rng)
        effects = np.column_stack([u[:, own] * unit for own, unit, _ in self._effect_places()])
        scales = [
            own.reshape(len(self.pooled.mean), -1)[chosen] * np.array(each.units)
            for each, own in zip(self.layout.effects, self.pooled.stddev, strict=True)
        ]
        scale_names = [name for each in self.layout.effects for name in each.names]
        effect_names = [name for _, _, names in self._effect_places() for name in names]
        more = {
            "scale": ("scale_of", scale_names, np.column_stack(scales)),
            "effect": ("effect_of", effect_names, effects),
        }
        return regression_to_arviz(
            self.design,
            self.posterior,
            points,
            n_samples=n_samples,
            n_chains=n_chains,
            seed=seed,
            drawn=(self._theta(u, chosen, rng), more),
        )

    def _effect_places(self) -> Iterator[tuple[slice, float, tuple[str, ...]]]:
        for each in self.layout.effects:
            names, size = each.effect_names(), len(each.labels)
            for place, (own, unit) in enumerate(zip(self._places(each), each.units, strict=True)):
                yield own, unit, names[place * size : (place + 1) * size]


def with_learned_scales(
    plain: RegressionFit, terms: Sequence[str], *, scale: float | None, df: float, seed: int
) -> MixedFit:
    """Return a regression under priors with learned scales; see :meth:`RegressionFit.with_prior`."""
    layout = layout_of(plain.design, terms)
    posterior = plain.posterior
    likelihoods = likelihoods_of(plain.release, posterior)
    priors = tuple(_priors(each, plain, scale, df) for each in layout.effects)
    blocks = [Block(each.maps, own) for each, own in zip(layout.effects, priors, strict=True)]
    with one_blas_thread():
        mixture = pooled(
            likelihoods, layout.fixed, layout.priors, blocks, layout.shrunk, check_integer("seed", seed, 0)
        )
        learned = _posterior(posterior, mixture)
    fit = replace(plain.fit, maybe_posterior=learned)
    return MixedFit(
        design=plain.design, fit=fit, plain=plain, terms=tuple(terms), layout=layout, priors=priors, pooled=mixture
    )


def _priors(effects: Effects, plain: RegressionFit, scale: float | None, df: float) -> tuple[ScalePrior, ...]:
    """Return the priors of a term's standard deviations; `scale` is in the user's units, of a slope per spread."""
    if not df > 0.0:
        raise ValueError(f"df must be positive, got {df!r}")
    if scale is None:
        size = large_effect(plain.release, plain.posterior.model)
    else:
        size = check_interval("scale", scale, 0.0) / plain.design.response_scale
    return tuple(ScalePrior(size, float(df)) for _ in effects.maps)


def _posterior(posterior: Posterior, found: Pooled) -> Posterior:
    """Return the posterior of the model's parameters under the learned scales."""
    before: Any = posterior.distribution
    columns, n, d = found.columns, posterior.n_params, len(found.columns)
    mean = found.mean @ columns.T
    covariance = columns @ found.covariance @ columns.T
    location = np.asarray(before.location)[found.place].copy()
    factor = np.asarray(before.q_factor)[found.place].copy()
    location[:, :d] = mean
    factor[:, :d, :d] = np.linalg.cholesky(np.linalg.inv(covariance))
    data = before.data_covariance.copy()
    data[:d, :d] = columns @ found.data @ columns.T
    variance = np.empty((len(mean), n))
    variance[:, :d] = np.diagonal(covariance, axis1=1, axis2=2)
    variance[:, d:] = np.square(1.0 / np.diagonal(factor, axis1=1, axis2=2)[:, d:])
    theta = theta_of_draws(location[None], variance[None], factor, data)
    return replace(posterior, distribution=theta, prior="learned scales")

"""The result of a regression of a table: coefficients in the user's units, contrasts, effects, predictions."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer, check_type
from dpinfer.accounting import Guarantee
from dpinfer.errors import ReleaseFormatError
from dpinfer.fitting import Choice, Fit, FitPlan, load_fit
from dpinfer.fitting.report import ReportContent, found_width, render
from dpinfer.formulas.arviz_export import regression_to_arviz, shown
from dpinfer.formulas.coefficients import CoefficientTable, combination, tabulate
from dpinfer.formulas.comparison import ModelComparison, chosen_weights, compare_without
from dpinfer.formulas.design import COUNTS, Design
from dpinfer.formulas.design_files import DESIGN_FILE, load_design, save_design
from dpinfer.formulas.effects import complete_points, marginal_effects, predicted_interval, predicted_mean
from dpinfer.formulas.familiar import FamiliarNames, like
from dpinfer.formulas.records import predictors
from dpinfer.formulas.report import columns_section, estimates, in_table_units, labelled
from dpinfer.inference import Posterior, SyntheticSets
from dpinfer.inference.posterior.predictive import draw_records
from dpinfer.models import OwnModel
from dpinfer.release import Release
from dpinfer.release.files import write_atomically
from dpinfer.release.newton.population import PopulationSums

_FAMILIES = {
    "gaussian": "Linear",
    "binomial": "Logistic",
    "multinomial": "Multinomial logistic",
    "poisson": "Poisson",
    "probit": "Probit",
    "negativebinomial": "Negative binomial",
}
_RATIOS = dict.fromkeys(("binomial", "multinomial"), "odds ratios") | dict.fromkeys(COUNTS, "rate ratios")


@dataclass(frozen=True)
class RegressionSummary:
    """A regression in words and numbers; printing it shows its text.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    title : str
    guarantee : Guarantee
    table : CoefficientTable or None
        None without a posterior.
    notes : tuple of str
    """

    title: str
    guarantee: Guarantee
    table: CoefficientTable | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        table = () if self.table is None else (str(self.table), "")
        return "\n".join((self.title, "", *table, *self.notes, "", str(self.guarantee)))

    __repr__ = __str__


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionFit(FamiliarNames):
    """A private regression of a table: made by :func:`dpinfer.regression`, or read by :func:`load_regression`.

    **Privacy.** Holds no records: a release, its post-processing, and public knowledge.  Its methods post-process them,
    and cost nothing; `new_data` are the caller's own points.

    Parameters
    ----------
    design : Design
        The formula's design for the schema.
    fit : Fit
        The fit in scaled units.
    """

    design: Design
    fit: Fit

    @property
    def release(self) -> Release:
        """The release of the private run."""
        return self.fit.release

    @property
    def plan(self) -> FitPlan:
        """The plan of the run."""
        return self.fit.plan

    @property
    def choice(self) -> Choice:
        """The table of candidate mechanisms."""
        return self.fit.choice

    @property
    def posterior(self) -> Posterior:
        """The posterior of the weights in scaled units.

        Raises NumericalError if it could not be computed; the release can be analysed again at no cost.
        """
        return self.fit.posterior

    @property
    def nobs(self) -> float:
        """Number of records used: the released, noisy one where a sum tells it, else the declared one."""
        return self.fit.nobs

    @property
    def failure(self) -> str:
        """Reason of a missing posterior; empty if there is one."""
        return self.fit.failure

    def with_posterior(self, posterior: Posterior) -> "RegressionFit":
        """Return the regression with another posterior of its release, say by longer chains.

        ``fit.with_posterior(dpi.noise_aware_posterior(fit.release, n_samples=20_000))``

        Raises TypeError or ValueError if it is not a posterior, or its parameters differ from the release's.
        """
        check_type("posterior", posterior, Posterior)
        if posterior.names != self.release.names or posterior.guarantee != self.release.guarantee:
            raise ValueError("posterior must be one of this fit's release: noise_aware_posterior(fit.release, ...)")
        return replace(self, fit=replace(self.fit, maybe_posterior=posterior, failure=""))

    def with_prior(self, *terms: str, scale: float | None = None, df: float = 3.0, seed: int = 0) -> "RegressionFit":
        """Return the regression under priors whose scales are learned: partial pooling, curves, or a horseshoe.

        ``fit.with_prior("(1 | site)")`` takes effects of sites from a normal law with an unknown standard deviation:
        docs/derivations/levels.md.

        Raises TypeError or ValueError if a term is not there, or the release has not measured its columns.

        Parameters
        ----------
        *terms : str
            ``"(1 | site)"``, ``"(1 + x | site)"`` (with ``||``, without a correlation), ``"s(age)"`` (a curve of the
            columns of ``s(age)`` or ``bs(age, ...)``), ``"horseshoe"`` (all other coefficients but the intercept).  By
            default those of the formula.
        scale : float, optional
            Of the half-t prior of the standard deviations, in the table's units; of a slope, for a change of one public
            standard deviation of its column.  By default the spread of the responses, or 2.5 on the scale of a link.
        df : float
            Of the half-t prior: infinite for half-normal.
        seed : int
        """
        from dpinfer.formulas.mixed import with_learned_scales

        terms = terms or self.design.formula.levels
        if not terms or not all(isinstance(term, str) for term in terms):
            raise TypeError("terms must be strings such as '(1 | site)', 's(age)' or 'horseshoe'")
        return with_learned_scales(self, terms, scale=scale, df=df, seed=seed)

    def coefficients(self, level: float = 0.9, *, exp: bool = False) -> CoefficientTable:
        """Return the coefficients in the user's units.

        Raises ValueError if `exp` is used with another family. Raises NumericalError if there is no posterior.

        Parameters
        ----------
        level : float in (0, 1)
            Of the equal-tailed intervals.
        exp : bool
            Odds ratios of a binomial or multinomial, rate ratios of a Poisson regression.
        """
        self._check_exp(exp)
        return tabulate(self.design, self.posterior, level=level, exp=exp)

    def contrast(self, weights: Mapping[str, float], level: float = 0.9, *, exp: bool = False) -> CoefficientTable:
        """Return a linear combination of coefficients: ``{"job[T.clerk]": 1, "job[T.cook]": -1}``.

        Parameters
        ----------
        weights : mapping
            Name of a coefficient to its weight.
        level, exp
            As in :meth:`coefficients`.
        """
        if not isinstance(weights, Mapping) or not weights:
            raise TypeError(f"weights must be a mapping of names of coefficients, got {type(weights).__name__}")
        self._check_exp(exp)
        return combination(self.design, self.posterior, dict(weights), level=level, exp=exp)

    def _check_exp(self, exp: bool) -> None:
        if exp and self.design.family not in _RATIOS:
            raise ValueError(f"exp must be False for family {self.design.family!r}: its coefficients give no ratios")

    def _covariance(self) -> tuple[tuple[str, ...], FloatArray]:
        matrix, _ = self.design.user_units()
        size = len(matrix)
        return self.design.model.names[:size], matrix @ self.posterior.cov[:size, :size] @ matrix.T

    def predict(
        self, new_data: Any, *, return_std: bool = False, interval: str | None = None, level: float = 0.9
    ) -> Any:
        """Return E[y | x] at new points, (N,), in the user's units: a mean, a probability or a rate.

        Of a multinomial response it is the probability of each class, (N, K), in the order of ``fit.design.classes``.
        It is NaN where a value is missing, and else over 2000 draws with a fixed seed.  For a data frame of pandas it
        is a Series with its index, or a data frame.

        Raises TypeError or ValueError if columns or categories are not those of the schema.

        Parameters
        ----------
        new_data : data frame or mapping of columns
            Of the columns on the right-hand side; values are clamped to the schema's bounds, as in the fit, with a
            warning.
        return_std : bool
            Also return the posterior standard deviation of E[y | x], which leaves out the noise of one response.
        interval : {"mean", "response"}, optional
            Return the columns mean, sd, low and high instead, a data frame for one of pandas, else a mapping: the
            interval of E[y | x], or of a new response.
        level : float in (0, 1)
        """
        values = predictors(new_data, self.design)
        if interval is not None:
            found = predicted_interval(self.design, self.posterior, values, of=interval, level=level)
            return like(new_data, found)
        mean, sd = predicted_mean(self.design, self.posterior, values)
        classes = self.design.classes
        shown = like(new_data, {self.design.response.label: mean}, classes)
        return (shown, like(new_data, {"sd": sd}, classes)) if return_std else shown

    def marginal_effects(self, new_data: Any = None, level: float = 0.9) -> CoefficientTable:
        """Return average marginal effects on E[y | x]: slopes of numbers, differences from base levels of categories.

        Of a multinomial response they are those on the probability of each class, called ``class: column``.  They are
        from 2000 draws with a fixed seed.

        By default the average is over public points that are weighted to have the means and second moments of the
        sample, as the release holds them with noise: close to the sample average of other packages.  Skewness, and what
        a release without second moments does not tell, are the schema's.  A remark says which average it is.

        **Privacy.** Post-processing: one over the private records would be a release of its own, without noise.

        Parameters
        ----------
        new_data : data frame or mapping of columns, optional
            Other public points: a table of a survey, or one point for effects there ("at the mean").
        level : float in (0, 1)
        """
        return marginal_effects(self.design, self.posterior, self.release, new_data, level)

    def compare(self, without: str | Sequence[str]) -> ModelComparison:
        """Compare the regression with one without some terms, from this posterior alone: Bayes factor and Wald test.

        The release has no likelihood for terms or families outside of its model.  To compare such models, fit a model
        with the terms of both, and compare it with each.

        Raises NumericalError if there is no posterior.

        Parameters
        ----------
        without : str or sequence of str
            Terms of the formula (``"C(job)"``, ``"age:job"``) or names of coefficients, the intercept not among them.
        """
        chosen = chosen_weights(self.design, without)
        found = compare_without(self.design, self.posterior, chosen)
        return replace(found, robust=isinstance(self.release, PopulationSums))

    def synthetic(self, new_data: Any, *, n_sets: int = 100, seed: int = 0) -> SyntheticSets:
        """Draw sets of synthetic tables: responses from the posterior predictive, a draw of the coefficients for each.

        Each set is a mapping of columns, the response among them, in the table's units and labels:
        ``pandas.DataFrame(sets[0])`` is a data frame.

        **Privacy.** The sets are as safe to publish as the release.  The regression does not model `new_data`.

        Raises ValueError if a value is missing.

        Parameters
        ----------
        new_data : data frame or mapping of columns
            Of the columns on the right-hand side, public or made up, without missing values; the rows of every set.
        n_sets : int
            The number of sets m.
        seed : int
        """
        design = self.design
        values = predictors(new_data, design)
        if not all(np.all(np.isfinite(column)) for column in values.values()):
            raise ValueError("new_data must not have missing values: a synthetic record is complete")
        rng = np.random.default_rng(check_integer("seed", seed, 0))
        size = check_integer("n_sets", n_sets, 1)
        theta = self.posterior.sample(size, seed=rng, space="unconstrained")
        y = draw_records(design.model, theta, design.encode(values), rng)
        return SyntheticSets(
            points={name: shown(design, name, column) for name, column in values.items()},
            responses=shown(design, design.response.label, design.response_units(y, values)),
            response=design.response.label,
            parameters=design.model.constrain(theta),
            guarantee=self.posterior.guarantee,
        )

    def to_arviz(self, new_data: Any = None, *, n_samples: int = 1000, n_chains: int = 4, seed: int = 0) -> Any:
        """Return draws as ArviZ's InferenceData (ArviZ 0.x) or as a DataTree (1.x), in the table's units.

        Groups are ``posterior`` and ``prior``: ``coef`` along ``coefficient``, ``intercept`` and ``sigma``.  With
        `new_data` there are responses along ``point`` in ``posterior_predictive`` and ``prior_predictive``, and the
        points in ``constant_data``.

        **Privacy.** The attributes ``guarantee`` and ``leaks`` of every group state the release's.

        Raises BackendUnavailableError if ArviZ is not installed (the extra ``dpinfer[arviz]``).

        Parameters
        ----------
        new_data : data frame or mapping of columns, optional
            Points with a missing value are left out.
        n_samples : int
            Draws per chain; draws are independent.
        n_chains, seed : int
        """
        points = None if new_data is None else complete_points(self.design, new_data)
        return regression_to_arviz(
            self.design, self.posterior, points, n_samples=n_samples, n_chains=n_chains, seed=seed
        )

    def summary(self, level: float = 0.9, *, exp: bool = False) -> RegressionSummary:
        """Return the regression in words and numbers; `level` and `exp` are as in :meth:`coefficients`."""
        self._check_exp(exp)
        facts = f"family {self.design.family}, n_records {self.plan.n_records}, method {self.plan.method}"
        title = f"{self.design.formula.text}  ({facts})"
        if self.fit.maybe_posterior is None:
            return RegressionSummary(title, self.release.guarantee, None, (f"no posterior: {self.failure}",))
        table = self.coefficients(level, exp=exp)
        units = f"{_RATIOS[self.design.family]}; " if exp else "coefficients in the units of the table; "
        if self.design.classes:
            units = units.replace("; ", f", each class against {self.design.classes[0]!r}; ")
        notes = [
            units + f"{level:.0%} intervals count the sampling error and the privacy noise; privacy, prior: shares "
            "of the variance due to the noise, and to the prior alone; per sd: for a change of one public standard "
            "deviation of the column"
        ]
        described = [column.described for column in self.design.table_columns() if column.label or column.unit]
        notes += ["; ".join(described)] if described else []
        inner = self.posterior.summary()
        notes += [f"warning: {message}" for message in inner.warnings]
        notes += in_table_units(self.design, inner.verdict).splitlines()
        notes += filter(None, [self.posterior.diagnostics.records, found_width(self.plan, self.posterior)])
        notes += filter(None, [self._of_units()])
        return RegressionSummary(title, self.release.guarantee, table, tuple(notes))

    def _of_units(self) -> str:
        """Return what makes the noise of units less, where it is most of the variance; empty elsewhere."""
        unit, parts = self.release.settings.get("unit"), self.posterior.distribution.variance_parts()
        if unit is None or not isinstance(self.release, PopulationSums) or unit["max_rows"] <= 1.0:
            return ""
        if np.median(parts.privacy / (parts.data + parts.privacy + parts.approximation)) <= 0.5:
            return ""
        return (
            f"Most of the variance is noise, which is for units of {unit['max_rows']:g} rows and grows with them; "
            f"units are said to have {unit['mean_rows']:g} on average. A smaller max_rows has less noise (longer "
            "units are clipped), and so has a model with an effect of the unit, (1 | unit)."
        )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the regression as one self-contained HTML page, in place of a file of that name."""
        write_atomically(Path(path), render(self.report_content()).encode())

    def report_content(self, level: float = 0.9) -> ReportContent:
        """Return the report's content: rows in the table's units, with the schema's labels and intervals of `level`."""
        rows = None if self.fit.maybe_posterior is None else estimates(self.design, self.coefficients(level))
        caption = f'Coefficients of "{self.design.formula.text}" are in the units of the table'
        if self.design.classes:
            caption += f", those of each class against {self.design.classes[0]!r}"
        return ReportContent(
            release=self.release,
            posterior=self.fit.maybe_posterior,
            failure=self.fit.failure,
            plan=self.plan,
            title=f"{_FAMILIES[self.design.family]} regression of {labelled(self.design, self.design.response.label)}",
            rows=rows,
            told=f"{caption}.",
            scale="coefficients for a change of one public standard deviation of the column",
            level=level,
            columns=columns_section(self.design),
            in_folder=True,
            in_units=partial(in_table_units, self.design),
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save everything to a folder; :func:`load_regression` reads it."""
        self.fit.save(folder)
        save_design(self.design, Path(folder))

    def __repr__(self) -> str:
        return str(self.summary())


def load_regression(folder: str | os.PathLike[str]) -> RegressionFit:
    """Read a saved regression.

    **Privacy.** Reads no records.

    Raises ReleaseFormatError or PosteriorFormatError if a file is malformed.
    """
    loaded = load_design(Path(folder))
    fit = load_fit(folder, model=loaded.model if isinstance(loaded.model, OwnModel) else None)
    if fit.release.names != loaded.model.names or type(fit.plan.model) is not type(loaded.model):
        raise ReleaseFormatError(f"{str(Path(folder) / DESIGN_FILE)!r} is not the design of the fit beside it")
    if loaded.persons is not None:
        from dpinfer.formulas.persons import PersonFit

        return PersonFit(design=loaded, fit=fit)
    plain = RegressionFit(design=loaded, fit=fit)
    return plain.with_prior() if loaded.formula.levels and not plain.failure else plain

"""Coefficients in the user's units: estimates, intervals, and the share of variance due to the privacy noise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval
from dpinfer.fitting.report import cards
from dpinfer.formulas.design import COUNTS, Design
from dpinfer.formulas.own_families import SIZE, OwnRegression
from dpinfer.inference import Posterior
from dpinfer.inference.newton.tuning import TUNING
from dpinfer.inference.posterior.causes import DOMINATED, PRIOR_DOMINATES, causes
from dpinfer.inference.posterior.monte_carlo import combine
from dpinfer.inference.posterior.summary import RESIDUAL_SPREAD
from dpinfer.models import LinearRegression

_DRAWS, _SEED = 16_384, 0  # Monte Carlo error below 1% of a standard deviation; the seed is arbitrary
SIGMA = "sigma"
FEW_EVENTS = "few events, or noise hides them: the prior has a part"  # a remark on a level
NOT_TOLD_FROM_ZERO = "not told from zero"  # a remark on a standard deviation
# Variance of a response's own noise on the scale of the link (Nakagawa and Schielzeth 2010), by family.
LINK_VARIANCE = {"binomial": math.pi**2 / 3.0, "probit": 1.0}
_HEADS = ("mean", "sd", "low", "high", "privacy", "prior", "mcse", "ess", "per_sd")


@dataclass(frozen=True, eq=False)
class CoefficientTable:
    """A table of coefficients.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    names : tuple of str
    mean, sd : (m,) arrays
        Posterior mean and standard deviation, in the user's units.  Of ratios (``exp=True``): median, and the standard
        deviation of the logarithm.
    low, high : (m,) arrays
        Ends of the interval.
    privacy, prior : (m,) arrays
        Shares of the variance that are due to the privacy noise, and to the prior alone; NaN if the
        posterior does not have it for several weights together. The rest is sampling error.
    mcse, ess : (m,) arrays
        Monte Carlo standard error of the mean, and how many independent draws of the chain are behind it: each is a
        distribution by itself, so that mcse is less than sd / sqrt(ess).  0 and infinite without draws.
        For ratios, the error of the logarithm.
    per_sd : (m,) array
        Mean for a change of one (public) standard deviation of the column, in units of the response; NaN if there is
        none.
    level : float
    exp : bool
        Whether these are odds or rate ratios.
    response : str
    remarks : mapping
        From the name of a row to a remark about it.
    """

    names: tuple[str, ...]
    mean: FloatArray
    sd: FloatArray
    low: FloatArray
    high: FloatArray
    privacy: FloatArray
    prior: FloatArray
    mcse: FloatArray
    ess: FloatArray
    per_sd: FloatArray
    level: float
    exp: bool = False
    response: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_draws(
        cls,
        draws: Mapping[str, FloatArray],  # the draws of each row
        level: float,
        *,
        ess: FloatArray | float,
        mcse: FloatArray | None = None,  # that of independent draws by default
        from_zero: bool = False,  # whether the intervals of rows with a remark begin at zero
        response: str = "",
        remarks: Mapping[str, str] | None = None,
    ) -> "CoefficientTable":
        """Return a table of quantities that are drawn, without shares of the variance."""
        told, size, (tail, _, rest) = remarks or {}, len(draws), ends_of(level)
        mean, sd = (np.array([summary(own) for own in draws.values()]) for summary in (np.mean, np.std))
        low, high = np.array([np.quantile(own, [tail, rest]) for own in draws.values()]).reshape(size, 2).T
        if from_zero:
            for place in np.flatnonzero([name in told for name in draws]):
                low[place], high[place] = 0.0, np.quantile(list(draws.values())[place], level)
        blank, ess = np.full(size, np.nan), np.broadcast_to(ess, size)
        mcse = sd / np.sqrt(ess) if mcse is None else mcse
        return cls(tuple(draws), mean, sd, low, high, blank, blank, mcse, ess, blank, level, False, response, told)

    @classmethod
    def of_quantiles(
        cls,
        names: Sequence[str],
        # mean, sd, the quantiles at the levels of :func:`ends_of`, privacy, prior, mcse, ess, per_sd
        columns: Sequence[FloatArray],
        level: float,
        *,
        exp: bool,
        response: str = "",
        remarks: Mapping[str, str] | None = None,
    ) -> "CoefficientTable":
        """Return a table of coefficients, or with `exp` of their ratios."""
        mean, sd, low, median, high, privacy, prior, mcse, ess, per_sd = columns
        if exp:
            low, mean, high, per_sd = (np.exp(values) for values in (low, median, high, per_sd))
        parts = (mean, sd, low, high, privacy, prior, mcse, ess, per_sd)
        return cls(tuple(names), *parts, level, exp, response, remarks or {})

    def __getitem__(self, name: str) -> dict[str, float]:
        """Return one row."""
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        return {head: float(getattr(self, head)[index]) for head in _HEADS}

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists: ``pandas.DataFrame(table.to_dict())`` is a data frame."""
        return {"name": list(self.names)} | {head: getattr(self, head).tolist() for head in _HEADS}

    def rows(self) -> list[tuple[str, ...]]:
        """Return head and rows as text."""
        tail = 50.0 * (1.0 - self.level)
        first = ("ratio", "sd of log") if self.exp else ("mean", "sd")
        heads = ("", *first, f"{tail:g}%", f"{100.0 - tail:g}%", "privacy", "prior", "mcse", "ess", "per sd")
        body = []
        for index, name in enumerate(self.names):
            numbers = [_number(getattr(self, head)[index]) for head in ("mean", "sd", "low", "high")]
            shares = ["" if math.isnan(part[index]) else f"{part[index]:.0%}" for part in (self.privacy, self.prior)]
            ess = "exact" if math.isinf(self.ess[index]) else f"{self.ess[index]:.0f}"
            more = [_number(self.mcse[index], 2), ess, _number(self.per_sd[index])]
            body.append((name, *numbers, *shares, *more, self.remark(name)))
        if not any(row[-1] for row in body):
            return [heads, *(row[:-1] for row in body)]
        return [(*heads, "remark"), *body]

    def remark(self, name: str) -> str:
        """Return a remark about a row, such as that the prior dominates it; empty without one."""
        remarks = [self.remarks[name]] if name in self.remarks else []
        if self.prior[self.names.index(name)] > DOMINATED:
            remarks.insert(0, PRIOR_DOMINATES)
        return "; ".join(remarks)

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
        lines = []
        for row in rows:
            cells = [f"{row[0]:<{widths[0]}}"]
            cells += [f"{text:>{width}}" for text, width in zip(row[1:10], widths[1:10], strict=True)]
            # Remarks are words.
            cells += row[10:]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return the table as HTML; names are escaped."""
        heads, *body = self.rows()
        return cards(heads, body)


def ends_of(level: float) -> FloatArray:
    """Return the levels of both ends of an interval, and of the median between them; refuse a level not in (0, 1)."""
    level = check_interval("level", level, 0.0, 1.0)
    return np.array([0.5 * (1.0 - level), 0.5, 0.5 * (1.0 + level)])


def _number(value: float, digits: int = 4) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def tabulate(design: Design, posterior: Posterior, *, level: float, exp: bool) -> CoefficientTable:
    """Return the coefficients of a posterior in the user's units."""
    matrix, shift = design.user_units()
    total = len(matrix)
    plain, column = np.flatnonzero(design.column_of_weight >= 0), design.column_of_weight
    combined = np.flatnonzero(np.count_nonzero(matrix, axis=1) > 1)
    ends = ends_of(level)
    errors = posterior.monte_carlo_error(ends)
    factor = np.diag(matrix)
    mean = matrix @ posterior.mean[:total] + shift
    sd = np.sqrt(np.einsum("ij,jk,ik->i", matrix, posterior.cov[:total, :total], matrix))
    quantiles = posterior.quantile(ends)[:, :total] * factor + shift
    mcse, ess = np.abs(factor) * errors.mean[:total], np.array(errors.effective_draws[:total])
    records, *shares = causes(posterior)[:, :total]
    if combined.size:
        # An intercept, or levels that make it up: combinations of several weights.
        table = combine(posterior, _padded(matrix[combined], posterior), ends)
        quantiles[:, combined] = table.quantiles + shift[combined]
        mcse[combined], ess[combined] = table.mcse, table.ess
        for own, found in zip(shares, (table.privacy, table.prior), strict=True):
            own[combined] = found
    per_sd = np.full(total, np.nan)
    per_sd[plain] = mean[plain] * np.array([own.scale for own in design.columns])[column[plain]]
    names, columns = design.model.names[:total], [mean, sd, *quantiles, *shares, mcse, ess, per_sd]
    spread = {} if exp else _spread(design, posterior, ends)
    for name, row in spread.items():
        names, columns = (*names, name), [np.append(*pair) for pair in zip(columns, row, strict=True)]
    remarks = {SIGMA: RESIDUAL_SPREAD} if SIGMA in names else {}
    remarks |= _few_events(design, sd[: len(records)], np.nan_to_num(records), np.nan_to_num(shares[1][: len(records)]))
    label = design.response.label
    return CoefficientTable.of_quantiles(names, columns, level, exp=exp, response=label, remarks=remarks)


def _few_events(design: Design, sd: FloatArray, records: FloatArray, prior: FloatArray) -> dict[str, str]:
    """Return remarks on levels whose effect rests on few events, or on so many that noise leaves to few, by name.

    The variance of a log odds or rate of k events is about 1 / k.  A normal law is then not the likelihood's, and where
    the prior has a part in it, the point at which curvatures were measured is not the likelihood's either.
    """
    if design.family not in ("binomial", *COUNTS):
        return {}
    worth = 1.0 / np.maximum(np.square(sd), 1e-300)
    few = (worth < TUNING.few_events * records) | ((worth < TUNING.few_events) & (prior > TUNING.prior_counts))
    names = [name for name, own in zip(design.model.names, few, strict=False) if own and "[T." in name]
    return dict.fromkeys(names, FEW_EVENTS)


def _spread(design: Design, posterior: Posterior, ends: FloatArray) -> dict[str, list[float]]:
    """Return the row of the noise's standard deviation, in the response's units, or of a negative binomial's size."""
    model = design.model
    has_size = isinstance(model, OwnRegression) and model.has_size
    if not has_size and not isinstance(model, LinearRegression):
        return {}
    draws, quantiles = posterior.sample(_DRAWS, seed=_SEED)[:, -1], posterior.quantile(ends)[:, -1]
    if not has_size:
        scale, most = design.response_scale, design.largest_sigma
        draws, quantiles = (np.minimum(np.sqrt(variance) * scale, most) for variance in (draws, quantiles))
    _, *shares = causes(posterior)[:, -1]
    ess = min(_DRAWS, float(posterior.monte_carlo_error(ends).effective_draws[-1]))
    row = [draws.mean(), draws.std(), *quantiles, *shares, draws.std() / math.sqrt(ess), ess, math.nan]
    return {SIZE if has_size else SIGMA: row}


def _padded(rows: FloatArray, posterior: Posterior) -> FloatArray:
    """Return combinations of the weights, (k, n), as such of all parameters."""
    return np.pad(rows, ((0, 0), (0, posterior.n_params - rows.shape[1])))


def combination(
    design: Design, posterior: Posterior, weights: dict[str, float], *, level: float, exp: bool
) -> CoefficientTable:
    """Return a linear combination of coefficients."""
    matrix, shift = design.user_units()
    names = design.model.names[: len(matrix)]
    vector = np.zeros(len(matrix))
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(f"weights must be of coefficients ({', '.join(names)}), got {name!r}")
        vector[names.index(name)] = float(weight)
    row = vector @ matrix
    mean = np.array([row @ posterior.mean[: len(matrix)] + vector @ shift])
    sd = np.sqrt([row @ posterior.cov[: len(matrix), : len(matrix)] @ row])
    combined = combine(posterior, _padded(row[None], posterior), ends_of(level))
    ends = combined.quantiles + vector @ shift
    label = " ".join(f"{'-' if weight < 0 else '+'} {abs(weight):g} {name}" for name, weight in weights.items())
    columns = [mean, sd, *ends, combined.privacy, combined.prior, combined.mcse, combined.ess, np.array([np.nan])]
    return CoefficientTable.of_quantiles((label.removeprefix("+ "),), columns, level, exp=exp)

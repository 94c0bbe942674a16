"""The columns of a design: which there are, from the formula and the schema, and their public units.

**Privacy.** Reads no records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.formulas.factors import Factor, FormulaError, Part, Values, category_labels, compile_factor
from dpinfer.formulas.grammar import Formula, parse
from dpinfer.models import SurveyWeights
from dpinfer.models.survey_weights import MOST_STRATA
from dpinfer.tabular import ContinuousColumn, IgnoredColumn, Schema

_REFERENCE_POINTS = 4096  # points of a rank-1 lattice on the public design: deterministic averages
_COLLINEAR = 1e-9  # of a correlation matrix: far above rounding, 1e-15, far below any useful column
_CONSTANT = 1e-9  # largest distance of a sum of columns from 1: rounding
MOST_COLUMNS = 2000  # the time of a pass grows as its square, that of a posterior as its cube


@dataclass(frozen=True)
class DesignColumn:
    """One column of the design matrix.

    Parameters
    ----------
    name : str
        As a statistician writes it: ``age``, ``job[T.clerk]``, ``age:sex[T.male]``.
    parts : tuple of Part
        Factors whose product is the column, in the user's units.
    term : tuple of str
        The factors of its term in the formula.
    offset, scale : float
        Public; the model sees (value - offset) / scale.
    """

    name: str
    parts: tuple[Part, ...]
    term: tuple[str, ...] = ()
    offset: float = 0.0
    scale: float = 1.0

    def evaluate(self, values: Values) -> FloatArray:
        """Return the column in the user's units, (N,)."""
        result = self.parts[0].evaluate(values)
        for part in self.parts[1:]:
            result = result * part.evaluate(values)
        return result


def columns_of(parsed: Formula, factors: dict[str, Factor]) -> list[DesignColumn]:
    """Return the columns in the user's units."""
    terms = {frozenset(term) for term in parsed.terms} | ({frozenset[str]()} if parsed.intercept else set())
    columns: list[DesignColumn] = []
    full_margin = parsed.intercept
    for term in parsed.terms:
        products: list[tuple[Part, ...]] = [()]
        for text in term:
            margin = frozenset(term) - {text}
            contrast = margin in terms if margin else full_margin
            if factors[text].base is not None and not margin:
                # The first factor with all its levels makes up for the intercept.
                full_margin = True
            coded = factors[text].coded(contrast=contrast)
            products = [(*product, part) for product in products for part in coded]
        columns += [DesignColumn(":".join(part.label for part in parts), parts, term) for parts in products]
    return columns


def told_apart(columns: Sequence[DesignColumn]) -> list[DesignColumn]:
    """Return the columns with distinct names: a released label may spell the name of another column."""
    taken: set[str] = set()
    renamed = []
    for column in columns:
        name, number = column.name, 2
        while name in taken:
            name, number = f"{column.name} ({number})", number + 1
        taken.add(name)
        renamed.append(replace(column, name=name))
    return renamed


def count_columns(formula: str, schema: Schema) -> int:
    """Return how many columns a formula gives, without making them."""
    parsed = parse(formula, tuple(column.name for column in schema.columns if not isinstance(column, IgnoredColumn)))
    return len(columns_of(parsed, {text: compile_factor(text, schema) for term in parsed.terms for text in term}))


def scaled_columns(
    columns: Sequence[DesignColumn], schema: Schema, used: frozenset[str], *, intercept: bool, completed: bool
) -> tuple[tuple[DesignColumn, ...], FloatArray, FloatArray]:
    """Return the columns with their units, the public second moments of (z, 1), and the coefficients of a constant.

    A shift is the constant's to undo: columns are centred only where there is one, and it is not made of them.
    """
    values = reference_values(schema, used)
    matrix = np.column_stack([column.evaluate(values) for column in columns])
    constant = np.append(np.zeros(len(columns)), float(intercept)) if intercept else _constant(matrix)
    centred = (constant[:-1] == 0.0) & constant.any()
    indicator = np.all((matrix == 0.0) | (matrix == 1.0), axis=0)
    offset = np.where(indicator | ~centred, 0.0, matrix.mean(axis=0))
    scale = np.where(centred, matrix.std(axis=0), np.sqrt(np.mean(matrix**2, axis=0)))
    scale[indicator] = 1.0
    still = np.flatnonzero((scale <= 0.0) | (centred & (np.ptp(matrix, axis=0) == 0.0)))
    if completed:
        scale[still] = 1.0
    elif still.size:
        raise FormulaError(f"formula must have terms that vary: {columns[int(still[0])].name!r} does not")
    z = np.column_stack([(matrix - offset) / scale, np.ones(len(matrix))])
    moments = z.T @ z / len(z)
    if completed:
        # An empty column gets the size of the others.
        np.fill_diagonal(moments, np.where(np.diag(moments) > 0.0, np.diag(moments), 1.0))
    root = np.sqrt(np.diag(moments))
    inner = slice(None) if intercept else slice(None, -1)
    if not completed and np.linalg.eigvalsh((moments / root[:, None] / root)[inner, inner])[0] < _COLLINEAR:
        raise FormulaError(
            "formula must not have terms that are linear combinations of others for any records "
            "(with an interaction, add its main effects: a * b)"
        )
    moments = 0.5 * (moments + moments.T)
    moments[-1, -1] = 1.0
    units = zip(columns, offset.tolist(), scale.tolist(), strict=True)
    return tuple(replace(column, offset=shift, scale=unit) for column, shift, unit in units), moments, constant


def _constant(matrix: FloatArray) -> FloatArray:
    """Return coefficients of columns whose sum is 1 for any record, as of all levels of a factor, and a 0; or zeros."""
    sizes = np.abs(matrix).max(axis=0)
    sizes[sizes == 0.0] = 1.0
    found = np.linalg.lstsq(matrix / sizes, np.ones(len(matrix)), rcond=None)[0]
    if np.max(np.abs(matrix / sizes @ found - 1.0)) > _CONSTANT:
        return np.zeros(matrix.shape[1] + 1)
    return np.append(np.where(np.abs(found) > _CONSTANT, found / sizes, 0.0), 0.0)


def survey_weights_of(schema: Schema, name: str, strata: str) -> SurveyWeights | None:
    """Return the schema's declaration of the columns of weights and strata; an empty name means no column."""
    labels = category_labels(next((item for item in schema.columns if item.name == strata), None))
    if strata and not 2 <= len(labels) <= MOST_STRATA:
        raise FormulaError(
            f"strata must be a column of the schema with 2 to {MOST_STRATA} categories, which are public, got "
            f"{strata!r}"
        )
    if not name:
        return SurveyWeights(largest=1.0, sd=0.0, strata=len(labels)) if strata else None
    column = next((item for item in schema.columns if item.name == name), None)
    if not isinstance(column, ContinuousColumn) or column.bounds[0] < 0.0 or column.mean is None:
        raise FormulaError(
            f"weights must be a continuous column of the schema with bounds of at least 0 and a mean, which are public "
            f"(the mean is the population's size over the sample's); {name!r} is not"
        )
    return SurveyWeights(largest=column.bounds[1], mean=column.mean, sd=column.sd, strata=len(labels))


def reference_values(schema: Schema, names: frozenset[str]) -> dict[str, FloatArray]:
    """Return a public population: columns independent, as the schema declares them, in a deterministic order.

    Its points are those of an additive recurrence with the roots of the primes as steps.
    """
    columns = [column for column in schema.columns if column.name in names]
    steps = np.sqrt(_primes(len(columns))) % 1.0
    uniform = (np.arange(_REFERENCE_POINTS)[:, None] * steps + 0.5) % 1.0
    values: dict[str, FloatArray] = {}
    for column, u in zip(columns, uniform.T, strict=True):
        if not isinstance(column, ContinuousColumn):
            size = len(category_labels(column))
            shares = np.full(size, 1.0 / size) if column.declared_shares is None else np.array(column.declared_shares)
            if size == 2 and column.kind in ("binary", "target"):
                shares = shares[::-1]  # declared of 1 and of 0
            values[column.name] = np.searchsorted(np.cumsum(shares)[:-1], u, side="right").astype(np.float64)
            continue
        low, high = column.bounds
        values[column.name] = low + (high - low) * u
        if column.located:
            mean, sd = column.public_location
            normal = mean + sd * special.ndtri(np.clip(u, 1e-9, 1.0 - 1e-9))
            values[column.name] = np.clip(normal, low, high)
    return values


def _primes(size: int) -> FloatArray:
    found: list[int] = []
    candidate = 2
    while len(found) < size:
        if all(candidate % prime for prime in found if prime * prime <= candidate):
            found.append(candidate)
        candidate += 1
    return np.array(found, dtype=np.float64)

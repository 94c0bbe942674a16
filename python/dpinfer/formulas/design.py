"""The design of a regression: which columns, in which units, from the formula and the schema alone.

**Privacy.** Making a design reads no records.  A row of the matrix depends on one record.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray, IntArray
from dpinfer._validate import check_choice, check_type
from dpinfer.formulas.columns import (
    MOST_COLUMNS,
    DesignColumn,
    columns_of,
    reference_values,
    scaled_columns,
    survey_weights_of,
    told_apart,
)
from dpinfer.formulas.factors import (
    FormulaError,
    Part,
    Values,
    category_labels,
    compile_factor,
    compile_offset,
    compile_response,
    of_persons,
)
from dpinfer.formulas.grammar import Formula, parse
from dpinfer.formulas.own_families import OwnRegression
from dpinfer.mechanism import Units
from dpinfer.models import (
    GeneralizedLinearModel,
    LinearRegression,
    LogisticRegression,
    MultinomialRegression,
    PersonModel,
    PoissonRegression,
    ProbitRegression,
    tuning,
)
from dpinfer.models.person_model import MOST_ROWS, PERSON_FAMILIES
from dpinfer.tabular import BinaryColumn, Column, ContinuousColumn, IgnoredColumn, Schema

FAMILIES = ("gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial")
COUNTS = ("poisson", "negativebinomial")
_MODELS: dict[str, type[GeneralizedLinearModel]] = {
    "gaussian": LinearRegression,
    "binomial": LogisticRegression,
    "poisson": PoissonRegression,
    "probit": ProbitRegression,
}


@dataclass(frozen=True, eq=False)
class Design:
    """The design of a formula for tables with a schema. Made by :func:`design`.

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    formula : Formula
    schema : Schema
    family : {"gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial"}
    columns : tuple of DesignColumn
    response : Part
    response_columns : frozenset of str
        Columns of the table that the response reads.
    response_offset, response_scale : float
        The model sees (y - offset) / scale; 0 and 1 but for gaussian.  The offset is 0 where no constant undoes it.
    prior_scale : float
    completed : bool
        As in :func:`design`.
    offsets : tuple of Part
        Offsets of the linear predictor, in the user's units.
    classes : tuple of str
        Of a multinomial response, the base class first; empty for other families.
    class_codes : tuple of int
        Their codes in the table.
    weights : str
        The column of survey weights; empty without one.
    strata : str
        The column of strata; empty without one.
    persons : Units or None
        The owner of each row, if the formula has effects of persons.
    """

    formula: Formula
    schema: Schema
    family: str
    columns: tuple[DesignColumn, ...]
    response: Part
    response_columns: frozenset[str]
    predictor_columns: frozenset[str]
    response_offset: float = 0.0
    response_scale: float = 1.0
    prior_scale: float = 1.0
    moments: FloatArray = field(default_factory=lambda: np.ones((1, 1)), repr=False)
    # coefficients, the intercept's last, whose sum of columns is 1: without an intercept all levels of a factor may
    # make it up; zeros where nothing does
    constant: FloatArray = field(default_factory=lambda: np.ones(1), repr=False)
    completed: bool = False
    offsets: tuple[Part, ...] = ()
    classes: tuple[str, ...] = ()
    class_codes: tuple[int, ...] = ()
    weights: str = ""
    persons: Units | None = None
    strata: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # The compiled formula is code: it is compiled again, as from a file.
        again = partial(
            design,
            family=self.family,
            prior_scale=self.prior_scale,
            completed=self.completed,
            weights=self.weights or None,
            unit=self.persons,
            strata=self.strata or None,
        )
        return again, (self.formula.text, self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the design matrix, the intercept not among them."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def model(self) -> GeneralizedLinearModel | OwnRegression | MultinomialRegression | PersonModel:
        """The model that is fitted, in scaled units."""
        if self.persons is not None:
            return PersonModel(
                self.family,
                self.names,
                max_rows=int(self.persons.max_rows),
                mean_rows=float(self.persons.mean_rows or 1.0),
                slope=self._slope(),
                prior_scale=self.prior_scale,
                intercept_mean=self.intercept_mean,
                features=self.encode(reference_values(self.schema, self.predictor_columns)),
            )
        if self.classes:
            return MultinomialRegression(
                len(self.columns),
                self.classes,
                fit_intercept=self.formula.intercept,
                prior_scale=self.prior_scale,
                feature_names=self.names,
                features=self.encode(reference_values(self.schema, self.predictor_columns)),
            )
        if self.family not in _MODELS or (self.offsets and self.family != "gaussian"):
            return OwnRegression(
                self.family,
                (*self.names, *(("intercept",) if self.formula.intercept else ())),
                fit_intercept=self.formula.intercept,
                offset=bool(self.offsets),
                prior_scale=self.prior_scale,
                intercept_mean=self.intercept_mean,
                features=self.encode(reference_values(self.schema, self.predictor_columns)),
            )
        bound: dict[str, Any] = {}
        if self.family == "gaussian":
            bound["largest_spread"] = self.largest_sigma / self.response_scale
        return _MODELS[self.family](
            n_features=len(self.columns),
            prior_scale=self.prior_scale,
            fit_intercept=self.formula.intercept,
            feature_names=self.names,
            feature_moments=self.moments,
            survey_weights=survey_weights_of(self.schema, self.weights, self.strata),
            response_mean=self._response_mean(),
            **bound,
        )

    @property
    def largest_sigma(self) -> float:
        """The largest standard deviation of residuals that the response's bounds allow, in the user's units."""
        low, high = self.response.bounds
        for part in self.offsets:
            low, high = low - part.bounds[1], high - part.bounds[0]
        return 0.5 * (high - low) if self.constant.any() else max(-low, high)

    def _response_mean(self) -> float | None:
        """Return the declared mean of a response of 0 and 1 or of counts, where the response is a column."""
        own = next((column for column in self.schema.columns if column.name == self.response.label), None)
        if self.family in ("binomial", "probit") and isinstance(own, BinaryColumn) and own.declared_shares:
            return own.declared_shares[0]
        if self.family in COUNTS and isinstance(own, ContinuousColumn) and own.mean is not None and own.mean > 0.0:
            return own.mean
        return None

    @property
    def intercept_mean(self) -> float:
        """Where a run that is written as code starts: the logarithm of the declared mean count, 0 without one."""
        declared = self._response_mean() if self.family in COUNTS else None
        return 0.0 if declared is None else float(np.log(declared))

    def _slope(self) -> int:
        """Return the place of the column whose coefficient varies between persons; -1 without one."""
        person = self.formula.person
        if person is None or not person.slope:
            return -1
        places = [place for place, column in enumerate(self.columns) if column.term == (person.slope,)]
        if len(places) != 1 or "[" in self.columns[places[0]].name:
            raise FormulaError(
                f"formula must have {person.slope!r} as a term of its own, a number, with {person.text}: a slope that "
                "varies between persons has a mean"
            )
        return places[0]

    def table_columns(self, *, response: bool = True) -> tuple[Column, ...]:
        """Return the columns of the schema that are read."""
        used = self.predictor_columns | (
            self.response_columns | {self.weights, self.strata} if response else frozenset()
        )
        return tuple(column for column in self.schema.columns if column.name in used)

    def encode(self, values: Values) -> FloatArray:
        """Return the rows of the design matrix in scaled units, (N, n_columns), each from one record.

        An offset is a last column, centred, except for gaussian, whose responses are reduced by it.

        Parameters
        ----------
        values : mapping
            Decoded columns: :func:`dpinfer.formulas.records.kept_values`.
        """
        if not self.columns:
            return np.empty((len(next(iter(values.values()))), 0))
        rows = [(column.evaluate(values) - column.offset) / column.scale for column in self.columns]
        if self.offsets and self.family != "gaussian":
            rows.append(self.offset_values(values) - self.offset_centre)
        return np.ascontiguousarray(np.column_stack(rows))

    def encode_response(self, values: Values) -> FloatArray:
        """Return the responses in scaled units, (N,)."""
        y = self.response.evaluate(values)
        if self.classes:
            return np.argsort(self.class_codes)[y.astype(np.intp)].astype(np.float64)
        if self.family == "gaussian" and self.offsets:
            y = y - self.offset_values(values)
        y = (y - self.response_offset) / self.response_scale
        return np.rint(y) if self.family in COUNTS else y

    @cached_property
    def offset_centre(self) -> float:
        """Public mean of the offset: the model's intercept refers to a usual exposure.

        0 without a constant, and for gaussian, whose responses are centred themselves.
        """
        if not self.offsets or self.family == "gaussian" or not self.constant.any():
            return 0.0
        return float(self.offset_values(reference_values(self.schema, self.predictor_columns)).mean())

    def offset_values(self, values: Values) -> FloatArray:
        """Return the sum of the offsets, (N,)."""
        total = np.zeros(len(next(iter(values.values()))))
        for part in self.offsets:
            total = total + part.evaluate(values)
        return total

    def response_units(self, y: FloatArray, values: Values) -> FloatArray:
        """Return responses, or their means, (..., N) in the model's units, in the user's; `values` are the points.

        Classes become codes of the table.
        """
        if self.classes:
            return np.asarray(self.class_codes, dtype=np.float64)[y.astype(np.intp)]
        shift = self.offset_values(values) if self.family == "gaussian" and self.offsets else 0.0
        return np.asarray(y * self.response_scale + self.response_offset + shift)

    def within_bounds(self, y: FloatArray) -> FloatArray:
        """Return responses, or their means, in the user's units: the response's bounds exclude those beyond them."""
        return y if self.classes else np.clip(y, *self.response.bounds)

    def user_units(self) -> tuple[FloatArray, FloatArray]:
        """Return the linear map from the model's weights to coefficients in the user's units: (matrix, shift).

        Rows and columns are the design's columns, then the intercept if there is one; for a multinomial
        response this is repeated for every class but the base.
        """
        matrix, shift = self._units_of_a_block()
        return np.asarray(np.kron(np.eye(self.n_blocks), matrix)), np.tile(shift, self.n_blocks)

    @property
    def n_blocks(self) -> int:
        """How many weights a column of the design has: one, or one for each class but the base."""
        return max(1, len(self.classes) - 1)

    @cached_property
    def column_of_weight(self) -> IntArray:
        """The design's column of each coefficient of :meth:`user_units`, -1 for an intercept."""
        block = [*range(len(self.columns)), *((-1,) if self.formula.intercept else ())]
        return np.tile(block, self.n_blocks)

    def _units_of_a_block(self) -> tuple[FloatArray, FloatArray]:
        size, last = len(self.columns), int(self.formula.intercept)
        units = [(column.offset, column.scale) for column in self.columns] + [(0.0, 1.0)] * last
        offsets, scales = np.array(units).T
        constant = self.constant[: size + last]
        matrix = self.response_scale * (np.eye(size + last) - np.outer(constant, offsets)) / scales
        return matrix, (self.response_offset - self.offset_centre) * constant

    def __repr__(self) -> str:
        return f"Design({self.formula.text!r}, {self.family}, {len(self.columns)} columns)"


def design(
    formula: str,
    schema: Schema,
    *,
    family: str = "gaussian",
    prior_scale: float | None = None,
    completed: bool = False,
    weights: str | None = None,
    unit: Units | None = None,
    strata: str | None = None,
) -> Design:
    """Return the design of a formula for tables with a schema.

    **Privacy.** Reads no records: levels, bounds, and the constants of transformations are the schema's.

    Raises TypeError or ValueError if the formula needs something that is not public, or does not fit the schema; the
    message names it. Raises BackendUnavailableError if formulaic is not installed.

    Parameters
    ----------
    formula : str
        ``y ~ age + C(job, base="clerk") + age:sex + poly(hours, 2) + bs(gain, knots=[10, 50]) + log(weight)``.
    schema : Schema
    family : {"gaussian", "binomial", "multinomial", "poisson", "probit", "negativebinomial"}
    prior_scale : float, optional
        Prior standard deviation of a coefficient per standard deviation of its column: 2.5 by default; 10 for gaussian,
        in units of the noise's standard deviation.
    completed : bool
        Whether parts of the schema were released, with noise, after the check of the formula: then constant or
        collinear terms are no errors, and their posterior is the prior.
    weights : str, optional
        A column of survey weights: a continuous one with a lower bound of at least 0, which declares its mean.
    unit : Units, optional
        The person of each row: ``(1 | person)`` of that column is then a term of effects of persons.
    strata : str, optional
        A column of strata, with public categories.

    Notes
    -----
    A factor of categories is coded by contrasts with its base level where the term without it is in the formula, and by
    a column for each level otherwise, as R does.  Columns are scaled by a public guess of their mean and standard
    deviation: that of the uniform distribution on the bounds, of equally likely categories, or the schema's
    declarations, with columns of the table independent of each other.
    """
    check_type("schema", schema, Schema)
    check_choice("family", family, FAMILIES)
    names = tuple(column.name for column in schema.columns if not isinstance(column, IgnoredColumn))
    parsed = parse(formula, names, "" if unit is None else str(unit.ids))
    persons = unit if parsed.person is not None else None
    if persons is not None:
        _check_persons(parsed, family, persons, weights or strata)
    for text in parsed.levels:
        # An ignored column names persons, and has no categories.
        name = text.rpartition("|")[2].strip(" )")
        if "|" in text and name in {column.name for column in schema.columns} - set(names):
            raise FormulaError(of_persons(text, name))
    response, response_columns, own = compile_response(parsed.response, schema)
    classes, class_codes = _classes(own, response) if family == "multinomial" else ((), ())
    factors = {text: compile_factor(text, schema) for term in parsed.terms for text in term}
    offsets = [compile_offset(text, schema) for text in parsed.offsets]
    if offsets and family == "multinomial":
        raise FormulaError("formula must not have an offset with family='multinomial'")
    predictor_columns = frozenset(name for factor in (*factors.values(), *offsets) for name in factor.columns)
    both = sorted(response_columns & predictor_columns)
    if both:
        raise FormulaError(f"formula must not have {both[0]!r} on both sides")
    if weights is not None or strata is not None:
        if family not in _MODELS or offsets or weights in response_columns | predictor_columns:
            name = "strata" if weights is None else "weights"
            families = ", ".join(_MODELS)
            raise FormulaError(f"{name} must be a column besides the formula's, for a family of {families}, no offset")
        survey_weights_of(schema, weights or "", strata or "")
    columns = columns_of(parsed, factors)
    if completed and not columns:
        # All labels but one have turned out to be rare.
        first = parsed.terms[0]
        columns = [DesignColumn(factors[first[0]].parts[0].label, factors[first[0]].parts[:1], first)]
    if not columns:
        one = [name for name in sorted(predictor_columns) if len(_labels_of(schema, name)) == 1]
        told = f"; {one[0]!r} declares one category, so that it is the same for all records" if one else ""
        raise FormulaError(f"formula must have at least one term besides the intercept{told}")
    if len(columns) > MOST_COLUMNS:
        raise FormulaError(f"formula must give at most {MOST_COLUMNS} columns, got {len(columns)}")
    if completed:
        columns = told_apart(columns)
    repeated = {column.name for column in columns if [other.name for other in columns].count(column.name) > 1}
    if repeated:
        raise FormulaError(f"formula must give distinct columns, and two are called {min(repeated)!r}")
    scaled, moments, constant = scaled_columns(
        columns, schema, predictor_columns, intercept=parsed.intercept, completed=completed
    )
    offset, scale = _response_units(response, own, family, completed=completed)
    if family == "gaussian":
        offset -= sum(0.5 * (factor.parts[0].bounds[0] + factor.parts[0].bounds[1]) for factor in offsets)
        if not constant.any():
            offset, scale = 0.0, float(np.hypot(offset, scale))
    # A model of persons has the noise's standard deviation apart, and weights in the response's public spread.
    usual = tuning.PRIORS.over_noise if family == "gaussian" and persons is None else tuning.PRIORS.on_link
    result = Design(
        formula=parsed,
        schema=schema,
        family=family,
        columns=scaled,
        response=response,
        response_columns=response_columns,
        predictor_columns=predictor_columns,
        response_offset=offset,
        response_scale=scale,
        prior_scale=usual if prior_scale is None else prior_scale,
        moments=moments,
        constant=constant,
        completed=completed,
        offsets=tuple(factor.parts[0] for factor in offsets),
        classes=classes,
        class_codes=class_codes,
        weights=weights or "",
        persons=persons,
        strata=strata or "",
    )
    if persons is not None:
        result._slope()
    return result


def _check_persons(parsed: Formula, family: str, persons: Units, weights: str | None) -> None:
    """Refuse what a model of persons has not."""
    text = "" if parsed.person is None else parsed.person.text
    if family not in PERSON_FAMILIES:
        raise FormulaError(
            f"formula must do without {text} for family {family!r}: it is for {', '.join(PERSON_FAMILIES)}"
        )
    if parsed.offsets or weights is not None:
        raise FormulaError(f"formula must do without offset(), and weights be None, with {text}")
    if persons.max_rows != round(persons.max_rows) or persons.max_rows > MOST_ROWS:
        raise FormulaError(f"unit must have a whole number of max_rows, at most {MOST_ROWS}, with {text}")


def _labels_of(schema: Schema, name: str) -> tuple[str, ...]:
    return category_labels(next((column for column in schema.columns if column.name == name), None))


def _classes(own: Column | None, response: Part) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the classes of a multinomial response, the base first, and their codes."""
    labels = () if own is None else category_labels(own)
    if len(labels) < 2:
        raise FormulaError(
            f"formula must have a response of categories with family='multinomial', got {response.label!r}"
        )
    reference = getattr(own, "reference", None)
    base = 0 if reference is None else labels.index(reference)
    codes = (base, *(code for code in range(len(labels)) if code != base))
    return tuple(labels[code] for code in codes), codes


def _response_units(response: Part, own: Column | None, family: str, *, completed: bool) -> tuple[float, float]:
    """Return offset and scale of the response; refuse a response that the family does not have."""
    labels = () if own is None else category_labels(own)
    if family in ("binomial", "probit") and len(labels) != 2:
        raise FormulaError(
            f"formula must have a response of two categories (kind 'target' or 'binary') with family={family!r}"
            + ("; 'multinomial' takes more" if len(labels) > 2 else "")
        )
    if family in ("binomial", "probit", "multinomial"):
        return 0.0, 1.0
    if labels:
        raise FormulaError(
            f"formula must have a response of numbers with family={family!r}; this response needs "
            f"family={'binomial' if len(labels) == 2 else 'multinomial'!r}"
        )
    low, high = response.bounds
    if family in COUNTS:
        if own is None or low < 0.0 or (high < 1.0 and not completed):
            raise FormulaError(
                f"formula must have a column of counts, with bounds of at least 0, as response with family={family!r}, "
                f"got {response.label!r} within [{low:g}, {high:g}]"
            )
        return 0.0, 1.0
    if isinstance(own, ContinuousColumn):
        return own.public_location
    if not low < high:
        raise FormulaError("formula must have a response that varies")
    return 0.5 * (low + high), (high - low) / float(np.sqrt(12.0))

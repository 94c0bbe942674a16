"""Terms whose coefficients have a prior with an unknown scale, as linear maps from effects to the model's weights.

**Privacy.** Public: everything follows from the design and the term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import linalg

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.formulas.columns import DesignColumn, reference_values
from dpinfer.formulas.design import Design
from dpinfer.formulas.factors import FormulaError, category_labels, compile_factor, of_persons
from dpinfer.formulas.grammar import Group, read_group
from dpinfer.models import GeneralizedLinearModel
from dpinfer.tabular import ContinuousColumn

HORSESHOE = "horseshoe"
_POINTS = 801  # of a grid on the public bounds of a column
_FLAT = 1e-9  # of the largest curvature


@dataclass(frozen=True, eq=False)
class Effects:
    """The effects of one term."""

    term: str
    kind: str  # {"intercept", "slope", "pair", "curve"}
    labels: tuple[str, ...]  # groups; of a curve, the number of each function
    maps: tuple[FloatArray, ...]  # tuple of (d, q) arrays: from effects, in the model's units, to weights
    units: tuple[float, ...]  # from the model's units to the user's, for each map
    column: str  # of the groups, or of the curve
    slope: str = ""  # the column of a slope
    centre: float = 0.0  # of the slope's column: effects of groups are there
    # (points, q): of a curve, on a grid of its column
    functions: FloatArray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    grid: FloatArray = field(default_factory=lambda: np.empty(0), repr=False)
    line: int = -1  # of a curve, its place among the fixed coefficients

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the standard deviations, one for each map."""
        slope = f"sd of {self.slope} by {self.column}"
        if self.kind == "curve":
            return (f"sd of {self.term} about its line",)
        return {"intercept": (f"sd by {self.column}",), "slope": (slope,), "pair": (f"sd by {self.column}", slope)}[
            self.kind
        ]

    def effect_names(self) -> tuple[str, ...]:
        """Names of the effects, map by map."""
        plain = tuple(f"{self.column}[{label}]" for label in self.labels)
        slopes = tuple(f"{self.slope}:{name}" for name in plain)
        return {"slope": slopes, "pair": plain + slopes}.get(self.kind, plain)


@dataclass(frozen=True, eq=False)
class Layout:
    """Coefficients of a regression with learned scales, fixed ones first, and the map to its weights."""

    effects: tuple[Effects, ...]
    fixed: FloatArray  # (d, f): from fixed coefficients, in the model's units, to weights
    priors: IntArray  # (f,): places of the weights whose prior they have
    names: tuple[str, ...]
    # matrix, shift: (f, f) and (f,): from fixed coefficients to the user's units
    matrix: FloatArray
    shift: FloatArray
    shrunk: IntArray  # (h,): fixed coefficients with a horseshoe prior


def layout_of(design: Design, terms: Sequence[str]) -> Layout:
    """Return the layout of terms for a design: ``(1 | site)``, ``(1 + x | site)``, ``s(age)``, or ``"horseshoe"``.

    Raises FormulaError if the design lacks columns of a term, or its family has no learned scales; the message names
    them.
    """
    if not isinstance(design.model, GeneralizedLinearModel):
        raise FormulaError(
            f"formula must do without {terms[0]} for family {design.family!r}"
            + (" with an offset" if design.offsets else "")
            + ": scales are learned for gaussian, binomial, probit and poisson without an offset"
        )
    if not design.formula.intercept:
        raise FormulaError(f"formula must have an intercept with {terms[0]}")
    matrix, shift = design.user_units()
    taken: set[int] = set()
    effects: list[Effects] = []
    lines: list[tuple[FloatArray, str, float]] = []
    for term in terms:
        if term == HORSESHOE:
            continue
        if "|" in term:
            found, used = _groups(design, read_group(term.strip().removeprefix("(").removesuffix(")")))
            effects += found
        else:
            curve, line, used = _curve(design, term, len(lines))
            effects.append(curve)
            lines.append(line)
        if taken & used:
            raise FormulaError(f"formula must have each column in one term with a learned scale, got {term!r} twice")
        taken |= used
    size = len(design.columns)
    plain = [place for place in range(size + 1) if place not in taken]
    fixed = np.column_stack([np.eye(size + 1)[:, plain], *(line for line, _, _ in lines)])
    units = linalg.block_diag(matrix[np.ix_(plain, plain)], *(np.array([[unit]]) for _, _, unit in lines))
    names = design.model.names
    placed = [replace(each, line=len(plain) + each.line) if each.kind == "curve" else each for each in effects]
    return Layout(
        tuple(placed),
        fixed,
        np.array([*plain, *[0] * len(lines)], dtype=np.int64),
        (*(names[place] for place in plain), *(name for _, name, _ in lines)),
        units,
        np.append(shift[plain], np.zeros(len(lines))),
        np.array([place for place, at in enumerate(plain) if at < size], dtype=np.int64)
        if HORSESHOE in terms
        else np.empty(0, dtype=np.int64),
    )


def _weights(design: Design, functions: FloatArray) -> FloatArray:
    """Return weights of functions that are written in the columns of the table's units, (d, q)."""
    matrix, _ = design.user_units()
    return np.asarray(np.linalg.solve(matrix, functions) * design.response_scale)


def _canonical(design: Design, text: str) -> str:
    """Return a factor of categories by its column, ``C(job)`` as ``job``."""
    factor = compile_factor(text, design.schema)
    return text if factor.base is None else factor.expression


def _measured(design: Design, wanted: frozenset[str]) -> dict[str, int]:
    """Return the columns of a term by the label of the group in their names."""
    places = {}
    for place, column in enumerate(design.columns):
        if frozenset(_canonical(design, text) for text in column.term) == wanted:
            labels = [part.label for part in column.parts if part.label.endswith("]")]
            places[labels[0].replace("[T.", "[", 1) if labels else ""] = place
    return places


def _groups(design: Design, group: Group) -> tuple[list[Effects], set[int]]:
    column = next((column for column in design.schema.columns if column.name == group.name), None)
    labels = () if column is None else category_labels(column)
    if len(labels) == 1:
        raise FormulaError(
            f"formula must have a column of at least two declared categories in {group.text}, and {group.name!r} "
            "declares one: nothing varies; leave the term out"
        )
    if not labels:
        raise FormulaError(of_persons(group.text, group.name))
    measured = _measured(design, frozenset((group.name,)))
    slopes = _measured(design, frozenset((group.slope, group.name))) if group.slope else {}
    if (group.intercept and not measured) or (group.slope and not slopes):
        columns = f"{group.slope}:{group.name}" if group.slope and not slopes else group.name
        raise FormulaError(f"formula must have had {columns!r} for {group.text}: the release has not measured it")
    total = len(design.columns) + 1

    def indicators(found: dict[str, int], parent: int | None) -> FloatArray:
        functions = np.zeros((total, len(labels)))
        for place, label in enumerate(labels):
            at = found.get(f"{group.name}[{label}]")
            if at is not None:
                functions[at, place] = 1.0
            elif parent is not None:
                functions[parent, place] = 1.0
                functions[list(found.values()), place] -= 1.0
        return functions

    # The base level's indicator is the constant less the others.
    plain = indicators(measured, total - 1)
    unit, used = design.response_scale, set(measured.values())
    intercept = Effects(group.text, "intercept", labels, (_weights(design, plain),), (unit,), group.name)
    if not group.slope:
        return [intercept], used
    factor = compile_factor(group.slope, design.schema)
    if factor.base is not None or len(factor.parts) != 1:
        raise FormulaError(f"formula must have one number as the slope in {group.text}: a column of the table")
    values = factor.parts[0].evaluate(reference_values(design.schema, factor.columns))
    centre, spread = (float(values.mean()) if measured else 0.0), float(values.std())
    main = [place for place, each in enumerate(design.columns) if each.term == (group.slope,)]
    steep = (indicators(slopes, main[0] if main else None) - centre * plain * bool(measured)) / spread
    used = set(slopes.values()) | (used if group.intercept else set())
    units = (unit, unit / spread)
    maps = (_weights(design, plain), _weights(design, steep))
    slope = Effects(group.text, "slope", labels, maps[1:], units[1:], group.name, group.slope, centre)
    if not group.intercept:
        return [slope], used
    if not group.correlated:
        return [intercept, slope], used
    return [Effects(group.text, "pair", labels, maps, units, group.name, group.slope, centre)], used


def _curve(design: Design, term: str, number: int) -> tuple[Effects, tuple[FloatArray, str, float], set[int]]:
    """Return a curve's bends as effects, and its line as a fixed coefficient: per sd of the even law on the bounds.

    The functions that diagonalise curvature and mean square on the public bounds (Demmler and Reinsch 1975), each with
    a variance in proportion to the inverse of its curvature (Wood 2017, sec. 5.8): in all, 1 on average on the bounds.
    """
    factor = compile_factor(term, design.schema)
    columns = {place: column for place, column in enumerate(design.columns) if _is_curve(column, term, factor.columns)}
    named = [column for column in design.schema.columns if column.name in factor.columns]
    if not columns or len(named) != 1 or not isinstance(named[0], ContinuousColumn):
        raise FormulaError(f"formula must have had {term!r} or bs() of its column: the release has not measured it")
    low, high = named[0].bounds
    grid = np.linspace(low, high, _POINTS)
    basis = np.column_stack(
        [np.ones(_POINTS), *(column.evaluate({named[0].name: grid}) for column in columns.values())]
    )
    bends = np.diff(basis, n=2, axis=0)
    curvature, size = bends.T @ bends, basis.T @ basis / _POINTS
    values, vectors = linalg.eigh(curvature, size)
    bent = values > _FLAT * values[-1]
    if not bent.any():
        raise FormulaError(f"formula must have a curve in {term!r}")
    share = 1.0 / values[bent]
    functions = vectors[:, bent] * np.sqrt(share / share.sum())
    spread = (high - low) / float(np.sqrt(12.0))
    line, *_ = np.linalg.lstsq(basis, (grid - 0.5 * (low + high)) / spread, rcond=None)
    at = [len(design.columns), *columns]
    placed = np.zeros((len(design.columns) + 1, functions.shape[1] + 1))
    placed[at] = np.column_stack([functions, line])
    weights = _weights(design, placed)
    effects = Effects(
        term,
        "curve",
        tuple(str(place + 1) for place in range(functions.shape[1])),
        (weights[:, :-1],),
        (design.response_scale,),
        named[0].name,
        functions=basis @ functions,
        grid=grid,
        line=number,
    )
    # The line's coefficient has the prior of a weight, in the model's units.
    unit = design.response_scale / spread
    return effects, (weights[:, -1:], f"{term} line", unit), set(columns)


def _is_curve(column: DesignColumn, term: str, names: frozenset[str]) -> bool:
    text = column.term[0].replace(" ", "")
    if len(column.term) != 1 or not text.startswith(("s(", "bs(")):
        return False
    return text == term.replace(" ", "") or text.partition("(")[2].rstrip(")").partition(",")[0].strip("`") in names

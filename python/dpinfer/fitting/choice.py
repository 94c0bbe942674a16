"""The table of candidate mechanisms: predicted widths, passes over the records, and which one is taken, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpinfer._validate import check_interval
from dpinfer.planning import tuning

MODEL, POPULATION = "model", "population"
_WITHOUT_MODEL = "needs no true model (robust, HC-type)"
_ROBUST = "the population's coefficients cost at most 60% of width"
NOT_COMPARED = "not planned: it would assume that the model is true"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One mechanism, with its predicted width.

    **Privacy.** Public numbers alone.

    Parameters
    ----------
    method : {"newton", "statistic", "dpvi", "sep"}
    applies : bool
        Whether it was planned: the model has it, and nothing that needs no true model was settled on before.
    predicted_width : float
        Width of the 90% interval of the median parameter over that without privacy; nan where it is not predicted.
    n_passes : float
        Passes over the records, expected ones where records are sampled; nan where it does not apply.
    reason : str
        Why it is taken, or why not.
    chosen : bool
    allowance : float
        Factor of the width in the comparison: above 1 if the prediction makes more assumptions than others.
    widest : float
        The upper end if the prediction is a range, since correlations are not public; else nan.
    target : {"", "model", "population"}
        Target of the coefficients, if the method has both: the model's parameters, assuming that it is true, or the
        population's least-squares or maximum-likelihood coefficients.
    """

    method: str
    applies: bool
    predicted_width: float = math.nan
    n_passes: float = math.nan
    reason: str = ""
    chosen: bool = False
    allowance: float = 1.0
    widest: float = math.nan
    target: str = ""

    @property
    def name(self) -> str:
        """The method, with its target if it has both."""
        return f"{self.method}, {self.target}" if self.target else self.method

    @property
    def compared_width(self) -> float:
        """The predicted width with its allowance."""
        return self.predicted_width * self.allowance

    @property
    def width_text(self) -> str:
        """The predicted width, or the range, as text; empty without a prediction."""
        if not math.isfinite(self.predicted_width):
            return ""
        upper = f" to {self.widest:.3g}" if math.isfinite(self.widest) else ""
        return f"{self.predicted_width:.2f}{upper}"

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as JSON values."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Candidate":
        """Rebuild from the result of :meth:`to_dict`."""
        values: dict[str, Any] = {name: math.nan if value is None else value for name, value in data.items()}
        result = cls(**values)
        for name, kind in (("method", str), ("applies", bool), ("reason", str), ("chosen", bool), ("target", str)):
            if not isinstance(getattr(result, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {type(getattr(result, name)).__name__}")
        for name in ("predicted_width", "n_passes", "allowance", "widest"):
            value = getattr(result, name)
            if not (isinstance(value, float) and math.isnan(value)):
                check_interval(name, value, 0.0)
        return result


@dataclass(frozen=True)
class Choice:
    """All candidates of a plan.

    **Privacy.** Public numbers alone.

    Parameters
    ----------
    candidates : tuple of Candidate
        One of them is chosen.
    assumes : tuple of str
        Assumptions of the predicted widths.
    """

    candidates: tuple[Candidate, ...]
    assumes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate:
        """The candidate that is taken."""
        return next(candidate for candidate in self.candidates if candidate.chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {"candidates": [item.to_dict() for item in self.candidates], "assumes": list(self.assumes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Choice":
        """Rebuild from the result of :meth:`to_dict`.

        Raises TypeError or ValueError if it is no table, or not one candidate is chosen.
        """
        candidates = tuple(Candidate.from_dict(item) for item in data["candidates"])
        if sum(item.chosen for item in candidates) != 1:
            raise ValueError("candidates must have exactly one that is chosen")
        return cls(candidates, tuple(str(text) for text in data["assumes"]))

    def __getitem__(self, method: str) -> Candidate:
        """Return the candidate of that name."""
        for candidate in sorted(self.candidates, key=lambda item: not item.chosen):
            if method in (candidate.method, candidate.name):
                return candidate
        raise KeyError(method)

    def __str__(self) -> str:
        lines = [f"{'':2}{'method':<18} {'width':>12} {'passes':>7}  why"]
        for item in self.candidates:
            width = item.width_text or "-"
            passes = f"{item.n_passes:g}" if math.isfinite(item.n_passes) else "-"
            mark = "* " if item.chosen else "  "
            lines.append(f"{mark}{item.name:<18} {width:>12} {passes:>7}  {item.reason}")
        lines.append("width: predicted 90% interval of the median parameter over that without privacy")
        lines += [f"assumes {text}" for text in self.assumes]
        return "\n".join(lines)

    __repr__ = __str__


def robust_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate for the population's coefficients that is taken because it costs little, if there is one.

    It needs no true model, and is predicted at most 60% wider than the same method that assumes one.
    """
    models = {item.method: item.predicted_width for item in candidates if item.target == MODEL}
    for item in candidates:
        limit = tuning.TUNING.cost_of_robustness * models.get(item.method, math.nan)
        if item.target == POPULATION and item.predicted_width <= limit:
            return item
    return None


def choose(candidates: Sequence[Candidate], asked: str) -> tuple[Candidate, ...]:
    """Return the candidates with one of them chosen: the requested one, or for "auto" by predicted width.

    They are in the order of preference without predicted widths.  The population's coefficients are taken where they
    cost little (:func:`robust_of`); elsewhere a method that has both targets is compared by the model's.
    """
    robust = robust_of(candidates)
    if robust is not None and asked in ("auto", robust.method):
        best, why = robust, "" if asked == "auto" else "as asked for"
    else:
        models = [item.method for item in candidates if item.target == MODEL]
        wide = [item for item in candidates if item.target == POPULATION and item.method in models]
        best, why = _narrowest([item for item in candidates if item.applies and item not in wide], asked)
    return tuple(
        replace(item, chosen=item is best, reason=_reason(item, best, robust, why, asked)) for item in candidates
    )


def _narrowest(applying: list[Candidate], asked: str) -> tuple[Candidate, str]:
    """Return which candidate is taken by the predicted widths, and why."""
    predicted = [item for item in applying if math.isfinite(item.predicted_width)]
    if asked != "auto":
        return next(item for item in applying if item.method == asked), "as asked for"
    if len(applying) == 1:
        return applying[0], "the only one for this model"
    if len(predicted) == 1:
        return predicted[0], "the only one whose width is predicted"
    if not predicted:
        return applying[0], "first of those for this model; no width is predicted"
    least = min(item.compared_width for item in predicted)
    near = [item for item in predicted if item.compared_width <= tuning.TUNING.alike * least]
    best = min(near, key=lambda item: item.n_passes)
    why = "narrowest" if len(near) == 1 else "fewest passes of those within 10% of the narrowest"
    if any(item.predicted_width * tuning.TUNING.alike < best.predicted_width for item in predicted):
        why += ", after an allowance for the others' assumptions"
    return best, why


def _reason(item: Candidate, best: Candidate, robust: Candidate | None, why: str, asked: str) -> str:
    """Return why a candidate is taken, or why not."""
    told = ""
    if item is best:
        told = "; ".join(filter(None, (why, _WITHOUT_MODEL * (item is robust))))
    elif item.target == POPULATION and best.target != POPULATION and item is not robust:
        return item.reason or "wider by more than 60%; needs no true model"
    elif not item.applies or (asked != "auto" and (robust is None or item.method != robust.method)):
        return item.reason
    elif robust is not None:
        told = f"assumes that the model is true; {_ROBUST}"
    elif math.isfinite(item.predicted_width):
        told = "no narrower, with more passes"
        if item.predicted_width > tuning.TUNING.alike * best.predicted_width:
            told = "wider"
        elif item.allowance > 1.0:
            told = "not narrower by enough, given its assumptions"
    return "; ".join(filter(None, (told, item.reason)))

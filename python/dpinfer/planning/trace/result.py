"""The planner's answers: one plan, and a grid of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._sinks import printable, shortened
from dpinfer.accounting import PrivacyPlan
from dpinfer.inference.request import PosteriorOptions
from dpinfer.inference.trace.theory import TraceTheory
from dpinfer.planning.trace.fisher import Prediction

_MOST_ROWS = 20  # of a printed table: format
_LOW = 0.8  # coverage of 90% intervals that the table marks


@dataclass(frozen=True)
class InferencePlan:
    """Settings of a private run and its expected posterior, before any record is read.

    **Privacy.** Public: computed from the model, public numbers and, if one was given, a public pilot data set.

    Parameters
    ----------
    names : tuple of n str
    recipe : {"tied", "plain", "paper"}
    n_records : int
    privacy : PrivacyPlan
        Noise multiplier, sampling rate, number of steps, and the guarantee.
    max_grad_norm : float
    learning_rate : (2 n,) array or None
        None: the recipe's own.
    learning_rate_factor : float or None
        The learning rate over the heuristic one.
    grad_scale : pair of float or None
        None: the recipe's own.
    posterior : PosteriorOptions
        Keyword arguments of :func:`dpinfer.noise_aware_posterior`; empty for its defaults.
    prediction : Prediction
        Per parameter on the unconstrained space.
    recommended : tuple of str
        The settings that the planner chose; the others were given.
    """

    names: tuple[str, ...]
    recipe: str
    n_records: int
    privacy: PrivacyPlan
    max_grad_norm: float
    learning_rate: FloatArray | None
    learning_rate_factor: float | None
    grad_scale: tuple[float, float] | None
    posterior: PosteriorOptions
    prediction: Prediction
    recommended: tuple[str, ...]

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over `max_grad_norm`."""
        return self.privacy.noise_multiplier

    @property
    def widening(self) -> FloatArray:
        """By which factor privacy widens the 90% interval of every parameter, (n,)."""
        return self.prediction.widening

    @property
    def mixing_time(self) -> FloatArray:
        """Steps in which the distance to the optimum falls by a factor e, (n,)."""
        return self.prediction.mixing_time

    @property
    def theory(self) -> TraceTheory | None:
        """Theorems 2 and 3 of NA-DPVI (2025) for the coordinates of loc, where the learning rates are constant."""
        if self.learning_rate is None or self.grad_scale is None:
            return None
        rate, plan = self.learning_rate[: len(self.names)], self.privacy
        noise = np.full(rate.shape, plan.noise_multiplier * self.max_grad_norm / self.grad_scale[0])
        curvature = 1.0 / (rate * plan.sample_rate * self.mixing_time)
        return TraceTheory(curvature, rate, noise, plan.sample_rate, plan.n_steps)

    def run_arguments(self) -> dict[str, Any]:
        """Return this plan's arguments of :func:`dpinfer.run_dpvi`."""
        arguments: dict[str, Any] = {
            "plan": self.privacy,
            "n_records": self.n_records,
            "max_grad_norm": self.max_grad_norm,
            "recipe": self.recipe,
        }
        if self.learning_rate is not None:
            arguments |= {"learning_rate": self.learning_rate.copy(), "grad_scale": self.grad_scale}
        return arguments

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        prediction = self.prediction
        return {
            "recipe": self.recipe,
            "n_records": self.n_records,
            "privacy": self.privacy.to_dict(),
            "max_grad_norm": self.max_grad_norm,
            "learning_rate": None if self.learning_rate is None else self.learning_rate.tolist(),
            "learning_rate_factor": self.learning_rate_factor,
            "grad_scale": None if self.grad_scale is None else list(self.grad_scale),
            "posterior": dict(self.posterior),
            "recommended": list(self.recommended),
            "parameters": [
                {
                    "name": name,
                    "width90": float(width),
                    "width90_without_privacy": float(reference),
                    "widening": float(width / reference),
                    "mixing_time": float(time),
                }
                for name, width, reference, time in zip(
                    self.names, prediction.width90, prediction.reference_width90, prediction.mixing_time, strict=True
                )
            ],
        }

    def __str__(self) -> str:
        plan, prediction = self.privacy, self.prediction
        lines = [
            f"recipe {self.recipe!r}, {self.n_records} records: "
            f"epsilon <= {plan.epsilon:.4g} at delta = {plan.delta:g}",
            f"  sample_rate {plan.sample_rate:g}, n_steps {plan.n_steps}, "
            f"noise_multiplier {plan.noise_multiplier:.4g}, max_grad_norm {self.max_grad_norm:.4g}",
        ]
        if self.learning_rate is not None:
            n = len(self.names)
            lines.append(
                f"  learning_rate {self.learning_rate[0]:.3g} (loc), {self.learning_rate[n]:.3g} (raw_scale): "
                f"{self.learning_rate_factor:g} times the heuristic one"
            )
        posterior = ", ".join(f"{name} = {value!r}" for name, value in self.posterior.items())
        lines.append(f"  posterior: {posterior or 'the default of a fit'}")
        if self.recommended:
            lines.append(f"  recommended: {', '.join(self.recommended)}")
        if np.isfinite(prediction.coverage90):
            low = " (too low: correlated features, beyond a diagonal Hessian)"
            low = low if self.posterior and prediction.coverage90 < _LOW else ""
            lines.append(f"  expected coverage of the 90% intervals: {prediction.coverage90:.2f}{low}")
        names = [shortened(printable(name)) for name in self.names]
        width = max(9, *map(len, names[:_MOST_ROWS]))
        lines += [
            "",
            f"{'parameter':<{width}}  {'90% width':>10}  {'no privacy':>10}  {'wider by':>8}  {'mixing time':>11}",
        ]
        rows = zip(
            names, prediction.width90, prediction.reference_width90, self.widening, prediction.mixing_time, strict=True
        )
        for name, own, reference, factor, time in list(rows)[:_MOST_ROWS]:
            lines.append(f"{name:<{width}}  {own:>10.4g}  {reference:>10.4g}  {factor:>8.3g}  {time:>11.4g}")
        if len(self.names) > _MOST_ROWS:
            lines.append(f"... and {len(self.names) - _MOST_ROWS} more")
        error = prediction.typical_stderr
        margin = f" +- {error:.2g} (of the simulation)" if np.isfinite(error) else ""
        lines.append(f"the median parameter of a run: wider by a factor {prediction.typical_widening:.3g}{margin}")
        if self.theory is not None:
            lines.append(str(self.theory))
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True)
class PlanGrid:
    """Plans over numbers of records and epsilons.

    **Privacy.** Public, like the plans.

    Parameters
    ----------
    n_records : tuple of int
    epsilons : tuple of float
    plans : tuple of tuples of InferencePlan
        One row per number of records.
    """

    n_records: tuple[int, ...]
    epsilons: tuple[float, ...]
    plans: tuple[tuple[InferencePlan, ...], ...]

    @property
    def widening(self) -> FloatArray:
        """Factor of a run's median parameter, (n_records, epsilons)."""
        return np.array([[plan.prediction.typical_widening for plan in row] for row in self.plans])

    @property
    def width90(self) -> FloatArray:
        """Median 90% width over the parameters, (n_records, epsilons)."""
        return np.array([[float(np.median(plan.prediction.width90)) for plan in row] for row in self.plans])

    def epsilon_for(self, widening: float) -> tuple[float | None, ...]:
        """Return, for each number of records, the smallest epsilon of the grid that widens by at most this factor."""
        result: list[float | None] = []
        for row in self.widening:
            fits = [epsilon for epsilon, factor in zip(self.epsilons, row, strict=True) if factor <= widening]
            result.append(min(fits) if fits else None)
        return tuple(result)

    def __str__(self) -> str:
        lines = ["factor by which privacy widens the 90% interval of the median parameter", ""]
        lines.append(f"{'records':>10}" + "".join(f"{f'eps {epsilon:g}':>10}" for epsilon in self.epsilons))
        for count, row in zip(self.n_records, self.widening, strict=True):
            lines.append(f"{count:>10}" + "".join(f"{value:>10.3g}" for value in row))
        return "\n".join(lines)

    __repr__ = __str__

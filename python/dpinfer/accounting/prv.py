"""The accountant of Gopi, Lee and Wutschitz (2021), as implemented by the package prv-accountant."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer.accounting._steps import Direction, Step, StepKind
from dpinfer.accounting.pld import pld_epsilon
from dpinfer.errors import UnsupportedEventError

# The package's memory and time are proportional to the number of mesh points.
_MAX_MESH = 500_000
_RELATIVE_ERROR = 0.01  # of epsilon: stated in the docstring
_DELTA_ERROR_SHARE = 1e-3  # of delta: small beside the error of epsilon


class PRVError(ArithmeticError):
    """prv-accountant raised, or returned something that contradicts a proven bound."""


@dataclass(frozen=True)
class PRVInterval:
    """Lower bound, estimate and upper bound on epsilon, the upper one covering both orders of the data sets."""

    lower: float
    estimate: float
    upper: float


def prv_epsilon(steps: Mapping[Step, int], delta: float) -> PRVInterval:
    """Return prv-accountant's bounds on epsilon at `delta`.

    Raises UnsupportedEventError if a step samples without replacement. Raises PRVError if the package raises, as it
    does where a discretised mean differs from its quadrature of the mean, or if its interval does not hold the
    ``"pld"`` upper bound, which is the only one of the two whose roundings are counted.

    Parameters
    ----------
    steps : mapping of Step to int
        Distinct steps and their counts; plain and Poisson-sampled Gaussians.
    delta : float
        In (0, 1).

    Returns
    -------
    PRVInterval
        The package's interval.  The package models one order of the data sets only (a record is removed), so the
        upper end returned here is the larger of its upper end and the ``"pld"`` bound of the other order.

    Notes
    -----
    Gopi, Lee and Wutschitz (2021), Theorem 5.5.  The error in epsilon is set to one per cent of the answer, or to the
    least error with half a million mesh points.
    """
    if any(step.kind is StepKind.SUBSET for step in steps):
        raise UnsupportedEventError(
            "accountant 'prv' does not cover sampling without replacement; use accountant 'pld' or 'rdp'"
        )
    reference = pld_epsilon(steps, delta, (Direction.REMOVE,))
    if not math.isfinite(reference):
        raise PRVError("no finite reference to set the mesh from")
    delta_error = _DELTA_ERROR_SHARE * delta
    per_error = math.sqrt(0.5 * sum(steps.values()) * math.log(12.0 / delta_error))
    eps_error = max(_RELATIVE_ERROR * reference, 2.0 * (1.3 * reference + 3.0) * per_error / _MAX_MESH)
    lower, estimate, upper = _run(steps, delta, eps_error, delta_error)
    if not (math.isfinite(upper) and lower <= estimate <= upper):
        raise PRVError("its bounds are not an interval")
    if lower > reference:
        raise PRVError("its lower bound exceeds a proven upper bound")
    if upper < reference:
        # The package's rounding is not bounded: with many rare steps it loses the masses, and its interval is too low.
        raise PRVError("its upper bound is below the certified one, and is not certified itself")
    if not all(step.symmetric for step in steps):
        upper = max(upper, pld_epsilon(steps, delta, (Direction.ADD,)))
    return PRVInterval(max(0.0, lower), max(0.0, estimate), max(0.0, upper))


def _run(steps: Mapping[Step, int], delta: float, eps_error: float, delta_error: float) -> tuple[float, float, float]:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    def random_variable(step: Step) -> Any:
        if step.kind is StepKind.GAUSSIAN:
            return GaussianMechanism(noise_multiplier=1.0 / step.shift)
        return PoissonSubsampledGaussianMechanism(sampling_probability=step.rate, noise_multiplier=1.0 / step.shift)

    counts = list(steps.values())
    try:
        # The package divides by zero on the way to some correct results, and its quadrature warns where it fails.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            accountant = PRVAccountant(
                prvs=[random_variable(step) for step in steps],
                max_self_compositions=counts,
                eps_error=eps_error,
                delta_error=delta_error,
            )
            lower, estimate, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=counts)
    except (ArithmeticError, AssertionError, IndexError, MemoryError, RuntimeError, ValueError) as error:
        raise PRVError(f"{type(error).__name__}: {error}") from error
    return float(lower), float(estimate), float(upper)

"""Prior of the whitened second moments: a Wishart of learned concentration with a few flattened directions.

M = C F F' C' with C = C_m ... C_1, C_k = I - (1 - level_k**power) v_k v_k'.  F has the density of a Wishart's factor of
nu degrees of freedom whose scale is integrated out, |F|**(nu - d) tr(F F')**(-nu d / 2); the v_k are uniform on the
sphere and the levels uniform on (0, 1).  A Wishart whose concentration is learned from many near-equal eigenvalues
excludes a single small one; a flattened direction does not have to be seen in the others.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference.newton.matrices import inverses, transposed

__all__ = ["ExpandedState", "FlattenedWishart", "MatrixState"]

FloatArray = npt.NDArray[np.float64]

_LARGEST_CONCENTRATION = 400.0
_CONCENTRATIONS = 60
_CONCENTRATION_POWER = 0.5
_POWER = 3.0
_FLATNESS_LOC, _FLATNESS_STDDEV = 2.0, 2.0
_FLATNESS_GRID = np.linspace(-6.0, 8.0, 57)
_FLATTEST = 0.003  # the smallest factor of a direction's root mean square


@dataclass(frozen=True)
class MatrixState:
    """Points of the sampler: factors (B, d, d), directions (B, m, d) and logits (B, m) of the flattening."""

    factor: FloatArray
    direction: FloatArray
    logit: FloatArray

    def plus(self, other: "MatrixState", step: FloatArray, ratio: FloatArray) -> "MatrixState":
        """Return self + step * other, with the flattening's coordinates moved `ratio` times as far."""
        near = step * ratio
        return MatrixState(
            self.factor + step[:, None, None] * other.factor,
            self.direction + near[:, None, None] * other.direction,
            self.logit + near[:, None] * other.logit,
        )

    def where(self, chosen: npt.NDArray[np.bool_], other: "MatrixState") -> "MatrixState":
        """Return `other` where `chosen` (B,), else self."""
        return MatrixState(
            np.where(chosen[:, None, None], other.factor, self.factor),
            np.where(chosen[:, None, None], other.direction, self.direction),
            np.where(chosen[:, None], other.logit, self.logit),
        )

    def squares(self) -> FloatArray:
        """Return the sum of squares of all coordinates, (B,)."""
        total = np.einsum("bij,bij->b", self.factor, self.factor)
        total += np.einsum("bij,bij->b", self.direction, self.direction)
        return np.asarray(total + np.einsum("bi,bi->b", self.logit, self.logit))

    @property
    def moments(self) -> FloatArray:
        """The matrices M, (B, d, d)."""
        return self.expand().moments

    def expand(self) -> "ExpandedState":
        """Return F, C_1 F, C_2 C_1 F, ... and what they are made of."""
        norm = np.sqrt(np.einsum("bmi,bmi->bm", self.direction, self.direction))
        unit = self.direction / norm[..., None]
        level = special.expit(self.logit)
        shrink = (1.0 - _FLATTEST) * (1.0 - level**_POWER)
        stages = [self.factor]
        for k in range(level.shape[1]):
            along = (shrink[:, k, None] * unit[:, k])[:, :, None]
            stages.append(stages[-1] - along * (unit[:, k, None, :] @ stages[-1]))
        return ExpandedState(unit, norm, level, shrink, stages)


@dataclass(frozen=True)
class ExpandedState:
    """A state with what follows from it: unit directions, their norms, levels, 1 - level**power, flattened factors."""

    unit: FloatArray
    norm: FloatArray
    level: FloatArray
    shrink: FloatArray
    stages: list[FloatArray]

    @property
    def moments(self) -> FloatArray:
        """The matrices M, (B, d, d)."""
        return np.asarray(self.stages[-1] @ transposed(self.stages[-1]))

    def pull_back(self, gradient: FloatArray) -> MatrixState:
        """Return the gradient in the coordinates of the state of a function with `gradient` in M (symmetric)."""
        upper = 2.0 * (gradient @ self.stages[-1])
        direction, logit = np.empty_like(self.unit), np.empty_like(self.level)
        for k in reversed(range(self.level.shape[1])):
            unit, shrink, level = self.unit[:, k], self.shrink[:, k], self.level[:, k]
            below = self.stages[k]
            along_upper = unit[:, None, :] @ upper
            along_below = unit[:, None, :] @ below
            # d shrink / d logit = -power level**power (1 - level), but for the floor
            product = np.einsum("bij,bij->b", along_upper, along_below)
            logit[:, k] = (1.0 - _FLATTEST) * _POWER * level**_POWER * (1.0 - level) * product
            in_unit = (upper @ transposed(along_below) + below @ transposed(along_upper))[..., 0] * -shrink[:, None]
            in_unit -= unit * np.einsum("bi,bi->b", unit, in_unit)[:, None]
            direction[:, k] = in_unit / self.norm[:, k, None]
            upper = upper - (shrink[:, None] * unit)[:, :, None] * along_upper
        return MatrixState(upper, direction, logit)


class FlattenedWishart:
    """The prior, with its concentrations learned on a grid.

    Parameters
    ----------
    d : int
    """

    def __init__(self, d: int) -> None:
        self._d = d
        self.grid = d - 1.0 + np.exp(np.linspace(0.0, np.log(_LARGEST_CONCENTRATION), _CONCENTRATIONS))
        self._constant = (
            special.gammaln(0.5 * self.grid * d)
            - special.multigammaln(0.5 * self.grid, d)
            - _CONCENTRATION_POWER * np.log(self.grid)
        )

    def value_and_gradient(
        self, state: MatrixState, concentration: FloatArray, flatness: FloatArray
    ) -> tuple[FloatArray, MatrixState]:
        """Return the log density at the state's coordinates, (B,), up to a constant, and its gradient.

        Parameters
        ----------
        state : MatrixState
        concentration : (B,) array
        flatness : (B,) array
            Location of the logits of the levels.
        """
        trace = np.einsum("bij,bij->b", state.factor, state.factor)
        log_determinant = np.linalg.slogdet(state.factor)[1]
        value = (concentration - self._d) * log_determinant - 0.5 * concentration * self._d * np.log(trace)
        value = value - 0.5 * np.einsum("bmi,bmi->b", state.direction, state.direction)
        away = state.logit - flatness[:, None]
        logistic = special.log_expit(away) + special.log_expit(-away)
        inverse = inverses(state.factor)
        factor = (concentration - self._d)[:, None, None] * transposed(inverse)
        factor -= (concentration * self._d / trace)[:, None, None] * state.factor
        gradient = MatrixState(factor, -state.direction, 1.0 - 2.0 * special.expit(away))
        return np.asarray(value + np.sum(logistic, axis=1)), gradient

    def draw_concentration(self, state: MatrixState, rng: np.random.Generator) -> FloatArray:
        """Draw the concentrations given the factors, (B,)."""
        trace = np.sum(np.square(state.factor), axis=(1, 2))
        log_determinant = np.linalg.slogdet(state.factor)[1]
        log_weight = self._constant + self.grid * (log_determinant - 0.5 * self._d * np.log(trace))[:, None]
        log_weight = log_weight + rng.gumbel(size=log_weight.shape)
        return np.asarray(self.grid[np.argmax(log_weight, axis=1)])

    def draw_flatness(self, state: MatrixState, rng: np.random.Generator) -> FloatArray:
        """Draw the locations of the logits given the logits, (B,)."""
        away = state.logit[:, :, None] - _FLATNESS_GRID
        log_weight = np.sum(special.log_expit(away) + special.log_expit(-away), axis=1)
        log_weight = log_weight - 0.5 * np.square((_FLATNESS_GRID - _FLATNESS_LOC) / _FLATNESS_STDDEV)
        log_weight = log_weight + rng.gumbel(size=log_weight.shape)
        return np.asarray(_FLATNESS_GRID[np.argmax(log_weight, axis=1)])

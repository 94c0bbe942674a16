"""Units of columns and responses: those that the model sees, and those of the user."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray

UNIFORM_WIDTH = math.sqrt(12.0)  # standard deviations between the ends of a uniform distribution: formula


@dataclass(frozen=True, eq=False)
class Units:
    """Clipping of columns to bounds, and scaling to about unit size.

    **Privacy.** Public, or released, numbers alone.
    """

    bounds: FloatArray  # (n_features, 2)
    # offset, scale: (n_features,): the model sees (x - offset) / scale
    offset: FloatArray
    scale: FloatArray
    centred: bool  # whether the model has an intercept, so that columns and responses are centred
    target_bounds: tuple[float, float] | None = None  # (low, high); None where responses are not scaled
    # shift, unit: the model sees (y - shift) / unit
    shift: float = 0.0
    unit: float = 1.0

    @classmethod
    def of(
        cls,
        bounds: FloatArray,
        target_bounds: tuple[float, float] | None,
        *,
        centred: bool,
        width: float = UNIFORM_WIDTH,
        target_width: float = UNIFORM_WIDTH,
    ) -> "Units":
        """Return the scaling that follows from bounds.

        `centred`: whether the model has an intercept; without one zero stays zero.  `width` and `target_width`:
        standard deviations between the two bounds of a column, and of the response.
        """
        offset, scale = _units(bounds, width, centred=centred)
        if target_bounds is None:
            return cls(bounds, offset, scale, centred)
        shift, unit = _units(np.array([target_bounds]), target_width, centred=centred)
        return cls(bounds, offset, scale, centred, target_bounds, float(shift[0]), float(unit[0]))

    def features(self, values: FloatArray) -> FloatArray:
        """Return features as the model sees them."""
        return np.asarray((np.clip(values, self.bounds[:, 0], self.bounds[:, 1]) - self.offset) / self.scale)

    def responses(self, values: FloatArray) -> FloatArray:
        """Return responses as the model sees them."""
        if self.target_bounds is None:
            return values
        return np.asarray((np.clip(values, *self.target_bounds) - self.shift) / self.unit)

    def outcomes(self, values: FloatArray) -> FloatArray:
        """Return responses of the model, or their means, in the user's units."""
        return self.shift + self.unit * values

    def means(self, values: FloatArray) -> FloatArray:
        """Return means of responses of the model in the user's units; bounds exclude those beyond them."""
        found = self.outcomes(values)
        return found if self.target_bounds is None else np.clip(found, *self.target_bounds)

    @property
    def largest_spread(self) -> float:
        """The largest standard deviation of residuals that the bounds of responses allow, in the model's units."""
        low, high = (
            (math.inf, -math.inf) if self.target_bounds is None else self.responses(np.array(self.target_bounds))
        )
        return float(0.5 * (high - low) if self.centred else max(-low, high))

    def parameters(self, values: FloatArray) -> FloatArray:
        """Return parameters (..., n) of the model in the user's units.

        Blocks of weights, one for each class, with their intercept if the model has one; then a noise variance.
        """
        size = len(self.scale) + self.centred
        count = size if self.target_bounds is not None else values.shape[-1]
        weights = values[..., :count].reshape(*values.shape[:-1], -1, size)
        coef = self.unit * weights[..., : len(self.scale)] / self.scale
        moved = self.shift + self.unit * weights[..., len(self.scale) :] - np.sum(coef * self.offset, -1, keepdims=True)
        blocks = np.concatenate([coef, moved[..., : int(self.centred)]], axis=-1)
        return np.concatenate([blocks.reshape(*values.shape[:-1], count), self.unit**2 * values[..., count:]], axis=-1)


def _units(bounds: FloatArray, width: float, *, centred: bool) -> tuple[FloatArray, FloatArray]:
    low, high = bounds.T
    middle, spread = 0.5 * (low + high), (high - low) / width
    return (middle, spread) if centred else (np.zeros(len(bounds)), np.hypot(middle, spread))

"""Units of an estimator's columns: where the model sees them, and where the user does."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["UNIFORM_WIDTH", "Scaling"]

FloatArray = npt.NDArray[np.float64]

# Standard deviations between the ends of a uniform distribution.
UNIFORM_WIDTH = math.sqrt(12.0)


@dataclass(frozen=True, eq=False)
class Scaling:
    """Clipping of columns to bounds, and scaling to about unit size.

    **Privacy.** Public, or released, numbers alone.

    Parameters
    ----------
    bounds : (n_features, 2) float64
    offset, scale : (n_features,) float64
        The model sees (x - offset) / scale.
    target_bounds : (low, high) or None
        None where responses are not scaled.
    shift, unit : float
        The model sees (y - shift) / unit.
    """

    bounds: FloatArray
    offset: FloatArray
    scale: FloatArray
    target_bounds: tuple[float, float] | None = None
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
    ) -> "Scaling":
        """Return the scaling that follows from bounds.

        Parameters
        ----------
        bounds : (n_features, 2) array
        target_bounds : (low, high) or None
        centred : bool
            Whether the model has an intercept; without one zero stays zero.
        width, target_width : float
            Standard deviations between the two bounds of a column, and of the response.
        """
        offset, scale = _units(bounds, width, centred=centred)
        if target_bounds is None:
            return cls(bounds, offset, scale)
        shift, unit = _units(np.array([target_bounds]), target_width, centred=centred)
        return cls(bounds, offset, scale, target_bounds, float(shift[0]), float(unit[0]))

    def features(self, values: FloatArray) -> FloatArray:
        """Return features as the model sees them."""
        return np.asarray((np.clip(values, self.bounds[:, 0], self.bounds[:, 1]) - self.offset) / self.scale)

    def responses(self, values: FloatArray) -> FloatArray:
        """Return responses as the model sees them."""
        if self.target_bounds is None:
            return values
        return np.asarray((np.clip(values, *self.target_bounds) - self.shift) / self.unit)


def _units(bounds: FloatArray, width: float, *, centred: bool) -> tuple[FloatArray, FloatArray]:
    low, high = bounds.T
    middle, spread = 0.5 * (low + high), (high - low) / width
    return (middle, spread) if centred else (np.zeros(len(bounds)), np.hypot(middle, spread))

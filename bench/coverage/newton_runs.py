"""What the scripts about private Newton runs share: levels, correlated features, a mode without privacy."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

FloatArray = npt.NDArray[np.float64]

LEVELS = np.array([0.05, 0.95])
NORMAL_WIDTH = 3.2897  # of a 90% interval, in standard deviations


def autoregressive(n_records: int, n_features: int, correlation: float) -> Callable[[np.random.Generator], FloatArray]:
    """Return a maker of normal features with AR(1) correlation."""
    distance = np.abs(np.subtract.outer(np.arange(n_features), np.arange(n_features)))
    factor = np.linalg.cholesky(correlation**distance) if correlation else np.eye(n_features)
    return lambda rng: rng.normal(size=(n_records, n_features)) @ factor.T


def median_and_error(width: FloatArray, seed: int = 0) -> tuple[float, float]:
    """Return the median of widths, (R,) or (R, d), and its standard error over resampled runs or cells."""
    rng = np.random.default_rng(seed)
    drawn = [np.median(width[rng.integers(0, len(width), len(width))]) for _ in range(400)]
    return float(np.median(width)), float(np.std(drawn))


def logistic_mode(design: FloatArray, y: FloatArray, prior_scale: float) -> tuple[FloatArray, FloatArray]:
    """Return mode and precision of the normal approximation without privacy, with prior N(0, prior_scale^2)."""
    mode, ridge = np.zeros(design.shape[1]), np.eye(design.shape[1]) / prior_scale**2
    for _ in range(30):
        p = special.expit(design @ mode)
        precision = (design * (p * (1.0 - p))[:, None]).T @ design + ridge
        step = np.linalg.solve(precision, design.T @ (y - p) - ridge @ mode)
        mode += step
        if np.max(np.abs(step)) < 1e-9:
            break
    return mode, precision

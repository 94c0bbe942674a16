"""Public points with the moments of the sample, as far as a release tells them.

**Privacy.** Post-processing of a release: reads noisy second moments, and no record.
"""

import numpy as np
from scipy.optimize import minimize

from dpinfer._arrays import FloatArray
from dpinfer.formulas.columns import reference_values
from dpinfer.formulas.design import Design
from dpinfer.formulas.factors import Values
from dpinfer.release import Release
from dpinfer.release.newton.regression import RegressionSums

POINTS = 512  # of an average: its time is proportional to them
_MOST = 200  # moments that are matched at once: time; beyond it those of single columns alone


def sample_points(design: Design, release: Release) -> tuple[Values, bool]:
    """Return points of the columns on the right-hand side, and whether they have the sample's released moments.

    The schema's population is weighted so that means and second moments of the columns of the design are those of the
    release, as far as its noise lets them be known: the weights of least relative entropy.  Without second moments in
    the release, or a constant to compare them with, the points are the schema's own.
    """
    every = reference_values(design.schema, design.predictor_columns)
    found = _moments(release, len(design.columns)) if getattr(design.model, "fit_intercept", False) else None
    if found is None:
        return {name: column[:POINTS] for name, column in every.items()}, False
    rows = design.encode(every)[:, : len(design.columns)]
    weights = _balanced(np.column_stack([rows, np.ones(len(rows))]), *found)
    places = np.searchsorted(np.cumsum(weights), (np.arange(POINTS) + 0.5) / POINTS * weights.sum())
    places = np.minimum(places, len(rows) - 1)
    return {name: column[places] for name, column in every.items()}, True


def _moments(release: Release, n_columns: int) -> tuple[FloatArray, FloatArray] | None:
    """Return the mean of x x', the constant 1 last, and each entry's variance of noise; None if there are none.

    z = transform (x, 1), and the constant's own moment is the mean weight of the rows, which is divided by.
    """
    best: tuple[FloatArray, FloatArray] | None = None
    if not isinstance(release, RegressionSums):
        return None
    for transform, matrix, noise in zip(release.transforms, release.moments, release.moment_stddev, strict=True):
        if len(transform) != n_columns + 1:
            return None
        back = np.linalg.inv(transform)
        second, squares = back @ matrix @ back.T, np.square(back)
        if second[-1, -1] <= 0.0:
            continue
        # Independent noise, of variance s^2 on the diagonal and s^2 / 2 beside it, on both sides of it alike.
        spread = float(noise) ** 2 * (squares @ squares.T)
        variance = spread / second[-1, -1] ** 2
        if best is None or np.trace(variance) < np.trace(best[1]):
            best = second / second[-1, -1], variance
    return best


def _balanced(rows: FloatArray, second: FloatArray, variance: FloatArray) -> FloatArray:
    """Return weights of the rows, (N,), positive, with these second moments up to their noise."""
    size = rows.shape[1]
    first, other = np.triu_indices(size)
    kept = (first != size - 1) | (other != size - 1)
    if len(first) > _MOST:
        kept &= (first == other) | (other == size - 1)
    first, other = first[kept], other[kept]
    have = rows[:, first] * rows[:, other]
    # Moments are compared with the noise, or a thousandth of the population's own spread where that is more.
    scale = np.maximum(have.std(axis=0), 1e-9)
    have, wanted = (have - have.mean(axis=0)) / scale, (second[first, other] - have.mean(axis=0)) / scale
    ridge = variance[first, other] / np.square(scale) + 1e-6

    def dual(theta: FloatArray) -> tuple[float, FloatArray]:
        logs = have @ theta
        top = logs.max()
        mass = np.exp(logs - top)
        value = top + np.log(mass.mean()) - theta @ wanted + 0.5 * ridge @ np.square(theta)
        return float(value), have.T @ (mass / mass.sum()) - wanted + ridge * theta

    theta = minimize(dual, np.zeros(len(wanted)), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    logs = have @ theta
    return np.asarray(np.exp(logs - logs.max()))

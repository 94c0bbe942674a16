"""The geometry of a private Newton run: second moments in coordinates that each pass whitens better."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism.newton.contributions import Query, SecondMoments, smat
from dpinfer.mechanism.newton.passes import NoisySum
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.huber import mallows_moment
from dpinfer.models.whitening import ShrunkenMoments, rescaling, shrink_moments, without_weights

__all__ = ["BOUND", "Geometry", "NoisySums", "first_coordinates", "learn_geometry"]

FloatArray = npt.NDArray[np.float64]

_DECLARED_FLOOR = 1e-3  # of the eigenvalues of the declared correlations
BOUND = 1.3  # B**2 in units of the expected trace of the whitened second moments


class NoisySums(Protocol):
    """What makes the passes: those of a run, or what a plan expects of them."""

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Release a sum over all records."""


@dataclass(frozen=True)
class Geometry:
    """What the geometry passes have found.

    Parameters
    ----------
    arrays : dict
        Of the release.
    moments : ShrunkenMoments
        The shrunken last matrix.
    full : (d, d) array, optional
        :func:`without_weights` of it.
    """

    arrays: dict[str, FloatArray]
    moments: ShrunkenMoments
    full: FloatArray | None

    @property
    def transform(self) -> FloatArray:
        """The last coordinates, (d, d)."""
        return np.asarray(self.arrays["transforms"][-1])

    @property
    def bound(self) -> float:
        """B there."""
        return float(self.arrays["moment_bounds"][-1])


def first_coordinates(model: GeneralizedLinearModel) -> tuple[FloatArray, float]:
    """Return the coordinates in which the geometry begins, (d, d), and what the trace is expected to be there.

    Declared moments are whitened: directions that they leave empty, as indicators of all categories do beside a
    constant, then have a scale in which their prior is narrow.
    """
    if model.residual_link is None and model.feature_moments is None:
        return _declared_units(model)
    return _declared_whitening(model)


def _declared_units(model: GeneralizedLinearModel) -> tuple[FloatArray, float]:
    """Return the diagonal map after which every declared second moment is 1, (d, d), and their sum."""
    return np.diag(1.0 / np.sqrt(model.second_moments)), float(model.n_coef)


def _declared_whitening(model: GeneralizedLinearModel) -> tuple[FloatArray, float]:
    """Return the map that whitens the declared second moments plus a small floor, (d, d), and their trace after it."""
    scale = 1.0 / np.sqrt(model.second_moments)
    values, vectors = np.linalg.eigh(model.design_moments * scale[:, None] * scale)
    values = np.maximum(values, 0.0)
    transform = (vectors / np.sqrt(values + _DECLARED_FLOOR)).T * scale
    return transform, float(np.sum(values / (values + _DECLARED_FLOOR)))


def learn_geometry(
    plan: NewtonPlan, passes: NoisySums, n_records: int, *, transform: FloatArray, trace: float
) -> Geometry:
    """Make the plan's geometry passes.

    Parameters
    ----------
    plan : NewtonPlan
    passes : NoisySums
    n_records : int
    transform : (d, d) array
        Coordinates of the first pass: :func:`first_coordinates`.
    trace : float
        What the trace of the second moments is expected to be there.
    """
    d = transform.shape[0]
    transforms, matrices, stddevs, bounds = [], [], [], []
    rounds = plan.indices("geometry")
    foretold = np.zeros(d)
    for index in rounds:
        bound = math.sqrt(BOUND * trace)
        released = passes.noisy_sum("geometry", SecondMoments(transform, bound))
        noisy, stddev = smat(released.values, d) / n_records, released.stddev / n_records
        transforms.append(transform)
        matrices.append(noisy)
        stddevs.append(stddev)
        bounds.append(bound)
        shrunken = shrink_moments(noisy, stddev, trace)
        full = without_weights(shrunken, np.diag(foretold) * mallows_moment(d, bound))
        if index != rounds[-1]:
            transform, trace = rescaling(shrunken, full) @ transform, shrunken.whitened_trace
            foretold = shrunken.foretold
    arrays = {
        "transforms": np.array(transforms),
        "moments": np.array(matrices),
        "moment_stddev": np.array(stddevs),
        "moment_bounds": np.array(bounds),
    }
    return Geometry(arrays, shrunken, full)

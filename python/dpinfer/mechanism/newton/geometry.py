"""The geometry of a private Newton run: second moments in coordinates that each pass whitens better."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import FeatureMeans, Query, SecondMoments, smat
from dpinfer.mechanism.newton.passes import NoisySum
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import GeneralizedLinearModel
from dpinfer.models.declared_moments import moments_of_means
from dpinfer.models.huber import mallows_moment
from dpinfer.models.whitening import Onward, ShrunkenMoments, onward, shrink_moments

_DECLARED_FLOOR = 1e-3  # of the eigenvalues of the declared correlations


class NoisySums(Protocol):
    """The passes of a run, or their expectation in a plan."""

    def noisy_sum(self, phase: str, query: Query) -> NoisySum:
        """Release a sum over all records."""


@dataclass(frozen=True)
class Geometry:
    """Results of the geometry passes.

    Parameters
    ----------
    arrays : dict
        Of the release.
    moments : ShrunkenMoments
        The shrunken last matrix.
    onward : Onward
        The way to the next coordinates.
    """

    arrays: dict[str, FloatArray]
    moments: ShrunkenMoments
    onward: Onward

    @property
    def transform(self) -> FloatArray:
        """The last coordinates, (d, d)."""
        return np.asarray(self.arrays["transforms"][-1])

    @property
    def bound(self) -> float:
        """B there."""
        return float(self.arrays["moment_bounds"][-1])


def _first_coordinates(model: GeneralizedLinearModel, moments: FloatArray) -> tuple[FloatArray, float]:
    """Return the first coordinates of the geometry, (d, d), and the expected trace there.

    Declared moments are whitened: directions without variance, as for indicators of all categories beside a
    constant, then have a scale in which their prior is narrow.
    """
    scale = 1.0 / np.sqrt(np.diag(moments))
    if model.residual_link is None and model.feature_moments is None:
        return np.diag(scale), float(model.n_coef)
    values, vectors = np.linalg.eigh(moments * scale[:, None] * scale)
    values = np.maximum(values, 0.0)
    transform = (vectors / np.sqrt(values + _DECLARED_FLOOR)).T * scale
    return transform, float(np.sum(values / (values + _DECLARED_FLOOR)))


def _declared_moments(
    model: GeneralizedLinearModel, plan: NewtonPlan, passes: NoisySums, n_records: int
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Make the pass for the means, where the plan has one; return its arrays and the moments to begin with, (d, d)."""
    if not plan.indices("means"):
        return {}, model.design_moments
    d, n = model.n_coef, model.n_features
    declared = np.asarray(model.feature_moments, dtype=np.float64)
    units = np.sqrt(model.second_moments)
    bound = math.sqrt(tuning.TUNING.bound * d)
    released = passes.noisy_sum("means", FeatureMeans(np.diag(1.0 / units), bound))
    values, stddev = released.values / n_records, released.stddev / n_records
    arrays = {"means": values[None], "means_stddev": np.array([stddev]), "means_bounds": np.array([bound])}
    return arrays, moments_of_means(declared, values[:n] * units[:n], stddev * units[:n])[:d, :d]


def learn_geometry(model: GeneralizedLinearModel, plan: NewtonPlan, passes: NoisySums, n_records: int) -> Geometry:
    """Make the plan's passes for means and second moments."""
    d = model.n_coef
    means, declared = _declared_moments(model, plan, passes, n_records)
    transform, trace = _first_coordinates(model, declared)
    transforms, matrices, stddevs, bounds = [], [], [], []
    rounds = plan.indices("geometry")
    ahead = Onward(transform, np.zeros((d, d)), None)
    for index in rounds:
        bound = math.sqrt(tuning.TUNING.bound * trace)
        released = passes.noisy_sum("geometry", SecondMoments(transform, bound))
        noisy, stddev = smat(released.values, d) / n_records, released.stddev / n_records
        transforms.append(transform)
        matrices.append(noisy)
        stddevs.append(stddev)
        bounds.append(bound)
        shrunken = shrink_moments(noisy, stddev, trace)
        ahead = onward(shrunken, ahead.foretold * mallows_moment(d, bound), ahead.wanted)
        if index != rounds[-1]:
            transform, trace = ahead.transform @ transform, shrunken.whitened_trace
    arrays = {
        **means,
        "transforms": np.array(transforms),
        "moments": np.array(matrices),
        "moment_stddev": np.array(stddevs),
        "moment_bounds": np.array(bounds),
    }
    return Geometry(arrays, shrunken, ahead)

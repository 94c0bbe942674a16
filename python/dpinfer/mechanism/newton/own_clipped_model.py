"""The private Newton method for a model of the user's own that has no sampler: sums and public arithmetic."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import smat
from dpinfer.mechanism.newton.own_model import Filter, OwnSteps
from dpinfer.mechanism.newton.own_rows import OwnQuery, OwnRows, score_matrix, score_norms, score_vector
from dpinfer.mechanism.newton.pass_records import Passes
from dpinfer.models.whitening import ShrunkenMoments, shrink_moments

NORM_EDGES: FloatArray = 2.0 ** np.arange(-4.0, 4.5, 0.5)  # over the clip: norms are counted between them; format


@dataclass(frozen=True, eq=False)
class ClippedScores(OwnQuery):
    """Clipped score, slope and counted norm of each record, side by side, times the roots of their parts.

    With s = transform grad log p(y | x, theta) and h = clip(s): h / clip, the symmetric part of h s' cut to a Frobenius
    norm of `matrix_bound` and over it, and a one at the place of the norm of s among the edges.  A part of 0 is left
    out.
    """

    clip: float
    matrix_bound: float
    # score_part, matrix_part, count_part: of the budget; they sum to 1
    score_part: float
    matrix_part: float
    count_part: float

    @property
    def score_bound(self) -> float:
        """The largest norm of h."""
        return self.clip

    @property
    def length(self) -> int:
        """Of the parts that are there."""
        n = self.theta.size
        size = (n if self.score_part else 0) + (n * (n + 1) // 2 if self.matrix_part else 0)
        return size + NORM_EDGES.size + 1

    @property
    def max_norm(self) -> float:
        """Of all parts together."""
        return 1.0

    def contributions(self, rows: OwnRows, block: slice) -> FloatArray:
        """Return these rows' vectors, (B, length): not private."""
        X, y = rows.arrays(block)
        scores = self._scores(X, y)
        clipped = score_vector(scores, self.clip)
        parts = []
        if self.score_part:
            parts.append(clipped * (math.sqrt(self.score_part) / self.score_bound))
        if self.matrix_part:
            slope = score_matrix(clipped[:, None], scores[:, None], self.matrix_bound)
            parts.append(slope * (math.sqrt(self.matrix_part) / self.matrix_bound))
        norms = score_norms(scores)
        place = np.searchsorted(NORM_EDGES * self.clip, norms)
        counted = np.zeros((NORM_EDGES.size + 1, len(X)))
        counted[place, np.arange(len(X))] = math.sqrt(self.count_part)
        return np.concatenate([*parts, counted]).T


_START_ROWS = 500  # made-up records; the first clip holds nine of ten scores of theirs
_SEED = 812  # of public draws: any number
_VARIANCE_RATIO = 1.0  # the variance of a clipped score is at most its slope: clip(s) clip(s)' <= clip(s) s'; formula


@dataclass
class ClippedNewton(OwnSteps):
    """A run of a model without a sampler: norms are clipped, and counted.

    Made-up records at the prior's mean come first: whatever the model's code raises there is raised, and nothing spent.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        features, response = self.model.made_up_records(_START_ROWS, np.random.default_rng(_SEED))
        scores = self.model.scores(features, response, self._prior.prior_mean) * self._prior.prior_scale
        norms = np.sqrt(np.sum(scores[np.all(np.isfinite(scores), axis=1)] ** 2, axis=1))
        self._start = max(float(np.quantile(norms, tuning.OWN.start_level)), NEGLIGIBLE) if norms.size else 1.0

    def run(self, passes: Passes) -> dict[str, Any]:
        """Make the plan's passes and return the arrays of the release."""
        n = self.model.n_params
        filtered = Filter(np.zeros(n), np.eye(n))
        white, clip, error = self._localise(passes, filtered)
        bounds = (clip, self._matrix_bound("slope", clip, float(n)))
        released = self._query(passes, "slope", filtered.mean, white, bounds)
        stddev = released["matrix_stddev"]
        shrunken = shrink_moments(smat(released["matrix"], n), stddev, float(n))
        measured = self._measure(passes, filtered.mean, white, bounds, shrunken.matrix, _VARIANCE_RATIO)
        chosen = tuning.OWN
        return self._arrays(filtered.mean, white, released, measured) | {
            "slope_spread": error,
            "variance_ratio": _VARIANCE_RATIO,
            "count_shares": np.array([chosen.localise_count, chosen.slope_count, chosen.measure_count]),
            "norm_edges": NORM_EDGES.copy(),
        }

    def localised(self, passes: Passes) -> tuple[FloatArray, FloatArray, dict[str, Any]]:
        """Make the steps, as the run of the model's own target does."""
        filtered = Filter(np.zeros(self.model.n_params), np.eye(self.model.n_params))
        white, _, _ = self._localise(passes, filtered)
        counted = {"count_share": tuning.OWN.localise_count, "norm_edges": NORM_EDGES.copy()}
        return filtered.mean, white, self._kept_arrays() | counted

    @staticmethod
    def _parts(phase: str) -> tuple[float, float, float]:
        """Return the parts of a pass's budget: score, matrix, counted norms."""
        count = getattr(tuning.OWN, f"{phase}_count")
        score = (1.0 - count) * {"localise": tuning.OWN.score_share, "slope": 0.0, "measure": 1.0}[phase]
        return score, 0.0 if phase == "measure" else 1.0 - count - score, count

    def _matrix_bound(self, phase: str, clip: float, trace: float) -> float:
        index = self.plan.indices(phase)[0]
        noise = self.plan.noise_multipliers[index] / math.sqrt(self._parts(phase)[1]) / self.n_records
        most = tuning.OWN.slope_noise * trace / self.model.n_params / noise
        return max(tuning.OWN.least_norm * trace, min(clip**2, most))

    def _query(self, passes: Passes, phase: str, units: FloatArray, white: FloatArray, bounds: Any) -> dict[str, Any]:
        score, matrix, count = self._parts(phase)
        clip, matrix_bound = bounds
        query = ClippedScores(
            self.model,
            self._theta(units),
            white * self._prior.prior_scale,
            clip=clip,
            matrix_bound=matrix_bound,
            score_part=score,
            matrix_part=matrix,
            count_part=count,
        )
        noisy = passes.noisy_sum(phase, query)
        n = self.model.n_params if score else 0
        score_unit = query.score_bound / math.sqrt(score) / self.n_records if score else 0.0
        matrix_unit = query.matrix_bound / math.sqrt(matrix) / self.n_records if matrix else 0.0
        count_unit = 1.0 / math.sqrt(count) / self.n_records
        bins = NORM_EDGES.size + 1
        self._keep(norm_shares=noisy.values[-bins:] * count_unit, norm_stddev=noisy.stddev * count_unit)
        return {
            "score": noisy.values[:n] * score_unit,
            "score_stddev": noisy.stddev * score_unit,
            "score_bound": query.score_bound,
            "matrix": noisy.values[n:-bins] * matrix_unit,
            "matrix_stddev": noisy.stddev * matrix_unit,
            "matrix_bound": query.matrix_bound,
        }

    def _localise(self, passes: Passes, filtered: Filter) -> tuple[FloatArray, float, float]:
        """Step toward the zero of the score; return the whitening, the clip behind it, and the whitening's error.

        Each pass's slope whitens the coordinates of the next, and its counted norms choose the clip there.
        """
        n = self.model.n_params
        white, clip, trace = np.eye(n), self._start, self._start**2
        shrunken = ShrunkenMoments(np.ones(n), np.eye(n), 1.0, 0.0)
        for _ in self.plan.indices("localise"):
            bounds = (clip, self._matrix_bound("localise", clip, trace))
            released = self._query(passes, "localise", filtered.mean, white, bounds)
            self._keep_localised(released, filtered.mean, white)
            matrix = smat(released["matrix"], n)
            shrunken = shrink_moments(matrix, released["matrix_stddev"], trace)
            self._step(filtered, white, shrunken.matrix, released)
            before = max(float(np.sum(shrunken.eigenvalues)), NEGLIGIBLE)
            white, trace = shrunken.whitening @ white, shrunken.whitened_trace
            clip = self._next_clip(clip) * math.sqrt(trace / before)
        return white, clip, shrunken.error

    def _next_clip(self, clip: float) -> float:
        """Return the clip that the last counted norms suggest, in the coordinates in which they were counted."""
        shares, stddev = self._kept["norm_shares"][-1], self._kept["norm_stddev"][-1]
        above = np.cumsum(shares[::-1])[::-1][1:]
        noise = stddev * np.sqrt(np.arange(above.size, 0, -1))
        few = np.flatnonzero(above <= np.maximum(tuning.OWN.clipped, 2.0 * noise))
        return clip * float(NORM_EDGES[few[0] if few.size else -1])

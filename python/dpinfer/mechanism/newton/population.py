"""The private Newton method for the population's coefficients: public arithmetic between passes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.contributions import LogScaleCounts, Query, SecondMoments, smat
from dpinfer.mechanism.newton.glm import Geometry, GlmNewton, learn_geometry, prior_in
from dpinfer.mechanism.newton.joint import (
    CLUSTER_NORM,
    ClusterProducts,
    ClusterSizes,
    Curvatures,
    JointScores,
    ScoreProducts,
    Sizes,
    StratumScores,
    StratumUnits,
    UnitProducts,
    UnitScores,
    UnitSizes,
)
from dpinfer.mechanism.newton.pass_records import NoisySum, Passes
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.models import tuning as common
from dpinfer.models.clipping import SIZE_EDGES, SizeShares, chi_mean, mallows_moment
from dpinfer.models.likely_records import Curves, LikelyRecords
from dpinfer.models.whitening import steady_solve
from dpinfer.release.newton.regression import spread_of_counts

_SWEEPS = 4  # weights of scores depend on the zero, and the zero on them: tolerance
# Names of the phases and of the arrays of a bread: of that which gives the coordinates, and of that which scores use.
_FRAME, _BREAD = ("reach", "frame"), ("lengths", "bread")
_OF_THE_MODEL = ("localise_clip", "localise_residual_bound")  # of scores that are centred by the model


_LONG = 9.0  # bound of curvatures on the way, over what is usual: shorter ones would not show a rare level; tolerance


def _resolved(matrix: FloatArray, stddev: float) -> tuple[FloatArray, FloatArray]:
    """Return a noisy matrix's eigenvalues, of what noise alone may have at least, and eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, common.TUNING.floor * stddev * math.sqrt(2.0 * len(matrix))), vectors


@dataclass
class Coordinates:
    """Scores so far, and the resulting point."""

    prior_precision: FloatArray
    position: FloatArray
    curves: "Curves"
    scores: list[tuple[FloatArray, FloatArray, float]] = field(default_factory=list)
    bread: FloatArray | None = None  # where `curves` begin; None: the identity
    near: float = 0.0  # precision of where the first score was taken, from what was found before

    def add(self, score: FloatArray, stddev: float) -> None:
        """Take in the score at `position`, and move: weights of scores are their noise and how far they were taken."""
        self.scores.append((self.position, score, stddev))
        at, value, noise = (np.array(part) for part in zip(*self.scores, strict=True))
        found = self.position
        for _ in range(_SWEEPS):
            away = tuning.TUNING.score_error**2 * np.mean(np.square(found - at), axis=1)
            if self.curves.records is not None:  # the slope is that of the last point
                away += np.mean(np.square(at[-1] - at), axis=1)
            weight = 1.0 / (np.square(noise) + away)
            precision = self.prior_precision + self.near * np.eye(len(found))
            target = self.near * at[0]
            for share, point, said in zip(weight, at, value, strict=True):
                change = self.curves.change(0.5 * (point + found))
                slope = change @ change if self.bread is None else change @ self.bread @ change
                precision = precision + share * slope @ slope
                target = target + share * slope @ (said + slope @ point)
            found = self.curves.within_reach(self.position, steady_solve(precision, target))
        self.position = found

    def begin_again(self) -> None:
        """Forget the scores, and stay."""
        self.scores.clear()


@dataclass
class PopulationNewton:
    """One run of a regression; it shares `_bread` and `_measure` with runs of a user's own model."""

    model: Any  # with a `score_link`
    plan: NewtonPlan
    n_records: int
    response_scale: float | None  # of a linear regression
    n_units: int | None = None  # number of protected units, each with all of its rows: scores are then those of units
    weight_bound: float = field(default=math.inf, init=False)  # of scores, once it is chosen

    def __post_init__(self) -> None:
        self.d = int(self.model.n_coef)
        self.link = str(self.model.score_link)

    def run(self, passes: Passes) -> dict[str, FloatArray | float | int]:
        """Make the plan's passes and return the arrays of the release."""
        if self.response_scale is not None:
            return self._linear(passes, self.response_scale)
        localised = GlmNewton(self.model, self.n_records).localise(passes)
        reached = localised.transform.T @ localised.position
        rare, onward, length = self._onward(passes, localised.geometry)
        frame, white = self._bread(passes, onward, reached, length * math.sqrt(localised.slope), _FRAME)
        del frame["score_transform"]
        position = np.asarray(np.linalg.solve(white.T, reached), dtype=np.float64)
        arrays = localised.arrays
        likely = LikelyRecords.of_moments(self.model, arrays)
        where = self._coordinates(white, position, 1.0, Curves(white, likely, position))
        where.near = self.n_records / tuning.POPULATION.found**2
        steps = np.asarray(arrays["localise_score_stddev"]).size
        bounds = np.full(steps, localised.residual.bound * localised.geometry.bound)
        kept = {name: value for name, value in arrays.items() if name not in _OF_THE_MODEL}
        measured = self._measure(passes, white, where, 1.0, likely)
        return {**kept, "localise_bounds": bounds, **rare, **frame, **measured}

    def _linear(self, passes: Passes, response_scale: float) -> dict[str, FloatArray | float | int]:
        edges: FloatArray = np.ldexp(response_scale, np.arange(-tuning.TUNING.octaves, tuning.TUNING.octaves + 1))
        counted = self._shares(passes.noisy_sum("scale", LogScaleCounts(edges)))
        spread = spread_of_counts(counted.values, edges)
        geometry = learn_geometry(self.model, passes, self.n_records)
        origin = np.zeros(self.d)
        rare, onward, length = self._onward(passes, geometry)
        bread, white = self._bread(passes, onward, origin, length)
        where = self._coordinates(white, origin, spread, Curves(white))
        localised, scale = self._localise(passes, white, where, spread)
        return {
            "counts": counted.values,
            "counts_stddev": counted.stddev,
            "edges": edges,
            **geometry.arrays,
            **rare,
            **bread,
            **localised,
            **self._measure(passes, white, where, scale),
        }

    @property
    def _weighted(self) -> bool:
        return self.n_units is None and getattr(self.model, "response", "") == "binary"

    def _shares(self, released: NoisySum) -> NoisySum:
        return NoisySum(released.values / self.n_records, released.stddev / self.n_records)

    def _noise(self, passes: Passes, index: int) -> float:
        """Return a pass's noise per record, of a vector of norm 1."""
        return passes.noise_multiplier(index) / self.n_records

    def _onward(self, passes: Passes, geometry: Geometry) -> tuple[dict[str, FloatArray | float], FloatArray, float]:
        """Release how far ordinary records reach along stretched directions.

        Returns the released values, the coordinates for curvatures, and the usual length of z there.  If a direction is
        stretched for a rare category, its few records become as long, and a clip that keeps them adds noise to all
        others: such a direction is stretched less.  Columns that nearly determine each other stretch a direction, too,
        but all records reach along it.
        """
        onward, units = geometry.onward.transform @ geometry.transform, np.sqrt(self.model.second_moments)
        left, stretch, _ = np.linalg.svd(onward * units)
        m = max(int(np.count_nonzero(stretch > tuning.POPULATION.stretched)), 1)
        along = np.ascontiguousarray(left[:, :m].T @ onward)
        bound = math.sqrt(tuning.POPULATION.short)
        released = passes.noisy_sum("rare", SecondMoments(along, bound))
        moments, stddev = smat(released.values, m) / self.n_records, released.stddev / self.n_records
        ordinary = np.diag(moments) + 2.0 * stddev >= tuning.POPULATION.ordinary * mallows_moment(m, bound)
        held = np.minimum(tuning.POPULATION.stretched / stretch, 1.0)
        kept = np.where(np.append(ordinary, np.ones(self.d - m, bool)), 1.0, held)
        arrays: dict[str, FloatArray | float] = {
            "rare_transform": along,
            "rare": moments,
            "rare_stddev": stddev,
            "rare_bound": bound,
        }
        return arrays, np.asarray((left * kept) @ left.T @ onward), float(np.linalg.norm(kept))

    def _bread(
        self,
        passes: Passes,
        transform: FloatArray,
        weights: FloatArray,
        usual: float,
        names: tuple[str, str] = _BREAD,
        least: float = 0.0,  # of the bound
    ) -> tuple[dict[str, FloatArray | float], FloatArray]:
        """Release how large curvatures are and their mean; return both, and the map to coordinates that whiten it."""
        lengths, bread = names
        edges = usual * SIZE_EDGES
        (index,) = self.plan.indices(bread)
        noise = self._noise(passes, index)
        counted = self._shares(passes.noisy_sum(lengths, self._lengths(transform, weights, edges)))
        sizes = SizeShares(counted.values, counted.stddev, groups=False)
        d = self.d
        bound = usual * sizes.best_bound(lambda a: noise * a**2 * d * math.sqrt(2.0 * d) + sizes.lost_square(a))
        if noise * sizes.end**2 * d * math.sqrt(2.0 * d) < tuning.POPULATION.negligible:
            bound = max(bound, usual * sizes.end)
        bound = max(bound, least)
        released = passes.noisy_sum(bread, self._curvatures(transform, weights, bound**2))
        matrix, stddev = smat(released.values, d) / self.n_records, released.stddev / self.n_records
        values, vectors = _resolved(matrix, stddev)
        floored = values / sizes.kept(bound / usual)
        white = np.asarray((vectors / np.sqrt(floored)).T @ transform, dtype=np.float64)
        arrays: dict[str, FloatArray | float] = {
            lengths: counted.values,
            f"{lengths}_stddev": counted.stddev,
            f"{lengths.removesuffix('s')}_unit": usual,
            f"{bread}_transform": transform,
            bread: matrix,
            f"{bread}_stddev": stddev,
            f"{bread}_bound": bound,
            f"{bread}_position": weights,
            "score_transform": white,
        }
        return arrays, white

    def _coordinates(self, white: FloatArray, position: FloatArray, spread: float, curves: Curves) -> Coordinates:
        variance = np.full(self.d, (self.model.prior_scale * spread) ** 2)
        sizes = np.sqrt(self.model.second_moments)
        return Coordinates(prior_in(white, variance, sizes, self.n_records / spread**2), position, curves)

    def _localise(
        self, passes: Passes, white: FloatArray, where: Coordinates, spread: float
    ) -> tuple[dict[str, FloatArray], float]:
        """Take steps with scores of the residuals' size; return their releases, and that size."""
        d, scale = self.d, spread
        chosen = tuning.POPULATION
        centre = float(chi_mean(tuning.TUNING.scale_unit))
        positions, scores, stddevs, bounds, scale_scores, scale_stddevs, units = [], [], [], [], [], [], []
        for index in self.plan.indices("localise"):
            clip = chosen.clip * math.sqrt(d) * scale
            weight = clip * math.sqrt(chosen.scale_weight) / max(centre, 1.0 - centre)
            bound = clip * math.sqrt(1.0 + chosen.scale_weight)
            unit = tuning.TUNING.scale_unit * scale
            query = JointScores(white, white.T @ where.position, self.link, bound, weight, unit, centre)
            released = self._shares(passes.noisy_sum(self.plan.phases[index], query))
            positions.append(where.position)
            scores.append(released.values[:-1])
            stddevs.append(released.stddev)
            bounds.append(bound)
            scale_scores.append(float(released.values[-1]) / weight)
            scale_stddevs.append(released.stddev / weight)
            units.append(unit)
            where.add(scores[-1], released.stddev)
            least = max(chosen.least_step, 2.0 * scale_stddevs[-1])
            here = scale * min(max((scale_scores[-1] + centre) / centre, least), chosen.largest_step)
            moved = float(np.sum(np.square(where.position - positions[-1]))) if len(positions) == 1 else 0.0
            scale = math.sqrt(max(here**2 - moved, (chosen.explained * here) ** 2))
        where.begin_again()
        return {
            "localise_positions": np.array(positions),
            "localise_scores": np.array(scores),
            "localise_score_stddev": np.array(stddevs),
            "localise_bounds": np.array(bounds),
            "scale_scores": np.array(scale_scores),
            "scale_stddev": np.array(scale_stddevs),
            "scale_units": np.array(units),
        }, scale

    def _measure(
        self, passes: Passes, white: FloatArray, where: Coordinates, scale: float, likely: LikelyRecords | None = None
    ) -> dict[str, FloatArray | float]:
        """Release how large scores are, scores that are clipped accordingly, and their second moments.

        With `likely` records the bread is released in between, near the zero of the scores.
        """
        d, n = self.d, self.n_units or self.n_records
        usual = scale * math.sqrt(d * self.n_records / n)
        counted = passes.noisy_sum("sizes", self._sizes(white, where.position, usual * SIZE_EDGES))
        shares, stddev = counted.values / n, counted.stddev / n
        # The model's likelihood is for rows.
        expected = where.curves.size_shares(where.position, usual) if self.n_units is None else None
        sizes = SizeShares(shares, stddev, expected)
        # Every other pass of the approach is a bread.
        first, rounds = self.plan.indices("approach")[::2], self.plan.indices("measure")
        noise = np.array([self.plan.noise_multipliers[index] / n for index in (*first, *rounds)])
        weighted = likely is not None and self._weighted
        bounds = usual * sizes.best_clips(noise, d, n, weighted=weighted)
        bound = float(bounds[-1])
        self.weight_bound = bound if weighted else math.inf
        scores: list[tuple[FloatArray, FloatArray, float]] = []
        arrays: dict[str, FloatArray | float] = {}

        def take(phase: str, clips: list[float]) -> None:
            for clip in clips:
                released = self._shares(passes.noisy_sum(phase, self._scores(white, where.position, clip)))
                scores.append((where.position, released.values, released.stddev))
                where.add(released.values, released.stddev)

        if likely is not None:
            arrays = self._approach(passes, white, where, likely, partial(take, "approach"), bounds[: len(first)])
        take("measure", bounds[len(first) :].tolist())
        positions, values, stddevs = (np.array(part) for part in zip(*scores, strict=True))
        clusters = self._cluster_sizes(passes, white, where.position, usual, bound, sizes) if self.plan.clusters else {}
        reach = float(clusters.get("cluster_bound", 0.0))
        meat = passes.noisy_sum("meat", self._products(white, where.position, bound, reach))
        return {
            **arrays,
            **clusters,
            "sizes": shares,
            "sizes_stddev": stddev,
            "size_unit": usual,
            "positions": positions,
            "scores": values,
            "score_stddev": stddevs,
            "score_bound": bound,
            "score_bounds": bounds,
            **({"weight_bound": bound} if weighted else {}),
            "meat": smat(meat.values, d) / self.n_records,
            "meat_stddev": meat.stddev / self.n_records,
            "meat_position": where.position,
            **self._strata(passes, white, where.position, bound, reach),
        }

    def _approach(
        self,
        passes: Passes,
        white: FloatArray,
        where: Coordinates,
        likely: LikelyRecords,
        take: Callable[[list[float]], None],
        bounds: FloatArray,
    ) -> dict[str, FloatArray | float]:
        """Take steps to the zero of the scores, each with the bread where it begins, and release the bread there."""
        d, breads, stddevs = self.d, [], []
        bound = _LONG * d
        for clip in bounds[:-1].tolist():
            take([clip])
            released = passes.noisy_sum("approach", self._curvatures(white, white.T @ where.position, bound))
            breads.append(smat(released.values, d) / self.n_records)
            stddevs.append(released.stddev / self.n_records)
            values, vectors = _resolved(breads[-1], stddevs[-1])
            where.bread, where.curves = (vectors * values) @ vectors.T, Curves(white, likely, where.position)
        take(bounds[-1:].tolist())
        arrays, again = self._bread(
            passes, white, white.T @ where.position, math.sqrt(d), least=self._rare_bound(passes, white)
        )
        back = np.linalg.solve(again.T, white.T)
        where.bread, where.curves = back.T @ back, Curves(white, likely, where.position)
        return {
            **arrays,
            "score_transform": white,
            "n_approach": len(bounds),
            **({"approach_breads": np.array(breads), "approach_stddev": np.array(stddevs)} if breads else {}),
            "approach_bound": bound,
        }

    def _rare_bound(self, passes: Passes, white: FloatArray) -> float:
        """Return a bound of curvatures that keeps a rare level's, of the longest direction, as far as noise allows.

        The few records of a rare level are as long as its direction is stretched, and no histogram shows them.  With
        weights the curvature of a record as long as z, at a rate of 0.3, is 0.3 C z, and that direction's C / (0.7 z).
        """
        if not math.isfinite(self.weight_bound):
            return 0.0
        (index,) = self.plan.indices("bread")
        longest = float(np.linalg.norm(white * np.sqrt(self.model.second_moments), 2))
        kept = min(1.0, self.weight_bound / (0.7 * longest))
        seen = tuning.POPULATION.seen * kept / (self._noise(passes, index) * math.sqrt(2.0 * self.d))
        return math.sqrt(min(0.2 * self.weight_bound * longest, seen))

    def _strata(
        self, passes: Passes, white: FloatArray, position: FloatArray, bound: float, reach: float
    ) -> dict[str, FloatArray | float]:
        """Release the sums of scores by stratum, if any: of rows, of units, or of clusters."""
        if "strata" not in self.plan.phases:
            return {}
        n_strata, scores = self.model.survey_weights.strata, self._of_rows(white, position, bound)
        query: StratumScores | StratumUnits = StratumScores.of(scores, n_strata)
        if reach or self.n_units is not None:
            query = StratumUnits.of(scores, n_strata, reach or bound)
        released = self._shares(passes.noisy_sum("strata", query))
        return {
            "strata": released.values.reshape(n_strata, -1),
            "strata_stddev": released.stddev,
            "strata_unit": query.unit,
            "strata_bound": math.hypot(query.scores.max_norm, query.unit),
        }

    def _lengths(self, transform: FloatArray, weights: FloatArray, edges: FloatArray) -> Query:
        """Return the query for the sizes of curvatures' roots."""
        return Sizes(transform, weights, self.link, edges, curved=True, weight_bound=self.weight_bound)

    def _curvatures(self, transform: FloatArray, weights: FloatArray, bound: float) -> Query:
        """Return the query for the bread."""
        return Curvatures(transform, weights, self.link, bound, weight_bound=self.weight_bound)

    def _scores(self, white: FloatArray, position: FloatArray, bound: float) -> Query:
        """Return the query for scores: of rows, or of units."""
        of_rows = self._of_rows(white, position, bound)
        return of_rows if self.n_units is None else UnitScores(of_rows, bound)

    def _of_rows(self, white: FloatArray, position: FloatArray, bound: float) -> JointScores:
        return JointScores(white, white.T @ position, self.link, bound, weight_bound=self.weight_bound)

    def _sizes(self, white: FloatArray, position: FloatArray, edges: FloatArray) -> Query:
        """Return the query for the sizes of scores: of rows, or of units."""
        if self.n_units is None:
            return Sizes(white, white.T @ position, self.link, edges, curved=False)
        return UnitSizes(JointScores(white, white.T @ position, self.link, float(edges[-1])), 1.0, edges)

    def _cluster_sizes(
        self, passes: Passes, white: FloatArray, position: FloatArray, usual: float, bound: float, rows: SizeShares
    ) -> dict[str, FloatArray | float]:
        """Release the sizes of the clusters' sums, and choose the bound to which they are shortened."""
        scores = self._of_rows(white, position, bound)
        counted = self._shares(passes.noisy_sum("clusters", ClusterSizes(scores, CLUSTER_NORM, usual * SIZE_EDGES)))
        sizes = SizeShares.of_sums(counted.values, counted.stddev, self.d, rows)
        (index,) = self.plan.indices("meat")
        noise = 2.0 * self._noise(passes, index) * bound / usual * self.d * math.sqrt(2.0 * self.d)
        reach = max(usual * sizes.best_bound(lambda a: noise * a + 2.0 * sizes.lost_square(a)), bound)
        return {"cluster_sizes": counted.values, "cluster_sizes_stddev": counted.stddev, "cluster_bound": reach}

    def _products(self, white: FloatArray, position: FloatArray, bound: float, reach: float) -> Query:
        """Return the query for the second moments of scores: of rows, of units, or of clusters."""
        if reach:
            return ClusterProducts.of(self._of_rows(white, position, bound), reach)
        if self.n_units is None:
            return ScoreProducts(white, white.T @ position, self.link, bound**2, weight_bound=self.weight_bound)
        return UnitProducts(self._of_rows(white, position, bound), bound**2)

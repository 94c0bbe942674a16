"""Clipping of records: residuals clipped and centred under a model, and noisy shares of records by size.

psi(y, eta) = clip(y - E[y | eta], -c, c) - centre(eta), with the centre that makes E[psi | eta] = 0: a score
psi(y, eta) w(x) x is then unbiased at the true weights for any features, weights w and clip c (Kuensch, Stefanski and
Carroll 1989). Only the law of a response given its predictor is needed, summed over zero and one, or over counts, from
the model's ``log_density``, ``loss_slopes`` and ``inverse_link``.

Shares of records by size, half octaves apart, give the bound on a record's norm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import NEGLIGIBLE, FloatArray
from dpinfer.models import tuning
from dpinfer.models.glm import GeneralizedLinearModel

SIZE_EDGES = np.exp2(0.5 * np.arange(-4, 18))  # in units of the usual size: format
# Geometric means of the ends of the intervals, which are half an octave wide.
_MIDDLES = np.append(SIZE_EDGES, 2.0 * SIZE_EDGES[-1] / math.sqrt(2.0)) * 2.0**-0.25
# Sizes in equal shares of each interval, up to its end: a bound that cuts nothing is beyond it; tolerance.
_WITHIN = _MIDDLES[:, None] * np.exp2(0.25 * np.array([-1.0, -0.5, 0.0, 0.5, 1.0]))
_BOUNDS = np.exp2(0.25 * np.arange(41))  # tried: a quarter of an octave apart, over ten octaves; tolerance
_LONGEST = 0.5  # formula of successive shares of the longest tail with a variance: it falls with the square
_LEVELS, _REACH = (np.arange(64) + 0.5) / 64.0, 6.0  # of a tail that noise hides, in its standard deviations: tolerance
_SCALES = np.exp2(0.25 * np.arange(-8, 35))  # of sums of scores, within SIZE_EDGES: tolerance
_NUMBERS = np.exp2(-0.25 * np.arange(53))  # of clusters for each row, one to a part in 8192: tolerance
_FACTORS = np.exp2(np.arange(-6.0, 5.0))  # nodes of the prior variance of the clipped part
_SHARES = (np.arange(400) + 0.5) / 400.0  # for means over a chi-squared law, by its quantiles: tolerance
_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)  # of the standard normal law


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(_DENSITY_AT_ZERO * np.exp(-0.5 * np.square(x)))


def huber_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c'(r)] = P(|r| < c) for a standard normal r, any shape."""
    return np.asarray(2.0 * special.ndtr(np.asarray(bound)) - 1.0)


def huber_variance(bound: npt.ArrayLike) -> FloatArray:
    """Return E[psi_c(r)**2] for a standard normal r, any shape."""
    c = np.asarray(bound, dtype=np.float64)
    return np.asarray(huber_slope(c) - 2.0 * c * _density(c) + 2.0 * np.square(c) * special.ndtr(-c))


def chi_mean(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)] for a standard normal r, any shape; bound > 0."""
    return np.asarray(chi_slope(bound) + 2.0 * special.ndtr(-np.asarray(bound, dtype=np.float64)))


def chi_slope(bound: npt.ArrayLike) -> FloatArray:
    """Return d E[chi_b(r)] / d log spread at spread 1, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    return np.asarray(2.0 / b * (_DENSITY_AT_ZERO - _density(b)))


def chi_second_moment(bound: npt.ArrayLike) -> FloatArray:
    """Return E[chi_b(r)**2] for a standard normal r, any shape; bound > 0."""
    b = np.asarray(bound, dtype=np.float64)
    inside = huber_slope(b) - 2.0 * b * _density(b)
    return np.asarray(inside / np.square(b) + 2.0 * special.ndtr(-b))


def mallows_moment(n_coef: int, bound: float) -> float:
    """Return E[w z'z] / n_coef, w = min(1, bound**2 / z'z), for z ~ N(0, I) with `n_coef` entries."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(squares, bound**2))) / n_coef


def mallows_mean(n_coef: int, bound: float) -> float:
    """Return E[min(1, bound**2 / |z|**2)] for z ~ N(0, I) with `n_coef` entries, by the midpoint rule."""
    squares = 2.0 * special.gammaincinv(0.5 * n_coef, _SHARES)
    return float(np.mean(np.minimum(1.0, bound**2 / squares)))


_BINARY_REACH = 12.0  # predictors: of zeros and ones, and of counts up to that of the largest mean; tolerance
# From the predictor of a mean of exp(-10) to a mean of 2000, where tables end (docs/private-newton.md).
_LEAST_LOG_MEAN, _LARGEST_MEAN = -10.0, 2000.0
_TAIL, _NEGLIGIBLE = 1e-12, 1e-18  # negligible probabilities, of responses left out, and of those dropped at every node
_MOST_COUNTS = 2**14  # responses of a table, more than a mean of 2000 needs: time


@dataclass(frozen=True, eq=False)
class ClippedResidual:
    """psi on an even grid of linear predictors."""

    clip: float
    # first_node, spacing: the grid; tabulated functions are linear between its nodes and constant beyond
    first_node: float
    spacing: float
    centre: FloatArray  # (n,): E[clip(r, -c, c)] under the model
    # (n,): -dE[psi]/d eta at the true predictor, E[psi (d log p / d eta)] (Bartlett), at most `slope_bound`
    slope: FloatArray
    variance: FloatArray  # (n,): E[psi**2]
    bound: float  # on abs(psi), for responses that the model can have
    slope_bound: float

    def with_slope_at_most(self, largest: float) -> "ClippedResidual":
        """Return the same with a slope that is cut off."""
        if largest >= self.slope_bound:
            return self
        return replace(self, slope=np.minimum(self.slope, largest), slope_bound=largest)


@dataclass(frozen=True, eq=False)
class _Block:
    """Neighbouring nodes, and the responses with a probability that counts at one of them."""

    responses: FloatArray  # (K,)
    probabilities: FloatArray  # (n, K)
    residuals: FloatArray  # (n, K)
    scores: FloatArray  # (n, K), d log p / d eta


def response_grid(model: GeneralizedLinearModel, spacing: float) -> "ResponseGrid":
    """Return a model's grid.  Those of the last few models are kept: counts take a tenth of a second each."""
    try:
        hash(model)
    except TypeError:
        return ResponseGrid(model, spacing)
    return _kept(model, spacing)


@lru_cache(maxsize=4)
def _kept(model: GeneralizedLinearModel, spacing: float) -> "ResponseGrid":
    return ResponseGrid(model, spacing)


class ResponseGrid:
    """The law of a response, zero or one or a count, on an even grid of linear predictors.

    Raises TypeError if responses are neither.
    """

    def __init__(self, model: GeneralizedLinearModel, spacing: float) -> None:
        if model.response not in ("binary", "count"):
            raise TypeError(f"{type(model).__name__} has neither binary responses nor counts")
        self._model, self.spacing = model, spacing
        self.first_node = -_BINARY_REACH if model.response == "binary" else _LEAST_LOG_MEAN
        self.nodes: FloatArray = self.first_node + spacing * np.arange(float(self._count_nodes()))
        self.mean: FloatArray = np.asarray(model.inverse_link(self.nodes), dtype=np.float64)
        self._largest_response = 1.0 if model.response == "binary" else math.inf
        self._blocks = [self._block(nodes) for nodes in self._split()]

    def _count_nodes(self) -> int:
        if self._model.response == "binary":
            return int(2.0 * _BINARY_REACH / self.spacing) + 1
        mean = np.asarray(self._model.inverse_link(np.arange(_LEAST_LOG_MEAN, 2.0 * _BINARY_REACH, 0.125)))
        reached = _LEAST_LOG_MEAN + 0.125 * max(int(np.sum(mean <= _LARGEST_MEAN)) - 1, 1)
        return int((reached - _LEAST_LOG_MEAN) / self.spacing) + 1

    def _split(self) -> list[FloatArray]:
        """Return the nodes in blocks over which a mean that is not small doubles."""
        octave = np.floor(np.log2(np.maximum(self.mean, 1.0)))
        return np.split(self.nodes, np.flatnonzero(np.diff(octave)) + 1)

    def _block(self, nodes: FloatArray) -> _Block:
        if self._model.response == "binary":
            responses = np.array([0.0, 1.0])
        else:
            responses = np.arange(float(self._enough_counts(nodes[-1:])))
        pairs = np.broadcast_arrays(nodes[:, None], responses)
        probabilities = np.exp(self._model.log_density(pairs[0], pairs[1]))
        visible = probabilities.max(axis=0) > _NEGLIGIBLE
        responses, probabilities = responses[visible], probabilities[:, visible]
        pairs = np.broadcast_arrays(nodes[:, None], responses)
        scores = -self._model.loss_slopes(pairs[0], pairs[1], np.zeros(self._model.n_params))[0]
        mean = np.asarray(self._model.inverse_link(nodes))
        return _Block(responses, probabilities, responses - mean[:, None], np.asarray(scores))

    def _enough_counts(self, node: FloatArray) -> int:
        size = 16
        while size < _MOST_COUNTS:
            total = np.exp(self._model.log_density(np.broadcast_to(node, size), np.arange(float(size)))).sum()
            if total > 1.0 - _TAIL:
                break
            size *= 2
        return size

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of a response at each node, (n,)."""
        variance = [np.sum(block.probabilities * np.square(block.residuals), axis=1) for block in self._blocks]
        return np.asarray(np.sqrt(np.concatenate(variance)))

    @property
    def information(self) -> FloatArray:
        """Fisher information of a response about its predictor at each node, (n,)."""
        values = [np.sum(block.probabilities * np.square(block.scores), axis=1) for block in self._blocks]
        return np.asarray(np.concatenate(values))

    def clipped(self, clip: float) -> ClippedResidual:
        """Return the residual that is clipped at `clip`, and centred."""
        parts = []
        for block in self._blocks:
            psi = np.clip(block.residuals, -clip, clip)
            weighted = block.probabilities * psi
            parts.append([np.sum(weighted * factor, axis=1) for factor in (np.ones_like(psi), block.scores, psi)])
        centre, slope, square = (np.concatenate(values) for values in zip(*parts, strict=True))
        above = np.minimum(clip, self._largest_response - self.mean) - centre
        below = np.minimum(clip, self.mean) + centre
        slope = np.maximum(slope, 0.0)
        return ClippedResidual(
            clip=clip,
            first_node=self.first_node,
            spacing=self.spacing,
            centre=centre,
            slope=slope,
            variance=np.maximum(square - np.square(centre), 0.0),
            bound=float(np.maximum(above, below).max()),
            slope_bound=float(slope.max()),
        )

    def expected(self, residual: ClippedResidual) -> FloatArray:
        """Return E[psi(y, eta_j)] of a response whose predictor is eta_i, (n, n); `residual` is of this grid."""
        rows = []
        for block in self._blocks:
            psi = np.clip(block.responses[:, None] - self.mean, -residual.clip, residual.clip)
            rows.append(block.probabilities @ psi)
        return np.asarray(np.concatenate(rows) - residual.centre)

    def shares(self, edges: FloatArray) -> FloatArray:
        """Return the probability of each interval between `edges` at each node, (n, edges + 1)."""
        rows = []
        for block in self._blocks:
            place = np.searchsorted(edges, block.responses, side="right")
            rows.append(block.probabilities @ (place[:, None] == np.arange(edges.size + 1)).astype(np.float64))
        return np.asarray(np.concatenate(rows))


def clips_of(n_scores: int) -> FloatArray:
    """Return the bounds of scores that are taken in turn, over that of the last, (n_scores,)."""
    return np.append(tuning.TUNING.first_clip, np.ones(n_scores - 1)) if n_scores > 1 else np.ones(1)


def combined(covariance: FloatArray) -> tuple[FloatArray, float]:
    """Return the weights of the best mean of numbers with a common expectation, (T,), and its variance."""
    said = np.asarray(np.linalg.solve(_regular(covariance), np.ones(len(covariance))), dtype=np.float64)
    total = float(np.sum(said))
    return said / total, 1.0 / total


def differences(common: FloatArray) -> FloatArray:
    """Return an orthonormal basis of what is orthogonal to a vector, (T - 1, T)."""
    return np.asarray(np.linalg.svd(common[None])[2][1:])


def _regular(covariance: FloatArray) -> FloatArray:
    """Return a covariance that has an inverse in floating point."""
    return np.asarray(covariance + NEGLIGIBLE * float(np.trace(covariance)) * np.eye(len(covariance)), dtype=np.float64)


def pointed(
    clipped: FloatArray,  # (T, T): of a coordinate, before the scores are seen
    noise: FloatArray,  # (T, T): covariance of what else lets scores differ
    said: FloatArray,  # (T, d): the scores, at one point
    most: float = math.inf,  # the largest factor
) -> float:
    """Return by which factor a covariance, as of what clips take off, agrees with scores that differ: its mean."""
    contrast, factors = differences(np.ones(len(noise))), _FACTORS[most >= _FACTORS]
    logs = -0.5 * np.square(np.log2(factors) / tuning.TUNING.factor_spread)
    for place, factor in enumerate(factors):
        root = np.linalg.cholesky(contrast @ _regular(noise + factor * clipped) @ contrast.T)
        seen = np.linalg.solve(root, contrast @ said)
        logs[place] -= 0.5 * float(np.sum(np.square(seen))) + said.shape[1] * float(np.sum(np.log(np.diag(root))))
    weight = np.exp(logs - logs.max())
    return float(weight @ factors / np.sum(weight))


def _sure_alone(n: int) -> FloatArray:
    """Return the limits of `n` shares by the number of intervals between."""
    return np.where(np.arange(n) < tuning.TUNING.near, tuning.TUNING.alone, tuning.TUNING.far)


@dataclass(frozen=True, eq=False)
class SizeShares:
    """Shares of the records by size, in units of the usual size."""

    noisy: FloatArray  # (m + 1,): of sizes below SIZE_EDGES[0], between successive edges, and above the last
    stddev: float  # of the noise in each
    # (m + 1,): shares under a model: used, within the noisy ones, where these cannot be distinguished from noise
    expected: FloatArray | None = None
    # whether records far from all others count where they exceed the noise together.  Noise that is taken for them
    # makes intervals wider if the sizes are those of scores, and narrower if they are those of curvatures
    groups: bool = True
    # whether shares beyond those that exceed the noise have the expectation of a share that is not negative
    beyond: bool = True
    # a noisy E min(a, bound)**2, the standard deviation of its noise, and the bound
    square: tuple[float, float, float] | None = None

    @cached_property
    def _visible(self) -> tuple[int, bool]:
        """Place of the last share that exceeds the noise, and whether it is far from those before."""
        clear, far = self.noisy / self.stddev, False
        alone = _sure_alone(clear.size)
        last = int(np.argmax(clear)) if np.max(clear) > alone[0] else 0
        for place in np.flatnonzero(clear > tuning.TUNING.sure).tolist():
            gap = place - last - 1
            if gap == 0 or (gap > 0 and clear[place] > alone[gap]):
                last, far = place, far or gap >= tuning.TUNING.near
        return last, far

    @property
    def end(self) -> float:
        """Largest size of the shares that exceed the noise."""
        return float(SIZE_EDGES[min(self._visible[0], SIZE_EDGES.size - 1)])

    @property
    def far(self) -> bool:
        """Whether shares count that no model expects, and that are far from those of all other records."""
        last, far = self._visible
        return self.expected is None and (far or self._far_group(last + 1).stop > 0)

    @cached_property
    def shares(self) -> FloatArray:
        """Shares that exceed the noise, and beyond them the expectation of a share that is not negative."""
        last, _ = self._visible
        likely = np.zeros_like(self.noisy)
        if self.expected is not None:
            likely = np.clip(self.expected, 0.0, np.maximum(self.noisy + tuning.TUNING.sure * self.stddev, 0.0))
            tail = np.cumsum(likely[::-1])[::-1]
            last = max(last, int(np.max(np.flatnonzero(tail > self.stddev), initial=0)))
        group = self._far_group(last + 1) if self.groups else slice(0, 0)
        last = max(last, group.stop - 1)
        counted = np.where(self.noisy > tuning.TUNING.sure * self.stddev, self.noisy, likely)
        counted[group] = np.maximum(self.noisy[group], likely[group])
        counted[last + 1 :] = likely[last + 1 :]
        beyond = counted[last + 1 : last + 1 + len(tuning.TUNING.hidden)]
        if beyond.size and self.beyond:
            stddev = self.stddev * math.sqrt(beyond.size)
            place = float(np.sum(self.noisy[last + 1 : last + 1 + beyond.size])) / stddev
            # The mean of a normal law that is cut off at zero: phi(place) / Phi(place) beyond its centre.
            hidden = stddev * (place + math.sqrt(2.0 / math.pi) / float(special.erfcx(-place / math.sqrt(2.0))))
            beyond[:] = np.maximum(beyond, hidden * np.array(tuning.TUNING.hidden[: beyond.size]))
        return counted

    def _far_group(self, first: int) -> slice:
        """Return the intervals from `first` on that exceed the noise most clearly together, none where none do."""
        beyond, found, clearest = self.noisy[first:] / self.stddev, slice(0, 0), 0.0
        for width in tuning.TUNING.together:
            if width <= beyond.size:
                clear = np.convolve(beyond, np.ones(width), "valid") / math.sqrt(width)
                clear -= _sure_alone(clear.size)
                place = int(np.argmax(clear))
                if clear[place] > clearest:
                    found, clearest = slice(first + place, first + place + width), float(clear[place])
        return found

    @cached_property
    def longest(self) -> FloatArray:
        """Shares with a tail that goes on as the last visible ones fall, as far as the noisy ones allow.

        Beyond them shares are `level` times a geometric series; `level` is uniform on (0, 1) before the noisy shares
        and the noisy mean square are seen, and its mean given them counts.
        """
        last, _ = self._visible
        start, before = self.noisy[last], np.maximum(self.noisy[max(last - 2, 0) : last], 1e-300)
        if start <= 0.0 or last + 1 == self.noisy.size:
            return self.shares
        falls = (start / before) ** (1.0 / np.arange(before.size, 0, -1))
        ratio = float(np.min(falls, initial=_LONGEST))
        tail = start * ratio ** np.arange(1, self.noisy.size - last)
        told, says = tail / self.stddev, self.noisy[last + 1 :] / self.stddev
        if self.square is not None:
            value, noise, bound = self.square
            near, far = np.split(np.square(np.minimum(_MIDDLES, bound)), [last + 1])
            noise = math.hypot(noise, tuning.TUNING.square_error * value, self.stddev * float(np.linalg.norm(near)))
            told = np.append(told, far @ tail / noise)
            says = np.append(says, (value - near @ self.noisy[: last + 1]) / noise)
        spread = 1.0 / float(np.linalg.norm(told))
        centre = float(told @ says) * spread**2
        low, high = max(min(centre, 1.0) - _REACH * spread, 0.0), min(max(centre, 0.0) + _REACH * spread, 1.0)
        level = low + (high - low) * _LEVELS
        logs = -0.5 * np.square((level - centre) / spread)
        weight = np.exp(logs - logs.max())
        counted = self.shares.copy()
        counted[last + 1 :] = np.maximum(counted[last + 1 :], float(weight @ level / np.sum(weight)) * tail)
        return counted

    @property
    def mean_square(self) -> float:
        """E a**2 of the size a."""
        return float(np.sum(self.shares * np.square(_MIDDLES)))

    @property
    def kurtosis(self) -> float:
        """E a**4 / (E a**2)**2."""
        return float(np.sum(self.shares * _MIDDLES**4)) / max(self.mean_square**2, 1e-300)

    def fourths(self, bound: float) -> FloatArray:
        """Return what records of each size add to E min(a, bound)**4, (m + 1,)."""
        return np.asarray(self.shares * np.minimum(_MIDDLES, bound) ** 4)

    def parts(self, bound: float) -> FloatArray:
        """Return the part of the records of each size in E min(a, bound)**2, (m + 1,)."""
        squares = self.shares * np.square(np.minimum(_MIDDLES, bound))
        return np.asarray(squares / max(float(np.sum(squares)), 1e-300))

    def bias(self, bound: float) -> float:
        """Return the largest bias of the mean of a vector of this size, clipped at `bound`: part of E (a - bound)+."""
        return tuning.TUNING.alignment * float(self.longest @ np.mean(np.maximum(_WITHIN - bound, 0.0), axis=1))

    def lost_square(self, bound: float) -> float:
        """Return half of E (a**2 - bound**2)+."""
        beyond = np.mean(np.maximum(np.square(_WITHIN) - bound**2, 0.0), axis=1)
        return tuning.TUNING.one_way * float(self.shares @ beyond)

    @classmethod
    def of_sums(cls, noisy: FloatArray, stddev: float, n_coef: int, rows: "SizeShares") -> "SizeShares":
        """Return shares of sums over clusters, per row, each of which may be less than the noise.

        Expected is their mean given the noisy shares, if sums have normal coordinates: of one scale, or of scales that
        vary as those of clusters of very different sizes.  Together they are at least as long as those of independent
        rows, and at most as those of rows that are all alike; scale and number are log-uniform within.
        """
        edges = np.append(SIZE_EDGES / _SCALES[:, None], np.full((_SCALES.size, 1), math.inf), axis=1)
        law = np.diff(special.gammainc(0.5 * n_coef, 0.5 * n_coef * np.square(edges)), axis=1, prepend=0.0)
        apart = np.abs(np.subtract.outer(np.log2(_SCALES), np.log2(_SCALES)))
        spread = np.exp(-0.5 * np.square(apart))
        laws = np.concatenate([law, (spread / spread.sum(axis=1, keepdims=True)) @ law])
        together = np.multiply.outer(_NUMBERS, laws @ np.square(_MIDDLES)) / max(rows.mean_square, 1e-300)
        allowed = (together >= 1.0) & (together * _NUMBERS[:, None] <= 1.0)
        fits, squares = laws @ noisy, np.sum(np.square(laws), axis=1)
        logs = (np.multiply.outer(_NUMBERS, fits) - 0.5 * np.multiply.outer(np.square(_NUMBERS), squares)) / stddev**2
        logs = np.where(allowed, logs, -np.inf)
        weights = np.exp(logs - logs.max()) / np.sum(np.exp(logs - logs.max()))
        # Ends of an interval move with the root of the sums' mean square, and so its mean is taken.
        smaller = float(np.sum(weights * np.sqrt(together))) ** 2 / float(np.sum(weights * together))
        return cls(noisy, stddev, np.asarray(smaller * (_NUMBERS @ weights @ laws)), beyond=False)

    def squares_between(self, near: float, far: float) -> FloatArray:
        """Return what records of each size add to E (min(a, far) - near)+**2, (m + 1,)."""
        return np.asarray(self.shares * np.square(np.maximum(np.minimum(_MIDDLES, far) - near, 0.0)))

    def kept(self, bound: float) -> float:
        """Return the share of E a**2 that a clip at `bound` keeps, taken for a half where it is less."""
        return max(1.0 - self.lost_square(bound) / (tuning.TUNING.one_way * max(self.mean_square, 1e-300)), 0.5)

    def clip_covariance(self, bounds: FloatArray) -> FloatArray:
        """Return the covariance of what clips at several bounds (T,) take off a coordinate of the mean, (T, T).

        What a clip at C takes off is the sum over the sizes beyond C of how much lies there times a mean direction.
        Directions of neighbouring sizes are alike, so that the difference of two clips says where the rest points.
        """
        edges = np.unique(bounds)
        beyond = np.array([self.bias(edge) for edge in edges])
        parts = np.where(bounds[:, None] <= edges, beyond - np.append(beyond[1:], 0.0), 0.0)
        alike = tuning.TUNING.alike + (1.0 - tuning.TUNING.alike) * np.eye(edges.size)
        return np.asarray(parts @ alike @ parts.T)

    def weighted(self, bound: float) -> float:
        """Return which part of E a**2 weights min(1, bound / a) keep: what they leave of the scores' slope."""
        kept = float(np.sum(self.shares * _MIDDLES * np.minimum(_MIDDLES, bound)))
        return max(kept / max(self.mean_square, 1e-300), tuning.TUNING.least_weighted)

    def lighter(self, bound: float) -> float:
        """Return by which part of a bread with weights min(1, bound / a) the meat with them is smaller, if both agree.

        That is E w (1 - w) a**2 over E w a**2.
        """
        short = np.minimum(_MIDDLES, bound)
        once = float(np.sum(self.shares * _MIDDLES * short))
        return 1.0 - float(np.sum(self.shares * np.square(short))) / max(once, 1e-300)

    def weight_covariance(self, bounds: FloatArray) -> FloatArray:
        """Return the covariance of what weights min(1, bound / a) move a coordinate of the mean by, (T, T).

        Weights that are functions of the features move nothing where the model is true.
        """
        moved = np.array([self.bias(bound) for bound in bounds]) / tuning.TUNING.alignment * tuning.TUNING.misfit
        return np.asarray(np.outer(moved, moved))

    def best_clips(
        self,
        noise: FloatArray,  # (T,): of the scores, per record, of a vector of norm 1
        d: int,
        n: int,  # number of records
        *,
        weighted: bool,
    ) -> FloatArray:
        """Return the bounds of T scores that are taken in turn, (T,), by their predicted error.

        A shorter first bound shows where a tail points; without noise nothing is to be clipped.  Weights need no such.
        """
        ratios = [np.ones(noise.size)] if weighted else [clips_of(noise.size), np.ones(noise.size)]

        def cost(ratio: FloatArray, bound: float) -> float:
            bounds = ratio * bound
            clipped = self.weight_covariance(bounds) if weighted else self.clip_covariance(bounds)
            found = combined(np.diag(np.square(noise * bounds) * d) + clipped)[1]
            return (
                (found + float(np.sum(self.squares_between(0.0, bound))) / n) / self.weighted(bound) ** 2
                if weighted
                else found
            )

        best = [(ratio, self.best_bound(partial(cost, ratio))) for ratio in ratios]
        ratio, bound = best[-1] if cost(*best[-1]) < tuning.TUNING.no_tail * cost(*best[0]) else best[0]
        return ratio * bound

    def best_bound(self, cost: Callable[[float], float]) -> float:
        """Return the bound of least cost, a quarter of an octave from the next."""
        return float(min(_BOUNDS.tolist(), key=cost))

"""Noisy shares of records by size, half octaves apart, and the bound on a record's norm that follows from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray

SIZE_EDGES = np.exp2(0.5 * np.arange(-4, 18))  # in units of the usual size
# Geometric means of the ends of the intervals, which are half an octave wide.
_MIDDLES = np.append(SIZE_EDGES, 2.0 * SIZE_EDGES[-1] / math.sqrt(2.0)) * 2.0**-0.25
_BOUNDS = np.exp2(0.25 * np.arange(29))  # tried: a quarter of an octave apart, over seven octaves
# Standard deviations of its noise from where on a share counts beside one that does; alone, or with up to three that
# follow, less than two octaves (_NEAR intervals) beyond; and farther: few records far from the others, as where a
# response has an upper code.  Noise is taken for such in three of ten thousand histograms of normal errors; intervals
# are then wider by up to 2 ** (gap / 2).  4 was chosen on Adult's capital gains, 4.8 on normal errors.
_SURE, _NEAR, _TOGETHER = 2.0, 4, (2, 3, 4)
_SURE_ALONE = np.repeat([4.0, 4.8], [_NEAR, SIZE_EDGES.size])  # by the number of intervals between
HIDDEN_SIZES = 0.05  # noise of a share that hides sizes: a quarter of what the fullest interval of normal scores has
_HIDDEN = np.array([0.4, 0.2])  # of the records that noise may hide in the next intervals
_LONGEST = 0.5  # ratio of successive shares of the longest tail with a variance: it falls with the square of the size
_LEVELS, _REACH = (np.arange(64) + 0.5) / 64.0, 6.0  # of a tail that noise hides, in its standard deviations
_FIRST = 0.5  # clip of the first score over that of the others: their difference shows the direction of a tail
# Factors of the prior variance of the clipped part, and the standard deviation of their binary logarithm.
_FACTORS, _FACTOR_SPREAD = np.exp2(np.arange(-6.0, 5.0)), 2.0
_SMALLEST = 1e-12  # eigenvalue of a covariance over its trace
_ALIKE = 0.8  # correlation of the mean directions of the parts that two clips take off
_ONE_WAY = 0.5  # of the clipped part: clipped records also point in opposite directions


def clips_of(n_scores: int) -> FloatArray:
    """Return the bounds of scores that are taken in turn, over that of the last, (n_scores,)."""
    return np.append(_FIRST, np.ones(n_scores - 1)) if n_scores > 1 else np.ones(1)


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
    return np.asarray(covariance + _SMALLEST * float(np.trace(covariance)) * np.eye(len(covariance)), dtype=np.float64)


def pointed(clipped: FloatArray, noise: FloatArray, said: FloatArray) -> float:
    """Return by which factor the covariance of what clips take off agrees with scores that differ.

    Parameters
    ----------
    clipped : (T, T) array
        Of a coordinate, before the scores are seen.
    noise : (T, T) array
        Covariance of what else lets scores differ.
    said : (T, d) array
        The scores, at one point.

    Returns
    -------
    float
        Its mean given their differences.
    """
    contrast = differences(np.ones(len(noise)))
    logs = -0.5 * np.square(np.log2(_FACTORS) / _FACTOR_SPREAD)
    for place, factor in enumerate(_FACTORS):
        root = np.linalg.cholesky(contrast @ _regular(noise + factor * clipped) @ contrast.T)
        seen = np.linalg.solve(root, contrast @ said)
        logs[place] -= 0.5 * float(np.sum(np.square(seen))) + said.shape[1] * float(np.sum(np.log(np.diag(root))))
    weight = np.exp(logs - logs.max())
    return float(weight @ _FACTORS / np.sum(weight))


@dataclass(frozen=True, eq=False)
class SizeShares:
    """Shares of the records by size, in units of the usual size.

    Parameters
    ----------
    noisy : (m + 1,) array
        Of sizes below SIZE_EDGES[0], between successive edges, and above the last.
    stddev : float
        Of the noise in each.
    expected : (m + 1,) array, optional
        Shares under a model: used, within the noisy ones, where these cannot be distinguished from noise.
    groups : bool, optional
        Whether records far from all others count where they exceed the noise together.  Noise that is taken for them
        makes intervals wider if the sizes are those of scores, and narrower if they are those of curvatures.
    """

    noisy: FloatArray
    stddev: float
    expected: FloatArray | None = None
    groups: bool = True

    @cached_property
    def _visible(self) -> tuple[int, bool]:
        """Place of the last share that exceeds the noise, and whether it is far from those before."""
        clear, far = self.noisy / self.stddev, False
        last = int(np.argmax(clear)) if np.max(clear) > _SURE_ALONE[0] else 0
        for place in np.flatnonzero(clear > _SURE).tolist():
            gap = place - last - 1
            if gap == 0 or (gap > 0 and clear[place] > _SURE_ALONE[gap]):
                last, far = place, far or gap >= _NEAR
        return last, far

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
            likely = np.clip(self.expected, 0.0, np.maximum(self.noisy + _SURE * self.stddev, 0.0))
            tail = np.cumsum(likely[::-1])[::-1]
            last = max(last, int(np.max(np.flatnonzero(tail > self.stddev), initial=0)))
        group = self._far_group(last + 1) if self.groups else slice(0, 0)
        last = max(last, group.stop - 1)
        counted = np.where(self.noisy > _SURE * self.stddev, self.noisy, likely)
        counted[group] = np.maximum(self.noisy[group], likely[group])
        counted[last + 1 :] = likely[last + 1 :]
        beyond = counted[last + 1 : last + 1 + _HIDDEN.size]
        if beyond.size:
            stddev = self.stddev * math.sqrt(beyond.size)
            place = float(np.sum(self.noisy[last + 1 : last + 1 + beyond.size])) / stddev
            # The mean of a normal law that is cut off at zero: phi(place) / Phi(place) beyond its centre.
            hidden = stddev * (place + math.sqrt(2.0 / math.pi) / float(special.erfcx(-place / math.sqrt(2.0))))
            beyond[:] = np.maximum(beyond, hidden * _HIDDEN[: beyond.size])
        return counted

    def _far_group(self, first: int) -> slice:
        """Return the intervals from `first` on that exceed the noise most clearly together, none where none do."""
        beyond, found, clearest = self.noisy[first:] / self.stddev, slice(0, 0), 0.0
        for width in _TOGETHER:
            if width <= beyond.size:
                clear = np.convolve(beyond, np.ones(width), "valid") / math.sqrt(width)
                clear -= _SURE_ALONE[: clear.size]
                place = int(np.argmax(clear))
                if clear[place] > clearest:
                    found, clearest = slice(first + place, first + place + width), float(clear[place])
        return found

    @cached_property
    def longest(self) -> FloatArray:
        """Shares with a tail that goes on as the last visible ones fall, as far as the noisy ones allow.

        Beyond them shares are `level` times a geometric series; `level` is uniform on (0, 1) before the noisy shares
        are seen, and its mean given them counts.
        """
        last, _ = self._visible
        start, before = self.noisy[last], np.maximum(self.noisy[max(last - 2, 0) : last], 1e-300)
        if start <= 0.0 or last + 1 == self.noisy.size:
            return self.shares
        falls = (start / before) ** (1.0 / np.arange(before.size, 0, -1))
        ratio = float(np.min(falls, initial=_LONGEST))
        tail = start * ratio ** np.arange(1, self.noisy.size - last)
        spread = self.stddev / float(np.linalg.norm(tail))
        centre = float(tail @ self.noisy[last + 1 :]) * (spread / self.stddev) ** 2
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

    def fourth(self, bound: float) -> float:
        """Return E min(a, bound)**4."""
        return float(np.sum(self.shares * np.minimum(_MIDDLES, bound) ** 4))

    def bias(self, bound: float) -> float:
        """Return the largest bias of the mean of a vector of this size, clipped at `bound`: half of E (a - bound)+."""
        return _ONE_WAY * float(np.sum(self.longest * np.maximum(_MIDDLES - bound, 0.0)))

    def lost_square(self, bound: float) -> float:
        """Return half of E (a**2 - bound**2)+."""
        return _ONE_WAY * float(np.sum(self.shares * np.maximum(np.square(_MIDDLES) - bound**2, 0.0)))

    def square_between(self, near: float, far: float) -> float:
        """Return E (min(a, far) - near)+**2."""
        return float(np.sum(self.shares * np.square(np.maximum(np.minimum(_MIDDLES, far) - near, 0.0))))

    def kept(self, bound: float) -> float:
        """Return the share of E a**2 that a clip at `bound` keeps, taken for a half where it is less."""
        return max(1.0 - self.lost_square(bound) / (_ONE_WAY * max(self.mean_square, 1e-300)), 0.5)

    def clip_covariance(self, bounds: FloatArray) -> FloatArray:
        """Return the covariance of what clips at several bounds take off a coordinate of the mean, (T, T).

        Parameters
        ----------
        bounds : (T,) array

        Notes
        -----
        What a clip at C takes off is the sum over the sizes beyond C of how much lies there times a mean direction.
        Directions of neighbouring sizes are alike, so that the difference of two clips says where the rest points.
        """
        edges = np.unique(bounds)
        beyond = np.array([self.bias(edge) for edge in edges])
        parts = np.where(bounds[:, None] <= edges, beyond - np.append(beyond[1:], 0.0), 0.0)
        alike = _ALIKE + (1.0 - _ALIKE) * np.eye(edges.size)
        return np.asarray(parts @ alike @ parts.T)

    def best_bound(self, cost: Callable[[float], float]) -> float:
        """Return the bound of least cost, a quarter of an octave from the next."""
        return float(min(_BOUNDS.tolist(), key=cost))

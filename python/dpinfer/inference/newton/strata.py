"""What lies between the strata of a survey, from their noisy sums of scores (docs/derivations/population.md)."""

import math
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.inference.newton import tuning


@dataclass(frozen=True, eq=False)
class BetweenStrata:
    """The part of the second moments of scores that is between strata, and does not count in a stratified sample."""

    # (d, d): sum over strata of the products of their sums, over their numbers of scores; 0 where noise hides it
    matrix: FloatArray
    shown: FloatArray  # (d, d): projection onto the directions in which it stands out
    stddev: float  # of an entry, by the noise
    growth: float  # n / (n - H), for n scores in H strata: each stratum's own mean is subtracted

    @classmethod
    def of(cls, sums: FloatArray, shares: FloatArray, noise: float, counted: float, n_records: int) -> "BetweenStrata":
        """Return it from noisy sums (H, d) and numbers of scores (H,), both over `n_records`, and their noise."""
        d = sums.shape[1]
        usual = float(np.mean(np.append(shares, 0.0)))
        kept = shares > max(tuning.TUNING.seen_stratum * counted, tuning.TUNING.least_stratum * usual)
        sums, own = sums[kept] / np.sqrt(shares[kept])[:, None], noise**2 / shares[kept]
        values, vectors = np.linalg.eigh(sums.T @ sums)
        most = math.sqrt(float(np.max(own, initial=0.0)))
        # The largest singular value of noise alone is beyond this with probability exp(-clear**2 / 2) at most.
        edge = math.sqrt(float(np.sum(own))) + (math.sqrt(d) + tuning.TUNING.clear) * most
        clear = values > edge**2 if kept.any() else np.zeros(d, bool)
        usual = float(np.sum(own)) / max(len(own), 1)
        left = np.where(clear, values - float(np.sum(own)) - (d - 1) * usual, 0.0)
        spread = 2.0 * float(np.sum(np.square(own))) + 4.0 * usual * float(np.max(left))
        n = n_records * float(np.sum(shares[kept]))
        return cls(
            (vectors * left) @ vectors.T,
            (vectors * clear) @ vectors.T,
            math.sqrt(spread) if clear.any() else 0.0,
            1.0 / (1.0 - min(np.count_nonzero(kept) / n, 0.5)) if clear.any() else 1.0,
        )

    def taken_off(self, meat: FloatArray, stddev: float) -> tuple[FloatArray, float]:
        """Return second moments within strata, and their noise."""
        more = np.eye(len(meat)) + (math.sqrt(self.growth) - 1.0) * self.shown
        return np.asarray(more @ (meat - self.matrix) @ more), self.growth * stddev

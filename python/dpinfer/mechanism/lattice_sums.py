"""Private sums of bounded contributions: integers per record, an exact sum, and noise.

**Privacy.** Where Laplace noise meets sums over records; proofs in docs/derivations/baselines.md and
docs/derivations/one-shot-statistic.md.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.accounting import Adjacency, PureEvent
from dpinfer.mechanism import _native
from dpinfer.mechanism.discrete_laplace import laplace_mechanism
from dpinfer.mechanism.private_run import ReleaseTerms

_ROUNDING = 1.0 + 2.0**-50  # more than the rounding of the square root and of one product
_LATTICE_BITS = 30  # the rounding of a contribution is below 2**-30 of its bound
_REPORTED_DELTA = 1e-6  # for reports of a pure guarantee's ledger without a budget; format: the library's default


def pure_terms(epsilon: float, adjacency: Adjacency) -> ReleaseTerms:
    """Return the terms of the charge of a pure release."""
    return ReleaseTerms(PureEvent(epsilon, adjacency.value), adjacency, _REPORTED_DELTA)


class LatticeSum:
    """Sum bounded contributions on a lattice and release the sums with Laplace noise.

    Each coordinate of a record's contribution is rounded to a multiple of the step g, a power of two, and clamped to
    [low / g, high / g], both rounded towards zero: integers below 2**31 in absolute value, so that sums over up to
    2**31 records are exact.

    **Privacy.** A release is epsilon-differentially private (delta = 0).  With m_c the larger of ``|low|`` and ``high``
    of coordinate c, in lattice steps, and r_c = (high - low) / g, the L1 sensitivity is at most ``sum(m_c)`` when a
    record is present in one data set only or is blanked, and at most ``sum(r_c)`` when it is replaced.  With at most
    ``n_nonzero`` coordinates of a contribution different from zero it is also at most ``n_nonzero * max(m_c)``, twice
    that when replaced.  All of this holds in integers.
    """

    def __init__(
        self,
        low: FloatArray,  # low, high: (s,) public bounds, low <= 0 <= high, as a record may contribute nothing
        high: FloatArray,
        *,
        replace: bool,  # whether neighbours differ in one record's value rather than in one record's presence
        n_nonzero: int | None = None,
        step: float | None = None,  # by default 2**-30 of the largest bound, rounded down to a power of two
    ) -> None:
        largest = float(np.max(np.maximum(-low, high)))
        self.step = 2.0 ** (math.floor(math.log2(largest)) - _LATTICE_BITS) if step is None else step
        self._low = np.ceil(low / self.step).astype(np.int64)
        self._high = np.floor(high / self.step).astype(np.int64)
        magnitude = np.maximum(-self._low, self._high)
        total = int((self._high - self._low).sum() if replace else magnitude.sum())
        if n_nonzero is not None:
            total = min(total, (2 if replace else 1) * n_nonzero * int(magnitude.max()))
        self.l1_sensitivity = total

    def integers(self, values: FloatArray) -> IntArray:
        """Return contributions (..., s) in lattice steps, inside their bounds."""
        # Clamped to the bounds before the division, so that no record can cause an overflow.
        near = np.clip(values, self._low * self.step, self._high * self.step)
        return np.clip(np.rint(near / self.step), self._low, self._high).astype(np.int64)

    def total(self, chunks: Iterable[FloatArray]) -> list[int]:
        """Return the exact sum over the rows of all chunks (rows, s), in lattice steps."""
        total = np.zeros(self._low.size, dtype=np.int64)
        for chunk in chunks:
            total += self.integers(chunk).sum(axis=0)
        return total.tolist()

    def scale(self, epsilon: float) -> float:
        """Return the Laplace scale of the noise, in units of the statistics."""
        return self.l1_sensitivity * self.step / epsilon

    def release_total(self, total: Sequence[int], *, epsilon: float, key: bytes, stream: int = 0) -> FloatArray:
        """Return noisy sums, (s,), in units of the statistics, of :meth:`total` or of a sum of several of them."""
        noisy = laplace_mechanism(total, l1_sensitivity=self.l1_sensitivity, epsilon=epsilon, key=key, stream=stream)
        return np.array([value * self.step for value in noisy])


class NormSum:
    """Sum contributions of a bounded L1 norm on a lattice and release the sums with Laplace noise.

    A contribution v, in units of the step g = 2**(floor(log2(max_norm)) - 30), is shortened to the norm
    (1 - 2**-20) M where it is longer than M = floor(max_norm / g), and each coordinate is rounded towards zero.  One
    that is not finite, or whose integers have a norm above M, adds zero.

    **Privacy.** One record's integers have an L1 norm of at most M, which is compared in integers; so the sums move by
    at most M where a record is added, removed or blanked, and by 2 M where it is replaced.
    """

    def __init__(self, length: int, max_norm: float) -> None:
        self.step = 2.0 ** (math.floor(math.log2(max_norm)) - _LATTICE_BITS)
        self.largest = math.floor(max_norm / self.step)
        self._total = np.zeros(length, dtype=np.int64)

    def add_contributions(self, values: FloatArray) -> None:
        """Add a block of contributions (B, length)."""
        with np.errstate(all="ignore"):
            scaled = values / self.step
            norms = np.abs(scaled).sum(axis=1)
            scaled[~np.isfinite(norms)] = 0.0
            long = np.isfinite(norms) & (norms > self.largest)
            scaled[long] *= ((1.0 - 2.0**-20) * self.largest / norms[long])[:, None]
        integers = np.trunc(scaled).astype(np.int64)
        integers[np.abs(integers).sum(axis=1) > self.largest] = 0
        self._total += integers.sum(axis=0)

    def noisy_sum(self, key: bytes, *, epsilon: float, replace: bool) -> FloatArray:
        """Return the noisy sums, (length,), in units of the contributions."""
        sensitivity = (2 if replace else 1) * self.largest
        noisy = laplace_mechanism(self._total.tolist(), l1_sensitivity=sensitivity, epsilon=epsilon, key=key)
        return np.array([value * self.step for value in noisy])

    def scale(self, epsilon: float, *, replace: bool) -> float:
        """Return the Laplace scale of the noise, in units of the contributions."""
        return (2 if replace else 1) * self.largest * self.step / epsilon


def noisy_counts(
    labels: Iterable[tuple[npt.NDArray[np.intp], int]], n_columns: int, *, noise_multiplier: float, key: bytes
) -> tuple[list[IntArray], float]:
    """Return noisy counts of the labels of every column, which may be negative, and the noise's standard deviation.

    `labels` yields (labels, size) for each of `n_columns` columns: the labels of the records that have one, integers
    below `size`.  The counts are (size,) int64.

    **Privacy.** Reads the records; the key serves nothing else.  One record has at most one label in each column, so
    adding, removing or blanking it moves the counts by at most sqrt(n_columns) in the L2 norm, and replacing it by at
    most twice that (sqrt(2 n_columns)).  The event is ``GaussianEvent(noise_multiplier)``:
    docs/derivations/released-shares.md.
    """
    counts = [np.bincount(column, minlength=size).astype(np.int64) for column, size in labels]
    if len(counts) != n_columns:
        raise ValueError(f"labels must hold n_columns = {n_columns} columns, got {len(counts)}")
    stddev = noise_multiplier * math.sqrt(n_columns) * _ROUNDING
    noise, _ = _native.rounded_gaussian(key, 0, stddev, sum(count.size for count in counts))
    ends = np.cumsum([count.size for count in counts])[:-1]
    return [count + part for count, part in zip(counts, np.split(noise, ends), strict=True)], stddev

"""The checks of an audit: neighbouring sums, sampling, noise, and telling neighbours apart.

Each takes the probability `alpha` with which a correct mechanism may fail it.

**Privacy.** Made-up records only.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy import stats

from dpinfer._arrays import FloatArray
from dpinfer.auditing import tuning
from dpinfer.auditing.bounds import gaussian_lower_bound
from dpinfer.auditing.paths import AuditPath
from dpinfer.auditing.result import AuditCheck
from dpinfer.mechanism.noise_keys import RandomSource

NO_NOISE = 1e-12  # so little noise is none after rounding: at most 2**31 steps times 1e-12 times 16 standard deviations


def _integers(path: AuditPath, records: FloatArray, key: bytes) -> list[int]:
    """Return the sum over all records in lattice steps, exactly; a value that is off the lattice is rounded."""
    total = path.open(records, key, 1.0, 1)(0, NO_NOISE)
    return [round(Fraction(float(value)) / Fraction(path.lattice_step)) for value in total]


def check_neighbours(
    path: AuditPath, name: str, base: FloatArray, canary: FloatArray, source: RandomSource, alpha: float
) -> AuditCheck:
    """Check, in integers, that a record adds its own clipped vector to the sum and nothing else.

    Deterministic: `alpha` is not used.
    """
    key = source.take_key()
    with_canary = _integers(path, np.vstack((base, canary)), key)
    without, alone = _integers(path, base, key), _integers(path, canary[None], key)
    moved = [a - b for a, b in zip(with_canary, without, strict=True)]
    norm = math.sqrt(sum(k * k for k in moved)) * path.lattice_step / path.max_norm
    within = Fraction(sum(k * k for k in moved)) * Fraction(path.lattice_step) ** 2 <= Fraction(path.max_norm) ** 2
    alike = moved == alone
    detail = f"the sum moves by {norm:.4f} C"
    if not alike:
        detail += ", which is not the record's own vector"
    return AuditCheck("neighbours", name, within and alike, norm, 1.0, detail)


def check_sampling(
    path: AuditPath, records: FloatArray, rate: float, n_steps: int, source: RandomSource, alpha: float
) -> AuditCheck:
    """Check that records are sampled independently at the rate: inclusions, batch sizes, pairs of steps."""
    n = records.shape[0]
    masks = _who_was_sampled(path, records, rate, n_steps, source)
    if masks is None:
        return AuditCheck("sampling", path.name, False, math.inf, 1.0, "sums are not those of a set of records")
    pvalues = {"inclusions": _binomial_pvalue(int(masks.sum()), masks.size, rate)}
    pvalues |= {f"inclusions of record {i}": _binomial_pvalue(int(masks[:, i].sum()), n_steps, rate) for i in range(n)}
    # Of (|B| - N kappa)**2, whose mean is the variance of a binomial and whose own variance follows from its kurtosis.
    variance = n * rate * (1.0 - rate)
    fourth = variance * (1.0 + 3.0 * (n - 2) * rate * (1.0 - rate))
    excess = np.mean((masks.sum(axis=1) - n * rate) ** 2) - variance
    z = excess / math.sqrt((fourth - variance**2) / n_steps)
    pvalues["variance of the batch size"] = float(2.0 * stats.norm.sf(abs(z)))
    for lag in range(1, tuning.TUNING.lags + 1):
        # Disjoint pairs of steps, so that the count is exactly binomial.
        first = np.flatnonzero(np.arange(n_steps - lag) // lag % 2 == 0)
        both = int(np.sum(masks[first] & masks[first + lag]))
        pvalues[f"pairs of steps {lag} apart"] = _binomial_pvalue(both, first.size * n, rate**2)
    return _least("sampling", path.name, pvalues, alpha)


def check_draws(
    path: AuditPath, records: FloatArray, n_steps: int, source: RandomSource, alpha: float, *, permuted: bool
) -> AuditCheck:
    """Check that a step reads one record, drawn uniformly and independently, or by a fresh permutation of each pass."""
    n = records.shape[0]
    n_passes = n_steps // n
    masks = _who_was_sampled(path, records, 1.0, n_passes * n, source)
    if masks is None or np.any(masks.sum(axis=1) != 1):
        return AuditCheck("sampling", path.name, False, math.inf, 1.0, "a sum is not one record's vector")
    drawn = np.argmax(masks, axis=1)
    if permuted:
        passes = drawn.reshape(n_passes, n)
        if np.any(np.sort(passes, axis=1) != np.arange(n)):
            return AuditCheck("sampling", path.name, False, math.inf, 1.0, "a pass misses a record")
        # Which record is first, and whether it is again in the next pass.
        drawn = passes[:, 0]
    counts = np.bincount(drawn, minlength=n)
    uniform = stats.chi2(n - 1).sf(np.sum((counts - drawn.size / n) ** 2) / (drawn.size / n))
    first, second = drawn[: drawn.size // 2 * 2].reshape(-1, 2).T
    again = int(np.count_nonzero(first == second))
    pvalues = {
        "counts of the records": float(uniform),
        "the same record twice running": _binomial_pvalue(again, first.size, 1.0 / n),
    }
    return _least("sampling", path.name, pvalues, alpha)


def check_noise(
    path: AuditPath,
    name: str,
    records: FloatArray,
    noise_multiplier: float,
    n_steps: int,
    source: RandomSource,
    alpha: float,
    *,
    rate: float = 1.0,
    n_threads: int = 1,
) -> AuditCheck:
    """Check the noise: its variance by the exact chi-square interval, its law, and that it is fresh at every step."""
    key = source.take_key()
    exact = path.open(records, key, rate, 1)(0, NO_NOISE)
    release = path.open(records, key, rate, n_threads)
    draws = np.stack([release(step, noise_multiplier) for step in range(n_steps)]) - exact
    z = draws / (noise_multiplier * path.max_norm)
    square = float(np.sum(z**2))
    law = stats.chi2(z.size)
    pvalues = {
        f"a standard deviation of {math.sqrt(square / z.size):.4f} sigma C": float(
            2.0 * min(law.cdf(square), law.sf(square))
        ),
        "the mean": float(2.0 * stats.norm.sf(abs(z.sum()) / math.sqrt(z.size))),
        "the law": float(stats.kstest(z.ravel(), "norm").pvalue),
    }
    pairs = [(f"steps {lag} apart", z[:-lag], z[lag:]) for lag in (1, 2, 3)]
    if z.shape[1] > 1:
        pairs.append(("neighbouring coordinates", z[:, :-1], z[:, 1:]))
    for what, a, b in pairs:
        pvalues[what] = float(2.0 * stats.norm.sf(abs(np.sum(a * b)) / math.sqrt(a.size)))
    return _least("noise", name, pvalues, alpha)


def check_distinguishing(
    path: AuditPath,
    name: str,
    without: FloatArray,
    with_canary: FloatArray,
    claim: float,
    noise_multiplier: float,
    n_runs: int,
    source: RandomSource,
    alpha: float,
) -> AuditCheck:
    """Check that neighbouring data sets are no more distinguishable than under mu-GDP, mu = `claim`."""
    key = source.take_key()
    away, near = (path.open(records, key, 1.0, 1)(0, NO_NOISE) for records in (without, with_canary))
    direction = near - away
    length = float(np.linalg.norm(direction))
    direction = direction / length if length > 0.0 else np.eye(direction.size)[0]
    statistics = []
    for records in (without, with_canary):
        release = path.open(records, source.take_key(), 1.0, 1)
        trials = (float(release(step, noise_multiplier) @ direction) for step in range(n_runs))
        statistics.append(np.fromiter(trials, dtype=np.float64, count=n_runs) / path.max_norm)
    bound = gaussian_lower_bound(statistics[0], statistics[1], alpha)
    detail = f"mu is at least {bound:.4f}, the claim is {claim:.4f}"
    return AuditCheck("distinguishing", name, bound <= claim, bound, claim, detail)


def _least(kind: str, name: str, pvalues: dict[str, float], alpha: float) -> AuditCheck:
    """Return the check of the least of several p-values, which share `alpha`."""
    level = alpha / len(pvalues)
    worst = min(pvalues, key=lambda what: pvalues[what])
    value = -math.log10(max(pvalues[worst], 1e-300))
    detail = f"p = {pvalues[worst]:.2g} for {worst}"
    return AuditCheck(kind, name, pvalues[worst] >= level, value, -math.log10(level), detail)


def _who_was_sampled(
    path: AuditPath, records: FloatArray, rate: float, n_steps: int, source: RandomSource
) -> npt.NDArray[np.int64] | None:
    """Return who was sampled, (n_steps, n) of 0 and 1, or None if a sum is not that of a set of records."""
    key = source.take_key()
    vectors = np.stack([path.open(record[None], key, 1.0, 1)(0, NO_NOISE) for record in records])
    release = path.open(records, key, rate, 1)
    sums = np.stack([release(step, NO_NOISE) for step in range(n_steps)])
    solved = np.linalg.lstsq(vectors.T, sums.T, rcond=None)[0].T
    masks = np.rint(solved).astype(np.int64)
    exact = np.abs(solved - masks).max() <= 1e-3 and masks.min() >= 0 and masks.max() <= 1
    return masks if exact else None


def _binomial_pvalue(count: int, trials: int, rate: float) -> float:
    """Return twice the smaller tail, at most 1."""
    law = stats.binom(trials, rate)
    return float(min(1.0, 2.0 * min(law.cdf(count), law.sf(count - 1))))

"""Public arithmetic on noisy second-moment matrices: shrinkage, resolved directions, whitening, declared moments."""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import NEGLIGIBLE, TINY, FloatArray
from dpinfer.models import tuning

_ALIKE = 1e-9  # a mean and a mean square from a file agree up to rounding
_SWEEPS, _CLOSE = 40, 1e-3  # of iterative scaling; stops when every variance is met to 0.1%; tolerance
_RESOLVED = 1e-13  # some hundred units of double precision
_LEFT: ContextVar[list[str] | None] = ContextVar("left", default=None)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yield a list of the singular systems during the block."""
    left: list[str] = []
    token = _LEFT.set(left)
    try:
        yield left
    finally:
        _LEFT.reset(token)


def steady_solve(matrix: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with a symmetric positive definite matrix, (d, d), for a vector or columns.

    If rounding has made the matrix singular, the system is scaled to a unit diagonal and solved in the directions with
    eigenvalues above rounding error. A matrix that is not finite gives zeros.
    """
    with contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.solve(matrix, right)
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    left = _LEFT.get()
    if left is not None:
        left.append(f"a system of {len(matrix)} equations")
    with contextlib.suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
        unit = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(matrix)), TINY))
        values, vectors = np.linalg.eigh(unit[:, None] * (0.5 * (matrix + matrix.T)) * unit)
        kept = np.where(values > _RESOLVED * np.abs(values).max(), 1.0 / values, 0.0)
        inverse = unit[:, None] * ((vectors * kept) @ vectors.T) * unit
        found = inverse @ right
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    return np.zeros(np.shape(right))


def steady_inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of a symmetric positive definite matrix, (d, d), as :func:`steady_solve` finds it."""
    with contextlib.suppress(np.linalg.LinAlgError):
        found = np.linalg.inv(matrix)
        if np.all(np.isfinite(found)):
            return np.asarray(found, dtype=np.float64)
    return steady_solve(matrix, np.eye(len(matrix)))


@dataclass(frozen=True)
class ShrunkenMoments:
    """A noisy second-moment matrix after shrinkage toward a multiple of the identity."""

    # eigenvalues, eigenvectors: (d,) and (d, d): of the shrunken matrix, eigenvalues cut at zero
    eigenvalues: FloatArray
    eigenvectors: FloatArray
    error: float  # standard deviation of the noise after shrinkage
    floor: float  # eigenvalues below it are hidden by the noise

    @property
    def resolved(self) -> npt.NDArray[np.bool_]:
        """Which eigenvalues the noise does not hide, (d,)."""
        return self.eigenvalues > self.floor

    @property
    def matrix(self) -> FloatArray:
        """The shrunken matrix with a part of the floor added, (d, d), positive definite."""
        scaled = self.eigenvectors * (self.eigenvalues + tuning.TUNING.kept_floor * self.floor)
        return np.asarray(scaled @ self.eigenvectors.T)

    @property
    def floored(self) -> FloatArray:
        """The shrunken matrix with the floor added, (d, d)."""
        return np.asarray((self.eigenvectors * (self.eigenvalues + self.floor)) @ self.eigenvectors.T)

    @property
    def whitening(self) -> FloatArray:
        """The map to coordinates in which the matrix is near the identity, (d, d)."""
        return np.asarray((self.eigenvalues + self.floor)[:, None] ** -0.5 * self.eigenvectors.T)

    @property
    def foretold(self) -> FloatArray:
        """Lower bounds of the second moments after the whitening without weights, (d,): the diagonal.

        Zero if the noise hides a direction: the estimates of the others then mix with it.
        """
        share = self.eigenvalues / (self.eigenvalues + self.floor)
        return share if np.all(self.resolved) else np.zeros_like(share)

    @property
    def whitened_trace(self) -> float:
        """The expected trace after the whitening."""
        shares = self.eigenvalues / (self.eigenvalues + self.floor)
        return max(float(np.sum(shares)), tuning.TUNING.least_trace * shares.size)


@dataclass(frozen=True)
class Onward:
    """The map to the next coordinates, and the expected second moments there."""

    transform: FloatArray  # (d, d): the map from the present coordinates
    foretold: FloatArray  # (d, d): lower bounds of the second moments there without weights
    wanted: FloatArray | None  # (d, d): the desired second moments; None: the identity


def onward(
    moments: ShrunkenMoments,  # M; the matrix with the floor is used
    foretold: FloatArray,  # (d, d): its lower bound, up to the weights of normal features
    wanted: FloatArray | None,  # (d, d): the target of its coordinates, from an earlier round
) -> Onward:
    """Return the map to coordinates where small groups of records are most informative.

    Notes
    -----
    If weights have no effect, the map is the whitening of M. Otherwise a few records make up a direction's second
    moment, and weights of B**2 / z'z keep it at their share times B**2 for any length: more length only reduces their
    information, w |z| = B**2 / |z|. It is largest at |z| = B, at which the moment P without weights equals the present
    M. So the map takes P to M there and to `wanted` elsewhere, and a later round keeps such a direction. B keeps
    its value, so that other directions lose nothing.
    """
    values, vectors = np.linalg.eigh(foretold - moments.floored)
    lost = vectors[:, values > tuning.TUNING.lost]
    if not lost.size and wanted is None:
        return Onward(moments.whitening, np.diag(moments.foretold), None)
    identity = np.eye(len(values))
    held = lost @ lost.T
    full = moments.floored + (lost * values[values > tuning.TUNING.lost]) @ lost.T
    before = identity if wanted is None else wanted
    wanted = (identity - held) @ before @ (identity - held) + tuning.TUNING.weighted * held @ moments.floored @ held
    transform = transport(full, wanted)
    foretold = transform @ (full - moments.floor * identity) @ transform
    return Onward(transform, foretold if np.all(moments.resolved) else np.zeros_like(foretold), wanted)


def transport(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the symmetric W with W `first` W = `second`, both positive definite."""
    root = _power(second, 0.5)
    return root @ _power(root @ first @ root, -0.5) @ root


def _power(matrix: FloatArray, exponent: float) -> FloatArray:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, NEGLIGIBLE) ** exponent) @ vectors.T)


def shrink_moments(noisy: FloatArray, stddev: float, expected_trace: float) -> ShrunkenMoments:
    """Shrink a noisy second-moment matrix according to its own spread.

    `noisy` (d, d): symmetric; noise of standard deviation `stddev` in each diagonal entry and each off-diagonal one
    times sqrt(2).

    Notes
    -----
    The energy of the deviation from c I is that of the matrix plus ``stddev**2`` per free entry; with its estimate t**2
    the deviation is shrunk by t**2 / (t**2 + stddev**2), the posterior mean under a Gaussian prior of spread t.
    """
    d = noisy.shape[0]
    centre = max(float(np.trace(noisy)) / d, tuning.TUNING.least_trace * expected_trace / d)
    deviation = noisy - centre * np.eye(d)
    free = 0.5 * d * (d + 1)
    energy = max(float(np.sum(deviation**2)) / free - stddev**2, tuning.TUNING.least_energy * stddev**2)
    share = energy / (energy + stddev**2)
    error = math.sqrt(share) * stddev
    eigenvalues, eigenvectors = np.linalg.eigh(centre * np.eye(d) + share * deviation)
    floor = tuning.TUNING.floor * math.sqrt(2.0 * d) * error + tuning.TUNING.relative_floor * expected_trace / d
    return ShrunkenMoments(np.maximum(eigenvalues, 0.0), eigenvectors, error, floor)


def shrink_to_level(noisy: FloatArray, stddev: float, least_spread: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean and standard deviation of a symmetric matrix near a multiple of the identity.

    `noisy` (d, d): symmetric; noise of standard deviation `stddev` on the diagonal and 1 / sqrt(2) of it beside the
    diagonal.  `least_spread`: least standard deviation of the entries from the identity's: the uncertainty after
    earlier releases.

    Returns
    -------
    mean : (d, d) array
        Positive definite.
    stddev : (d, d) array
        Of each entry.

    Notes
    -----
    As :func:`shrink_moments`, with the spread around the mean eigenvalue learned from the matrix itself.
    """
    d = noisy.shape[0]
    level = max(float(np.trace(noisy)) / d, tuning.TUNING.least_level)
    deviation = noisy - float(np.trace(noisy)) / d * np.eye(d)
    variance = np.where(np.eye(d) > 0.0, stddev**2, 0.5 * stddev**2)
    energy = float(np.sum(deviation**2)) / d**2 - float(np.mean(variance))
    energy = max(energy, 0.5 * least_spread**2, tuning.TUNING.least_spread * level**2)
    share = energy / (energy + variance)
    eigenvalues, eigenvectors = np.linalg.eigh(level * np.eye(d) + share * deviation)
    held = np.maximum(eigenvalues, tuning.TUNING.least_level * level)
    held *= level / np.mean(held)  # the trace has the smallest relative error
    mean = (eigenvectors * held) @ eigenvectors.T
    return mean, np.sqrt(share * variance)


def indicators_of(moments: FloatArray) -> npt.NDArray[np.bool_]:
    """Return a mask of features whose declared mean square is their mean, (n,): those with values 0 and 1."""
    means, squares = moments[-1, :-1], np.diag(moments)[:-1]
    return np.asarray(np.abs(means - squares) <= _ALIKE * squares)


def moments_of_means(
    moments: FloatArray,  # (n + 1, n + 1): declared, the constant's last
    # means, stddev: (n,): noisy means of the features, and the standard deviation of their noise
    means: FloatArray,
    stddev: FloatArray,
) -> FloatArray:  # (n + 1, n + 1): positive semidefinite, singular where `moments` is but for the constant
    """Return the second moments with the given means that lie nearest to the declared moments.

    Notes
    -----
    The mean p of an indicator is that of a normal law cut at 0 and 1, and sets its variance p (1 - p); other means have
    the declared law as prior, other variances stay.  Covariances are those of :func:`with_variances`.
    """
    centre = moments[-1, :-1]
    covariance = moments[:-1, :-1] - np.outer(centre, centre)
    variance = np.maximum(np.diag(covariance), 0.0)
    present, absent = _positive(means, stddev), _positive(1.0 - means, stddev)
    share = present / (present + absent)
    gain = variance / np.maximum(variance + np.square(stddev), NEGLIGIBLE)
    indicator = indicators_of(moments)
    estimate = np.where(indicator, share, centre + gain * (means - centre))
    covariance = with_variances(covariance, np.where(indicator, share * (1.0 - share), variance))
    inner = covariance + np.outer(estimate, estimate)
    return np.block([[inner, estimate[:, None]], [estimate[None, :], np.ones((1, 1))]])


def with_variances(
    covariance: FloatArray,  # (n, n): positive semidefinite; its null space stays
    variance: FloatArray,  # (n,)
) -> FloatArray:
    """Return the matrix with these variances nearest to a covariance matrix.

    Notes
    -----
    Nearest in the Kullback-Leibler divergence of normal laws: iterative proportional scaling (Csiszar 1975), one
    variance at a time.  Only the diagonal of the precision changes: conditional independence is kept.  The
    covariance of indicators of all categories of a column becomes that of the new shares, exactly.  Variances that are
    impossible with this null space are met approximately.
    """
    result, change = np.array(covariance), np.empty_like(covariance)
    for _ in range(_SWEEPS):
        worst = 0.0
        for index in range(len(result)):
            now, wanted = float(result[index, index]), float(variance[index])
            if min(now, wanted) < NEGLIGIBLE:
                continue
            column = result[:, index].copy()
            result -= np.multiply(column[:, None], column * ((now - wanted) / now**2), out=change)
            worst = max(worst, abs(wanted / now - 1.0))
        if worst < _CLOSE:
            break
    return 0.5 * (result + result.T)


def _positive(mean: FloatArray, stddev: FloatArray) -> FloatArray:
    """Return the mean of N(mean, stddev**2) cut at zero."""
    score = mean / stddev
    log_hazard = -0.5 * np.square(score) - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(score)
    return np.asarray(np.maximum(mean + stddev * np.exp(log_hazard), 1e-6 * stddev))


def at_least(matrices: FloatArray, least: float) -> FloatArray:
    """Return symmetric matrices with eigenvalues that are raised to `least`."""
    values, vectors = np.linalg.eigh(matrices)
    return np.asarray((vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def symmetric_noise(rng: np.random.Generator, size: int, d: int, stddev: float) -> FloatArray:
    """Return symmetric noise: `stddev` on the diagonal, 1 / sqrt(2) of it beside; the second half mirrors the first."""
    noise = rng.normal(scale=0.5 * stddev, size=(size // 2, d, d))
    noise += np.swapaxes(noise, 1, 2).copy()
    return np.concatenate((noise, -noise))

"""Public arithmetic on a noisy second-moment matrix: learned shrinkage, resolved directions, the next whitening."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ShrunkenMoments", "rescaling", "shrink_moments", "shrink_to_level", "without_weights"]

FloatArray = npt.NDArray[np.float64]

_LEAST_SHARE_OF_TRACE = 0.05
_LEAST_ENERGY = 0.02
_FLOOR = 0.7
_RELATIVE_FLOOR = 5e-4
_KEPT_FLOOR = 0.3
_TRACE_FLOOR = 0.15
_TRACE_MARGIN = 0.2
_LEAST_LEVEL = 0.1
_LEAST_SPREAD = 1e-4
_LEAST_EIGENVALUE = 0.1
_LOST = 0.3  # of the foretold matrix, from where on weights and not noise are the cause


@dataclass(frozen=True)
class ShrunkenMoments:
    """A noisy second-moment matrix after shrinkage toward a multiple of the identity.

    Parameters
    ----------
    eigenvalues, eigenvectors : (d,) and (d, d) arrays
        Of the shrunken matrix, eigenvalues cut at zero.
    error : float
        Standard deviation of what the shrinkage leaves of the noise.
    floor : float
        Eigenvalues below it are not told from zero.
    """

    eigenvalues: FloatArray
    eigenvectors: FloatArray
    error: float
    floor: float

    @property
    def resolved(self) -> npt.NDArray[np.bool_]:
        """Which eigenvalues are told from zero, (d,)."""
        return self.eigenvalues > self.floor

    @property
    def matrix(self) -> FloatArray:
        """The shrunken matrix with a part of the floor added, (d, d), positive definite."""
        scaled = self.eigenvectors * (self.eigenvalues + _KEPT_FLOOR * self.floor)
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
        """What the second moments are at least after the whitening, if no weights act on them, (d,): the diagonal.

        Nothing where a direction is not told from zero: what is seen of the others then mixes with it.
        """
        share = self.eigenvalues / (self.eigenvalues + self.floor)
        return share if np.all(self.resolved) else np.zeros_like(share)

    @property
    def whitened_trace(self) -> float:
        """What the trace is expected to be after the whitening."""
        share = (self.eigenvalues + _TRACE_FLOOR * self.floor) / (self.eigenvalues + self.floor)
        return float(np.sum(share)) + _TRACE_MARGIN


def without_weights(moments: ShrunkenMoments, foretold: FloatArray) -> FloatArray | None:
    """Return the second moments without weights, (d, d), or None where weights take nothing from them.

    Parameters
    ----------
    moments : ShrunkenMoments
        M, of which the matrix with the floor is taken.
    foretold : (d, d) array
        What it should be at least, but for the weights of normal features.
    """
    values, vectors = np.linalg.eigh(foretold - moments.floored)
    lost = np.where(values > _LOST, values, 0.0)
    return moments.floored + (vectors * lost) @ vectors.T if np.any(lost) else None


def rescaling(moments: ShrunkenMoments, full: FloatArray | None) -> FloatArray:
    """Return the map to the next coordinates, (d, d).

    Parameters
    ----------
    moments : ShrunkenMoments
        M, of which the matrix with the floor is taken.
    full : (d, d) array, optional
        The matrix P that :func:`without_weights` has found.

    Notes
    -----
    Where weights take nothing, the map is the whitening of M.  Where they do, few records make a direction's second
    moment, and weights of B**2 / z'z hold it at their share times B**2 however long they are: more length only lessens
    what they say, w |z| = B**2 / |z|.  It is most at |z| = B, where P is what M is now.  The map is a root of P^-1 M
    P^-1, which does both.  B stays what it is after a whitening, so that other directions lose nothing.
    """
    if full is None:
        return moments.whitening
    inverse = np.linalg.inv(full)
    values, vectors = np.linalg.eigh(inverse @ moments.floored @ inverse)
    return np.asarray(np.sqrt(values)[:, None] * vectors.T)


def shrink_moments(noisy: FloatArray, stddev: float, expected_trace: float) -> ShrunkenMoments:
    """Shrink a noisy second-moment matrix by what its own spread says.

    Parameters
    ----------
    noisy : (d, d) array
        Symmetric; noise of standard deviation `stddev` in each diagonal entry and each off-diagonal one times sqrt(2).
    stddev : float
    expected_trace : float

    Notes
    -----
    The energy of the deviation from c I is that of the matrix plus ``stddev**2`` per free entry; with its estimate t**2
    the deviation is shrunk by t**2 / (t**2 + stddev**2), the posterior mean under a Gaussian prior of spread t.
    """
    d = noisy.shape[0]
    centre = max(float(np.trace(noisy)) / d, _LEAST_SHARE_OF_TRACE * expected_trace / d)
    deviation = noisy - centre * np.eye(d)
    free = 0.5 * d * (d + 1)
    energy = max(float(np.sum(deviation**2)) / free - stddev**2, _LEAST_ENERGY * stddev**2)
    share = energy / (energy + stddev**2)
    error = math.sqrt(share) * stddev
    eigenvalues, eigenvectors = np.linalg.eigh(centre * np.eye(d) + share * deviation)
    floor = _FLOOR * math.sqrt(2.0 * d) * error + _RELATIVE_FLOOR * expected_trace / d
    return ShrunkenMoments(np.maximum(eigenvalues, 0.0), eigenvectors, error, floor)


def shrink_to_level(noisy: FloatArray, stddev: float, least_spread: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mean and standard deviation of a symmetric matrix near a multiple of the identity.

    Parameters
    ----------
    noisy : (d, d) array
        Symmetric; noise of standard deviation `stddev` on the diagonal and 1 / sqrt(2) of it beside the diagonal.
    stddev : float
    least_spread : float
        By how much, at least, the entries differ from the identity's: what earlier releases left open.

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
    level = max(float(np.trace(noisy)) / d, _LEAST_LEVEL)
    deviation = noisy - float(np.trace(noisy)) / d * np.eye(d)
    variance = np.where(np.eye(d) > 0.0, stddev**2, 0.5 * stddev**2)
    energy = float(np.sum(deviation**2)) / d**2 - float(np.mean(variance))
    energy = max(energy, 0.5 * least_spread**2, _LEAST_SPREAD * level**2)
    share = energy / (energy + variance)
    eigenvalues, eigenvectors = np.linalg.eigh(level * np.eye(d) + share * deviation)
    held = np.maximum(eigenvalues, _LEAST_EIGENVALUE * level)
    held *= level / np.mean(held)  # the trace is what is known best
    mean = (eigenvectors * held) @ eigenvectors.T
    return mean, np.sqrt(share * variance)

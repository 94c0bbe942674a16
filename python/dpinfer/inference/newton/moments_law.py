"""The second moments that a noisy release leaves open: near a multiple of the identity, but for a few flat directions.

M = C G C', C = I - V diag(1 - sqrt(gamma)) V'.  G is c I plus a symmetric normal matrix of learned spread t, V is an
orthonormal frame of a few flattened directions, uniform, and gamma in (0, 1) is by how much each is flattened.  Given
V, gamma, c and t the entries of M are independent normal in a basis that begins with V, and so are they given the
release: G is integrated out and drawn in closed form.  Where nothing is hidden there is no frame, and draws of M are
independent but for c and t.  Chains, many side by side, move V, gamma, c and t (cpp/inference/moments_chains.cpp).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer.inference import _native

__all__ = ["MeanScores", "MomentsLaw"]

FloatArray = npt.NDArray[np.float64]

# Levels of the flattening: gamma = (least + (1 - least) level**3)**2, level = logistic(t), t logistic around a normal
# location.
_FLATTEST, _POWER = 0.003, 3.0
_LOGITS = np.linspace(-7.0, 9.0, 25)
_LOCATION, _LOCATION_STDDEV = 3.5, 2.0
# In units of the release's mean eigenvalue, or of its noise: t, flat, on a grid that is even in its log; ends of c.
_SPREADS = np.exp(np.linspace(math.log(0.003), math.log(1.2), 45))
_MOST = 2  # flattened directions
_CENTRES = (0.05, 5.0)
_FIRST_LEVEL = 0.01
_WIDE, _FLOORS = 4.0, (1e-3, 3e-2)


@dataclass(frozen=True)
class MeanScores:
    """What scores over their slopes say: score + M position is normal around zero given the weights' prior.

    Parameters
    ----------
    score, position : (d,) arrays
        Mean of the measured scores, and of the points where they were taken.
    noise, sampling : float
        Variance of the mean score: of the privacy noise, and of sampling in units of M.
    prior_factor : (d, d) array
        F with F F' the prior covariance of the weights.
    precision, away_score, away_position : (T,) and (T, d) arrays
        Of each score, and each of them less the mean.
    """

    score: FloatArray
    position: FloatArray
    noise: float
    sampling: float
    prior_factor: FloatArray
    precision: FloatArray
    away_score: FloatArray
    away_position: FloatArray

    @property
    def prior_covariance(self) -> FloatArray:
        """Of the weights, (d, d)."""
        return self.prior_factor @ self.prior_factor.T

    def rotated(self, basis: FloatArray) -> dict[str, FloatArray | float]:
        """Return the same in the coordinates of an orthogonal basis, as the chains take it."""
        factor = np.ascontiguousarray(basis.T @ self.prior_factor)
        return {
            "score": self.score @ basis,
            "position": self.position @ basis,
            "noise": self.noise,
            "sampling": self.sampling,
            "prior": factor @ factor.T,
            "prior_factor": factor,
            "precision": self.precision,
            "away_score": np.ascontiguousarray(self.away_score @ basis),
            "away_position": np.ascontiguousarray(self.away_position @ basis),
        }


class MomentsLaw:
    """The law of M given a noisy release, in the coordinates of the release's eigenvectors.

    Parameters
    ----------
    noisy : (d, d) array
        M with noise of standard deviation `stddev` in each diagonal entry, 1 / sqrt(2) of it beside the diagonal.
    stddev : float
    n_hidden : int
        Directions that the noise may hide: 0 where all are told from zero.
    """

    def __init__(self, noisy: FloatArray, stddev: float, *, n_hidden: int) -> None:
        d = len(noisy)
        self.eigenvalues, self.basis = np.linalg.eigh(noisy)
        self.n_flattened = min(n_hidden, _MOST, d - 1)
        self._noise = stddev**2
        self.levels, self.log_prior = _levels()
        self._unit = max(float(np.mean(self.eigenvalues)), stddev / math.sqrt(d))
        self.spreads, self.centres = self._unit * _SPREADS, (self._unit * _CENTRES[0], self._unit * _CENTRES[1])
        # A flat direction lies near eigenvectors of small eigenvalues: sd noise / (sqrt(2) eigenvalue) toward others.
        pocket = np.minimum(1.0, 0.5 * np.square(stddev / np.maximum(self.eigenvalues, stddev)))
        pocket[self.eigenvalues < stddev] = 1.0
        self._pocket = pocket

    def _covariances(self, scores: MeanScores) -> list[FloatArray]:
        """Return those of directions that are proposed: near small eigenvalues, or where the weights' prior is wide."""
        d = len(self.eigenvalues)
        prior = self.basis.T @ scores.prior_covariance @ self.basis
        prior /= np.trace(prior)
        near = [np.diag(np.minimum(1.0, wide * self._pocket)) for wide in (1.0, _WIDE)]
        return [np.eye(d), *near, *(prior + floor / d * np.eye(d) for floor in _FLOORS)]

    def chains(self, scores: MeanScores, size: int, rng: np.random.Generator) -> _native.MomentsChains:
        """Return chains of M given release and scores: frames near small eigenvalues, every second one flat."""
        d, m = len(self.eigenvalues), self.n_flattened
        drawn = rng.standard_normal((size, d, m)) * np.sqrt(self._pocket)[:, None]
        flat = int(np.searchsorted(self.levels, _FIRST_LEVEL))
        level = np.where(np.arange(size) % 2, len(self.levels) - 1, flat)
        law: dict[str, FloatArray | float] = {
            "eigenvalues": self.eigenvalues,
            "levels": self.levels,
            "log_prior": self.log_prior,
            "spreads": self.spreads,
            "proposals": np.stack([_proposal(found) for found in self._covariances(scores)]),
            "noise": self._noise,
            "unit": self._unit,
            "low": self.centres[0],
            "high": self.centres[1],
        }
        return _native.MomentsChains(
            law,
            scores.rotated(self.basis),
            np.ascontiguousarray(np.swapaxes(np.linalg.qr(drawn)[0], 1, 2)),
            np.repeat(level[:, None], m, axis=1),
            rng.integers(0, len(self.spreads), size),
            int(rng.integers(0, 2**63)),
        )


def _proposal(covariance: FloatArray) -> FloatArray:
    """Return a factor of a covariance, the covariance and its inverse, (3, d, d)."""
    return np.stack((np.linalg.cholesky(covariance), covariance, np.linalg.inv(covariance)))


def _levels() -> tuple[FloatArray, FloatArray]:
    """Return gamma at the nodes of its grid, and the log of its prior there."""
    reach = np.linspace(-4.0, 4.0, 81)
    away = _LOGITS[:, None] - _LOCATION - _LOCATION_STDDEV * reach
    prior = (special.expit(away) * special.expit(-away)) @ np.exp(-0.5 * np.square(reach))
    level = _FLATTEST + (1.0 - _FLATTEST) * special.expit(_LOGITS) ** _POWER
    return np.square(level), np.log(prior / prior.sum())

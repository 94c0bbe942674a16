"""The public arithmetic of (DP-)SEP: the approximate posterior, its cavity, and the update by a sum of sites.

**Privacy.** Reads no records: everything here is a function of released sums and public numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.release.sites.trace import svec


@dataclass(frozen=True, eq=False)
class SitePrior:
    """Independent N(loc, scale**2 I) priors on J blocks."""

    loc: FloatArray  # (J, d) float64
    scale: float

    @property
    def precision(self) -> float:
        """1 / scale**2."""
        return 1.0 / self.scale**2


@dataclass(frozen=True, eq=False)
class Cavity:
    """The approximate posterior with one shared site taken out, and that site."""

    loc: FloatArray  # (J, d) float64
    cov: FloatArray  # (J, d, d) float64
    neutral: FloatArray  # (k,) float64: the shared site relative to the centre, in the coordinates of a contribution
    # (J, d) float64: origin of the linear terms: the mean of q for centred sites, 0 for natural ones
    centre: FloatArray


def floored(precision: FloatArray, floor: float, *, isotropic: bool) -> FloatArray:
    """Return symmetric (J, d, d) with eigenvalues of at least `floor`, as multiples of the identity if `isotropic`."""
    d = precision.shape[-1]
    if isotropic:
        value = np.maximum(np.trace(precision, axis1=1, axis2=2) / d, floor)
        return np.asarray(value[:, None, None] * np.eye(d))
    try:
        np.linalg.cholesky(precision - floor * np.eye(d))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(precision)
        return np.asarray((vectors * np.maximum(values, floor)[:, None, :]) @ np.swapaxes(vectors, 1, 2))
    return precision


class SiteIterate:
    """q(theta) = prod_j N(loc_j, precision_j**-1), moved by estimates of the sum of all records' sites."""

    def __init__(
        self,
        prior: SitePrior,
        loc: FloatArray,  # (J, d) float64
        precision: FloatArray,  # (J, d, d) float64
        *,
        n_records: int,
        centred: bool,  # sums are of centred sites, and q moves in (loc, precision); otherwise in natural parameters
        isotropic: bool,
        block_weight: float,  # weight of the precisions in a contribution
        trust_radius: float,  # largest move of a block's mean in one step (centred sites); infinity for none
    ) -> None:
        self._prior, self._n_records = prior, n_records
        self._centred, self._isotropic = centred, isotropic
        self._weight, self._radius = block_weight, trust_radius
        self.loc = loc.copy()
        self.precision = precision.copy()
        self._base = prior.precision * np.eye(loc.shape[1])
        self._eta = (precision @ loc[..., None])[..., 0]

    @property
    def state(self) -> dict[str, FloatArray]:
        """The start of later moves: mean and precision, and the linear parameters of natural sites."""
        return {"next_loc": self.loc, "next_precision": self.precision, "next_eta": self._eta}

    @state.setter
    def state(self, values: Mapping[str, FloatArray]) -> None:
        self.loc, self.precision, self._eta = (values[name] for name in ("next_loc", "next_precision", "next_eta"))

    def used(self, floor: float) -> FloatArray:
        """Return the precision that is used, (J, d, d): the raw one, projected and floored."""
        return floored(self.precision, floor, isotropic=self._isotropic)

    def cavity(self, used: FloatArray) -> Cavity:
        """Return the cavity for the precision that is used: natural parameters x - (x - x0) / N.

        With eigenvalues of `used` at least the floor, the cavity's are at least (1 - 1 / N) times the floor.
        """
        share = 1.0 / self._n_records
        prior = self._prior.precision
        site = (used - self._base) * share
        eta = (used @ self.loc[..., None])[..., 0]
        site_eta = (eta - prior * self._prior.loc) * share
        cov = np.asarray(np.linalg.inv(used - site), dtype=np.float64)
        cov = np.asarray(0.5 * (cov + np.swapaxes(cov, 1, 2)), dtype=np.float64)
        loc = np.asarray((cov @ (eta - site_eta)[..., None])[..., 0], dtype=np.float64)
        centre = self.loc if self._centred else np.zeros_like(self.loc)
        linear = site_eta - (site @ centre[..., None])[..., 0]
        neutral = np.concatenate((linear.ravel(), self._weight * svec(site).ravel()))
        return Cavity(loc, cov, neutral, np.ascontiguousarray(centre))

    def move(self, linear: FloatArray, precision: FloatArray, rate: float, floor: float) -> FloatArray:
        """Move by an estimate of the sum of all sites: x <- (1 - rate) x + rate (x0 + sum) in natural parameters.

        Returns the precision that is used from here on.

        Centred sites move the mean by rate Lambda**-1 (linear + Lambda0 (m0 - m)), with the new precision in use: the
        same fixed points, but noise in the precision does not enter the mean.
        """
        prior = self._prior.precision
        self.precision = (1.0 - rate) * self.precision + rate * (self._base + precision)
        used = self.used(floor)
        if not self._centred:
            self._eta = (1.0 - rate) * self._eta + rate * (prior * self._prior.loc + linear)
            self.loc = np.asarray(np.linalg.solve(used, self._eta[..., None])[..., 0], dtype=np.float64)
            return used
        gradient = linear + prior * (self._prior.loc - self.loc)
        step = rate * np.linalg.solve(used, gradient[..., None])[..., 0]
        length = np.linalg.norm(step, axis=1, keepdims=True)
        self.loc = np.asarray(self.loc + step * np.minimum(1.0, self._radius / np.maximum(length, 1e-300)))
        return used

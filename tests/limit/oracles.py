"""What the ordinary fit says of a table, with no code of the library: maximum likelihood with HC errors, and the prior.

The matrix is formulaic's, the estimate that of statsmodels.  The sandwich is written out here, as weights, clusters and
strata enter it in one way; ``test_oracles.py`` compares it with statsmodels.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from formulaic import model_matrix
from scipy import special

FLAT = 1e-9  # singular value of the columns over the largest: a direction that the records do not have
EXACT = 1e-4  # of the model's variance, added where the robust one may be zero
ALONE = 1e-2  # least of one less a leverage
DRAWS = 40_000


@dataclass(frozen=True)
class Fit:
    """An ordinary fit.

    Computed in orthogonal columns `basis`, so that units and distances from zero do no harm: coefficients of the
    columns, times their sizes, are ``back @ inner``.

    Parameters
    ----------
    names : list of str
    matrix, basis : (N, d) and (N, k) arrays
        Columns in the units of the table, and orthogonal ones of the same space; k < d if columns are collinear.
    size, forth : (d,) and (k, d) arrays
        ``matrix / size == basis @ forth``.
    inner : (k,) array
        Estimates for the orthogonal columns.
    information, scores, longer : (k, k) arrays
        Bread: minus the second derivative of the log-likelihood; and meat: the sum of products of scores, as they are
        (HC0), and divided by one less their record's leverage (HC3), which few records need.
    offset, weights : (N,) arrays
    """

    names: list[str]
    matrix: np.ndarray
    basis: np.ndarray
    size: np.ndarray
    forth: np.ndarray
    inner: np.ndarray
    information: np.ndarray
    scores: np.ndarray
    longer: np.ndarray
    offset: np.ndarray
    weights: np.ndarray

    @property
    def estimate(self):
        """Coefficients, (d,): the shortest of those that fit, in the columns' sizes."""
        return np.linalg.pinv(self.forth) @ self.inner / self.size

    def covariance(self, *, robust=True):
        """Return the covariance of the coefficients, (d, d), along what is determined."""
        back = np.linalg.pinv(self.forth) / self.size[:, None]
        return back @ self._inner_covariance(self.scores if robust else self.information) @ back.T

    def _inner_covariance(self, meat):
        bread = np.linalg.inv(self.information)
        # A record that is alone in its cell has a score of zero: a variance of zero has no inverse.
        return bread @ (meat + EXACT * self.information) @ bread

    def with_prior(self, mean, precision, *, meat=None):
        """Return mean and covariance of the estimate's normal law times a normal prior, (d,) and (d, d)."""
        prior = precision / self.size[:, None] / self.size
        said = self.forth.T @ np.linalg.inv(self._inner_covariance(self.scores if meat is None else meat))
        covariance = np.linalg.inv(said @ self.forth + prior)
        centre = covariance @ (said @ self.inner + prior @ (mean * self.size))
        return centre / self.size, covariance / self.size[:, None] / self.size


def matrix_of(formula, data):
    """Return names and columns of the right-hand side, and its offset; the intercept is called as in the library."""
    terms = [term.strip() for term in formula.partition("~")[2].split(" + ")]
    frame = pd.DataFrame(data)
    columns = model_matrix(" + ".join(term for term in terms if not term.startswith("offset(")), frame)
    names = ["intercept" if name == "Intercept" else name for name in columns.columns]
    added = np.zeros(len(columns))
    for term in terms:
        if term.startswith("offset("):
            added = added + np.asarray(model_matrix(f"0 + I({term[7:-1]})", frame), dtype=float)[:, 0]
    return names, np.asarray(columns, dtype=float), added


def ordinary(formula, data, response, family, *, weights=None, clusters=None, strata=None):
    """Return the ordinary fit of responses in numbers, (N,)."""
    names, matrix, offset = matrix_of(formula, data)
    size = np.sqrt(np.mean(matrix**2, axis=0))
    size[size == 0.0] = 1.0
    w = np.ones(len(matrix)) if weights is None else np.asarray(weights, dtype=float)
    left, values, right = np.linalg.svd(matrix / size, full_matrices=False)
    kept = values > FLAT * values[0]
    basis, forth = left[:, kept] * np.sqrt(len(matrix)), (values[:, None] * right)[kept] / np.sqrt(len(matrix))
    unit = float(np.std(response - offset)) if family == "gaussian" else 1.0
    y, added = response / unit, offset / unit
    if family == "gaussian":
        root = np.sqrt(w)
        inner = np.linalg.lstsq(root[:, None] * basis, root * (y - added), rcond=1e-10)[0]
    else:
        kind = {
            "binomial": sm.families.Binomial(),
            "probit": sm.families.Binomial(sm.families.links.Probit()),
            "poisson": sm.families.Poisson(),
        }[family]
        model = sm.GLM(response, basis, family=kind, offset=offset, freq_weights=w)
        inner = np.asarray(model.fit(maxiter=200, tol=1e-12).params)
    slope, curvature = derivatives(family, basis @ inner + added, y)
    level = float(np.sum(w * slope**2) / np.sum(w)) if family == "gaussian" else 1.0
    alone = (w * slope)[:, None] * basis / level
    information = (basis * (w * curvature / level)[:, None]).T @ basis
    leverage = np.einsum("ni,ni->n", basis @ np.linalg.pinv(information), basis) * w * curvature / level
    scores = summed(alone, clusters, strata)
    longer = summed(alone / np.maximum(1.0 - leverage, ALONE)[:, None], clusters, strata)
    parts = (part / unit**2 for part in (information, scores.T @ scores, longer.T @ longer))
    return Fit(names, matrix, basis, size, forth, inner * unit, *parts, offset, w)


def derivatives(family, eta, y):
    """Return the derivative of the log-likelihood in the predictor, and minus the second one, (N,) each."""
    if family == "gaussian":
        return y - eta, np.ones_like(eta)
    if family == "binomial":
        rate = special.expit(eta)
        return y - rate, rate * (1.0 - rate)
    if family == "poisson":
        return y - np.exp(eta), np.exp(eta)
    sign = np.where(y > 0.0, 1.0, -1.0)
    ratio = np.exp(-0.5 * eta**2 - 0.5 * np.log(2.0 * np.pi) - special.log_ndtr(sign * eta))
    # The expected curvature, which the library and statsmodels take for HC errors.
    expected = np.exp(-(eta**2) - np.log(2.0 * np.pi) - special.log_ndtr(eta) - special.log_ndtr(-eta))
    return sign * ratio, expected


def log_likelihood(family, eta, y):
    """Return the log-likelihood of each record, any shape; without constants, and of variance 1 where it has one."""
    if family == "gaussian":
        return -0.5 * np.square(y - eta)
    if family == "binomial":
        return y * eta - np.logaddexp(0.0, eta)
    if family == "poisson":
        return y * eta - np.exp(np.minimum(eta, 50.0))
    return special.log_ndtr(np.where(y > 0.0, eta, -eta))


def summed(scores, clusters, strata):
    """Return scores by cluster, less the mean of their stratum."""
    own = None
    if clusters is not None:
        _, place, index = np.unique(clusters, return_index=True, return_inverse=True)
        scores = np.stack([np.bincount(index, column) for column in scores.T], axis=1)
        strata = None if strata is None else np.asarray(strata)[place]
    if strata is not None:
        _, own = np.unique(strata, return_inverse=True)
        means = np.stack([np.bincount(own, column) / np.bincount(own) for column in scores.T], axis=1)
        scores = scores - means[own]
    return scores


def exact(fit, family, response, mean, precision, *, seed=0):
    """Return draws of the posterior of likelihood and normal prior, (S, d), and how many independent ones it is worth.

    Importance sampling from Student's t about the mode: for a likelihood that is flat on one side, wide enough.
    """
    mean, precision = mean * fit.size, precision / fit.size[:, None] / fit.size
    # Records that are alike are one, with a weight.
    both = np.column_stack((fit.matrix / fit.size, response, fit.offset))
    rows, inverse = np.unique(both, axis=0, return_inverse=True)
    weight = np.bincount(inverse.ravel(), fit.weights)
    z, y, added = np.ascontiguousarray(rows[:, :-2]), rows[:, -2], rows[:, -1]

    def target(points):
        away = points - mean
        told = log_likelihood(family, points @ z.T + added, y) @ weight
        return told - 0.5 * np.einsum("si,ij,sj->s", away, precision, away)

    place = mean.copy()
    for _ in range(200):
        slope, curvature = derivatives(family, z @ place + added, y)
        hessian = (z * (weight * curvature)[:, None]).T @ z + precision
        step = np.linalg.solve(hessian, z.T @ (weight * slope) - precision @ (place - mean))
        before, length = target(place[None])[0], 1.0
        while not target((place + length * step)[None])[0] >= before and length > 1e-8:
            length *= 0.5
        place = place + length * step
        if float(step @ hessian @ step) < 1e-16:
            break
    rng, freedom, d = np.random.default_rng(seed), 4.0, len(mean)
    root, centre, factor = np.linalg.cholesky(np.linalg.inv(hessian)), place, 1.2
    for size in (DRAWS // 4, DRAWS // 4, DRAWS):
        normal = rng.standard_normal((size, d)) / np.sqrt(rng.chisquare(freedom, size) / freedom)[:, None]
        points = centre + factor * normal @ root.T
        logs = np.concatenate([target(part) for part in np.array_split(points, max(1, size * len(y) // 2**23))])
        logs += 0.5 * (freedom + d) * np.log1p(np.sum(normal**2, axis=1) / freedom)
        share = np.exp(logs - logs.max())
        share /= share.sum()
        worth = 1.0 / float(np.sum(share**2))
        if size < DRAWS and worth > 10.0 * d:
            centre = share @ points
            spread = (points - centre).T @ (share[:, None] * (points - centre))
            root = np.linalg.cholesky(0.5 * (spread + spread.T))
    return points[rng.choice(size, size, p=share)] / fit.size, worth

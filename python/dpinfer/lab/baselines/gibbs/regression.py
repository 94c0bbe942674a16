"""Noise-aware Bayesian linear regression (Bernstein and Sheldon 2019): the Gibbs-SS-Noisy sampler."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray, IntArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.lab.baselines.gibbs.laplace_mixture import draw_noise_variance, draw_prior_noise_variance
from dpinfer.lab.baselines.gibbs.regression_indices import moment_indices, statistic_indices
from dpinfer.release.statistic import StatisticRelease

__all__ = [
    "Chains",
    "RegressionPrior",
    "gaussian_moments",
    "gibbs_ss_noisy",
    "gibbs_ss_noisy_posterior",
    "moments_from_release",
]

_RUNS_PER_CHUNK = 25  # runs side by side: memory and speed only
_SMALLEST = 1e-10  # least eigenvalue of a covariance made positive definite


@dataclass(frozen=True)
class RegressionPrior:
    """sigma2 ~ InvGamma(shape, rate); each weight, the bias included, given it ~ N(0, sigma2 / precision).

    **Privacy.** Public; holds no records.

    Parameters
    ----------
    precision, shape, rate : float
        Positive.  The defaults are those of the published study: weights ~ N(0, 4 sigma2).
    """

    precision: float = 0.25
    shape: float = 20.0
    rate: float = 0.5

    def __post_init__(self) -> None:
        for name in ("precision", "shape", "rate"):
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))


def gaussian_moments(second_moment: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return public moments of features x ~ N(0, second_moment), with the bias appended, for :func:`gibbs_ss_noisy`.

    **Privacy.** Reads no records.

    Parameters
    ----------
    second_moment : (d, d) float64
        Public covariance matrix.

    Returns
    -------
    second : (d + 1, d + 1) float64
        E[x x'] with the bias last.
    covariance : (s, s) float64
        Covariance of the unique entries of x x', without the last, in the order of ``statistic_indices``.

    Examples
    --------
    >>> second, covariance = gaussian_moments([[1.0]])
    >>> covariance
    array([[2., 0.],
           [0., 1.]])
    """
    inner = check_float_array("second_moment", second_moment, (None, None))
    d = inner.shape[0]
    sigma = np.zeros((d + 1, d + 1))
    sigma[:d, :d] = inner
    mean = np.zeros(d + 1)
    mean[d] = 1.0
    i, j = _pairs(d)

    # Isserlis: Cov(x_i x_j, x_k x_l) for a Gaussian with this mean, the constant having no variance.
    def outer(a: IntArray, b: IntArray, matrix: FloatArray) -> FloatArray:
        return np.asarray(matrix[np.ix_(a, b)])

    covariance = outer(i, i, sigma) * outer(j, j, sigma) + outer(i, j, sigma) * outer(j, i, sigma)
    for a, b in ((i, j), (j, i)):
        for c, e in ((i, j), (j, i)):
            covariance = covariance + np.outer(mean[a], mean[c]) * outer(b, e, sigma)
    return sigma + np.outer(mean, mean), covariance


def gibbs_ss_noisy(
    noisy_statistics: npt.ArrayLike,
    *,
    laplace_scale: npt.ArrayLike,
    n_features: int,
    n_records: int,
    prior: RegressionPrior | None = None,
    feature_moments: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    n_burn_in: int = 2000,
    n_samples: int = 5000,
    seed: int = 0,
    n_threads: int | None = None,
) -> FloatArray:
    """Draw from the noise-aware posteriors of K independent linear regressions by Gibbs sampling, one chain each.

    **Privacy.** Post-processing of released statistics; reads no records.

    Parameters
    ----------
    noisy_statistics : (K, s) or (s,) float64
        Released statistics, in the order of ``release_regression_statistics``: S, then (unless `feature_moments` is
        given) the third and fourth moments.
    laplace_scale : (s,) float64
        Scale of the noise in each.
    n_features : int
        d, without the bias.
    n_records : int
        The *public* number of records N.
    prior : RegressionPrior, optional
    feature_moments : pair, optional
        *Public* E[x x'] and covariance of the entries of x x', as :func:`gaussian_moments` returns them, in place of
        the noisy ones.
    n_burn_in, n_samples : int
        Dropped and kept iterations.
    seed : int
    n_threads : int, optional
        1 by default.  The draws do not depend on it.

    Returns
    -------
    (n_samples, K, d + 2) float64
        Weights, bias, noise variance; without the axis K for a one-dimensional input.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Bernstein and Sheldon (2019), Algorithm 1 with the Gibbs-SS-Noisy update.  With C the covariance of x x' per record,
    S given (theta, sigma2) has mean N (E[xx], E[xx] theta, sigma2 + theta' E[xx] theta) and covariance
    ``N (J C J' + R)``: J maps x x' to (x x', x x' theta, theta' x x' theta), and R is the covariance of
    (0, x e, 2 e theta' x + e**2).  This is the published block covariance, written so that it is positive semidefinite
    whenever C and E[xx] are; both are projected once per run.  Each iteration draws S from its product with the noise
    (an unconditional draw, corrected by the residual), projects [[X'X, X'y], [y'X, y'y]] to the positive semidefinite
    cone, draws (sigma2, theta) from their conjugate posterior, and then the noise variances.
    Deviation: the last entry of X'X is the known N rather than a noisy one.

    The noisy E[xx] and C are plugged in as if they were exact: the posterior does not count *their* noise, which is
    why the method is calibrated only where that noise is small.
    """
    d = check_integer("n_features", n_features, 1)
    n_records = check_integer("n_records", n_records, 1)
    prior = RegressionPrior() if prior is None else prior
    if not isinstance(prior, RegressionPrior):
        raise TypeError(f"prior must be a RegressionPrior, got {type(prior).__name__}")
    noisy = check_float_array("noisy_statistics", noisy_statistics)
    single = noisy.ndim == 1
    n_statistics = len(statistic_indices(d))
    width = n_statistics + (len(moment_indices(d)) if feature_moments is None else 0)
    noisy = noisy[None] if single else noisy
    if noisy.ndim != 2 or noisy.shape[1] < width or noisy.shape[0] < 1:
        raise ValueError(f"noisy_statistics must have shape (any, {width}), got {noisy.shape}")
    scale = check_float_array("laplace_scale", laplace_scale, (noisy.shape[1],))
    if not np.all(scale > 0.0):
        raise ValueError("laplace_scale must be positive")
    n_burn_in, n_samples = check_integer("n_burn_in", n_burn_in, 0), check_integer("n_samples", n_samples, 1)
    seed = check_integer("seed", seed, 0)
    threads = 1 if n_threads is None else check_integer("n_threads", n_threads, 1)
    second: FloatArray | None = None
    if feature_moments is not None:
        second = check_float_array("feature_moments[0]", feature_moments[0], (d + 1, d + 1))
        pairs = len(_pairs(d)[0])
        covariance = check_float_array("feature_moments[1]", feature_moments[1], (pairs, pairs))
    n_runs = noisy.shape[0]
    draws = np.empty((n_samples, n_runs, d + 2))

    def run_chunk(start: int) -> None:
        # A fixed number of runs per chunk and a generator per chunk: nothing depends on the number of threads.
        rows = slice(start, start + _RUNS_PER_CHUNK)
        block = noisy[rows]
        if second is None:
            moments = moments_from_release(block, d, n_records)
        else:
            moments = (np.broadcast_to(second, (block.shape[0], d + 1, d + 1)), covariance[None])
        chain = Chains(block[:, :n_statistics], scale[:n_statistics], *moments, d=d, n_records=n_records, prior=prior)
        chain.run(np.random.default_rng([seed, start]), n_burn_in, draws[:, rows])

    starts: Iterable[int] = range(0, n_runs, _RUNS_PER_CHUNK)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for _ in pool.map(run_chunk, starts):
            pass
    return draws[:, 0] if single else draws


def gibbs_ss_noisy_posterior(
    release: StatisticRelease,
    *,
    prior: RegressionPrior | None = None,
    feature_moments: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    n_burn_in: int = 2000,
    n_samples: int = 5000,
    seed: int = 0,
) -> FloatArray:
    """Draw from the noise-aware posterior of one release.

    **Privacy.** Post-processing of a release: it costs nothing, however often it is called.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`dpinfer.lab.baselines.release_regression_statistics`.
    prior, feature_moments, n_burn_in, n_samples, seed
        As in :func:`gibbs_ss_noisy`; a release without moments needs `feature_moments`.

    Returns
    -------
    (n_samples, d + 2) float64
        Weights, bias, noise variance.

    Raises
    ------
    TypeError, ValueError
        If `release` is not one of these, or an argument is wrong.
    """
    if not isinstance(release, StatisticRelease):
        raise TypeError(f"release must be a StatisticRelease, got {type(release).__name__}")
    if release.method != "gibbs_ss_noisy":
        raise ValueError(f"release must come from release_regression_statistics, got method {release.method!r}")
    if release.settings["moment_share"] == 0.0 and feature_moments is None:
        raise ValueError("feature_moments must be given: the release holds no third and fourth moments")
    return gibbs_ss_noisy(
        release.noisy_statistics,
        laplace_scale=release.laplace_scale,
        n_features=release.settings["n_features"],
        n_records=release.n_records,
        prior=prior,
        feature_moments=feature_moments,
        n_burn_in=n_burn_in,
        n_samples=n_samples,
        seed=seed,
    )


class Chains:
    """The state of several runs' samplers, advanced together."""

    def __init__(
        self,
        noisy: FloatArray,
        scale: FloatArray,
        second: FloatArray,
        covariance: FloatArray,
        *,
        d: int,
        n_records: int,
        prior: RegressionPrior,
    ) -> None:
        self.noisy, self.scale, self.prior = noisy, scale, prior
        self.n, self.p, self.K = float(n_records), d + 1, noisy.shape[0]
        self.i, self.j = _pairs(d)
        self.m = self.i.size
        self.second, self.second_root = _project(second)
        covariance, root = _project(covariance)
        shape = (self.K, self.m, self.m)
        self.covariance, self.root = np.broadcast_to(covariance, shape), np.broadcast_to(root, shape)

    def run(self, rng: np.random.Generator, n_burn_in: int, out: FloatArray) -> None:
        """Fill `out` (n_samples, K, p + 1) with the draws after the burn-in."""
        for iteration, (_, theta, sigma2) in zip(range(n_burn_in + out.shape[0]), self.states(rng), strict=False):
            if iteration >= n_burn_in:
                out[iteration - n_burn_in, :, :-1] = theta
                out[iteration - n_burn_in, :, -1] = sigma2

    def states(self, rng: np.random.Generator) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Yield the moment matrix, the weights and the noise variance of each iteration, without end."""
        prior = self.prior
        sigma2: FloatArray = prior.rate / rng.standard_gamma(np.full(self.K, prior.shape))
        theta = np.sqrt(sigma2 / prior.precision)[:, None] * rng.standard_normal((self.K, self.p))
        variance = draw_prior_noise_variance(self.scale, self.noisy.shape, rng)
        while True:
            statistic = self._draw_statistic(theta, sigma2, variance, rng)
            matrix = self._matrix(statistic)
            theta, sigma2 = self.draw_parameters(matrix, rng)
            variance = draw_noise_variance(self.noisy - statistic, self.scale, rng)
            yield matrix, theta, sigma2

    def _draw_statistic(
        self, theta: FloatArray, sigma2: FloatArray, variance: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Draw S (K, s) from N(mean, covariance) N(z, variance)."""
        K, p, m, n = self.K, self.p, self.m, self.n
        rows = np.arange(m)
        maps = np.zeros((K, p + 1, m))  # x x' to (x x' theta, theta' x x' theta)
        maps[:, self.i, rows] = theta[:, self.j]
        maps[:, self.j, rows] = theta[:, self.i]
        maps[:, p] = np.where(self.i == self.j, 1.0, 2.0) * theta[:, self.i] * theta[:, self.j]
        Et = np.einsum("kij,kj->ki", self.second, theta)
        tEt = np.einsum("ki,ki->k", theta, Et)
        total = np.empty((K, m + p + 1, m + p + 1))
        cross = self.covariance @ maps.swapaxes(1, 2)
        corner = maps @ cross
        corner[:, :p, :p] += sigma2[:, None, None] * self.second
        corner[:, :p, p] += 2.0 * sigma2[:, None] * Et
        corner[:, p, :p] += 2.0 * sigma2[:, None] * Et
        corner[:, p, p] += 2.0 * sigma2**2 + 4.0 * sigma2 * tEt
        total[:, :m, :m], total[:, :m, m:] = self.covariance, cross
        total[:, m:, :m], total[:, m:, m:] = cross.swapaxes(1, 2), corner
        total *= n
        # An unconditional draw by the same structure, then the correction by the observation.
        base = np.einsum("kij,kj->ki", self.root, rng.standard_normal((K, m)))
        noise = np.sqrt(sigma2)[:, None] * np.einsum("kij,kj->ki", self.second_root, rng.standard_normal((K, p)))
        square = 2.0 * np.einsum("ki,ki->k", theta, noise) + np.sqrt(2.0) * sigma2 * rng.standard_normal(K)
        draw = np.empty((K, m + p + 1))
        draw[:, :m] = base
        draw[:, m:] = np.einsum("kij,kj->ki", maps, base)
        draw[:, m:-1] += noise
        draw[:, -1] += square
        draw *= np.sqrt(n)
        draw[:, :m] += n * self.second[:, self.i, self.j]
        draw[:, m:-1] += n * Et
        draw[:, -1] += n * (sigma2 + tEt)
        innovation = self.noisy - draw - np.sqrt(variance) * rng.standard_normal(draw.shape)
        system = total.copy()
        diagonal = np.arange(m + p + 1)
        system[:, diagonal, diagonal] += variance
        weight = np.linalg.solve(system, innovation[:, :, None])
        return np.asarray(draw + (total @ weight)[:, :, 0])

    def _matrix(self, statistic: FloatArray) -> FloatArray:
        """Return [[X'X, X'y], [y'X, y'y]] projected to the positive semidefinite cone, (K, p + 1, p + 1)."""
        p, m = self.p, self.m
        matrix = np.empty((self.K, p + 1, p + 1))
        matrix[:, self.i, self.j] = matrix[:, self.j, self.i] = statistic[:, :m]
        matrix[:, p - 1, p - 1] = self.n
        matrix[:, :p, p] = matrix[:, p, :p] = statistic[:, m:-1]
        matrix[:, p, p] = statistic[:, -1]
        values, vectors = np.linalg.eigh(matrix)
        if values[:, 0].min() >= 0.0:
            return matrix
        return np.asarray((vectors * np.maximum(values, _SMALLEST)[:, None, :]) @ vectors.swapaxes(1, 2))

    def draw_parameters(self, matrix: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draw (theta, sigma2) from the normal-inverse-gamma posterior given S."""
        p = self.p
        root = np.linalg.cholesky(matrix[:, :p, :p] + self.prior.precision * np.eye(p))
        inverse = np.linalg.inv(root)
        scaled = np.einsum("kij,kj->ki", inverse, matrix[:, :p, p])
        rate = self.prior.rate + 0.5 * np.maximum(matrix[:, p, p] - np.sum(scaled**2, axis=1), 0.0)
        sigma2 = rate / rng.standard_gamma(np.full(self.K, self.prior.shape + 0.5 * self.n))
        normal = np.sqrt(sigma2)[:, None] * rng.standard_normal((self.K, p))
        return np.einsum("kji,kj->ki", inverse, scaled + normal), sigma2


def _pairs(d: int) -> tuple[IntArray, IntArray]:
    """Return the index pairs of the entries of x x' that are not constant, bias last."""
    index = np.array([pair for pair in statistic_indices(d) if pair[1] <= d])
    return index[:, 0], index[:, 1]


def _project(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return symmetric matrices (K, m, m) projected to the positive semidefinite cone, and a square root of each."""
    values, vectors = np.linalg.eigh(matrix)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    return root @ root.swapaxes(1, 2), root


def moments_from_release(noisy: FloatArray, d: int, n_records: int) -> tuple[FloatArray, FloatArray]:
    """Return E[xx] (projected) and C = E4 - E[xx] E[xx] of each run, from its noisy sums."""
    p, n_runs = d + 1, noisy.shape[0]
    i, j = _pairs(d)
    mean = noisy / n_records
    second = np.empty((n_runs, p, p))
    second[:, i, j] = second[:, j, i] = mean[:, : i.size]
    second[:, d, d] = 1.0
    second = _project(second)[0]
    # Where each sorted quadruple of factors is found: three or four features among the moments, fewer in E[xx].
    n_statistics = len(statistic_indices(d))
    where = {index: n_statistics + place for place, index in enumerate(moment_indices(d))}
    fourth = np.empty((n_runs, i.size, i.size))
    for a in range(i.size):
        for b in range(i.size):
            first, then, third, last = sorted(int(index) for index in (i[a], j[a], i[b], j[b]))
            constant = third == d
            fourth[:, a, b] = second[:, first, then] if constant else mean[:, where[first, then, third, last]]
    return second, fourth - second[:, i, j][:, :, None] * second[:, i, j][:, None, :]

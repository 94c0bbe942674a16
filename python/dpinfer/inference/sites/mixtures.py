"""Posteriors of mixtures from the traces of DP-SEP, by the law of the clipped sums under the mixture itself.

A factorised q ignores that components exchange records, and clipping moves its fixed point: docs/derivations/dp-sep.md,
"Mixtures".
"""

import math
from typing import Any

import numpy as np
from scipy import special
from scipy.stats import qmc

from dpinfer._arrays import FloatArray
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.request import SiteRequest
from dpinfer.inference.sites import tuning
from dpinfer.inference.sites.results import posterior_of_sites
from dpinfer.models import GaussianMixture
from dpinfer.release import SiteRelease
from dpinfer.release.sites.trace import smat

_DRAWS = 1000  # Monte Carlo error 2% of a standard deviation (1 / sqrt(2 * 1000))
_PATH = 6  # of the released positions, which still move: time
_LAWS = 8  # laws of the sums at different means, a power of two: time
_ROUNDS = 40  # of Newton's method: it is settled to rounding long before
_SETTLED = 0.02  # standard deviations: tolerance
_WIDEST = 30  # dimensions of Sobol points beside the label: memory
_OVERLAP = (
    "The components overlap by more than this posterior can tell: their means are not near normal, and intervals may "
    "miss the truth too often. Use fewer components, or more records or epsilon."
)


def _array(values: Any) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


class _Sums:
    """The law of a mixture's mean clipped contribution, from made-up records."""

    def __init__(self, release: SiteRelease, model: GaussianMixture, start: int, seed: int) -> None:
        self.model, self.clip, self.weight = model, release.max_site_norm, release.block_weight
        path = release.loc[start:-1]
        count = min(_PATH, len(path))
        self.path = path[((np.arange(count) + 0.5) / count * len(path)).astype(int)]
        self.inverse = np.linalg.inv(model.covariances)
        self.log_norm = model.log_weights + 0.5 * np.linalg.slogdet(self.inverse)[1]
        size = 2 ** min(16, max(13, math.ceil(math.log2(2.0 * release.n_records))))
        width = min(model.n_features, _WIDEST)
        points = qmc.Sobol(width + 1, seed=seed).random(size)
        ends = np.cumsum(np.exp(model.log_weights))
        self.labels = np.minimum(np.searchsorted(ends, points[:, 0]), model.n_components - 1)
        normal = special.ndtri(np.clip(points[:, 1:], 1e-12, 1.0 - 1e-12))
        rest = np.random.default_rng(seed).standard_normal((size, model.n_features - width))
        factor = np.linalg.cholesky(model.covariances)[self.labels]
        self.noise = np.einsum("nij,nj->ni", factor, np.hstack((normal, rest)))

    def _pulls(self, means: FloatArray, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the components' shares of each point, (N, J), and how they are pulled, (N, J, d)."""
        gaps = points[:, None, :] - means
        pulls = np.einsum("jab,njb->nja", self.inverse, gaps)
        logs = self.log_norm - 0.5 * np.sum(gaps * pulls, axis=2)
        return special.softmax(logs, axis=1), pulls

    def _contributions(self, place: FloatArray, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each point's clipped linear term at a place (J, d), (N, J d), and its precisions' traces, (N, J)."""
        share, pulls = self._pulls(place, points)
        linear, spread = share[:, :, None] * pulls, share * (1.0 - share)
        square = np.sum(np.square(pulls), axis=2)
        turned = np.einsum("nja,jab,njb->nj", pulls, self.inverse, pulls)
        # The site's precision is share * inverse - spread * pull pull', by its Frobenius norm.
        sizes = np.square(share) * np.sum(np.square(self.inverse), axis=(1, 2)) - 2.0 * share * spread * turned
        sizes += np.square(spread * square)
        norm = np.sqrt(np.sum(np.square(linear), axis=(1, 2)) + self.weight**2 * np.sum(sizes, axis=1))
        kept = np.minimum(1.0, self.clip / norm)
        traces = share * np.trace(self.inverse, axis1=1, axis2=2) - spread * square
        return (linear * kept[:, None, None]).reshape(len(points), -1), traces * kept[:, None]

    def fit(self, release: SiteRelease, theta: FloatArray, start: int) -> float:
        """Return the p-value of the released precisions' traces, which the equation for theta does not use."""
        points = theta.reshape(self.model.n_components, -1)[self.labels] + self.noise
        traces = np.mean([self._contributions(place, points)[1] for place in self.path], axis=0)
        used, rate, records = release.n_steps - start, release.sample_rate, release.n_records
        blocks = smat(release.precision_sums()[start:].mean(axis=0) / rate, release.block_size)
        noise = release.block_size * (release.noise_stddev / (rate * self.weight)) ** 2 / used
        spread = noise + records * (traces.var(axis=0) + (1.0 / rate - 1.0) / used * np.square(traces).mean(axis=0))
        gaps = np.trace(blocks, axis1=1, axis2=2) - records * traces.mean(axis=0)
        return float(special.chdtrc(len(gaps), np.sum(np.square(gaps) / spread)))

    def law(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return a record's mean contribution, its covariance, and its slope in the means theta (J d,)."""
        means = theta.reshape(self.model.n_components, -1)
        points = means[self.labels] + self.noise
        share, pulls = self._pulls(means, points)
        score = (share[:, :, None] * pulls).reshape(len(points), -1)
        given = np.mean([self._contributions(place, points)[0] for place in self.path], axis=0)
        mean = given.mean(axis=0)
        centred = given - mean
        return _array(mean), _array(centred.T @ centred / len(points)), _array(centred.T @ score / len(points))


def mixture_posterior(release: SiteRelease, model: GaussianMixture, request: SiteRequest, start: int) -> Posterior:
    """Return the posterior of the components' means.

    **Privacy.** Post-processing of a SiteRelease: it costs nothing.

    The mean released sum is N G(m) plus noise, with G the mean clipped contribution of a record of the mixture with
    means m.  G, its slope and the covariance of contributions come from made-up records, at the released positions; the
    equation is solved for m, and m drawn with slopes at places that are drawn from its first law.
    """
    rng, size = np.random.default_rng(request.seed), request.n_samples or _DRAWS
    n, rate, used = release.n_params, release.sample_rate, release.n_steps - start
    prior, eye = 1.0 / release.prior_scale**2, np.eye(release.n_params)
    prior_loc = np.broadcast_to(release.prior_loc, (release.n_blocks, release.block_size)).ravel()
    tau = release.noise_stddev / rate
    found = (release.linear_sums()[start:].mean(axis=0) / rate).ravel()
    # The linear sums of records beside the prior's own pull.
    sums, records = _Sums(release, model, start, request.seed), release.n_records
    sampled = 0.0 if release.sampling == "permutation" else 1.0 / rate - 1.0

    def law(place: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mean, and the precision with and without the privacy noise, with the slope at a place."""
        mean, covariance, slope = sums.law(place)
        data = records * covariance + 1e-12 * eye
        extra = sampled / used * (records * (covariance + np.outer(mean, mean))) + tau**2 / used * eye
        slope = records * slope
        both = [slope.T @ np.linalg.solve(noise, slope) + prior * eye for noise in (data + extra, data)]
        wanted = found - records * mean + slope @ place
        linear = slope.T @ np.linalg.solve(data + extra, wanted) + prior * prior_loc
        return _array(np.linalg.solve(both[0], linear)), _array(both[0]), _array(both[1])

    place, moved = release.loc[start:-1].mean(axis=0).ravel(), math.inf
    widest = 0.5 * model.block_scale
    for _ in range(_ROUNDS):
        mean, total, _ = law(place)
        step = mean - place
        moved = float(np.max(np.abs(step) * np.sqrt(np.diagonal(total))))
        place = place + step * min(1.0, widest / max(float(np.max(np.abs(step))), 1e-300))
        if moved < _SETTLED:
            break
    _, total, _ = law(place)
    spread = np.linalg.inv(total)
    root = np.linalg.cholesky(spread)
    draws, factors, within, means = np.empty((size, n)), np.empty((size, n, n)), [], []
    normals = special.ndtri(qmc.Sobol(n, seed=request.seed).random(_LAWS)) if n < 1000 else rng.normal(size=(_LAWS, n))
    for part, normal in zip(np.array_split(np.arange(size), _LAWS), normals, strict=True):
        mean, total, alone = law(place + root @ normal)
        data, whole = np.linalg.inv(alone), np.linalg.inv(total)
        values, vectors = np.linalg.eigh(whole - data)
        shift = (vectors * np.sqrt(np.maximum(values, 0.0))) @ rng.standard_normal((n, part.size))
        draws[part] = mean + shift.T
        factors[part] = np.linalg.cholesky(alone)
        within.append(np.diagonal(data))
        means.append(mean)
    stddev = np.sqrt(np.diagonal(spread))
    limits = tuning.TUNING
    fits = sums.fit(release, place, start)
    failed = (
        moved >= _SETTLED
        or _nearest(model, place, _array(spread)) < limits.apart
        or fits < limits.misfit
        or float(np.max(np.std(means, axis=0) / stddev)) > limits.bent
        or float(np.max(np.std(np.log(within), axis=0))) > limits.uneven
    )
    privacy = draws.var(axis=0)
    return posterior_of_sites(
        release,
        request,
        burn_in=start,
        optimum_mean=place,
        optimum_stddev=np.sqrt(privacy),
        hessian_mean=1.0 / np.mean(within, axis=0),
        hessian_stddev=np.std(1.0 / np.asarray(within), axis=0),
        distribution=DrawnTheta(draws, None, factors, VarianceParts(np.mean(within, axis=0), privacy, np.zeros(n))),
        diagnostics=PosteriorDiagnostics(
            n_steps_used=used,
            noise_ratio=np.sqrt(1.0 + np.mean(within, axis=0) / np.maximum(privacy, 1e-300)),
            fit_pvalue=fits,
            warnings=("overlap",) if failed else (),
            verdict=_OVERLAP if failed else "",
        ),
    )


def _nearest(model: GaussianMixture, theta: FloatArray, covariance: FloatArray) -> float:
    """Return how far the nearest two components are apart, in standard deviations of what is between them."""
    means = theta.reshape(model.n_components, -1)
    count, d = means.shape
    blocks = covariance.reshape(count, d, count, d)
    found = math.inf
    for j in range(count):
        for k in range(j):
            gap = means[j] - means[k]
            of_gap = blocks[j, :, j] + blocks[k, :, k] - blocks[j, :, k] - blocks[k, :, j]
            found = min(found, math.sqrt(max(float(gap @ np.linalg.solve(of_gap, gap)), 0.0)))
    return found

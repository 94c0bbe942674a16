"""Full Hessian of a regression under its model: a Wishart prior of the information, the parameters integrated out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.posterior.theta import DrawnTheta, VarianceParts
from dpinfer.inference.trace.information import FullHessian

LogDensity = Callable[[FloatArray], tuple[float, FloatArray]]

_TARGET_ACCEPTANCE = 0.8  # that of dual averaging (Hoffman and Gelman 2014), for few leapfrog steps
_FIRST_STEP = 0.1  # short: adapted during the warm-up; tolerance
_GAMMA, _DELAY, _DECAY = 0.05, 10.0, 0.75  # of dual averaging (Hoffman and Gelman 2014, section 3.2)


@dataclass(frozen=True)
class HamiltonianDraws:
    """Draws of one chain after its warm-up."""

    positions: FloatArray  # (S, m)
    log_density: FloatArray  # (S,)
    acceptance: float  # mean probability of acceptance


def hamiltonian_draws(
    log_density: LogDensity,  # position (m,) to (log density, gradient (m,)); -inf outside of the domain
    start: FloatArray,  # (m,): of positive density
    *,
    # n_warmup, n_draws: dropped steps, in which the step size is found, and kept ones
    n_warmup: int,
    n_draws: int,
    longest: int,  # leapfrog steps are drawn uniformly between half of this and this
    rng: np.random.Generator,
    report: Callable[[int, int], object],  # gets (done, total) after every step
) -> HamiltonianDraws:
    """Draw from a density on R^m whose coordinates have standard deviations of about one.

    **Privacy.** Post-processing only; reads no records.

    Neal (2011), "MCMC using Hamiltonian dynamics", with random trajectory lengths; the step size by dual averaging
    (Hoffman and Gelman 2014) towards an acceptance of 0.8.
    """
    position = start.copy()
    value, gradient = log_density(position)
    step, averaged, error = _FIRST_STEP, 0.0, 0.0
    centre = math.log(10.0 * _FIRST_STEP)
    positions, values = np.empty((n_draws, start.size)), np.empty(n_draws)
    accepted = 0.0
    for turn in range(n_warmup + n_draws):
        momentum = rng.standard_normal(start.size)
        energy = value - 0.5 * momentum @ momentum
        new, new_value, new_gradient = position, value, gradient
        for _ in range(int(rng.integers((longest + 1) // 2, longest + 1))):
            momentum = momentum + 0.5 * step * new_gradient
            new = new + step * momentum
            new_value, new_gradient = log_density(new)
            if not np.isfinite(new_value):
                break
            momentum = momentum + 0.5 * step * new_gradient
        with np.errstate(over="ignore"):  # of a diverged trajectory
            change = new_value - 0.5 * momentum @ momentum - energy
        probability = math.exp(min(0.0, float(change))) if np.isfinite(change) else 0.0
        if rng.random() < probability:
            position, value, gradient = new, new_value, new_gradient
        if turn < n_warmup:
            count = turn + 1
            error += (_TARGET_ACCEPTANCE - probability - error) / (count + _DELAY)
            log_step = centre - math.sqrt(count) / _GAMMA * error
            averaged += count**-_DECAY * (log_step - averaged)
            step = math.exp(averaged if count == n_warmup else log_step)
        else:
            positions[turn - n_warmup], values[turn - n_warmup] = position, value
            accepted += probability / n_draws
        report(turn + 1, n_warmup + n_draws)
    return HamiltonianDraws(positions, values, accepted)


def split_rhat(draws: FloatArray) -> FloatArray:
    """Return the potential scale reduction of the two halves of one chain, (m,) for draws (S, m).

    Gelman et al. (2013), section 11.4.
    """
    half = draws.shape[0] // 2
    parts = np.stack([draws[:half], draws[-half:]])
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    return np.asarray(np.sqrt((half - 1.0) / half + between / np.where(within > 0.0, within, np.inf)))


_MORE_DEGREES = 2.0  # beyond the rank: the vaguest Wishart with a mode (docs/derivations/noise-aware-posterior.md)
_KNOWN_DEGREES = 2.0  # where the moments of single features are known: degrees of freedom over the rank
NULL = 1e-10  # relative rank tolerance: far above rounding
_MODE_STAGES, _MODE_ITERATIONS = 2, 60  # two rounds of L-BFGS (same page); iterations of each
_LONGEST = 10  # leapfrog steps, 5 to 10 (same page)
_LARGEST_RHAT = 1.2  # of the two halves of a chain (same page)
_MOST_CHAINS = 3  # continuations of a chain with a larger R-hat: time


@dataclass(frozen=True)
class InformationTrace:
    """Sufficient statistics of ``g_t = kappa A (x_t - mle) + noise``, the prior's gradient taken out; n coordinates."""

    weight: float  # sum of the steps' weights; T where the noise is the same at every step
    sample_rate: float  # kappa
    position_mean: FloatArray  # (n,)
    gradient_mean: FloatArray  # (n,): of the likelihood's part of the gradients
    gram: FloatArray  # (n, n): weighted sum of the outer products of the centred positions
    cross: FloatArray  # (n, n): weighted sum of (centred gradient) (centred position)'
    noise_variance: FloatArray  # (n,): tau**2, at a step of weight 1
    # variance of the records' score given the weights, over the information: 1 in a model without a noise variance
    score_variance: float = 1.0

    @classmethod
    def build(
        cls,
        # positions, gradients: (T, n)
        positions: FloatArray,
        gradients: FloatArray,
        noise_stddev: FloatArray,  # (n,): at a step of weight 1
        *,
        sample_rate: float,
        prior_variance: float,
        step_weight: FloatArray | None = None,  # (T,): the noise of a step is noise_stddev over its root; 1 by default
    ) -> "InformationTrace":
        """Reduce T steps of a model with weights N(0, prior_variance)."""
        weight = np.ones(positions.shape[0]) if step_weight is None else step_weight
        total = float(weight.sum())
        likelihood = gradients - sample_rate / prior_variance * positions
        position_mean, gradient_mean = weight @ positions / total, weight @ likelihood / total
        centred = positions - position_mean
        weighted = centred * weight[:, None]
        return cls(
            weight=total,
            sample_rate=sample_rate,
            position_mean=position_mean,
            gradient_mean=gradient_mean,
            gram=weighted.T @ centred,
            cross=(likelihood - gradient_mean).T @ weighted,
            noise_variance=noise_stddev**2,
        )

    def noise_at(self, information: FloatArray) -> FloatArray:
        """Return the covariance of a step's noise: Poisson sampling adds the records' own spread to the privacy's."""
        rate = self.sample_rate
        return np.diag(self.noise_variance) + rate * (1.0 - rate) * self.score_variance * information

    def mean_noise_at(self, information: FloatArray) -> FloatArray:
        """Return the covariance of the noise in the mean gradient over kappa, (n, n)."""
        return np.asarray(self.noise_at(information) / (self.sample_rate**2 * self.weight))


class _Density:
    """Log density of the information ``A = F B B' F'``, B lower triangular with a positive diagonal.

    The coordinates are the entries of B, logarithms on the diagonal, in units of their standard deviations about the
    identity, by the choice of F.
    """

    def __init__(
        self, trace: InformationTrace, expected: FloatArray, prior_variance: float, *, moments_known: bool = False
    ) -> None:
        values, vectors = np.linalg.eigh(expected)
        nonzero = values > NULL * values[-1]
        self._span = vectors[:, nonzero] * np.sqrt(values[nonzero])
        self._unspan = (vectors[:, nonzero] / np.sqrt(values[nonzero])).T
        self._trace = trace
        self._prior_variance = prior_variance
        self.rank = self._span.shape[1]
        self._degrees = max(self.rank + _MORE_DEGREES, _KNOWN_DEGREES * self.rank if moments_known else 0.0)
        self._lower = np.tril_indices(self.rank)
        self._at_most = np.tri(len(expected), dtype=bool)
        self._diagonal = np.flatnonzero(self._lower[0] == self._lower[1])
        self._flat = self.rank * self._lower[0] + self._lower[1]
        self._log_power = self._degrees - np.arange(self.rank)
        self.centre(expected)

    def centre(self, information: FloatArray) -> None:
        """Choose F and the scales so that B near the identity is near `information`."""
        trace = self._trace
        inside = self._span @ (self._unspan @ information @ self._unspan.T) @ self._span.T
        values, vectors = np.linalg.eigh(0.5 * (inside + inside.T))
        values = np.maximum(values[-self.rank :], 1e-8 * values[-1])
        vectors = vectors[:, -self.rank :]
        self._basis = vectors * np.sqrt(values)
        ratio = self._unspan @ self._basis
        self._penalty = self._degrees * (ratio.T @ ratio)
        rate, noise = trace.sample_rate, trace.noise_at(inside)
        self._weight = np.linalg.inv(noise)
        self.mean_noise = trace.mean_noise_at(inside)
        cross = self._weight @ trace.cross
        self._linear = 0.5 * rate * (cross + cross.T)
        excursions = np.einsum("ik,ij,jk->k", vectors, trace.gram, vectors)
        precision = rate**2 * np.einsum("ik,ij,jk->k", vectors, self._weight, vectors)
        pairs = np.outer(values, values) * (precision[:, None] * excursions + precision * excursions[:, None])
        pairs += np.diag(self._penalty)[:, None]
        pairs[np.diag_indices(self.rank)] *= 2.0
        self._scale = 1.0 / np.sqrt(pairs[self._lower])

    def _factor(self, coordinates: FloatArray) -> FloatArray:
        """Return B."""
        factor = np.zeros(self.rank * self.rank)
        entries = coordinates * self._scale
        entries[self._diagonal] = np.exp(np.minimum(np.maximum(entries[self._diagonal], -30.0), 30.0))
        factor[self._flat] = entries
        return factor.reshape(self.rank, self.rank)

    def information(self, coordinates: FloatArray) -> FloatArray:
        """Return A, (n, n)."""
        root = self._basis @ self._factor(coordinates)
        return np.asarray(root @ root.T)

    def start(self) -> FloatArray:
        """Return the coordinates of B = I."""
        return np.zeros(self._scale.size)

    def __call__(self, coordinates: FloatArray) -> tuple[float, FloatArray]:
        """Return log density and gradient; -inf where a diverging trajectory overflows."""
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = self._evaluate(coordinates)
        return (value, gradient) if math.isfinite(value) else (-math.inf, np.zeros_like(coordinates))

    def _evaluate(self, coordinates: FloatArray) -> tuple[float, FloatArray]:
        trace, variance = self._trace, self._prior_variance
        factor = self._factor(coordinates)
        root = self._basis @ factor
        a = root @ root.T
        # Slopes: -1/2 kappa^2 tr(W A S A) + kappa tr(W R A).
        spread = a @ trace.gram
        weighted = self._weight @ spread
        square = trace.sample_rate**2
        value = -0.5 * square * (weighted * a).sum() + (self._linear * a).sum()
        slope = self._linear - 0.5 * square * (weighted + weighted.T)
        # Mean gradient, weights and records integrated out: v ~ N(A x, s^2 A^2 + A + noise), A times their variance.
        half = a @ a
        total = variance * half + trace.score_variance * a + self.mean_noise
        chol, failed = linalg.lapack.dpotrf(total, lower=1)
        if failed:
            return -math.inf, coordinates
        inverse, _ = linalg.lapack.dpotri(chol, lower=1)
        inverse = np.where(self._at_most, inverse, inverse.T)
        residual = trace.gradient_mean / trace.sample_rate - a @ trace.position_mean
        solved = inverse @ residual
        value -= float(np.log(chol.diagonal()).sum()) + 0.5 * residual @ solved
        middle = 0.5 * (solved[:, None] * solved - inverse)
        product = middle @ a
        shift = solved[:, None] * trace.position_mean
        product += product.T
        shift += shift.T
        slope = slope + variance * product + trace.score_variance * middle + 0.5 * shift
        # Wishart prior of W = (R B)(R B)', with the Jacobian of B.
        pull = self._penalty @ factor
        entries = coordinates * self._scale
        value += self._log_power @ entries[self._diagonal] - 0.5 * float((pull * factor).sum())
        gradient = (2.0 * self._basis.T @ (slope @ root) - pull).ravel()[self._flat]
        gradient[self._diagonal] = gradient[self._diagonal] * factor.diagonal() + self._log_power
        return float(value), np.asarray(gradient * self._scale)


def weights_given_information(
    trace: InformationTrace,
    mean_noise: FloatArray,  # (n, n): covariance of the noise in the mean gradient over kappa
    information: FloatArray,  # (n, n)
    prior_variance: float,
) -> tuple[FloatArray, FloatArray]:
    """Return mean (n,) and precision (n, n) of the weights given the information and the trace."""
    data_precision = np.linalg.solve(trace.score_variance * information + mean_noise, information)
    precision = information @ data_precision + np.eye(information.shape[0]) / prior_variance
    precision = 0.5 * (precision + precision.T)
    observed = information @ trace.position_mean - trace.gradient_mean / trace.sample_rate
    return np.asarray(np.linalg.solve(precision, data_precision.T @ observed)), np.asarray(precision)


@dataclass(frozen=True)
class InformationDraws:
    """Result of :func:`information_draws`, S draws."""

    information: FloatArray  # (S, n, n)
    location: FloatArray  # (S, n): mean of the weights given each
    mean_noise: FloatArray  # (n, n): covariance of the noise in the mean gradient over kappa
    acceptance: float
    rhat: float  # largest split R-hat of the conditional means and the log density


def information_mode(
    trace: InformationTrace, expected: FloatArray, *, prior_variance: float, moments_known: bool = False
) -> FloatArray:
    """Return the mode of the information's posterior, (n, n); arguments as in :func:`information_draws`."""
    density = _Density(trace, expected, prior_variance, moments_known=moments_known)
    _climb(density, 1)
    return density.information(density.start())


def _climb(density: _Density, stages: int) -> None:
    """Centre the density at its mode, in rounds of L-BFGS."""
    from scipy import optimize  # slow to import

    for _ in range(stages):
        mode = optimize.minimize(
            lambda x: tuple(-part for part in density(x)),
            density.start(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _MODE_ITERATIONS},
        )
        density.centre(density.information(mode.x))


def information_draws(
    trace: InformationTrace,  # of n weights with independent N(0, prior_variance) priors
    # (n, n): prior mean of the information of all records, from public knowledge; its null space is taken as exact
    expected: FloatArray,
    *,
    prior_variance: float,
    # whether the diagonal of `expected` is known up to one factor, and only the rest a guess
    moments_known: bool = False,
    # n_draws, n_warmup: kept and dropped Hamiltonian steps
    n_draws: int,
    n_warmup: int,
    seed: int,
    # go on with twice the steps, and then with four times, while R-hat is above 1.2; False takes the first draws
    check_convergence: bool,
    report: Callable[[int, int], object],
) -> InformationDraws:
    """Draw the information matrix from its posterior.

    Raises NumericalError if the chain did not converge in the end.

    docs/derivations/noise-aware-posterior.md, "Full Hessian under the model".  Given the information A everything is
    normal: weights N(0, s^2), records' score h given the weights N(A w, A), mean gradient given h; so only A is
    sampled.  Its prior is Wishart with two more degrees of freedom than its rank (weak: single eigenvalues vary over
    orders of magnitude), or with twice its rank where the moments of single features are known.
    """
    density = _Density(trace, expected, prior_variance, moments_known=moments_known)
    _climb(density, _MODE_STAGES)
    rng, start = np.random.default_rng(seed), density.start()
    for attempt in range(_MOST_CHAINS):
        chain = hamiltonian_draws(
            density,
            start,
            n_warmup=n_warmup << attempt,
            n_draws=n_draws << attempt,
            longest=_LONGEST,
            rng=rng,
            report=report,
        )
        result = _with_weights(density, trace, chain, prior_variance)
        if result.rhat <= _LARGEST_RHAT or not check_convergence:
            return result
        start = chain.positions[-1]
    raise NumericalError(
        f"the draws of the information matrix did not converge (R-hat {result.rhat:.2f}, at most {_LARGEST_RHAT}): "
        "raise n_warmup and n_samples, or opt out with check_convergence=False"
    )


def _with_weights(
    density: _Density, trace: InformationTrace, chain: HamiltonianDraws, prior_variance: float
) -> InformationDraws:
    hessians = np.stack([density.information(item) for item in chain.positions])
    location = np.stack([weights_given_information(trace, density.mean_noise, a, prior_variance)[0] for a in hessians])
    rhat = float(np.max(split_rhat(np.column_stack([location, chain.log_density]))))
    return InformationDraws(hessians, location, density.mean_noise, chain.acceptance, rhat)


def information_posterior(
    # trace, expected, prior_variance: as in :func:`information_draws`
    trace: InformationTrace,
    expected: FloatArray,
    *,
    prior_variance: float,
    **sampling: Any,  # the other arguments of :func:`information_draws`
) -> FullHessian:
    """Draw the information matrix from its posterior, and the weights' normal distribution given each draw.

    Raises NumericalError if the chain did not converge in the end.
    """
    draws = information_draws(trace, expected, prior_variance=prior_variance, **sampling)
    hessians, location = draws.information, draws.location
    n = hessians.shape[1]
    data, given, factor = np.empty_like(location), np.empty_like(location), np.empty_like(hessians)
    for index, a in enumerate(hessians):
        _, precision = weights_given_information(trace, draws.mean_noise, a, prior_variance)
        factor[index] = np.linalg.cholesky(precision)
        given[index] = np.diag(np.linalg.inv(precision))
        a[np.diag_indices(n)] += 1.0 / prior_variance
        data[index] = np.diag(np.linalg.inv(a))
    # Rounding aside the noise can only widen.
    privacy = np.maximum(np.mean(given - data, axis=0), 0.0)
    between = np.var(location, axis=0)
    parts = VarianceParts(np.mean(given, axis=0) - privacy, privacy, between)
    return FullHessian(
        DrawnTheta(location, None, factor, parts),
        location.mean(axis=0),
        np.sqrt(privacy + between),
        hessians.mean(axis=0),
        hessians.std(axis=0),
        draws.acceptance,
        draws.rhat,
    )

"""The collapsed trace posterior sampled with emcee, all coordinates at once."""

import warnings
from typing import Any

import emcee
import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.errors import NumericalError
from dpinfer.inference.trace.collapsed import CollapsedProblems, Nodes

__all__ = ["emcee_nodes", "nodes_from_draws"]

DEFAULT_WALKERS = 16  # emcee needs at least twice the dimension, which is 1 or 2
DEFAULT_WARMUP = 300  # the autocorrelation time is checked after the run
DEFAULT_SAMPLES = 1500  # 24 000 draws of all walkers

_STRETCH = 2.0  # emcee's default (Goodman and Weare 2010)
# One step in five; the stretch move alone mixes slower (docs/derivations/noise-aware-posterior.md).
_STRETCH_SHARE = 0.2
_TIMES_AUTOCORRELATION = 50.0  # emcee's rule for a reliable estimate of the autocorrelation time
_KEPT_DRAWS = 4000  # memory only


class CoordinatewiseMove(emcee.moves.Move):  # type: ignore[misc]
    """Stretch and differential-evolution moves with an accept-reject step per coordinate of a factorised density.

    Parameters
    ----------
    problems : CollapsedProblems
    shape : (k, dims)
    seed : int
    """

    def __init__(self, problems: CollapsedProblems, shape: tuple[int, int], seed: int) -> None:
        self._problems = problems
        self._shape = shape
        self._rng = np.random.default_rng(seed)
        self._log_prob: FloatArray | None = None

    def log_density(self, x: FloatArray) -> FloatArray:
        """Return the log densities (walkers, k) at x (walkers, k, dims); minus infinity where they underflow."""
        w = x[..., 1] if self._shape[1] == 2 else 0.0
        with np.errstate(all="ignore"):
            value = self._problems.log_density(x[..., 0], w)
        return np.where(np.isfinite(value), value, -np.inf)

    def _partners(self, x: FloatArray, rest: npt.NDArray[np.int64], size: int) -> FloatArray:
        chosen = rest[self._rng.integers(rest.size, size=(size, self._shape[0]))]
        return np.asarray(x[chosen, np.arange(self._shape[0])])

    def _stretch(
        self, x: FloatArray, half: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]
    ) -> tuple[FloatArray, FloatArray]:
        """Goodman and Weare (2010), eqs. 7 and 9."""
        z = ((_STRETCH - 1.0) * self._rng.random((half.size, self._shape[0])) + 1.0) ** 2 / _STRETCH
        partner = self._partners(x, rest, half.size)
        return partner + z[..., None] * (x[half] - partner), (self._shape[1] - 1) * np.log(z)

    def _differential(
        self, x: FloatArray, half: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]
    ) -> tuple[FloatArray, FloatArray]:
        """Differential evolution (ter Braak 2006): a step along the difference of two walkers of the other half."""
        size = (half.size, self._shape[0])
        gamma = 2.38 / np.sqrt(2.0 * self._shape[1]) * np.exp(0.3 * self._rng.standard_normal(size))
        step = self._partners(x, rest, half.size) - self._partners(x, rest, half.size)
        return x[half] + gamma[..., None] * step, np.zeros(size)

    def propose(self, model: Any, state: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
        """Move each half of the walkers against the other."""
        walkers = state.coords.shape[0]
        x = state.coords.reshape(walkers, *self._shape)
        if self._log_prob is None:
            self._log_prob = self.log_density(x)
        moved = np.zeros(walkers, dtype=bool)
        order = self._rng.permutation(walkers)
        stretch = self._rng.random() < _STRETCH_SHARE
        for half, rest in ((order[0::2], order[1::2]), (order[1::2], order[0::2])):
            proposal, log_factor = self._stretch(x, half, rest) if stretch else self._differential(x, half, rest)
            value = self.log_density(proposal)
            log_ratio = log_factor + value - self._log_prob[half]
            accept = np.log(self._rng.random(log_ratio.shape)) < log_ratio
            x[half] = np.where(accept[..., None], proposal, x[half])
            self._log_prob[half] = np.where(accept, value, self._log_prob[half])
            moved[half] = accept.any(axis=1)
        state.coords = x.reshape(walkers, -1)
        state.log_prob = self._log_prob.sum(axis=1)
        return state, moved


def nodes_from_draws(problems: CollapsedProblems, beta: FloatArray, nu: FloatArray) -> Nodes:
    """Return equally weighted nodes at draws of (beta, nu), (S, k); the optimum keeps its exact conditional.

    Parameters
    ----------
    problems : CollapsedProblems
    beta, nu : (S, k) arrays

    Returns
    -------
    Nodes
    """
    draws, k = beta.shape
    _, _, _, mean_score, offset, scale, *_ = problems.columns
    variance = 1.0 / (beta**2 / nu + scale**-2.0)
    mean = problems.position_mean - problems.spread * (beta * mean_score / nu + offset * scale**-2.0) * variance
    variance = problems.spread**2 * variance
    return Nodes(
        np.arange(0, draws * k + 1, draws, dtype=np.int64),
        (problems.hessian_unit * beta).T.ravel(),
        nu.T.ravel(),
        np.full(draws * k, 1.0 / draws),
        mean.T.ravel(),
        variance.T.ravel(),
    )


def emcee_nodes(
    problems: CollapsedProblems,
    names: tuple[str, ...],
    *,
    n_samples: int = DEFAULT_SAMPLES,
    n_warmup: int = DEFAULT_WARMUP,
    n_walkers: int = DEFAULT_WALKERS,
    seed: int = 0,
    progress: bool = False,
    check_convergence: bool = True,
) -> tuple[Nodes, FloatArray]:
    """Sample (Hessian, extra noise) of every coordinate; the optimum is integrated out and keeps its exact conditional.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    problems : CollapsedProblems
    names : tuple of k str
        For error messages.
    n_samples, n_warmup : int
        Steps kept and dropped.
    n_walkers : int
        Walkers per coordinate, even and at least 4.
    seed : int
    progress : bool
        Show emcee's progress bar.
    check_convergence : bool
        Raise unless the chain is 50 integrated autocorrelation times long in every coordinate (emcee's criterion).

    Returns
    -------
    nodes : Nodes
        At most 4000 equally weighted draws per coordinate.
    autocorrelation : (k,) array
        Longest integrated autocorrelation time of each coordinate, in steps.

    Raises
    ------
    NumericalError
        If the chain is too short.

    Notes
    -----
    Samples the density that ``approximation="exact"`` integrates, in y and w with kappa a = se softplus(y), or, under a
    normal prior of v, in v standardised by it, and 1 + omega**2 / tau**2 = cosh(w)**2.  Foreman-Mackey et al. (2013);
    the coordinates are independent, so each has its own ensemble and its own acceptance.
    """
    k = problems.spread.shape[0]
    dims = 2 if problems.extra_noise else 1
    rng = np.random.default_rng(seed)
    columns = problems.columns
    score = columns.slope_score
    start = np.empty((n_walkers, k, dims))
    # The mode of the slope under a flat prior proportional to it: positive for any sign of the estimate.
    likely = 0.5 * (score + np.hypot(score, 2.0))
    likely = np.where(score > 0.0, likely, 2.0 / (np.hypot(score, 2.0) - score))
    likely, width = problems.start(likely)
    start[..., 0] = likely + 0.5 * width * rng.standard_normal((n_walkers, k))
    if dims == 2:
        ratio = np.maximum(1.0, columns.residual / columns.n_steps)
        jitter = 0.3 * columns.n_steps**-0.25 * np.abs(rng.standard_normal((n_walkers, k)))
        start[..., 1] = np.arccosh(np.sqrt(ratio)) + jitter
    move = CoordinatewiseMove(problems, (k, dims), seed)
    sampler = emcee.EnsembleSampler(
        n_walkers, k * dims, lambda x: move.log_density(x.reshape(-1, k, dims)).sum(axis=1), moves=move, vectorize=True
    )
    state = emcee.State(start.reshape(n_walkers, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        sampler.run_mcmc(state, n_warmup + n_samples, progress=progress, skip_initial_state_check=True)
    chain = sampler.get_chain(discard=n_warmup).reshape(n_samples, n_walkers, k, dims)
    chain[..., 1:] = np.abs(chain[..., 1:])
    times = emcee.autocorr.integrated_time(chain.reshape(n_samples, n_walkers, -1), quiet=True, tol=0)
    autocorrelation = np.asarray(times).reshape(k, dims).max(axis=1)
    good = autocorrelation * _TIMES_AUTOCORRELATION <= n_samples
    if check_convergence and not np.all(good):
        name = names[int(np.argmin(good))]
        raise NumericalError(
            f"emcee did not converge for {name!r}: its autocorrelation time is {autocorrelation.max():.0f} steps and "
            f"n_samples is {n_samples}; raise n_samples"
        )
    thin = -(-n_samples * n_walkers // _KEPT_DRAWS)
    # One walker after the other: a Monte Carlo error comes from the correlation of successive draws.
    thinned = chain[::thin].swapaxes(0, 1).reshape(-1, k, dims)
    nu = np.cosh(thinned[..., 1]) ** 2 if dims == 2 else np.ones(thinned.shape[:2])
    return nodes_from_draws(problems, problems.slope(thinned[..., 0]), nu), autocorrelation

"""Tests of accuracy with random points: coverage of posteriors over simulations (Lemos et al. 2023)."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer
from dpinfer.lab.coverage.counts import DrawArray, check_draws, check_thetas, draw_moments, tarp_counts
from dpinfer.lab.coverage.tarp_result import TarpResult, TarpVerdict, check_levels, check_tarp, tarp_from_shares

__all__ = ["TarpAccumulator", "TarpResult", "TarpVerdict", "check_tarp", "run_tarp", "tarp_from_shares"]

_HALF_WIDTH = 4.0  # posterior standard deviations around the centre, as in NA-DPVI's published code (H.4 has none)
_REFERENCES = ("centred", "uniform")


class TarpAccumulator:
    """Collect a coverage test chunk by chunk, so that the draws of all simulations never have to be held together.

    **Privacy.** Post-processing of Releases made from simulated data.

    Parameters
    ----------
    references : {"centred", "uniform", "given"}
        As for :func:`run_tarp`; "given" takes them with each chunk.
    n_repeats : int
        Number of sets of reference points, at least 1.
    seed : int
        Of the reference points.  Every repeat has its own generator, spawned from it: the result does not depend on how
        the simulations are cut into chunks.
    levels : (L,) array in (0, 1), optional
        Credibility levels; 0.01, 0.02, ..., 0.99 by default.
    bounds : pair of (d,) arrays, optional
        Lower and upper corner of the box of "uniform" references, which a stream cannot know beforehand.
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Raises
    ------
    TypeError, ValueError
        If an argument is outside of its range above.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> stream = TarpAccumulator(n_repeats=5)
    >>> for _ in range(10):
    ...     centre = rng.normal(size=(20, 2))
    ...     stream.add(centre + rng.normal(size=(500, 20, 2)), centre + rng.normal(size=(20, 2)))
    >>> stream.n_sims, check_tarp(stream.result()).passed
    (200, True)
    """

    def __init__(
        self,
        *,
        references: str = "centred",
        n_repeats: int = 20,
        seed: int = 0,
        levels: npt.ArrayLike | None = None,
        bounds: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        n_threads: int | None = None,
    ) -> None:
        self._references = check_choice("references", references, (*_REFERENCES, "given"))
        self._n_repeats = check_integer("n_repeats", n_repeats, 1)
        self._levels = check_levels(levels)
        self._n_threads = None if n_threads is None else check_integer("n_threads", n_threads, 1)
        self._bounds = None if bounds is None else _check_bounds(bounds)
        if (self._references == "uniform") != (self._bounds is not None):
            raise ValueError("bounds must be given for uniform references, and only for them")
        self._seed = check_integer("seed", seed, 0)
        self._generators = [
            np.random.default_rng(child) for child in np.random.SeedSequence(self._seed).spawn(self._n_repeats)
        ]
        self._n_draws = 0
        self._joint: list[npt.NDArray[np.uint32]] = []
        self._marginal: list[npt.NDArray[np.uint32]] = []

    @property
    def n_sims(self) -> int:
        """Number of simulations so far."""
        return sum(part.shape[1] for part in self._joint)

    def add(
        self,
        samples: npt.ArrayLike,
        thetas: npt.ArrayLike,
        *,
        centres: npt.ArrayLike | None = None,
        scales: npt.ArrayLike | None = None,
        references: npt.ArrayLike | None = None,
    ) -> None:
        """Add the simulations of one chunk.

        **Privacy.** Post-processing of Releases made from simulated data.

        Parameters
        ----------
        samples : (S, k, d) float64 or float32 array
            S posterior draws of each of k simulations; the same S and d in every chunk.
        thetas : (k, d) array
            The values that the simulations were made from.
        centres, scales
            As for :func:`run_tarp`, for these simulations.
        references : (R, k, d) array, optional
            The reference points of this chunk, for and only for "given".

        Raises
        ------
        TypeError, ValueError
            If shapes disagree, a number is not finite, or posterior draws do not vary and `scales` is not given.
        """
        draws = check_draws("samples", samples)
        truth = check_thetas(thetas, draws)
        n_draws, n_sims, n_dims = draws.shape
        if self._joint and (n_draws, n_dims) != (self._n_draws, self._marginal[0].shape[2]):
            raise ValueError(
                f"samples must have as many draws and dimensions as before, ({self._n_draws}, "
                f"{self._marginal[0].shape[2]}), got ({n_draws}, {n_dims})"
            )
        if (references is not None) != (self._references == "given"):
            raise ValueError('references must come with a chunk if, and only if, the accumulator was made with "given"')
        if centres is not None and self._references != "centred":
            raise ValueError("centres must be left out unless references are centred")
        unit = None if scales is None else _check_scales(scales, (n_sims, n_dims))
        centre = None if centres is None else check_float_array("centres", centres, (n_sims, n_dims))
        if self._references == "uniform":
            points, unit = self._uniform_points(n_sims, n_dims, unit)
        else:
            if unit is None or (centre is None and self._references == "centred"):
                mean, stddev = _pooled_moments(draws, truth, self._n_threads)
                centre = mean if centre is None else centre
                unit = _check_spread(stddev) if unit is None else unit
            if references is not None or centre is None:
                points = check_float_array("references", references, (self._n_repeats, n_sims, n_dims))
            else:
                points = self._uniforms(n_sims, n_dims)
                points *= 2.0 * _HALF_WIDTH
                points -= _HALF_WIDTH
                points *= unit
                points += centre
        joint, marginal = tarp_counts(draws, truth, points, unit, n_threads=self._n_threads)
        self._n_draws = n_draws
        self._joint.append(joint)
        self._marginal.append(marginal)

    def result(self) -> TarpResult:
        """Return the result for the simulations so far; more may be added afterwards.

        **Privacy.** Post-processing of Releases made from simulated data.

        Returns
        -------
        TarpResult

        Raises
        ------
        ValueError
            If nothing has been added.
        """
        if not self._joint:
            raise ValueError("add must be called with at least one simulation before result")
        counts = 2.0 * self._n_draws
        return tarp_from_shares(
            np.concatenate(self._joint, axis=1) / counts,
            np.concatenate(self._marginal, axis=1) / counts,
            levels=self._levels,
            n_draws=self._n_draws,
            references=self._references,
            seed=self._seed,
        )

    def _uniforms(self, n_sims: int, n_dims: int) -> FloatArray:
        """Return the next uniforms of every repeat's own generator, (R, k, d)."""
        points = np.empty((self._n_repeats, n_sims, n_dims))
        for own, generator in zip(points, self._generators, strict=True):
            generator.random(out=own)
        return points

    def _uniform_points(self, n_sims: int, n_dims: int, unit: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return reference points in the box, and units: by default the sides of the box."""
        if self._bounds is None or self._bounds[0].size != n_dims:
            raise ValueError(f"bounds must have shape ({n_dims},) each")
        low, high = self._bounds
        points = self._uniforms(n_sims, n_dims)
        points *= high - low
        points += low
        return points, np.tile(high - low, (n_sims, 1)) if unit is None else unit


def run_tarp(
    samples: npt.ArrayLike,
    thetas: npt.ArrayLike,
    *,
    references: str | npt.ArrayLike = "centred",
    n_repeats: int = 20,
    seed: int = 0,
    centres: npt.ArrayLike | None = None,
    scales: npt.ArrayLike | None = None,
    levels: npt.ArrayLike | None = None,
    n_threads: int | None = None,
) -> TarpResult:
    """Test the coverage of posteriors over simulations with random reference points.

    **Privacy.** Post-processing of Releases made from simulated data: no private records.

    Parameters
    ----------
    samples : (S, K, d) float64 or float32 array
        S posterior draws for each of K simulations, all finite.
    thetas : (K, d) array
        The value from the prior that each simulation was made from.
    references : {"centred", "uniform"} or (R, K, d) array
        "centred": uniform within four posterior standard deviations of the posterior's centre in every dimension, the
        protocol of NA-DPVI.  "uniform": uniform over the smallest box that holds all `thetas`, the default of the
        published test.  Or the points themselves.
    n_repeats : int
        Number of sets of reference points, drawn afresh for the same simulations; for an array it is R.
    seed : int
        Of the reference points; every repeat has its own generator, spawned from it.
    centres : (K, d) array, optional
        Centres of the posteriors, for centred references; their means by default.
    scales : (d,) or (K, d) array, optional
        Units of distance, positive; for centred references also the posterior standard deviations.  By default the
        posterior standard deviations of each simulation, and for uniform references the sides of the box.
    levels : (L,) array in (0, 1), increasing, optional
        Credibility levels of the coverage curve; 0.01, 0.02, ..., 0.99 by default.
    n_threads : int, optional
        All by default.  The result does not depend on it.

    Returns
    -------
    TarpResult

    Raises
    ------
    TypeError, ValueError
        If shapes disagree, a number is not finite or outside its interval, or draws do not vary and `scales` is not
        given.

    Notes
    -----
    Lemos, Coogan, Hezaveh and Perreault-Levasseur (2023), algorithm 2; NA-DPVI (2025), eqs 27, A62 and A63.  A tie of
    distances counts half.  Means and standard deviations of a posterior are those of its draws *and* the true value
    together: the reference points then treat the true value like any draw, so that for an exact posterior its rank is
    exactly uniform even with few draws.  The distance may change from one simulation to the next, for every share
    compares draws of one posterior with each other.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(3)
    >>> centre = rng.normal(size=(300, 2))
    >>> thetas = centre + rng.normal(size=(300, 2))
    >>> exact = run_tarp(centre + rng.normal(size=(1000, 300, 2)), thetas)
    >>> exact.rmse < 2 * exact.rmse_floor, check_tarp(exact).passed
    (True, True)
    >>> narrow = run_tarp(centre + 0.5 * rng.normal(size=(1000, 300, 2)), thetas)
    >>> check_tarp(narrow).passed
    False
    """
    draws = check_draws("samples", samples)
    truth = check_thetas(thetas, draws)
    points: FloatArray | None = None
    bounds: tuple[npt.ArrayLike, npt.ArrayLike] | None = None
    if isinstance(references, str):
        kind = check_choice("references", references, _REFERENCES)
    else:
        kind = "given"
        points = check_float_array("references", references, (None, *truth.shape))
        n_repeats = points.shape[0]
    if kind == "uniform":
        bounds = (truth.min(axis=0), truth.max(axis=0))
        if np.any(bounds[0] == bounds[1]):
            raise ValueError("thetas must differ in every dimension for uniform references")
    stream = TarpAccumulator(
        references=kind, n_repeats=n_repeats, seed=seed, levels=levels, bounds=bounds, n_threads=n_threads
    )
    stream.add(draws, truth, centres=centres, scales=scales, references=points)
    return stream.result()


def _pooled_moments(draws: DrawArray, truth: FloatArray, n_threads: int | None) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the draws and the true value together, each (K, d)."""
    count = draws.shape[0]
    mean, squares = draw_moments(draws, n_threads=n_threads)
    step = truth - mean
    return mean + step / (count + 1), np.sqrt((squares + step**2 * (count / (count + 1.0))) / count)


def _check_spread(stddev: FloatArray) -> FloatArray:
    if not np.all(stddev > 0.0):
        raise ValueError("samples must vary in every dimension of every simulation unless scales are given")
    return stddev


def _check_scales(scales: npt.ArrayLike, shape: tuple[int, int]) -> FloatArray:
    array = np.asarray(scales)
    unit = check_float_array("scales", array, shape if array.ndim == 2 else (shape[1],))
    if not np.all(unit > 0.0):
        raise ValueError("scales must be positive")
    return np.ascontiguousarray(np.broadcast_to(unit, shape))


def _check_bounds(bounds: tuple[npt.ArrayLike, npt.ArrayLike]) -> tuple[FloatArray, FloatArray]:
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise TypeError("bounds must be a pair of arrays, the lower and the upper corner")
    low = check_float_array("bounds", bounds[0], (None,))
    high = check_float_array("bounds", bounds[1], low.shape)
    if low.size == 0 or not np.all(low < high):
        raise ValueError("bounds must be non-empty, each lower one below its upper one")
    return low, high

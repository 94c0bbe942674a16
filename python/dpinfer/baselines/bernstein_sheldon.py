"""Noise-aware inference for conjugate exponential families (Bernstein and Sheldon 2018): release, then Gibbs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._progress import ProgressCallback, resolve_progress
from dpinfer._records import as_record_array
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.accounting import Adjacency, LedgerAccount, as_adjacency
from dpinfer.baselines.families import (
    BinomialFamily,
    CategoricalFamily,
    ConjugateFamily,
    ExponentialFamily,
    conjugate_family,
)
from dpinfer.baselines.laplace_mixture import draw_noise_variance, draw_prior_noise_variance
from dpinfer.errors import RecordError
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.lattice_sums import LatticeSum, pure_terms
from dpinfer.mechanism.null_records import without_null_records
from dpinfer.mechanism.run import RunControl, run_once
from dpinfer.release.statistic import StatisticRelease

__all__ = ["bernstein_sheldon_posterior", "gibbs_posterior", "release_statistics"]

FloatArray = npt.NDArray[np.float64]

_CHUNK = 1 << 16


def release_statistics(
    model: Any,
    X: npt.ArrayLike,
    *,
    epsilon: float,
    n_records: int,
    bounds: tuple[float, float] | None = None,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
) -> StatisticRelease:
    """Release the sufficient statistic of a conjugate model with Laplace noise.

    **Privacy.** Reads the records.  epsilon-differentially private with delta = 0, by discrete Laplace noise of scale
    ``L1 sensitivity / epsilon``, drawn independently for each coordinate on a lattice of at most 2**-30 of the largest
    contribution; all sums are exact integers.  L1 sensitivities, with N public:

    =====================  ======================  ==========================
    model                  add_remove, zero_out    replace_one
    =====================  ======================  ==========================
    Beta-Bernoulli         1                       1
    Beta-Binomial          n_trials                n_trials
    Dirichlet-Categorical  1                       2 (1 with two categories)
    Gamma-Exponential      bounds[1]               bounds[1]
    =====================  ======================  ==========================

    The proofs are in docs/derivations/baselines.md.  Bad records are refused before any noise is drawn.  Under zero_out
    a blanked record is NaN, and contributes nothing.

    Parameters
    ----------
    model : ConjugateFamily or conjugate model
        See :func:`dpinfer.baselines.conjugate_family`.
    X : (N,) or (N, 1) array
        Counts, category codes 0 ... M - 1, or non-negative numbers, as the model says.
    epsilon : float
        In (0, inf).
    n_records : int
        The *public* number of records.
    bounds : pair of float, optional
        The *public* section of the Gamma-Exponential model, in the units of X; a record outside it contributes nothing.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        The relation between neighbours.  Under "add_remove" the number of rows is private and `n_records` is a public
        constant; under the others both data sets have `n_records` rows, which is checked.
    random_source : RandomSource, optional
        The operating system's generator by default.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible releases
        that are marked NOT PRIVATE.
    ledger : LedgerAccount, optional
        ``PrivacyLedger(path).account(data_set)``: charged before the records are looked at, or refused.

    Returns
    -------
    StatisticRelease

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.
    BudgetExceededError
        If the ledger's budget would be exceeded; nothing was spent.

    Notes
    -----
    Bernstein and Sheldon (2018), section 3.1.  Deviation: the noise lies on a lattice.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.baselines import BinomialFamily
    >>> release = release_statistics(BinomialFamily(), np.ones(50), epsilon=1.0, n_records=50)
    >>> release.laplace_scale
    array([1.])
    """
    family = conjugate_family(model, bounds=bounds)
    epsilon = check_interval("epsilon", epsilon, 0.0)
    n_records = check_integer("n_records", n_records, 1, 2**31)
    relation = as_adjacency(adjacency)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    replace = relation is Adjacency.REPLACE_ONE
    high = family.high
    lattice = LatticeSum(np.zeros_like(high), high, replace=replace, n_nonzero=family.n_nonzero)

    def draw(values: FloatArray, key: bytes) -> FloatArray:
        chunks = (values[start : start + _CHUNK] for start in range(0, values.shape[0], _CHUNK))
        return lattice.release(chunks, epsilon=epsilon, key=key)

    noisy, said = run_once(
        pure_terms(epsilon, relation),
        "bernstein_sheldon",
        control,
        lambda: _contributions(family, X, n_records, relation),
        draw,
    )
    return StatisticRelease(
        method="bernstein_sheldon",
        names=family.names,
        noisy_statistics=noisy,
        laplace_scale=np.full(high.size, lattice.scale(epsilon)),
        n_records=n_records,
        event=pure_terms(epsilon, relation).event,
        adjacency=relation,
        secure=control.source.secure,
        settings=said | family.settings(),
    )


def _contributions(family: ConjugateFamily, X: npt.ArrayLike, n_records: int, relation: Adjacency) -> FloatArray:
    """Return what each record that is there contributes, (rows, s)."""
    records = as_record_array("X", X)
    rows = records.shape[0] if records.ndim else 0
    if rows and records.dtype.kind in "fiub":
        records, _ = without_null_records(relation, records, None)
    values = np.empty((0, family.high.size)) if rows and not records.shape[0] else family.contributions(records)
    if relation is not Adjacency.ADD_REMOVE and rows != n_records:
        raise RecordError(f"X must have n_records rows under {relation.value!r} adjacency")
    return values


def gibbs_posterior(
    model: Any,
    noisy_statistics: npt.ArrayLike,
    *,
    laplace_scale: npt.ArrayLike,
    n_records: int,
    bounds: tuple[float, float] | None = None,
    n_burn_in: int = 500,
    n_samples: int = 1000,
    seed: int = 0,
    progress: bool | ProgressCallback = False,
) -> FloatArray:
    """Draw from the noise-aware posteriors of K independent runs by Gibbs sampling, one chain each, in step.

    **Privacy.** Post-processing of released statistics; reads no records.

    Parameters
    ----------
    model : ConjugateFamily or conjugate model
    noisy_statistics : (K, s) or (s,) float64
        Released statistics z.
    laplace_scale : float or (s,) float64
        Scale b of the noise in each statistic.
    n_records : int
        The *public* number of records N.
    bounds : pair of float, optional
        As in :func:`release_statistics`.
    n_burn_in, n_samples : int
        Dropped and kept iterations.
    seed : int
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total).

    Returns
    -------
    (n_samples, K, n) float64
        Draws of the model's parameters on their natural space; (n_samples, n) for a one-dimensional input.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Bernstein and Sheldon (2018), Algorithm 1, from theta drawn from the prior and noise variances from
    Exponential(mean 2 b**2).  Each iteration draws s given (theta, z, variances) from
    ``N(z, diag(variances)) N(N mu(theta), N Sigma(theta))`` restricted to valid statistics, then the variances
    (:func:`dpinfer.baselines.laplace_mixture.draw_noise_variance`), then theta from its conjugate posterior given s.
    The normal law of s is the only approximation.  For unbounded data the moments are those of a public section, and
    the sum outside it is drawn too.

    Examples
    --------
    >>> from dpinfer.baselines import BinomialFamily
    >>> draws = gibbs_posterior(BinomialFamily(), [[300.0], [700.0]], laplace_scale=10.0, n_records=1000, n_samples=200)
    >>> draws.shape, bool(draws[:, 0].mean() < 0.4), bool(draws[:, 1].mean() > 0.6)
    ((200, 2, 1), True, True)
    """
    family = conjugate_family(model, bounds=bounds)
    noisy = check_float_array("noisy_statistics", noisy_statistics)
    single = noisy.ndim == 1
    noisy = check_float_array("noisy_statistics", noisy[None] if single else noisy, (None, family.high.size))
    scale = np.broadcast_to(check_float_array("laplace_scale", laplace_scale), family.high.shape)
    if not np.all(scale > 0.0):
        raise ValueError("laplace_scale must be positive")
    n_records = check_integer("n_records", n_records, 1)
    n_burn_in, n_samples = check_integer("n_burn_in", n_burn_in, 0), check_integer("n_samples", n_samples, 1)
    rng = np.random.default_rng(check_integer("seed", seed, 0))
    report = resolve_progress(progress, "Gibbs iterations")
    theta = family.draw_prior(noisy.shape[0], rng)
    variance = draw_prior_noise_variance(scale, noisy.shape, rng)
    statistic: FloatArray | None = None
    draws = np.empty((n_samples, *theta.shape))
    for iteration in range(n_burn_in + n_samples):
        statistic = family.draw_statistic(theta, noisy, variance, n_records, statistic, rng)
        variance = draw_noise_variance(noisy - statistic, scale, rng)
        theta = family.draw_parameters(statistic, theta, n_records, rng)
        if iteration >= n_burn_in:
            draws[iteration - n_burn_in] = theta
        report(iteration + 1, n_burn_in + n_samples)
    return draws[:, 0] if single else draws


def bernstein_sheldon_posterior(
    release: StatisticRelease, *, n_burn_in: int = 500, n_samples: int = 1000, seed: int = 0
) -> FloatArray:
    """Draw from the noise-aware posterior of one release.

    **Privacy.** Post-processing of a release: it costs nothing, however often it is called.

    Parameters
    ----------
    release : StatisticRelease
        From :func:`release_statistics`; it knows the model's prior.
    n_burn_in, n_samples, seed
        As in :func:`gibbs_posterior`.

    Returns
    -------
    (n_samples, n) float64

    Raises
    ------
    TypeError, ValueError
        If `release` is not one of these, or an argument is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.baselines import BinomialFamily
    >>> release = release_statistics(BinomialFamily(), np.ones(5000), epsilon=1.0, n_records=5000)
    >>> bool(bernstein_sheldon_posterior(release, n_samples=100).mean() > 0.95)
    True
    """
    if not isinstance(release, StatisticRelease):
        raise TypeError(f"release must be a StatisticRelease, got {type(release).__name__}")
    if release.method != "bernstein_sheldon":
        raise ValueError(f"release must come from release_statistics, got method {release.method!r}")
    return gibbs_posterior(
        _family_from_settings(dict(release.settings)),
        release.noisy_statistics,
        laplace_scale=release.laplace_scale,
        n_records=release.n_records,
        n_burn_in=n_burn_in,
        n_samples=n_samples,
        seed=seed,
    )


def _family_from_settings(settings: dict[str, Any]) -> ConjugateFamily:
    settings = {name: value for name, value in settings.items() if name not in ("mechanism", "version", "ledger")}
    kind = settings.pop("family")
    if kind == "binomial":
        return BinomialFamily(**settings)
    if kind == "categorical":
        return CategoricalFamily(tuple(settings["concentration"]))
    return ExponentialFamily(**(settings | {"bounds": tuple(settings["bounds"])}))

"""The private half of Gibbs-SS-Noisy: noisy second and fourth moments of bounded regression data."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray, IntArray
from dpinfer._validate import (
    as_record_array,
    check_float_array,
    check_integer,
    check_interval,
    check_numbers,
    check_response,
    known_shape,
)
from dpinfer.accounting import Adjacency, LedgerAccount, as_adjacency
from dpinfer.accounting.decimals import at_most, decimal_of
from dpinfer.errors import RecordError
from dpinfer.lab.baselines.gibbs.regression_indices import moment_indices, statistic_indices
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.lattice_sums import LatticeSum, pure_terms
from dpinfer.mechanism.private_run import RunControl
from dpinfer.mechanism.records import without_null_records
from dpinfer.mechanism.run import run_once
from dpinfer.release.statistic import StatisticRelease

__all__ = ["release_regression_statistics"]

_CHUNK = 2048  # records at once: memory only


def release_regression_statistics(
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    epsilon: float,
    n_records: int,
    feature_bound: npt.ArrayLike,
    response_bound: float,
    moment_share: float = 0.5,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
) -> StatisticRelease:
    """Release the sufficient statistics of linear regression, and moments of the features, with Laplace noise.

    Data are clipped to public bounds, x_j to [-B_j, B_j] and y to [-B_y, B_y], and a constant 1 (the bias) is appended.
    Released are the unique entries of X'X (without its known last entry N), X'y, y'y, and the unique third and fourth
    moments of the features.

    **Privacy.** Reads the records.  epsilon-differentially private with delta = 0: ``(1 - moment_share) epsilon`` for S
    and ``moment_share epsilon`` for the moments, by basic composition.  The noise is independent discrete Laplace, of
    scale ``L1 sensitivity / epsilon``, on each unique entry, on a lattice; sums are exact integers.  Under add/remove
    and zero-out the L1 sensitivity is exactly the sum of the entries of one record at the bounds,

        sum_{i<=j} B_i B_j + sum_i B_i + (1 + sum_i B_i) B_y + B_y**2

    for S, and the sum over unique index sets of the products of bounds for the moments.  Under replace-one the upper
    bound is twice that for entries of either sign and once for squares.  The proof is in docs/derivations/baselines.md.
    Clipping is each record's own; bad records are refused before any noise is drawn.  Under zero_out a blanked record
    is a row of NaN, response included, and contributes nothing.

    Parameters
    ----------
    X : (N, d) array
    y : (N,) array
    epsilon : float
        In (0, inf).
    n_records : int
        The *public* number of records.
    feature_bound : float or (d,) array
        Public B_j, positive, in the units of X.
    response_bound : float
        Public B_y, positive, in the units of y.
    moment_share : float in [0, 1)
        Share of epsilon for the third and fourth moments; 0 releases none, and the sampler must then be given public
        ones.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    random_source : RandomSource, optional
        The operating system's generator by default.
    ledger : LedgerAccount, optional
        ``PrivacyLedger(path).account(data_set)``: charged before the records are looked at, or refused.

    Returns
    -------
    StatisticRelease
        With the statistics in the order of :func:`statistic_indices`, then of :func:`moment_indices`.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used, or `feature_bound` is not for as many columns.
    BudgetExceededError
        If the ledger's budget would be exceeded; nothing was spent.

    Notes
    -----
    Bernstein and Sheldon (2019), sections 3.1 and 3.4.  Deviations: first and second moments are not released twice;
    the noise lies on a lattice; bounds are public, where the authors' code reads them from the data.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.eye(40)[:, :2], np.ones(40)
    >>> release = release_regression_statistics(X, y, epsilon=1.0, n_records=40, feature_bound=1.0, response_bound=1.0)
    >>> release.noisy_statistics.size, release.settings["n_features"]
    (18, 2)
    """
    epsilon = check_interval("epsilon", epsilon, 0.0)
    n_records = check_integer("n_records", n_records, 1, 2**31)
    share = check_interval("moment_share", moment_share, 0.0, 1.0, low_open=False)
    bound = check_float_array("feature_bound", feature_bound)
    if np.ndim(feature_bound) == 0:
        bound = bound.reshape(())
    if bound.ndim > 1 or not np.all(bound > 0.0):
        raise ValueError("feature_bound must be a positive number, or one for each column")
    response_bound = check_interval("response_bound", response_bound, 0.0)
    relation = as_adjacency(adjacency)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    _check_layout(X, y, bound)
    (noisy, scales, bound), said = run_once(
        pure_terms(epsilon, relation),
        "gibbs_ss_noisy",
        control,
        lambda: _check(X, y, bound, n_records, relation),
        lambda records, key: _draw(*records, (response_bound, epsilon, share), relation, key),
    )
    n_features = bound.size
    return StatisticRelease(
        method="gibbs_ss_noisy",
        names=_names(n_features, share > 0.0),
        noisy_statistics=noisy,
        laplace_scale=scales,
        n_records=n_records,
        event=pure_terms(epsilon, relation).event,
        adjacency=relation,
        secure=control.source.secure,
        settings=said | _settings(n_features, bound, response_bound, share),
    )


def _check_layout(X: Any, y: Any, bound: FloatArray) -> None:
    """Refuse arrays of a wrong shape or type, without looking at a record."""
    shape = known_shape(X)
    if shape is not None:
        if len(shape) != 2 or shape[1] < 1:
            raise RecordError("X must be two-dimensional with at least one column")
        if bound.ndim == 1 and bound.size != shape[1]:
            raise RecordError(f"X must have as many columns as feature_bound, {bound.size}, got {shape[1]}")
    check_numbers("X", X)
    check_response(X, y)


def _check(
    X: npt.ArrayLike, y: npt.ArrayLike, bound: FloatArray, n_records: int, relation: Adjacency
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], FloatArray]:
    """Return the records that are there, and a bound for each column."""
    features, response = as_record_array("X", X), as_record_array("y", y)
    _check_layout(features, response, bound)
    if relation is not Adjacency.ADD_REMOVE and features.shape[0] != n_records:
        raise RecordError(f"X must have n_records rows under {relation.value!r} adjacency")
    features, response = without_null_records(relation, features, response)
    if not (np.all(np.isfinite(features)) and np.all(np.isfinite(response))):
        raise RecordError("X and y must be finite: they hold a NaN or an infinity")
    return features, response, np.broadcast_to(bound, features.shape[1]).copy()


def _draw(
    features: npt.NDArray[Any],
    response: npt.NDArray[Any],
    bound: FloatArray,
    public: tuple[float, float, float],
    relation: Adjacency,
    key: bytes,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the noisy statistics, their Laplace scales and the bounds; `public`: response bound, epsilon, share."""
    response_bound, epsilon, share = public
    n_features = bound.size
    limits = np.concatenate((bound, [1.0, response_bound]))
    noisy: list[FloatArray] = []
    scales: list[FloatArray] = []
    blocks: list[tuple[tuple[tuple[int, ...], ...], float]] = [(statistic_indices(n_features), epsilon)]
    if share > 0.0:
        second = share * epsilon
        # Rounded down, so that the two parts add up to at most epsilon exactly.
        blocks = [(statistic_indices(n_features), at_most(decimal_of(epsilon) - decimal_of(second)))]
        blocks.append((moment_indices(n_features), second))
    for stream, (indices, part) in enumerate(blocks):
        factors = np.array(indices)
        lattice = _lattice(factors, limits, n_features, relation is Adjacency.REPLACE_ONE)
        products = _products(features, response, factors, limits)
        noisy.append(lattice.release_total(lattice.total(products), epsilon=part, key=key, stream=stream))
        scales.append(np.full(len(indices), lattice.scale(part)))
    return np.concatenate(noisy), np.concatenate(scales), bound


def _lattice(factors: IntArray, limits: FloatArray, n_features: int, replace: bool) -> LatticeSum:
    """Return bounds of every product; a product with even powers alone cannot be negative."""
    high = np.ones(factors.shape[0])
    for column in factors.T:
        high = high * limits[column]
    signed = np.where(factors == n_features, -1, factors)
    even = np.array([all(list(row).count(i) % 2 == 0 for i in row if i >= 0) for row in signed])
    return LatticeSum(np.where(even, 0.0, -high), high, replace=replace)


def _products(
    features: npt.NDArray[Any], response: npt.NDArray[Any], factors: IntArray, limits: FloatArray
) -> Iterator[FloatArray]:
    """Yield the products of a chunk of clipped records; elementwise only, so a record's are its own."""
    for start in range(0, features.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        block = features[rows].astype(np.float64)
        columns = np.concatenate((block, np.ones((block.shape[0], 1)), response[rows, None].astype(np.float64)), axis=1)
        clipped = np.ascontiguousarray(np.clip(columns, -limits, limits).T)
        product = clipped[factors[:, 0]]
        for column in factors.T[1:]:
            product *= clipped[column]
        yield product.T


def _names(n_features: int, with_moments: bool) -> tuple[str, ...]:
    factor = [f"x{index}" for index in range(n_features)] + ["1", "y"]
    names = ["*".join(factor[i] for i in index) for index in statistic_indices(n_features)]
    if with_moments:
        names += ["*".join(factor[i] for i in index) for index in moment_indices(n_features)]
    return tuple(names)


def _settings(n_features: int, bound: FloatArray, response_bound: float, share: float) -> dict[str, Any]:
    return {
        "n_features": n_features,
        "feature_bound": bound.tolist(),
        "response_bound": response_bound,
        "moment_share": share,
    }

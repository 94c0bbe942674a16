"""The private half of Bernstein and Sheldon (2018): the noisy statistic of a conjugate exponential family."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import as_record_array, check_integer, check_interval, check_values
from dpinfer.accounting import Adjacency, LedgerAccount, as_adjacency
from dpinfer.errors import RecordError
from dpinfer.lab.baselines.contributions import contributions
from dpinfer.lab.baselines.gibbs.families import ConjugateFamily, conjugate_family
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.lattice_sums import LatticeSum, pure_terms
from dpinfer.mechanism.private_run import RunControl
from dpinfer.mechanism.records import without_null_records
from dpinfer.mechanism.run import run_once
from dpinfer.release.statistic import StatisticRelease

__all__ = ["release_statistics"]

_CHUNK = 1 << 16  # records at once: memory only


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
        See :func:`dpinfer.lab.baselines.conjugate_family`.
    X : (N,) or (N, 1) array
        Counts, category codes 0 ... M - 1, or non-negative numbers, depending on the model.
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
    >>> from dpinfer.lab.baselines import BinomialFamily
    >>> release = release_statistics(BinomialFamily(), np.ones(50), epsilon=1.0, n_records=50)
    >>> release.laplace_scale
    array([1.])
    """
    family = conjugate_family(model, bounds=bounds)
    epsilon = check_interval("epsilon", epsilon, 0.0)
    n_records = check_integer("n_records", n_records, 1, 2**31)
    relation = as_adjacency(adjacency)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    check_values(X, "a conjugate family")
    replace = relation is Adjacency.REPLACE_ONE
    high = family.high
    lattice = LatticeSum(np.zeros_like(high), high, replace=replace, n_nonzero=family.n_nonzero)

    def draw(values: FloatArray, key: bytes) -> FloatArray:
        chunks = (values[start : start + _CHUNK] for start in range(0, values.shape[0], _CHUNK))
        return lattice.release_total(lattice.total(chunks), epsilon=epsilon, key=key)

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
    """Return the contribution of each record that is not null, (rows, s)."""
    records = as_record_array("X", X)
    rows = records.shape[0] if records.ndim else 0
    if rows and records.dtype.kind in "fiub":
        records, _ = without_null_records(relation, records, None)
    values = contributions(family, records)
    if relation is not Adjacency.ADD_REMOVE and rows != n_records:
        raise RecordError(f"X must have n_records rows under {relation.value!r} adjacency")
    return values

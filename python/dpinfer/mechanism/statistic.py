"""The one-shot mechanism of conjugate models: their clipped sufficient statistic, released once with Laplace noise."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import standard_arithmetic
from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting import Adjacency, ApproximateEvent, LedgerAccount, NoiseTable, as_adjacency, noise_table
from dpinfer.accounting.decimals import check_epsilon
from dpinfer.errors import RecordError
from dpinfer.mechanism.discrete_laplace import KeystreamIntegers
from dpinfer.mechanism.lattice_sums import LatticeSum, pure_terms
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import ReleaseTerms, RunControl
from dpinfer.mechanism.records import check_arguments, load_records, records_of
from dpinfer.mechanism.run import run_once
from dpinfer.mechanism.silos.rows import described
from dpinfer.mechanism.sources.row_source import Records, RowSource, total_rows
from dpinfer.models import BetaBernoulli, BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential
from dpinfer.release import CountRelease, StatisticRelease

_CHUNK = 1 << 16  # records at once: memory only
_PRIOR_LEVELS = 41  # quantiles of the prior in an average: time
_CLIPS = 200  # candidates on a log scale, 5% apart: tolerance
_COARSE_BITS = 10  # rounding below 2**-10 of the bound, for exact laws of small tables


def default_clip(model: GammaExponential, *, epsilon: float, n_records: int) -> float:
    """Return the bound at which to clip waiting times, in their units: narrowest posterior, averaged over the prior.

    **Privacy.** Reads no records; `n_records` is public.

    Notes
    -----
    With S = sum min(x, c) + Laplace(c / epsilon) the information about log(rate) is (r dE[S]/dr)**2 / Var(S); the
    function maximises the mean over the prior of log(information + the prior's own information).
    """
    levels = (np.arange(_PRIOR_LEVELS) + 0.5) / _PRIOR_LEVELS
    rate = np.asarray(special.gammaincinv(model.shape, levels) / model.rate, dtype=np.float64)
    clip = np.exp(np.linspace(-7.0, 3.0, _CLIPS))[:, None] * model.rate / model.shape
    information = clipped_information(rate, clip, epsilon=epsilon, n_records=n_records)
    return float(clip[int(np.argmax(np.log(information + model.shape).mean(axis=1))), 0])


def clipped_information(rate: FloatArray, clip: FloatArray | float, *, epsilon: float, n_records: int) -> FloatArray:
    """Return the information of noisy clipped waiting times about log(rate): (r dE[S]/dr)**2 / Var(S), any shape."""
    product = rate * clip
    tail = np.exp(-product)
    mean = -np.expm1(-product) / rate
    variance = 2.0 * (-np.expm1(-product) - product * tail) / rate**2 - mean**2
    slope = n_records * (mean - clip * tail)
    return np.asarray(slope**2 / (n_records * np.maximum(variance, 0.0) + 2.0 * np.square(clip / epsilon)))


def run_statistic(
    model: ConjugateModel,
    X: npt.ArrayLike | Records,
    *,
    epsilon: float,
    n_records: int | CountRelease,
    clip: float | str = "auto",
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    noise: str | NoiseTable = "laplace",
) -> StatisticRelease:
    """Release the sufficient statistic of a conjugate model once, for an exact noise-aware posterior.

    **Privacy.** Reads the records.  epsilon-differentially private with delta = 0: integer sums over the records and
    discrete Laplace noise of scale ``L1 sensitivity / epsilon``, independent for each number.  L1 sensitivities:

    =====================  =================================  ======================  =============
    model                  released                           add_remove, zero_out    replace_one
    =====================  =================================  ======================  =============
    Beta-Bernoulli         number of ones                     1                       1
    Beta-Binomial          number of successes                n_trials                n_trials
    Dirichlet-Categorical  counts of all M categories         1                       2
    Gamma-Exponential      sum of min(x, clip)                clip                    clip
    =====================  =================================  ======================  =============

    Proofs: docs/derivations/one-shot-statistic.md.  Bad records are refused before any noise is drawn.

    Parameters
    ----------
    model : BetaBernoulli, BetaBinomial, DirichletCategorical or GammaExponential
    X : (N,) or (N, 1) array, RowSource, ShardedRows or Silos
        The records. A :class:`dpinfer.mechanism.RowSource` is read a block at a time;
        :class:`dpinfer.mechanism.ShardedRows` are read by workers.  :class:`dpinfer.mechanism.Silos` mask their
        sums, and add the noise (docs/silos.md); their number of rows is not checked.
    epsilon : float
        In [1e-50, 1e50], the decimal that is typed.
    n_records : int or CountRelease
        The *public* number of records; or, for counts of successes, the result of :func:`dpinfer.release_count`,
        whose noise the posterior then counts and whose part goes into the guarantee.
    clip : "auto" or float
        Waiting times enter as min(x, clip); "auto" takes :func:`default_clip`, from public numbers alone.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        Under "add_remove" the number of rows is private and `n_records` is a public constant; under the others both
        data sets have `n_records` rows, which is checked.
    random_source, ledger
        As in :func:`dpinfer.run_dpvi`.
    noise : "laplace", str or NoiseTable
        For counts of successes: another law, registered by a package (docs/stability.md). It is a table of whole
        numbers, from which dpinfer draws noise and computes delta: the release is (epsilon, delta)-private.

    Returns
    -------
    StatisticRelease
        :func:`dpinfer.noise_aware_posterior` turns it into a posterior.

    Notes
    -----
    For these statistics the convex hull of a record's contributions is an interval or the cross-polytope, whose K-norm
    noise (Hardt and Talwar 2010) is this Laplace noise; a Gaussian at delta = 1e-5 is twice as wide.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> release = run_statistic(dpi.models.BetaBernoulli(1, 1), np.ones(200), epsilon=1.0, n_records=200)
    >>> bool(dpi.noise_aware_posterior(release).mean[0] > 0.9)
    True
    """
    if not getattr(model, "has_statistic", False):
        raise TypeError(f"model must be a conjugate model with a sufficient statistic, got {type(model).__name__}")
    records = check_arguments(model, None, X, ("blocks", "parts", "sites"))
    epsilon = check_epsilon("epsilon", epsilon)
    relation = as_adjacency(adjacency)
    counted = n_records if isinstance(n_records, CountRelease) else None
    if isinstance(n_records, CountRelease):
        n_records = _counted(model, n_records, relation)
    n_records = check_integer("n_records", n_records, 1, 2**31)
    sites: Any = records
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    records.check_ledger(ledger)
    bound = _clip(model, clip, epsilon, n_records)
    replace = relation is Adjacency.REPLACE_ONE
    lattice, names = lattice_of(model, bound, replace=replace, coarse=records.own_noise)
    table = None if noise == "laplace" else _table(model, records, noise, epsilon, lattice)
    terms = pure_terms(epsilon, relation)
    if table is not None:
        event = ApproximateEvent(epsilon, table.delta(epsilon, lattice.l1_sensitivity), relation.value)
        terms = ReleaseTerms(event, relation, event.delta)

    def load() -> Any:
        if records.own_noise:
            query = {"epsilon": epsilon, "adjacency": relation.value, "clip": bound}
            return sites.open("statistic", model, query, n_records, 1)
        total, n_rows = total_of(records, model, relation, lattice)
        if replace and n_rows != n_records:
            raise RecordError("X must have n_records rows under 'replace_one' adjacency")
        return total

    def draw(total: Any, key: bytes) -> tuple[FloatArray, dict[str, Any], bool]:
        if table is not None:
            # The law is complete, as text, since the weights have more digits than doubles.
            law = {"law": table.name, "package": table.package, "weights": [str(weight) for weight in table.weights]}
            return np.array([total[0] + drawn(table, key)], dtype=np.float64), {"noise": law}, True
        if not records.own_noise:
            return lattice.release_total(total, epsilon=epsilon, key=key), {}, True
        sums = np.asarray(total.sum(b"", len(names)) * lattice.step)
        record = described(sites.terms, total, ReleaseTerms(terms.event, relation, 0.0))
        return sums, {"silos": record}, total.secure

    (noisy, told, secure), said = run_once(terms, "statistic", control, load, draw)
    return StatisticRelease(
        method="one_shot",
        names=names,
        noisy_statistics=noisy,
        laplace_scale=np.full(len(names), lattice.scale(epsilon) if table is None else math.sqrt(table.variance / 2.0)),
        n_records=n_records,
        event=terms.event,
        adjacency=relation,
        delta=0.0 if table is None else terms.delta,
        secure=secure and control.source.secure and (counted is None or counted.secure),
        other_parts=() if counted is None else counted.parts,
        leaks=() if counted is None else counted.leaks,
        model_spec=model.to_dict(),
        settings=said | told | ({} if bound is None else {"clip": bound}) | _said_of(counted),
    )


def _table(
    model: ConjugateModel, records: Records, noise: str | NoiseTable, epsilon: float, lattice: LatticeSum
) -> NoiseTable:
    """Return the table of another law than Laplace's; reads no record."""
    if not isinstance(model, (BetaBernoulli, BetaBinomial)):
        raise ValueError(f"noise must be 'laplace' for {type(model).__name__}: other laws are for counts of successes")
    if records.own_noise:
        raise ValueError("noise must be 'laplace' with Silos, whose sites add shares of that noise")
    return noise_table(noise, epsilon=epsilon, sensitivity=lattice.l1_sensitivity)


def drawn(table: NoiseTable, key: bytes) -> int:
    """Draw from a table, exactly: a whole number below its total, and where that lies among the sums of its weights."""
    law = (*table.weights[:0:-1], *table.weights)
    return bisect_right(list(accumulate(law)), KeystreamIntegers(key, 0).below(table.total)) - len(table.weights) + 1


def _counted(model: ConjugateModel, count: CountRelease, relation: Adjacency) -> int:
    """Return the released number of records, if its noise can be counted in the posterior of this model."""
    if not isinstance(model, (BetaBernoulli, BetaBinomial)):
        raise TypeError(f"n_records must be an integer for {type(model).__name__}, got {type(count).__name__}")
    if count.adjacency is not relation:
        raise ValueError(f"n_records must be released under {relation.value!r}, got {count.adjacency.value!r}")
    return count.n_records


def _said_of(count: CountRelease | None) -> dict[str, Any]:
    """Return the settings' record of a released number of records."""
    return {} if count is None else {"noisy_n_records": count.noisy_count, "n_records_scale": count.laplace_scale}


def _clip(model: ConjugateModel, clip: float | str, epsilon: float, n_records: int) -> float | None:
    if not isinstance(model, GammaExponential):
        if clip != "auto":
            raise ValueError(f"clip must be 'auto' for {type(model).__name__}, whose records are bounded")
        return None
    if isinstance(clip, str):
        check_choice("clip", clip, ("auto",))
        return default_clip(model, epsilon=epsilon, n_records=n_records)
    return check_interval("clip", clip, 1e-100, 1e100)


def lattice_of(
    model: Any, bound: float | None, *, replace: bool, coarse: bool = False
) -> tuple[LatticeSum, tuple[str, ...]]:
    """Return lattice and names of the sums; the lattice of counts is the whole numbers.

    A `coarse` lattice has some 2**10 steps in a record's bound: shares of noise are drawn by rejection there.
    """
    if bound is not None:
        step = 2.0 ** (math.floor(math.log2(bound)) - _COARSE_BITS) if coarse else None
        lattice = LatticeSum(np.zeros(1), np.array([bound]), replace=replace, step=step)
        return lattice, ("sum of clipped waiting times",)
    if isinstance(model, DirichletCategorical):
        width = len(model.concentration)
        lattice = LatticeSum(np.zeros(width), np.ones(width), replace=replace, n_nonzero=1, step=1.0)
        return lattice, tuple(f"count[{index}]" for index in range(width))
    return LatticeSum(np.zeros(1), np.array([float(model.trials)]), replace=replace, step=1.0), ("successes",)


def total_of(X: Any, model: ConjugateModel, relation: Adjacency, lattice: LatticeSum) -> tuple[list[int], int]:
    """Return the exact sum over the records of any source, and their number.

    **Privacy.** Reads the records; the result has no noise.
    """
    parts = records_of(X).each_part(_total_of_part, model, relation, lattice)
    return _add(total for total, _ in parts), total_rows(*(n_rows for _, n_rows in parts))


@standard_arithmetic()
def _total_of_part(
    source: RowSource, model: ConjugateModel, relation: Adjacency, lattice: LatticeSum
) -> tuple[list[int], int]:
    """Return the sum, and the number of records."""
    totals, n_rows = [lattice.total(())], 0
    for (values,) in source.each(lambda values, y: load_records(model, values, y, relation)):
        n_rows += len(values)
        chunks = (_contributions(model, values[start : start + _CHUNK]) for start in range(0, len(values), _CHUNK))
        totals.append(lattice.total(chunks))
    return _add(totals), n_rows


def _add(totals: Iterable[list[int]]) -> list[int]:
    return [sum(values) for values in zip(*totals, strict=True)]


def _contributions(model: ConjugateModel, values: FloatArray) -> FloatArray:
    """Return each record's numbers, (rows, s); the lattice holds them within their bounds."""
    if isinstance(model, DirichletCategorical):
        return np.asarray(values[:, None] == np.arange(len(model.concentration)), dtype=np.float64)
    return values[:, None]

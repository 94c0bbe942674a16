"""How common each category is, released with noise for a small part of the privacy budget."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import as_record_array, check_integer, check_interval, check_numbers, known_shape
from dpinfer.accounting import (
    Adjacency,
    Composed,
    GaussianEvent,
    Guarantee,
    LedgerAccount,
    PrivacyPlan,
    as_adjacency,
    calibrate_noise_multiplier,
    run_event,
)
from dpinfer.accounting.accountant import MAX_NOISE_MULTIPLIER, AccountantName, certify, check_stated_epsilon
from dpinfer.errors import SchemaError
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.lattice_sums import noisy_counts
from dpinfer.mechanism.private_run import ReleaseTerms, RunControl
from dpinfer.mechanism.records import records_of, without_null_records
from dpinfer.mechanism.run import run_once
from dpinfer.release import Part
from dpinfer.release.guarantee import Stated, check_parts
from dpinfer.tabular.columns import BinaryColumn, CategoricalColumn
from dpinfer.tabular.schema import Schema
from dpinfer.tabular.table import Table, UnreadTable

_FEWEST = 1e-3  # keeps a share positive where a count is a thousand standard deviations below zero: tolerance
_INSECURE = "the shares of the categories were drawn with a seeded generator"


@dataclass(frozen=True, kw_only=True)
class SharesPlan:
    """A release of shares and a run after it, which meet one privacy target together.

    **Privacy.** Holds no records.  ``epsilon`` is that of both, composed; ``run.epsilon`` is the run's own.

    Raises ValueError if `epsilon` is below the one that the run's accountant certifies.

    Parameters
    ----------
    noise_multiplier : float
        For :func:`release_shares`.
    run : PrivacyPlan
        For :func:`dpinfer.run_dpvi`.
    epsilon, delta : float
        Certified for the two together.
    adjacency : Adjacency
    """

    noise_multiplier: float
    run: PrivacyPlan
    epsilon: float
    delta: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        terms: dict[str, Any] = {"delta": self.delta, "adjacency": self.adjacency, "accountant": self.run.accountant}
        check_stated_epsilon("epsilon", self.epsilon, self.event, **terms)

    @property
    def event(self) -> Composed:
        """The privacy event of both."""
        return Composed((GaussianEvent(self.noise_multiplier), self.run.event))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of both together: a sentence with conversions to other terms."""
        return Guarantee(
            self.event,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            accountant=self.run.accountant,
            released="the shares of the categories and all that the run releases",
        )


def plan_with_shares(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    n_steps: int,
    budget_share: float = 0.05,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: AccountantName = "pld",
) -> SharesPlan:
    """Find the noise with which :func:`release_shares` and a Poisson-sampled run meet a privacy target together.

    **Privacy.** Reads no records.  The accountant certified the composition of both.

    Raises BudgetExceededError if no noise meets the target.

    Parameters
    ----------
    target_epsilon : float
        In (0, inf).
    target_delta : float
        In (0, 1).
    sample_rate : float
        Of the run, in (0, 1].
    n_steps : int
        Of the run, at least 1.
    budget_share : float
        Share of the squared signal-to-noise ratio that the counts get, in (0, 1); it makes the run's noise about
        1 / sqrt(1 - budget_share) times as large.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
        "replace_one" needs a `sample_rate` of 1.
    accountant : {"pld", "prv", "rdp"}

    Notes
    -----
    n steps of noise multiplier s and rate q are worth about n q**2 / s**2 (Dong, Roth and Su 2022, section 5), one
    Gaussian 1 / s**2; only the split rests on that, not the guarantee.

    Examples
    --------
    >>> plan = plan_with_shares(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.1, n_steps=2500)
    >>> plan.epsilon <= 1.0, plan.run.epsilon < plan.epsilon
    (True, True)
    """
    share = check_interval("budget_share", budget_share, 0.0, 1.0)
    relation = as_adjacency(adjacency)
    rate = check_interval("sample_rate", sample_rate, 0.0, 1.0, high_open=False)
    steps = check_integer("n_steps", n_steps, minimum=1)
    ratio = math.sqrt((1.0 - share) / share) / (rate * math.sqrt(steps))

    def both(noise_multiplier: float) -> Composed:
        run = run_event(noise_multiplier, rate, steps, "poisson", None)
        return Composed((GaussianEvent(ratio * noise_multiplier), run))

    noise_multiplier = calibrate_noise_multiplier(
        both, target_epsilon=target_epsilon, target_delta=target_delta, adjacency=relation, accountant=accountant
    )
    bound = certify(both(noise_multiplier), delta=target_delta, adjacency=relation, accountant=accountant)
    run = PrivacyPlan.from_noise_multiplier(
        noise_multiplier, rate, steps, target_delta, adjacency=relation, accountant=accountant
    )
    return SharesPlan(
        noise_multiplier=ratio * noise_multiplier, run=run, epsilon=bound.epsilon, delta=bound.delta, adjacency=relation
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SharesRelease(Stated):
    """Noisy counts of the categories of a table's columns.

    **Privacy.** Safe to publish: counts carry the noise that `epsilon` accounts for, and `schema` is computed from
    them.

    Parameters
    ----------
    schema : Schema
        The table's, with the shares of every categorical and binary column declared, and this release among its parts.
    noisy_counts : mapping
        Column name to counts, (categories,) int64; noise makes some negative.
    count_stddev : float
        Standard deviation of the noise in each.
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks
        As in :class:`dpinfer.Release`; `leaks` has first those of its schema.
    settings : mapping
        The ledger's entry, if there is one.
    """

    schema: Schema
    noisy_counts: Mapping[str, npt.NDArray[np.int64]]
    count_stddev: float
    event: GaussianEvent
    delta: float = field()
    adjacency: Adjacency = field()
    settings: Mapping[str, Any] = field(default_factory=dict)
    _part_name: ClassVar[str] = "shares of the categories"
    _released: ClassVar[str] = "all counts"
    _frozen: ClassVar[tuple[str, ...]] = ("noisy_counts", "settings")

    def __repr__(self) -> str:
        return f"SharesRelease({len(self.noisy_counts)} columns)\n  {self.guarantee}"


def release_shares(
    table: Table | UnreadTable,
    *,
    noise_multiplier: float,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
) -> SharesRelease:
    """Release how common each category of every categorical and binary column is.

    The model of a run on this table takes ``release.schema.feature_moments`` with ``feature_moments_known=True``; the
    posterior with a full Hessian is then narrower, and its predictions better calibrated.

    **Privacy.** Reads the records.  Adjacency: `adjacency`.  With k columns counted, the counts of all categories have
    L2 sensitivity sqrt(k) when a record is added, removed or blanked and at most 2 sqrt(k) when one is replaced; each
    gets Gaussian noise of standard deviation ``noise_multiplier * sqrt(k)``, rounded to an integer.  Proof in
    docs/derivations/released-shares.md.  It composes with the run: see :func:`plan_with_shares`, or charge both to one
    ledger.  A release of the run that uses the shares also holds them, and states both guarantees after
    ``release.with_parts(*shares.parts).with_leaks(*shares.leaks)``, which ``dpinfer fit`` calls itself.

    Raises SchemaError if the table has neither a categorical nor a binary column. Raises InsecureReleaseError if a
    ledger is given and the noise is not secure. Raises BudgetExceededError if the ledger's budget would be exceeded.

    Parameters
    ----------
    table : Table or UnreadTable
        The records, all of those that the run reads; an unread table is read when the ledger is charged.
    noise_multiplier : float
        Noise over sensitivity, in (0, 1e6]: ``SharesPlan.noise_multiplier``.
    delta : float
        In (0, 1), where the epsilon of the counts alone is stated.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    ledger : LedgerAccount, optional
        ``PrivacyLedger(path).account(data_set)``: charged before the records are looked at, or refused.
    random_source : RandomSource, optional
        The operating system's generator by default.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible releases
        that are marked NOT PRIVATE.

    Notes
    -----
    A share is in proportion to the mean of the count given its noisy value y and a flat prior on [0, inf),
    y + s phi(y / s) / Phi(y / s): close to y where y is many s, positive below zero.

    Examples
    --------
    >>> import numpy as np
    >>> schema = Schema.from_dict({"columns": {"pet": {"kind": "categorical", "categories": ["cat", "dog"]}}})
    >>> table = Table(np.repeat(np.eye(2), [3000, 1000], axis=0), None, schema)
    >>> shares = release_shares(table, noise_multiplier=5.0, delta=1e-5).schema.columns[0].shares
    >>> abs(shares[0] - 0.75) < 0.05
    True
    """
    if not isinstance(table, (Table, UnreadTable)):
        raise TypeError(f"table must be a Table, got {type(table).__name__}")
    if isinstance(table, Table):
        _check_features(table.X, table.feature_names)
    multiplier = check_interval("noise_multiplier", noise_multiplier, 0.0, MAX_NOISE_MULTIPLIER, high_open=False)
    event = GaussianEvent(multiplier)
    relation = as_adjacency(adjacency)
    delta = check_interval("delta", delta, 0.0, 1.0)
    check_parts("table.schema.parts", table.schema.parts, relation)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    columns = _counted(table.schema)
    if not columns:
        raise SchemaError("table must have a categorical or binary column: there is nothing to count")

    def draw(features: FloatArray, key: bytes) -> tuple[list[npt.NDArray[np.int64]], float]:
        labels = _labels(features, columns)
        return noisy_counts(labels, len(columns), noise_multiplier=event.noise_multiplier, key=key)

    terms = ReleaseTerms(event, relation, delta)
    (counts, stddev), said = run_once(terms, "release_shares", control, lambda: _load(table, relation), draw)
    named = {column.name: count for (column, _), count in zip(columns, counts, strict=True)}
    leaks = table.schema.leaks if control.source.secure else (*table.schema.leaks, _INSECURE)
    shared = table.schema.with_shares({name: _shares(count, stddev) for name, count in named.items()})
    part = Part(SharesRelease._part_name, event, relation)
    return SharesRelease(
        schema=replace(shared, leaks=leaks, parts=(*shared.parts, part)),
        noisy_counts=named,
        count_stddev=stddev,
        event=event,
        delta=delta,
        adjacency=relation,
        secure=control.source.secure,
        other_parts=table.schema.parts,
        leaks=leaks,
        settings=said,
    )


def _load(table: Table | UnreadTable, relation: Adjacency) -> FloatArray:
    """Return the features of the records that are there."""
    features = as_record_array("table.X", (table.read() if isinstance(table, UnreadTable) else table).X)
    _check_features(features, table.feature_names)
    features, _ = without_null_records(relation, features, None)
    return features


def _check_features(features: Any, names: Sequence[str]) -> None:
    """Refuse arrays without the schema's columns; no record is read."""
    records_of(features).refuse("table.X", ())
    check_numbers("table.X", features)
    shape = known_shape(features)
    if shape is not None and (len(shape) != 2 or shape[1] != len(names)):
        raise ValueError(f"table.X must have {len(names)} columns, those that its schema declares")


def _counted(schema: Schema) -> list[tuple[BinaryColumn | CategoricalColumn, slice]]:
    """Return the columns to count, and where their features are."""
    found, first = [], 0
    for column in schema.columns:
        block = slice(first, first + len(column.feature_names))
        if isinstance(column, (BinaryColumn, CategoricalColumn)) and column.cells:
            found.append((column, block))
        first = block.stop
    return found


def _labels(
    features: FloatArray, columns: list[tuple[BinaryColumn | CategoricalColumn, slice]]
) -> Iterator[tuple[npt.NDArray[np.intp], int]]:
    """Yield the category of each record: at most one, for any content of X."""
    for column, own in columns:
        marked = features[:, own] > 0.5
        # The category of a record without any indicator: "negative", the reference, or none.
        if isinstance(column, BinaryColumn):
            places, rest = [0], 1
        else:
            places = [column.categories.index(level) for level in column.levels]
            rest = -1 if column.reference is None else column.categories.index(column.reference)
        label = np.full(len(marked), rest, dtype=np.intp)
        for place, own_mark in zip(reversed(places), marked.T[::-1], strict=True):
            label[own_mark] = place
        yield label[label >= 0], column.cells


def _shares(counts: npt.NDArray[np.int64], stddev: float) -> list[float]:
    """Return positive shares, the mean of each count given its noisy value over their sum."""
    score = counts / stddev
    log_hazard = -0.5 * score**2 - 0.5 * math.log(2.0 * math.pi) - special.log_ndtr(score)
    means: FloatArray = np.maximum(score + np.exp(log_hazard), _FEWEST)
    return [float(value) for value in means / means.sum()]

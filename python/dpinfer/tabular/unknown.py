"""Unknown facts about a table: one budget for them and the fit that follows, and their release."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer, check_type
from dpinfer.accounting import Adjacency, Event, GaussianEvent, LedgerAccount, PureEvent, as_adjacency
from dpinfer.accounting.accountant import AccountantName
from dpinfer.errors import SchemaError
from dpinfer.mechanism import RandomSource
from dpinfer.mechanism.private_run import ReleaseTerms, RunControl
from dpinfer.mechanism.run import run_once
from dpinfer.mechanism.unknowns.draws import HeldColumn, draw_bounds, draw_categories, draw_count
from dpinfer.mechanism.unknowns.plan import UNKNOWN, UnknownPlan, names_of, split_budget
from dpinfer.mechanism.unknowns.releases import bounds_event, categories_event, labels_of, resolved_probability
from dpinfer.release import BoundsRelease, CategoriesRelease, CountRelease, Part
from dpinfer.release.guarantee import Stated
from dpinfer.tabular.columns import numeric
from dpinfer.tabular.decoding import decode, refuses_lines, texts_of
from dpinfer.tabular.draft import SchemaDraft
from dpinfer.tabular.frames import raw_frame
from dpinfer.tabular.reading import RawColumn, check_header, read_chunks
from dpinfer.tabular.schema import Schema
from dpinfer.tabular.table import encode

_INSECURE = "the unknown facts were drawn with a seeded generator"


def plan_unknown(
    draft: SchemaDraft,
    unknown: Sequence[str] = UNKNOWN,
    *,
    target_epsilon: float,
    target_delta: float,
    budget_share: float = 0.1,
    make_event: Callable[[float], Event] = GaussianEvent,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: AccountantName = "pld",
) -> UnknownPlan:
    """Split one privacy target among a number of records, bounds and categories that are unknown, and the fit.

    ``plan.fit_epsilon`` is then the target of the fit's own plan, made when the number of records and the columns are
    known, at the same delta.

    **Privacy.** Reads no records.  The accountant certified the composition of all.

    Raises BudgetExceededError if no noise meets the target.

    Parameters
    ----------
    draft : SchemaDraft
        Whose gaps are to be filled.
    unknown : sequence of {"n_records", "bounds", "categories"}
        "bounds" and "categories" if, and only if, columns of the draft lack them.
    target_epsilon : float
        In (0, inf), for all together.
    target_delta : float
        In (0, 1), for all together.
    budget_share : float
        Share of the squared signal-to-noise ratio that the parts get, in (0, 1); it makes the fit's noise about
        1 / sqrt(1 - budget_share) times as large.
    make_event : callable
        The fit's event from its noise multiplier: by default a Gaussian, which the passes of :func:`dpinfer.run_newton`
        add up to.  For :func:`dpinfer.run_dpvi`, ``lambda noise: run_event(noise, sample_rate, n_steps)``.
    adjacency : {"add_remove", "replace_one"}
        "replace_one" for a known number of records; a blank record is none in a table.
    accountant : {"pld", "prv", "rdp"}

    Examples
    --------
    >>> draft = SchemaDraft({"columns": {"age": {"kind": "continuous"}, "job": {"kind": "categorical"}}})
    >>> plan = plan_unknown(draft, target_epsilon=1.0, target_delta=1e-5)
    >>> plan.epsilon <= 1.0, 0.9 < plan.fit_epsilon < 1.0
    (True, True)
    """
    relation = as_adjacency(adjacency)
    return split_budget(
        _check_gaps(draft, unknown),
        n_selections=sum(search.n_selections for search in draft.searches),
        n_labelled=len(draft.unknown_categories),
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        budget_share=budget_share,
        make_event=make_event,
        adjacency=relation,
        accountant=accountant,
    )


def _check_gaps(draft: SchemaDraft, unknown: Sequence[str]) -> tuple[str, ...]:
    """Return the requested facts in the order of release, if the draft has exactly these gaps."""
    check_type("draft", draft, SchemaDraft)
    requested = {check_choice("unknown", name, UNKNOWN) for name in names_of(unknown)}
    for name, columns in (("bounds", draft.unknown_bounds), ("categories", draft.unknown_categories)):
        if bool(columns) != (name in requested):
            there = f"the columns {', '.join(map(repr, columns))} lack them" if columns else "no column lacks them"
            raise ValueError(f"unknown must{'' if columns else ' not'} hold {name!r}: {there}")
    return tuple(name for name in UNKNOWN if name in requested)


@dataclass(frozen=True, eq=False, kw_only=True)
class UnknownRelease(Stated):
    """Released facts about a table, and the schema that they complete.

    **Privacy.** Safe to publish: everything carries the noise that `event` accounts for.

    Parameters
    ----------
    schema : Schema
        The draft with its gaps filled, and this release among its parts.
    count : CountRelease or None
    bounds : BoundsRelease or None
    categories : CategoriesRelease or None
    event, adjacency, delta, certified_epsilon, accountant, secure, other_parts, leaks
        As in :class:`dpinfer.Release`; `event` is that of all facts.
    settings : mapping
        The ledger's entry, where there is one.
    """

    schema: Schema
    count: CountRelease | None
    bounds: BoundsRelease | None
    categories: CategoriesRelease | None
    event: Event
    delta: float = field()
    adjacency: Adjacency = field()
    settings: Mapping[str, Any] = field(default_factory=dict)
    _part_name: ClassVar[str] = "what was unknown in public"
    _released: ClassVar[str] = "what was unknown in public"
    _frozen: ClassVar[tuple[str, ...]] = ("settings",)

    @property
    def n_records(self) -> int | None:
        """The released number of records; None if not requested."""
        return None if self.count is None else self.count.n_records

    def __repr__(self) -> str:
        there = [name for name in ("count", "bounds", "categories") if getattr(self, name) is not None]
        return f"UnknownRelease({', '.join(there)})\n  {self.guarantee}"


@dataclass(eq=False)
class _Columns:
    """The columns of a table that are read: it holds records."""

    n_records: int = 0
    numbers: dict[str, list[FloatArray]] = field(default_factory=dict)
    labels: dict[str, Counter[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, chunks: Iterator[Mapping[str, RawColumn]], draft: SchemaDraft) -> "_Columns":
        """Read them: numbers of columns without bounds, labels of those without categories, and how many there are."""
        columns = cls(
            numbers={name: [np.empty(0)] for name in draft.unknown_bounds},
            labels={name: Counter() for name in draft.unknown_categories},
        )
        schema = draft.placeholder
        for chunk in chunks:
            decoded = decode(chunk, schema)
            columns.n_records += len(encode(decoded, schema)[0])
            for item in decoded.columns:
                name = item.column.name
                if name in columns.numbers:
                    columns.numbers[name].append(np.asarray(item.values, dtype=np.float64))
                elif name in columns.labels:
                    texts = zip(texts_of(item.raw), item.absent.tolist(), strict=True)
                    columns.labels[name].update(labels_of([text for text, absent in texts if not absent]))
        return columns


def release_unknown(
    records: str | os.PathLike[str] | Mapping[str, Any],
    draft: SchemaDraft,
    *,
    plan: UnknownPlan,
    n_records: int | None = None,
    max_labels: int | None = None,
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
) -> UnknownRelease:
    """Release the unknown facts of a plan about a table: ``release.schema`` and ``release.n_records`` for the fit.

    **Privacy.** Reads the records.  The release is what ``plan.parts.event`` says: a number of records with discrete
    Laplace noise, quantiles by the exponential mechanism, and labels above a threshold (docs/derivations/unknowns.md).
    It composes with the fit as the plan has certified; the fit's release states both guarantees after
    ``release.with_parts(*unknown.schema.parts).with_leaks(*unknown.schema.leaks)``, which ``dpinfer fit`` calls.

    Raises OSError, RecordError or SchemaError if the records cannot be used; see :func:`read_table`.

    Parameters
    ----------
    records : path-like, or mapping of column names to arrays
        A file as :func:`read_table` takes it, of which only the header is read before the charge; or columns of
        numbers or texts, of equal length.
    draft : SchemaDraft
        That of the plan.
    plan : UnknownPlan
        From :func:`plan_unknown`.
    n_records : int, optional
        A public number of records, if it is not released: it determines the quantiles that can be estimated.
    max_labels : int, optional
        Keep at most this many labels of a column, those with the largest noisy counts.
    ledger : LedgerAccount, optional
        Charged before the records are looked at, once for all parts, or refused.
    random_source : RandomSource, optional
        The operating system's generator by default.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible releases
        that are marked NOT PRIVATE.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer.tabular import plan_unknown
    >>> draft = SchemaDraft({"columns": {"age": {"kind": "continuous", "limits": [0, 120]}}})
    >>> plan = plan_unknown(draft, ("n_records", "bounds"), target_epsilon=3.0, target_delta=1e-5)
    >>> ages = 40.0 + 10.0 * np.random.default_rng(1).normal(size=20_000)
    >>> unknown = release_unknown({"age": ages}, draft, plan=plan)
    >>> low, high = unknown.schema.columns[0].bounds
    >>> low < 25.0 and 55.0 < high, abs(unknown.n_records - 20_000) < 2000
    (True, True)
    """
    check_type("plan", plan, UnknownPlan)
    _check_gaps(draft, plan.parts.unknown)
    there = (sum(search.n_selections for search in draft.searches), len(draft.unknown_categories))
    if there != (plan.parts.n_selections, plan.parts.n_labelled):
        raise ValueError("plan must be that of this draft: other columns lack bounds or categories")
    public = None if n_records is None else check_integer("n_records", n_records, 1)
    if max_labels is not None:
        max_labels = check_integer("max_labels", max_labels, 1)
    control = RunControl.checked(random_source=random_source, ledger=ledger)
    schema = draft.placeholder
    names = [column.name for column in schema.columns]
    if isinstance(records, Mapping):
        _check_names(records, names)
        chunks = raw_frame("records", records, names, used=numeric(schema.columns))
    else:
        check_header(records, names, delimiter=schema.delimiter, used=numeric(schema.columns))
        refuse = refuses_lines(schema)
        chunks = partial(read_chunks, records, names, delimiter=schema.delimiter, refuse_malformed=refuse)

    secure = control.source.secure

    def draw(columns: _Columns, key: bytes) -> dict[str, Any]:
        return _draw(columns, plan, draft, key, public=public, max_labels=max_labels, secure=secure)

    terms = ReleaseTerms(plan.parts.event, plan.adjacency, plan.delta)
    parts, said = run_once(terms, "release_unknown", control, lambda: _Columns.of(chunks(), draft), draw)
    new = () if secure else (_INSECURE,)
    part = Part(UnknownRelease._part_name, plan.parts.event, plan.adjacency)
    return UnknownRelease(
        schema=draft.complete(parts["bounds"], parts["categories"], parts=(part,), leaks=new),
        **parts,
        event=plan.parts.event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        accountant=plan.accountant,
        secure=secure,
        other_parts=schema.parts,
        leaks=(*schema.leaks, *new),
        settings=said,
    )


def _draw(
    columns: _Columns,
    plan: UnknownPlan,
    draft: SchemaDraft,
    key: bytes,
    *,
    public: int | None,
    max_labels: int | None,
    secure: bool,
) -> dict[str, Any]:
    """Return the release of each requested part; the number of records first, as it resolves quantiles."""
    requested, relation = plan.parts, plan.adjacency
    common: dict[str, Any] = {"adjacency": relation, "secure": secure}
    parts: dict[str, Any] = {"count": None, "bounds": None, "categories": None}
    if "n_records" in requested.unknown:
        public = draw_count(columns.n_records, epsilon=requested.count_epsilon, key=key)
        event = PureEvent(requested.count_epsilon, relation.value)
        scale = 1.0 / requested.count_epsilon
        parts["count"] = CountRelease(noisy_count=public, laplace_scale=scale, event=event, **common)
    if "bounds" in requested.unknown:
        numbers = [HeldColumn(np.concatenate(chunks)) for chunks in columns.numbers.values()]
        probability, epsilon = resolved_probability(public, requested.selection_epsilon), requested.selection_epsilon
        bounds = draw_bounds(numbers, draft.searches, probability, epsilon=epsilon, relation=relation, key=key)
        parts["bounds"] = BoundsRelease(
            names=draft.unknown_bounds,
            lower=bounds[:, 0],
            upper=bounds[:, 1],
            probability=probability,
            limits=np.array([search.limits or (-math.inf, math.inf) for search in draft.searches]),
            event=bounds_event(epsilon, requested.n_selections, relation),
            **common,
        )
    if "categories" in requested.unknown:
        labels = draw_categories(
            columns.labels,
            epsilon=requested.column_epsilon,
            threshold=requested.threshold,
            relation=relation,
            key=key,
            max_labels=max_labels,
        )
        parts["categories"] = CategoriesRelease(
            noisy_counts=labels,
            laplace_scale=(2.0 if relation is Adjacency.REPLACE_ONE else 1.0) / requested.column_epsilon,
            threshold=requested.threshold,
            event=categories_event(requested.column_epsilon, requested.column_delta, requested.n_labelled, relation),
            delta=plan.delta,
            **common,
        )
    return parts


def _check_names(records: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse columns other than the draft's; their names are public."""
    if set(records) != set(names):
        lacking, extra = sorted(set(names) - set(records)), len(set(records) - set(names))
        raise SchemaError(
            f"records must have the columns that the draft declares: it lacks {lacking}, and has {extra} others; "
            "declare each, with kind = 'ignore' if it is not to be used"
        )

"""One private sum of whatever a record contributes: the seam for a query that the library does not have.

**Privacy.** Reads the records.  Proof: docs/derivations/private-queries.md.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import as_record_array, check_interval, check_names, check_numbers, known_shape
from dpinfer.accounting import Adjacency, GaussianEvent, LedgerAccount, as_adjacency, calibrate_noise_multiplier
from dpinfer.accounting.decimals import check_epsilon
from dpinfer.errors import CheckpointError, RecordError
from dpinfer.mechanism import _native
from dpinfer.mechanism.lattice_sums import NormSum, pure_terms
from dpinfer.mechanism.noise_keys import RandomSource, noise_key
from dpinfer.mechanism.private_run import CheckpointArgument, ReleaseTerms, RunControl
from dpinfer.mechanism.questions import read_question
from dpinfer.mechanism.records import records_of, without_null_records
from dpinfer.mechanism.row_trial import TRIAL_ROWS, mixes_rows, ones_and_zeros, widths_of
from dpinfer.mechanism.run import run_once
from dpinfer.mechanism.sources.row_source import MAX_ROWS, Arrays, Records
from dpinfer.release import SumRelease

# From a block of rows, (B,) or (B, d), to what each of them adds, (B, s).
Contribution = Callable[[FloatArray], npt.ArrayLike]
Blocks = Callable[[], Iterable[Arrays]]

_BLOCK_VALUES = 1 << 22  # numbers of a block's contributions: 32 MiB
_MAX_SUMS = 1 << 20  # the most coordinates that the proof of the noise has (docs/derivations/noise.md)
_MIXES = (
    "contribution must compute what a row adds from that row alone, to the last bit, and gave another result for rows "
    "together than for each by itself: use elementwise operations and sums along a row"
)


def private_sum(
    records: npt.ArrayLike | Records,
    contribution: Contribution,
    *,
    names: Sequence[str],
    max_norm: float,
    epsilon: float,
    delta: float = 0.0,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    random_source: RandomSource | None = None,
) -> SumRelease:
    """Release the sum of the records' contributions, with noise: any query that is a bounded sum.

    A few lines of NumPy make a query: counts, totals, moments, cross-tables, numbers of values below given points.
    This function bounds, charges, sums exactly, adds noise and saves.

    **Privacy.** Reads the records.  (epsilon, delta)-differentially private.  Each contribution is shortened to
    `max_norm`, rounded on a lattice and summed in integers, so that one record moves the sum by at most `max_norm`
    (twice that where it is replaced) whatever `contribution` returns.  The proof assumes one thing that cannot be
    checked in full: the contribution of a row must depend on that row alone.  The call tries this on made-up rows,
    singly and together, before the charge.  A contribution that fails or is not finite adds zero, and never raises.

    Raises TypeError or ValueError if an argument is wrong, or `contribution` mixes rows. Raises RecordError if the
    records are not an array of numbers.

    Parameters
    ----------
    records : (N,) or (N, d) array of numbers, or RowSource
        NaN is passed on.  Under "zero_out" a row of NaN alone is no record.  A source is read once, a block at a time.
    contribution : callable
        From a block of rows, (B,) or (B, d) float64, to what each adds, (B, s).  It must work on rows of zeros and
        ones; use elementwise operations and sums along a row, whose bits do not depend on other rows.
    names : sequence of s str
        What each sum is of.
    max_norm : float
        In (0, 1e100]: a bound of a contribution's sum of absolute values with ``delta=0``, else of its Euclidean
        norm. Contributions within 1e-6 of the bound may be shortened by as much.
    epsilon : float
        In [1e-50, 1e50], the decimal that is typed.
    delta : float
        In [0, 1).  0 draws discrete Laplace noise, which is smaller for few sums; other values draw Gaussian noise.
    adjacency : Adjacency or {"add_remove", "zero_out", "replace_one"}
    ledger, checkpoint, random_source
        As in :func:`dpinfer.run_dpvi`: an interrupted call that is repeated with the same arguments has the same noise,
        for one charge.

    Returns
    -------
    SumRelease
        ``release.noisy_sums``, and ``release.interval(level)`` for the sums without noise.

    Notes
    -----
    The function resembles ``clipped_grad`` of JAX-Privacy, which bounds any function of an example, and adds noise,
    guard and accounting.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> waits = np.random.default_rng(1).exponential(10.0, 4000)
    >>> below = dpi.private_sum(waits, lambda wait: wait[:, None] <= [5.0, 10.0, 20.0], names=["5", "10", "20"],
    ...                         max_norm=3 ** 0.5, epsilon=1.0, delta=1e-6)
    >>> bool(abs(below.noisy_sums[1] - np.sum(waits <= 10.0)) < 100.0)
    True
    """
    named = check_names("names", names)
    if len(named) > _MAX_SUMS:
        raise ValueError(f"names must hold 1 to {_MAX_SUMS} names, got {len(named)}")
    if not callable(contribution):
        raise TypeError(f"contribution must be callable, got {type(contribution).__name__}")
    given = records_of(records)
    given.refuse("records", ("blocks",))
    if given.held is not None:
        _check_form(records)
    _try(contribution, records, given, len(named))
    control = RunControl.checked(random_source=random_source, ledger=ledger, checkpoint=checkpoint)
    terms = {"max_norm": max_norm, "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    return released_sum(records, contribution, named, control, **terms)  # type: ignore[arg-type]


def released_sum(
    records: Any,
    contribution: Contribution,
    names: tuple[str, ...],
    control: RunControl,
    *,
    max_norm: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str,
    settings: Mapping[str, Any] | None = None,
) -> SumRelease:
    """Make the release of :func:`private_sum` from a contribution whose rows are known to be apart.

    **Privacy.** Reads the records, once it is charged.
    """
    norm = check_interval("max_norm", max_norm, 1e-100, 1e100, high_open=False)
    epsilon = check_epsilon("epsilon", epsilon)
    delta = check_interval("delta", delta, 0.0, 1.0, low_open=False)
    relation = as_adjacency(adjacency)
    replace, gaussian = relation is Adjacency.REPLACE_ONE, delta > 0.0
    multiplier = 0.0
    terms = pure_terms(epsilon, relation)
    if gaussian:
        target: dict[str, Any] = {"target_epsilon": epsilon, "target_delta": delta, "adjacency": relation}
        multiplier = calibrate_noise_multiplier(GaussianEvent, **target)
        terms = ReleaseTerms(GaussianEvent(multiplier), relation, delta)
    asked = partial(read_question, contribution, names, norm, settings)

    def load() -> "tuple[Blocks, _native.PartialSum | NormSum]":
        blocks: Blocks = partial(records_of(records).source().each, lambda rows, y: (_rows(rows, relation),))
        total = _native.PartialSum(length=len(names), max_norm=norm) if gaussian else NormSum(len(names), norm)
        for (rows,) in blocks():
            for part in _contributions(contribution, rows, len(names)):
                total.add_contributions(part)
        return blocks, total

    def draw(loaded: "tuple[Blocks, _native.PartialSum | NormSum]", key: bytes) -> FloatArray:
        own = noise_key(key, "private_sum", noise_key(b"", contribution, names, norm, settings))
        if isinstance(loaded[1], NormSum):
            return loaded[1].noisy_sum(own, epsilon=epsilon, replace=replace)
        return np.asarray(loaded[1].noisy_sum(own, 0, multiplier))

    noisy, said = run_once(
        terms,
        "private_sum",
        control,
        load,
        draw,
        description=lambda: {"adjacency": relation.value},
        arrays=lambda loaded: (rows for (rows,) in loaded[0]()),
        asked=asked,
    )
    if noisy is None or noisy.shape != (len(names),):
        raise CheckpointError("the checkpoint is damaged: it lacks the released sums")
    return SumRelease(
        names=names,
        noisy_sums=noisy,
        noise="gaussian" if gaussian else "laplace",
        noise_scale=multiplier * norm if gaussian else NormSum(1, norm).scale(epsilon, replace=replace),
        max_norm=norm,
        event=terms.event,
        adjacency=relation,
        delta=delta,
        secure=control.source.secure,
        settings=said | dict(settings or {}),
    )


def _check_form(records: Any) -> None:
    """Refuse what holds no numbers in rows; no record is looked at."""
    check_numbers("records", records)
    shape = known_shape(records)
    if shape is not None and len(shape) not in (1, 2):
        raise RecordError(f"records must have one or two dimensions, got {len(shape)}")


def _rows(records: Any, relation: Adjacency) -> FloatArray:
    """Return the records that are there, (N,) or (N, d) float64."""
    array = as_record_array("records", records)
    _check_form(array)
    if len(array) > MAX_ROWS:
        raise RecordError(f"records must have at most {MAX_ROWS} rows")
    present, _ = without_null_records(relation, array.astype(np.float64, copy=False), None)
    return np.ascontiguousarray(present)


def _contributions(contribution: Contribution, rows: FloatArray, length: int) -> Iterator[FloatArray]:
    """Yield what the rows contribute, a block at a time."""
    size = max(1, _BLOCK_VALUES // length)
    with np.errstate(all="ignore"):
        for first in range(0, len(rows), size):
            yield _robust(contribution, rows[first : first + size], length)


def _robust(contribution: Contribution, rows: FloatArray, length: int) -> FloatArray:
    """Return a block's contributions (B, length), of an array of its own; what cannot be computed contributes nothing.

    To raise would tell that there is such a record.
    """
    with contextlib.suppress(Exception):
        values = np.array(contribution(rows.copy()), dtype=np.float64, order="C")
        if values.shape == (len(rows), length):
            return values
    if len(rows) == 1:
        return np.zeros((1, length))
    return np.concatenate([_robust(contribution, rows[index : index + 1], length) for index in range(len(rows))])


def _try(contribution: Contribution, records: Any, given: Records, length: int) -> None:
    """Refuse a contribution that has another form, or mixes rows, on made-up rows; docs/derivations/private-queries.md.

    Where the width of a row is not known it must have the form for some width, and mix rows for none.
    """
    widths, failures = widths_of(records, given), list[ValueError]()
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        for width in widths:
            try:
                _try_form(contribution, ones_and_zeros(width), length)
            except ValueError as error:
                failures.append(error)
                continue
            if mixes_rows(partial(_robust, contribution, length=length), width):
                raise ValueError(_MIXES)
    if len(failures) == 1 == len(widths):
        raise failures[0]
    if len(failures) == len(widths):
        raise ValueError(
            f"contribution must return a row of {length} numbers for each row, and does for none of {len(widths)} "
            "widths that were tried: give the source's n_features"
        )


def _try_form(contribution: Contribution, rows: FloatArray, length: int) -> None:
    """Refuse a contribution that raises on rows of zeros and ones, or has another form there."""
    try:
        found = [np.shape(contribution(part.copy())) for part in (rows, rows[:1])]
    except Exception as error:
        raise ValueError(
            f"contribution must work on rows of zeros and ones, and raised {type(error).__name__}: {error}"
        ) from error
    if found[0] != (TRIAL_ROWS, length):
        raise ValueError(
            f"contribution must return a row of {length} numbers, one for each name, for each row: got shape "
            f"{found[0]} for {TRIAL_ROWS} rows"
        )
    if found[1] != (1, length):
        raise ValueError(_MIXES)

"""Scenarios of record-and-replay audits for statistics and releases of unknown facts.

**Privacy.** Made-up records only.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.accounting import Adjacency
from dpinfer.lab.replays.records import FAR, N_RECORDS, Records, in_blocks, in_shards, neighbours, single_column
from dpinfer.lab.replays.scenario import Place, Scenario
from dpinfer.mechanism import private_sum, release_bounds, release_categories, release_count, run_statistic
from dpinfer.models import BetaBinomial, ConjugateModel, DirichletCategorical, GammaExponential


def statistics(adjacency: Adjacency) -> Iterator[Scenario]:
    """Yield a scenario for each release of a statistic."""

    def one_shot(model: ConjugateModel) -> Callable[[Records, Place], Any]:
        def run(records: Records, place: Place) -> Any:
            return run_statistic(
                model,
                place.watched(records[0]),
                epsilon=0.8,
                n_records=N_RECORDS,
                adjacency=adjacency,
                ledger=place.account,
            )

        return run

    for model, values in (
        (BetaBinomial(5), single_column(np.arange(12.0) % 6.0, 5.0, 0.0, (9.0, 2.5))),
        (DirichletCategorical((0.5, 2.0, 1.0)), single_column(np.arange(12.0) % 3.0, 2.0, 0.0, (3.0, 0.5))),
        (GammaExponential(), single_column(0.1 + 0.2 * np.arange(12.0), 50.0, 0.0, (-1.0,))),
    ):
        records, other, far, refused = values
        yield Scenario(
            f"run_statistic, {type(model).__name__}, {adjacency.value}",
            "dpinfer.mechanism.run_statistic",
            one_shot(model),
            records,
            tuple(neighbours(records, other, far, adjacency, refused)),
            adjacency,
            ledger=True,
        )
    yield from _sums(adjacency)


def _sums(adjacency: Adjacency) -> Iterator[Scenario]:
    """Yield a scenario for each law of noise of a sum that a user has written."""

    def below(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        # The far record's are longer than any bound, and a record that is not a number has no value.
        return np.column_stack((rows[:, 0] < 0.0, rows[:, 1] < 0.5, 0.5 * rows[:, 0]))

    rng = np.random.default_rng(35)
    records, far = (rng.uniform(-1.0, 1.0, size=(N_RECORDS, 2)),), (np.array([[FAR, -FAR]]),)
    possible = tuple(neighbours(records, (np.array([[0.9, 0.2]]),), far, adjacency))
    for name, delta in (("Laplace", 0.0), ("Gaussian", 1e-5)):

        def run(parts: Records, place: Place, delta: float = delta) -> Any:
            return private_sum(
                place.watched(parts[0]),
                below,
                names=("negative", "below half", "half of the first"),
                max_norm=1.3,
                epsilon=0.8,
                delta=delta,
                adjacency=adjacency,
                ledger=place.account,
            )

        title = f"private_sum, {name}, {adjacency.value}"
        yield Scenario(title, "dpinfer.mechanism.private_sum", run, records, possible, adjacency, ledger=True)


def unknowns(adjacency: Adjacency) -> Iterator[Scenario]:
    """Yield a scenario for each release of unknown facts."""
    rng = np.random.default_rng(34)
    rows = (np.column_stack((rng.normal(size=N_RECORDS), np.arange(N_RECORDS) % 4.0)),)
    more, far = (np.array([[0.5, 1.0]]),), (np.array([[FAR, -FAR]]),)
    labels = (np.array((["clerk"] * 35 + ["cook"] * 35 + ["else"] * 2), dtype=object),)
    another, unseen = (np.array(["cook"], dtype=object),), (np.array(["astronaut"], dtype=object),)

    # Of one type each, but for the record that another data set has.
    numbers = (np.array([1.0] * 35 + [2.0] * 35 + [3.0] * 2, dtype=object),)
    text, truth = (np.array(["x"], dtype=object),), (np.array([True], dtype=object),)

    def count(records: Records, place: Place) -> Any:
        return release_count(place.watched(records[0]), epsilon=0.8, adjacency=adjacency, ledger=place.account)

    def bounds(records: Records, place: Place) -> Any:
        limits, names = (None, (0.0, 10.0)), ("height", "stairs")
        own: dict[str, Any] = {"names": names, "limits": limits, "adjacency": adjacency, "ledger": place.account}
        return release_bounds(place.watched(records[0]), epsilon=3.0, probability=0.25, **own)

    def categories(records: Records, place: Place) -> Any:
        columns = {"job": place.watched(records[0]), "place": place.watched(np.roll(records[0], 1))}
        own: dict[str, Any] = {"adjacency": adjacency, "ledger": place.account}
        return release_categories(columns, epsilon=3.0, delta=1e-6, max_labels=2, **own)

    def listed_categories(records: Records, place: Place) -> Any:
        own: dict[str, Any] = {"adjacency": adjacency, "ledger": place.account}
        return release_categories(records[0].tolist(), epsilon=3.0, delta=1e-6, **own)

    def streamed_count(records: Records, place: Place) -> Any:
        rows = in_shards([place.watched(records[0]), place.watched(records[0][:, 0])])
        return release_count(rows, epsilon=0.8, adjacency=adjacency, ledger=place.account)

    def streamed_bounds(records: Records, place: Place) -> Any:
        arrays = [place.watched(records[0]), place.watched(records[0][:, 0])]
        own: dict[str, Any] = {"names": ("height",), "adjacency": adjacency, "ledger": place.account}
        return release_bounds(in_blocks(arrays).responses(), epsilon=3.0, probability=0.25, **own)

    cases = (
        (count, rows, more, far),
        (bounds, rows, more, far),
        (streamed_count, rows, more, far),
        (streamed_bounds, rows, more, far),
        (categories, labels, another, unseen),
        (listed_categories, numbers, text, truth),
    )
    for run, records, other, unusual in cases:
        if run in (count, streamed_count) and adjacency is Adjacency.REPLACE_ONE:
            continue
        neighbouring = tuple(neighbours(records, other, unusual, adjacency))
        name = run.__name__
        entry = f"dpinfer.mechanism.release_{name.removeprefix('streamed_').removeprefix('listed_')}"
        yield Scenario(f"release_{name}, {adjacency.value}", entry, run, records, neighbouring, adjacency, ledger=True)

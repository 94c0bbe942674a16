"""Scenarios of the record-and-replay audit for the baselines.

**Privacy.** Made-up records only.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpinfer.accounting import Adjacency
from dpinfer.lab.baselines.bernstein_sheldon import release_statistics
from dpinfer.lab.baselines.dp_em import run_dp_em
from dpinfer.lab.baselines.dpvim import run_dpvim
from dpinfer.lab.baselines.gibbs.families import BinomialFamily
from dpinfer.lab.baselines.regression_statistics import release_regression_statistics
from dpinfer.lab.replays.mechanisms import SECRET, checkpointed, mixture_points
from dpinfer.lab.replays.records import N_RECORDS, Records, neighbours, regression_records, single_column
from dpinfer.lab.replays.scenario import Place, Scenario, stated_by
from dpinfer.models import GaussianMixture, LinearRegression, LogisticRegression

__all__ = ["baseline_scenarios"]

_ENTRIES = "dpinfer.lab.baselines"


def baseline_scenarios() -> tuple[Scenario, ...]:
    """Return a scenario for each private call of the baselines, and several for those with several adjacencies."""
    return (*_runs(), *(scenario for adjacency in Adjacency for scenario in _statistics(adjacency)))


def _runs() -> Iterator[Scenario]:
    mixture, logistic = GaussianMixture(2, 2), LogisticRegression(2)

    def dp_em(records: Records, place: Place) -> Any:
        return run_dp_em(mixture, place.watched(records[0]), max_site_norm=0.5, **checkpointed(place))

    def dpvim(records: Records, place: Place) -> Any:
        watched = [place.watched(part) for part in records]
        return run_dpvim(logistic, *watched, max_grad_norm=0.8, burn_in=0, **checkpointed(place))

    cases: tuple[tuple[str, Callable[..., Any], Any, Callable[..., Any]], ...] = (
        ("run_dp_em", dp_em, mixture_points(), stated_by),
        ("run_dpvim", dpvim, regression_records(logistic), lambda result, folder: result[0].event),
    )
    for name, run, (records, other, far, refused), stated in cases:
        neighbouring = tuple(neighbours(records, other, far, Adjacency.ADD_REMOVE, refused))
        entry = f"{_ENTRIES}.{name}"
        yield Scenario(name, entry, run, records, neighbouring, ledger=True, skipped=SECRET, stated=stated)


def _statistics(adjacency: Adjacency) -> Iterator[Scenario]:
    def common(place: Place) -> dict[str, Any]:
        return {"epsilon": 0.8, "n_records": N_RECORDS, "adjacency": adjacency, "ledger": place.account}

    def binomial(records: Records, place: Place) -> Any:
        return release_statistics(BinomialFamily(5), place.watched(records[0]), **common(place))

    def regression(records: Records, place: Place) -> Any:
        watched = [place.watched(part) for part in records]
        return release_regression_statistics(*watched, feature_bound=1.5, response_bound=2.0, **common(place))

    for name, run, (records, other, far, refused) in (
        ("release_statistics", binomial, single_column(np.arange(12.0) % 6.0, 5.0, 0.0, (9.0, 2.5))),
        ("release_regression_statistics", regression, regression_records(LinearRegression(2))),
    ):
        neighbouring = tuple(neighbours(records, other, far, adjacency, refused))
        entry = f"{_ENTRIES}.{name}"
        yield Scenario(f"{name}, {adjacency.value}", entry, run, records, neighbouring, adjacency, ledger=True)

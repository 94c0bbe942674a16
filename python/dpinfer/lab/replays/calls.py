"""The private calls of tables, estimators, fits and regressions that a record-and-replay audit runs, on arrays.

**Privacy.** Made-up records only.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpinfer.accounting import Adjacency
from dpinfer.errors import FallbackWarning
from dpinfer.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMultinomialRegression,
    BayesianPoissonRegression,
    BayesianProbitRegression,
)
from dpinfer.fitting import fit
from dpinfer.formulas import regression
from dpinfer.inference import PosteriorRequest
from dpinfer.lab.replays.records import N_RECORDS, append, put
from dpinfer.lab.replays.scenario import Neighbour, Place, Scenario, stated_by
from dpinfer.methods import DoesNotApplyError, Target, find_method
from dpinfer.models import BetaBernoulli, LinearRegression, LogisticRegression
from dpinfer.tables import counts, crosstab, means
from dpinfer.tabular import Schema, SchemaDraft, Table, plan_unknown, release_shares, release_unknown

SCHEMA_TOML = """\
[table]
missing = "drop"
missing_values = ["", "?"]
[columns.id]
kind = "ignore"
[columns.age]
kind = "continuous"
bounds = [0, 100]
[columns.job]
kind = "categorical"
categories = ["clerk", "cook", "else"]
reference = "clerk"
other = "else"
[columns.region]
kind = "categorical"
categories = ["north", "south"]
[columns.member]
kind = "binary"
positive = "yes"
negative = "no"
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""
# The schema with unknown bounds and categories.
DRAFT_TOML = SCHEMA_TOML.replace("bounds = [0, 100]\n", "").replace(
    'categories = ["clerk", "cook", "else"]\nreference = "clerk"\n', ""
)


def _estimator() -> Iterator[Scenario]:
    rng = np.random.default_rng(41)
    X = rng.uniform(-1.0, 1.0, size=(N_RECORDS, 2))
    y = (X[:, 0] > 0).astype(int)

    def with_record(row: Sequence[float], label: int) -> tuple[Any, ...]:
        return np.vstack((X, [row])), np.append(y, label)

    neighbouring = (
        Neighbour("a record more", with_record((0.5, 0.5), 1)),
        Neighbour("a record far out more", with_record((1e300, -1e300), 0)),
        Neighbour("a record more that is there already", with_record(tuple(X[0]), int(y[0]))),
        Neighbour("the last record less", (X[:-1], y[:-1])),
        Neighbour("a record that is not finite (1)", with_record((np.nan, 0.0), 1), refused="not finite"),
        Neighbour("a record that is not finite (2)", with_record((0.3, np.nan), 0), refused="not finite"),
        Neighbour("a label that is none (1)", with_record((0.5, 0.5), 2), refused="label"),
        Neighbour("a label that is none (2)", with_record((0.1, 0.5), 7), refused="label"),
    )
    for name, ledger, options in (
        ("BayesianLogisticRegression", True, {}),
        ("BayesianLogisticRegression, trace", True, {"method": "dpvi", "sample_rate": 0.6, "n_steps": 40}),
        (
            "BayesianLogisticRegression, tied",
            False,
            {"recipe": "tied", "method": "dpvi", "approximation": "laplace", "sample_rate": 0.6, "n_steps": 40},
        ),
    ):

        def run(records: Any, place: Place, options: Any = options) -> Any:
            estimator = BayesianLogisticRegression(
                epsilon=4.0,
                n_records=N_RECORDS,
                classes=(0, 1),
                data_bounds=(-1.0, 1.0),
                n_threads=1,
                ledger=place.account,
                **options,
            )
            estimator.fit(*(place.watched(part) for part in records))
            estimator.ledger = None
            return estimator

        yield Scenario(
            name,
            "dpinfer.estimators.BayesianLogisticRegression",
            run,
            (X, y),
            neighbouring,
            ledger=ledger,
            stated=lambda result, folder: stated_by(result.release_, folder),
        )


def _planned_estimators() -> Iterator[Scenario]:
    """Yield a scenario for each estimator whose mechanism a plan chooses."""
    rng = np.random.default_rng(47)
    X, y = rng.uniform(-1.0, 1.0, size=(N_RECORDS, 2)), np.arange(N_RECORDS) % 2.0

    def more(row: Sequence[float], response: float) -> tuple[Any, ...]:
        return np.vstack((X, [row])), np.append(y, response)

    neighbouring = (
        Neighbour("a record more", more((0.5, 0.5), 1.0)),
        Neighbour("a record far out more", more((1e300, -1e300), 0.0)),
        Neighbour("the last record less", (X[:-1], y[:-1])),
        Neighbour("a record that is not finite (1)", more((np.nan, 0.0), 1.0), refused="not finite"),
        Neighbour("a record that is not finite (2)", more((0.3, np.nan), 0.0), refused="not finite"),
    )
    public = {"n_records": N_RECORDS, "data_bounds": (-1.0, 1.0)}
    every = ["n_records", "data_bounds", "target_bounds"]
    kinds: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("", BayesianLinearRegression, {**public, "target_bounds": (0.0, 1.0), "method": "newton"}),
        ("", BayesianPoissonRegression, public),
        ("", BayesianProbitRegression, {**public, "classes": (0.0, 1.0)}),
        ("", BayesianMultinomialRegression, {**public, "classes": (1.0, 0.0, 2.0)}),
        (", unknown parameters", BayesianLinearRegression, {"unknown": every}),
    )
    for name, kind, options in kinds:

        def run(records: Any, place: Place, kind: Any = kind, options: Any = options) -> Any:
            estimator = kind(epsilon=4.0, n_threads=1, ledger=place.account, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FallbackWarning)
                estimator.fit(*(place.watched(part) for part in records))
            estimator.ledger = None
            return estimator

        yield Scenario(
            kind.__name__ + name,
            f"dpinfer.estimators.{kind.__name__}",
            run,
            (X, y),
            neighbouring,
            ledger=True,
            stated=lambda result, folder: stated_by(result.release_, folder),
        )


def fit_scenarios(methods: Sequence[str], regression: Any = None) -> Iterator[Scenario]:
    """Yield a scenario of :func:`dpinfer.fitting.fit` for each of these methods, and the method's own scenarios.

    `regression`, of two features, is fitted (a logistic one by default), or the probability of a success if a method
    does not fit it.

    **Privacy.** Made-up records only.
    """
    rng = np.random.default_rng(43)
    X, y = rng.uniform(-1.0, 1.0, size=(N_RECORDS, 2)), np.arange(N_RECORDS) % 2.0

    def more(row: Sequence[float], label: float) -> tuple[Any, ...]:
        return np.vstack((X, [row])), np.append(y, label)

    rows = (
        Neighbour("a record more", more((0.5, 0.5), 1.0)),
        Neighbour("a record far out more", more((1e300, -1e300), 0.0)),
        Neighbour("the last record less", (X[:-1], y[:-1])),
        Neighbour("a record that is not finite (1)", more((np.nan, 0.0), 1.0), refused="not finite"),
        Neighbour("a record that is not finite (2)", more((0.3, np.nan), 0.0), refused="not finite"),
    )
    values = (
        Neighbour("a record more", (np.append(y, 1.0),)),
        Neighbour("the last record less", (y[:-1],)),
        Neighbour("a value that is none (1)", (np.append(y, 2.0),), refused="value"),
        Neighbour("a value that is none (2)", (np.append(y, 0.5),), refused="value"),
    )
    for method in methods:
        yield from find_method(method)[0].scenarios()
        target: Any = {"epsilon": 4.0, "delta": 1e-5, "n_records": N_RECORDS, "adjacency": Adjacency.ADD_REMOVE}
        model: Any = LogisticRegression(2) if regression is None else regression
        records: tuple[Any, ...]
        found: tuple[Neighbour, ...]
        try:
            find_method(method)[0].plan(Target(model=model, **target))
            epsilon, records, found = 4.0, (X, y), rows
        except DoesNotApplyError:
            # The replay knows the law of counts' noise where it is wider than a count.
            model, epsilon, records, found = BetaBernoulli(), 0.8, (y,), values

        def run(parts: Any, place: Place, model: Any = model, method: str = method, epsilon: float = epsilon) -> Any:
            watched = [place.watched(part) for part in parts]
            request = PosteriorRequest(approximation="naive") if method == "dpvi" else PosteriorRequest()
            public: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-5, "n_records": N_RECORDS, "method": method}
            with warnings.catch_warnings():
                # With so few records a posterior may fail; the releases are compared.
                warnings.simplefilter("ignore", FallbackWarning)
                return fit(
                    model,
                    *watched,
                    **public,
                    ledger=place.account,
                    path=place.folder / "fit",
                    posterior=request,
                    n_threads=1,
                )

        yield Scenario(
            f"fit, {method}",
            "dpinfer.fitting.fit",
            run,
            records,
            found,
            ledger=True,
            stated=lambda result, folder: stated_by(result.release, folder),
        )


def _counted_fit() -> Scenario:
    """Return a scenario of :func:`dpinfer.fit` in which the number of records and the size of responses are unknown."""
    rng = np.random.default_rng(44)
    X, y = rng.uniform(-1.0, 1.0, size=(N_RECORDS, 2)), rng.normal(size=N_RECORDS)

    def run(parts: Any, place: Place) -> Any:
        watched = [place.watched(part) for part in parts]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            return fit(
                LinearRegression(2),
                *watched,
                epsilon=4.0,
                delta=1e-5,
                unknown=["n_records", "response_scale"],
                ledger=place.account,
                n_threads=1,
            )

    def more(row: Sequence[float], response: float) -> tuple[Any, ...]:
        return np.vstack((X, [row])), np.append(y, response)

    neighbouring = (
        Neighbour("a record more", more((0.5, 0.5), 1.0)),
        Neighbour("a record far out more", more((1e300, -1e300), 1e300)),
        Neighbour("the last record less", (X[:-1], y[:-1])),
    )
    return Scenario(
        "fit, unknown arguments",
        "dpinfer.fitting.fit",
        run,
        (X, y),
        neighbouring,
        ledger=True,
        stated=lambda result, folder: stated_by(result.release, folder),
    )


def _table(*, unknown: bool = False, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Scenario:
    """Return a scenario of :func:`dpinfer.regression`; number of records, bounds and labels may be unknown.

    If a record is replaced by one without a value, fewer rows remain.
    """
    replaced = adjacency is Adjacency.REPLACE_ONE
    age, job = np.linspace(20.0, 80.0, N_RECORDS), np.array(["clerk", "cook"])[np.arange(N_RECORDS) % 2]
    rich = np.array(["yes", "no"])[np.arange(N_RECORDS) % 3 % 2]
    public: dict[str, Any] = {"schema": Schema.from_toml(SCHEMA_TOML), "n_records": N_RECORDS}
    if unknown:
        draft = SchemaDraft.from_toml(DRAFT_TOML)
        public = {"schema": draft, "unknown": ["n_records", "bounds", "categories"]}

    def more(*values: Any) -> tuple[Any, ...]:
        records = (age, job, rich)
        return (put if replaced else append)(records, tuple(np.array([value]) for value in values))

    def run(parts: Any, place: Place) -> Any:
        table = dict(zip(("age", "job", "rich"), map(place.watched, parts), strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            return regression(
                "rich ~ poly(age, 2) + C(job)",
                table,
                family="binomial",
                **public,
                epsilon=4.0,
                delta=1e-5,
                method="newton",
                adjacency=adjacency,
                ledger=place.account,
                path=place.folder / "fit",
                n_threads=1,
            )

    less = () if replaced else (Neighbour("the last record less", tuple(column[:-1] for column in (age, job, rich))),)
    neighbouring = (
        Neighbour("another record", more(44.0, "cook", "yes")),
        Neighbour("another record out of bounds", more(-1e300, "cook", "no")),
        Neighbour("another record of an unseen category", more(33.0, "astronaut", "no")),
        Neighbour("another record without a value", more(np.nan, "cook", "no")),
        *less,
        Neighbour("a label that the schema lacks (1)", more(44.0, "cook", "perhaps"), refused="label"),
        Neighbour("a label that the schema lacks (2)", more(21.0, "clerk", "never"), refused="label"),
    )
    return Scenario(
        "regression" + ", unknown schema" * unknown + ", replaced" * replaced,
        "dpinfer.formulas.regression",
        run,
        (age, job, rich),
        neighbouring,
        adjacency,
        ledger=True,
        stated=lambda result, folder: stated_by(result.release, folder),
    )


def _table_of_counts() -> Scenario:
    """Return a scenario of :func:`dpinfer.regression` with a family that is written as code, and an offset."""
    years, visits = np.linspace(1.0, 20.0, N_RECORDS), np.arange(N_RECORDS) % 4.0
    columns = {"years": {"kind": "continuous", "bounds": [1, 20]}, "visits": {"kind": "continuous", "bounds": [0, 9]}}
    schema = Schema.from_dict({"columns": columns})

    def more(*values: float) -> tuple[Any, ...]:
        return tuple(np.append(column, value) for column, value in zip((years, visits), values, strict=True))

    def run(parts: Any, place: Place) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            return regression(
                "visits ~ years + offset(log(years))",
                dict(zip(columns, map(place.watched, parts), strict=True)),
                family="negativebinomial",
                schema=schema,
                epsilon=4.0,
                delta=1e-5,
                n_records=N_RECORDS,
                ledger=place.account,
                n_threads=1,
            )

    return Scenario(
        "regression, negative binomial",
        "dpinfer.formulas.regression",
        run,
        (years, visits),
        (
            Neighbour("a record more", more(3.0, 1.0)),
            Neighbour("a record out of bounds more", more(1e300, 1e300)),
            Neighbour("a record without a value more", more(3.0, np.nan)),
            Neighbour("the last record less", (years[:-1], visits[:-1])),
        ),
        ledger=True,
        stated=lambda result, folder: stated_by(result.release, folder),
    )


def _shares() -> Scenario:
    schema = Schema.from_toml(SCHEMA_TOML)
    width = len(schema.feature_names)
    X = (np.random.default_rng(42).random((N_RECORDS, width)) < 0.4).astype(float)

    def run(records: Any, place: Place) -> Any:
        table = Table(records, None, schema)
        return release_shares(table, noise_multiplier=2.0, delta=1e-5, ledger=place.account)

    def more(value: float) -> Any:
        return np.vstack((X, np.full((1, width), value)))

    neighbouring = (
        Neighbour("a record more", more(0.0)),
        Neighbour("a record of every category more", more(1.0)),
        Neighbour("a record far out more", more(1e300)),
        Neighbour("a record that is not a number more", more(np.nan)),
        Neighbour("the last record less", X[:-1]),
        Neighbour("the first record less", X[1:]),
    )
    return Scenario("release_shares", "dpinfer.tabular.release_shares", run, X, neighbouring, ledger=True)


def _unknown() -> Scenario:
    draft = SchemaDraft({"columns": {"age": {"kind": "continuous"}, "job": {"kind": "categorical"}}})
    plan = plan_unknown(draft, target_epsilon=20.0, target_delta=1e-5, budget_share=0.5)
    ages = np.random.default_rng(43).uniform(20.0, 70.0, 80)
    columns = {"age": ages, "job": np.array(["clerk", "cook"] * 39 + ["else"] * 2, dtype=object)}

    def run(records: Any, place: Place) -> Any:
        watched = {name: place.watched(column) for name, column in records.items()}
        return release_unknown(watched, draft, plan=plan, max_labels=4, ledger=place.account)

    def more(age: float, job: Any) -> Any:
        return {"age": np.append(columns["age"], age), "job": np.append(columns["job"], np.array([job], dtype=object))}

    neighbouring = (
        Neighbour("a record more", more(33.0, "cook")),
        Neighbour("a record far out of an unseen category more", more(1e300, "astronaut")),
        Neighbour("a record without a number more", more(np.nan, "cook")),
        Neighbour("a record without anything more", more(np.inf, None)),
        Neighbour("the last record less", {name: column[:-1] for name, column in columns.items()}),
        Neighbour("the first record less", {name: column[1:] for name, column in columns.items()}),
    )
    return Scenario("release_unknown", "dpinfer.tabular.release_unknown", run, columns, neighbouring, ledger=True)


def _noisy_tables() -> Iterator[Scenario]:
    """Yield a scenario for each private table."""
    schema = Schema.from_toml(SCHEMA_TOML)
    size = np.arange(N_RECORDS)
    columns = {
        "age": np.random.default_rng(48).uniform(20.0, 70.0, N_RECORDS),
        "job": np.array(["clerk", "cook", "else"], dtype=object)[size % 3],
        "rich": np.array(["yes", "no"], dtype=object)[size % 2],
    }

    def more(age: float, job: Any, rich: Any) -> Any:
        record = {"age": np.array([age]), "job": np.array([job], dtype=object), "rich": np.array([rich], dtype=object)}
        return {name: np.append(column, record[name]) for name, column in columns.items()}

    found = (
        Neighbour("a record more", more(33.0, "cook", "yes")),
        Neighbour("a record far out of an unseen category more", more(1e300, "astronaut", "no")),
        Neighbour("a record of a label that is none more", more(33.0, "cook", "perhaps")),
        Neighbour("a record without anything more", more(np.nan, None, None)),
        Neighbour("the last record less", {name: column[:-1] for name, column in columns.items()}),
        Neighbour("the first record less", {name: column[1:] for name, column in columns.items()}),
    )
    calls: tuple[tuple[Any, tuple[Any, ...], float], ...] = (
        (counts, (["job", "rich"],), 0.0),
        (crosstab, (["job", "rich"],), 1e-5),
        (means, ("age", "job"), 1e-5),
    )
    for call, arguments, delta in calls:

        def run(records: Any, place: Place, call: Any = call, arguments: Any = arguments, delta: float = delta) -> Any:
            data = {name: place.watched(column) for name, column in records.items()}
            terms = {"epsilon": 0.8, "delta": delta, "ledger": place.account}
            return call(data, *arguments, schema=schema, **terms).release

        name = call.__name__
        yield Scenario(f"tables.{name}", f"dpinfer.tables.{name}", run, columns, found, ledger=True)


def call_scenarios(*, formulas: bool) -> tuple[Scenario, ...]:
    """Return a scenario for every private call of tables, estimators and fits; with a formula, if `formulas`."""
    tables: tuple[Scenario, ...] = ()
    if formulas:
        tables = (_table(), _table(unknown=True), _table(adjacency=Adjacency.REPLACE_ONE), _table_of_counts())
    return (
        _shares(),
        _unknown(),
        *_noisy_tables(),
        *_estimator(),
        *_planned_estimators(),
        *fit_scenarios(("newton", "dpvi", "statistic")),
        _counted_fit(),
        *tables,
    )

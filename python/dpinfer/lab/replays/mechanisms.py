"""The private calls of the library that a record-and-replay audit runs, below the command line and the estimators.

**Privacy.** Made-up records only.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer.accounting import Adjacency, PrivacyPlan
from dpinfer.lab.baselines import NetworkVISettings, run_network_vi
from dpinfer.lab.replays.records import (
    FAR,
    N_RECORDS,
    Records,
    append,
    in_blocks,
    in_shards,
    in_sparse_blocks,
    neighbours,
    regression_records,
    single_column,
    single_precision,
)
from dpinfer.lab.replays.scenario import Neighbour, Place, Scenario
from dpinfer.lab.replays.statistics import statistics, unknowns
from dpinfer.mechanism import (
    Clusters,
    NetworkSettings,
    RunCheckpoint,
    Units,
    plan_newton,
    run_dp_sep,
    run_dpvi,
    run_network_dp_sep,
    run_newton,
)
from dpinfer.models import (
    BayesianNeuralNetwork,
    BetaBinomial,
    ConjugateModel,
    DirichletCategorical,
    GammaExponential,
    GaussianMixture,
    GeneralizedLinearModel,
    LinearRegression,
    LogisticRegression,
    MultinomialRegression,
    OwnModel,
    PersonModel,
    PoissonRegression,
    ProbitRegression,
    SurveyWeights,
    from_gradient,
)

CHECKPOINT = "run.checkpoint"
SECRET = frozenset((CHECKPOINT,))
# Second moments of two indicators and a constant.
_INDICATORS = ((0.5, 0.25, 0.5), (0.25, 0.5, 0.5), (0.5, 0.5, 1.0))


def public_plan(
    *, sampling: str = "poisson", rate: float = 0.7, steps: int = 3, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> PrivacyPlan:
    """Return the plan of a scenario."""
    rate = rate if sampling == "poisson" else 1.0 / N_RECORDS
    return PrivacyPlan.from_noise_multiplier(
        1.5,
        rate,
        steps,
        1e-5,
        adjacency=adjacency,
        sampling=sampling,
        n_records=None if sampling == "poisson" else N_RECORDS,
    )


def _dpvi(
    name: str,
    model: GeneralizedLinearModel | ConjugateModel,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    ledger: bool = False,
    checkpoint: bool = False,
    interrupted: bool = False,
    rate: float = 0.7,
    data: tuple[Records, Records, Records, tuple[Records, ...]] | None = None,
    **options: Any,
) -> Scenario:
    data = regression_records(model) if data is None else data  # type: ignore[arg-type]
    plan = public_plan(adjacency=adjacency, rate=rate)

    def once(records: Records, place: Place, progress: Callable[[int, int], None]) -> Any:
        return run_dpvi(
            model,
            *(place.watched(part) for part in records),
            plan=plan,
            n_records=N_RECORDS,
            progress=progress,
            ledger=place.account,
            checkpoint=RunCheckpoint(place.folder / CHECKPOINT, interval=0.0) if checkpoint else None,
            **({"n_threads": 1} | options),
        )

    def run(records: Records, place: Place) -> Any:
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                once(records, place, _interrupt)
        return once(records, place, place.progress)

    records, other, far, refused = data
    return Scenario(
        f"run_dpvi: {name}",
        "dpinfer.mechanism.run_dpvi",
        run,
        records,
        tuple(neighbours(records, other, far, adjacency, refused)),
        adjacency,
        ledger,
        SECRET,
    )


def _interrupt(done: int, total: int) -> None:
    if done == total - 1:
        raise KeyboardInterrupt


def _dpvi_scenarios() -> Iterator[Scenario]:
    logistic = LogisticRegression(2)
    norm: dict[str, Any] = {"max_grad_norm": 0.8}
    yield _dpvi("logistic, plain", logistic, **norm)
    yield _dpvi("logistic, tied", logistic, recipe="tied", max_grad_norm="auto")
    yield _dpvi("logistic, steady", logistic, recipe="steady", max_grad_norm="auto")
    yield _dpvi("logistic, paper", logistic, recipe="paper", **norm)
    yield _dpvi("logistic, aligned", logistic, gradient="aligned", **norm)
    yield _dpvi("logistic, full rank", logistic, guide="full_rank", **norm)
    yield _dpvi("logistic, replaced", logistic, adjacency=Adjacency.REPLACE_ONE, rate=1.0, **norm)
    yield _dpvi("logistic, blanked", logistic, adjacency=Adjacency.ZERO_OUT, ledger=True, **norm)
    yield _dpvi("logistic, ledger and checkpoint", logistic, ledger=True, checkpoint=True, **norm)
    yield _dpvi("logistic, interrupted", logistic, ledger=True, checkpoint=True, interrupted=True, **norm)
    yield _dpvi("logistic, aligned and tied", logistic, recipe="tied", gradient="aligned", max_grad_norm="auto")
    yield _dpvi("logistic, float32", logistic, data=single_precision(regression_records(logistic)), n_threads=2, **norm)
    yield _dpvi("probit", ProbitRegression(2), **norm)
    yield _dpvi("linear", LinearRegression(2), **norm)
    yield _dpvi("Poisson", PoissonRegression(2), **norm)
    counts = single_column(np.arange(12.0) % 6.0, 5.0, 0.0, (9.0, 2.5))
    yield _dpvi("binomial", BetaBinomial(5), data=counts, **norm)
    waits = single_column(np.linspace(0.1, 3.0, 12), 0.7, FAR, (-1.0, -1e300))
    yield _dpvi("exponential", GammaExponential(), data=waits, ledger=True, **norm)
    kinds = single_column(np.arange(12.0) % 4.0, 3.0, 0.0, (7.0, 0.5))
    yield _dpvi("categorical", DirichletCategorical((1.0,) * 4), data=kinds, recipe="plain", **norm)


def _dp_sep(
    name: str,
    model: Any,
    data: tuple[Records, Records, Records, tuple[Records, ...]],
    *,
    sampling: str = "poisson",
    ledger: bool = False,
    checkpoint: bool = False,
    call: Callable[..., Any] = run_dp_sep,
    **options: Any,
) -> Scenario:
    adjacency = Adjacency.ADD_REMOVE if sampling == "poisson" else Adjacency.REPLACE_ONE
    # Of so many uniform draws none is of the neighbour's record in one of 4000 runs.
    plan = public_plan(sampling=sampling, adjacency=adjacency, steps=3 if sampling == "poisson" else 8 * N_RECORDS)

    def run(records: Records, place: Place) -> Any:
        return call(
            model,
            *(place.watched(part) for part in records),
            plan=plan,
            n_records=N_RECORDS,
            n_threads=1,
            progress=place.progress,
            ledger=place.account,
            checkpoint=RunCheckpoint(place.folder / CHECKPOINT, interval=0.0) if checkpoint else None,
            **options,
        )

    records, other, far, refused = data
    neighbouring = tuple(neighbours(records, other, far, adjacency, refused))
    entry = f"dpinfer.mechanism.{call.__name__}"
    return Scenario(f"{call.__name__}: {name}", entry, run, records, neighbouring, adjacency, ledger, SECRET)


def _newton(
    name: str,
    model: GeneralizedLinearModel | OwnModel,
    *,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    ledger: bool = False,
    checkpoint: bool = False,
    interrupted: bool = False,
    rows: Callable[[Sequence[Any]], Any] | None = None,
    target: str = "model",
) -> Scenario:
    plan = plan_newton(
        model, target_epsilon=5.0, target_delta=1e-5, n_records=N_RECORDS, adjacency=adjacency, target=target
    )
    scale = 1.0 if isinstance(model, LinearRegression) else None

    def once(records: Records, place: Place, progress: Callable[[int, int], None]) -> Any:
        arrays = [place.watched(part) for part in records]
        return run_newton(
            model,
            *(arrays if rows is None else [rows(arrays)]),
            plan=plan,
            n_records=N_RECORDS,
            response_scale=scale,
            n_threads=1,
            progress=progress,
            ledger=place.account,
            checkpoint=RunCheckpoint(place.folder / CHECKPOINT, interval=0.0) if checkpoint else None,
        )

    def run(records: Records, place: Place) -> Any:
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                once(records, place, _interrupt)
        return once(records, place, place.progress)

    records, other, far, refused = regression_records(model)
    neighbouring = tuple(neighbours(records, other, far, adjacency, refused))
    return Scenario(
        f"run_newton: {name}", "dpinfer.mechanism.run_newton", run, records, neighbouring, adjacency, ledger, SECRET
    )


def _by_units(
    model: LinearRegression | LogisticRegression | PersonModel,
    adjacency: Adjacency,
    *,
    rows_of: Callable[..., Any] | None = None,
    target: str = "model",
) -> Scenario:
    """Return a run over units of one to three rows, and neighbours with another unit."""
    (X, y), other, far, refused = regression_records(model, 2 * N_RECORDS)
    unit: npt.NDArray[Any] = np.sort(np.arange(2 * N_RECORDS) ** 2 % N_RECORDS)
    records = (X, y, unit)
    remaining = unit != unit[4]

    def rows(*parts: Records) -> Records:
        joined = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
        return (*joined, np.full(len(joined[0]), N_RECORDS))

    def instead(own: Records) -> Records:
        left = tuple(array[remaining] for array in records) if adjacency is Adjacency.REPLACE_ONE else records
        return append(left, own)

    neighbouring = [
        Neighbour("another unit of one row", instead(rows(other))),
        Neighbour("another unit of five rows", instead(rows(other, other, far, other, other))),
        Neighbour("another unit of five rows far out", instead(rows(*[far] * 5))),
    ]
    if adjacency is Adjacency.ADD_REMOVE:
        neighbouring.append(Neighbour("a unit less", tuple(array[remaining] for array in records), aligned=False))
    neighbouring += [
        Neighbour(f"a unit outside of the domain ({index + 1})", instead(rows(bad)), refused="one reason")
        for index, bad in enumerate(refused)
    ]
    plan = plan_newton(
        model, target_epsilon=5.0, target_delta=1e-5, n_records=N_RECORDS, adjacency=adjacency, target=target
    )

    def run(records: Records, place: Place) -> Any:
        arrays = [place.watched(part) for part in records]
        return run_newton(
            model,
            *(arrays[:2] if rows_of is None else [rows_of(arrays, units=True)]),
            plan=plan,
            n_records=N_RECORDS,
            response_scale=1.0 if isinstance(model, LinearRegression) else None,
            unit=Units(arrays[2] if rows_of is None else None, max_rows=2.0),
            n_threads=1,
            progress=place.progress,
        )

    variant = {None: "", in_blocks: ", streamed"}.get(rows_of, ", sharded")
    variant += ", population" if target == "population" else ""
    kind = f"{model.family} with persons" if isinstance(model, PersonModel) else type(model).__name__
    name = f"run_newton: {kind} by units{variant}, {adjacency.value}"
    return Scenario(name, "dpinfer.mechanism.run_newton", run, records, tuple(neighbouring), adjacency)


def _in_clusters(model: LinearRegression | LogisticRegression, adjacency: Adjacency) -> Scenario:
    """Return a run of rows in clusters that are not protected; neighbours have a row in an old or a new cluster."""
    (X, y), other, far, refused = regression_records(model)
    cluster: npt.NDArray[Any] = np.sort(np.arange(N_RECORDS) ** 2 % 7)
    records = (X, y, cluster)
    kept = slice(1, None) if adjacency is Adjacency.REPLACE_ONE else slice(None)

    def instead(own: Records, where: int) -> Records:
        return append(tuple(array[kept] for array in records), (*own, np.full(1, where)))

    found = [
        Neighbour("another row of an old cluster", instead(other, 2)),
        Neighbour("another row far out of an old cluster", instead(far, 2)),
        Neighbour("a row far out of a cluster of its own", instead(far, N_RECORDS)),
    ]
    if adjacency is Adjacency.ADD_REMOVE:
        found.append(Neighbour("a row less", tuple(array[1:] for array in records), aligned=False))
    found += [
        Neighbour(f"a row outside of the domain ({index + 1})", instead(bad, 2), refused="one reason")
        for index, bad in enumerate(refused)
    ]
    plan = plan_newton(
        model, target_epsilon=5.0, target_delta=1e-5, n_records=N_RECORDS, adjacency=adjacency, target="population",
        clusters=True,
    )  # fmt: skip

    def run(records: Records, place: Place) -> Any:
        arrays = [place.watched(part) for part in records]
        return run_newton(
            model,
            *arrays[:2],
            plan=plan,
            n_records=N_RECORDS,
            response_scale=1.0 if isinstance(model, LinearRegression) else None,
            unit=Clusters(arrays[2]),
            n_threads=1,
            progress=place.progress,
        )

    kind = "strata, clusters" if model.survey_weights else "clusters"
    name = f"run_newton: {type(model).__name__}, population, {kind}, {adjacency.value}"
    return Scenario(name, "dpinfer.mechanism.run_newton", run, records, tuple(found), adjacency)


def own_logistic(*, sampled: bool = True) -> OwnModel:
    """Return a logistic regression as a user would bring it: a gradient and, on request, a sampler in NumPy."""

    def mean(params: FloatArray, X: FloatArray) -> FloatArray:
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * np.sum(X * params, axis=1)))

    return from_gradient(
        lambda params, X, y: X * (y - mean(params, X))[:, None],
        {"coef": (2,)},
        n_features=2,
        sampler=(lambda params, X, u: (u[:, 0] < mean(params, X)) * 1.0) if sampled else None,
        response="binary",
    )


def _newton_scenarios() -> Iterator[Scenario]:
    linear, logistic = LinearRegression(2, fit_intercept=True), LogisticRegression(2)
    yield _newton("linear", linear)
    yield _newton("linear, replaced", linear, adjacency=Adjacency.REPLACE_ONE)
    yield _newton("linear, interrupted", linear, ledger=True, checkpoint=True, interrupted=True)
    yield _newton("linear, streamed", linear, rows=in_blocks, ledger=True, checkpoint=True)
    yield _newton("linear, sparse", linear, rows=in_sparse_blocks, checkpoint=True)
    yield _newton("linear, sharded", linear, rows=in_shards, adjacency=Adjacency.REPLACE_ONE)
    yield _newton("logistic", logistic)
    yield _newton("logistic, declared moments", LogisticRegression(2, feature_moments=_INDICATORS))
    yield _newton("logistic, streamed", logistic, rows=in_blocks, adjacency=Adjacency.ZERO_OUT)
    yield _by_units(linear, Adjacency.ADD_REMOVE)
    yield _by_units(logistic, Adjacency.REPLACE_ONE, rows_of=in_blocks)
    persons: dict[str, Any] = {"max_rows": 2, "mean_rows": 2.0, "features": np.eye(2)}
    yield _by_units(PersonModel("gaussian", ("a", "b"), **persons), Adjacency.ADD_REMOVE)
    yield _by_units(PersonModel("binomial", ("a", "b"), slope=1, **persons), Adjacency.REPLACE_ONE, rows_of=in_blocks)
    yield _by_units(PersonModel("poisson", ("a", "b"), **persons), Adjacency.ADD_REMOVE, rows_of=in_shards)
    yield _newton("logistic, sharded", logistic, rows=in_shards, ledger=True, checkpoint=True)
    yield _newton("logistic, ledger and checkpoint", logistic, ledger=True, checkpoint=True)
    yield _newton("probit, replaced", ProbitRegression(2, fit_intercept=True), adjacency=Adjacency.REPLACE_ONE)
    yield _newton("probit, blanked", ProbitRegression(2), adjacency=Adjacency.ZERO_OUT)
    poisson = PoissonRegression(2, fit_intercept=True)
    yield _newton("Poisson", poisson)
    yield _newton("Poisson, interrupted", poisson, ledger=True, checkpoint=True, interrupted=True)
    yield _newton("population, linear", linear, target="population")
    yield _newton("population, linear, interrupted", linear, target="population", checkpoint=True, interrupted=True)
    yield _newton("population, linear, streamed", linear, target="population", rows=in_blocks, ledger=True)
    yield _newton("population, logistic, replaced", logistic, target="population", adjacency=Adjacency.REPLACE_ONE)
    yield _newton("population, logistic, sharded", logistic, target="population", rows=in_shards)
    yield _newton("population, Poisson, blanked", poisson, target="population", adjacency=Adjacency.ZERO_OUT)
    probit = ProbitRegression(2, fit_intercept=True)
    yield _newton("population, probit", probit, target="population", ledger=True, checkpoint=True)
    yield _newton("population, probit, sparse", probit, target="population", rows=in_sparse_blocks)
    weights = SurveyWeights(largest=2.0)
    surveyed = LinearRegression(2, fit_intercept=True, survey_weights=weights)
    yield _newton("population, linear, weighted", surveyed, target="population")
    blanked = LogisticRegression(2, survey_weights=weights)
    yield _newton("population, logistic, weighted", blanked, target="population", adjacency=Adjacency.ZERO_OUT)
    yield _newton("population, weighted, streamed", surveyed, target="population", rows=in_blocks)
    yield _by_units(surveyed, Adjacency.ADD_REMOVE, target="population")
    strata = LinearRegression(2, fit_intercept=True, survey_weights=SurveyWeights(largest=2.0, strata=3))
    yield _newton("population, linear, strata", strata, target="population")
    yield _newton(
        "population, strata, sparse, replaced",
        strata,
        target="population",
        rows=in_sparse_blocks,
        adjacency=Adjacency.REPLACE_ONE,
    )
    yield _newton("population, strata, sharded", strata, target="population", rows=in_shards, ledger=True)
    yield _by_units(strata, Adjacency.REPLACE_ONE, rows_of=in_shards, target="population")
    yield _in_clusters(strata, Adjacency.ADD_REMOVE)
    yield _by_units(logistic, Adjacency.REPLACE_ONE, rows_of=in_shards, target="population")
    yield _in_clusters(linear, Adjacency.ADD_REMOVE)
    yield _in_clusters(logistic, Adjacency.REPLACE_ONE)
    own_model = own_logistic()
    yield _newton("own model", own_model)
    yield _newton("own model, replaced", own_model, adjacency=Adjacency.REPLACE_ONE)
    yield _newton("own model, blanked", own_model, adjacency=Adjacency.ZERO_OUT)
    yield _newton("own model, interrupted", own_model, ledger=True, checkpoint=True, interrupted=True)
    yield _newton("multinomial", MultinomialRegression(2, 3), ledger=True, checkpoint=True)
    yield _newton("population, own model", own_model, target="population")
    yield _newton("population, own model, replaced", own_model, target="population", adjacency=Adjacency.REPLACE_ONE)
    yield _newton("population, own model, blanked", own_model, target="population", adjacency=Adjacency.ZERO_OUT)
    yield _newton(
        "population, own model, interrupted", own_model, target="population", checkpoint=True, interrupted=True
    )
    bare = own_logistic(sampled=False)
    yield _newton("population, own model without a sampler", bare, target="population")
    yield _newton("own model without a sampler", bare)
    yield _newton("own model without a sampler, replaced", bare, adjacency=Adjacency.REPLACE_ONE)


def mixture_points() -> tuple[Records, Records, Records, tuple[Records, ...]]:
    """Return records of two features, neighbours near and far, and refused records."""
    points = np.random.default_rng(32).normal(size=(N_RECORDS, 2))
    bad = tuple((np.array([[value, 0.0]]),) for value in (np.nan, -np.inf))
    return (points,), (np.full((1, 2), 0.5),), (np.full((1, 2), FAR),), bad


def _network_records() -> tuple[Records, Records, Records, tuple[Records, ...]]:
    rng = np.random.default_rng(33)
    bad = tuple((np.array([[value, 0.0]]), np.zeros(1)) for value in (np.nan, np.inf))
    other, far = (np.full((1, 2), 0.5), np.ones(1)), (np.full((1, 2), FAR), np.full(1, -FAR))
    return (rng.normal(size=(N_RECORDS, 2)), rng.normal(size=N_RECORDS)), other, far, bad


def _site_scenarios() -> Iterator[Scenario]:
    mixture, probit = GaussianMixture(2, 2), ProbitRegression(2)
    yield _dp_sep("mixture", mixture, mixture_points())
    yield _dp_sep("mixture, natural sites", mixture, mixture_points(), sites="natural", max_site_norm=0.5)
    yield _dp_sep("probit, ledger and checkpoint", probit, regression_records(probit), ledger=True, checkpoint=True)
    yield _dp_sep("logistic", LogisticRegression(2), regression_records(LogisticRegression(2)))
    for sampling in ("uniform", "permutation"):
        yield _dp_sep(f"probit, {sampling}", probit, regression_records(probit), sampling=sampling)
    network = BayesianNeuralNetwork(2, 3)
    # Without replicas, whose noised sums are of made-up records: the recorder takes every one for the records'.
    yield _dp_sep("the rule's settings", network, _network_records(), call=run_network_dp_sep, n_replicas=0)
    yield _dp_sep(
        "ledger and checkpoint",
        network,
        _network_records(),
        ledger=True,
        checkpoint=True,
        call=run_network_dp_sep,
        settings=NetworkSettings(n_replicas=0),
    )


def checkpointed(place: Place) -> dict[str, Any]:
    """Return the arguments of a scenario with a plan, a ledger and a checkpoint."""
    checkpoint = RunCheckpoint(place.folder / CHECKPOINT, interval=0.0)
    charged = {"ledger": place.account, "checkpoint": checkpoint, "progress": place.progress}
    return {"plan": public_plan(), "n_records": N_RECORDS, "n_threads": 1, **charged}


def _network_vi() -> Scenario:
    network = BayesianNeuralNetwork(2, 3)

    def run(records: Records, place: Place) -> Any:
        settings = NetworkVISettings(1e-2, 20.0, 1.0, 0.1)
        watched = [place.watched(part) for part in records]
        return run_network_vi(network, *watched, settings=settings, max_grad_norm=0.5, **checkpointed(place))

    records, other, far, refused = _network_records()
    neighbouring = tuple(neighbours(records, other, far, Adjacency.ADD_REMOVE, refused))
    entry = "dpinfer.lab.baselines.run_network_vi"
    return Scenario("run_network_vi", entry, run, records, neighbouring, ledger=True, skipped=SECRET)


def library_scenarios() -> tuple[Scenario, ...]:
    """Return a scenario for each private call of the library, and several for those with several kinds of sums."""
    return (
        *_dpvi_scenarios(),
        *_newton_scenarios(),
        *_site_scenarios(),
        _network_vi(),
        *statistics(Adjacency.ADD_REMOVE),
        *statistics(Adjacency.REPLACE_ONE),
        *statistics(Adjacency.ZERO_OUT),
        *(scenario for adjacency in Adjacency for scenario in unknowns(adjacency)),
    )

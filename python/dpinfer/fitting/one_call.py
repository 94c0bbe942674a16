"""One call: plan, private run, posterior; the release is saved first, and never lost."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy.typing as npt

from dpinfer._sinks import printable
from dpinfer._surroundings import ProgressCallback, note
from dpinfer._validate import check_type
from dpinfer.accounting import Adjacency, Composed, LedgerAccount, PrivacyPlan, account, as_adjacency
from dpinfer.errors import FallbackWarning
from dpinfer.fitting.plan import FitPlan, plan_fit
from dpinfer.fitting.result import RELEASE_FILE, Fit, make_folder, write_plan
from dpinfer.fitting.unknown import ReleasedArguments, keep_with, release_numbers, split_arguments, try_out
from dpinfer.inference import Posterior, PosteriorRequest
from dpinfer.mechanism import Clusters, Records, RunCheckpoint, Units
from dpinfer.mechanism.newton.plan import has_population_target
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import CheckpointArgument
from dpinfer.mechanism.records import records_of
from dpinfer.mechanism.unknowns.plan import names_of
from dpinfer.methods import RunSettings, find_method, method_with
from dpinfer.models import Model
from dpinfer.release import Release
from dpinfer.release.guarantee import Part, check_leaks, check_parts

# Arguments that may be unknown: how many columns' quantiles each takes, and a stand-in; format.
_COLUMNS = {"n_records": 0, "response_scale": 1}
_STAND_IN = {"n_records": 10_000, "response_scale": 1.0}  # format
_PLAN_OPTIONS = ("adjacency", "response_scale", "predictor_spread", "simulate", "target")


class FitOptions(TypedDict, total=False):
    """Further keyword arguments of :func:`fit`: of :func:`plan_fit`, the release's, and of :meth:`FitPlan.run`."""

    adjacency: Adjacency | str
    response_scale: float | None
    predictor_spread: float | None
    simulate: bool
    target: str
    unknown: Sequence[str]
    leaks: tuple[str, ...]
    parts: tuple[Part, ...]
    checkpoint: CheckpointArgument
    progress: bool | ProgressCallback | None
    n_threads: int | None
    unit: Units | None
    clusters: npt.ArrayLike | None
    backend: str


def fit(
    model: Model,
    X: npt.ArrayLike | Records,
    y: npt.ArrayLike | None = None,
    *,
    epsilon: float,
    delta: float,
    n_records: int | None = None,
    method: str = "auto",
    ledger: LedgerAccount | None = None,
    random_source: RandomSource | None = None,
    path: str | os.PathLike[str] | None = None,
    posterior: PosteriorRequest | None = None,
    **options: Unpack[FitOptions],
) -> Fit:
    """Fit a model with differential privacy: choose the mechanism, run it once, and infer the posterior.

    **Privacy.** Hands the records to one mechanism of the library, which is (epsilon, delta)-differentially private
    under `adjacency`.  Mechanism, settings and predicted widths follow from public numbers alone; the posterior is
    post-processing of the release.  Wrong arguments are refused before anything is spent.  After the charge the
    release is kept, even if the posterior fails.

    Raises BackendUnavailableError if `backend` is not available, and FileExistsError if `path` holds a fit; nothing was
    spent. Warns by FallbackWarning if the posterior could not be computed, or a file not be written, after the run:
    the fit then holds the release, and ``fit.failure`` gives the reason.

    Parameters
    ----------
    model : Model
    X : array-like, CudaRows, RowSource or ShardedRows
        The records: (N, n_features), or the values themselves for a conjugate model.  A stream
        (docs/streams.md) has the responses in its blocks; y is None.
    y : (N,) array-like, optional
    epsilon, delta, n_records, method
        As in :func:`dpinfer.plan_fit`.
    ledger : LedgerAccount, optional
        The data set's account in a :class:`dpinfer.PrivacyLedger`, charged once, before the records are looked at.
    random_source : RandomSource, optional
        The operating system's generator by default.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible fits that
        are marked NOT PRIVATE.
    path : path-like, optional
        A folder without a fit.  The plan is written there before the run, the release right after it, and then the
        posterior.
    posterior : PosteriorRequest, optional
        Settings of the posterior; checked against the planned run before anything is spent.
    adjacency, response_scale, predictor_spread, simulate, target
        As in :func:`dpinfer.plan_fit`.  `response_scale` is needed for a linear regression by "newton".
    unknown : sequence of {"n_records", "response_scale"}, optional
        Arguments that are not public. Leave them out of the call: they are released first, with noise, for a tenth of
        the budget (in squares), and "newton" makes the fit with the rest. `epsilon` and `delta` cover all releases
        together, and the release's guarantee states them; a ledger has an entry for each. The plan of the fit
        contains the released values: docs/unknown.md.
    leaks, parts : tuple, optional
        Permanent marks of the release: as in its ``with_leaks`` and ``with_parts``.
    checkpoint : path-like or RunCheckpoint, optional
        Save the run after each pass, and go on from it after a crash, for one charge.  SECRET: it holds the noise's
        key.  With `path` a file is removed when the release is saved.
    progress : bool or callable, optional
        True draws a bar for the run, and one for the posterior, on a terminal and in a notebook; the default does so
        after two seconds.
    n_threads : int, optional
        All cores by default; the release does not depend on it.
    unit : Units, optional
        The unit of each row. Privacy then protects a unit with all of its rows, `n_records` counts units, and the
        method is "newton". Target "auto" is the population's if the model has it, with intervals that allow for
        dependence of rows within a unit (cluster-robust).
    clusters : (N,) array of integers or strings, optional
        Clusters within which rows may depend on each other.  Privacy protects rows, and intervals of the population's
        coefficients are cluster-robust; for method "newton" and arrays.
    backend : {"cpu", "cuda"}
        Processor of the passes; the release does not depend on it.  "cuda" takes arrays, by method "newton": see
        :class:`dpinfer.mechanism.CudaRows` for its requirements.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(4000, 2)); y = (rng.random(4000) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    >>> model = dpi.models.LogisticRegression(2, fit_intercept=True)
    >>> result = dpi.fit(model, X, y, epsilon=1.0, delta=1e-5, n_records=4000)
    >>> result.plan.method, bool(abs(result.posterior.mean[0] - 1.0) < 0.5)
    ('newton', True)
    """
    unknown = options.pop("unknown", None)
    planned: Any = {name: options.pop(name) for name in _PLAN_OPTIONS if name in options}  # type: ignore[misc]
    leaks, parts = check_leaks(options.pop("leaks", ())), options.pop("parts", ())
    X, method = _on_backend(options.pop("backend", "cpu"), X, method)
    given: Any = options
    foreign = set(given) - {"clusters", *RunSettings.__dataclass_fields__}
    if foreign:
        raise TypeError(f"fit() got an unexpected keyword argument {min(foreign)!r}; see FitOptions")
    request = as_request(posterior, given.get("progress"))
    clusters = given.pop("clusters", None)
    if clusters is not None:
        if given.get("unit") is not None:
            raise ValueError("clusters must be None with unit: a unit is a cluster, and is protected as a whole")
        given["unit"], planned["clusters"] = Clusters(clusters), True
    run = RunSettings(ledger=ledger, random_source=random_source, **given)
    chosen = _Asked(request, run, parts, None if path is None else Path(path))
    if run.unit is not None:
        method = _of_units(model, method, unknown, planned)
    arguments = {"epsilon": epsilon, "delta": delta, "n_records": n_records, "method": method, **planned}
    if unknown is None:
        return _run(_checked_plan(model, arguments, chosen), X, y, chosen, leaks)
    released, arguments = _released(model, X, y, unknown, arguments, chosen)
    with keep_with(released):
        chosen = replace(chosen, parts=(*parts, *released.parts))
        return _run(_checked_plan(model, arguments, chosen), X, y, chosen, leaks)


def as_request(posterior: PosteriorRequest | None, progress: Any = None) -> PosteriorRequest:
    """Return the request of a fit's posterior; without a `progress` of its own it gets the fit's."""
    request = PosteriorRequest() if posterior is None else posterior
    check_type("posterior", request, PosteriorRequest)
    return request if progress is None or request.progress is not None else replace(request, progress=progress is True)


def _of_units(model: Model, method: str, unknown: Any, planned: dict[str, Any]) -> str:
    """Return the method of a run over units, and put its target into what is planned."""
    method = method_with("unit", method)
    if unknown is not None:
        raise ValueError("unknown must be None with unit or clusters: unknown arguments are released for rows")
    if planned.get("target", "auto") == "auto" and has_population_target(model):
        planned["target"] = "population"
    return method


def _on_backend(backend: str, X: Any, method: str) -> tuple[Any, str]:
    """Return the records as the backend reads them, and the method that it is for."""
    if backend not in ("cpu", "cuda"):
        raise ValueError(f"backend must be 'cpu' or 'cuda', got {backend!r}")
    records = records_of(X)
    if backend == "cpu" and not records.on_gpu:
        return X, method
    method = method_with("cuda", method, argument="backend 'cuda'")
    return records.to_gpu(), method


@dataclass(frozen=True)
class _Asked:
    """Settings of a run, its posterior and its files."""

    request: PosteriorRequest
    run: RunSettings
    parts: tuple[Part, ...]
    folder: Path | None


def _checked_plan(model: Model, arguments: dict[str, Any], asked: _Asked) -> FitPlan:
    """Return the plan, after refusing runs that would fail; write it if there is a folder."""
    plan = plan_fit(model, **arguments)
    plan.check(asked.request, asked.run)
    check_composition(plan, asked.parts)
    if asked.folder is not None:
        make_folder(asked.folder)
        write_plan(plan, asked.folder)
    return plan


def _released(
    model: Model, X: Any, y: Any, unknown: Any, arguments: dict[str, Any], asked: _Asked
) -> tuple[ReleasedArguments, dict[str, Any]]:
    """Release unknown arguments, after refusing fits that would fail; return the fit's arguments with them.

    **Privacy.** Reads the records, through :func:`release_numbers`.
    """
    if asked.run.checkpoint is not None:
        raise ValueError("checkpoint must be None with unknown: a run taken up again would release twice")
    method = method_with("unknown", arguments["method"])
    relation = as_adjacency(arguments.get("adjacency", Adjacency.ADD_REMOVE))
    public = {name: arguments.get(name) for name in _COLUMNS}
    if {"bounds", "categories"} & set(names_of(unknown)):
        raise ValueError(
            "unknown must hold arguments of fit ('n_records', 'response_scale'); bounds and categories belong to a "
            "schema: dpinfer.regression takes them as unknown"
        )
    split = split_arguments(
        unknown, public, _COLUMNS, epsilon=arguments["epsilon"], delta=arguments["delta"], adjacency=relation
    )
    records = records_of(X, y)
    records.refuse("X, of which something is unknown,", ("blocks", "parts", "sparse", "cuda"))
    arguments = arguments | {"epsilon": split.fit_epsilon, "method": method}
    before = Part("what was unknown in public", split.parts.event, relation)
    trial = replace(asked, parts=(*check_parts("parts", asked.parts, relation), before))
    stand_ins = {name: _STAND_IN[name] for name in unknown}
    tried = try_out(split, lambda: _checked_plan(model, arguments | stand_ins, trial), asked.run.ledger)
    find_method(method)[0].check_records(tried.target, tried.mechanism, X, y)
    released = release_numbers(
        split,
        X,
        records.responses(),
        ("y",),
        # The root mean square of the normal law that has the released quantiles.
        lambda found: {"response_scale": math.hypot(float(found.centre[0]), float(found.scale[0]))},
        n_records=arguments["n_records"],
        ledger=asked.run.ledger,
        random_source=asked.run.random_source,
    )
    return released, arguments | released.values


def _run(plan: FitPlan, X: Any, y: Any, asked: _Asked, leaks: tuple[str, ...]) -> Fit:
    """Make the private run, save its release, and compute the posterior."""
    run, folder = asked.run, asked.folder
    checkpoint = run.checkpoint
    note(
        "fit: method %s for n_records %d, epsilon %.4g, delta %.4g",
        plan.method,
        plan.n_records,
        plan.epsilon,
        plan.delta,
    )
    if folder is not None and checkpoint is not None and not isinstance(checkpoint, RunCheckpoint):
        # It stays until the release is on the disk.
        run = replace(run, checkpoint=RunCheckpoint(checkpoint))
    release = plan.run(X, y, **vars(run)).with_parts(*asked.parts).with_leaks(*leaks)
    saved = folder is None or _saved(release, folder)
    if saved and run.checkpoint is not checkpoint and isinstance(run.checkpoint, RunCheckpoint):
        run.checkpoint.discard()
    return _with_posterior(plan, release, asked.request, folder if saved else None)


def check_composition(plan: FitPlan | PrivacyPlan, parts: tuple[Part, ...]) -> None:
    """Refuse earlier private parts whose guarantees do not compose with the planned run's."""
    before = check_parts("parts", parts, plan.adjacency)
    if before:
        event = Composed((*(part.event for part in before), plan.event))
        delta = plan.delta if isinstance(plan, PrivacyPlan) else plan.delta or plan.target.delta
        account(event, delta=delta, adjacency=plan.adjacency, accountant=getattr(plan, "accountant", "pld"))


def _saved(release: Release, folder: Path) -> bool:
    try:
        release.save(folder / RELEASE_FILE)
    except OSError as error:
        _tell(f"the release could not be saved to {printable(folder)!r} ({error.strerror}): save it with fit.save(...)")
        return False
    return True


def _with_posterior(plan: FitPlan, release: Release, request: PosteriorRequest, folder: Path | None) -> Fit:
    """Compute the posterior; the release is paid for, and is returned in any case."""
    inferred: Posterior | None = None
    failure = ""
    try:
        inferred = find_method(plan.method)[0].posterior(release, request)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        _tell(f"the posterior failed ({failure}); the private run is paid for, and fit.release holds its release")
    except BaseException as error:
        error.release = release  # type: ignore[attr-defined]
        place = ""
        if folder is not None:
            place = f" It is saved in {str(folder)!r}: load_fit (load_regression of a formula) reads it."
        error.add_note(
            "The private run is done and paid for: its release is 'release' of this error; go on with "
            f"dpinfer.noise_aware_posterior(error.release).{place}"
        )
        raise
    if inferred is not None:
        failed = ", ".join(inferred.diagnostics.warnings) or "none"
        note("posterior: %d parameters, checks that fail: %s", len(inferred.names), failed)
    result = Fit(plan=plan, release=release, maybe_posterior=inferred, failure=failure)
    if folder is not None:
        try:
            result.save(folder)
        except (OSError, TypeError) as error:
            _tell(f"the posterior could not be saved to {printable(folder)!r} ({error}); the release is there")
    return result


def _tell(text: str) -> None:
    warnings.warn(text, FallbackWarning, stacklevel=5)

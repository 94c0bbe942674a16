"""The private Newton method: records in, a NewtonRelease out."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import check_integer, check_interval, known_shape, survey_columns
from dpinfer._version import __version__
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.accounting.guarantee import caution_of_delta
from dpinfer.errors import FallbackWarning
from dpinfer.mechanism.newton import tuning
from dpinfer.mechanism.newton.glm import GlmNewton
from dpinfer.mechanism.newton.linear import LinearNewton
from dpinfer.mechanism.newton.own_clipped_model import ClippedNewton
from dpinfer.mechanism.newton.own_model import OwnNewton
from dpinfer.mechanism.newton.own_population import OwnPopulation
from dpinfer.mechanism.newton.own_rows import OwnRecords
from dpinfer.mechanism.newton.pass_records import Passes, open_records
from dpinfer.mechanism.newton.plan import NewtonPlan, check_model, check_phases, phases_of
from dpinfer.mechanism.newton.population import PopulationNewton
from dpinfer.mechanism.newton.unit_parts import open_persons
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl, private_run, reader_of
from dpinfer.mechanism.questions import Question
from dpinfer.mechanism.records import check_arguments, check_records
from dpinfer.mechanism.silos.rows import SiloRecords
from dpinfer.mechanism.sources.row_source import Records
from dpinfer.mechanism.units import Clusters, Units, check_identity_layout
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel
from dpinfer.models import tuning as common
from dpinfer.models.person_model import PersonModel
from dpinfer.models.whitening import watched
from dpinfer.release.newton.own import OwnNewtonRelease, OwnPopulationRelease
from dpinfer.release.newton.population import ClusteredPopulationRelease, PopulationRelease
from dpinfer.release.newton.regression import GlmNewtonRelease, NewtonRelease, SumsOfPasses

_STRATIFIED = 2  # numbers beside a response: its weight and its stratum; format
# Range of declared sizes: bounds of contributions, their lattice and their noise stay well inside of doubles.
_LARGEST_SIZE, _LARGEST_RESPONSE, _LARGEST_SQUARED = 1e30, 1e25, 1e10


@standard_arithmetic()
def run_newton(
    model: GeneralizedLinearModel | OwnModel,
    X: npt.ArrayLike | Records,
    y: npt.ArrayLike | None = None,
    *,
    plan: NewtonPlan,
    n_records: int,
    response_scale: float | None = None,
    unit: Units | Clusters | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
) -> SumsOfPasses:
    """Run the private Newton method for a regression or a model of your own, and release its noisy sums.

    The run makes a few passes over all records.  They release the scale of responses that are not zeros and ones,
    second moments in coordinates that each pass whitens better, bounded scores for Newton steps toward the weights
    (the last ones more precise), and for all but a linear regression the score's slope at the end.  For a model of
    your own the scores are those of its likelihood, clipped, and centred by its own draws.  Without a sampler they
    are not centred: the run counts the clipped share, with noise, and the posterior warns.

    **Privacy.** Reads the records.  Adjacency: that of `plan`.  Every pass is a sum of contributions whose norm is
    bounded on an integer lattice, with exactly rounded Gaussian noise (docs/derivations/private-newton.md, and
    any-model.md for a model of your own); the release is (epsilon, delta)-differentially private with the plan's
    numbers.  Bad records are refused before the first pass, and nothing is drawn then.  After its start the mechanism
    never raises because of a record, and a record whose contribution is not finite contributes zero.

    Parameters
    ----------
    model : LinearRegression, LogisticRegression, ProbitRegression, PoissonRegression, or OwnModel
        The run uses `prior_scale` and the declared second moments of the features, but no prior of the noise variance.
    X : (N, n_features) array of float64 or float32, sparse matrix, CodedRows, CudaRows, RowSource, ShardedRows or Silos
        An array is not copied when C-contiguous.  Sparse matrices and :class:`dpinfer.mechanism.CodedRows`, here and in
        the blocks of a source, cost their non-zeros and give the release of their dense rows.  A
        :class:`dpinfer.mechanism.RowSource` is read anew in every pass, a block at a time, responses included;
        :class:`dpinfer.mechanism.ShardedRows` are read by workers, :class:`dpinfer.mechanism.CudaRows` by a GPU.  The
        release has the bits of the run in memory, for any blocks, shards and order.
        :class:`dpinfer.mechanism.Silos` mask their sums, and add the noise: docs/silos.md.
    y : (N,) array, optional
        None with one of these.  (N, 2), responses and weights, for a model with `survey_weights`; their
        strata are a third column.
    plan : NewtonPlan
        From :func:`plan_newton`.
    n_records : int
        A *public* number of records; ``len(X)`` would be private under add/remove adjacency.
    response_scale : float, optional
        For, and only for, a linear regression: a public order of magnitude of the responses, in their units, within a
        factor of 10 of their root mean square; between 1e-25 and 1e25, for the population target 1e-10 and 1e10; with
        units the upper limit is over their `max_rows`.
    unit : Units or Clusters, optional
        The unit of each row: privacy then protects a unit with all of its rows, and `n_records`, here and in the plan,
        counts units.  All rows of a unit are summed before the sum is clipped (docs/derivations/units.md).  The
        release's `n_records` counts rows: ``unit.n_rows(n_records)``.  With :class:`dpinfer.mechanism.Clusters`, and a
        plan with ``clusters=True``, rows are protected, and intervals allow for dependence within clusters.
    n_threads, progress, random_source, ledger, checkpoint
        As in :func:`dpinfer.run_dpvi`; a checkpoint is saved after each pass.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or features or the prior are declared with a size beyond 1e-30 to 1e30.
    RuntimeError
        If a shard could not be read; passes that were made are in the checkpoint.
    SiloError
        If too few silos are there.
    InsecureReleaseError
        If `ledger` is given together with an insecure `random_source`.
    CheckpointError
        If `checkpoint` names a file that is not a checkpoint of this run, or is damaged.

    Warns
    -----
    FallbackWarning
        If public arithmetic between passes met singular systems: the run continues, and its release states this.

    Notes
    -----
    Bounded scores: Huber (1964) with Mallows weights (Hampel et al. 1986, section 6.3), unbiased at the true weights
    for symmetric errors and any features; for other responses centred by the model (Kuensch, Stefanski and Carroll
    1989).  Recursive private preconditioning: Kamath, Li, Singhal and Ullman (2019).  Noisy Newton steps:
    Avella-Medina, Bradshaw and Loh (2023).

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(2000, 2)); y = X @ [1.0, -0.5] + 0.3 * rng.normal(size=2000)
    >>> model = dpi.models.LinearRegression(2)
    >>> plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-5, n_records=2000)
    >>> release = dpi.run_newton(model, X, y, plan=plan, n_records=2000, response_scale=1.0)
    >>> release.n_passes, release.epsilon <= 1.0
    (13, True)
    """
    given, response_scale = check_run(model, X, y, plan, unit, response_scale)
    n_records = check_integer("n_records", n_records, 1)
    caution_of_delta(plan.delta, n_records, stacklevel=4)
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    given.check_ledger(ledger)
    plan = replace(plan, stops=plan.stops and not given.own_noise)  # silos agree on their passes before the first
    used: dict[str, Any] = {"common": asdict(common.TUNING)}
    used |= {"own": asdict(tuning.OWN)} if isinstance(model, OwnModel) else {}
    used |= {"population": asdict(tuning.POPULATION)} if plan.target == "population" else {}
    persons = isinstance(model, PersonModel)
    used |= {"priors": asdict(common.PRIORS)} if persons else {}
    chosen = {"tuning": asdict(tuning.TUNING) | used}
    units: dict[str, Any] = {"unit": unit.to_dict(n_records)} if isinstance(unit, Units) else {}
    n_rows = n_records if unit is None or persons else unit.n_rows(n_records)
    kind, algorithm = _algorithm(model, plan, n_rows, response_scale, n_records if isinstance(unit, Units) else None)

    def description() -> dict[str, Any]:
        return {
            "version": __version__,
            "model": model.to_dict(),
            "plan": plan.to_dict(),
            "n_records": n_records,
            "response_scale": response_scale,
            **units,
            **chosen,
            **given.to_dict(),
        }

    with private_run(
        plan,
        mechanism="newton",
        source=control.source,
        ledger=control.ledger,
        checkpoint=control.checkpoint,
        description=description,
        # At sites the noise is drawn under keys of theirs.
        read=Question if given.own_noise else reader_of(model, control),
    ) as private:
        # From here on the records are read; nothing is drawn before the passes begin.
        with private.reading():
            records = _records_of(model, given, plan, control.n_threads, unit, n_records, private.saved)
        max_rows = 1.0 if unit is None or persons else unit.max_rows
        with watched() as left:
            passes = Passes(private, plan, records, report=control.report, max_rows=max_rows)
            arrays = algorithm.run(passes)
        # A checkpoint stays until the sites know of the end of the session.
        told = records.close(plan)
    settings: dict[str, Any] = {"mechanism": "newton", "version": __version__, "plan": passes.plan.to_dict()}
    settings |= units | chosen | told
    if left:
        settings["steadied"] = len(left)
        warnings.warn(
            f"between its passes the run met {len(left)} singular systems, which it solved in the directions that are "
            "distinguished from zero: the release is valid, but its last steps may be far from the optimum; features "
            "of one unit, or a wider prior, help",
            FallbackWarning,
            stacklevel=3,
        )
    if private.ledger_settings:
        settings["ledger"] = private.ledger_settings
    return kind(
        **arrays,
        names=model.names,
        n_records=n_rows,
        event=plan.event,
        adjacency=plan.adjacency,
        delta=plan.delta,
        secure=control.source.secure and records.secure,
        model_spec=model.to_dict(),
        settings=settings,
    )


class _Algorithm(Protocol):
    """Public arithmetic between the passes of a run."""

    def run(self, passes: Passes) -> dict[str, Any]:
        """Make the plan's passes and return the arrays of the release."""


def _algorithm(
    model: Any, plan: NewtonPlan, n_rows: int, response_scale: float | None, n_units: int | None
) -> tuple[Callable[..., SumsOfPasses], _Algorithm]:
    """Return the kind of the release and the run's algorithm.

    A user's own code is called here for simulation, before anything is spent, and may raise.
    """
    if isinstance(model, OwnModel) and plan.target == "population":
        return OwnPopulationRelease, OwnPopulation(model, plan, n_rows, None)
    if isinstance(model, OwnModel):
        return OwnNewtonRelease, (OwnNewton if model.has_sampler else ClippedNewton)(model, plan, n_rows)
    if plan.target == "population":
        kind = ClusteredPopulationRelease if plan.clusters else PopulationRelease
        return kind, PopulationNewton(model, plan, n_rows, response_scale, n_units)
    if response_scale is not None:
        return NewtonRelease, LinearNewton(model, n_rows, response_scale)
    return GlmNewtonRelease, GlmNewton(model, n_rows)


def check_run(
    model: Any, X: Any, y: Any, plan: NewtonPlan, unit: Units | Clusters | None, response_scale: float | None
) -> tuple[Records, float | None]:
    """Refuse contradictory arguments, before records are read; return the records, and the scale of a linear run.

    **Privacy.** Reads no records.
    """
    check_model(model)
    if not isinstance(plan, NewtonPlan):
        raise TypeError(f"plan must be a NewtonPlan, got {type(plan).__name__}")
    records = check_arguments(model, y, X, _takes(model, plan, unit), weighted=plan.target == "population")
    if "sparse" in records.demands and plan.adjacency is Adjacency.ZERO_OUT:
        raise ValueError("plan must not be for 'zero_out' with sparse rows: plan for 'add_remove' or 'replace_one'")
    _check_unit(unit, records, plan.adjacency)
    if isinstance(unit, Clusters) is not plan.clusters:
        raise ValueError("unit must be Clusters with a plan that has clusters=True, and with no other")
    check_phases(plan, phases_of(model, plan.target, clusters=plan.clusters))
    if isinstance(model, PersonModel):
        _check_persons(model, unit)
    elif isinstance(model, OwnModel) and unit is not None:
        raise TypeError("unit must be None for a model of your own")
    if not isinstance(model, OwnModel):
        _check_sizes(model)
    if isinstance(model, LinearRegression):
        # The population target sums products of two scores; the bound of a unit is that of all its rows.
        largest = _LARGEST_SQUARED if plan.target == "population" else _LARGEST_RESPONSE
        most = largest / (1.0 if unit is None else unit.max_rows)
        return records, check_interval("response_scale", response_scale, 1.0 / largest, most)
    if response_scale is not None:
        raise TypeError(f"response_scale must be None for {type(model).__name__}, got {type(response_scale).__name__}")
    return records, None


def _check_persons(model: PersonModel, unit: Units | Clusters | None) -> None:
    """Refuse a run without units, and another number of rows than the model's."""
    if not isinstance(unit, Units):
        raise TypeError("unit must be Units for a model of persons: they say whose each row is")
    if (unit.max_rows, min(float(unit.mean_rows or 1.0), unit.max_rows)) != (model.max_rows, model.mean_rows):
        raise ValueError(
            f"unit must have max_rows={model.max_rows} and mean_rows={model.mean_rows:g}, those of the model of "
            f"persons, got {unit.max_rows:g} and {unit.mean_rows:g}"
        )


def _check_sizes(model: GeneralizedLinearModel) -> None:
    """Refuse features and priors in units whose sums of squares exceed doubles."""
    sizes = np.sqrt(np.append(model.second_moments, model.prior_scale**2))
    if not np.all((sizes >= 1.0 / _LARGEST_SIZE) & (sizes <= _LARGEST_SIZE)):
        raise ValueError(
            f"model must have features and a prior_scale of a size between {1.0 / _LARGEST_SIZE:g} and "
            f"{_LARGEST_SIZE:g}: give them in other units"
        )


def _takes(model: Any, plan: NewtonPlan, unit: Units | Clusters | None) -> tuple[str, ...]:
    """Return what the run can do with records."""
    if isinstance(model, OwnModel):
        return ("blocks", "units", "parts", "sites") if isinstance(model, PersonModel) else ("sites",)
    beside = survey_columns(model)
    of_rows = () if unit is not None else ("sparse",) if beside else ("sparse", "cuda")
    return ("blocks", "units", "parts", *(("sites",) if beside < _STRATIFIED else ()), *of_rows)


def _check_unit(unit: Units | Clusters | None, records: Records, adjacency: Adjacency) -> None:
    if unit is None:
        if records.units:
            raise ValueError("unit must be given with a source of (X, y, unit)")
        return
    if not isinstance(unit, (Units, Clusters)):
        raise TypeError(f"unit must be Units or Clusters, got {type(unit).__name__}")
    if "sites" in records.demands:
        raise TypeError(
            f"unit must be None with {type(records).__name__}: it cannot check that each unit is in one part only; "
            "give each unit one row, in one of them"
        )
    if (records.held is None) != (unit.ids is None) or (records.held is None) != records.units:
        raise ValueError("unit must have ids with an array, and none with a RowSource or ShardedRows of (X, y, unit)")
    if records.held is not None:
        check_identity_layout(unit.ids, (known_shape(records.held[0]) or (None,))[0])
    if adjacency is Adjacency.ZERO_OUT:
        raise ValueError("plan must not be for 'zero_out' with units: plan for 'add_remove' or 'replace_one'")


def _records_of(
    model: Any,
    given: Any,
    plan: NewtonPlan,
    n_threads: int,
    unit: Units | Clusters | None,
    n_records: int,
    saved: Mapping[str, npt.NDArray[np.float64]],
) -> Any:
    """Return the checked records, as passes read them."""
    if given.own_noise:
        return SiloRecords(given, model, plan, n_records, saved)
    if isinstance(model, PersonModel) and isinstance(unit, Units):
        return open_persons(model, given, None, unit, n_threads=n_threads)
    if isinstance(model, OwnModel) and given.held is not None:
        X, y = given.held
        return OwnRecords(*check_records(model, X, y, plan.adjacency), drawn=model.has_sampler)
    return open_records(model, given, None, plan.adjacency, n_threads=n_threads, units=unit)

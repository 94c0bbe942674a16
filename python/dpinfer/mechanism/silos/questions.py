"""Questions that a site answers: those of its own plan and model, decided before a record is read.

**Privacy.** Reads no records.  A query travels as public numbers, and its bound holds for the numbers that this
library's algorithms choose.  So a site takes a kind of query only in a pass that asks it, with the bound that the sum
itself enforces, and tries it on a made-up record: what a coordinator writes into the numbers can then change neither
the bound of a record nor whether the site answers (docs/derivations/silos.md, "Questions").
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpinfer._validate import survey_columns
from dpinfer.errors import SiloError
from dpinfer.mechanism import _native
from dpinfer.mechanism.newton import contributions, joint, own_clipped_model, own_population, own_rows
from dpinfer.mechanism.newton.contributions import Query, Rows
from dpinfer.mechanism.newton.plan import NewtonPlan, check_model, check_phases, phases_of
from dpinfer.mechanism.silos.messages import unpack
from dpinfer.models import OwnModel, PersonModel

Kind = tuple[type[Any], ...]  # a query; and behind it that of whose scores it is

_MOST_COLUMNS = 1  # numbers beside a response at a site: its weight; format


def check_task(model: Any, plan: NewtonPlan) -> None:
    """Refuse a task whose passes are not those of a run over silos of this model.

    Raises SiloError or another error of its arguments.
    """
    check_model(model)
    if isinstance(model, PersonModel) or survey_columns(model) > _MOST_COLUMNS or plan.stops:
        raise SiloError("the task must be a run whose records are rows, without strata, and whose passes are fixed")
    if survey_columns(model) and plan.target != "population":
        raise SiloError("the task must be for target='population' with survey weights")
    check_phases(plan, phases_of(model, plan.target))


def kinds_of(model: Any, target: str) -> Mapping[str, tuple[Kind, ...]]:
    """Return the kinds of queries of each phase."""
    if isinstance(model, OwnModel):
        steps: Kind = (own_rows.CentredScores if model.has_sampler else own_clipped_model.ClippedScores,)
        if target == "model":
            return dict.fromkeys(("localise", "slope", "measure"), (steps,))
        scores, curvatures = own_population.OwnScores, own_population.OwnCurvatures
        return {
            "localise": (steps,),
            "lengths": ((joint.UnitSizes, curvatures),),
            "bread": ((curvatures,),),
            "sizes": ((joint.UnitSizes, scores),),
            "measure": ((scores,),),
            "meat": ((joint.UnitProducts, scores),),
        }
    linear = model.residual_link is None
    steps = (contributions.RobustScores if linear else contributions.ClippedScores,)
    kinds: dict[str, tuple[Kind, ...]] = {
        "scale": ((contributions.LogScaleCounts,),),
        "means": ((contributions.FeatureMeans,),),
        "geometry": ((contributions.SecondMoments,),),
        "localise": (steps,),
        "measure": (steps,),
        "slope": ((contributions.ClippedCurvatures,),),
    }
    if target == "model":
        return kinds
    sizes, scores_kind, curved = (joint.Sizes,), (joint.JointScores,), (joint.Curvatures,)
    return kinds | {
        "localise": (scores_kind if linear else steps,),
        "rare": ((contributions.SecondMoments,),),
        **dict.fromkeys(("reach", "lengths", "sizes"), (sizes,)),
        **dict.fromkeys(("frame", "bread"), (curved,)),
        "approach": (scores_kind, curved),
        "measure": (scores_kind,),
        "meat": ((joint.ScoreProducts,),),
    }


def asked_of_model(query: bytes, model: Any, kinds: Sequence[Kind], most_numbers: int) -> Query:
    """Return the query of a message, of one of these kinds, of at most so many numbers, and one that can be summed.

    Raises SiloError if it is none.
    """
    asked: Any = unpack(query, model).fields.get("query")
    own = getattr(asked, "scores", asked)
    if ((type(asked), type(own)) if own is not asked else (type(asked),)) not in kinds:
        raise SiloError("a pass must ask the sum of its phase")
    if isinstance(own, own_rows.OwnQuery) and own.model is not model:
        raise SiloError("a pass must ask of the session's model")
    try:
        length, norm = asked.length, asked.max_norm
        if not (0 < length <= most_numbers and math.isfinite(norm)):
            raise ValueError("the sum is too long, or has no bound")
        _try(asked, model, length, norm)
    except Exception as error:
        raise SiloError(f"a pass must ask a sum over the records ({type(error).__name__})") from None
    found: Query = asked
    return found


def _try(asked: Any, model: Any, length: int, norm: float) -> None:
    """Sum a made-up record, and none: whatever is wrong with the numbers is found here, whoever's records follow."""
    for size in (1, 0):
        features, response = np.zeros((size, model.n_features)), np.zeros(size)
        total = _native.PartialSum(length=length, max_norm=norm)
        rows: Any = own_rows.OwnRows.of(features, response) if isinstance(model, OwnModel) else None
        if rows is None:
            beside = np.column_stack((response, np.ones(size))) if survey_columns(model) else response
            rows = Rows.of(features, beside, intercept=model.fit_intercept, n_threads=1)
        asked.add(total, rows)

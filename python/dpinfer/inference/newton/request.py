"""What can be asked of the release of a private Newton run."""

from dpinfer._validate import check_integer
from dpinfer.inference.request import PlannedRelease, PosteriorRequest
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel, PersonModel
from dpinfer.release import NewtonRelease, OwnNewtonRelease, OwnPopulationRelease, PopulationRelease


def check_newton_request(request: PosteriorRequest, planned: PlannedRelease) -> None:
    """Refuse what no private Newton run answers.

    Raises
    ------
    TypeError, ValueError
        If the request or the model does not fit the kind of release.
    """
    kind, model = planned.kind, planned.model
    own, linear = issubclass(kind, OwnNewtonRelease), issubclass(kind, NewtonRelease)
    simulated = request.method == "simulated"
    if request.method not in ("exact", "simulated"):
        raise ValueError(f"method must be 'exact' or 'simulated' for this release, got {request.method!r}")
    if simulated and isinstance(model, PersonModel):
        raise ValueError("method must be 'exact' for a model of persons: its standard deviations have their own shape")
    if simulated and not (isinstance(model, OwnModel) and model.has_sampler):
        raise ValueError("method='simulated' needs model=, the model of the run with its sampler")
    priors = ("auto", "weak", "model") if linear else ("auto", "model")
    if request.prior not in priors:
        raise ValueError(f"prior must be one of {', '.join(priors)} for this release, got {request.prior_name!r}")
    for name, value, least in (("n_samples", request.n_samples, 20), ("n_warmup", request.n_warmup, 10)):
        if value is not None:
            check_integer(name, value, least)
    if own:
        return
    if linear and not isinstance(model, LinearRegression):
        raise TypeError(f"model must be a LinearRegression, got {type(model).__name__}")
    population = issubclass(kind, PopulationRelease) and isinstance(model, LinearRegression)
    population = population or (issubclass(kind, OwnPopulationRelease) and isinstance(model, OwnModel))
    glm = isinstance(model, GeneralizedLinearModel) and model.residual_link is not None
    if not linear and not glm and not population:
        raise TypeError(f"model must be the regression of the release, got {type(model).__name__}")

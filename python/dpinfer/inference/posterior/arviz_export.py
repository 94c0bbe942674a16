"""Posterior draws in ArviZ's containers."""

from typing import TYPE_CHECKING, Any

from dpinfer._sinks import variable_names
from dpinfer._validate import check_integer
from dpinfer.errors import BackendUnavailableError

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

__all__ = ["to_arviz"]


def to_arviz(posterior: "Posterior", *, n_samples: int, n_chains: int, seed: int) -> Any:
    """Return draws as InferenceData (ArviZ 0.x) or DataTree (1.x), one variable per parameter.

    Variables are named as the parameters, except where the container or a netCDF file cannot have the name.

    **Privacy.** Post-processing of a Release; the attributes ``guarantee`` and ``leaks`` state the release's.

    Parameters
    ----------
    posterior : Posterior
    n_samples, n_chains : int
    seed : int

    Raises
    ------
    BackendUnavailableError
        If ArviZ is not installed.
    """
    draws = check_integer("n_samples", n_samples, 1)
    chains = check_integer("n_chains", n_chains, 1)
    try:
        import arviz
    except ImportError as error:
        raise BackendUnavailableError(
            "to_arviz needs ArviZ: install the extra with pip install 'dpinfer[arviz]'"
        ) from error
    values = posterior.sample(chains * draws, seed=seed).reshape(chains, draws, posterior.n_params)
    variables = {name: values[:, :, index] for index, name in enumerate(variable_names(posterior.names))}
    # ArviZ 1 takes the groups as one mapping, ArviZ 0 as keyword arguments.
    if int(arviz.__version__.split(".")[0]) >= 1:
        data = arviz.from_dict({"posterior": variables})
    else:
        data = arviz.from_dict(posterior=variables)
    # Text only: every format that such data are saved in has it.
    attributes = {"guarantee": str(posterior.guarantee), "leaks": "; ".join(posterior.guarantee.leaks)}
    for place in (data, data["posterior"]):
        place.attrs.update(attributes)
    return data

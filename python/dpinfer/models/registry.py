"""From the plain data in a release back to a model."""

from collections.abc import Mapping
from typing import Any, TypeVar

from dpinfer._plugins import find_plugin
from dpinfer.models.adapters.own_model import OwnModel
from dpinfer.models.base import Model
from dpinfer.models.bayesian_neural_network import BayesianNeuralNetwork
from dpinfer.models.conjugate import BetaBernoulli, BetaBinomial, DirichletCategorical, GammaExponential
from dpinfer.models.gaussian_mixture import GaussianMixture
from dpinfer.models.glm import LogisticRegression, PoissonRegression, ProbitRegression
from dpinfer.models.linear_regression import LinearRegression
from dpinfer.models.person_model import PersonModel

_GROUP = "dpinfer.models"
_KINDS: dict[str, type[Model]] = {
    kind.__name__: kind
    for kind in (
        BayesianNeuralNetwork,
        BetaBernoulli,
        BetaBinomial,
        DirichletCategorical,
        GammaExponential,
        GaussianMixture,
        LinearRegression,
        LogisticRegression,
        OwnModel,
        PersonModel,
        PoissonRegression,
        ProbitRegression,
    )
}


_Kind = TypeVar("_Kind", bound=type[Model])


def register_model(kind: _Kind) -> _Kind:
    """Make a model of your own known by its class name, so that its releases can be loaded; a class decorator.

    Parameters
    ----------
    kind : type
        Its constructor takes the fields of ``to_dict`` except "kind".

    Raises
    ------
    ValueError
        If the library has a model of that name.

    Examples
    --------
    >>> from dpinfer.models import LogisticRegression
    >>> @register_model
    ... class MyRegression(LogisticRegression):
    ...     pass
    >>> type(model_from_dict(MyRegression(2).to_dict())).__name__
    'MyRegression'
    """
    if not isinstance(kind, type) or not issubclass(kind, Model):
        raise TypeError(f"kind must be a subclass of Model, got {kind!r}")
    registered = _KINDS.get(kind.__name__)
    if registered is not None and registered.__module__.startswith("dpinfer."):
        raise ValueError(f"kind must have another name: {kind.__name__!r} is the library's")
    _KINDS[kind.__name__] = kind
    return kind


def model_from_dict(spec: Mapping[str, Any]) -> Model:
    """Return the model that ``to_dict`` described.

    An unregistered kind is looked up among the installed packages' entry points of "dpinfer.models".

    Parameters
    ----------
    spec : mapping
        ``{"kind": class name, ...its parameters}``.

    Raises
    ------
    ValueError
        If the kind is unknown or a parameter is missing or wrong.

    Examples
    --------
    >>> model_from_dict({"kind": "LogisticRegression", "n_features": 2, "prior_scale": 1.0}).n_params
    2
    """
    if not isinstance(spec, Mapping):
        raise ValueError(f"spec must be a mapping, got {type(spec).__name__}")
    values = {str(name): value for name, value in spec.items()}
    kind = values.pop("kind", None)
    if isinstance(kind, str) and kind not in _KINDS and (found := find_plugin(_GROUP, kind)) is not None:
        register_model(found[0])
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"spec must have a known kind ({', '.join(sorted(_KINDS))}), got {kind!r}")
    try:
        return _KINDS[kind](**values)
    except TypeError as error:
        raise ValueError(f"spec does not describe a {kind}: {error}") from error

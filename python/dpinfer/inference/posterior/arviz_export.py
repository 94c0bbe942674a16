"""Posterior draws in ArviZ's containers: InferenceData of ArviZ 0.x, DataTree of 1.x."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._sinks import variable_names
from dpinfer._validate import check_integer
from dpinfer.errors import BackendUnavailableError
from dpinfer.inference.posterior.predictive import check_points, draw_records
from dpinfer.inference.posterior.units import Units
from dpinfer.models import GeneralizedLinearModel, LinearRegression, Model, OwnModel

if TYPE_CHECKING:
    from dpinfer.inference.posterior.posterior import Posterior

POINT = "point"
_INDEXED = re.compile(r"(.+)\[([^\[\]]+)\]")


@dataclass
class Groups:
    """Groups of variables with named dimensions, for either version of ArviZ.

    **Privacy.** Post-processing of a Release, and public knowledge.
    """

    # name of a group to its variables: (chain, draw, ...) arrays, or (...) arrays in a group of constant data
    groups: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    # name of a variable to the names of its further dimensions
    dims: dict[str, list[str]] = field(default_factory=dict)
    coords: dict[str, list[Any]] = field(default_factory=dict)  # name of a dimension to its labels

    def build(self, attributes: Mapping[str, str]) -> Any:
        """Return the container of the ArviZ that is installed, with these attributes at the root and in every group.

        Raises BackendUnavailableError if ArviZ is not installed.
        """
        arviz = require_arviz()
        if int(arviz.__version__.split(".")[0]) >= 1:
            data = arviz.from_dict(self.groups, dims=self.dims, coords=self.coords)
        else:
            data = arviz.from_dict(**self.groups, dims=self.dims, coords=self.coords)
        for place in (data, *(data[name] for name in self.groups)):
            place.attrs.update(attributes)
        return data


def require_arviz() -> Any:
    """Return ArviZ.

    Raises BackendUnavailableError if it is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise BackendUnavailableError(
            "to_arviz needs ArviZ: install the extra with pip install 'dpinfer[arviz]'"
        ) from error
    return arviz


@dataclass(frozen=True)
class _Array:
    """A variable: which parameters are its entries, and its dimensions."""

    name: str
    entries: slice | list[int]
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def arrays_of(model: Model | None, names: Sequence[str]) -> list[_Array]:
    """Group the parameters into variables.

    The weights of a regression are ``coef`` along ``feature``, the parameters of your own model its own arrays, and
    parameters ``name[index]`` become ``name`` along ``name_index``; the others are scalars.
    """
    if isinstance(model, OwnModel) and model.names == tuple(names):
        sets = model.parameters
        shapes = zip(variable_names(sets.shapes), sets.shapes.items(), strict=True)
        return [
            _Array(name, sets.slices[own], shape, tuple(f"{name}_dim_{axis}" for axis in range(len(shape))))
            for name, (own, shape) in shapes
        ]
    found: dict[str, list[tuple[str, int]]] = {}
    for index, name in enumerate(names):
        if isinstance(model, GeneralizedLinearModel) and index < model.n_features:
            found.setdefault("coef", []).append((name, index))
            continue
        indexed = _INDEXED.fullmatch(name)
        base, label = (indexed[1], indexed[2]) if indexed else (name, "")
        found.setdefault(base, []).append((label, index))
    result = []
    for name, (base, entries) in zip(variable_names(found), found.items(), strict=True):
        places = [index for _, index in entries]
        labels = tuple(label for label, _ in entries)
        if labels == ("",):
            result.append(_Array(name, places))
            continue
        along = "feature" if isinstance(model, GeneralizedLinearModel) and base == "coef" else f"{name}_index"
        result.append(_Array(name, places, (len(places),), (along,), variable_names(labels)))
    return result


def to_arviz(
    posterior: "Posterior", *, n_samples: int, n_chains: int, seed: int, X: npt.ArrayLike | None, n_records: int | None
) -> Any:
    """Return draws as InferenceData (ArviZ 0.x) or DataTree (1.x); see :meth:`Posterior.to_arviz`.

    **Privacy.** Post-processing of a Release; the attributes ``guarantee`` and ``leaks`` state the release's.

    Raises TypeError or ValueError if the requested records cannot be drawn from the model. Raises
    BackendUnavailableError if ArviZ is not installed.

    `X` (n_points, n_features).
    """
    draws = check_integer("n_samples", n_samples, 1)
    chains = check_integer("n_chains", n_chains, 1)
    require_arviz()
    model = posterior.model
    predictive = X is not None or n_records is not None
    points: FloatArray | int = check_points(model, X, n_records) if predictive else 0
    arrays = arrays_of(model, posterior.names)
    built = Groups()
    for item in arrays:
        if item.dims:
            built.dims[item.name] = list(item.dims)
            if item.labels:
                built.coords[item.dims[0]] = list(item.labels)
    theta, units = posterior.sample(chains * draws, seed=seed, space="unconstrained"), posterior.units
    built.groups["posterior"] = _variables(arrays, posterior.constrain(theta), chains)
    rng = np.random.default_rng([seed, 1])
    if predictive:
        built.groups["posterior_predictive"] = _records(model, theta, points, chains, rng, units)
    sampler = getattr(model, "sample_prior", None)
    if sampler is not None:
        prior = np.asarray(sampler(chains * draws, rng))
        built.groups["prior"] = _variables(arrays, prior if units is None else units.parameters(prior), chains)
        if predictive and model is not None:
            built.groups["prior_predictive"] = _records(model, model.unconstrain(prior), points, chains, rng, units)
    if not isinstance(points, int):
        built.groups["constant_data"] = {"X": points}
        built.dims["X"] = [POINT, "column"]
        built.dims["y"] = [POINT]
        built.coords["column"] = list(_column_labels(arrays, points.shape[1]))
    elif predictive:
        built.dims["y"] = [POINT]
    return built.build(attributes_of(posterior))


def attributes_of(posterior: "Posterior") -> dict[str, str]:
    """Describe the draws in one string, which every ArviZ file format can store."""
    attributes = {
        "guarantee": str(posterior.guarantee),
        "leaks": "; ".join(posterior.guarantee.leaks),
        "inference_library": "dpinfer",
    }
    if isinstance(posterior.model, LinearRegression) and posterior.prior == "weak":
        attributes["prior"] = (
            "of the model; the noise variance has a weak prior in this posterior, which is another one"
        )
    return attributes


def _variables(arrays: Sequence[_Array], values: FloatArray, chains: int) -> dict[str, npt.NDArray[Any]]:
    return {item.name: values[:, item.entries].reshape(chains, -1, *item.shape) for item in arrays}


def _records(
    model: Model | None,
    theta: FloatArray,
    points: FloatArray | int,
    chains: int,
    rng: np.random.Generator,
    units: Units | None,
) -> dict[str, npt.NDArray[Any]]:
    drawn = draw_records(model, theta, points, rng, units)
    return {"y": drawn.reshape(chains, -1, *drawn.shape[1:])}


def _column_labels(arrays: Sequence[_Array], n_features: int) -> Sequence[Any]:
    labels = next((item.labels for item in arrays if item.dims == ("feature",)), ())
    return labels if len(labels) == n_features else range(n_features)

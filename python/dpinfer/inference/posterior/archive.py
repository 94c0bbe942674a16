"""Saving and loading posteriors: a zip of plain arrays and JSON, like a release's, that executes nothing."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer.accounting import Guarantee
from dpinfer.errors import PosteriorFormatError
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.mixture import NormalMixtures
from dpinfer.inference.posterior.posterior import Posterior
from dpinfer.inference.posterior.theta import (
    DrawnTheta,
    IndependentTheta,
    TabulatedTheta,
    ThetaDistribution,
    VarianceParts,
)
from dpinfer.inference.posterior.units import Units
from dpinfer.models import Model, model_from_dict
from dpinfer.release.archive import pack_archive, parse_json, unpack_archive, unpack_array
from dpinfer.release.files import write_atomically

FORMAT_NAME, FORMAT_VERSION = "dpinfer-posterior", 1  # format

_ARRAYS = ("optimum_mean", "optimum_stddev", "hessian_mean", "hessian_stddev")
_MIXTURE = ("offsets", "weight", "mean", "variance")
_PARTS = ("data", "privacy", "approximation")


def save_posterior(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Save a posterior to one file; see :meth:`Posterior.save`.

    **Privacy.** Post-processing of a Release; the file states the release's guarantee and contents without one.

    Raises TypeError if its distribution is of another kind than the library's own. Raises OSError if the file cannot be
    written.
    """
    kind, distribution = _distribution_arrays(posterior.distribution)
    arrays: dict[str, npt.NDArray[Any]] = {name: getattr(posterior, name) for name in _ARRAYS}
    arrays |= {f"distribution.{name}": value for name, value in distribution.items()}
    if posterior.units is not None:
        arrays |= {
            f"units.{name}": np.asarray(value) for name, value in vars(posterior.units).items() if value is not None
        }
    plain: dict[str, Any] = {}
    for name, value in posterior.diagnostics.to_dict().items():
        if isinstance(value, (str, bool, tuple)):
            plain[name] = value
        else:
            arrays[f"diagnostics.{name}"] = np.asarray(value)
    header: dict[str, Any] = {
        "method": posterior.method,
        "approximation": posterior.approximation,
        "hessian": posterior.hessian,
        "prior": posterior.prior,
        "names": list(posterior.names),
        "optimum_names": list(posterior.optimum_names),
        "burn_in": posterior.burn_in,
        "model": None if posterior.model is None else posterior.model.to_dict(),
        "distribution": kind,
        "diagnostics": plain,
        "guarantee": posterior.guarantee.to_dict(),
    }
    members = {f"{name}.npy": np.asarray(value, order="C") for name, value in arrays.items()}
    document = {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "posterior": header,
        "digest": _digest(header, members),
    }
    text = json.dumps(document, allow_nan=False, sort_keys=True, indent=1)
    write_atomically(path, pack_archive({"posterior.json": text, **members}))


def load_posterior(path: str | os.PathLike[str], *, model: Model | None = None) -> Posterior:
    """Load a posterior saved by :meth:`Posterior.save`: the same numbers, draws and guarantee, bit for bit.

    **Privacy.** Post-processing of a Release: it states the guarantee that was saved with it.

    Raises PosteriorFormatError if it is not a posterior, is damaged or was changed, has a newer format version, or
    states an epsilon that does not follow from its events. Raises TypeError or ValueError if `model` is wrong, or
    needed and not given.

    Parameters
    ----------
    path : path-like
    model : Model, optional
        Needed for a model of your own, which a file cannot hold; overrides the one that it names.
    """
    content = Path(path).read_bytes()
    try:
        members = unpack_archive(content)
        document = parse_json(members.pop("posterior.json"))
        if document.get("format") != FORMAT_NAME:
            raise PosteriorFormatError("path must name a saved posterior, got another kind of file")
        if document.get("version") != FORMAT_VERSION:
            raise PosteriorFormatError(
                f"the posterior has format version {document.get('version')!r}, this version of dpinfer reads up to "
                f"{FORMAT_VERSION}"
            )
        header = document["posterior"]
        arrays = {name.removesuffix(".npy"): unpack_array(value) for name, value in members.items()}
        if document["digest"] != _digest(header, {f"{name}.npy": value for name, value in arrays.items()}):
            raise PosteriorFormatError("the file was changed after it was written")
        guarantee = Guarantee.from_dict(header["guarantee"])
    except PosteriorFormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise PosteriorFormatError(f"the file is not a readable posterior ({type(error).__name__})") from error
    parsed = _model(header["model"], len(header["names"])) if model is None else model
    units = {name: _value(value) for name, value in _under("units", arrays).items()}
    try:
        return Posterior(
            **_methods(header),
            hessian=str(header["hessian"]),
            prior=str(header["prior"]),
            optimum_mean=arrays["optimum_mean"],
            optimum_stddev=arrays["optimum_stddev"],
            hessian_mean=arrays["hessian_mean"],
            hessian_stddev=arrays["hessian_stddev"],
            names=tuple(header["names"]),
            optimum_names=tuple(header["optimum_names"]),
            burn_in=int(header["burn_in"]),
            model=parsed,
            guarantee=guarantee,
            distribution=_distribution(header["distribution"], _under("distribution", arrays)),
            diagnostics=PosteriorDiagnostics(
                **header["diagnostics"], **{n: _value(v) for n, v in _under("diagnostics", arrays).items()}
            ),
            units=Units(**units) if units else None,
        )
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise PosteriorFormatError(f"the file is not a readable posterior ({type(error).__name__})") from error


def _methods(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the run's method and the approximation; older files hold the latter alone for traces and sites."""
    method, approximation = str(header["method"]), header.get("approximation")
    if approximation is None:
        known = method in ("newton", "statistic")
        approximation = "exact" if known else method
        method = method if known else "sep" if header["hessian"] == "sites" else "dpvi"
    return {"method": method, "approximation": str(approximation)}


def _under(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(f"{prefix}."): value for name, value in arrays.items() if name.startswith(f"{prefix}.")}


def _digest(header: Mapping[str, Any], members: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return a checksum of everything in the file: against damage and slips, not against forgers."""
    total = hashlib.sha256(json.dumps(header, allow_nan=False, sort_keys=True).encode())
    for name in sorted(members):
        value = members[name]
        total.update(f"{name}{value.dtype.str}{value.shape}".encode())
        total.update(value.tobytes())
    return total.hexdigest()


def _value(array: npt.NDArray[Any]) -> Any:
    """Return a diagnostic as it was: an array, or a number."""
    return array.item() if array.ndim == 0 else array


def _model(spec: Mapping[str, Any] | None, n_params: int) -> Model | None:
    if spec is None:
        return None
    try:
        model = model_from_dict(spec)
    except ValueError as error:
        raise ValueError(f"model must be given: the file's is not one of the library's ({error})") from error
    if model.n_params != n_params:
        raise PosteriorFormatError("the file's model has another number of parameters")
    return model


def _distribution_arrays(distribution: ThetaDistribution) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """Return the kind of a distribution of theta, and its arrays."""
    if isinstance(distribution, IndependentTheta):
        arrays = {f"optimum.{name}": getattr(distribution.optimum, name) for name in _MIXTURE}
        arrays |= {"inflation": distribution.inflation, "q_variance": distribution.q_variance}
        if distribution.raw_scale is not None:
            arrays |= {f"raw_scale.{name}": getattr(distribution.raw_scale, name) for name in _MIXTURE}
        return "independent", arrays
    if isinstance(distribution, DrawnTheta):
        values = {item.name: getattr(distribution, item.name) for item in fields(distribution) if item.name != "parts"}
        parts = {f"parts.{name}": getattr(distribution.parts, name) for name in _PARTS}
        return "drawn", {name: value for name, value in values.items() if value is not None} | parts
    if isinstance(distribution, TabulatedTheta):
        parts = {f"parts.{name}": getattr(distribution.parts, name) for name in _PARTS}
        return "tabulated", {f"table.{name}": getattr(distribution.table, name) for name in _MIXTURE} | parts
    raise TypeError(f"a distribution of type {type(distribution).__name__} cannot be saved")


def _distribution(kind: str, arrays: dict[str, npt.NDArray[Any]]) -> ThetaDistribution:
    """Return the distribution of theta that has these arrays."""
    if kind == "independent":
        scale = _under("raw_scale", arrays)
        return IndependentTheta(
            NormalMixtures(**_under("optimum", arrays)),
            arrays["inflation"],
            arrays["q_variance"],
            NormalMixtures(**scale) if scale else None,
        )
    if kind == "tabulated":
        parts = VarianceParts(**_under("parts", arrays))
        return TabulatedTheta(NormalMixtures(**_under("table", arrays)), parts)
    if kind != "drawn":
        raise ValueError("the distribution is of no known kind")
    parts = VarianceParts(**_under("parts", arrays))
    joint = {name: arrays.get(name) for name in ("q_stddev", "q_factor", "data_covariance")}
    return DrawnTheta(arrays["location"], parts=parts, **joint)

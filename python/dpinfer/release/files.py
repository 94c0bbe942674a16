"""Saving and loading releases: a versioned zip of plain arrays and JSON, read without executing anything."""

import contextlib
import json
import math
import os
import secrets
from pathlib import Path
from typing import Any, TypeVar, overload

from dpinfer.accounting import Adjacency, event_from_dict
from dpinfer.errors import ReleaseFormatError, UnfoundedEpsilonError
from dpinfer.release.archive import pack_archive, parse_json, unpack_archive, unpack_array
from dpinfer.release.guarantee import Release
from dpinfer.release.newton.glm import GlmNewtonRelease
from dpinfer.release.newton.linear import MEANS, NewtonRelease
from dpinfer.release.newton.own import OwnNewtonRelease
from dpinfer.release.newton.population import PopulationRelease
from dpinfer.release.parts import part_from_dict
from dpinfer.release.sites.network import NetworkRelease
from dpinfer.release.sites.trace import SiteRelease
from dpinfer.release.statistic import StatisticRelease
from dpinfer.release.trace import GradientTrace

__all__ = ["load_release", "release_bytes", "save_release", "write_atomically"]

Kind = TypeVar("Kind", bound=Release)

FORMAT_NAME = "dpinfer-release"
SITE_FORMAT_NAME = "dpinfer-site-release"
NETWORK_FORMAT_NAME = "dpinfer-network-release"
STATISTIC_FORMAT_NAME = "dpinfer-statistic-release"
NEWTON_FORMAT_NAME = "dpinfer-newton-release"
GLM_NEWTON_FORMAT_NAME = "dpinfer-glm-newton-release"
OWN_NEWTON_FORMAT_NAME = "dpinfer-own-newton-release"
POPULATION_FORMAT_NAME = "dpinfer-population-release"
FORMAT_VERSION = 2  # see docs/stability.md
# Version 1 had neither parts nor marks of leakage.
_READABLE = (1, 2)

_ARRAYS = ("params", "positions", "noisy_gradients", "noise_stddev", "final_params", "grad_scale", "learning_rate")
_SCALARS = (
    "sample_rate",
    "n_records",
    "family",
    "gradient",
    "max_grad_norm",
    "noise_multiplier",
    "delta",
    "accountant",
    "secure",
    "model_spec",
    "settings",
)
_SITE_ARRAYS = ("loc", "precision", "noisy_sums", "damping", "floor", "prior_loc")
_SITE_SCALARS = (
    "noise_stddev",
    "block_weight",
    "sample_rate",
    "n_records",
    "prior_scale",
    "sites",
    "sampling",
    "isotropic",
    "max_site_norm",
    "noise_multiplier",
    "delta",
    "accountant",
    "secure",
)

_NETWORK_ARRAYS = ("loc", "precision", "noise_variance", "noisy_sums", "weights", "damping", "floor")
_NETWORK_SCALARS = (
    "noise_stddev",
    "sample_rate",
    "n_records",
    "prior_precision",
    "max_site_norm",
    "noise_multiplier",
    "delta",
    "accountant",
    "secure",
)
_STATISTIC_ARRAYS = ("noisy_statistics", "laplace_scale")
_STATISTIC_SCALARS = ("method", "n_records", "delta", "accountant", "secure")
_NEWTON_ARRAYS = (
    "counts",
    "edges",
    *MEANS,
    "transforms",
    "moments",
    "moment_stddev",
    "moment_bounds",
    "positions",
    "scores",
    "score_stddev",
    "clips",
    "scale_scores",
    "scale_stddev",
    "scale_units",
)
_NEWTON_SCALARS = (
    "counts_stddev",
    "scale_centre",
    "n_measured",
    "response_scale",
    "n_records",
    "delta",
    "accountant",
    "secure",
)
_GLM_NEWTON_ARRAYS = (
    "counts",
    "edges",
    *MEANS,
    "transforms",
    "moments",
    "moment_stddev",
    "moment_bounds",
    "localise_positions",
    "localise_scores",
    "localise_score_stddev",
    "score_transform",
    "slope",
    "slope_position",
    "positions",
    "scores",
    "score_stddev",
)
_GLM_NEWTON_SCALARS = (
    "counts_stddev",
    "localise_clip",
    "localise_residual_bound",
    "score_radius",
    "slope_stddev",
    "clip",
    "residual_bound",
    "slope_bound",
    "n_records",
    "delta",
    "accountant",
    "secure",
)
_OWN_NEWTON_ARRAYS = (
    "localise_positions",
    "localise_transforms",
    "localise_scores",
    "localise_stddev",
    "localise_bounds",
    "matrices",
    "matrix_stddev",
    "matrix_bounds",
    "transform",
    "slope",
    "slope_position",
    "positions",
    "scores",
    "score_stddev",
    "score_bounds",
    "prior_mean",
    "prior_scale",
    "count_shares",
    "norm_edges",
    "norm_shares",
    "norm_stddev",
    "tallies",
    "tally_stddev",
    "expected_slopes",
    "square_slope",
)
_OWN_NEWTON_SCALARS = (
    "score_share",
    "slope_stddev",
    "slope_bound",
    "slope_spread",
    "variance_ratio",
    "squared_shift",
    "centre_share",
    "square",
    "square_variance",
    "n_records",
    "delta",
    "accountant",
    "secure",
)
_POPULATION_ARRAYS = (
    "counts",
    "edges",
    *MEANS,
    "transforms",
    "moments",
    "moment_stddev",
    "moment_bounds",
    "lengths",
    "bread_transform",
    "bread",
    "bread_position",
    "score_transform",
    "localise_positions",
    "localise_scores",
    "localise_score_stddev",
    "localise_bounds",
    "scale_scores",
    "scale_stddev",
    "scale_units",
    "sizes",
    "positions",
    "scores",
    "score_stddev",
    "score_bounds",
    "meat",
    "meat_position",
)
_POPULATION_SCALARS = (
    "counts_stddev",
    "lengths_stddev",
    "length_unit",
    "bread_stddev",
    "bread_bound",
    "sizes_stddev",
    "size_unit",
    "score_bound",
    "meat_stddev",
    "n_records",
    "delta",
    "accountant",
    "secure",
)
# Characters; a run's event has about a hundred, and accounting takes time for each.
_LONGEST_EVENTS = 20_000
_UNCOUNTED_SHARES = (
    "an older version wrote it and did not count the shares of categories that may have been released with it"
)
_KINDS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    FORMAT_NAME: (GradientTrace, _ARRAYS, _SCALARS),
    SITE_FORMAT_NAME: (SiteRelease, _SITE_ARRAYS, _SITE_SCALARS),
    NETWORK_FORMAT_NAME: (NetworkRelease, _NETWORK_ARRAYS, _NETWORK_SCALARS),
    STATISTIC_FORMAT_NAME: (StatisticRelease, _STATISTIC_ARRAYS, _STATISTIC_SCALARS),
    NEWTON_FORMAT_NAME: (NewtonRelease, _NEWTON_ARRAYS, _NEWTON_SCALARS),
    GLM_NEWTON_FORMAT_NAME: (GlmNewtonRelease, _GLM_NEWTON_ARRAYS, _GLM_NEWTON_SCALARS),
    OWN_NEWTON_FORMAT_NAME: (OwnNewtonRelease, _OWN_NEWTON_ARRAYS, _OWN_NEWTON_SCALARS),
    POPULATION_FORMAT_NAME: (PopulationRelease, _POPULATION_ARRAYS, _POPULATION_SCALARS),
}


def write_atomically(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666, lasting: bool = True) -> None:
    """Write `content` to `path` so that a crash or a full disk leaves either the old file or the new one, never half.

    Parameters
    ----------
    path : path-like
    content : bytes
    mode : int
        Permissions of a new file, before the user's umask.
    lasting : bool
        Whether to wait until it would survive a power failure, for content that cannot be computed again.

    Raises
    ------
    OSError
        If the folder does not exist or the disk is full; the temporary file is removed and `path` is untouched.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    # Not mkstemp: the file keeps the permissions that the user's umask gives to any other file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            if lasting:
                os.fsync(stream.fileno())
        temporary.replace(target)
        if lasting:
            _flush_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _flush_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power failure, where the system lets a folder be flushed."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        # Some file systems cannot; the content is on the disk, and a crash of the process alone loses nothing.
        return
    finally:
        os.close(handle)


def save_release(release: Release, path: str | os.PathLike[str]) -> None:
    """Save a release to one file.

    **Privacy.** Writes the release's content: noisy gradients or sums and public settings.

    Parameters
    ----------
    release : any release
    path : path-like
        Written atomically: a failure leaves no partial file.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    write_atomically(path, release_bytes(release))


def release_bytes(release: Release) -> bytes:
    """Return the bytes of :func:`save_release`.

    **Privacy.** The content of the release.
    """
    kind = next((name for name, entry in _KINDS.items() if isinstance(release, entry[0])), None)
    if kind is None:
        raise TypeError(f"release must be the release of a mechanism, got {type(release).__name__}")
    _, array_names, scalars = _KINDS[kind]
    header: dict[str, Any] = {name: getattr(release, name) for name in scalars}
    header["model_spec"] = dict(release.model_spec)
    header["settings"] = dict(release.settings)
    header["names"] = list(release.names)
    header["event"] = release.event.to_dict()
    header["adjacency"] = release.adjacency.value
    header["other_parts"] = [part.to_dict() for part in release.other_parts]
    header["leaks"] = list(release.leaks)
    header["certified_epsilon"] = None if math.isinf(release.certified_epsilon) else release.certified_epsilon
    if isinstance(release, GradientTrace):
        header["positions_are_params"] = release.positions is release.params
        array_names = tuple(name for name in _ARRAYS if name != "positions" or not header["positions_are_params"])
    arrays = {name: getattr(release, name) for name in array_names if getattr(release, name) is not None}
    document = {"format": kind, "version": FORMAT_VERSION, "release": header}
    text = json.dumps(document, allow_nan=False, sort_keys=True, indent=1)
    return pack_archive({"release.json": text} | {f"{name}.npy": array for name, array in arrays.items()})


def _upgrade(header: dict[str, Any]) -> None:
    """Convert the format of version 1, which stated the epsilon of the trace alone."""
    settings = dict(header.get("settings") or {})
    header["accountant"] = settings.pop("accountant", "pld")
    header["settings"] = settings
    header["other_parts"] = []
    known = dict(header.get("model_spec") or {}).get("feature_moments_known")
    header["leaks"] = [_UNCOUNTED_SHARES] if known else []


@overload
def load_release(path: str | os.PathLike[str]) -> Release: ...


@overload
def load_release(path: str | os.PathLike[str], kind: type[Kind]) -> Kind: ...


def load_release(path: str | os.PathLike[str], kind: type[Release] = Release) -> Release:
    """Load a saved release.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    path : path-like
    kind : type
        The required class of the release, such as :class:`dpinfer.GradientTrace`; any by default.

    Returns
    -------
    Release
        Of that kind.

    Raises
    ------
    TypeError
        If `kind` is no class of releases.
    OSError
        If the file cannot be read.
    ReleaseFormatError
        If it is not a release or of another kind, is damaged, has a newer format version, or states an epsilon that
        does not follow from the events of its parts.
    """
    if not isinstance(kind, type) or not issubclass(kind, Release):
        raise TypeError(f"kind must be a class of releases, such as dpinfer.GradientTrace, got {kind!r}")
    release = _loaded(path)
    if not isinstance(release, kind):
        raise ReleaseFormatError(f"path must name a {kind.__name__}, got a {type(release).__name__}")
    return release


def _loaded(path: str | os.PathLike[str]) -> Release:
    """Return the release that a file holds, checked; raise as :func:`load_release` does."""
    content = Path(path).read_bytes()
    try:
        members = unpack_archive(content)
        document = parse_json(members["release.json"])
        kind = document.get("format")
        if kind not in _KINDS:
            raise ReleaseFormatError("path must name a dpinfer release, got another kind of file")
        version = document.get("version")
        if version not in _READABLE:
            raise ReleaseFormatError(
                f"the release has format version {version!r}, this version of dpinfer reads up to {FORMAT_VERSION}"
            )
        header = dict(document["release"])
        if version == 1:
            _upgrade(header)
        arrays: dict[str, Any] = {
            name: unpack_array(members[f"{name}.npy"]) for name in _KINDS[kind][1] if f"{name}.npy" in members
        }
        if len(json.dumps([header["event"], header["other_parts"]])) > _LONGEST_EVENTS:
            raise ReleaseFormatError("the release has more private parts than can be accounted for when it is loaded")
        epsilon = header.pop("certified_epsilon")
        common: dict[str, Any] = {
            "names": tuple(header.pop("names")),
            "event": event_from_dict(header.pop("event")),
            "adjacency": Adjacency(header.pop("adjacency")),
            "certified_epsilon": math.inf if epsilon is None else epsilon,
            "other_parts": tuple(part_from_dict(part) for part in header.pop("other_parts")),
            "leaks": tuple(header.pop("leaks")),
        }
        if kind == FORMAT_NAME and header.pop("positions_are_params"):
            arrays["positions"] = arrays["params"]
        release: Release = _KINDS[kind][0](**arrays, **common, **header)
        return release
    except ReleaseFormatError:
        raise
    except UnfoundedEpsilonError as error:
        raise ReleaseFormatError(f"the release's statement contradicts its parts: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ReleaseFormatError(f"the file is not a readable dpinfer release ({type(error).__name__})") from error

"""Saving and loading releases: a versioned zip of plain arrays and JSON, read without executing anything."""

import contextlib
import json
import math
import os
import secrets
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, overload

from dpinfer._lazy import find_plugin
from dpinfer.accounting import Adjacency, event_from_dict
from dpinfer.errors import ReleaseFormatError, UnfoundedEpsilonError
from dpinfer.release.archive import pack_archive, parse_json, unpack_archive, unpack_array
from dpinfer.release.guarantee import Release, part_from_dict
from dpinfer.release.newton.own import OwnNewtonRelease, OwnPopulationRelease
from dpinfer.release.newton.population import ClusteredPopulationRelease, PopulationRelease
from dpinfer.release.newton.regression import GlmNewtonRelease, NewtonRelease
from dpinfer.release.sites.trace import NetworkRelease, SiteRelease
from dpinfer.release.statistic import StatisticRelease
from dpinfer.release.sums import SumRelease
from dpinfer.release.trace import GradientTrace

Kind = TypeVar("Kind", bound=Release)

FORMAT_VERSION = 2  # see docs/stability.md
_READABLE = (1, 2)  # version 1 had neither parts nor marks of leakage

_LONGEST_EVENTS = 20_000  # characters; a run's event has about a hundred, and accounting takes time for each
_UNCOUNTED_SHARES = (
    "an older version wrote it and did not count the shares of categories that may have been released with it"
)
KINDS: dict[str, type[Release]] = {
    kind.format_name: kind
    for kind in (
        GradientTrace,
        SiteRelease,
        NetworkRelease,
        StatisticRelease,
        NewtonRelease,
        GlmNewtonRelease,
        OwnNewtonRelease,
        PopulationRelease,
        ClusteredPopulationRelease,
        OwnPopulationRelease,
        SumRelease,
    )
}
# Fields that a file has in a form of its own; of the others arrays are members, and the rest is in the header.
_IN_WORDS = ("names", "event", "adjacency", "certified_epsilon", "other_parts", "leaks", "model_spec", "settings")


def write_atomically(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666, lasting: bool = True) -> None:
    """Write `content` to `path` so that a crash or a full disk leaves either the old file or the new one, never half.

    A new file gets the permissions `mode`, before the user's umask.  Content that cannot be computed again must be
    `lasting`: the function waits until it would survive a power failure.

    Raises OSError if the folder does not exist or the disk is full; the temporary file is removed and `path` is
    untouched.
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
    """Save a release to one file; a failure leaves no partial file.

    **Privacy.** Writes the release's content: noisy gradients or sums and public settings.
    """
    write_atomically(path, release_bytes(release))


def release_bytes(release: Release) -> bytes:
    """Return the bytes of :func:`save_release`."""
    if not isinstance(release, Release) or not release.format_name:
        raise TypeError(f"release must be the release of a mechanism, got {type(release).__name__}")
    array_names = _array_names(type(release))
    header: dict[str, Any] = {
        item.name: getattr(release, item.name)
        for item in fields(release)
        if item.name not in (*array_names, *_IN_WORDS)
    }
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
        array_names = tuple(name for name in array_names if name != "positions" or not header["positions_are_params"])
    arrays = {name: getattr(release, name) for name in array_names if getattr(release, name) is not None}
    document = {"format": release.format_name, "version": FORMAT_VERSION, "release": header}
    text = json.dumps(document, allow_nan=False, sort_keys=True, indent=1)
    return pack_archive({"release.json": text} | {f"{name}.npy": array for name, array in arrays.items()})


def _array_names(kind: type[Release]) -> tuple[str, ...]:
    """Return the fields of a kind of release that are arrays."""
    return tuple(item.name for item in fields(kind) if "ndarray" in str(item.type))


def _kind_of(document: Any) -> type[Release]:
    """Return the kind of release that a file holds; the package of another method brings kinds of its own.

    Raises ReleaseFormatError if there is none of that format.
    """
    name = document.get("format")
    kind: type[Release]
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    method = dict(dict(document.get("release") or {}).get("settings") or {}).get("method_of")
    found = find_plugin("dpinfer.methods", str(method.get("name"))) if isinstance(method, dict) else None
    for kind in () if found is None else found[0].releases:
        if issubclass(kind, Release) and kind.format_name == name:
            return kind
    raise ReleaseFormatError("path must name a dpinfer release, got another kind of file")


def _upgrade(header: dict[str, Any]) -> None:
    """Convert the format of version 1, which stated the epsilon of the trace alone."""
    settings = dict(header.get("settings") or {})
    header["accountant"] = settings.pop("accountant", "pld")
    header["settings"] = settings
    header["other_parts"] = []
    moments_known = dict(header.get("model_spec") or {}).get("feature_moments_known")
    header["leaks"] = [_UNCOUNTED_SHARES] if moments_known else []


@overload
def load_release(path: str | os.PathLike[str]) -> Release: ...


@overload
def load_release(path: str | os.PathLike[str], kind: type[Kind]) -> Kind: ...


def load_release(path: str | os.PathLike[str], kind: type[Release] = Release) -> Release:
    """Load a saved release.

    Raises ReleaseFormatError if it is not a release or of another kind, is damaged, has a newer format version, or
    states an epsilon that does not follow from the events of its parts.

    Parameters
    ----------
    path : path-like
    kind : type
        The required class of the release, such as :class:`dpinfer.GradientTrace`; any by default.
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
        kind = _kind_of(document)
        version = document.get("version")
        if version not in _READABLE:
            raise ReleaseFormatError(
                f"the release has format version {version!r}, this version of dpinfer reads up to {FORMAT_VERSION}"
            )
        header = dict(document["release"])
        if version == 1:
            _upgrade(header)
        arrays: dict[str, Any] = {
            name: unpack_array(members[f"{name}.npy"]) for name in _array_names(kind) if f"{name}.npy" in members
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
        if kind is GradientTrace and header.pop("positions_are_params"):
            arrays["positions"] = arrays["params"]
        return kind(**arrays, **common, **header)
    except ReleaseFormatError as error:
        raise ReleaseFormatError(f"{str(path)!r}: {error}") from error
    except UnfoundedEpsilonError as error:
        raise ReleaseFormatError(f"{str(path)!r}: the release's statement contradicts its parts: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ReleaseFormatError(f"{str(path)!r} is not a readable dpinfer release ({type(error).__name__})") from error

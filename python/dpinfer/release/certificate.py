"""Certificates: a release's claims in a form that others can check without this library."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from dpinfer._version import __version__
from dpinfer.accounting._ledger_file import EntryFile
from dpinfer.errors import BackendUnavailableError, LedgerError
from dpinfer.release.archive import parse_json, unpack_archive
from dpinfer.release.files import release_bytes
from dpinfer.release.guarantee import Release
from dpinfer.verify_release import SIGNED, canonical, sha256

# Header fields that a certificate keeps elsewhere, or that do not concern privacy.
_ELSEWHERE = {"accountant", "adjacency", "certified_epsilon", "delta", "event", "leaks", "other_parts", "secure"}
_NOT_BOUNDS = _ELSEWHERE | {"model_spec", "names", "positions_are_params", "settings"}


def certificate(release: Release, *, ledger: str | os.PathLike[str] | None = None, key: bytes | None = None) -> str:
    """Return the certificate of a release: one JSON text that ``verify_release.py`` checks with nothing of dpinfer.

    It is canonical JSON, ASCII, one line.  docs/certificates.md is its specification.

    **Privacy.** Post-processing of a Release: holds its public settings and hashes of its noisy arrays.

    Raises BackendUnavailableError if it is to be signed and ``cryptography`` is not installed. Raises LedgerError if
    the ledger does not hold the entry that charged the release. Raises TypeError or ValueError if an argument is not of
    its type, or the release was charged to no ledger and one is given.

    Parameters
    ----------
    ledger : path-like, optional
        The ledger that the run was charged to: the entry's own text goes into the certificate.
    key : bytes, optional
        The 32 bytes of an Ed25519 private key that signs it; needs ``pip install 'dpinfer[sign]'``.
    """
    members = unpack_archive(release_bytes(release))
    document = parse_json(members["release.json"])
    header: dict[str, Any] = document["release"]
    part = {"name": release.parts[-1].name, "event": header["event"], "adjacency": header["adjacency"]}
    guarantee = {name: header[name] for name in ("delta", "adjacency", "accountant", "secure", "leaks")}
    statement = {
        "library": {"name": "dpinfer", "version": __version__, "build": _own_build()},
        "release": {
            "format": document["format"],
            "version": document["version"],
            "members": {name: sha256(content) for name, content in members.items()},
        },
        "guarantee": guarantee | {"epsilon": header["certified_epsilon"]},
        "parts": [*header["other_parts"], part],
        "bounds": {name: value for name, value in header.items() if name not in _NOT_BOUNDS},
        "plan": header["settings"].get("plan"),
        "ledger": _ledger_entry(header["settings"].get("ledger"), ledger),
    }
    digest = sha256(canonical(statement))
    signature = None if key is None else _signature(key, digest)
    whole = {"format": "dpinfer-certificate", "version": 1, "statement": statement}
    return canonical(whole | {"digest": digest, "signature": signature}).decode()


@cache
def _own_build() -> str:
    """Return the hash of the path and the hash of each source and compiled module of this installation."""
    folder = Path(__file__).parents[1]
    files = [path for path in folder.rglob("*") if path.suffix in (".py", ".so", ".pyd")]
    lines = [f"{path.relative_to(folder).as_posix()} {sha256(path.read_bytes())}\n" for path in files]
    return sha256("".join(sorted(lines)))


def _ledger_entry(charged: dict[str, Any] | None, ledger: str | os.PathLike[str] | None) -> dict[str, Any] | None:
    if charged is None:
        if ledger is not None:
            raise ValueError("ledger must be None for a release that was charged to none")
        return None
    previous = content = None
    if ledger is not None:
        entries = EntryFile(ledger).read()
        number = charged["entry"]
        if number >= len(entries) or entries[number].digest != charged["digest"]:
            raise LedgerError("the ledger must hold the entry that charged the release, and does not")
        content = json.dumps(dict(entries[number].content), allow_nan=False, sort_keys=True)
        previous = entries[number - 1].digest
    return charged | {"previous": previous, "content": content}


def _signature(key: bytes, digest: str) -> dict[str, str]:
    if not isinstance(key, bytes) or len(key) != 32:
        raise ValueError("key must be the 32 bytes of an Ed25519 private key")
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise BackendUnavailableError("a signature needs cryptography: pip install 'dpinfer[sign]'") from error
    private = Ed25519PrivateKey.from_private_bytes(key)
    value = private.sign((SIGNED + digest).encode())
    return {"algorithm": "ed25519", "public_key": private.public_key().public_bytes_raw().hex(), "value": value.hex()}

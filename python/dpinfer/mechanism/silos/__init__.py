"""Records at sites that trust nobody with their sums: masks, noise shares, lines that carry them (docs/silos.md)."""

from importlib import import_module
from typing import Any

__all__ = [
    "FlowerLine",
    "LocalLine",
    "Silos",
    "Site",
    "SiteRequest",
    "SiteTable",
    "TcpLine",
    "Terms",
    "listening",
    "serve",
    "site_app",
    "tls_context",
]

# Imported on use: they need an extra.
_HOMES = {
    "FlowerLine": "flower",
    "LocalLine": "local",
    "Silos": "rows",
    "Site": "site",
    "SiteRequest": "site",
    "SiteTable": "site",
    "TcpLine": "tcp",
    "Terms": "terms",
    "listening": "tcp",
    "serve": "tcp",
    "site_app": "flower",
    "tls_context": "tcp",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

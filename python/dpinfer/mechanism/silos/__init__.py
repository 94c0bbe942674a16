"""Records at sites that trust nobody with their sums: masks, noise shares, lines that carry them (docs/silos.md)."""

from dpinfer._lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".flower": "FlowerLine site_app",
        ".rows": "Silos",
        ".site": "LocalLine Site SiteRequest SiteTable",
        ".tcp": "TcpLine listening serve tls_context",
        ".terms": "Terms",
    },
)

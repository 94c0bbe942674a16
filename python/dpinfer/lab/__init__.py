"""The laboratory: studies of the methods, and methods to compare with. A fit needs none of it.

Coverage studies (:mod:`~dpinfer.lab.studies`) and their tests (:mod:`~dpinfer.lab.coverage`,
:mod:`~dpinfer.lab.plots`), the methods of other papers (:mod:`~dpinfer.lab.baselines`), samplers of a
posterior that is integrated otherwise (:mod:`~dpinfer.lab.comparison`), and the stationary theory of
noisy gradient descent (:mod:`~dpinfer.lab.stationary`).  No other package imports this one; the command line does, for
``dpinfer coverage`` and for the replay of the baselines.

**Privacy.** Studies use simulated records only; the baselines' private runs go through the same guard as all others.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["baselines", "comparison", "coverage", "plots", "stationary", "studies"]

if TYPE_CHECKING:
    from dpinfer.lab import baselines, comparison, coverage, plots, stationary, studies


def __getattr__(name: str) -> Any:
    """Import a package on first use (PEP 562)."""
    if name in __all__:
        return importlib.import_module(f"dpinfer.lab.{name}")
    raise AttributeError(f"module 'dpinfer.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""The laboratory: studies of the methods, and methods to compare with. A fit needs none of it.

Coverage studies (:mod:`~dpinfer.lab.studies`) and their tests (:mod:`~dpinfer.lab.coverage`,
:mod:`~dpinfer.lab.plots`), the methods of other papers (:mod:`~dpinfer.lab.baselines`), samplers of a
posterior that is integrated otherwise (:mod:`~dpinfer.lab.comparison`), the stationary theory of noisy gradient
descent (:mod:`~dpinfer.lab.stationary`), and the calls that ``dpinfer audit --replay`` makes with made-up records
(:mod:`~dpinfer.lab.replays`).  No other package imports this one; the command line does, for that and for ``dpinfer
coverage``.

**Privacy.** Studies use simulated records only; the baselines' private runs go through the same guard as all others.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names

__all__ = ["baselines", "comparison", "coverage", "plots", "replays", "stationary", "studies"]

if TYPE_CHECKING:
    from dpinfer.lab import baselines, comparison, coverage, plots, replays, stationary, studies

__getattr__, __dir__ = lazy_names(__name__, {}, modules=" ".join(__all__))

"""dpinfer: Bayesian inference under differential privacy, with posteriors that count the privacy noise.

Four steps: :func:`plan_privacy` (no data), :func:`run_dpvi` (records in, :class:`Release` out),
:func:`noise_aware_posterior` (Release in, posterior out), and the checks in :mod:`dpinfer.diagnostics`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpinfer._version import __version__

_MODULES = (
    "accounting",
    "baselines",
    "diagnostics",
    "errors",
    "estimators",
    "inference",
    "mechanism",
    "models",
    "plots",
    "release",
    "studies",
    "tabular",
    "testing",
)
_NAMES = {
    "BayesianLogisticRegression": "dpinfer.estimators",
    "CoverageResult": "dpinfer.studies",
    "Posterior": "dpinfer.inference",
    "PrivacyPlan": "dpinfer.accounting",
    "Release": "dpinfer.release",
    "SiteRelease": "dpinfer.release",
    "account": "dpinfer.accounting",
    "coverage_study": "dpinfer.studies",
    "load_release": "dpinfer.release",
    "noise_aware_posterior": "dpinfer.inference",
    "plan_privacy": "dpinfer.accounting",
    "release_from_arrays": "dpinfer.release",
    "run_dp_sep": "dpinfer.mechanism",
    "run_dpvi": "dpinfer.mechanism",
    "run_sep": "dpinfer.mechanism",
}

__all__ = [
    "BayesianLogisticRegression",
    "CoverageResult",
    "Posterior",
    "PrivacyPlan",
    "Release",
    "SiteRelease",
    "__version__",
    "account",
    "accounting",
    "baselines",
    "coverage_study",
    "diagnostics",
    "errors",
    "estimators",
    "inference",
    "load_release",
    "mechanism",
    "models",
    "noise_aware_posterior",
    "plan_privacy",
    "plots",
    "release",
    "release_from_arrays",
    "run_dp_sep",
    "run_dpvi",
    "run_sep",
    "studies",
    "tabular",
    "testing",
]

if TYPE_CHECKING:
    from dpinfer import (
        accounting,
        baselines,
        diagnostics,
        errors,
        estimators,
        inference,
        mechanism,
        models,
        plots,
        release,
        studies,
        tabular,
        testing,
    )
    from dpinfer.accounting import PrivacyPlan, account, plan_privacy
    from dpinfer.estimators import BayesianLogisticRegression
    from dpinfer.inference import Posterior, noise_aware_posterior
    from dpinfer.mechanism import run_dp_sep, run_dpvi, run_sep
    from dpinfer.release import Release, SiteRelease, load_release, release_from_arrays
    from dpinfer.studies import CoverageResult, coverage_study


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562), so that ``import dpinfer`` is cheap and layers stay apart."""
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"dpinfer.{name}")
    raise AttributeError(f"module 'dpinfer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

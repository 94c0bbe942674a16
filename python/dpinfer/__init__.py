"""dpinfer: Bayesian inference under differential privacy, with posteriors that count the privacy noise.

Tables: :func:`regression` (a formula and a public schema).

One call: :func:`fit` (a plan from public numbers, one private run, its posterior).

Four steps: :func:`plan_privacy` (no data), :func:`run_dpvi` (records in, :class:`Release` out),
:func:`noise_aware_posterior` (Release in, posterior out), and the checks in :mod:`dpinfer.diagnostics`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpinfer._version import __version__

_MODULES = (
    "accounting",
    "auditing",
    "diagnostics",
    "errors",
    "estimators",
    "fitting",
    "formulas",
    "inference",
    "lab",
    "mechanism",
    "models",
    "planning",
    "plots",
    "release",
    "tables",
    "tabular",
    "testing",
)
_NAMES = {
    "BayesianLinearRegression": "dpinfer.estimators",
    "BayesianLogisticRegression": "dpinfer.estimators",
    "BoundsRelease": "dpinfer.release",
    "CategoriesRelease": "dpinfer.release",
    "CountRelease": "dpinfer.release",
    "BayesianMultinomialRegression": "dpinfer.estimators",
    "BayesianPoissonRegression": "dpinfer.estimators",
    "BayesianProbitRegression": "dpinfer.estimators",
    "CoverageResult": "dpinfer.lab.studies",
    "Fit": "dpinfer.fitting",
    "FitPlan": "dpinfer.fitting",
    "InferencePlan": "dpinfer.planning",
    "ClusteredPopulationRelease": "dpinfer.release",
    "GlmNewtonRelease": "dpinfer.release",
    "NewtonPlan": "dpinfer.mechanism",
    "NewtonRelease": "dpinfer.release",
    "OwnNewtonRelease": "dpinfer.release",
    "OwnPopulationRelease": "dpinfer.release",
    "PopulationRelease": "dpinfer.release",
    "Posterior": "dpinfer.inference",
    "PosteriorRequest": "dpinfer.inference",
    "PrivacyLedger": "dpinfer.accounting",
    "PrivacyPlan": "dpinfer.accounting",
    "RegressionFit": "dpinfer.formulas",
    "GradientTrace": "dpinfer.release",
    "Release": "dpinfer.release",
    "SiteRelease": "dpinfer.release",
    "StatisticRelease": "dpinfer.release",
    "SumRelease": "dpinfer.release",
    "account": "dpinfer.accounting",
    "audit": "dpinfer.auditing",
    "audit_one_run": "dpinfer.auditing",
    "coverage_study": "dpinfer.lab.studies",
    "fit": "dpinfer.fitting",
    "load_fit": "dpinfer.fitting",
    "load_posterior": "dpinfer.inference",
    "load_regression": "dpinfer.formulas",
    "load_release": "dpinfer.release",
    "noise_aware_posterior": "dpinfer.inference",
    "plan_fit": "dpinfer.fitting",
    "plan_inference": "dpinfer.planning",
    "plan_newton": "dpinfer.mechanism",
    "plan_privacy": "dpinfer.accounting",
    "plan_unknown": "dpinfer.tabular",
    "private_sum": "dpinfer.mechanism",
    "release_bounds": "dpinfer.mechanism",
    "release_categories": "dpinfer.mechanism",
    "release_count": "dpinfer.mechanism",
    "plan_regression": "dpinfer.formulas",
    "regression": "dpinfer.formulas",
    "release_from_arrays": "dpinfer.release",
    "release_unknown": "dpinfer.tabular",
    "run_dp_sep": "dpinfer.mechanism",
    "run_dpvi": "dpinfer.mechanism",
    "run_newton": "dpinfer.mechanism",
    "run_sep": "dpinfer.lab.baselines",
    "run_statistic": "dpinfer.mechanism",
}

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMultinomialRegression",
    "BayesianPoissonRegression",
    "BayesianProbitRegression",
    "BoundsRelease",
    "CategoriesRelease",
    "ClusteredPopulationRelease",
    "CountRelease",
    "CoverageResult",
    "Fit",
    "FitPlan",
    "GlmNewtonRelease",
    "GradientTrace",
    "InferencePlan",
    "NewtonPlan",
    "NewtonRelease",
    "OwnNewtonRelease",
    "OwnPopulationRelease",
    "PopulationRelease",
    "Posterior",
    "PosteriorRequest",
    "PrivacyLedger",
    "PrivacyPlan",
    "RegressionFit",
    "Release",
    "SiteRelease",
    "StatisticRelease",
    "SumRelease",
    "__version__",
    "account",
    "accounting",
    "audit",
    "audit_one_run",
    "auditing",
    "coverage_study",
    "diagnostics",
    "errors",
    "estimators",
    "fit",
    "fitting",
    "formulas",
    "inference",
    "lab",
    "load_fit",
    "load_posterior",
    "load_regression",
    "load_release",
    "mechanism",
    "models",
    "noise_aware_posterior",
    "plan_fit",
    "plan_inference",
    "plan_newton",
    "plan_privacy",
    "plan_regression",
    "plan_unknown",
    "planning",
    "plots",
    "private_sum",
    "regression",
    "release",
    "release_bounds",
    "release_categories",
    "release_count",
    "release_from_arrays",
    "release_unknown",
    "run_dp_sep",
    "run_dpvi",
    "run_newton",
    "run_sep",
    "run_statistic",
    "tables",
    "tabular",
    "testing",
]

if TYPE_CHECKING:
    from dpinfer import (
        accounting,
        auditing,
        diagnostics,
        errors,
        estimators,
        fitting,
        formulas,
        inference,
        lab,
        mechanism,
        models,
        planning,
        plots,
        release,
        tables,
        tabular,
        testing,
    )
    from dpinfer.accounting import PrivacyLedger, PrivacyPlan, account, plan_privacy
    from dpinfer.auditing import audit_one_run
    from dpinfer.auditing.audit import audit
    from dpinfer.estimators import (
        BayesianLinearRegression,
        BayesianLogisticRegression,
        BayesianMultinomialRegression,
        BayesianPoissonRegression,
        BayesianProbitRegression,
    )
    from dpinfer.fitting import Fit, FitPlan, fit, load_fit, plan_fit
    from dpinfer.formulas import RegressionFit, load_regression, plan_regression, regression
    from dpinfer.inference import Posterior, PosteriorRequest, load_posterior, noise_aware_posterior
    from dpinfer.lab.baselines import run_sep
    from dpinfer.lab.studies import CoverageResult, coverage_study
    from dpinfer.mechanism import (
        NewtonPlan,
        plan_newton,
        private_sum,
        release_bounds,
        release_categories,
        release_count,
        run_dp_sep,
        run_dpvi,
        run_newton,
        run_statistic,
    )
    from dpinfer.planning import InferencePlan, plan_inference
    from dpinfer.release import (
        BoundsRelease,
        CategoriesRelease,
        ClusteredPopulationRelease,
        CountRelease,
        GlmNewtonRelease,
        GradientTrace,
        NewtonRelease,
        OwnNewtonRelease,
        OwnPopulationRelease,
        PopulationRelease,
        Release,
        SiteRelease,
        StatisticRelease,
        SumRelease,
        load_release,
        release_from_arrays,
    )
    from dpinfer.tabular import plan_unknown, release_unknown


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562), so that ``import dpinfer`` is cheap and layers stay apart."""
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"dpinfer.{name}")
    raise AttributeError(f"module 'dpinfer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

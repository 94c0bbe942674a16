"""dpinfer: Bayesian inference under differential privacy, with posteriors that count the privacy noise.

Tables: :func:`regression` (a formula and a public schema).

One call: :func:`fit` (a plan from public numbers, one private run, its posterior).

Four steps: :func:`plan_privacy` (no data), :func:`run_dpvi` (records in, :class:`Release` out),
:func:`noise_aware_posterior` (Release in, posterior out), and the checks in :mod:`dpinfer.diagnostics`.
"""

from dpinfer._lazy import TYPE_CHECKING, lazy_names
from dpinfer._version import __version__

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

# Each layer stays unloaded until a name of it is used.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".accounting": "PrivacyLedger PrivacyPlan account plan_privacy",
        ".auditing": "audit audit_one_run",
        ".estimators": "BayesianLinearRegression BayesianLogisticRegression BayesianMultinomialRegression "
        "BayesianPoissonRegression BayesianProbitRegression",
        ".fitting": "Fit FitPlan fit load_fit plan_fit",
        ".formulas": "RegressionFit load_regression plan_regression regression",
        ".inference": "Posterior PosteriorRequest load_posterior noise_aware_posterior",
        ".lab.baselines": "run_sep",
        ".lab.studies": "CoverageResult coverage_study",
        ".mechanism": "NewtonPlan plan_newton private_sum release_bounds release_categories release_count run_dp_sep "
        "run_dpvi run_newton run_statistic",
        ".planning": "InferencePlan plan_inference",
        ".release": "BoundsRelease CategoriesRelease ClusteredPopulationRelease CountRelease GlmNewtonRelease "
        "GradientTrace NewtonRelease OwnNewtonRelease OwnPopulationRelease PopulationRelease Release "
        "SiteRelease StatisticRelease SumRelease load_release release_from_arrays",
        ".tabular": "plan_unknown release_unknown",
    },
    modules="accounting auditing diagnostics errors estimators fitting formulas inference lab mechanism models "
    "planning plots release tables tabular testing",
)

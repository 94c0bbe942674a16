"""Regressions of tables from a formula and a public schema, with coefficients in the user's units.

**Privacy.** The design follows from the formula and the :class:`dpinfer.tabular.Schema` alone, which are public:
levels, bounds and the constants of transformations are never taken from records, and a row of the design matrix depends
on one record.  :func:`regression` hands the records to :func:`dpinfer.fit`; everything else is post-processing.
"""

from dpinfer.formulas.coefficients import CoefficientTable
from dpinfer.formulas.columns import DesignColumn
from dpinfer.formulas.comparison import ModelComparison
from dpinfer.formulas.design import Design, design
from dpinfer.formulas.mixed import MixedFit
from dpinfer.formulas.persons import EffectComparison, PersonFit
from dpinfer.formulas.records import SiloTable
from dpinfer.formulas.result import RegressionFit, RegressionSummary, load_regression
from dpinfer.formulas.run import plan_regression, regression

__all__ = [
    "CoefficientTable",
    "Design",
    "DesignColumn",
    "EffectComparison",
    "MixedFit",
    "ModelComparison",
    "PersonFit",
    "RegressionFit",
    "RegressionSummary",
    "SiloTable",
    "design",
    "load_regression",
    "plan_regression",
    "regression",
]

"""Estimators with scikit-learn's conventions: a private run and its noise-aware posterior in one ``fit``.

**Privacy.** ``fit`` passes records to one private mechanism only; an estimator keeps the release and its
post-processing. scikit-learn itself is not needed.
"""

from dpinfer.estimators.classifiers import BayesianMultinomialRegression, BayesianProbitRegression
from dpinfer.estimators.logistic import BayesianLogisticRegression
from dpinfer.estimators.regression import BayesianLinearRegression, BayesianPoissonRegression

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMultinomialRegression",
    "BayesianPoissonRegression",
    "BayesianProbitRegression",
]

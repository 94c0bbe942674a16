"""Estimators with scikit-learn's conventions: a private run and its noise-aware posterior in one ``fit``.

**Privacy.** ``fit`` hands records to one private mechanism only; what an estimator keeps is the release and
what follows from it.  scikit-learn itself is not needed.
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

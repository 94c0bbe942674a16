"""Bayesian probit and multinomial regression under differential privacy, by the mechanism that a plan chooses."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import DeferredArray, check_float_array
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.estimators.private import PreparedRun, RunOptions
from dpinfer.estimators.records import PendingRecords, as_labels
from dpinfer.estimators.regression import PlannedRegression
from dpinfer.inference.posterior.units import Units
from dpinfer.models import MultinomialRegression, ProbitRegression


class Classifier(PlannedRegression):
    """Base of the classifiers: classes, their probabilities, and the accuracy."""

    classes: Sequence[Any] | None
    _facts = ("n_records", "classes")
    _estimator_type = "classifier"
    _binary: ClassVar[bool] = True
    classes_: npt.NDArray[Any]
    _records: PendingRecords

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_records: int | None = None,
        unknown: Sequence[str] | None = None,
        classes: Sequence[Any] | None = None,
        data_bounds: npt.ArrayLike | None = None,
        method: str = "auto",
        prior_scale: float | None = None,
        fit_intercept: bool = True,
        adjacency: Adjacency | str = "add_remove",
        ledger: LedgerAccount | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._keep_parameters(locals())

    def _read_classes(self, X: Any, y: Any) -> None:
        self._records = PendingRecords(X, y, self.classes, binary=self._binary)
        # Checked, or read with a warning, before anything is charged.
        _ = self._records.classes

    def _records_of(self, X: Any, y: Any, made: PreparedRun) -> tuple[Any, Any]:
        records, units = self._records, cast(Units, made.units)
        return DeferredArray(lambda: units.features(records.features)), records.y

    def _set_classes(self) -> None:
        self.classes_ = self._records.classes

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior predictive probability of each class, (n_points, n_classes), over 2000 draws.

        Columns are in the order of ``classes_``; the seed of the draws is fixed.

        Parameters
        ----------
        X : (n_points, n_features) array
        return_std : bool
            Also return posterior standard deviations: (n_points,) of the probability of the positive one of two
            classes, (n_points, n_classes) of a multinomial regression.
        """
        probability = self._draws(X)[0]
        mean = probability.mean(axis=0)
        if self._binary:
            mean = np.stack([1.0 - mean, mean], axis=1)
        return (mean, probability.std(axis=0)) if return_std else mean

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the most probable class of each point.

        Parameters
        ----------
        X : (n_points, n_features) array
        return_std : bool
            Also return the posterior standard deviations of :meth:`predict_proba`.
        """
        found = self.predict_proba(X, return_std=return_std)
        probability, spread = found if return_std else (found, None)
        labels = self.classes_[np.argmax(probability, axis=1)]
        return (labels, spread) if return_std else labels

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the share of points whose class is predicted right.

        **Privacy.** Reads the labels y without noise: publish the number only if they are public.

        Parameters
        ----------
        X : (n_points, n_features) array
        y : (n_points,) array of labels
        sample_weight : (n_points,) array, optional
        """
        predicted = self.predict(X)
        right = predicted == as_labels(y, len(predicted))
        weights = None if sample_weight is None else check_float_array("sample_weight", sample_weight, (len(right),))
        return float(np.average(right, weights=weights))


class BayesianProbitRegression(Classifier):
    """Bayesian probit regression, fitted with differential privacy.

    **Privacy.** As :class:`BayesianLinearRegression`; `classes` are read from the records if not given,
    with a warning.

    Parameters
    ----------
    epsilon, delta, n_records, data_bounds, method, fit_intercept, adjacency, ledger
        As in :class:`BayesianLinearRegression`.
    n_threads, progress, random_source, survey_weights
        As in :class:`BayesianLinearRegression`.
    unknown : sequence of {"n_records", "data_bounds"}, optional
        As in :class:`BayesianLinearRegression`.
    classes : pair of labels, optional
        (negative, positive), public.
    prior_scale : float, optional
        Prior standard deviation of a scaled weight; that of the model by default.

    Attributes
    ----------
    coef_ : (1, n_features) float64
    intercept_ : (1,) float64
    classes_ : (2,) array
        Negative and positive label.
    release_, posterior_, privacy_, n_features_in_, feature_names_in_, unknown_
        As in :class:`BayesianLinearRegression`.
    """

    _model = ProbitRegression


class BayesianMultinomialRegression(Classifier):
    """Bayesian multinomial logistic (softmax) regression of two or more classes, fitted with differential privacy.

    **Privacy.** As :class:`BayesianLinearRegression`; `classes` are read from the records if not given,
    with a warning.

    Parameters
    ----------
    epsilon, delta, n_records, data_bounds, method, fit_intercept, adjacency, ledger
        As in :class:`BayesianLinearRegression`; the mechanism is "newton".
    n_threads, progress, random_source, survey_weights
        As in :class:`BayesianLinearRegression`; there are no survey weights.
    unknown : sequence of {"n_records", "data_bounds"}, optional
        As in :class:`BayesianLinearRegression`.
    classes : sequence of labels, optional
        Public, at least two; the first is the base, against which the others have coefficients.
    prior_scale : float, optional
        Prior standard deviation of a scaled weight of each class against the base; 1 by default.

    Attributes
    ----------
    coef_ : (n_classes - 1, n_features) float64
        Posterior means of the log odds of each class against the base, for a unit of each column.
    intercept_ : (n_classes - 1,) float64
    classes_ : (n_classes,) array
        The base first.
    release_, posterior_, privacy_, n_features_in_, feature_names_in_, unknown_
        As in :class:`BayesianLinearRegression`; parameters of the posterior are called ``class:feature``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer import BayesianMultinomialRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(0.0, 10.0, size=(20_000, 1))
    >>> y = np.where(rng.uniform(0.0, 10.0, size=20_000) < X[:, 0], "car", np.where(X[:, 0] < 2.0, "foot", "bike"))
    >>> classes = ("foot", "bike", "car")
    >>> model = BayesianMultinomialRegression(n_records=20_000, classes=classes, data_bounds=(0.0, 10.0)).fit(X, y)
    >>> model.predict([[0.0], [9.0]]).tolist(), model.coef_.shape
    (['foot', 'car'], (2, 1))
    """

    _model = MultinomialRegression
    _binary = False

    def _made_model(self, units: Units, names: list[str] | None) -> MultinomialRegression:
        return self._model_of(self._records.classes, units, names)

    def _model_of(self, classes: Any, units: Units, names: list[str] | None) -> MultinomialRegression:
        low, high = units.bounds.T

        def features(size: int, rng: np.random.Generator) -> FloatArray:
            return units.features(rng.uniform(low, high, (size, len(low))))

        return MultinomialRegression(
            len(low),
            classes.tolist(),
            fit_intercept=bool(self.fit_intercept),
            feature_names=names,
            features=features,
            **({} if self.prior_scale is None else {"prior_scale": self.prior_scale}),
        )

    @property
    def _n_blocks(self) -> int:
        return len(self.classes_) - 1

    def _predicted(self, theta: FloatArray, points: FloatArray) -> FloatArray:
        return self._model_of(self.classes_, cast(Units, self._units), None).predict_probabilities(theta, points)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags; called by scikit-learn only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        return tags

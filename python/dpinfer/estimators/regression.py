"""Bayesian linear and Poisson regression under differential privacy, by the mechanism that a plan chooses."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, Unpack, cast

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._types import refuse_array_type
from dpinfer._validate import DeferredArray, check_float_array
from dpinfer.accounting import Adjacency, LedgerAccount
from dpinfer.estimators.private import RELEASED_WIDTH, PreparedRun, PrivateEstimator, RunOptions, WeightOptions
from dpinfer.estimators.records import (
    PendingRecords,
    as_bounds,
    as_numbers,
    feature_names,
    fitted_features,
    public_columns,
)
from dpinfer.fitting import plan_fit
from dpinfer.inference import Posterior, PosteriorRequest
from dpinfer.inference.posterior.units import UNIFORM_WIDTH, Units
from dpinfer.methods import RunSettings, method_with
from dpinfer.models import GeneralizedLinearModel, LinearRegression, MultinomialRegression, PoissonRegression

PREDICTION_DRAWS, SEED = 2000, 0  # error 1.6% of a standard deviation (1 / sqrt(2 * 2000)); the seed is arbitrary


class PlannedRegression(PrivateEstimator):
    """Base of the estimators whose mechanism is chosen by :func:`dpinfer.plan_fit`.

    **Privacy.** ``fit`` hands the records to the plan's mechanism, which is (epsilon, delta)-differentially private.
    Predictions are post-processing of its release, at the caller's own X.

    Columns are clipped to the public `data_bounds` and scaled by them; coefficients are in the user's units.
    """

    coef_: FloatArray
    intercept_: Any
    _estimator_type: ClassVar[str]
    prior_scale: float | None
    fit_intercept: bool
    data_bounds: npt.ArrayLike | None
    _model: ClassVar[type[GeneralizedLinearModel | MultinomialRegression]]

    _units: Units | None = None

    @abstractmethod
    def _records_of(self, X: Any, y: Any, made: PreparedRun) -> tuple[Any, Any]:
        """Return features and responses that a mechanism reads later."""

    def fit(self, X: Any, y: Any, **options: Unpack[WeightOptions]) -> Self:
        """Run the private mechanism on the records and compute the posterior from its release.

        **Privacy.** Reads the records; (epsilon, delta)-differentially private.  Each call, and each fit of a clone,
        spends the budget again. Arguments are checked, then the ledger is charged, then the records are read; if they
        are refused the ledger keeps the charge (see :class:`dpinfer.LedgerAccount`), and no message quotes one.

        Raises TypeError or ValueError if a parameter is wrong (BudgetExceededError: the budget cannot be met, or the
        ledger's is used up). Raises RecordError if the records cannot be used, and BackendUnavailableError if the
        posterior needs a package that is not installed; nothing was spent then. Raises NumericalError if the posterior
        cannot be computed after all: the release is kept as ``release_``, and is the error's ``release``.

        Warns by PrivacyLeakWarning if a public argument is not given, and is read from the records; by FallbackWarning
        if the requested posterior fails for numerical reasons, and a simpler one replaces it; and once by
        RepeatedSpendingWarning, when an estimator and its clones spend for the second time.

        Parameters
        ----------
        X : (N, n_features) array of real numbers
        y : (N,) array
            Of a classifier, of labels.
        sample_weight : (N,) array, optional
            Survey weights, with the parameter `survey_weights`: coefficients are then the weighted population's.
        """
        weights = self._checked_weights(options)
        names, n_features = feature_names(X), public_columns(X)
        refuse_array_type("y", y, numbers=self._estimator_type == "regressor")
        unknown_names = self._unknown_names()
        self._refuse_reading_before_a_charge(n_features)
        table, given = None, self._public_parameters()
        if n_features is None or (self.n_records is None and not unknown_names):
            table = fitted_features(X)
            n_features = table.shape[1]
        # If not given, it was read from the table.
        if self.n_records is None and table is not None:
            given["n_records"] = len(table)
        features: Any = X if table is None else table
        self._read_classes(features, y)
        request = self._posterior_request()
        make = partial(self._checked_run, n_features, names, request)
        records = partial(self._weighed, features, y, weights)
        try:
            self._units = self._run_private(features, y, given, names, n_features, make, records).units
            self._set_classes()
        finally:
            vars(self).pop("_records", None)
        self.posterior_ = self._infer(request)
        size, blocks = n_features + bool(self.fit_intercept), self._n_blocks
        weights = self.posterior_.mean[: blocks * size].reshape(blocks, size)
        coef, intercept = weights[:, :n_features], weights[:, -1] if self.fit_intercept else np.zeros(blocks)
        single = self._estimator_type == "regressor"
        self.coef_ = coef[0] if single else coef
        self.intercept_ = float(intercept[0]) if single else intercept
        return self

    def _weighed(self, X: Any, y: Any, weights: Any, made: PreparedRun) -> tuple[Any, Any]:
        """Return features and responses, with the records' weights beside these if there are any."""
        features, responses = self._records_of(X, y, made)
        if weights is None:
            return features, responses

        def beside() -> FloatArray:
            values = np.asarray(responses)
            return np.column_stack((values, as_numbers(weights, len(values), "sample_weight")))

        return features, DeferredArray(beside)

    def _posterior(self, request: PosteriorRequest) -> Posterior:
        return replace(super()._posterior(request), units=self._units)

    def _checked_run(
        self,
        n_features: int,
        names: npt.NDArray[np.object_] | None,
        request: PosteriorRequest,
        values: dict[str, Any],
        epsilon: float,
    ) -> PreparedRun:
        """Return the plan of a fit with these values of the parameters, after refusing fits that would fail."""
        unknown = self.unknown or ()
        widths = {
            own: RELEASED_WIDTH if name in unknown else UNIFORM_WIDTH
            for own, name in (("width", "data_bounds"), ("target_width", "target_bounds"))
        }
        bounds, target = self._bounds_of(values["data_bounds"], n_features), values.get("target_bounds")
        units = Units.of(bounds, target, centred=bool(self.fit_intercept), **widths)
        plan = plan_fit(
            self._with_weights(self._made_model(units, None if names is None else list(names))),
            epsilon=epsilon,
            delta=self.delta,
            n_records=values["n_records"],
            method=method_with("unknown", self.method) if unknown else self.method,
            adjacency=self._relation(),
            response_scale=1.0 if self._model is LinearRegression else None,
        )
        plan.check(request, RunSettings(n_threads=self.n_threads, ledger=self.ledger))
        return PreparedRun(plan.mechanism, plan.run, units.bounds, units)

    def _made_model(self, units: Units, names: list[str] | None) -> Any:
        """Return the model of scaled columns."""
        kind: Any = self._model
        return kind(
            n_features=len(units.bounds),
            fit_intercept=bool(self.fit_intercept),
            feature_names=names,
            **({} if self.prior_scale is None else {"prior_scale": self.prior_scale}),
            **({} if units.target_bounds is None else {"largest_spread": units.largest_spread}),
        )

    def _public_parameters(self) -> dict[str, Any]:
        """Return the parameters that may be unknown; None if not given."""
        return {"n_records": self.n_records, "data_bounds": self.data_bounds}

    def _read_classes(self, X: Any, y: Any) -> None:
        """Read labels that are not given, with a warning."""

    def _set_classes(self) -> None:
        """Keep further results of public knowledge."""

    def _bounds_of(self, data_bounds: Any, n_features: int) -> FloatArray:
        bounds = as_bounds(data_bounds, n_features)
        if bounds is None:
            raise ValueError(
                "data_bounds must be given: (low, high), or a row for each column; columns are clipped to them and "
                "scaled by them, and taking them from the records would leak them (unknown=['data_bounds'] releases "
                "them, with noise)"
            )
        return bounds

    @property
    def _n_blocks(self) -> int:
        """How many weights a column has."""
        return 1

    def _draws(self, X: Any) -> tuple[FloatArray, FloatArray]:
        """Return draws of E[y | x], (draws, points), and of the parameters."""
        # First, as it refuses an estimator that is not fitted.
        points = self._points(X)
        theta = self.posterior_.sample(PREDICTION_DRAWS, seed=SEED, space="unconstrained")
        units = cast(Units, self._units)
        mean = units.means(self._predicted(theta, units.features(points)))
        return mean, self.posterior_.constrain(theta)

    def _predicted(self, theta: FloatArray, points: FloatArray) -> FloatArray:
        model: Any = self.posterior_.model
        return np.asarray(model.predict_mean(theta, points))


class _Regressor(PlannedRegression):
    """Base of the regressors: predictions with standard deviations, and the coefficient of determination."""

    _estimator_type = "regressor"

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior predictive mean of each point, (n_points,), over 2000 draws with a fixed seed.

        Parameters
        ----------
        X : (n_points, n_features) array
        return_std : bool
            Also return the standard deviation of the posterior predictive: of the coefficients and of one response.
        """
        mean, parameters = self._draws(X)
        expected = mean.mean(axis=0)
        if not return_std:
            return expected
        return expected, np.sqrt(mean.var(axis=0) + self._noise(mean, parameters))

    @abstractmethod
    def _noise(self, mean: FloatArray, parameters: FloatArray) -> FloatArray:
        """Return the expected variance of one response, (n_points,) or a number."""

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the coefficient of determination R**2 of the predictions.

        **Privacy.** Reads y without noise: publish the number only if y is public.

        Parameters
        ----------
        X : (n_points, n_features) array
        y : (n_points,) array
        sample_weight : (n_points,) array, optional
        """
        predicted = self.predict(X)
        actual = as_numbers(y, len(predicted))
        weights = np.ones(len(actual))
        if sample_weight is not None:
            weights = check_float_array("sample_weight", sample_weight, (len(actual),))
        spread = float(np.sum(weights * (actual - np.average(actual, weights=weights)) ** 2))
        missed = float(np.sum(weights * (actual - predicted) ** 2))
        return 1.0 - missed / spread if spread > 0.0 else float(missed == 0.0)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags; called by scikit-learn only."""
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "regressor", None
        tags.regressor_tags = RegressorTags(poor_score=True)
        tags.target_tags.positive_only = self._model is PoissonRegression
        return tags


class BayesianLinearRegression(_Regressor):
    """Bayesian linear regression, fitted with differential privacy, whose posterior counts the privacy noise.

    **Privacy.** ``fit`` hands the records to the mechanism that :func:`dpinfer.plan_fit` chooses, which is (epsilon,
    delta)-differentially private under `adjacency`.  The guarantee does not cover the number of records if
    `n_records` is not given.  There is no seed: see `random_source`.

    Parameters
    ----------
    epsilon : float
        Privacy budget, positive.
    delta : float in (0, 1)
    n_records : int, optional
        A public number of records.  None takes ``len(X)``, which then becomes public, with a warning.
    data_bounds : (low, high) or (n_features, 2) array
        Public bounds of the columns, needed: X is clipped to them and scaled by them.
    target_bounds : (low, high)
        Public bounds of y, required: y is clipped to them, and the mechanism takes its scale from them.
    unknown : sequence of {"n_records", "data_bounds", "target_bounds"}, optional
        Parameters that are not public. Leave them out: they are released first, with noise, for a tenth of the budget
        (in squares), and "newton" makes the fit with the rest.  `epsilon` and `delta` cover all releases together,
        and the release's guarantee states them; a ledger has an entry for each.  X needs a shape: docs/unknown.md.
    method : str
        As in :func:`dpinfer.plan_fit`: "auto", "newton", "dpvi", or that of another package.
    prior_scale : float, optional
        Prior standard deviation of a scaled weight, in noise standard deviations; the model's by default.
    fit_intercept : bool
    adjacency : {"add_remove", "replace_one"}
    n_threads : int, optional
    progress : bool, optional
        By default a bar is drawn on a terminal, and in a notebook, from two seconds on.
    survey_weights : SurveyWeights, optional
        Public facts about the weights that ``fit(X, y, sample_weight=...)`` is given.
    random_source : RandomSource or callable returning one, optional
        As in :class:`BayesianLogisticRegression`.
    ledger : LedgerAccount, optional
        Charged by every ``fit`` before it looks at a record.  It needs `n_records` and an X with a shape.

    Attributes
    ----------
    coef_ : (n_features,) float64
        Posterior means, in units of y for each unit of the column.
    intercept_ : float
    release_, posterior_, privacy_, n_features_in_, feature_names_in_, unknown_
        As in :class:`BayesianLogisticRegression`; ``posterior_`` is in the units of ``coef_``, and its unconstrained
        space that of the scaled weights.

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer import BayesianLinearRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(0.0, 10.0, size=(4000, 1))
    >>> y = 20.0 + 5.0 * X[:, 0] + rng.normal(scale=5.0, size=4000)
    >>> model = BayesianLinearRegression(n_records=4000, data_bounds=(0.0, 10.0), target_bounds=(0.0, 100.0))
    >>> bool(abs(model.fit(X, y).coef_[0] - 5.0) < 0.5)
    True
    """

    _model = LinearRegression
    target_bounds: tuple[float, float] | None

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_records: int | None = None,
        unknown: Sequence[str] | None = None,
        data_bounds: npt.ArrayLike | None = None,
        target_bounds: tuple[float, float] | None = None,
        method: str = "auto",
        prior_scale: float | None = None,
        fit_intercept: bool = True,
        adjacency: Adjacency | str = "add_remove",
        ledger: LedgerAccount | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._keep_parameters(locals())

    def _public_parameters(self) -> dict[str, Any]:
        return super()._public_parameters() | {"target_bounds": self._target_bounds()}

    def _target_bounds(self) -> tuple[float, float] | None:
        if self.target_bounds is None:
            if "target_bounds" in (self.unknown or ()):
                return None
            raise ValueError(
                "target_bounds must be given: public bounds (low, high) of y, never taken from the records "
                "(unknown=['target_bounds'] releases them, with noise)"
            )
        low, high = check_float_array("target_bounds", self.target_bounds, (2,))
        if not low < high:
            raise ValueError("target_bounds must have low < high")
        return float(low), float(high)

    def _records_of(self, X: Any, y: Any, made: PreparedRun) -> tuple[Any, Any]:
        records, units = PendingRecords(X), cast(Units, made.units)
        return (
            DeferredArray(lambda: units.features(records.features)),
            DeferredArray(lambda: units.responses(as_numbers(y, len(records.features)))),
        )

    def _noise(self, mean: FloatArray, parameters: FloatArray) -> FloatArray:
        return np.asarray(np.mean(parameters[:, -1]))


class BayesianPoissonRegression(_Regressor):
    """Bayesian Poisson regression with the logarithmic link, fitted with differential privacy.

    **Privacy.** As :class:`BayesianLinearRegression`.

    Parameters
    ----------
    epsilon, delta, n_records, data_bounds, method, fit_intercept, adjacency, ledger
        As in :class:`BayesianLinearRegression`.
    n_threads, progress, random_source, survey_weights
        As in :class:`BayesianLinearRegression`.
    unknown : sequence of {"n_records", "data_bounds"}, optional
        As in :class:`BayesianLinearRegression`.
    prior_scale : float, optional
        Prior standard deviation of a scaled weight; that of the model by default.

    Attributes
    ----------
    coef_ : (n_features,) float64
        Posterior means of the logarithms of the rate ratios for a unit of each column.
    intercept_ : float
    release_, posterior_, privacy_, n_features_in_, feature_names_in_, unknown_
        As in :class:`BayesianLinearRegression`.

    Notes
    -----
    Responses are rounded to counts, and negative ones to 0, each by itself.
    """

    _model = PoissonRegression

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_records: int | None = None,
        unknown: Sequence[str] | None = None,
        data_bounds: npt.ArrayLike | None = None,
        method: str = "auto",
        prior_scale: float | None = None,
        fit_intercept: bool = True,
        adjacency: Adjacency | str = "add_remove",
        ledger: LedgerAccount | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._keep_parameters(locals())

    def _records_of(self, X: Any, y: Any, made: PreparedRun) -> tuple[Any, Any]:
        records, units = PendingRecords(X), cast(Units, made.units)
        return (
            DeferredArray(lambda: units.features(records.features)),
            DeferredArray(lambda: np.maximum(np.rint(as_numbers(y, len(records.features))), 0.0)),
        )

    def _noise(self, mean: FloatArray, parameters: FloatArray) -> FloatArray:
        return np.asarray(mean.mean(axis=0))

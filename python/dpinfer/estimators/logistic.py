"""Bayesian logistic regression under differential privacy, and the check of a whole fit from public facts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting import AccountantName, Adjacency, LedgerAccount, PrivacyPlan, plan_privacy
from dpinfer.estimators.classifiers import Classifier
from dpinfer.estimators.private import PreparedRun, PrivateEstimator, RunOptions
from dpinfer.estimators.records import as_bounds, typical_norm, typical_scales
from dpinfer.estimators.regression import PREDICTION_DRAWS, SEED
from dpinfer.fitting import plan_fit
from dpinfer.inference import PosteriorRequest, ReleaseFacts
from dpinfer.inference.request import APPROXIMATIONS
from dpinfer.mechanism import run_dpvi
from dpinfer.methods import find_method, method_with
from dpinfer.models import LogisticRegression

# Values of `method` that make the published gradient trace; the approximations are their names before 0.2.
_TRACES = ("dpvi", *APPROXIMATIONS)
_NO_BOUNDS = (
    "data_bounds must be given: (low, high), or a row for each column; columns are clipped to them, and their size "
    "follows from them, which taking it from the records would leak (a gradient trace, method='dpvi', does without "
    "where max_grad_norm is a number)"
)


class TraceOptions(RunOptions, total=False):
    """Settings of the published gradient trace, method "dpvi", and of its posterior; and how a run is made."""

    sample_rate: float
    n_steps: int
    max_grad_norm: float | str
    grad_scale: Any
    learning_rate: Any
    loss: str | None
    expectation: str | None
    recipe: str | None
    accountant: AccountantName
    approximation: str
    hessian: str
    burn_in: str | float | int
    prior: Any


_OF_A_TRACE: dict[str, Any] = {
    "sample_rate": 0.1,
    "n_steps": 10_000,
    "max_grad_norm": "auto",
    "grad_scale": None,
    "learning_rate": "heuristic",
    "loss": None,
    "expectation": None,
    "recipe": None,
    "accountant": "pld",
    "approximation": "exact",
    "hessian": "auto",
    "burn_in": "auto",
    "prior": "auto",
}
_OF_ITS_POSTERIOR = ("approximation", "hessian", "burn_in", "prior")


class BayesianLogisticRegression(Classifier):
    """Bayesian logistic regression, fitted with differential privacy, whose posterior counts the privacy noise.

    **Privacy.** ``fit`` reads the records once, through one private mechanism, and is (epsilon, delta)-differentially
    private under `adjacency`; with "add_remove" a neighbour has one record more or less, and clipping to
    `max_grad_norm` bounds its effect.  ``release_``, ``posterior_``, ``coef_``, ``intercept_`` and predictions for
    public points are covered by that guarantee.  The guarantee does not cover the number of records (`n_records`) and
    the two labels (`classes`) if ``fit`` has to read them from the data; it then warns with
    :class:`PrivacyLeakWarning`. There is no seed: see `random_source`.

    Parameters
    ----------
    epsilon : float
        Privacy budget, positive.
    delta : float in (0, 1)
    sample_rate : float in (0, 1]
        Probability that a step samples a given record.
    n_steps : int
        At least 1.
    max_grad_norm : "auto" or float
        Clipping norm.  "auto" takes the root mean square norm of (x, 1) for x uniform on `data_bounds`, which are
        public (twice that for "tied" and "steady", whose preconditioner is about 2); without them it is an error.
    grad_scale, learning_rate, loss, expectation, recipe
        As in :func:`dpinfer.run_dpvi`; None leaves the choice to the recipe.  "tied" and "steady" have steps of their
        own, which replace the "heuristic" learning rate.
    n_records : int, optional
        A public number of records.  None takes ``len(X)``, which then becomes public, with a warning.
    unknown : sequence of {"n_records", "data_bounds"}, optional
        Parameters that are not public, with `method` "auto" or "newton". They are left out, and released first, with
        noise, for a tenth of the budget (in squares); the fit gets the rest, by "newton".  `epsilon` and
        `delta` are of all together, and the release's guarantee states them; a ledger has an entry for each.  X needs a
        shape, and labels stay public: docs/unknown.md.
    classes : pair of labels, optional
        (negative, positive), public.  None takes the labels found in y, with the same warning.
    prior_scale : float
        Standard deviation of the normal prior of every weight, positive.
    fit_intercept : bool
    data_bounds : (low, high) or (n_features, 2) array, optional
        Public bounds, required except for a gradient trace with a number as `max_grad_norm`.  ``fit`` and predictions
        clip X to these bounds, without scaling.  Scale the columns to about unit size by public constants first
        (:mod:`dpinfer.tabular` does): the prior and the clipping expect it.
    method : str
        The mechanism.  "auto" (default) chooses it by predicted width as :func:`dpinfer.plan_fit` does.  "newton": a
        few full-batch passes (:func:`dpinfer.run_newton`).  "dpvi": the published gradient trace.  `sample_rate`,
        `n_steps`, `max_grad_norm`, `accountant` and the four settings above belong to the trace, and are refused
        elsewhere.
    approximation, hessian, burn_in, prior
        Of the posterior, as in :func:`dpinfer.noise_aware_posterior`.
    accountant : {"pld", "prv", "rdp"}
    adjacency : {"add_remove", "replace_one"}
        "zero_out" is refused: labels cannot be blank, so that no caller has a null record.
    n_threads : int, optional
        All cores by default; the result does not depend on it.
    progress : bool, optional
        By default a bar is drawn on a terminal, and in a notebook, from two seconds on.
    random_source : RandomSource or callable returning one, optional
        None: the operating system's generator.  ``dpinfer.testing.InsecureRNG(seed)`` gives reproducible fits that are
        NOT PRIVATE: clones take the next keys of the same source, so that each fold of a cross-validation has its own
        noise. ``functools.partial(InsecureRNG, seed)`` can be pickled, too, and begins anew in every fit.
    survey_weights : SurveyWeights, optional
        Public facts about the weights that ``fit(X, y, sample_weight=...)`` is given.
    ledger : LedgerAccount, optional
        The data set's account in a :class:`dpinfer.PrivacyLedger`.  Every ``fit``, also of a clone, is charged to it
        before it looks at a record.  It needs `n_records`, `classes`, and an X with a shape.

    Attributes
    ----------
    release_ : GradientTrace or SumsOfPasses
        The release of the private run.
    posterior_ : Posterior
        The noise-aware posterior of the weights.
    privacy_ : PrivacyPlan or NewtonPlan
        The certified guarantee and the noise it took.
    coef_ : (1, n_features) float64
        Posterior means of the weights.
    intercept_ : (1,) float64
        Posterior mean of the intercept; 0 without one.
    classes_ : (2,) array
        Negative and positive label.
    n_features_in_ : int
    feature_names_in_ : (n_features,) object array
        Only when X had string column names.
    unknown_ : ReleasedArguments
        Only with `unknown`: ``unknown_.values`` has the released values of the parameters.

    Notes
    -----
    With "dpvi" the posterior is the one of NA-DPVI (section 3), computed exactly.  The bound behind its clipping norm
    "auto": the gradient of a record's loss in the weights is (p - y)(x, 1), with norm at most that of (x, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from dpinfer import BayesianLogisticRegression
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(-1.0, 1.0, size=(2000, 2))
    >>> y = (rng.uniform(size=2000) < 1.0 / (1.0 + np.exp(-3.0 * X[:, 0]))).astype(int)
    >>> model = BayesianLogisticRegression(n_records=2000, classes=(0, 1), data_bounds=(-1.0, 1.0))
    >>> model.fit(X, y).predict_proba(X[:3]).shape
    (3, 2)
    """

    _options: ClassVar[Mapping[str, Any]] = {**PrivateEstimator._options, **_OF_A_TRACE}
    sample_rate: float
    n_steps: int
    max_grad_norm: float | str
    grad_scale: Any
    learning_rate: Any
    loss: str | None
    expectation: str | None
    recipe: str | None
    accountant: AccountantName
    prior_scale: float

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_records: int | None = None,
        unknown: Sequence[str] | None = None,
        classes: Sequence[Any] | None = None,
        prior_scale: float = 1.0,
        fit_intercept: bool = True,
        data_bounds: npt.ArrayLike | None = None,
        method: str = "auto",
        adjacency: Adjacency | str = "add_remove",
        ledger: LedgerAccount | None = None,
        **options: Unpack[TraceOptions],
    ) -> None:
        self._keep_parameters(locals())

    def _records_of(self, X: Any, y: Any, made: PreparedRun) -> tuple[Any, Any]:
        self._records.bounds = made.bounds
        return self._records.X, self._records.y

    def _checked_run(
        self,
        n_features: int,
        names: npt.NDArray[np.object_] | None,
        request: PosteriorRequest,
        values: dict[str, Any],
        epsilon: float,
    ) -> PreparedRun:
        """Return the plan of the run and its mechanism, after refusing fits that would fail; reads no records."""
        model = LogisticRegression(
            n_features=n_features,
            prior_scale=self.prior_scale,
            fit_intercept=self.fit_intercept,
            feature_names=None if names is None else list(names),
        )
        n_records, bounds = values["n_records"], as_bounds(values["data_bounds"], n_features)
        if self.method not in _TRACES:
            self._refuse_dpvi_settings()
            if bounds is None:
                raise ValueError(_NO_BOUNDS)
            fit_plan = plan_fit(
                self._with_weights(replace(model, feature_scale=typical_scales(bounds))),
                epsilon=epsilon,
                delta=self.delta,
                n_records=n_records,
                method=self.method if self.unknown is None else method_with("unknown", self.method),
                adjacency=self._relation(),
            )
            fit_plan.check(request)
            return PreparedRun(fit_plan.mechanism, fit_plan.run, bounds)
        if self.survey_weights is not None:
            raise ValueError("survey_weights must be None with a gradient trace: method='newton' has weights")
        norm = self._clipping_norm(bounds)
        plan = self._privacy_plan()
        fisher = self.recipe in FISHER_RECIPES
        check_fit(
            model,
            plan,
            request,
            n_records=n_records,
            recipe="plain" if self.recipe is None else self.recipe,
            max_grad_norm=norm,
            learning_rate=self.learning_rate if self.grad_scale is None else None,
        )
        mechanism = partial(
            run_dpvi,
            model,
            plan=plan,
            n_records=n_records,
            max_grad_norm=norm,
            grad_scale=self.grad_scale,
            learning_rate=None if fisher and self.learning_rate == "heuristic" else self.learning_rate,
            loss=self.loss,
            expectation=self.expectation,
            recipe=self.recipe,
        )
        return PreparedRun(plan, mechanism, bounds)

    def _refuse_dpvi_settings(self) -> None:
        """Refuse settings of another mechanism than the one that will run."""
        for name, default in _OF_A_TRACE.items():
            value = getattr(self, name)
            if name not in _OF_ITS_POSTERIOR and not (np.ndim(value) == 0 and value == default):
                raise ValueError(
                    f"{name} must be left at its default with method={self.method!r}, which takes the mechanism that "
                    "a plan chooses: it belongs to method='dpvi', the published gradient trace"
                )

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Return the posterior predictive probability of each class, (n_points, 2), averaged over the weights.

        Columns are in the order of ``classes_``; rows sum to 1.

        Raises TypeError or ValueError if X is not a table of finite numbers with the features of the fit.

        Parameters
        ----------
        X : (n_points, n_features) array
        return_std : bool
            Also return the posterior standard deviation of the probability of the positive class, (n_points,), over
            2000 draws with a fixed seed: it counts the sampling error and the privacy noise.
        """
        points = self._points(X)
        probability = np.asarray(self.posterior_.predict_proba(points))
        if not return_std:
            return probability
        theta = self.posterior_.sample(PREDICTION_DRAWS, seed=SEED, space="unconstrained")
        model: Any = self.posterior_.model
        return probability, np.asarray(model.predict_mean(theta, points)).std(axis=0)

    def _privacy_plan(self) -> PrivacyPlan:
        # Under the estimator's own names.
        return plan_privacy(
            target_epsilon=check_interval("epsilon", self.epsilon, 0.0),
            target_delta=check_interval("delta", self.delta, 0.0, 1.0),
            sample_rate=self.sample_rate,
            n_steps=self.n_steps,
            adjacency=self._relation(),
            accountant=self.accountant,
        )

    def _posterior_request(self) -> PosteriorRequest:
        options: dict[str, Any] = {name: getattr(self, name) for name in (*_OF_ITS_POSTERIOR, "progress")}
        if self.method in APPROXIMATIONS:
            options["method"] = self.method  # as before 0.2, with a warning
        elif self.method != "auto":
            find_method(self.method)
        return PosteriorRequest(**options)

    def _clipping_norm(self, bounds: FloatArray | None) -> float:
        if not isinstance(self.max_grad_norm, str):
            return check_interval("max_grad_norm", self.max_grad_norm, 0.0)
        if self.max_grad_norm != "auto":
            raise ValueError(f"max_grad_norm must be a number or 'auto', got {self.max_grad_norm!r}")
        if bounds is None:
            raise ValueError(_NO_BOUNDS)
        norm = typical_norm(bounds, fit_intercept=bool(self.fit_intercept))
        return 2.0 * norm if self.recipe in FISHER_RECIPES else norm


RECIPES = ("plain", "paper", "tied", "steady")
FISHER_RECIPES = ("tied", "steady")
SCALES = (1e-30, 1e30)  # squares of these, times the number of records, are numbers


def check_fit(
    model: LogisticRegression,
    plan: PrivacyPlan,
    posterior: PosteriorRequest,
    *,
    n_records: int,
    recipe: str,  # {"plain", "paper", "tied", "steady"}
    max_grad_norm: float,
    # as run_dpvi takes it; whether the steps are stable is checked for "heuristic" and numbers
    learning_rate: Any = "heuristic",
) -> None:
    """Refuse public settings of a fit that would be charged and give no release, or no posterior.

    Raises TypeError or ValueError if an argument is outside its range, the steps would diverge, or such a release does
    not have the requested posterior. Raises BackendUnavailableError if the posterior needs a package that is not
    installed.

    With "plain" the prior's gradient loc / s**2 follows the noise, unclipped: a step of learning rate r and sample rate
    q multiplies loc by 1 - r q / s**2, and it grows without end where that is below -1.
    """
    check_choice("recipe", recipe, RECIPES)
    for name, value in (("max_grad_norm", max_grad_norm), ("prior_scale", model.prior_scale)):
        check_interval(name, value, *SCALES, low_open=False, high_open=False)
    fisher = recipe in FISHER_RECIPES
    posterior.check(ReleaseFacts.planned(model, n_steps=plan.n_steps, n_records=n_records, fisher_scaled=fisher))
    if isinstance(learning_rate, str) and learning_rate == "heuristic":
        rate = 1.0 / (plan.noise_multiplier * max_grad_norm * math.sqrt(plan.n_steps))
    elif isinstance(learning_rate, (int, float)):
        rate = check_interval("learning_rate", learning_rate, 0.0, low_open=False)
    else:
        return
    if recipe != "plain":
        return
    least = math.sqrt(0.5 * plan.sample_rate * rate)
    if model.prior_scale < least:
        raise ValueError(
            f"prior_scale must be at least {least:.3g} with this recipe, noise, max_grad_norm and learning_rate, "
            f"got {model.prior_scale:g}: the steps would diverge"
        )

"""The result of the post-processing: a posterior of the model's parameters that counts the privacy noise."""

import os
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.accounting import Guarantee
from dpinfer.inference.posterior.causes import causes
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.inference.posterior.monte_carlo import MonteCarloError, monte_carlo_error
from dpinfer.inference.posterior.predictive import (
    check_points,
    draw_records,
    network_mean,
    predictive_mean,
    require_classifier,
    require_glm,
)
from dpinfer.inference.posterior.summary import PosteriorSummary, VarianceDecomposition, summarise
from dpinfer.inference.posterior.synthetic import SyntheticSets
from dpinfer.inference.posterior.theta import DrawnTheta, ParameterSpace, ThetaDistribution
from dpinfer.inference.posterior.units import Units
from dpinfer.models import BayesianNeuralNetwork, GeneralizedLinearModel, Model
from dpinfer.models.base import gauss_hermite

SPACES = ("constrained", "unconstrained")
_HERMITE_NODES, _FEWER_NODES, _MANY = 31, 9, 1000  # exact to degree 61, and to 17 where so many laws are averaged
_MAP_DRAWS, _MAP_SEED = 16_384, 20_250_101  # Monte Carlo error below 1% of a standard deviation; an arbitrary seed
_nothing = partial(np.empty, 0)


def _levels(q: npt.ArrayLike) -> FloatArray:
    levels = np.atleast_1d(check_float_array("q", q))
    if levels.ndim > 1 or not np.all((levels > 0.0) & (levels < 1.0)):
        raise ValueError("q must be a number or one-dimensional, and lie in (0, 1)")
    return levels


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior:
    """Noise-aware posterior of a model's parameters, made by :func:`dpinfer.inference.noise_aware_posterior`.

    **Privacy.** Post-processing of a Release: it costs nothing and is as safe to publish as the release.

    Parameters
    ----------
    names : tuple of n str
        Names of the model's parameters.
    method : str
        That of the run, as :func:`dpinfer.fit` names it: "newton", "statistic", "dpvi" (any gradient trace), "sep".
    approximation : str
        How the release was asked: "exact", "laplace", "simulated", "naive", "averaged".
        `computed` describes the computation.
    hessian, prior : str
        Those of the request, with "auto" replaced; "none" where no Hessian is inferred.
    burn_in : int
        First step of the trace used; 0 without a trace.
    optimum_names : tuple of k str
        Names of the coordinates of a trace's optimum.
    optimum_mean, optimum_stddev : (k,) arrays
        Posterior of the optimum phi* of the noiseless problem (of theta* for aligned and tied posteriors).
    hessian_mean, hessian_stddev : (k,) or (k, k) arrays
        Posterior of the Hessian of the full-data loss, its diagonal unless ``hessian="full"``; empty when the method
        does not estimate it, nan for single coordinates.
    distribution : ThetaDistribution
        The posterior of theta on the unconstrained space.
    model : Model or None
        None if the release does not name its model: then the parameter space is taken as unconstrained and
        there are no predictions.
    guarantee : Guarantee
        The release's: a sentence with conversions to other terms, which names contents without a guarantee.
    diagnostics : PosteriorDiagnostics
        Fit of the trace to its model, mixing of the draws, and the reason of a fallback.
    units : Units, optional
        Of the estimator that scaled the columns: parameters, points and responses are then in the user's units, all
        but the unconstrained space, which is the scaled model's.

    Notes
    -----
    NA-DPVI (2025), eq. 23: the mixture of q(theta; phi*) over the posterior of phi*.
    """

    names: tuple[str, ...]
    method: str
    approximation: str = "exact"
    hessian: str = "none"
    prior: str
    burn_in: int = 0
    optimum_names: tuple[str, ...] = ()
    optimum_mean: FloatArray = field(default_factory=_nothing)
    optimum_stddev: FloatArray = field(default_factory=_nothing)
    hessian_mean: FloatArray = field(default_factory=_nothing)
    hessian_stddev: FloatArray = field(default_factory=_nothing)
    distribution: ThetaDistribution
    model: Model | None
    guarantee: Guarantee
    diagnostics: PosteriorDiagnostics = field(default_factory=PosteriorDiagnostics)
    units: Units | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.diagnostics, PosteriorDiagnostics):
            raise TypeError(f"diagnostics must be PosteriorDiagnostics, got {type(self.diagnostics).__name__}")
        for name in ("optimum_mean", "optimum_stddev", "hessian_mean", "hessian_stddev"):
            getattr(self, name).flags.writeable = False

    @property
    def safe_to_publish(self) -> bool:
        """Whether it may be published wherever the release may: always."""
        return True

    @property
    def computed(self) -> str:
        """How it was computed: "normal", "quadrature", "sampled", or "plug-in", which ignores the privacy noise.

        "normal": one normal law, in closed form.  "quadrature": integrals of exact densities, coordinate by coordinate.
        "sampled": a mixture of normal laws over draws, of the second moments of a private Newton run say.
        """
        if self.approximation in ("naive", "averaged"):
            return "plug-in"
        if isinstance(self.distribution, DrawnTheta):
            return "normal" if len(self.distribution.location) == 1 else "sampled"
        return "normal" if self.approximation == "laplace" else "quadrature"

    @property
    def n_params(self) -> int:
        """Number of model parameters n."""
        return len(self.names)

    @cached_property
    def _space(self) -> ParameterSpace:
        return ParameterSpace.of(self.model, self.n_params, self.units)

    _summary = cached_property(summarise)

    @cached_property
    def _mapped_draws(self) -> FloatArray:
        """Draws with a fixed seed, for coordinates that the model's map mixes."""
        return self.sample(_MAP_DRAWS, seed=_MAP_SEED)

    @cached_property
    def _errors(self) -> dict[bytes, MonteCarloError]:
        """Monte Carlo errors by levels, as they were asked for."""
        return {}

    @cached_property
    def _moments(self) -> tuple[FloatArray, FloatArray]:
        space, marginals = self._space, self.distribution.marginals
        mean, variance = marginals.mean.copy(), marginals.variance.copy()
        rows = space.rows[space.linear]
        mean[space.linear] = rows @ marginals.mean + space.shift[space.linear]
        variance[space.linear] = np.einsum("ki,ij,kj->k", rows, self.distribution.covariance, rows)
        for index in np.flatnonzero(~(space.identity | space.linear)):
            if space.elementwise[index]:
                weight, centre, spread = marginals.components(int(index))
                z, z_weight = gauss_hermite(_HERMITE_NODES if weight.size < _MANY else _FEWER_NODES)
                theta = centre[:, None] + np.sqrt(spread)[:, None] * z
                values = space.constrain_one(int(index), theta.ravel()).reshape(theta.shape)
                mean[index] = weight @ (values @ z_weight)
                variance[index] = weight @ ((values - mean[index]) ** 2 @ z_weight)
            else:
                mean[index] = self._mapped_draws[:, index].mean()
                variance[index] = self._mapped_draws[:, index].var()
        return mean, variance

    @property
    def mean(self) -> FloatArray:
        """Posterior mean in the model's own space, (n,).

        Exact if the map is linear, by quadrature if it acts on one coordinate, else from 16384 draws with a fixed seed.
        """
        return self._moments[0].copy()

    @property
    def stddev(self) -> FloatArray:
        """Posterior standard deviation in the model's own space, (n,); computed like `mean`."""
        return np.sqrt(self._moments[1])

    @property
    def cov(self) -> FloatArray:
        """Posterior covariance in the model's own space, (n, n).

        Exact where the map is linear or the coordinates are independent, else from 16384 draws with a fixed seed.
        """
        space = self._space
        if np.all(space.identity | space.linear):
            inner = self.distribution.covariance.copy()
            return np.asarray(space.rows @ inner @ space.rows.T) if np.any(space.linear) else inner
        if self.distribution.independent and np.all(self._space.elementwise):
            return np.diag(self._moments[1])
        return np.atleast_2d(np.cov(self._mapped_draws, rowvar=False))

    def quantile(self, q: npt.ArrayLike, *, space: str = "constrained") -> FloatArray:
        """Return posterior quantiles, (len(q), n), or (n,) for a number.

        By root finding on the exact distribution function of each marginal; coordinates that the map mixes (softmax,
        the intercept of scaled columns) come from 16384 draws with a fixed seed.

        Parameters
        ----------
        q : float or 1-d array in (0, 1)
        space : {"constrained", "unconstrained"}
        """
        levels, scalar = _levels(q), np.ndim(q) == 0
        check_choice("space", space, SPACES)
        result = self.distribution.marginals.quantile(levels)
        if space == "constrained" and not np.all(self._space.identity):
            upper: FloatArray | None = None
            for index in np.flatnonzero(~self._space.identity):
                column = int(index)
                if not self._space.elementwise[column]:
                    result[:, column] = np.quantile(self._mapped_draws[:, column], levels)
                elif self._space.increasing[column]:
                    result[:, column] = self._space.constrain_one(column, result[:, column])
                else:
                    upper = self.distribution.marginals.quantile(1.0 - levels) if upper is None else upper
                    result[:, column] = self._space.constrain_one(column, upper[:, column])
        return result[0] if scalar else result

    def interval(self, level: float = 0.9) -> FloatArray:
        """Return equal-tailed credible intervals of `level` in the model's own space, (2, n): lower and upper ends."""
        tail = 0.5 * (1.0 - check_interval("level", level, 0.0, 1.0))
        return self.quantile(np.array([tail, 1.0 - tail]))

    def monte_carlo_error(self, q: npt.ArrayLike = (0.05, 0.95)) -> MonteCarloError:
        """Return the Monte Carlo error of quantiles, `q` (m,), and of means: 0 unless the posterior rests on draws."""
        levels = _levels(q)
        key = levels.tobytes()
        if key not in self._errors:
            self._errors[key] = monte_carlo_error(self, levels)
        return self._errors[key]

    def mapped_draws(self, index: int) -> FloatArray | None:
        """Return the draws that represent one parameter in the model's own space, None if not needed."""
        return None if self._space.elementwise[index] else self._mapped_draws[:, index]

    def constrain(self, theta: FloatArray) -> FloatArray:
        """Map unconstrained parameters (..., n) to the model's space, in the user's units."""
        return self._space.constrain(theta)

    def constrain_one(self, index: int, values: FloatArray) -> FloatArray:
        """Map unconstrained values (m,) of one elementwise parameter to the model's space."""
        return self._space.constrain_one(index, values)

    def sample(
        self, n_samples: int, *, seed: int | np.random.Generator | None = None, space: str = "constrained"
    ) -> FloatArray:
        """Return independent draws from the posterior, (n_samples, n).

        **Privacy.** Post-processing of a Release; `seed` has nothing to do with the privacy noise.

        Parameters
        ----------
        n_samples : int
        seed : int, numpy Generator or None
        space : {"constrained", "unconstrained"}
        """
        size = check_integer("n_samples", n_samples, 1)
        check_choice("space", space, SPACES)
        theta = self.distribution.draw(size, np.random.default_rng(seed))
        return theta if space == "unconstrained" else self.constrain(theta)

    def decompose(self) -> VarianceDecomposition:
        """Split the variance of each parameter into its causes: on the unconstrained space, or in the user's units.

        The parts sum to the variance.  ``privacy`` is the part of the privacy noise when Hessian and noise level are
        known, for a private Newton run its whole part; ``prior`` is 0 if the model's prior is not normal, and for a
        noise variance.  NaN for the intercept of scaled columns where the posterior does not have them for several
        weights together.
        """
        parts, linear = self.distribution.variance_parts(), self._space.linear
        total, added = parts.data + parts.privacy + parts.approximation, parts.privacy + parts.approximation
        (records, noise, prior), known = causes(self), parts.privacy
        if self.units is not None:
            rows = np.where(linear[:, None], self._space.rows, np.eye(self.n_params))
            records, noise, prior = causes(self, rows)
            total = np.where(linear, self._moments[1], total)
            added, known = np.square(rows) @ added, np.square(rows) @ known
        direct = np.divide(known, added, out=np.ones_like(total), where=added > 0.0)
        return VarianceDecomposition(
            self.names, records * total, direct * noise * total, (1.0 - direct) * noise * total, prior * total
        )

    def predict_mean(self, X: npt.ArrayLike, *, n_draws: int = 2000) -> FloatArray:
        """Return E[y given x] under the posterior predictive, (n_points,).

        **Privacy.** Post-processing of a Release; `X` are the caller's own points.

        Raises ValueError if the release does not name its model, or the model has no linear predictor and is no
        network.

        Parameters
        ----------
        X : (n_points, n_features) array
        n_draws : int
            Posterior draws averaged over, with a fixed seed.  The Monte Carlo error is the standard deviation of
            E[y given theta, x] over the posterior, divided by sqrt(n_draws).  Not used for a network, whose mean is in
            closed form.
        """
        size = check_integer("n_draws", n_draws, 1)
        if isinstance(self.model, BayesianNeuralNetwork):
            return network_mean(self.model, X, self.optimum_mean, 1.0 / self.hessian_mean)
        model, theta = require_glm(self.model), self.sample(size, seed=_MAP_SEED, space="unconstrained")
        if self.units is None:
            return predictive_mean(model, X, theta)
        points = self.units.features(check_float_array("X", X, (None, model.n_features)))
        return self.units.means(predictive_mean(model, points, theta))

    def predict_proba(self, X: npt.ArrayLike, *, n_draws: int = 2000) -> FloatArray:
        """Return the posterior predictive P(y = 0) and P(y = 1) at x, (n_points, 2) as scikit-learn does.

        **Privacy.** Post-processing of a Release; `X` are the caller's own points.

        Raises ValueError if the model is no classifier, or unknown.

        Parameters
        ----------
        X : (n_points, n_features) array
        n_draws : int
            As for :meth:`predict_mean`; the Monte Carlo error is at most ``0.5 / sqrt(n_draws)``.
        """
        require_classifier(self.model)
        positive = self.predict_mean(X, n_draws=n_draws)
        return np.stack([1.0 - positive, positive], axis=1)

    def predict(self, X: npt.ArrayLike, *, n_draws: int = 2000) -> npt.NDArray[Any]:
        """Return the more probable label (0 or 1) of a classifier, the predictive mean of any other model.

        **Privacy.** Post-processing of a Release; `X` are the caller's own points.  Arguments are those of
        :meth:`predict_mean`.
        """
        mean = self.predict_mean(X, n_draws=n_draws)
        classifies = isinstance(self.model, GeneralizedLinearModel) and self.model.response == "binary"
        return (mean > 0.5).astype(np.int64) if classifies else mean

    def summary(self) -> PosteriorSummary:
        """Return a table of the parameters: mean, standard deviation, 5% and 95% quantiles, privacy share, flags."""
        return self._summary

    def to_arviz(
        self,
        *,
        n_samples: int = 1000,
        n_chains: int = 4,
        seed: int = 0,
        X: npt.ArrayLike | None = None,
        n_records: int | None = None,
    ) -> Any:
        """Return draws as ArviZ's InferenceData (ArviZ 0.x) or as a DataTree (1.x).

        Groups are ``posterior`` and, where the model's prior can be drawn from, ``prior``.  The weights of a regression
        are ``coef`` along ``feature``, the parameters of your own model its own arrays.  With `X`, or `n_records`, the
        groups ``posterior_predictive`` and ``prior_predictive`` have ``y`` along ``point``, and ``constant_data`` X.

        **Privacy.** Post-processing of a Release; `X` are the caller's own points.  The attributes ``guarantee`` and
        ``leaks`` of every group state the release's.  There is no observed data: the records are private.

        Raises TypeError or ValueError if the requested records cannot be drawn from the model. Raises
        BackendUnavailableError if ArviZ is not installed (the extra ``dpinfer[arviz]``).

        Parameters
        ----------
        n_samples : int
            Draws per chain; draws are independent, chains are there because diagnostics expect them.
        n_chains : int
        seed : int
        X : (n_points, n_features) array, optional
            Points for drawn responses of a regression.
        n_records : int, optional
            Records that are drawn, for a model of records without features.
        """
        from dpinfer.inference.posterior.arviz_export import to_arviz

        return to_arviz(self, n_samples=n_samples, n_chains=n_chains, seed=seed, X=X, n_records=n_records)

    def synthetic(
        self, X: npt.ArrayLike | None = None, *, n_records: int | None = None, n_sets: int = 100, seed: int = 0
    ) -> SyntheticSets:
        """Draw sets of synthetic records from the posterior predictive, each at one draw of the parameters.

        ``for X, y in sets`` gives each; ``sets.combine(estimates, variances)`` combines their analyses.

        **Privacy.** Post-processing of a Release: the sets are as safe to publish as the release, under its guarantee.
        `X` are the caller's own points: a regression does not model features, and the sets would publish those of
        private records.

        Raises TypeError or ValueError if the requested records cannot be drawn from the model.

        Parameters
        ----------
        X : (n_points, n_features) array, optional
            For a regression: the rows of every set, public or made up.  Many times as many as the private records.
        n_records : int, optional
            For a model of records without features: how many each set has.
        n_sets : int
            The number of sets m.
        seed : int

        Examples
        --------
        >>> import numpy as np, dpinfer as dpi
        >>> model = dpi.models.BetaBernoulli()
        >>> release = dpi.run_statistic(model, np.arange(500) % 2.0, epsilon=1.0, n_records=500)
        >>> sets = dpi.noise_aware_posterior(release).synthetic(n_records=5000, n_sets=50)
        >>> rates = np.array([records.mean() for records in sets])
        >>> low, high = sets.combine(rates, rates * (1 - rates) / 5000).interval(0.99)
        >>> bool(low[0] < 0.5 < high[0]), sets.guarantee.epsilon
        (True, 1.0)
        """
        points = check_points(self.model, X, n_records)
        size = check_integer("n_sets", n_sets, 1)
        rng = np.random.default_rng(check_integer("seed", seed, 0))
        theta = self.distribution.draw(size, rng)
        return SyntheticSets(
            points=None if isinstance(points, int) else points,
            responses=draw_records(self.model, theta, points, rng, self.units),
            response="y",
            parameters=self.constrain(theta),
            guarantee=self.guarantee,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the posterior to one file, for :func:`dpinfer.load_posterior`: whole, or not at all.

        **Privacy.** Post-processing of a Release; the file states its guarantee and contents without one.
        """
        from dpinfer.inference.posterior.archive import save_posterior

        save_posterior(self, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **{item.name: getattr(self, item.name) for item in fields(self)}), ()

    def __repr__(self) -> str:
        asked = "" if self.approximation == "exact" else f", {self.approximation!r}"
        kind = "" if self.hessian == "none" else f", {self.hessian} Hessian"
        kind = "" if self.computed == "plug-in" else f"{kind}, {self.prior} prior"
        steps = f", burn-in {self.burn_in} steps" if len(self.optimum_mean) else ""
        head = f"Posterior({self.n_params} parameters, {self.computed}, method {self.method!r}{asked}{kind}{steps})"
        return f"{head}\n  {self.guarantee}"

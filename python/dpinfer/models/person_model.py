"""Regressions with effects of persons: the marginal likelihood of all rows of a person, effects integrated out."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.models import tuning
from dpinfer.models.adapters.own_model import ModelCode, OwnModel, Words

PERSON_FAMILIES = ("gaussian", "binomial", "probit", "poisson", "negativebinomial")

MOST_ROWS = 500  # of a person: eight persons are in memory at once
_SCALES = {"gaussian": "sigma", "negativebinomial": "size"}
_NODES, _NODES_OF_PAIRS = 21, 9  # adaptive quadrature: 15 leave out at most 0.04 standard errors (tau = 1.8)
_PREDICTION_NODES = 31  # exact for polynomials up to degree 61


def _by_persons(*arguments: Any) -> Any:
    raise TypeError("a model of persons is computed for whole persons, by compiled code")


class PersonModel(OwnModel):
    """A regression y_j ~ p(x_j'w + z_j'b) for the rows j of a person, with b ~ N(0, covariance) of that person.

    The private run is that of a model written as code with a person in the place of a record: the score of the
    person's marginal likelihood is clipped, and centred by draws of whole persons (docs/derivations/people.md).

    Parameters are the weights, the intercept, the logarithm of the noise's standard deviation (gaussian) or of the size
    (negative binomial), and of the effects' covariance C, over the noise's variance for gaussian, the Cholesky factor
    of C + ridge I: the logarithms of its squared diagonal, and what is below it.  The likelihood is smooth in them
    where C = 0, and about normal.

    Parameters
    ----------
    family : {"gaussian", "binomial", "probit", "poisson", "negativebinomial"}
    columns : sequence of str
        Names of the columns of X; the intercept is the model's own.
    max_rows : int
        Of a person; further rows are left out.
    mean_rows : float
        Public: of an average person.
    slope : int
        The column whose weight varies between persons, -1 where the intercept alone does.
    prior_scale : float
        Of every weight.
    intercept_mean : float
        Prior mean of the intercept.
    features : (M, p) array, optional
        Public rows like the private ones; None for the model of a loaded release.
    """

    def __init__(
        self,
        family: str,
        columns: Sequence[str],
        *,
        max_rows: int,
        mean_rows: float,
        slope: int = -1,
        prior_scale: float = 2.5,
        intercept_mean: float = 0.0,
        features: FloatArray | None = None,
    ) -> None:
        self.family = check_choice("family", family, PERSON_FAMILIES)
        self.columns = tuple(columns)
        self.max_rows = check_integer("max_rows", max_rows, 1, MOST_ROWS)
        self.mean_rows = min(check_interval("mean_rows", mean_rows, 1.0, 1e6, low_open=False), float(self.max_rows))
        self.slope = check_integer("slope", slope, -1, len(self.columns) - 1)
        self.weight_scale = check_interval("prior_scale", prior_scale, 0.0)
        self.intercept_mean = float(intercept_mean)
        names, priors = [*self.columns, "intercept"], tuning.PRIORS
        weight = {"gaussian": 1.0, "binomial": priors.binary_weight, "probit": priors.probit_weight}.get(
            family, float(np.clip(math.exp(min(self.intercept_mean, 10.0)), *priors.count_weights))
        )
        self.ridge = 1.0 / (self.mean_rows * weight)
        means, scales = [0.0] * len(self.columns) + [self.intercept_mean], [self.weight_scale] * len(names)
        if family in _SCALES:
            names.append(_SCALES[family])
            mean, spread = priors.log_sigma if family == "gaussian" else priors.log_size
            means.append(mean)
            scales.append(spread)
        usual = math.log(priors.usual_variance + self.ridge)
        effects = ["sd of intercept"]
        if slope >= 0:
            effects += ["correlation", f"sd of {self.columns[slope]}"]
        names += effects
        means += [usual, 0.0, usual][: len(effects)]
        scales += [priors.variance_spread, math.exp(0.5 * usual), priors.variance_spread][: len(effects)]
        super().__init__(
            parameters=names,
            n_features=max(len(self.columns), 1),
            prior_mean=np.array(means),
            prior_scale=np.array(scales),
            response={"gaussian": "real", "binomial": "binary", "probit": "binary"}.get(family, "count"),
            name=f"{family} regression with effects of persons",
            code=None if features is None else ModelCode(_by_persons, None, _by_persons, 1, features),
        )
        self.fingerprint = f"{family}, {self.max_rows} rows"

    @property
    def n_coef(self) -> int:
        """Number of weights, the intercept among them."""
        return len(self.columns) + 1

    @property
    def n_effects(self) -> int:
        """Effects of a person: 1, or 2 with a slope."""
        return 1 if self.slope < 0 else 2

    @property
    def has_scale(self) -> bool:
        """Whether there is a noise's standard deviation or a size."""
        return self.family in _SCALES

    @property
    def first_effect(self) -> int:
        """Place of the first parameter of the effects' covariance."""
        return self.n_coef + int(self.has_scale)

    @property
    def n_nodes(self) -> int:
        """Nodes of the adaptive quadrature, for each effect."""
        return _NODES if self.n_effects == 1 else _NODES_OF_PAIRS

    def covariance(self, theta: npt.ArrayLike) -> FloatArray:
        """Return the effects' covariance (..., q, q), over the noise's variance for gaussian; perhaps not positive."""
        own = np.asarray(theta, dtype=np.float64)[..., self.first_effect :]
        if self.n_effects == 1:
            return np.asarray(np.exp(own[..., :1])[..., None] - self.ridge)
        found = np.empty((*own.shape[:-1], 2, 2))
        found[..., 0, 0] = np.exp(own[..., 0]) - self.ridge
        found[..., 0, 1] = found[..., 1, 0] = own[..., 1] * np.exp(0.5 * own[..., 0])
        found[..., 1, 1] = np.square(own[..., 1]) + np.exp(own[..., 2]) - self.ridge
        return found

    def from_covariance(self, covariance: FloatArray) -> FloatArray:
        """Return the parameters (..., 1 or 3) of covariances (..., q, q)."""
        if self.n_effects == 1:
            return np.asarray(np.log(covariance[..., 0] + self.ridge))
        a, b, c = covariance[..., 0, 0] + self.ridge, covariance[..., 0, 1], covariance[..., 1, 1] + self.ridge
        return np.stack([np.log(a), b / np.sqrt(a), np.log(c - b * b / a)], axis=-1)

    def held(self, theta: FloatArray) -> FloatArray:
        """Return theta (..., n) with the nearest covariance that is one, its parameters no more than 20 in size."""
        result = np.array(theta, dtype=np.float64)
        first = self.first_effect
        result[..., first:] = np.clip(result[..., first:], -20.0, 20.0)
        eigenvalues, eigenvectors = np.linalg.eigh(self.covariance(result))
        kept = (eigenvectors * np.maximum(eigenvalues, 0.0)[..., None, :]) @ np.swapaxes(eigenvectors, -1, -2)
        result[..., first:] = self.from_covariance(kept)
        return result

    def natural(self, theta: FloatArray) -> FloatArray:
        """Return weights, scale and covariance (0,0), (0,1), (1,1), as the kernel takes them, (n_coef + 4,)."""
        theta = self.held(theta)
        covariance = np.zeros((2, 2))
        covariance[: self.n_effects, : self.n_effects] = self.covariance(theta)
        scale = math.exp(min(max(float(theta[self.n_coef]), -30.0), 30.0)) if self.has_scale else 1.0
        return np.concatenate((theta[: self.n_coef], [scale], covariance[np.triu_indices(2)]))

    def jacobian(self, theta: FloatArray) -> FloatArray:
        """Return the derivative of (weights, log scale, covariance) in theta, (n, n)."""
        result = np.eye(self.n_params)
        at = self.first_effect
        own = self.held(theta)[at:]
        first = math.exp(own[0])
        result[at, at] = first
        if self.n_effects == 2:
            root = math.exp(0.5 * own[0])
            result[at + 1, at : at + 2] = [0.5 * own[1] * root, root]
            result[at + 2, at + 1 :] = [2.0 * own[1], math.exp(own[2])]
        return result

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map theta (..., n) to weights, scale, and the effects' standard deviations and correlation."""
        result = np.array(theta, dtype=np.float64)
        covariance = self.covariance(result)
        if self.has_scale:
            result[..., self.n_coef] = np.exp(result[..., self.n_coef])
        unit = result[..., self.n_coef] if self.family == "gaussian" else 1.0
        stddev = np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))
        at = self.first_effect
        result[..., at] = unit * stddev[..., 0]
        if self.n_effects == 2:
            product = np.maximum(stddev[..., 0] * stddev[..., 1], 1e-300)
            result[..., at + 1] = np.clip(covariance[..., 0, 1] / product, -1.0, 1.0)
            result[..., at + 2] = unit * stddev[..., 1]
        return result

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        result = np.array(params, dtype=np.float64)
        at = self.first_effect
        unit = result[..., self.n_coef].copy() if self.family == "gaussian" else np.ones(result.shape[:-1])
        if self.has_scale:
            result[..., self.n_coef] = np.log(result[..., self.n_coef])
        covariance = np.zeros((*result.shape[:-1], self.n_effects, self.n_effects))
        covariance[..., 0, 0] = np.square(result[..., at] / unit)
        if self.n_effects == 2:
            covariance[..., 1, 1] = np.square(result[..., at + 2] / unit)
            between = result[..., at + 1] * result[..., at] * result[..., at + 2] / unit**2
            covariance[..., 0, 1] = covariance[..., 1, 0] = between
        result[..., at:] = self.from_covariance(covariance)
        return result

    def made_up_features(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return public persons (size, 1 + max_rows p): the number of rows, then the rows.

        Numbers of rows are even between 1 and twice the mean.  Half of the persons have one row again and again, as
        what does not vary within persons; a run learns how far this is from its records by their own slope.
        """
        rows, p = np.asarray(self._code().features, dtype=np.float64), len(self.columns)
        most = min(self.max_rows, max(round(2.0 * self.mean_rows - 1.0), 1))
        least = 1 if most < self.max_rows else max(min(round(2.0 * self.mean_rows - most), most), 1)
        counts = rng.integers(least, most + 1, size)
        chosen = rng.integers(0, max(len(rows), 1), (size, self.max_rows))
        chosen[::2] = chosen[::2, :1]
        values = rows[chosen] if p else np.zeros((size, self.max_rows, 0))
        values[np.arange(self.max_rows) >= counts[:, None]] = 0.0
        return np.ascontiguousarray(np.column_stack((counts.astype(np.float64), values.reshape(size, -1))))

    def predict_mean(self, theta: npt.ArrayLike, X: npt.ArrayLike, *, conditional: bool = False) -> FloatArray:
        """Return E[y | x] for unconstrained theta (..., n) of a person who is not known, (..., n_points).

        `X` is (n_points, p).  `conditional`: of a person in the middle, whose effects are 0, instead of the mean over
        persons.
        """
        points = check_float_array("X", X, (None, self.n_features))
        values = self.held(np.asarray(theta, dtype=np.float64))
        eta = values[..., : self.n_coef - 1] @ points[:, : self.n_coef - 1].T + values[..., self.n_coef - 1, None]
        if self.family == "gaussian":
            return np.asarray(eta)
        covariance = self.covariance(values)
        variance = np.broadcast_to(covariance[..., 0, 0, None], eta.shape)
        if self.n_effects == 2:
            z = points[:, self.slope]
            variance = variance + 2.0 * covariance[..., 0, 1, None] * z + covariance[..., 1, 1, None] * z**2
        variance = np.zeros_like(eta) if conditional else np.maximum(variance, 0.0)
        if self.family == "probit":
            return np.asarray(special.ndtr(eta / np.sqrt(1.0 + variance)))
        if self.family != "binomial":
            return np.asarray(np.exp(np.minimum(eta + 0.5 * variance, 30.0)))
        nodes, weights = np.polynomial.hermite_e.hermegauss(_PREDICTION_NODES)
        spread = np.sqrt(variance)
        total = sum(weight * special.expit(eta + node * spread) for node, weight in zip(nodes, weights, strict=True))
        return np.asarray(total / weights.sum())

    def draw_responses(self, theta: FloatArray, features: FloatArray, words: Words) -> FloatArray:
        """Draw a response of an unknown person for each row of the caller's points (B, p), each of another person."""
        rng = np.random.default_rng(words.ravel())
        own = self.natural(theta)
        eta = np.asarray(features)[:, : self.n_coef - 1] @ own[: self.n_coef - 1] + own[self.n_coef - 1]
        effects = rng.multivariate_normal(np.zeros(2), own[-3:][[[0, 1], [1, 2]]], len(eta), check_valid="ignore")
        unit = own[self.n_coef] if self.family == "gaussian" else 1.0
        eta = eta + effects[:, 0] * unit
        if self.n_effects == 2:
            eta = eta + effects[:, 1] * unit * np.asarray(features)[:, self.slope]
        if self.family == "gaussian":
            return np.asarray(eta + own[self.n_coef] * rng.standard_normal(len(eta)))
        if self.response == "binary":
            mean = special.expit(eta) if self.family == "binomial" else special.ndtr(eta)
            return np.asarray(rng.random(len(eta)) < mean, dtype=np.float64)
        mean = np.exp(np.minimum(eta, 20.0))
        if self.has_scale:
            mean = mean * rng.gamma(own[self.n_coef], 1.0 / own[self.n_coef], len(eta))
        return np.asarray(rng.poisson(mean), dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values, less its public rows."""
        return {
            "kind": "PersonModel",
            "family": self.family,
            "columns": list(self.columns),
            "max_rows": self.max_rows,
            "mean_rows": self.mean_rows,
            "slope": self.slope,
            "prior_scale": self.weight_scale,
            "intercept_mean": self.intercept_mean,
        }

    def __repr__(self) -> str:
        return f"PersonModel({self.family}: {self.n_params} parameters, up to {self.max_rows} rows of a person)"

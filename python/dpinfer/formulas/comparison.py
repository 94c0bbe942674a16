"""Comparison of a regression with a smaller one, without some coefficients, from one posterior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray
from dpinfer.formulas.design import Design
from dpinfer.inference import Posterior
from dpinfer.inference.posterior.theta import DrawnTheta
from dpinfer.models import LinearRegression
from dpinfer.models.base import gauss_hermite, softplus

_BATCHES, _NODES = 8, 7  # of the error of a logarithm, each with a few draws at least; nodes for one normal factor
_UNRELIABLE = 0.5  # of a logarithm: beyond it batches differ so much that their error is not known either


@dataclass(frozen=True)
class ModelComparison:
    """Evidence of a release for some coefficients of a regression.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    without : tuple of str
        Those that are zero in the smaller model.
    log_bayes_factor : float
        Natural logarithm of the Bayes factor of the regression against the smaller one: Savage and Dickey's ratio of
        prior to posterior density at zero.
    stderr : float
        Its Monte Carlo standard error; infinite if zero is too far in the tail for the draws.
    wald : float
        Squared distance of the coefficients from zero, in posterior standard deviations.
    p_value : float
        Of `wald` as a chi-squared with a degree of freedom for each column.
    robust : bool
        Whether the posterior is that of the population's coefficients: both results then use robust covariances
        (HC-type), and hold whether or not the model is true.
    """

    without: tuple[str, ...]
    log_bayes_factor: float
    stderr: float
    wald: float
    p_value: float
    robust: bool = False

    def __str__(self) -> str:
        columns = ", ".join(self.without)
        factor = f"{self.log_bayes_factor:.3g} +- {self.stderr:.2g}"
        if not math.isfinite(self.stderr):
            size = f"{self.log_bayes_factor:.2g}"
            factor = f"about {size}, far in the tail: its sign and size are sure, its digits are not"
        return (
            f"with against without {columns}\n"
            f"log Bayes factor  {factor}\n"
            f"Wald              {self.wald:.4g} on {len(self.without)}, p = {self.p_value:.2g}\n"
            "The Bayes factor depends on the prior's scale; both results are based on the noisy release"
            f"{' and on robust covariances (HC-type)' if self.robust else ''}."
        )

    __repr__ = __str__


def compare_without(design: Design, posterior: Posterior, weights: tuple[int, ...]) -> ModelComparison:
    """Compare a regression with one without the coefficients at these places.

    Dickey (1971): where the other parameters have the same prior in both models, the Bayes factor of the smaller is the
    posterior density over the prior density at zero.  In a linear regression the prior of the weights depends on the
    noise variance, and the correction of Verdinelli and Wasserman (1995) is an average over its posterior given zero.
    The posterior density is that of the posterior's mixture of normals, or of the normal distribution with its moments.
    """
    matrix, shift = design.user_units()
    rows, at = np.pad(matrix[list(weights)], ((0, 0), (0, posterior.mean.size - len(matrix)))), shift[list(weights)]
    mean, cov = rows @ posterior.mean + at, rows @ posterior.cov @ rows.T
    wald = float(mean @ np.linalg.solve(cov, mean))
    log_densities, rho, spread = _components(posterior, rows, at)
    k = len(weights)
    # The prior of these coefficients: normal, with this covariance, times sigma**2 in a linear regression.
    prior = design.prior_scale**2 * rows @ rows.T
    constant = 0.5 * (float(np.linalg.slogdet(prior)[1]) + k * math.log(2.0 * math.pi))
    away = 0.5 * float(at @ np.linalg.solve(prior, at))
    if isinstance(design.model, LinearRegression):
        # Average of the inverse prior density, a function of sigma**2 = softplus(rho).
        nodes, masses = gauss_hermite(_NODES)
        variance = softplus(rho[:, None] + spread[:, None] * nodes)
        log_inverse = 0.5 * k * np.log(variance) + away / variance
        log_densities = log_densities + special.logsumexp(log_inverse, b=masses, axis=1)
    else:
        constant += away
    values = special.logsumexp(log_densities) - math.log(len(log_densities))
    return ModelComparison(
        tuple(design.model.names[index] for index in weights),
        -float(values) - constant,
        _batch_error(log_densities),
        wald,
        float(special.gammaincc(0.5 * k, 0.5 * wald)),
    )


def _components(posterior: Posterior, rows: FloatArray, shift: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return each component's log density at zero of combinations of its parameters, and the last one's normal law."""
    distribution = posterior.distribution
    if isinstance(distribution, DrawnTheta) and distribution.q_factor is not None:
        location = distribution.location
        roots = np.linalg.inv(distribution.q_factor) @ rows.T
        covariance = np.swapaxes(roots, 1, 2) @ roots
        last = distribution.location[:, -1], 1.0 / np.abs(distribution.q_factor[:, -1, -1])
    else:
        location, covariance = posterior.mean[None], (rows @ posterior.cov @ rows.T)[None]
        marginals = posterior.distribution.marginals
        last = marginals.mean[-1:], np.sqrt(marginals.variance[-1:])
    location = location @ rows.T + shift
    solved = np.linalg.solve(covariance, location[..., None])[..., 0]
    distance = np.sum(location * solved, axis=1)
    _, size = np.linalg.slogdet(covariance)
    return -0.5 * (distance + size + len(shift) * math.log(2.0 * math.pi)), *last


def _batch_error(log_values: FloatArray) -> float:
    """Return the standard error of the logarithm of a mean, from batches; infinite if they differ too much."""
    if len(log_values) < 2 * _BATCHES:
        return 0.0
    batches = np.array_split(log_values, _BATCHES)
    means = np.array([special.logsumexp(batch) - math.log(len(batch)) for batch in batches])
    ratios = np.exp(means - means.max())
    error = float(ratios.std(ddof=1) / math.sqrt(_BATCHES) / ratios.mean())
    return error if error < _UNRELIABLE else math.inf


def chosen_weights(design: Design, without: Any) -> tuple[int, ...]:
    """Return the indices of the coefficients of terms or names."""
    names = design.model.names
    chosen: set[int] = set()
    for name in _terms(without):
        term = frozenset(name.replace(" ", "").split(":"))
        places = {
            place
            for place, index in enumerate(design.column_of_weight.tolist())
            if index >= 0 and (names[place] == name or _is_term(design, index, name, term))
        }
        if not places:
            listed = ", ".join(names[place] for place in np.flatnonzero(design.column_of_weight >= 0))
            raise ValueError(f"without must name terms or coefficients ({listed}), got {name!r}")
        chosen |= places
    if not chosen:
        raise ValueError("without must name at least one term or coefficient")
    return tuple(sorted(chosen))


def _is_term(design: Design, index: int, name: str, term: frozenset[str]) -> bool:
    column = design.columns[index]
    return column.name == name or frozenset(text.replace(" ", "") for text in column.term) == term


def _terms(without: Any) -> tuple[str, ...]:
    """Return names of terms as a tuple; for another fit the error explains the comparison."""
    if isinstance(without, str):
        return (without,)
    if isinstance(without, Sequence) and all(isinstance(name, str) for name in without):
        return tuple(without)
    hint = ""
    if hasattr(without, "release"):
        hint = (
            ": two fits cannot be compared from their releases, which do not hold the models' likelihoods; fit the "
            "larger model, and name the terms that the smaller one does without: fit.compare(without='C(job)')"
        )
    raise TypeError(f"without must be terms or names of coefficients, got {type(without).__name__}{hint}")

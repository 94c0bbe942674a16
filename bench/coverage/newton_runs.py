"""Simulated private Newton runs side by side: what the coverage tables of newton_glm and newton_scope share."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

FloatArray = npt.NDArray[np.float64]

LEVELS = np.array([0.05, 0.95])
NORMAL_WIDTH = 3.2897


@dataclass(frozen=True)
class CellResult:
    """Coverage and width over runs.

    Parameters
    ----------
    covered : (R, d) bool array
        Whether the 90% interval of a weight holds the truth.
    width : (R, d) array
        Relative to the posterior without privacy at the true noise variance.
    variance_covered : (R,) bool array
    variance_width : (R,) array
        Width of log variance relative to that without privacy.
    z : (R, d) array
        (posterior mean - truth) / posterior standard deviation.
    monte_carlo : (R,) array
        Largest Monte Carlo error of a quantile, in posterior standard deviations.
    seconds : (R,) array
        CPU time of a posterior.
    """

    covered: FloatArray
    width: FloatArray
    variance_covered: FloatArray
    variance_width: FloatArray
    z: FloatArray
    monte_carlo: FloatArray
    seconds: FloatArray

    @property
    def coverage(self) -> tuple[float, float]:
        """Pooled coverage and its Monte Carlo error (runs are the independent units)."""
        by_run = self.covered.mean(axis=1)
        return float(by_run.mean()), float(by_run.std(ddof=1) / np.sqrt(by_run.size))

    def __str__(self) -> str:
        mean, error = self.coverage
        return (
            f"covered {mean:.3f} +- {error:.3f}  width {np.median(self.width):5.2f} (mean {self.width.mean():5.2f})  "
            f"rms z {np.sqrt(np.mean(self.z**2)):.2f} | variance {self.variance_covered.mean():.2f} "
            f"width {np.median(self.variance_width):5.2f} | MCSE {np.median(self.monte_carlo):.3f}, at "
            f"most {self.monte_carlo.max():.3f} | {np.median(self.seconds):.2f} s, at most {self.seconds.max():.2f}"
        )


@dataclass(frozen=True)
class CellSettings:
    """What the runs of a cell have in common."""

    epsilon: float
    prior_scale: float = 2.0
    intercept: bool = True
    noise_variance: float | None = None
    response_error: float | None = None
    feature_scale: float = 1.0
    records_error: float = 1.0


def run_cell(
    make: Callable[[np.random.Generator], FloatArray], settings: CellSettings, runs: int, seed: int
) -> CellResult:
    """Simulate runs with weights from the prior, and return how their posteriors do.

    Parameters
    ----------
    make : callable
        Returns features (N, p) for one run.
    settings : CellSettings
        A noise variance of None is log-uniform on (0.02, 10), a response error of None log-uniform within a factor 10.
    runs, seed : int
    """
    rng = np.random.default_rng(seed)
    releases, truths, variances, widths = [], [], [], []
    plan = None
    for index in range(runs):
        features = make(rng)
        design = np.hstack((features, np.ones((len(features), 1)))) if settings.intercept else features
        variance = settings.noise_variance or float(np.exp(rng.uniform(np.log(0.02), np.log(10.0))))
        truth = rng.normal(size=design.shape[1]) * settings.prior_scale * np.sqrt(variance)
        response = design @ truth + np.sqrt(variance) * rng.normal(size=len(design))
        wrong = settings.response_error or float(10.0 ** rng.uniform(-1.0, 1.0))
        model = dpi.models.LinearRegression(
            features.shape[1],
            prior_scale=settings.prior_scale,
            fit_intercept=settings.intercept,
            feature_scale=settings.feature_scale,
        )
        n_records = round(len(features) * settings.records_error)
        plan = plan or dpi.plan_newton(model, target_epsilon=settings.epsilon, target_delta=1e-5, n_records=n_records)
        release = dpi.run_newton(
            model, features, response, plan=plan, n_records=n_records,
            response_scale=float(np.sqrt(np.mean(response**2))) * wrong, random_source=InsecureRNG(1000 * seed + index),
        )  # fmt: skip
        precision = design.T @ design + np.eye(design.shape[1]) / settings.prior_scale**2
        releases.append(release)
        truths.append(np.append(truth, variance))
        variances.append(NORMAL_WIDTH * np.sqrt(2.0 / len(features)))
        widths.append(NORMAL_WIDTH * np.sqrt(variance * np.diag(np.linalg.inv(precision))))
    return evaluate(releases, model, np.array(truths), np.array(widths), np.array(variances))


def evaluate(
    releases: list[dpi.NewtonRelease], model: dpi.models.LinearRegression, truths: FloatArray, widths: FloatArray,
    variances: FloatArray,
) -> CellResult:  # fmt: skip
    """Return how the posteriors of runs do: truths (R, d + 1) with the noise variance last, widths without privacy."""
    ends, centres, errors, seconds = [], [], [], []
    for release, truth in zip(releases, truths, strict=True):
        begun = time.process_time()
        posterior = dpi.noise_aware_posterior(release, model=model, check_convergence=False)
        seconds.append(time.process_time() - begun)
        ends.append(posterior.quantile(LEVELS))
        centres.append((posterior.mean[:-1] - truth[:-1]) / posterior.stddev[:-1])
        errors.append(float(np.max(posterior.diagnostics.mcse)))
    low, high = np.array(ends)[:, 0], np.array(ends)[:, 1]
    covered = (low < truths) & (truths < high)
    return CellResult(
        covered=covered[:, :-1],
        width=(high - low)[:, :-1] / widths,
        variance_covered=covered[:, -1],
        variance_width=np.log(high[:, -1] / low[:, -1]) / variances,
        z=np.array(centres),
        monte_carlo=np.array(errors),
        seconds=np.array(seconds),
    )


def autoregressive(n_records: int, n_features: int, correlation: float) -> Callable[[np.random.Generator], FloatArray]:
    """Return a maker of normal features with AR(1) correlation."""
    distance = np.abs(np.subtract.outer(np.arange(n_features), np.arange(n_features)))
    factor = np.linalg.cholesky(correlation**distance) if correlation else np.eye(n_features)
    return lambda rng: rng.normal(size=(n_records, n_features)) @ factor.T

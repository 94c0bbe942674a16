"""How wide the posterior of the population's coefficients will be, from public numbers: no records are read."""

import math

import numpy as np
import numpy.typing as npt

from dpinfer.mechanism.newton import NewtonPlan
from dpinfer.models import GeneralizedLinearModel, LinearRegression
from dpinfer.models.size_shares import SIZE_EDGES, SizeShares, clips_of, combined

__all__ = ["predict_population"]

FloatArray = npt.NDArray[np.float64]

_REFERENCE_RECORDS = 20_000  # simulated moments err by 1 / sqrt(20 000), 0.7%
_DRAWS = 16  # draws of the noise: the plan's time is proportional to them
_LEAST = 0.05  # eigenvalue of a bread of the identity and its noise
_SEED = 20_261_123  # a date


def predict_population(
    model: GeneralizedLinearModel, plan: NewtonPlan, n_records: int, *, predictor_spread: float = 1.0
) -> FloatArray:
    """Return by which factor privacy widens the interval of every coefficient, (n_coef,), where the model is true.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : GeneralizedLinearModel
    plan : NewtonPlan
        Of target "population".
    n_records : int
        Public.
    predictor_spread : float
        Root mean square of the linear predictor of a logistic or Poisson regression.

    Returns
    -------
    (n_coef,) array
        Relative to the robust interval without privacy; for features with the model's public moments.

    Notes
    -----
    docs/derivations/population.md: the run's own bounds and noise, at simulated records.
    """
    rng = np.random.default_rng(_SEED)
    design = model.reference_design(_REFERENCE_RECORDS, rng)
    residual, slope = _records(model, design, predictor_spread, rng)
    d = model.n_coef
    root = np.linalg.inv(np.linalg.cholesky((design * slope[:, None]).T @ design / len(design)))
    z = design @ root.T
    length = np.linalg.norm(z, axis=1)
    noise = {phase: [plan.noise_multipliers[k] / n_records for k in plan.indices(phase)] for phase in set(plan.phases)}
    lengths = _shares(np.sqrt(slope) * length / math.sqrt(d), noise["lengths"][0])
    (bread,) = noise["bread"]
    reach = lengths.best_bound(lambda a: bread * a**2 * d * math.sqrt(2.0 * d) + lengths.lost_square(a))
    sizes = _shares(np.abs(residual) * length / math.sqrt(d), noise["sizes"][0])
    share, measured = clips_of(len(noise["measure"])), np.array(noise["measure"])

    def error(clip: float) -> float:
        return combined(np.diag(np.square(measured * share * clip) * d) + sizes.clip_covariance(share * clip))[1]

    added = error(sizes.best_bound(error))
    sampling = (z * np.square(residual)[:, None]).T @ z / len(z) / n_records
    matrices = np.eye(d) + _symmetric(rng, d, bread * d * reach**2)
    values, vectors = np.linalg.eigh(matrices)
    inverse = (vectors / np.maximum(values, _LEAST)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    private = (inverse @ (sampling + added * np.eye(d)) @ inverse).mean(axis=0)
    prior = root @ root.T / model.prior_scale**2
    widths = [np.diag(root.T @ np.linalg.inv(np.linalg.inv(found) + prior) @ root) for found in (private, sampling)]
    return np.asarray(np.sqrt(widths[0] / widths[1]))


def _records(
    model: GeneralizedLinearModel, design: FloatArray, spread: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return residuals of responses that the model draws, of unit variance for a linear one, and the means' slopes."""
    if isinstance(model, LinearRegression):
        return rng.normal(size=len(design)), np.ones(len(design))
    weights = rng.normal(size=model.n_coef)
    eta = design @ weights
    weights *= spread / max(math.sqrt(float(np.mean(np.square(eta)))), 1e-300)
    eta = design @ weights
    mean = np.asarray(model.inverse_link(eta), dtype=np.float64)
    slope = mean * (1.0 - mean) if model.response == "binary" else mean
    return model.draw_response(eta, weights, rng) - mean, slope


def _shares(sizes: FloatArray, stddev: float) -> SizeShares:
    exact = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0] / sizes.size
    return SizeShares(exact, stddev)


def _symmetric(rng: np.random.Generator, d: int, stddev: float) -> FloatArray:
    noise = rng.normal(scale=0.5 * stddev, size=(_DRAWS, d, d))
    return noise + np.swapaxes(noise, 1, 2)

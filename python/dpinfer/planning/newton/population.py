"""How wide the posterior of the population's coefficients will be, from public numbers: no records are read."""

import math

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton import NewtonPlan
from dpinfer.mechanism.newton.own_bounds import symmetric_inverse_root
from dpinfer.mechanism.newton.own_joint import OwnCurvatures
from dpinfer.models import GeneralizedLinearModel, LinearRegression, OwnModel
from dpinfer.models.size_shares import SIZE_EDGES, SizeShares, clips_of, combined

_REFERENCE_RECORDS = 20_000  # simulated moments err by 1 / sqrt(20 000), 0.7%
_POINTS, _OWN_RECORDS = 8, 2000  # the plan's time is proportional to them
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
        Root mean square of the linear predictor of a logistic, probit or Poisson regression.

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
    root = np.linalg.inv(np.linalg.cholesky((design * slope[:, None]).T @ design / len(design)))
    z = design @ root.T
    lengths = np.sqrt(slope) * np.linalg.norm(z, axis=1)
    scale = np.full(model.n_coef, model.prior_scale)
    return _widths(
        z * residual[:, None], lengths, root, scale, plan, n_records, likely=not isinstance(model, LinearRegression)
    )


def predict_own_population(model: OwnModel, plan: NewtonPlan, n_records: int) -> FloatArray:
    """Return by which factor privacy widens the interval of every parameter, (n,), before the maps.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    plan : NewtonPlan
        Of target "population".
    n_records : int
        Public.

    Returns
    -------
    (n,) array
        Medians over parameters that the prior draws, with made-up features and the model's own responses.

    Raises
    ------
    Exception
        Whatever the model's code raises on made-up records.
    """
    rng = np.random.default_rng(_SEED)
    prior, found = model.parameters, []
    for _ in range(_POINTS):
        theta = prior.prior_mean + prior.prior_scale * rng.standard_normal(model.n_params)
        X = model.made_up_features(_OWN_RECORDS, rng)
        y = model.draw_responses(theta, X, rng.integers(0, 2**64, (len(X), model.n_words), dtype=np.uint64))
        scores = model.scores(X, y, theta)
        white = symmetric_inverse_root(scores.T @ scores * np.outer(prior.prior_scale, prior.prior_scale) / len(X))
        root = white * prior.prior_scale
        lengths = np.sqrt(np.linalg.norm(OwnCurvatures(model, theta, root, 1.0).of_records(X, y), axis=1))
        found.append(_widths(scores @ root.T, lengths, root, prior.prior_scale, plan, n_records, likely=True))
    return np.asarray(np.median(found, axis=0))


def _widths(
    scores: FloatArray,
    lengths: FloatArray,
    root: FloatArray,
    prior_scale: FloatArray,
    plan: NewtonPlan,
    n_records: int,
    *,
    likely: bool,
) -> FloatArray:
    """Return the widening for records with these scores, in coordinates `root` that whiten the bread, (d,)."""
    rng, d = np.random.default_rng(_SEED), len(root)
    noise = {phase: [plan.noise_multipliers[k] / n_records for k in plan.indices(phase)] for phase in set(plan.phases)}
    long = _shares(lengths / math.sqrt(d), noise["lengths"][0])
    (bread,) = noise["bread"]
    reach = long.best_bound(lambda a: bread * a**2 * d * math.sqrt(2.0 * d) + long.lost_square(a))
    sizes = _shares(np.linalg.norm(scores, axis=1) / math.sqrt(d), noise["sizes"][0], likely=likely)
    share, measured = clips_of(len(noise["measure"])), np.array(noise["measure"])

    def error(clip: float) -> float:
        return combined(np.diag(np.square(measured * share * clip) * d) + sizes.clip_covariance(share * clip))[1]

    added = error(sizes.best_bound(error))
    sampling = scores.T @ scores / len(scores) / n_records
    matrices = np.eye(d) + _symmetric(rng, d, bread * d * reach**2)
    values, vectors = np.linalg.eigh(matrices)
    inverse = (vectors / np.maximum(values, _LEAST)[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    private = (inverse @ (sampling + added * np.eye(d)) @ inverse).mean(axis=0)
    prior = (root / np.square(prior_scale)) @ root.T
    widths = [np.diag(root.T @ np.linalg.inv(np.linalg.inv(found) + prior) @ root) for found in (private, sampling)]
    return np.asarray(np.sqrt(widths[0] / widths[1]))


def _records(
    model: GeneralizedLinearModel, design: FloatArray, spread: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return minus the derivatives of log-likelihoods in the predictor, both, of responses that the model draws."""
    if isinstance(model, LinearRegression):
        return rng.normal(size=len(design)), np.ones(len(design))
    weights = rng.normal(size=model.n_coef)
    if model.response_mean is not None and model.fit_intercept:
        weights[-1] = 0.0  # what the constant says is public
    eta = design @ weights
    weights *= spread / max(math.sqrt(float(np.mean(np.square(eta)))), 1e-300)
    eta = design @ weights + model.usual_predictor(spread)
    return model.loss_slopes(eta, model.draw_response(eta, weights, rng), weights)


def _shares(sizes: FloatArray, stddev: float, *, likely: bool = False) -> SizeShares:
    exact = np.histogram(sizes, [0.0, *SIZE_EDGES, np.inf])[0] / sizes.size
    # A run knows what its model makes likely where there is a law of responses without a scale.
    return SizeShares(exact, stddev, exact if likely else None)


def _symmetric(rng: np.random.Generator, d: int, stddev: float) -> FloatArray:
    noise = rng.normal(scale=0.5 * stddev, size=(_DRAWS, d, d))
    return noise + np.swapaxes(noise, 1, 2)

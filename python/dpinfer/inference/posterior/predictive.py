"""Posterior predictive means and draws: responses at the caller's points, or whole records, a set for each draw."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer
from dpinfer.inference.posterior.units import Units
from dpinfer.models import (
    BayesianNeuralNetwork,
    ConjugateModel,
    GaussianMixture,
    GeneralizedLinearModel,
    Model,
    NetworkWeights,
    OwnModel,
)

CHUNK_CELLS = 2_000_000  # of an intermediate array, 16 MB


def require_glm(model: Model | None) -> GeneralizedLinearModel:
    """Return the model if it can predict.

    Raises ValueError if it is unknown or has no linear predictor.
    """
    if model is None:
        raise ValueError(
            "predictions need a model, but the release does not name one: pass model=... to noise_aware_posterior"
        )
    if not isinstance(model, GeneralizedLinearModel):
        raise ValueError(f"predictions need a generalised linear model, got {type(model).__name__}")
    return model


def require_classifier(model: Model | None) -> GeneralizedLinearModel:
    """Return the model if it predicts probabilities of 0 and 1.

    Raises ValueError if it does not.
    """
    glm = require_glm(model)
    if glm.response != "binary":
        raise ValueError(f"predict_proba needs a classifier, got {type(glm).__name__}; use predict_mean")
    return glm


def predictive_mean(
    model: GeneralizedLinearModel,
    X: npt.ArrayLike,  # (n_points, n_features)
    theta: FloatArray,  # (draws, n): unconstrained parameters
) -> FloatArray:  # (n_points,)
    """Average E[y | theta, x] over draws of theta, in chunks of bounded memory.

    **Privacy.** Post-processing; `X` are the caller's own points.
    """
    points = check_float_array("X", X, (None, model.n_features))
    result = np.empty(points.shape[0])
    chunk = max(1, CHUNK_CELLS // theta.shape[0])
    for first in range(0, points.shape[0], chunk):
        part = slice(first, first + chunk)
        result[part] = model.predict_mean(theta, points[part]).mean(axis=0)
    return result


def network_mean(model: BayesianNeuralNetwork, X: npt.ArrayLike, loc: FloatArray, variance: FloatArray) -> FloatArray:
    """Return E[y given x], (n_points,), of a network whose weights are independent normals, exactly.

    **Privacy.** Post-processing; `X` (n_points, n_features) are the caller's own points.
    """
    return NetworkWeights(model, loc, variance, 1.0).predict(X)[0]


def has_predictive(model: Model | None) -> bool:
    """Return whether records can be drawn from the model."""
    if isinstance(model, OwnModel):
        return model.has_sampler
    return isinstance(model, (GeneralizedLinearModel, ConjugateModel, GaussianMixture))


def check_points(model: Model | None, X: npt.ArrayLike | None, n_records: int | None) -> FloatArray | int:
    """Return the points at which responses are drawn, or how many records are drawn.

    Raises TypeError or ValueError if no records can be drawn from the model, or it needs the other one of the two.
    """
    if model is None:
        raise ValueError("model must be known to draw records: pass model=... to noise_aware_posterior")
    if isinstance(model, OwnModel) and not model.has_sampler:
        raise ValueError("model must have a sampler to draw records: pass the one that was fitted to the posterior")
    if not has_predictive(model):
        raise TypeError(f"records cannot be drawn from a {type(model).__name__}")
    if isinstance(model, (GeneralizedLinearModel, OwnModel)):
        if X is None:
            raise ValueError(
                "X must be given: the model describes responses given features, and not the features; "
                "use rows that are public or of your own choice"
            )
        points = check_float_array("X", X, (None, model.n_features))
        if n_records is not None or not len(points):
            raise ValueError("X must hold the rows of every set, at least one, and n_records must not be given with it")
        return points
    if X is not None or n_records is None:
        raise ValueError(
            f"n_records must be given for a {type(model).__name__}, and no X: its records have no features"
        )
    return check_integer("n_records", n_records, 1)


def draw_records(
    model: Model | None,  # for which :func:`check_points` gave `points`
    theta: FloatArray,  # (S, n): unconstrained
    points: FloatArray | int,  # (P, n_features), or int
    rng: np.random.Generator,
    units: Units | None = None,  # of points and responses, if they are not the model's
) -> FloatArray:  # (S, P) responses, or records that are numbers; (S, P, n_features) for a mixture
    """Draw one set of records from each row of theta.

    **Privacy.** Post-processing; `points` are the caller's own.
    """
    sets: list[FloatArray] = []
    if units is not None and not isinstance(points, int):
        points = units.features(points)
    for row in theta:
        if isinstance(model, GeneralizedLinearModel) and not isinstance(points, int):
            # Draws may be extreme: if no response can be drawn, the nearest possible one is used.
            eta = np.minimum(model.linear_predictor(row, points), model.largest_predictor)
            sets.append(model.draw_response(eta, model.constrain(row), rng))
        elif isinstance(model, OwnModel) and not isinstance(points, int):
            words = rng.integers(0, 2**64, (len(points), model.n_words), dtype=np.uint64)
            sets.append(model.draw_responses(row, points, words))
        elif isinstance(model, (ConjugateModel, GaussianMixture)) and isinstance(points, int):
            sets.append(model.simulate(model.constrain(row), points, rng))
    return np.array(sets) if units is None else units.outcomes(np.array(sets))

"""Posterior predictive means of generalised linear models."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array
from dpinfer.models import BayesianNeuralNetwork, GeneralizedLinearModel, Model, NetworkWeights

_CHUNK_CELLS = 2_000_000  # of an intermediate array, 16 MB


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


def predictive_mean(model: GeneralizedLinearModel, X: npt.ArrayLike, theta: FloatArray) -> FloatArray:
    """Average E[y | theta, x] over draws of theta, in chunks of bounded memory.

    **Privacy.** Post-processing; `X` are the caller's own points.

    Parameters
    ----------
    X : (n_points, n_features) array
    theta : (draws, n) array
        Unconstrained parameters.

    Returns
    -------
    (n_points,) array
    """
    points = check_float_array("X", X, (None, model.n_features))
    result = np.empty(points.shape[0])
    chunk = max(1, _CHUNK_CELLS // theta.shape[0])
    for first in range(0, points.shape[0], chunk):
        part = slice(first, first + chunk)
        result[part] = model.predict_mean(theta, points[part]).mean(axis=0)
    return result


def network_mean(model: BayesianNeuralNetwork, X: npt.ArrayLike, loc: FloatArray, variance: FloatArray) -> FloatArray:
    """Return E[y given x] of a network whose weights are independent normals, exactly.

    **Privacy.** Post-processing; `X` are the caller's own points.

    Parameters
    ----------
    X : (n_points, n_features) array
    loc, variance : (n,) arrays

    Returns
    -------
    (n_points,) array
    """
    return NetworkWeights(model, loc, variance, 1.0).predict(X)[0]

"""The features of a plan: a public pilot data set, or the model's declared moments."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array
from dpinfer.models import ConjugateModel, Model

PILOT_RECORDS = 1000  # simulated moments err by 1 / sqrt(1000), 3%
_SEED = 20_261_121  # a date


def pilot_design(model: Model, pilot: npt.ArrayLike | None) -> FloatArray | None:
    """Return the pilot's first thousand rows, the intercept's column included.

    **Privacy.** The pilot must be public.

    Raises TypeError or ValueError if the pilot does not fit the model.

    Parameters
    ----------
    pilot : (m, n_features) array, optional
        Without it normal features with the model's `feature_moments`, if it has any.

    Returns
    -------
    (m, n) array or None
    """
    moments = getattr(model, "feature_moments", None)
    if pilot is None and moments is None:
        return None
    if isinstance(model, ConjugateModel):
        raise ValueError("pilot must not be given with a conjugate model: it has no features")
    if pilot is None:
        matrix = np.array(moments, dtype=np.float64)
        mean = matrix[-1, :-1]
        values, vectors = np.linalg.eigh(matrix[:-1, :-1] - np.outer(mean, mean))
        noise = np.random.default_rng(_SEED).standard_normal((PILOT_RECORDS, mean.size))
        features = mean + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    else:
        width: int = model.n_features  # type: ignore[attr-defined]
        features = check_float_array("pilot", pilot, (None, width))
        if features.shape[0] < 2:
            raise ValueError(f"pilot must have at least 2 rows, got {features.shape[0]}")
        features = features[:PILOT_RECORDS]
    if getattr(model, "fit_intercept", False):
        features = np.column_stack((features, np.ones(features.shape[0])))
    return np.asarray(features)

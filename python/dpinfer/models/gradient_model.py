"""Models given by the gradient of a record's loss, computed by the caller's own code."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.models.base import NormalPriorModel
from dpinfer.models.glm import GeneralizedLinearModel

_CHECKED_ROWS = 33  # odd, so that parts have different sizes: time


class GradientModel(NormalPriorModel):
    """Base of models whose gradients are NumPy code of yours, with N(0, prior_scale**2) priors on all parameters.

    A subclass has `names`, `n_features`, `prior_scale`, :meth:`record_gradients` and :meth:`to_dict`; give it to
    :func:`dpinfer.models.register_model` to load its releases.  :func:`dpinfer.run_dpvi` takes expectations by draws.

    **Privacy.** Public; holds no records.  The mechanism clips and rounds the results of :meth:`record_gradients`, so
    that they cannot increase the sensitivity. The code must not mix records, or keep them.

    Attributes
    ----------
    n_features : int
        Number of columns of X.
    record_form : {"regression", "points"}
        Whether there is a response.

    Examples
    --------
    >>> class Median(GradientModel):
    ...     "Logistic location model of each column."
    ...     record_form, n_features, prior_scale, names = "points", 2, 10.0, ("first", "second")
    ...
    ...     def record_gradients(self, features, response, theta):
    ...         return np.tanh(0.5 * (theta - features))
    ...
    ...     def to_dict(self):
    ...         return {"kind": "Median"}
    >>> import dpinfer as dpi
    >>> X = np.random.default_rng(1).normal(3.0, 1.0, size=(400, 2))
    >>> plan = dpi.plan_privacy(target_epsilon=2.0, target_delta=1e-5, sample_rate=0.2, n_steps=100)
    >>> release = dpi.run_dpvi(Median(), X, plan=plan, n_records=400, max_grad_norm=1.0)
    >>> release.names
    ('first', 'second')
    """

    gradient_sum: ClassVar[str | None] = "numpy"
    n_features: int

    @abstractmethod
    def record_gradients(self, features: FloatArray, response: FloatArray, theta: FloatArray) -> FloatArray:
        """Return the gradients of -log p(record | theta) in theta, (B, n).

        `features` (B, n_features), `response` (B,), empty where records have none, and `theta` (n,) are float64.

        A row may depend on no other row, in no bit: ``np.sum(features * theta, axis=1)`` and not ``features @ theta``.
        A row that is not finite, and one for which this raises, contributes nothing.
        """

    def made_up_records(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return public records to try the gradients on: features (size, n_features), responses (size,) or empty."""
        features = rng.standard_normal((size, self.n_features))
        has_response = self.record_form == "regression"
        return features, rng.integers(0, 2, size).astype(np.float64) if has_response else np.empty(0)


def check_row_gradients(model: GeneralizedLinearModel | GradientModel) -> None:
    """Try a model's gradients on made-up records: their shape, and that each row is computed by itself.

    **Privacy.** Reads no records; runs before anything is spent.

    Raises ValueError if the shape is wrong, or a row changes with the others.
    """
    rng = np.random.default_rng(0)
    has_response = model.record_form == "regression"
    if isinstance(model, GradientModel):
        features, response = model.made_up_records(_CHECKED_ROWS, rng)
    else:
        features = rng.standard_normal((_CHECKED_ROWS, model.n_features))
        response = rng.integers(0, 2, _CHECKED_ROWS).astype(np.float64)
    theta = 0.5 * rng.standard_normal(model.n_params)

    def at(rows: slice) -> FloatArray:
        chosen = response[rows] if has_response else response
        values = model.record_gradients(np.ascontiguousarray(features[rows]), chosen, theta)
        return np.asarray(values, dtype=np.float64)

    whole = at(slice(None))
    if whole.shape != (_CHECKED_ROWS, model.n_params):
        raise ValueError(f"record_gradients must return shape (B, {model.n_params}), got {whole.shape} for 33 rows")
    alone = np.concatenate([at(slice(row, row + 1)) for row in range(_CHECKED_ROWS)])
    if alone.tobytes() != whole.tobytes() or at(slice(None, None, -1))[::-1].tobytes() != whole.tobytes():
        raise ValueError(
            "record_gradients must compute each row by itself: a row changed with the others "
            "(np.sum(features * theta, axis=1) does, features @ theta rounds rows together)"
        )

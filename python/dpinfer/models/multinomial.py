"""Multinomial logistic regression: one of several classes, each with weights of its own against a base class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_integer, check_interval
from dpinfer.models.adapters.gradients import uniforms_of
from dpinfer.models.adapters.own_model import ModelCode, OwnModel, Words

_MOST_CLASSES = 100  # a coefficient for each class and column: more were not tried; time


class MultinomialRegression(OwnModel):
    """Softmax regression: log P(y = k | x) / P(y = 0 | x) = x'w_k + b_k for k = 1, ..., K - 1.

    **Privacy.** Public; holds no records.  It runs as a model written as code: the score of each record
    is computed from that record alone, clipped, and centred by draws from the model (docs/derivations/any-model.md).

    Class 0 is the base.  Weights have independent N(0, prior_scale**2) priors, so that the prior is not the same for
    all pairs of classes: log odds between two classes that are not the base have twice the variance.

    Parameters
    ----------
    n_features : int
    classes : int, or sequence of labels
        At least 2 classes, the base first; a number K stands for "0", ..., "K - 1".  Responses are their places, whole
        numbers from 0 to K - 1.
    fit_intercept : bool
    prior_scale : float
    feature_names : sequence of str, optional
        "x0", "x1", ... by default.  Parameters are called ``class:feature`` and ``class:intercept``, class by class.
    features : callable or (M, n_features) array, optional
        Public, made-up rows like the private ones, as in :func:`from_gradient`; standard normal by default.  Bounds are
        simulated with them.

    Examples
    --------
    >>> model = MultinomialRegression(2, ("red", "green", "blue"), feature_names=("age", "size"))
    >>> model.names[:3]
    ('green:age', 'green:size', 'green:intercept')
    >>> model.predict_probabilities([0.0] * 6, [[1.0, 2.0]]).round(3).tolist()
    [[0.333, 0.333, 0.333]]
    """

    def __init__(
        self,
        n_features: int,
        classes: int | Sequence[Any],
        *,
        fit_intercept: bool = True,
        prior_scale: float = 1.0,
        feature_names: Sequence[str] | None = None,
        features: Any = None,
    ) -> None:
        n_features = check_integer("n_features", n_features, 1)
        self.classes = _labels(classes)
        self.fit_intercept = bool(fit_intercept)
        names = [f"x{index}" for index in range(n_features)] if feature_names is None else list(feature_names)
        if len(names) != n_features:
            raise ValueError(f"feature_names must hold {n_features} names, got {len(names)}")
        each = [*names, *(("intercept",) if self.fit_intercept else ())]
        super().__init__(
            parameters=[f"{label}:{name}" for label in self.classes[1:] for name in each],
            n_features=n_features,
            prior_scale=check_interval("prior_scale", prior_scale, 0.0),
            response="count",
            name=f"multinomial regression of {len(self.classes)} classes",
            code=ModelCode(self._score, None, self._draw, 1, features),
        )
        self.take_fingerprint()

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return len(self.classes)

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return a description of valid responses if `values` are not valid, or None."""
        if super().invalid_records(values) is None and np.all(values < self.n_classes):
            return None
        return f"whole numbers from 0 to {self.n_classes - 1}, the places of the classes"

    def _probabilities(self, params: FloatArray, X: FloatArray) -> FloatArray:
        """Return P(y = k) for each class (K, B), each record's in one order of operations: no BLAS."""
        eta = np.zeros((self.n_classes, len(X)))
        for k, weights in enumerate(params.reshape(self.n_classes - 1, -1), start=1):
            eta[k] = np.sum(X * weights[: self.n_features], axis=1)
            if self.fit_intercept:
                eta[k] += weights[-1]
        odds = np.exp(eta - eta.max(axis=0))
        total = odds[0].copy()
        for row in odds[1:]:
            total += row
        return np.asarray(odds / total)

    def _score(self, params: FloatArray, X: FloatArray, y: FloatArray) -> FloatArray:
        blocks = []
        for k, probability in enumerate(self._probabilities(params, X)[1:], start=1):
            slope = (y == k) - probability
            blocks.append(X * slope[:, None])
            if self.fit_intercept:
                blocks.append(slope[:, None])
        return np.concatenate(blocks, axis=1)

    def _draw(self, params: FloatArray, X: FloatArray, words: Words) -> FloatArray:
        uniform = uniforms_of(words)[:, 0]
        drawn, total = np.zeros(len(X)), np.zeros(len(X))
        for probability in self._probabilities(params, X)[:-1]:
            total += probability
            drawn += uniform >= total
        return drawn

    def predict_probabilities(self, theta: npt.ArrayLike, X: npt.ArrayLike) -> FloatArray:
        """Return P(y = k | theta, x) for theta (..., n): shape (..., n_points, K).

        **Privacy.** `X` are the caller's own points.
        """
        points = check_float_array("X", X, (None, self.n_features))
        values = np.asarray(theta, dtype=np.float64)
        blocks = values.reshape(*values.shape[:-1], self.n_classes - 1, -1)
        eta = np.einsum("...kf,pf->...pk", blocks[..., : self.n_features], points)
        if self.fit_intercept:
            eta = eta + blocks[..., None, :, -1]
        eta = np.concatenate([np.zeros((*eta.shape[:-1], 1)), eta], axis=-1)
        odds = np.exp(eta - eta.max(axis=-1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


def _labels(classes: Any) -> tuple[str, ...]:
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool):
        return tuple(str(index) for index in range(check_integer("classes", classes, 2, _MOST_CLASSES)))
    if isinstance(classes, str) or not isinstance(classes, (Sequence, np.ndarray)):
        raise TypeError(f"classes must be a number or a sequence of labels, got {type(classes).__name__}")
    labels = tuple(str(label) for label in classes)
    if not 2 <= len(labels) <= _MOST_CLASSES or len(set(labels)) != len(labels):
        raise ValueError(f"classes must hold between 2 and {_MOST_CLASSES} distinct labels, got {len(labels)}")
    return labels

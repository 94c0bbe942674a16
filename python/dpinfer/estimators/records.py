"""Conversion of the arguments of ``fit`` and ``predict`` to arrays, with messages that show no value."""

import contextlib
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._types import refuse_array_type
from dpinfer._validate import DeferredArray, as_record_array, check_float_array, known_shape
from dpinfer._values import as_values, number_of, text_of
from dpinfer.errors import RecordError

_LARGEST_BOUND = 1e100  # squares of scaled values stay far from overflow
_NO_LABELS = "y must be given: this estimator requires y to be passed, but the target y is None"
_COMPLEX = "X must be real: Complex data not supported"
_NO_COLUMNS = "X must have a column: 0 feature(s) (shape=(, 0)) while a minimum of 1 is required."


def feature_names(X: Any) -> npt.NDArray[np.object_] | None:
    """Return the column names of a data frame, if all are strings."""
    columns = _public_attribute(X, "columns")
    if columns is None:
        return None
    names = list(columns)
    return np.array(names, dtype=object) if names and all(isinstance(name, str) for name in names) else None


def _public_attribute(X: Any, name: str) -> Any:
    """Return a public attribute of a table, or None."""
    with contextlib.suppress(Exception):
        return getattr(X, name, None)
    return None


def fitted_features(X: Any) -> FloatArray:
    """Return X as a finite (N, n_features) float64 array, of no row if it has none: the noise alone is a release.

    Raises TypeError or RecordError if it is not a table of finite real numbers; no value is quoted.
    """
    _refuse_sparse(X)
    array = as_record_array("X", X)
    if array.dtype.kind == "c":
        raise RecordError(_COMPLEX)
    if array.ndim != 2:
        hint = " Reshape your data: one row for each record, one column for each feature." if array.ndim < 2 else ""
        raise RecordError(f"X must be two-dimensional, got {array.ndim} dimension(s).{hint}")
    if array.shape[1] == 0:
        # The words that scikit-learn expects, without the number of records.
        raise RecordError(_NO_COLUMNS)
    if array.dtype.kind not in "fiub":
        array = _converted(array)
    result = np.ascontiguousarray(array, dtype=np.float64)
    if not np.all(np.isfinite(result)):
        raise RecordError("X must be finite: it contains NaN or infinity")
    return result


def as_features(X: Any) -> FloatArray:
    """Return points of a prediction as :func:`fitted_features` does, at least one."""
    features = fitted_features(X)
    if len(features) == 0:
        raise RecordError("X must hold at least one record: found array with 0 sample(s)")
    return features


class _NotNumbersError(RecordError, TypeError):
    """An error that scikit-learn expects to be a TypeError."""


def _refuse_sparse(X: Any) -> None:
    if _public_attribute(X, "toarray") is not None and _public_attribute(X, "nnz") is not None:
        raise TypeError("X must be dense: sparse input is not supported")


def _converted(array: npt.NDArray[Any]) -> FloatArray:
    """Convert strings and objects to numbers, without errors that would quote a value."""
    try:
        return array.astype(np.float64)
    except Exception as error:
        wrong_type = isinstance(error, TypeError)
    if wrong_type:
        raise _NotNumbersError("X must hold numbers: every argument must be a string or a real number")
    raise RecordError("X must hold numbers: at least one entry is not")


def public_columns(X: Any) -> int | None:
    """Return the declared number of columns of X, which is public, or None if only the records would show it.

    Raises TypeError or RecordError if X is sparse, or has no columns, or is of a type that holds no numbers.
    """
    _refuse_sparse(X)
    if isinstance(dtype := _public_attribute(X, "dtype"), np.dtype) and dtype.kind == "c":
        raise RecordError(_COMPLEX)
    refuse_array_type("X", X)
    shape = _public_attribute(X, "shape")
    if not isinstance(shape, tuple) or len(shape) != 2 or not isinstance(shape[1], int):
        return None
    if shape[1] == 0:
        raise RecordError(_NO_COLUMNS)
    return shape[1]


class PendingRecords:
    """X and y of a fit, which a private run reads after its charge.

    **Privacy.** Making one reads no record; every attribute but `X` and `y` does.
    """

    def __init__(
        self,
        features: Any,  # (N, n_features) array-like
        labels: Any = None,  # (N,) array-like
        classes: Sequence[Any] | None = None,  # public; None takes those in `labels`
        *,
        binary: bool = True,  # whether there are two classes; else there are at least two
    ) -> None:
        refuse_array_type("y", labels, numbers=False)
        self._features, self._labels, self._given, self._binary = features, labels, classes, binary
        self.bounds: FloatArray | None = None
        self.X = DeferredArray(lambda: self._clipped())
        self.y = DeferredArray(lambda: self.targets)

    @cached_property
    def features(self) -> FloatArray:
        """The checked features, not clipped."""
        return fitted_features(self._features)

    @cached_property
    def _encoded(self) -> tuple[FloatArray, npt.NDArray[Any]]:
        if self._given is not None:
            classes = as_classes(self._given, binary=self._binary)
            return places_of(as_values("y", _one_column(self._labels)), classes, len(self.features)), classes
        return encoded_targets(as_labels(self._labels, len(self.features)), binary=self._binary)

    @property
    def targets(self) -> FloatArray:
        """The labels as places among the classes: 0 and 1 of two."""
        return self._encoded[0]

    @property
    def classes(self) -> npt.NDArray[Any]:
        """(negative, positive), or all classes: public only if given."""
        return self._encoded[1] if self._given is None else as_classes(self._given, binary=self._binary)

    def _clipped(self) -> FloatArray:
        if self.bounds is None:
            return self.features
        return np.clip(self.features, self.bounds[:, 0], self.bounds[:, 1])


def places_of(labels: Any, known: npt.NDArray[Any], n_records: int) -> FloatArray:
    """Return the labels of records, each on its own, as indices of public classes.

    Raises RecordError if their number is not that of the records, or a label is in no class.
    """
    if len(labels) != n_records:
        raise RecordError("y must have as many entries as X has rows")
    codes = {text_of(label): float(place) for place, label in enumerate(known.tolist())}
    place_of = {label: codes.get(text_of(label), -1.0) for label in set(labels)}
    places = np.fromiter((place_of[label] for label in labels), np.float64, n_records)
    if np.any(places < 0.0):
        raise RecordError("y must hold only the labels in classes; at least one entry is another")
    return places


def _one_column(y: Any) -> Any:
    """Return labels without a second dimension of size 1, if the container declares one."""
    if y is None:
        raise RecordError(_NO_LABELS)
    shape = known_shape(y)
    if shape is None or len(shape) != 2 or shape[1] != 1:
        return y
    _warn_of_column_vector()
    return as_record_array("y", y)[:, 0]


def as_labels(y: Any, n_records: int) -> npt.NDArray[Any]:
    """Return y as a one-dimensional array as long as X, whose type NumPy chooses: for labels that are published anyway.

    Raises RecordError if it has another shape or is missing.
    """
    if y is None:
        raise RecordError(_NO_LABELS)
    labels = as_record_array("y", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        _warn_of_column_vector()
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise RecordError(f"y must be one-dimensional, got {labels.ndim} dimensions")
    if labels.shape[0] != n_records:
        raise RecordError("y must have as many entries as X has rows")
    if labels.dtype.kind in "fc" and not np.all(np.isfinite(labels)):
        raise RecordError("y must be finite: it contains NaN or infinity")
    return labels


def as_numbers(y: Any, n_records: int, name: str = "y") -> FloatArray:
    """Return y as finite numbers, as long as X; raise RecordError if it is anything else."""
    values = as_values(name, _one_column(y))
    if len(values) != n_records:
        raise RecordError(f"{name} must have as many entries as X has rows")
    numbers = values if isinstance(values, np.ndarray) else np.fromiter(map(number_of, values), np.float64, n_records)
    if not np.all(np.isfinite(numbers)):
        raise RecordError(f"{name} must hold numbers that are finite: at least one entry is NaN, infinity or no number")
    return numbers


def _warn_of_column_vector() -> None:
    category: type[Warning] = UserWarning
    # scikit-learn users filter on its own category.
    with contextlib.suppress(ImportError):
        from sklearn.exceptions import DataConversionWarning

        category = DataConversionWarning
    text = "A column-vector y was passed when a 1d array was expected; it is taken as one-dimensional"
    warnings.warn(text, category, stacklevel=4)


def encoded_targets(labels: npt.NDArray[Any], *, binary: bool = True) -> tuple[FloatArray, npt.NDArray[Any]]:
    """Return the labels as indices of their classes, and the classes: (negative, positive) if there are two.

    **Privacy.** The classes are read from the records, as a warning and the release state.

    Raises RecordError if there are not two classes, or at least two unless `binary`.
    """
    if labels.dtype.kind == "f" and not np.all(labels == np.round(labels)):
        raise RecordError("Unknown label type: y must hold class labels, not a continuous response")
    classes = _distinct(labels)
    if classes.shape[0] < 2:
        raise RecordError("y must hold two classes, and holds one class only; name all with classes=(no, yes)")
    if binary and classes.shape[0] > 2:
        raise RecordError("Only binary classification is supported. The type of the target is multiclass.")
    return np.searchsorted(classes, labels).astype(np.float64), classes


def as_classes(classes: Any, *, binary: bool = True) -> npt.NDArray[Any]:
    """Return public labels as an array: the pair (negative, positive), or at least two unless `binary`.

    Raises ValueError if they are not distinct labels, as many as needed.
    """
    # Of public labels NumPy may choose the type.
    array = np.asarray(classes)
    distinct = array.ndim == 1 and len({text_of(label) for label in array.tolist()}) == len(array)
    if binary and (not distinct or len(array) != 2):
        raise ValueError(f"classes must hold two distinct labels (negative, positive), got shape {array.shape}")
    if not distinct or len(array) < 2:
        raise ValueError(f"classes must hold at least two distinct labels, got shape {array.shape}")
    return array


def _distinct(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with contextlib.suppress(Exception):
        return np.unique(labels)
    raise RecordError("y must hold labels that can be compared, all of one type; give classes=(no, yes)")


def as_bounds(data_bounds: Any, n_features: int) -> FloatArray | None:
    """Return public bounds as an (n_features, 2) array; None if there are none.

    Raises TypeError or ValueError if the shape is wrong or low < high does not hold.
    """
    if data_bounds is None:
        return None
    bounds = check_float_array("data_bounds", data_bounds)
    if bounds.shape == (2,):
        bounds = np.tile(bounds, (n_features, 1))
    if bounds.shape != (n_features, 2):
        raise ValueError(f"data_bounds must be (low, high) or have shape ({n_features}, 2), got {bounds.shape}")
    if not np.all(bounds[:, 0] < bounds[:, 1]):
        raise ValueError("data_bounds must have low < high for every feature")
    if np.max(np.abs(bounds)) > _LARGEST_BOUND or np.min(bounds[:, 1] - bounds[:, 0]) < 1.0 / _LARGEST_BOUND:
        raise ValueError(
            f"data_bounds must be at most {_LARGEST_BOUND:g} in size and at least {1.0 / _LARGEST_BOUND:g} apart: "
            "scale the columns to about unit size"
        )
    return bounds


def typical_norm(bounds: FloatArray, *, fit_intercept: bool) -> float:
    """Return the root mean square norm of a row that is uniform on its public bounds, the intercept's 1 included."""
    return float(np.sqrt(np.sum(_mean_squares(bounds)) + float(fit_intercept)))


def typical_scales(bounds: FloatArray) -> tuple[float, ...]:
    """Return the root mean square of every column of a row that is uniform on its public bounds."""
    return tuple(np.sqrt(_mean_squares(bounds)).tolist())


def _mean_squares(bounds: FloatArray) -> FloatArray:
    low, high = bounds[:, 0], bounds[:, 1]
    return np.asarray((low * low + low * high + high * high) / 3.0)

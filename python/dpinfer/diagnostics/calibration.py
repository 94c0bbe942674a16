"""Calibration: whether events predicted with probability p happen with frequency p."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """A binned calibration curve.

    **Privacy.** Computed from labels without noise: publish it only if those labels are public.

    Parameters
    ----------
    predicted : (n_bins,) float64
        Mean predicted probability in each bin.
    observed : (n_bins,) float64
        Share of positive labels in each bin.
    counts : (n_bins,) int64
        Number of labels in each bin.
    """

    predicted: FloatArray
    observed: FloatArray
    counts: npt.NDArray[np.int64]

    @property
    def n_bins(self) -> int:
        """Number of bins."""
        return len(self.counts)

    @property
    def error(self) -> FloatArray:
        """Observed share minus predicted probability, (n_bins,)."""
        return self.observed - self.predicted

    @property
    def standard_error(self) -> FloatArray:
        """Binomial standard deviation of the observed share if the predictions are right, (n_bins,)."""
        return np.sqrt(self.predicted * (1.0 - self.predicted) / self.counts)

    @property
    def rmse(self) -> float:
        """Root mean square of :attr:`error` over the bins (NA-DPVI, table 3)."""
        return float(np.sqrt(np.mean(self.error**2)))

    @property
    def rmse_floor(self) -> float:
        """The average of :attr:`rmse` for perfect predictions and this many labels."""
        return float(np.sqrt(np.mean(self.standard_error**2)))

    def __repr__(self) -> str:
        head = f"CalibrationCurve: RMSE {self.rmse:.4f} over {self.n_bins} bins (floor {self.rmse_floor:.4f})"
        rows = [
            f"{predicted:10.4f} {observed:9.4f} {error:+9.4f} {count:8d}"
            for predicted, observed, error, count in zip(
                self.predicted, self.observed, self.error, self.counts, strict=True
            )
        ]
        return "\n".join([head, " predicted  observed     error   labels", *rows])


def calibration_curve(probabilities: npt.ArrayLike, y: npt.ArrayLike, n_bins: int = 10) -> CalibrationCurve:
    """Compare predicted probabilities with labels in bins of equal count.

    **Privacy.** Reads the labels `y` that the caller gives, without noise, and the result shows their frequencies.
    Use a public test set, or keep the result.

    Parameters
    ----------
    probabilities : (n,) array
        Predicted probability of the positive class, in [0, 1]; column 1 of ``predict_proba``.
    y : (n,) array
        Labels, 0 or 1 (or bool).
    n_bins : int
        At least 1 and at most n.  Bins hold the same number of predictions, to within one.

    Notes
    -----
    NA-DPVI section 4.4: ten equal-count bins of the sorted test predictions; the error is the root mean square over
    the bins of observed minus predicted.  Equal predictions may be split between two bins, in the order of `y`.

    Examples
    --------
    >>> import numpy as np
    >>> curve = calibration_curve(np.array([0.1, 0.1, 0.9, 0.9]), np.array([0, 0, 1, 0]), n_bins=2)
    >>> curve.error.round(2)
    array([-0.1, -0.4])
    """
    predicted, labels = check_predictions(probabilities, y)
    bins = check_integer("n_bins", n_bins, 1, predicted.size)
    parts = np.array_split(np.argsort(predicted, kind="stable"), bins)
    return CalibrationCurve(
        predicted=np.array([predicted[part].mean() for part in parts]),
        observed=np.array([labels[part].mean() for part in parts]),
        counts=np.array([len(part) for part in parts], dtype=np.int64),
    )


def check_predictions(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return probabilities in [0, 1] and labels 0 or 1 of equal length, as float64."""
    predicted = np.asarray(probabilities)
    labels = np.asarray(y)
    if predicted.dtype.kind not in "fiu":
        raise TypeError(f"probabilities must be an array of real numbers, got dtype {predicted.dtype}")
    if labels.dtype.kind not in "fiub":
        raise TypeError(f"y must be an array of numbers, got dtype {labels.dtype}")
    if predicted.ndim != 1 or labels.shape != predicted.shape:
        shapes = f"{predicted.shape} and {labels.shape}"
        raise ValueError(f"probabilities and y must be one-dimensional and of equal length, got {shapes}")
    predicted, labels = predicted.astype(np.float64), labels.astype(np.float64)
    if not np.all((predicted >= 0.0) & (predicted <= 1.0)):
        raise ValueError("probabilities must lie in [0, 1]")
    if not np.all((labels == 0.0) | (labels == 1.0)):
        raise ValueError("y must hold only 0 and 1")
    if predicted.size < 1:
        raise ValueError("probabilities must hold at least one prediction, got 0")
    return predicted, labels

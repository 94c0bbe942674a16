"""Calibration: whether events predicted with probability p happen with frequency p."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer


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

    Returns
    -------
    CalibrationCurve

    Raises
    ------
    TypeError, ValueError
        If a shape or a range is wrong.

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
    predicted, labels = _check_predictions(probabilities, y)
    bins = check_integer("n_bins", n_bins, 1, predicted.size)
    parts = np.array_split(np.argsort(predicted, kind="stable"), bins)
    return CalibrationCurve(
        predicted=np.array([predicted[part].mean() for part in parts]),
        observed=np.array([labels[part].mean() for part in parts]),
        counts=np.array([len(part) for part in parts], dtype=np.int64),
    )


@dataclass(frozen=True)
class ExpectedCalibrationError:
    """Expected calibration error with its Monte Carlo error and its value for perfect predictions.

    **Privacy.** Computed from labels without noise: publish it only if those labels are public.

    Parameters
    ----------
    value : float
        Average over the bins, weighted by their counts, of the distance between the observed share and the mean
        predicted probability.
    standard_error : float
        Bootstrap standard error of `value` over the labelled predictions.
    floor : float
        Average of `value` if every label has exactly its predicted probability: never 0, because labels vary.
    pvalue : float
        Probability, for such labels, of a value at least as large.
    n_bins, n_labels : int
    """

    value: float
    standard_error: float
    floor: float
    pvalue: float
    n_bins: int
    n_labels: int

    @property
    def excess(self) -> float:
        """`value` minus `floor`."""
        return self.value - self.floor

    def __repr__(self) -> str:
        return (
            f"ExpectedCalibrationError: {self.value:.4f} +/- {self.standard_error:.4f} over {self.n_bins} bins of "
            f"{self.n_labels} labels (floor {self.floor:.4f}, p = {self.pvalue:.2g})"
        )


def expected_calibration_error(
    probabilities: npt.ArrayLike,
    y: npt.ArrayLike,
    n_bins: int = 10,
    *,
    bins: str = "count",
    n_resamples: int = 1000,
    seed: int = 0,
) -> ExpectedCalibrationError:
    """Return the expected calibration error of predicted probabilities, with its error and its floor.

    **Privacy.** Reads the labels `y` that the caller gives, without noise.  Use a public test set, or keep the result.

    Parameters
    ----------
    probabilities : (n,) array
        Predicted probability of the positive class, in [0, 1].
    y : (n,) array
        Labels, 0 or 1 (or bool).
    n_bins : int
        At least 1 and at most n.
    bins : {"count", "width"}
        Bins of equal count (to within one), or of equal width in [0, 1], without empty ones.
    n_resamples : int
        Number of bootstrap samples and of simulated label sets, at least 100.
    seed : int
        Of both.

    Returns
    -------
    ExpectedCalibrationError

    Raises
    ------
    TypeError, ValueError
        If a shape or a range is wrong.

    Notes
    -----
    Naeini, Cooper and Hauskrecht (2015).  The estimate is biased upwards, by about its floor for good predictions, so
    compare values only together with their floors.  The bootstrap resamples predictions with their labels and keeps the
    bins; the p-value counts the observed labels as one of the simulated sets.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=2000)
    >>> y = rng.uniform(size=2000) < p
    >>> expected_calibration_error(p, y).pvalue > 0.05, expected_calibration_error(p**2, y).pvalue < 0.01
    (True, True)
    """
    predicted, labels = _check_predictions(probabilities, y)
    count = predicted.size
    n_bins = check_integer("n_bins", n_bins, 1, count)
    resamples = check_integer("n_resamples", n_resamples, 100)
    generator = np.random.default_rng(check_integer("seed", seed, 0))
    if check_choice("bins", bins, ("count", "width")) == "count":
        order = np.argsort(predicted, kind="stable")
        member = np.empty(count, dtype=np.int64)
        member[order] = np.repeat(np.arange(n_bins), [len(part) for part in np.array_split(order, n_bins)])
    else:
        member = np.minimum((predicted * n_bins).astype(np.int64), n_bins - 1)

    def value(errors: FloatArray, where: npt.NDArray[np.int64]) -> float:
        return float(np.abs(np.bincount(where, weights=errors, minlength=n_bins)).sum() / count)

    errors = labels - predicted
    observed = value(errors, member)
    bootstrap, simulated = np.empty(resamples), np.empty(resamples)
    for index in range(resamples):
        chosen = generator.integers(count, size=count)
        bootstrap[index] = value(errors[chosen], member[chosen])
        simulated[index] = value((generator.random(count) < predicted) - predicted, member)
    return ExpectedCalibrationError(
        value=observed,
        standard_error=float(np.std(bootstrap, ddof=1)),
        floor=float(np.mean(simulated)),
        pvalue=(1.0 + int(np.count_nonzero(simulated >= observed))) / (resamples + 1.0),
        n_bins=int(np.unique(member).size),
        n_labels=count,
    )


def _check_predictions(probabilities: npt.ArrayLike, y: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return probabilities in [0, 1] and labels 0 or 1 of equal length, as float64."""
    predicted = np.asarray(probabilities)
    labels = np.asarray(y)
    if predicted.dtype.kind not in "fiu":
        raise TypeError(f"probabilities must be an array of real numbers, got dtype {predicted.dtype}")
    if labels.dtype.kind not in "fiub":
        raise TypeError(f"y must be an array of numbers, got dtype {labels.dtype}")
    if predicted.ndim != 1 or labels.shape != predicted.shape:
        raise ValueError(
            f"probabilities and y must be one-dimensional and of equal length, got {predicted.shape} and {labels.shape}"
        )
    predicted = predicted.astype(np.float64)
    labels = labels.astype(np.float64)
    if not np.all((predicted >= 0.0) & (predicted <= 1.0)):
        raise ValueError("probabilities must lie in [0, 1]")
    if not np.all((labels == 0.0) | (labels == 1.0)):
        raise ValueError("y must hold only 0 and 1")
    if predicted.size < 1:
        raise ValueError("probabilities must hold at least one prediction, got 0")
    return predicted, labels

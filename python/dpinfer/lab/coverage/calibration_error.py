"""The expected calibration error of predicted probabilities, with its floor."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer
from dpinfer.diagnostics.calibration import check_predictions


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
    predicted, labels = check_predictions(probabilities, y)
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

"""The words of statsmodels for a regression: `params`, `bse`, `conf_int`, `cov_params`, and predictions with an index.

**Privacy.** Post-processing of a release; points of predictions are the caller's own.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_interval
from dpinfer.errors import BackendUnavailableError
from dpinfer.formulas.coefficients import CoefficientTable


class FamiliarNames:
    """Coefficients as Series and data frames of pandas.

    A posterior has no p-values: `params` are posterior means, `bse` standard deviations, and intervals credible ones.
    """

    def coefficients(self, level: float = 0.9) -> CoefficientTable:
        """Return the table of coefficients."""
        raise NotImplementedError

    def _covariance(self) -> tuple[tuple[str, ...], FloatArray]:
        """Return the names of the coefficients and their covariance in the table's units."""
        raise NotImplementedError

    @property
    def params(self) -> Any:
        """Posterior means of the coefficients, a Series of pandas."""
        return self._series("mean")

    @property
    def bse(self) -> Any:
        """Posterior standard deviations of the coefficients, a Series of pandas."""
        return self._series("sd")

    def conf_int(self, alpha: float = 0.05) -> Any:
        """Return the ends of the equal-tailed intervals of level 1 - `alpha`, a data frame with the columns 0 and 1."""
        table, names = self.coefficients(1.0 - check_interval("alpha", alpha, 0.0, 1.0)), self._covariance()[0]
        rows = [(table[name]["low"], table[name]["high"]) for name in names]
        return _pandas().DataFrame(rows, index=list(names), columns=[0, 1])

    def cov_params(self) -> Any:
        """Return the posterior covariance of the coefficients, a data frame of pandas."""
        names, covariance = self._covariance()
        return _pandas().DataFrame(covariance, index=list(names), columns=list(names))

    def _series(self, head: str) -> Any:
        table, names = self.coefficients(), self._covariance()[0]
        return _pandas().Series([table[name][head] for name in names], index=list(names), dtype=np.float64)


def like(new_data: Any, columns: Mapping[str, FloatArray], classes: tuple[str, ...] = ()) -> Any:
    """Return predictions as the caller holds the points: for a data frame of pandas with its index.

    One column is an array or a Series, several are a mapping or a data frame; an array (N, K) of classes is a data
    frame.
    """
    index = getattr(new_data, "index", None) if type(new_data).__module__.startswith("pandas") else None
    if index is None:
        return columns if len(columns) > 1 else next(iter(columns.values()))
    pandas = _pandas()
    if len(columns) > 1:
        return pandas.DataFrame(dict(columns), index=index)
    ((name, values),) = columns.items()
    if values.ndim == 2:
        return pandas.DataFrame(values, index=index, columns=list(classes))
    return pandas.Series(values, index=index, name=name)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise BackendUnavailableError(
            "params, bse, conf_int() and cov_params() need pandas: pip install pandas, or read coefficients()"
        ) from error
    return pandas

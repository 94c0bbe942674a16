"""Survey weights: the number of people of the population that a record represents."""

from dataclasses import dataclass

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_integer, check_interval

MOST_STRATA = 1000  # each is a row of the release, with its time; surveys have at most hundreds


@dataclass(frozen=True)
class SurveyWeights:
    """Public facts about the weights of a survey: the target is then the weighted population.

    The responses of a model with these are an (N, 2) array: a response and its weight; (N, 3) with strata.

    **Privacy.** Public, from the survey's documentation and not from the records; privacy does not depend on it being
    right.

    Raises ValueError if a number is out of range, or `mean` is larger than `largest`.

    Parameters
    ----------
    largest : float
        The largest weight, positive; larger ones are cut off there.
    mean : float
        The mean weight, positive: for weights that count people, the size of the population over that of the sample.
        Coefficients and their intervals do not depend on the unit of the weights, the places at which scores are
        measured do.
    sd : float, optional
        The weights' standard deviation: the spread of the residuals follows from it.
    strata : int, optional
        Number of strata, up to 1000, in which records were sampled separately; 0 for none.  The third column of
        the responses holds each record's, from 0 on.  Without weights: ``SurveyWeights(1.0, strata=8)``, and ones.

    Notes
    -----
    Binder (1983), On the variances of asymptotically normal estimators from complex surveys.  Kish (1965), Survey
    sampling.

    Examples
    --------
    >>> SurveyWeights(largest=9000.0, mean=1500.0).relative(np.array([1500.0, 12_000.0]))
    array([1., 6.])
    """

    largest: float
    mean: float = 1.0
    sd: float | None = None
    strata: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "largest", check_interval("largest", self.largest, 0.0, 1e30))
        put(self, "mean", check_interval("mean", self.mean, 0.0, 1e30))
        put(self, "strata", check_integer("strata", self.strata, 0, MOST_STRATA))
        if self.sd is not None:
            put(self, "sd", check_interval("sd", self.sd, 0.0, 1e30, low_open=False))
        if not 1.0 <= self.largest / self.mean <= 1e6:
            raise ValueError(
                f"mean must be at most largest={self.largest:g}, and at least a millionth, got {self.mean:g}"
            )

    def relative(self, weights: FloatArray) -> FloatArray:
        """Return weights in units of their public mean, cut off at the public largest one; same shape."""
        return np.asarray(np.clip(weights, 0.0, self.largest) / self.mean)

    @property
    def design_effect(self) -> float | None:
        """Mean square of the weights over their squared mean (Kish 1965), where `sd` is known."""
        return None if self.sd is None else 1.0 + (self.sd / self.mean) ** 2

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers as plain data."""
        strata = {"strata": self.strata} if self.strata else {}
        return {"largest": self.largest, "mean": self.mean, "sd": self.sd, **strata}

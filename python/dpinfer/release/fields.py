"""Shapes and ranges of a release's fields, as their annotations say them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_float_array, check_interval


@dataclass(frozen=True)
class Shape:
    """Of an array: names of its axes, such as "T d"; axes with one name have one length.

    The length of a name is that in `sizes`, or else of the first array that has it, which must not be empty.
    """

    axes: str
    positive: bool = False

    def checked(self, name: str, value: Any, sizes: dict[str, int]) -> FloatArray:
        """Return a view that cannot be written to, and note the lengths of new axes."""
        axes = self.axes.split()
        sizes |= {axis: int(axis) for axis in axes if axis.isdigit()}
        if np.ndim(value) == len(axes):
            for axis, size in zip(axes, np.shape(value), strict=True):
                if axis not in sizes and size < 1:
                    raise ValueError(f"{name} must not be empty")
                sizes.setdefault(axis, size)
        array = check_float_array(name, value, tuple(sizes.get(axis) for axis in axes)).view()
        if self.positive and not np.all(array > 0.0):
            raise ValueError(f"{name} must be positive")
        array.flags.writeable = False
        return array


@dataclass(frozen=True)
class Range:
    """Of a number: an interval, whose ends are in it where `first` or `last` is set."""

    low: float = 0.0
    high: float = math.inf
    first: bool = False
    last: bool = False

    def checked(self, name: str, value: Any, _: dict[str, int]) -> float:
        """Return the number."""
        return check_interval(name, value, self.low, self.high, low_open=not self.first, high_open=not self.last)


POSITIVE, AT_LEAST_ZERO = Range(), Range(first=True)

"""A law of integer noise as a table of whole numbers: its privacy loss follows exactly from the table.

Another package may supply the table. It draws nothing and states no guarantee: proof in
docs/derivations/one-shot-statistic.md, "A law of another package".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from dpinfer._lazy import find_plugin
from dpinfer._validate import check_integer, check_interval

_GROUP = "dpinfer.noise_laws"
_LONGEST, _LARGEST, _WORK = 2**14, 2**64, 10**7  # of a table: 300 kB of text in a release, ten seconds of accounting


@dataclass(frozen=True)
class NoiseTable:
    """P(k) proportional to ``weights[abs(k)]`` for whole numbers k, and 0 beyond the table.

    Parameters
    ----------
    weights : sequence of int
        Of 0, 1, ..., K: positive, below 2**64, at most 2**14 of them.
    name : str
        Of the law, for the release.
    package : str
        That wrote the table; empty for one's own.
    """

    weights: tuple[int, ...]
    name: str = "table"
    package: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Sequence) or not 1 < len(self.weights) <= _LONGEST:
            raise ValueError(f"weights must be a sequence of 2 to {_LONGEST} whole numbers")
        checked = [check_integer("weights", weight, 1, _LARGEST - 1) for weight in self.weights]
        object.__setattr__(self, "weights", tuple(checked))

    @property
    def total(self) -> int:
        """The sum of the weights of all k."""
        return 2 * sum(self.weights) - self.weights[0]

    @property
    def variance(self) -> float:
        """The variance of the noise."""
        return 2.0 * sum(weight * k * k for k, weight in enumerate(self.weights)) / self.total

    def delta(self, epsilon: float, sensitivity: int) -> float:
        """Return the least delta at `epsilon`, rounded up, where neighbours' sums differ by at most `sensitivity`.

        Raises ValueError if the table is too long for a sum of that sensitivity.
        """
        epsilon = check_interval("epsilon", epsilon, 0.0, 700.0)
        sensitivity = check_integer("sensitivity", sensitivity, 1)
        size = 2 * len(self.weights) - 1
        if size * sensitivity > _WORK:
            raise ValueError(f"weights must be fewer for a sum that one record moves by up to {sensitivity}")
        # e**epsilon from below, as a ratio of whole numbers: delta is from above.
        growth = Fraction(Decimal(repr(epsilon)).exp(Context(prec=60)).next_minus(Context(prec=50)))
        law = (*self.weights[:0:-1], *self.weights)
        worst = max(self._excess(law, shift, growth) for shift in range(1, sensitivity + 1))
        exact = Fraction(worst, self.total * growth.denominator)
        nearest = float(exact)
        return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)

    @staticmethod
    def _excess(law: tuple[int, ...], shift: int, growth: Fraction) -> int:
        """Return the sum of max(0, P(k) - e**epsilon P(k - shift)), in units of weights times the denominator.

        The law is symmetric: the other direction is the same.
        """
        up, down = growth.denominator, growth.numerator
        alone = up * sum(law[:shift])
        return alone + sum(
            max(0, up * own - down * other) for own, other in zip(law[shift:], law[:-shift], strict=True)
        )


def noise_table(law: "str | NoiseTable", *, epsilon: float, sensitivity: int) -> NoiseTable:
    """Return the table of a law that an installed package registers under this name; see docs/stability.md.

    **Privacy.** Reads no records: the package gets public numbers, and returns a table of whole numbers.

    Raises TypeError or ValueError if no package registers it, or its result is not a table.
    """
    if isinstance(law, NoiseTable):
        # A subclass may have a delta of its own, which nobody has proved.
        return NoiseTable(tuple(law.weights), law.name, law.package)
    if not isinstance(law, str):
        raise TypeError(f"noise must be a name or a NoiseTable, got {type(law).__name__}")
    plugin = find_plugin(_GROUP, law)
    if plugin is None:
        raise ValueError(f"noise must be 'laplace', a NoiseTable, or an entry point of {_GROUP}, got {law!r}")
    kind, package = plugin
    return NoiseTable(tuple(kind().weights(epsilon, sensitivity)), law, package)

"""Relations that define neighbouring data sets, and the one conversion between them."""

import enum
import math

from dpinfer._validate import check_interval


class Adjacency(enum.Enum):
    """The relation between data sets that a guarantee protects.

    Attributes
    ----------
    ADD_REMOVE
        One record is present in one data set and absent from the other; the number of records is private.
    ZERO_OUT
        One record is replaced with a null record, a row that holds NaN and nothing else, whose contribution is zero;
        the number of records is public.  A row of zeros is not null: docs/derivations/dpvi-mechanism.md.
    REPLACE_ONE
        Neighbours differ in one record; the number of records is public.

    Notes
    -----
    **Privacy.** Reads no records.  With a bound ``max_grad_norm`` on each record's contribution, the sum's L2
    sensitivity is once that bound under ``ADD_REMOVE`` and ``ZERO_OUT`` and twice that bound under ``REPLACE_ONE``.

    Examples
    --------
    >>> Adjacency("add_remove")
    <Adjacency.ADD_REMOVE: 'add_remove'>
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"

    @property
    def sensitivity_factor(self) -> float:
        """L2 sensitivity of a sum of contributions, in units of the bound on one contribution."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0


def as_adjacency(value: "Adjacency | str") -> Adjacency:
    """Return `value` as an :class:`Adjacency`.

    Parameters
    ----------
    value : Adjacency or str
        One of ``"add_remove"``, ``"zero_out"``, ``"replace_one"``, or the enumeration's own members.

    Returns
    -------
    Adjacency
        The relation.

    Examples
    --------
    >>> as_adjacency("zero_out") is Adjacency.ZERO_OUT
    True
    """
    if isinstance(value, Adjacency):
        return value
    if not isinstance(value, str):
        raise TypeError(f"adjacency must be a string or an Adjacency, got {type(value).__name__}")
    try:
        return Adjacency(value)
    except ValueError:
        listed = ", ".join(repr(member.value) for member in Adjacency)
        raise ValueError(f"adjacency must be one of {listed}; got {value!r}") from None


def add_remove_to_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """Turn an add/remove guarantee into a replace-one guarantee, by group privacy.

    **Privacy.** Reads no records.  A replacement is one removal followed by one addition, so an (epsilon, delta)
    guarantee under ``ADD_REMOVE`` is a (2 epsilon, (1 + e^epsilon) delta) guarantee under ``REPLACE_ONE``.  No
    accountant of this package applies the conversion on its own.

    Parameters
    ----------
    epsilon : float
        The add/remove epsilon, in [0, inf).
    delta : float
        The add/remove delta, in [0, 1].

    Returns
    -------
    tuple of float
        The replace-one epsilon and delta; delta is at most 1, and 1 is no guarantee.

    Notes
    -----
    Dwork and Roth (2014), Theorem 2.2, with the delta of two steps written out.

    Examples
    --------
    >>> add_remove_to_replace_one(0.0, 1e-6)
    (0.0, 2e-06)
    """
    epsilon = check_interval("epsilon", epsilon, 0.0, low_open=False)
    delta = check_interval("delta", delta, 0.0, 1.0, low_open=False, high_open=False)
    factor = 1.0 + math.exp(min(epsilon, 700.0))
    return 2.0 * epsilon, min(1.0, factor * delta)

"""Exceptions that dpinfer raises on purpose.

Bad *arguments* raise the built-in :class:`TypeError` or :class:`ValueError` with the name of the argument, what is
required and what came.  The types below exist where a caller may want to react to the situation rather than fix a
call.  No message ever contains a record, a value of a record, or a row number.
"""

__all__ = [
    "BackendUnavailableError",
    "BudgetExceededError",
    "CheckpointError",
    "DpinferError",
    "FallbackWarning",
    "InsecureReleaseError",
    "LedgerError",
    "LedgerFormatError",
    "NumericalError",
    "PosteriorFormatError",
    "PrivacyLeakWarning",
    "RecordError",
    "ReleaseFormatError",
    "RepeatedSpendingWarning",
    "SchemaError",
    "SiloError",
    "StudyFormatError",
    "UnfoundedEpsilonError",
    "UnsupportedEventError",
    "WeakGuaranteeWarning",
]


class DpinferError(Exception):
    """Base class of the exceptions that are specific to dpinfer."""


class UnsupportedEventError(DpinferError, ValueError):
    """The accountant has no valid bound for this event under this adjacency relation."""


class UnfoundedEpsilonError(DpinferError, ValueError):
    """A stated epsilon does not follow from what was done with the records."""


class BudgetExceededError(DpinferError, ValueError):
    """The privacy budget asked for cannot be met, or would be exceeded."""


class NumericalError(DpinferError, ArithmeticError):
    """A numerical procedure of the post-processing did not converge to the accuracy it promises."""


class BackendUnavailableError(DpinferError, ImportError):
    """An optional dependency or a hardware backend was asked for and is not there."""


class InsecureReleaseError(DpinferError, ValueError):
    """A privacy guarantee was asked of a result drawn with a seeded, insecure generator."""


class ReleaseFormatError(DpinferError, ValueError):
    """A file is not a release of a format version that this version of dpinfer reads."""


class PosteriorFormatError(DpinferError, ValueError):
    """A file is not a posterior of a format version that this version of dpinfer reads, is damaged, or was changed."""


class LedgerError(DpinferError, RuntimeError):
    """A privacy ledger cannot be read or written now; what was not written was not spent, and not run."""


class LedgerFormatError(LedgerError, ValueError):
    """A file is not a privacy ledger that this version of dpinfer reads, is damaged, or was tampered with."""


class CheckpointError(DpinferError, ValueError):
    """A private run cannot go on from a file: it is of another run, is damaged, or is not a checkpoint at all."""


class RecordError(DpinferError, ValueError):
    """The records cannot be used; raised before the mechanism starts and without quoting any of them."""


class SchemaError(DpinferError, ValueError):
    """A table schema is malformed, or a file does not match it."""


class SiloError(DpinferError, RuntimeError):
    """Sites and coordinator cannot go on: too few sites answered, or one said what the protocol does not allow."""


class StudyFormatError(DpinferError, ValueError):
    """A file is not a result of a coverage study that this version of dpinfer reads."""


class PrivacyLeakWarning(UserWarning):
    """Something computed from private records without noise is about to become visible."""


class RepeatedSpendingWarning(UserWarning):
    """A privacy budget is spent once more, where it looks like part of one computation."""


class WeakGuaranteeWarning(UserWarning):
    """What was asked for is allowed, and protects hardly anybody or is hardly what was meant."""


class FallbackWarning(UserWarning):
    """A posterior, or the arithmetic between passes, could not be done as asked: how it was done is named."""

"""Exceptions that dpinfer raises on purpose.

Bad *arguments* raise the built-in :class:`TypeError` or :class:`ValueError` with the name of the argument, the
requirement and the given value. The types below are for situations to which a caller may react.  No message ever
contains a record, a value of a record, or a row number.
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
    """A stated epsilon does not follow from the events of the mechanism."""


class BudgetExceededError(DpinferError, ValueError):
    """The requested privacy budget cannot be met, or would be exceeded."""


class NumericalError(DpinferError, ArithmeticError):
    """A numerical procedure of the post-processing did not converge to its stated accuracy."""


class BackendUnavailableError(DpinferError, ImportError):
    """A requested optional dependency or hardware backend is not available."""


class InsecureReleaseError(DpinferError, ValueError):
    """A result drawn with a seeded, insecure generator has no privacy guarantee."""


class ReleaseFormatError(DpinferError, ValueError):
    """A file is not a release of a format version that this version of dpinfer reads."""


class PosteriorFormatError(DpinferError, ValueError):
    """A file is not a posterior of a format version that this version of dpinfer reads, is damaged, or was changed."""


class LedgerError(DpinferError, RuntimeError):
    """A privacy ledger cannot be read or written now; without a written charge no mechanism runs."""


class LedgerFormatError(LedgerError, ValueError):
    """A file is not a privacy ledger that this version of dpinfer reads, is damaged, or was tampered with."""


class CheckpointError(DpinferError, ValueError):
    """A private run cannot resume from a file: the file belongs to another run, is damaged, or is not a checkpoint."""


class RecordError(DpinferError, ValueError):
    """The records cannot be used; raised before the mechanism starts and without quoting any of them.

    That a run was refused tells with certainty that a record is outside of what was declared, and the charge stands; to
    have no usable row is no such reason (docs/derivations/ledger.md, "What a refusal tells").
    """


class SchemaError(DpinferError, ValueError):
    """A table schema is malformed, or a file does not match it."""


class SiloError(DpinferError, RuntimeError):
    """Sites and coordinator cannot continue: too few sites answered, or a message violates the protocol."""


class StudyFormatError(DpinferError, ValueError):
    """A file is not a result of a coverage study that this version of dpinfer reads."""


class PrivacyLeakWarning(UserWarning):
    """Something computed from private records without noise is about to become visible."""


class RepeatedSpendingWarning(UserWarning):
    """A privacy budget is spent again, apparently as part of one computation."""


class WeakGuaranteeWarning(UserWarning):
    """The requested guarantee is allowed, but weak or probably not intended."""


class FallbackWarning(UserWarning):
    """A posterior, or the arithmetic between passes, used a fallback, which the warning names."""

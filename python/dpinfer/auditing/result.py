"""Results of an audit."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AuditCheck:
    """One check of an audit.

    **Privacy.** A finding about made-up records: safe to publish.

    Parameters
    ----------
    kind : {"neighbours", "sampling", "noise", "distinguishing"}
    name : str
        The path and the data set.
    passed : bool
    value : float
        The statistic, or the worst of several.
    bound : float
        Upper limit of the check.
    detail : str
        In words.
    """

    kind: str
    name: str
    passed: bool
    value: float
    bound: float
    detail: str = ""


@dataclass(frozen=True)
class AuditResult:
    """The checks of an audit, and its verdict.

    **Privacy.** A finding about made-up records: safe to publish.

    Parameters
    ----------
    checks : tuple of AuditCheck
    noise_multiplier : float
    n_runs : int
        Trials per data set.
    false_positive_rate : float
        Probability with which a correct mechanism fails any of the checks.
    """

    checks: tuple[AuditCheck, ...]
    noise_multiplier: float
    n_runs: int
    false_positive_rate: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[AuditCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def tightness(self) -> float:
        """The largest lower bound on mu as a share of the claim: how much of a fault could not have been missed."""
        return max((c.value / c.bound for c in self.checks if c.kind == "distinguishing"), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "passed": self.passed,
            "noise_multiplier": self.noise_multiplier,
            "n_runs": self.n_runs,
            "false_positive_rate": self.false_positive_rate,
            "checks": [vars(check) for check in self.checks],
        }

    def __repr__(self) -> str:
        verdict = "PASSED" if self.passed else f"FAILED ({len(self.failures)} of {len(self.checks)} checks)"
        lines = [
            f"privacy audit {verdict}: noise multiplier {self.noise_multiplier:g}, {self.n_runs} trials a data set, "
            f"false positives {self.false_positive_rate:g} for the whole"
        ]
        for kind in ("neighbours", "sampling", "noise", "distinguishing"):
            checks = [check for check in self.checks if check.kind == kind]
            if checks:
                failed = sum(not check.passed for check in checks)
                lines.append(f"  {kind:15s} {len(checks) - failed:3d} of {len(checks):3d} passed")
        if any(check.kind == "distinguishing" for check in self.checks):
            lines.append(f"  largest lower bound on mu: {self.tightness:.3f} of the claim")
        lines += [f"  FAILED {check.kind}: {check.name}: {check.detail}" for check in self.failures]
        return "\n".join(lines)


@dataclass(frozen=True)
class OneRunResult:
    """Result of an audit in one run.

    **Privacy.** A finding about made-up records: safe to publish.

    Parameters
    ----------
    epsilon_lower : float
        Refuted epsilons: the run is not (epsilon, delta)-private for a smaller one.
    epsilon : float
        The claim.
    delta : float
    n_canaries, n_guesses, n_correct : int
    confidence : float
    """

    epsilon_lower: float
    epsilon: float
    delta: float
    n_canaries: int
    n_guesses: int
    n_correct: int
    confidence: float

    @property
    def passed(self) -> bool:
        """Whether the claim is not refuted."""
        return self.epsilon_lower <= self.epsilon

    def __repr__(self) -> str:
        verdict = "PASSED" if self.passed else "FAILED"
        return (
            f"one-run audit {verdict}: {self.n_correct} of {self.n_guesses} guesses right on {self.n_canaries} "
            f"canaries refute epsilon < {self.epsilon_lower:.3f} at delta = {self.delta:g} (confidence "
            f"{self.confidence:.4g}); claimed {self.epsilon:.3f}"
        )

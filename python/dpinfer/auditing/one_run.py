"""An audit of a whole private fit in one run: many canaries, each included or not by a fair coin."""

import numpy as np

from dpinfer._validate import check_integer, check_interval
from dpinfer.accounting import PrivacyPlan
from dpinfer.auditing.bounds import one_run_lower_bound
from dpinfer.auditing.result import OneRunResult
from dpinfer.mechanism import run_dpvi
from dpinfer.mechanism.random_source import OSRandomSource, RandomSource
from dpinfer.models import LogisticRegression

__all__ = ["audit_one_run"]

_NORM = 3.0


def audit_one_run(
    plan: PrivacyPlan,
    *,
    n_canaries: int = 1000,
    guess_share: float = 0.2,
    confidence: float = 0.999,
    random_source: RandomSource | None = None,
) -> OneRunResult:
    """Audit :func:`dpinfer.run_dpvi` end to end, by guessing from one release which canaries were in the data.

    Each canary is a record with a feature of its own, in the data with probability 1/2.  The release's gradients in
    that feature tell the auditor what they can; the surest guesses are counted.

    **Privacy.** Reads no records of the caller's: the records are made up.

    Parameters
    ----------
    plan : PrivacyPlan
        What is claimed; add/remove adjacency.
    n_canaries : int
        At least 10.
    guess_share : float in (0, 1]
        Share of the canaries that the auditor guesses on, the surest.
    confidence : float in (0, 1)
    random_source : RandomSource, optional
        Of the mechanism and of the coins; the operating system's generator by default.

    Returns
    -------
    OneRunResult
        ``passed`` unless a smaller epsilon than the plan's is refuted.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    Source: Steinke, Nasr and Jagielski (2023), Algorithm 1.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> plan = dpi.plan_privacy(target_epsilon=4.0, target_delta=1e-5, sample_rate=0.5, n_steps=20)
    >>> dpi.diagnostics.audit_one_run(plan, n_canaries=200).passed
    True
    """
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    n_canaries = check_integer("n_canaries", n_canaries, 10)
    share = check_interval("guess_share", guess_share, 0.0, 1.0, high_open=False)
    confidence = check_interval("confidence", confidence, 0.0, 1.0)
    source = OSRandomSource() if random_source is None else random_source
    if not isinstance(source, RandomSource):
        raise TypeError(f"random_source must be a RandomSource, got {type(source).__name__}")
    coins = np.random.default_rng(int.from_bytes(source.take_key(), "little"))
    included = coins.random(n_canaries) < 0.5
    # At the start the gradient in a canary's own feature is -x / 2 for the response 1: clipped, to -C.
    X = 100.0 * _NORM * np.eye(n_canaries)[included]
    if X.shape[0] == 0:
        X = np.zeros((1, n_canaries))
    release = run_dpvi(
        LogisticRegression(n_canaries, fit_intercept=False),
        X,
        np.ones(X.shape[0]),
        plan=plan,
        n_records=n_canaries,
        max_grad_norm=_NORM,
        grad_scale=1.0,
        learning_rate=0.0,
        start=(np.zeros(n_canaries), np.full(n_canaries, -12.0)),
        random_source=source,
    )
    scores = -release.noisy_gradients[:, :n_canaries].sum(axis=0)
    order = np.argsort(scores)
    half = max(1, int(share * n_canaries / 2))
    correct = int(np.count_nonzero(included[order[-half:]]) + np.count_nonzero(~included[order[:half]]))
    lower = one_run_lower_bound(n_canaries, 2 * half, correct, plan.delta, 1.0 - confidence)
    return OneRunResult(lower, plan.epsilon, plan.delta, n_canaries, 2 * half, correct, confidence)

"""An audit of a whole private fit in one run: many canaries, each included or not by a fair coin."""

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer, check_interval, check_type
from dpinfer.accounting import PrivacyPlan
from dpinfer.auditing import tuning
from dpinfer.auditing.bounds import one_run_lower_bound
from dpinfer.auditing.result import OneRunResult
from dpinfer.mechanism import NetworkSettings, run_dp_sep, run_dpvi, run_network_dp_sep
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import check_source
from dpinfer.models import BayesianNeuralNetwork, GaussianMixture, LogisticRegression

# Limits of the largest network and the largest mixture: format.
_MOST = {"dpvi": 2**31, "dp_sep": 10_000, "dp_sep_network": 4096}
_STILL = 1e-9  # q hardly moves: the auditor knows where it is, and canaries are the same at every step; tolerance


def audit_one_run(
    plan: PrivacyPlan,
    *,
    mechanism: str = "dpvi",
    n_canaries: int = 1000,
    guess_share: float = 0.2,
    confidence: float = 0.999,
    random_source: RandomSource | None = None,
) -> OneRunResult:
    """Audit a private fit end to end, by guessing from one release which canaries were in the data.

    Each canary is a record with a coordinate of its own, in the data with probability 1/2.  The auditor guesses from
    the release's noisy sums in that coordinate; the surest guesses are counted.  The result has ``passed`` unless a
    smaller epsilon than the plan's is refuted.  Source: Steinke, Nasr and Jagielski (2023), Algorithm 1.

    **Privacy.** Reads no records of the caller's: the records are made up.

    Parameters
    ----------
    plan : PrivacyPlan
        The claim; add/remove adjacency, Poisson sampling.
    mechanism : {"dpvi", "dp_sep", "dp_sep_network"}
        :func:`dpinfer.run_dpvi` for a logistic regression with a feature for each canary (default),
        :func:`dpinfer.run_dp_sep` for a mixture with a component for each, or :func:`dpinfer.run_dp_sep` for a network
        with an input for each.
    n_canaries : int
        At least 10; at most 10000 for a mixture and 4096 for a network.
    guess_share : float in (0, 1]
        Share of the canaries that the auditor guesses on, the surest.
    confidence : float in (0, 1)
    random_source : RandomSource, optional
        Of the mechanism and of the coins; the operating system's generator by default.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> plan = dpi.plan_privacy(target_epsilon=4.0, target_delta=1e-5, sample_rate=0.5, n_steps=20)
    >>> dpi.diagnostics.audit_one_run(plan, n_canaries=200).passed
    True
    """
    check_type("plan", plan, PrivacyPlan)
    if plan.sampling != "poisson":
        raise ValueError(f"plan must have sampling='poisson', got {plan.sampling!r}")
    mechanism = check_choice("mechanism", mechanism, tuple(_MOST))
    n_canaries = check_integer("n_canaries", n_canaries, 10, _MOST[mechanism])
    share = check_interval("guess_share", guess_share, 0.0, 1.0, high_open=False)
    confidence = check_interval("confidence", confidence, 0.0, 1.0)
    source = check_source(random_source)
    coins = np.random.default_rng(int.from_bytes(source.take_key(), "little"))
    included = coins.random(n_canaries) < 0.5
    scores = _SCORES[mechanism](plan, included, source)
    order = np.argsort(scores)
    half = max(1, int(share * n_canaries / 2))
    correct = int(np.count_nonzero(included[order[-half:]]) + np.count_nonzero(~included[order[:half]]))
    lower = one_run_lower_bound(n_canaries, 2 * half, correct, plan.delta, 1.0 - confidence)
    return OneRunResult(lower, plan.epsilon, plan.delta, n_canaries, 2 * half, correct, confidence)


def _dpvi(plan: PrivacyPlan, included: npt.NDArray[np.bool_], source: RandomSource) -> FloatArray:
    """Return one score per canary, larger for likely inclusion: the sum of its gradients, (n,)."""
    n = included.size
    # At the start the gradient in a canary's own feature is -x / 2 for the response 1: clipped, to -C.
    X = _rows(100.0 * tuning.TUNING.norm * np.eye(n)[included], np.zeros((1, n)))
    release = run_dpvi(
        LogisticRegression(n, fit_intercept=False),
        X,
        np.ones(X.shape[0]),
        plan=plan,
        n_records=n,
        max_grad_norm=tuning.TUNING.norm,
        grad_scale=1.0,
        learning_rate=0.0,
        start=(np.zeros(n), np.full(n, -12.0)),
        random_source=source,
    )
    return np.asarray(-release.noisy_gradients[:, :n].sum(axis=0))


def _mixture(plan: PrivacyPlan, included: npt.NDArray[np.bool_], source: RandomSource) -> FloatArray:
    """Return one score a canary: the sum of the linear terms of its component, (n,)."""
    n = included.size
    # Components are so far apart that a record's responsibility for all but its own is zero in floating point, and the
    # prior so flat that a cavity's mean is where its component starts.
    spacing = 1e6
    start = spacing * np.arange(n, dtype=np.float64)[:, None]
    # The linear term of a record is its distance from the component's mean: clipped, to C.
    X = _rows(start[included] + 100.0 * tuning.TUNING.norm, np.array([[-spacing]]))
    release = run_dp_sep(
        GaussianMixture(n, 1, prior_scale=1e9),
        X,
        plan=plan,
        n_records=n,
        damping=_STILL,
        max_site_norm=tuning.TUNING.norm,
        start=start,
        random_source=source,
    )
    return np.asarray(release.noisy_sums[:, :n].sum(axis=0))


def _network(plan: PrivacyPlan, included: npt.NDArray[np.bool_], source: RandomSource) -> FloatArray:
    """Return one score a canary: the sum of the linear terms of its input's weight into the one hidden unit, (n,)."""
    n = included.size
    # Weights so narrow that the unit has no effect, and an input so large that nearly all of a contribution is its
    # own weight's linear term; the response 1 is half a variance of the noise away.
    model = BayesianNeuralNetwork(n, 1, prior_precision=1e10)
    X = _rows(1e4 / model.hidden_scale * np.eye(n)[included], np.zeros((1, n)))
    start = np.zeros(model.n_params)
    start[n + 1] = 1.0 / model.output_scale
    release = run_network_dp_sep(
        model,
        X,
        np.ones(X.shape[0]),
        plan=plan,
        n_records=n,
        settings=NetworkSettings(max_site_norm=tuning.TUNING.norm, block_weight=1e-9, movement=(_STILL, _STILL)),
        start=start,
        random_source=source,
    )
    return np.asarray(release.noisy_sums[:, :n].sum(axis=0))


def _rows(canaries: FloatArray, otherwise: FloatArray) -> FloatArray:
    """Return the included canaries, or a record that is not a canary if there is none: a run needs a record."""
    return canaries if canaries.shape[0] else otherwise


_SCORES = {"dpvi": _dpvi, "dp_sep": _mixture, "dp_sep_network": _network}

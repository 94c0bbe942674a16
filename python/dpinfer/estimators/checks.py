"""The check of a whole private fit of a logistic regression, from public facts: accepted fits run.

**Privacy.** Reads no records; it runs before anything is spent.
"""

import math
from typing import Any

from dpinfer._validate import check_choice, check_interval
from dpinfer.accounting import PrivacyPlan
from dpinfer.inference import PosteriorRequest, ReleaseFacts
from dpinfer.models import LogisticRegression

RECIPES = ("plain", "paper", "tied", "steady")
FISHER_RECIPES = ("tied", "steady")
# Squares of these, times the number of records, are numbers.
SCALES = (1e-30, 1e30)


def check_fit(
    model: LogisticRegression,
    plan: PrivacyPlan,
    posterior: PosteriorRequest,
    *,
    n_records: int,
    recipe: str,  # {"plain", "paper", "tied", "steady"}
    max_grad_norm: float,
    # as run_dpvi takes it; whether the steps are stable is checked for "heuristic" and numbers
    learning_rate: Any = "heuristic",
) -> None:
    """Refuse public settings of a fit that would be charged and give no release, or no posterior.

    **Privacy.** Reads no records.

    Raises TypeError or ValueError if an argument is outside its range, the steps would diverge, or such a release does
    not have the requested posterior. Raises BackendUnavailableError if the posterior needs a package that is not
    installed.

    Notes
    -----
    With "plain" the prior's gradient loc / s**2 follows the noise, unclipped: a step of learning rate r and sample rate
    q multiplies loc by 1 - r q / s**2, and it grows without end where that is below -1.
    """
    check_choice("recipe", recipe, RECIPES)
    for name, value in (("max_grad_norm", max_grad_norm), ("prior_scale", model.prior_scale)):
        check_interval(name, value, *SCALES, low_open=False, high_open=False)
    fisher = recipe in FISHER_RECIPES
    posterior.check(ReleaseFacts.planned(model, n_steps=plan.n_steps, n_records=n_records, fisher_scaled=fisher))
    if isinstance(learning_rate, str) and learning_rate == "heuristic":
        rate = 1.0 / (plan.noise_multiplier * max_grad_norm * math.sqrt(plan.n_steps))
    elif isinstance(learning_rate, (int, float)):
        rate = check_interval("learning_rate", learning_rate, 0.0, low_open=False)
    else:
        return
    if recipe != "plain":
        return
    least = math.sqrt(0.5 * plan.sample_rate * rate)
    if model.prior_scale < least:
        raise ValueError(
            f"prior_scale must be at least {least:.3g} with this recipe, noise, max_grad_norm and learning_rate, "
            f"got {model.prior_scale:g}: the steps would diverge"
        )

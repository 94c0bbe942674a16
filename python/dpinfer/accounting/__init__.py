"""Privacy accounting: from a description of a mechanism to a certified (epsilon, delta), and back to the noise.

Nothing in this package reads records.  Events describe mechanisms, adjacency relations define neighbours, and the
accountants bound epsilon; without a certified bound it is infinite.  The accountants are imported on first use, so that
code which only carries events and plans around stays light.
"""

from typing import TYPE_CHECKING

from dpinfer._lazy import lazy_names
from dpinfer.accounting.bound import AccountantFallbackWarning, PrivacyBound
from dpinfer.accounting.events import (
    Adjacency,
    ApproximateEvent,
    Composed,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
    add_remove_to_replace_one,
    as_adjacency,
    event_from_dict,
    run_event,
)
from dpinfer.accounting.guarantee import Guarantee

if TYPE_CHECKING:
    from dpinfer.accounting.accountant import AccountantName, account, calibrate_noise_multiplier, delta_for
    from dpinfer.accounting.charging import Charge, charge_run
    from dpinfer.accounting.curve import PrivacyCurve, gaussian_dp_mu, privacy_curve, zcdp_rho
    from dpinfer.accounting.ledger import LedgerAccount, PrivacyLedger
    from dpinfer.accounting.ledger_state import LedgerRun
    from dpinfer.accounting.noise_tables import NoiseTable, noise_table
    from dpinfer.accounting.plan import PrivacyPlan, plan_privacy

__all__ = [
    "AccountantFallbackWarning",
    "AccountantName",
    "Adjacency",
    "ApproximateEvent",
    "Charge",
    "Composed",
    "Event",
    "GaussianEvent",
    "Guarantee",
    "LedgerAccount",
    "LedgerRun",
    "NoiseTable",
    "NonPrivateEvent",
    "PoissonSampled",
    "PrivacyBound",
    "PrivacyCurve",
    "PrivacyLedger",
    "PrivacyPlan",
    "PureEvent",
    "SampledWithoutReplacement",
    "SelfComposed",
    "account",
    "add_remove_to_replace_one",
    "as_adjacency",
    "calibrate_noise_multiplier",
    "charge_run",
    "delta_for",
    "event_from_dict",
    "gaussian_dp_mu",
    "noise_table",
    "plan_privacy",
    "privacy_curve",
    "run_event",
    "zcdp_rho",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dpinfer.accounting.accountant": "AccountantName account calibrate_noise_multiplier delta_for",
        "dpinfer.accounting.charging": "Charge charge_run",
        "dpinfer.accounting.curve": "PrivacyCurve gaussian_dp_mu privacy_curve zcdp_rho",
        "dpinfer.accounting.ledger": "LedgerAccount PrivacyLedger",
        "dpinfer.accounting.ledger_state": "LedgerRun",
        "dpinfer.accounting.noise_tables": "NoiseTable noise_table",
        "dpinfer.accounting.plan": "PrivacyPlan plan_privacy",
    },
)

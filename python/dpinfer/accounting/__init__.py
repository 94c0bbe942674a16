"""Privacy accounting: from a description of a mechanism to a certified (epsilon, delta), and back to the noise.

Nothing in this package reads records.  Events describe mechanisms, adjacency relations define neighbours, and the
accountants bound epsilon; without a certified bound it is infinite.  The accountants are imported on first use, so that
code which only carries events and plans around stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpinfer.accounting.adjacency import Adjacency, add_remove_to_replace_one, as_adjacency
from dpinfer.accounting.bound import AccountantFallbackWarning, PrivacyBound
from dpinfer.accounting.events import (
    ApproximateEvent,
    Composed,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
    event_from_dict,
    run_event,
)
from dpinfer.accounting.guarantee import Guarantee

if TYPE_CHECKING:
    from dpinfer.accounting.accountant import AccountantName, account, delta_for
    from dpinfer.accounting.calibration import calibrate_noise_multiplier
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

_LAZY = {
    "AccountantName": "dpinfer.accounting.accountant",
    "Charge": "dpinfer.accounting.charging",
    "LedgerAccount": "dpinfer.accounting.ledger",
    "LedgerRun": "dpinfer.accounting.ledger_state",
    "NoiseTable": "dpinfer.accounting.noise_tables",
    "PrivacyCurve": "dpinfer.accounting.curve",
    "PrivacyLedger": "dpinfer.accounting.ledger",
    "PrivacyPlan": "dpinfer.accounting.plan",
    "account": "dpinfer.accounting.accountant",
    "calibrate_noise_multiplier": "dpinfer.accounting.calibration",
    "charge_run": "dpinfer.accounting.charging",
    "delta_for": "dpinfer.accounting.accountant",
    "gaussian_dp_mu": "dpinfer.accounting.curve",
    "noise_table": "dpinfer.accounting.noise_tables",
    "plan_privacy": "dpinfer.accounting.plan",
    "privacy_curve": "dpinfer.accounting.curve",
    "zcdp_rho": "dpinfer.accounting.curve",
}


def __getattr__(name: str) -> Any:
    """Import an accountant's public name on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

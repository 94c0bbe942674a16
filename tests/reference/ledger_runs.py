"""Runs that draw nothing, for tests of what a ledger says of them."""

from dpinfer.accounting import GaussianEvent, charge_run

EVENT = GaussianEvent(8.0)
DELTA = 1e-5


def charging(account, event=EVENT, **options):
    return charge_run(
        account, event, **({"adjacency": "add_remove", "mechanism": "test", "secure": True, "delta": DELTA} | options)
    )


def run(account, event=EVENT, **options):
    with charging(account, event, **options) as charge:
        charge.begin()
    return charge


def statuses(account):
    return [item.status for item in account.runs()]

"""What fits of an estimator and its clones add up to."""

import pytest

import dpinfer as dpi
from dpinfer.errors import RepeatedSpendingWarning
from dpinfer.estimators.private import Spending


def test_fits_under_several_relations_do_not_add_up():
    plans = [
        dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=5, adjacency=relation)
        for relation in ("add_remove", "replace_one")
    ]
    spending = Spending(plans)
    with pytest.raises(ValueError, match="under one adjacency"):
        spending.total()
    with pytest.warns(RepeatedSpendingWarning, match="number 2"):
        spending.warn_of(plans[1], None)
    # Said once; and a first fit is nothing to tell.
    spending.warn_of(plans[1], None)
    Spending().warn_of(plans[0], None)

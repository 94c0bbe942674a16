"""Where the likelihood is flat, the interval is the prior's, and the row says so."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.limit.tables import Table, compare

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")

N = 1500
FLAT = {
    "y ~ x + g": "g[T.never]",
    "y ~ g * h": "g[T.b]:h[T.v]",
    "y ~ x + z": "z",
    "y ~ 0 + g + x": "g[never]",
    "y ~ x + z + twice": "twice",
    "y ~ g + h + x:z": "g[T.never]",
    "y ~ same + x": "same",
}


def table_of(formula, family, seed, unit):
    rng = np.random.default_rng(seed)
    g, x = rng.choice(["a", "b"], N), rng.uniform(0.0, 1.0, N)
    data = {"g": g, "h": np.where(g == "a", "u", rng.choice(["u", "v"], N)), "x": unit * x, "z": unit * x}
    data |= {"twice": 2.0 * unit * x, "same": np.full(N, 0.25)}
    columns = {name: {"kind": "continuous", "bounds": [0.0, unit]} for name in "xz"}
    columns |= {"twice": {"kind": "continuous", "bounds": [0.0, 2.0 * unit]}}
    columns |= {"same": {"kind": "continuous", "bounds": [0.0, 1.0]}}
    columns |= {"g": {"kind": "categorical", "categories": ["a", "b", "never"]}}
    columns |= {"h": {"kind": "categorical", "categories": ["u", "v"]}}
    eta = 0.3 + x - 0.5 * (g == "b")
    if family == "gaussian":
        data["y"] = response = np.clip(eta + 0.5 * rng.normal(size=N), -3.0, 9.0)
        columns["y"] = {"kind": "continuous", "bounds": [-3, 9]}
    else:
        response = (rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
        data["y"] = np.where(response > 0.0, "yes", "no")
        columns["y"] = {"kind": "binary", "positive": "yes", "negative": "no"}
    return Table(formula, family, columns, data, response)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    formula=st.sampled_from(sorted(FLAT)),
    family=st.sampled_from(["gaussian", "binomial", "probit"]),
    seed=st.integers(0, 50),
    unit=st.sampled_from([1e-9, 1.0, 1e9]),
    epsilon=st.sampled_from([1e5, 1e6, 1e8]),
)
def test_a_row_without_a_likelihood_has_the_prior(formula, family, seed, unit, epsilon):
    """Unused levels, empty cells, equal columns, a column that does not vary."""
    table = table_of(formula, family, seed, unit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = table.fit(epsilon, seed)
    rows = {row.name: row for row in compare(table, fit)}
    flat = rows[FLAT[formula]]
    assert flat.marked, str(flat)
    assert flat.close, str(flat)
    assert "not true" not in fit.posterior.diagnostics.verdict
    # Sums that the records do determine are sharp.
    if formula == "y ~ x + z":
        both = fit.contrast({"x": 1.0, "z": 1.0})
        assert both.sd[0] < 0.2 * fit.coefficients()["x"]["sd"]

"""Rare exposures, and levels with few events: nothing shifts a true model, and rows say what they rest on."""

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.formulas.coefficients import FEW_EVENTS
from dpinfer.tabular import Schema
from dpinfer.testing import InsecureRNG

pytest.importorskip("formulaic", reason="formulas need the extra dpinfer[formula]")


def schema(kind):
    died = {"kind": "target", "positive": "1", "negative": "0"}
    columns = {
        "died": {"kind": "continuous", "bounds": [0, 50]} if kind == "poisson" else died,
        "age": {"kind": "continuous", "bounds": [-4, 4]},
        "sick": {"kind": "categorical", "categories": ["no", "yes"]},
    }
    return Schema.from_dict({"columns": columns})


def exposed(n, share, effect, seed, *, kind="binomial", base=-1.2):
    """A table in which an exposure of this share of the records has this effect, and the model is true."""
    rng = np.random.default_rng(seed)
    age, sick = rng.normal(size=n).clip(-4.0, 4.0), rng.random(n) < share
    eta = base + 1.2 * age + effect * sick
    if kind == "poisson":
        died = np.minimum(rng.poisson(np.exp(eta)), 50)
    else:
        chance = special.expit(eta) if kind == "binomial" else special.ndtr(eta)
        died = (rng.random(n) < chance).astype(int).astype(str)
    return {"died": died, "age": age, "sick": np.where(sick, "yes", "no")}


def fit(table, epsilon, seed, kind="binomial"):
    n = len(table["age"])
    return dpi.regression(
        "died ~ age + sick", table, schema=schema(kind), family=kind, epsilon=epsilon, delta=1e-6, n_records=n,
        random_source=InsecureRNG(seed),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["binomial", "probit"])
def test_a_rare_exposure_keeps_its_effect(kind):
    """One record in fifty of 8000, epsilon = 3: a clip that sees the response takes more than 0.5 off an effect of 0.6.

    An estimate has a standard deviation of about 0.25, so that the mean of eight is off by 0.35 in one of 10 000 tests.
    """
    found = [fit(exposed(8000, 0.02, 0.6, seed, kind=kind), 3.0, seed, kind) for seed in range(8)]
    rows = [each.coefficients()["sick[T.yes]"] for each in found]
    assert np.mean([row["mean"] for row in rows]) == pytest.approx(0.6, abs=0.35)
    assert np.sum([row["low"] < 0.6 < row["high"] for row in rows]) >= 5
    assert all(each.release.weight_bound < 1e300 for each in found)


CASES = [("binomial", -1.2), ("binomial", -3.0), ("probit", -1.2), ("poisson", -1.2)]


@pytest.mark.parametrize(("kind", "base"), CASES)
def test_without_noise_a_default_fit_is_the_ordinary_one(kind, base):
    """Within a tenth of a standard error of the zero of the exact scores, and 5% of the sandwich."""
    table = exposed(6000, 0.05, 1.0, 3, kind=kind, base=base)
    found = fit(table, 1e6, 1, kind)
    X = np.column_stack((table["age"], table["sick"] == "yes", np.ones(6000)))
    y, weights = table["died"].astype(float), np.zeros(3)
    for _ in range(60):
        score, curvature = scores_of(kind, X @ weights, y)
        step = np.linalg.solve((X * curvature[:, None]).T @ X, X.T @ score)
        weights = weights + step * min(1.0, 2.0 / np.abs(X @ step).max())
    score, curvature = scores_of(kind, X @ weights, y)
    inverse = np.linalg.inv((X * curvature[:, None]).T @ X)
    stddev = np.sqrt(np.diag(inverse @ (X * np.square(score)[:, None]).T @ X @ inverse))
    rows = [found.coefficients()[name] for name in ("age", "sick[T.yes]")]
    np.testing.assert_allclose([row["mean"] for row in rows], weights[:2], atol=0.1 * stddev[:2].min())
    np.testing.assert_allclose([row["sd"] for row in rows], stddev[:2], rtol=0.05)


def scores_of(kind, eta, y):
    if kind == "poisson":
        return y - np.exp(eta), np.exp(eta)
    if kind == "binomial":
        chance = special.expit(eta)
        return y - chance, chance * (1.0 - chance)
    sign = 2.0 * y - 1.0
    ratio = np.exp(-0.5 * np.square(eta) - special.log_ndtr(sign * eta)) / np.sqrt(2.0 * np.pi)
    return sign * ratio, ratio * (ratio + sign * eta)


def test_a_level_with_few_events_is_told_beside_its_row():
    """Three events among 300 exposed, however large the budget; none of the rows of an exposure with hundreds."""
    rng = np.random.default_rng(5)
    n = 8000
    sick = np.arange(n) < 300
    died = rng.random(n) < 0.2
    died[sick] = np.arange(300) < 3
    table = {"died": died.astype(int).astype(str), "age": rng.normal(size=n), "sick": np.where(sick, "yes", "no")}
    for epsilon in (3.0, 1e6):
        told = fit(table, epsilon, 2).coefficients()
        assert FEW_EVENTS in told.remark("sick[T.yes]")
        assert not told.remark("age")
    told = fit(exposed(8000, 0.2, 0.6, 4), 3.0, 4).coefficients()
    assert not any(told.remark(name) for name in told.names)

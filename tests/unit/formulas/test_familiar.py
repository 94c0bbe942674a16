"""The words of statsmodels on results: Series and data frames of the same numbers as the table of coefficients."""

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.mechanism import Units
from dpinfer.testing import InsecureRNG

pandas = pytest.importorskip("pandas", reason="needs pandas")

N = 3000
COLUMNS = {
    "y": {"kind": "continuous", "bounds": [-5, 15]},
    "won": {"kind": "binary", "positive": "1", "negative": "0"},
    "k": {"kind": "continuous", "bounds": [0, 30]},
    "kind": {"kind": "categorical", "categories": ["a", "b", "c"]},
    "x": {"kind": "continuous", "bounds": [0, 10]},
    "site": {"kind": "categorical", "categories": list("pqrst")},
    "home": {"kind": "ignore"},
}
SCHEMA = dpi.tabular.Schema.from_dict({"columns": COLUMNS})


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(12)
    x, site = rng.uniform(0.0, 10.0, N), rng.choice(list("pqrst"), N)
    return {
        "x": x, "site": site, "y": 1.0 + 0.5 * x + rng.normal(size=N), "kind": rng.choice(["a", "b", "c"], N),
        "won": (rng.random(N) < 1.0 / (1.0 + np.exp(2.0 - 0.3 * x))).astype(int), "k": rng.poisson(np.exp(0.1 * x)),
        "home": np.arange(N) // 3,
    }  # fmt: skip


KINDS = {
    "gaussian": ("y ~ x + kind", {}),
    "binomial": ("won ~ x", {"family": "binomial"}),
    "poisson": ("k ~ x", {"family": "poisson"}),
    "multinomial": ("kind ~ x", {"family": "multinomial"}),
    "sites": ("y ~ x + (1 | site)", {}),
    "persons": ("y ~ x + (1 | home)", {"unit": Units("home", max_rows=3), "n_records": N // 3}),
}


@pytest.fixture(scope="module")
def fits(table):
    made = {}

    def fit(name):
        if name not in made:
            formula, options = KINDS[name]
            given = {"schema": SCHEMA, "epsilon": 8.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(2)}
            made[name] = dpi.regression(formula, table, **(given | options))
        return made[name]

    return fit


@pytest.mark.parametrize("name", KINDS)
def test_series_and_frames_have_the_numbers_of_the_table(fits, name):
    fit = fits(name)
    coefficients, wide = fit.coefficients(), fit.coefficients(level=0.95)
    names = list(fit.params.index)
    assert set(names) <= set(coefficients.names)
    assert "sigma" not in names
    for word, head in ((fit.params, "mean"), (fit.bse, "sd")):
        np.testing.assert_allclose(word.to_numpy(), [coefficients[each][head] for each in names])
    ends, alpha = fit.conf_int(), fit.conf_int(alpha=0.1)
    assert list(ends.index) == names
    np.testing.assert_allclose(ends[0], [wide[each]["low"] for each in names])
    np.testing.assert_allclose(alpha[1], [coefficients[each]["high"] for each in names])
    covariance = fit.cov_params()
    assert list(covariance.columns) == list(covariance.index) == names
    np.testing.assert_allclose(covariance, covariance.T)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), fit.bse, rtol=1e-6)
    assert fit.nobs == fit.fit.nobs


def test_the_covariance_is_that_of_contrasts(fits):
    fit = fits("gaussian")
    vector = pandas.Series({"kind[T.b]": 1.0, "kind[T.c]": -1.0})
    covariance = fit.cov_params().loc[vector.index, vector.index]
    sd = np.sqrt(vector @ covariance @ vector)
    np.testing.assert_allclose(sd, fit.contrast(vector.to_dict()).sd[0], rtol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_predictions_have_the_index_of_the_frame(fits, name):
    fit = fits(name)
    points = {"x": [1.0, np.nan, 7.0], "kind": ["a", "b", "c"], "site": ["p", "q", "p"]}
    frame = pandas.DataFrame(points, index=[7, 9, 40])
    plain, shown = fit.predict(points, return_std=True), fit.predict(frame, return_std=True)
    for own, with_index in zip(plain, shown, strict=True):
        assert isinstance(own, np.ndarray)
        assert list(with_index.index) == [7, 9, 40]
        np.testing.assert_array_equal(np.asarray(with_index), own)
        assert np.isnan(own[1]).all()
    if name == "multinomial":
        assert list(shown[0].columns) == list(fit.design.classes)
        with pytest.raises(ValueError, match="interval must be None for a multinomial"):
            fit.predict(points, interval="mean")
        return
    of_mean, of_response = (fit.predict(frame, interval=each) for each in ("mean", "response"))
    assert list(of_mean.columns) == ["mean", "sd", "low", "high"]
    assert list(of_mean.index) == [7, 9, 40]
    np.testing.assert_allclose(of_mean["mean"], plain[0])
    told = of_mean.loc[[7, 40]]
    assert (told["low"] < told["mean"]).all()
    assert (told["mean"] < told["high"]).all()
    np.testing.assert_allclose((told["high"] - told["low"]) / told["sd"], 2 * 1.645, rtol=0.15)
    wider = of_response.loc[[7, 40]]
    assert (wider["high"] - wider["low"] > told["high"] - told["low"]).all()
    both = fit.predict(points, interval="mean", level=0.5)
    assert np.all((both["high"] - both["low"])[[0, 2]] < (told["high"] - told["low"]).to_numpy())
    with pytest.raises(ValueError, match="interval must be one of"):
        fit.predict(points, interval="confidence")


def test_intervals_of_a_new_response_hold(fits, table):
    """90% of 3000 responses, give or take 4 standard deviations of 0.6%."""
    found = fits("gaussian").predict({"x": table["x"], "kind": table["kind"]}, interval="response")
    inside = (found["low"] < table["y"]) & (table["y"] < found["high"])
    assert abs(inside.mean() - 0.9) < 0.025


def test_without_pandas_the_words_say_what_to_read(fits, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(dpi.errors.BackendUnavailableError, match=r"coefficients\(\)"):
        _ = fits("gaussian").params

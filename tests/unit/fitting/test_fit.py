"""The front door: what is refused before spending, what is charged, and what is kept whatever happens."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.reference.own_models import CURVED, EXAMPLES

import dpinfer as dpi
from dpinfer.errors import FallbackWarning, NumericalError, RecordError, ReleaseFormatError
from dpinfer.fitting.report import ReportContent, promise, render
from dpinfer.inference.newton import posterior as newton_posterior
from dpinfer.inference.posterior.diagnostics import PosteriorDiagnostics
from dpinfer.testing import InsecureRNG

N = 3000
PUBLIC = {"epsilon": 2.0, "delta": 1e-5, "n_records": N}
MODEL = dpi.models.LogisticRegression(2, fit_intercept=True)


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 2))
    return X, (rng.random(N) < 1.0 / (1.0 + np.exp(-X[:, 0]))).astype(float)


@pytest.fixture(scope="module")
def fitted(records):
    return dpi.fit(MODEL, *records, random_source=InsecureRNG(3), **PUBLIC)


@pytest.fixture
def account(tmp_path):
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    return ledger.add_dataset("people", budget=(5.0, 1e-5))


def untouchable(n_columns=2):
    class Untouchable:
        def __array__(self, dtype=None, copy=None):
            raise AssertionError("a record was looked at")

        shape = (N, n_columns)

    return Untouchable()


def broken(*args, **kwargs):
    raise np.linalg.LinAlgError("no luck")


def test_the_posterior_is_about_the_weights(fitted):
    low, high = fitted.posterior.quantile([0.0005, 0.9995])
    assert np.all((low < [1.0, 0.0, 0.0]) & (high > [1.0, 0.0, 0.0]))
    assert fitted.plan.method == "newton"
    assert fitted.release.n_passes == fitted.plan.n_passes
    assert fitted.choice is fitted.plan.choice
    assert not fitted.failure


def test_the_release_is_that_of_the_plan_alone(fitted, records):
    release = fitted.plan.run(*records, random_source=InsecureRNG(3))
    np.testing.assert_array_equal(release.scores, fitted.release.scores)
    assert release.event == fitted.plan.event


@pytest.mark.parametrize(
    ("model", "method", "kind", "y"),
    [
        (dpi.models.BetaBernoulli(), "statistic", dpi.StatisticRelease, False),
        (dpi.models.BetaBernoulli(), "dpvi", dpi.GradientTrace, False),
        (MODEL, "newton", dpi.PopulationRelease, True),
        (dpi.models.LogisticRegression(2), "sep", dpi.SiteRelease, True),
    ],
)
def test_every_route_runs_and_has_its_posterior(model, method, kind, y, records):
    X, labels = records
    given = (X, labels) if y else (labels,)
    result = dpi.fit(model, *given, method=method, random_source=InsecureRNG(1), **PUBLIC)
    assert isinstance(result.release, kind)
    assert result.posterior.mean.shape == (model.n_params,)
    assert result.posterior.method == method
    assert method in str(result.summary())


def test_linear_regression_needs_a_public_scale_before_anything_is_spent(records, account):
    model = dpi.models.LinearRegression(2)
    with pytest.raises(ValueError, match="response_scale must be given"):
        dpi.fit(model, untouchable(), untouchable(), ledger=account, **PUBLIC)
    with pytest.raises(ValueError, match="response_scale must be given"):
        dpi.plan_fit(model, **PUBLIC).run(untouchable(), untouchable(), ledger=account)
    assert account.runs() == ()
    X, _ = records
    y = X @ [1.0, -1.0] + np.random.default_rng(2).normal(size=N)
    result = dpi.fit(model, X, y, response_scale=1.0, random_source=InsecureRNG(1), **PUBLIC)
    assert isinstance(result.release, dpi.PopulationRelease)
    assert np.all(np.abs(result.posterior.mean[:2] - [1.0, -1.0]) < 6.0 * result.posterior.stddev[:2])


@pytest.mark.parametrize(
    ("model", "options", "error", "text"),
    [
        (MODEL, {"method": "statistic"}, ValueError, "method must be one of auto, newton, dpvi, sep"),
        (MODEL, {"response_scale": 1.0}, ValueError, "response_scale must be None"),
        (MODEL, {"posterior": dpi.PosteriorRequest(approximation="laplace")}, ValueError, "approximation must be left"),
        (MODEL, {"posterior": "exact"}, TypeError, "posterior must be a PosteriorRequest"),
        (MODEL, {"method": "dpvi", "posterior": dpi.PosteriorRequest(prior="empirical", hessian="full")}, ValueError,
         "prior must be"),
        (dpi.models.BetaBernoulli(), {"checkpoint": "run"}, ValueError, "checkpoint must be None"),
        (MODEL, {"speed": 1}, TypeError, "unexpected keyword argument 'speed'"),
        (MODEL, {"epsilon": -1.0}, ValueError, "epsilon"),
        (dpi.models.BayesianNeuralNetwork(2, 3), {"adjacency": "replace_one"}, ValueError,
         "model must be one that some mechanism fits"),
        (dpi.models.GaussianMixture(2, 2), {"posterior": dpi.PosteriorRequest(hessian="full")}, ValueError, "hessian"),
        ("logistic", {}, TypeError, "model must be a Model"),
    ],
)  # fmt: skip
def test_what_can_be_refused_is_refused_before_spending(model, options, error, text, account):
    with pytest.raises(error, match=text):
        dpi.fit(model, untouchable(), untouchable(), ledger=account, **(PUBLIC | options))
    assert account.runs() == ()


def test_the_ledger_is_charged_once_for_run_posterior_and_files(records, account, tmp_path):
    result = dpi.fit(MODEL, *records, ledger=account, path=tmp_path / "fit", **PUBLIC)
    (run,) = account.runs()
    assert (run.status, run.event) == ("finished", result.plan.event)
    assert result.release.epsilon <= 2.0


def test_a_fit_is_saved_and_read_back(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    again = dpi.load_fit(tmp_path / "fit")
    assert str(again) == str(fitted)
    assert again.plan.to_dict() == fitted.plan.to_dict()
    np.testing.assert_array_equal(again.posterior.mean, fitted.posterior.mean)
    np.testing.assert_array_equal(again.release.scores, fitted.release.scores)
    assert again.plan.mechanism.certify().epsilon == pytest.approx(again.plan.epsilon)


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"format": "dpinfer-fit", "version": 1, "plan": {}}'])
def test_a_damaged_plan_is_refused(fitted, tmp_path, text):
    fitted.save(tmp_path)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ReleaseFormatError, match=r"plan\.json"):
        dpi.load_fit(tmp_path)


def test_the_release_is_saved_before_the_posterior_and_kept_when_it_fails(records, tmp_path, monkeypatch, account):
    folder = tmp_path / "fit"
    seen = []

    def failing(release, request):
        seen.append((folder / "fit.release").exists())
        raise np.linalg.LinAlgError("no luck")

    monkeypatch.setattr("dpinfer.methods.method.noise_aware_posterior", failing)
    with pytest.warns(FallbackWarning, match="the private run is paid for"):
        result = dpi.fit(MODEL, *records, ledger=account, path=folder, **PUBLIC)
    assert seen == [True]
    with pytest.raises(NumericalError, match=r"fit\.release"):
        _ = result.posterior
    assert "no luck" in str(result.summary())
    again = dpi.load_fit(folder)
    assert "no luck" in again.failure
    np.testing.assert_array_equal(again.release.scores, result.release.scores)
    # It can still be analysed, for nothing.
    assert dpi.noise_aware_posterior(again.release, n_samples=20).mean.shape == (3,)
    assert len(account.runs()) == 1


def test_an_interrupt_of_the_posterior_hands_over_the_release(records, monkeypatch):
    def interrupted(release, request):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpinfer.methods.method.noise_aware_posterior", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        dpi.fit(MODEL, *records, random_source=InsecureRNG(1), **PUBLIC)
    assert isinstance(caught.value.release, dpi.PopulationRelease)


def test_a_disk_that_fills_up_loses_nothing(records, tmp_path, monkeypatch):
    def full(self, path):
        raise OSError(28, "No space left on device")

    place = tmp_path / "run"
    monkeypatch.setattr(dpi.PopulationRelease, "save", full)
    with pytest.warns(FallbackWarning, match="could not be saved"):
        result = dpi.fit(
            MODEL, *records, path=tmp_path / "fit", checkpoint=place, random_source=InsecureRNG(1), **PUBLIC
        )
    assert result.posterior.mean.shape == (3,)
    # The run can be had again from its checkpoint, which goes when the release is safe.
    assert place.exists()
    monkeypatch.undo()
    again = dpi.fit(MODEL, *records, path=tmp_path / "fit", checkpoint=place, random_source=InsecureRNG(9), **PUBLIC)
    np.testing.assert_array_equal(again.release.scores, result.release.scores)
    assert not place.exists()


def test_a_folder_that_holds_a_fit_is_not_written_over(fitted, tmp_path, account):
    fitted.save(tmp_path / "fit")
    with pytest.raises(FileExistsError, match="path must be a folder without a fit"):
        dpi.fit(MODEL, untouchable(), untouchable(), path=tmp_path / "fit", ledger=account, **PUBLIC)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        dpi.fit(MODEL, untouchable(), untouchable(), path=tmp_path / "file", ledger=account, **PUBLIC)
    assert account.runs() == ()


def test_bad_records_are_refused_without_quoting_them(records):
    X, y = records
    wrong = X.copy()
    wrong[7, 1] = np.nan
    with pytest.raises(RecordError) as caught:
        dpi.fit(MODEL, wrong, y, **PUBLIC)
    assert "7" not in str(caught.value)


def test_the_report_is_one_page_that_quotes_what_it_is_given(records, tmp_path):
    named = dpi.models.LogisticRegression(2, fit_intercept=True, feature_names=("<script>a", "b"))
    result = dpi.fit(named, *records, random_source=InsecureRNG(3), **PUBLIC)
    result.report(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "NOT PRIVATE" in page
    assert "&lt;script&gt;a" in page
    assert "<script" not in page
    sections = re.findall("<h2>(.*?)</h2>", page)
    assert sections == [
        "Privacy guarantee", "Estimates", "Diagnostics", "The run", "Choice of the mechanism", "Use it again"
    ]  # fmt: skip
    assert [page.count(f'<td data-head="{head}"') for head in ("Mean", "Prior", "Reference")] == [3, 3, 0]
    assert f"<td>Records declared</td><td>{N} (public)</td>" in page


def test_the_report_says_what_a_check_has_found(fitted):
    def shown(diagnostics):
        posterior = replace(fitted.posterior, diagnostics=diagnostics)
        page = render(ReportContent(release=fitted.release, posterior=posterior, plan=fitted.plan))
        return [
            page.partition(f"<h2>{name}</h2>")[2].partition("</section>")[0] for name in ("Warnings", "Diagnostics")
        ]

    verdict = "Prior.\nThe release does not fit its model: <x>."
    warned, told = shown(PosteriorDiagnostics(warnings="fit", verdict=verdict))
    assert "does not fit its model: &lt;x&gt;" in warned
    assert "Prior." not in warned
    assert "Prior." in told
    assert shown(PosteriorDiagnostics(verdict=verdict))[0] == ""


def test_a_long_posterior_shows_how_far_it_is(records, monkeypatch):
    seen = []
    monkeypatch.setattr(
        newton_posterior, "resolve_progress", lambda progress, label: seen.append((progress, label)) or told
    )

    def told(done, total):
        seen.append((done, total))

    release = dpi.fit(MODEL, *records, target="model", random_source=InsecureRNG(3), **PUBLIC).release
    seen.clear()
    again = dpi.noise_aware_posterior(release, progress=True)
    (asked, first, *_, before, last) = seen
    assert (asked, first[0], last[0]) == ((True, "posterior"), 0, last[1])
    assert 0 < before[0] < before[1] == last[1]
    monkeypatch.undo()
    np.testing.assert_array_equal(again.mean, dpi.noise_aware_posterior(release).mean)


def test_the_promise_in_words():
    guarantee = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=1.0, n_steps=3).guarantee
    assert "changes by a factor of at most 2.72, up to a probability of 1e-05." in promise(guarantee)


def test_the_plan_file_holds_public_numbers_alone(fitted, tmp_path):
    fitted.save(tmp_path)
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["plan"]["target"]["n_records"] == N
    assert set(data["plan"]) == {"model", "target", "method", "mechanism", "settings", "candidates", "assumes"}


def test_a_plan_says_where_a_posterior_will_not_be_near_normal():
    plans = {
        name: dpi.plan_fit(example().model, epsilon=1.0, delta=1e-5, n_records=500)
        for name, example in {"curved": CURVED["zero-inflated"], "ordinal": EXAMPLES["ordinal"]}.items()
    }
    assert "not near normal" in str(plans["curved"])
    assert "not near normal" not in str(plans["ordinal"])


def test_a_model_of_ones_own_from_records_to_a_saved_fit(tmp_path):
    example = EXAMPLES["ordinal"]()
    model, rng = example.model, np.random.default_rng(1)
    X = example.features(N, rng)
    theta = model.parameters.prior_mean
    y = model.draw_responses(theta, X, rng.integers(0, 2**64, (N, 1), dtype=np.uint64))
    with pytest.raises(ValueError, match="burn_in"):
        dpi.fit(model, untouchable(4), y, posterior=dpi.PosteriorRequest(burn_in=20), **PUBLIC)
    fit = dpi.fit(model, X, y, path=tmp_path / "fit", random_source=InsecureRNG(1), **PUBLIC)
    assert isinstance(fit.release, dpi.OwnPopulationRelease)
    assert np.all(np.abs(fit.posterior.distribution.marginals.mean - theta) < 5.0 * fit.posterior.stddev)
    loaded = dpi.load_fit(tmp_path / "fit", model=model)
    assert loaded.plan.predicted_width == fit.plan.predicted_width
    np.testing.assert_array_equal(loaded.posterior.mean, fit.posterior.mean)
    again = loaded.plan.run(X, y, random_source=InsecureRNG(1))
    np.testing.assert_array_equal(again.scores, fit.release.scores)

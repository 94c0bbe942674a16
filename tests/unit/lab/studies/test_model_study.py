"""Studies of a user's own regression: the same runs as the engine's, and a link that the engine does not know."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

import dpinfer as dpi
from dpinfer.lab.studies import ModelStudy, Study, coverage_study
from dpinfer.lab.studies.recipes import find
from dpinfer.lab.studies.simulation import simulate_data
from dpinfer.models import GeneralizedLinearModel, LinearRegression, LogisticRegression, register_model

SIZES = {"n_records": 500, "n_steps": 80, "sample_rate": 0.2}


@register_model
@dataclass(frozen=True)
class HeavyRegression(GeneralizedLinearModel):
    """The inverse of Student's distribution function with two degrees of freedom as link."""

    response: ClassVar[str] = "binary"

    def inverse_link(self, eta):
        return 0.5 + 0.5 * eta / np.sqrt(2.0 + eta**2)

    def log_density(self, eta, response):
        return np.log(self.inverse_link((2.0 * response - 1.0) * eta))

    def loss_slopes(self, eta, response, loc):
        sign = 2.0 * response - 1.0
        ratio = (2.0 + eta**2) ** -1.5 / self.inverse_link(sign * eta)
        return -sign * ratio, ratio * (ratio + sign * 3.0 * eta / (2.0 + eta**2))

    def expected_curvature(self, loc, spread):
        return 0.5 / (1.0 + 0.75 * spread)


def test_runs_are_those_of_the_engine():
    """Linear regression as both: the same truths, and posteriors of the same traces, but for a rule of blocks."""
    engine, model = find("linear-regression"), find("linear-regression").model
    study = ModelStudy(model, n_records=500, n_steps=100, sample_rate=0.2)
    settings = {"recipe": "tied", "n_draws": 10, "n_threads": 1, "max_grad_norm": 3.0}
    own = study.run_chunk(
        0, 2, method="exact", epsilon=2.0, seed=5, settings=settings | {"hessian": "tied", "n_nodes": 16}
    )
    compiled = engine.run_chunk(
        0, 2, method="exact", epsilon=2.0, seed=5,
        settings=settings | {"n_records": 500, "n_steps": 100, "sample_rate": 0.2},
    )  # fmt: skip
    np.testing.assert_array_equal(own.truth, compiled.truth)
    np.testing.assert_allclose(own.centre, compiled.centre, atol=0.1 * np.max(compiled.scale))
    np.testing.assert_allclose(own.width90, compiled.width90, rtol=0.1)


def test_a_link_of_ones_own_is_calibrated():
    """So many of 16 truths outside the 90% intervals has a chance of at least 1e-6: the false-positive rate."""
    study = ModelStudy(HeavyRegression(1), **SIZES)
    chunk = study.run_chunk(
        0, 16, method="exact", epsilon=2.0, seed=2,
        settings={"recipe": "tied", "n_draws": 10, "n_threads": 1, "max_grad_norm": 3.0},
    )  # fmt: skip
    outside = int(np.sum(np.abs(chunk.pit - 0.5) > 0.45))
    assert not chunk.failed.any()
    assert stats.binom.sf(outside - 1, 16, 0.1) > 1e-6
    # The power twin: intervals a tenth as wide.
    narrow = stats.norm.cdf((chunk.truth - chunk.centre) / (0.1 * chunk.scale))
    assert stats.binom.sf(int(np.sum(np.abs(narrow - 0.5) > 0.45)) - 1, 16, 0.1) < 1e-6


def test_it_is_taken_in_place_of_a_name():
    study = ModelStudy(HeavyRegression(1), **SIZES)
    assert isinstance(study, Study)
    found = coverage_study(study, n_runs=2, epsilon=2.0, recipe="tied", n_draws=20, max_grad_norm=3.0)
    assert (found.study, found.n_failed) == ("HeavyRegression", 0)


def test_what_belongs_to_a_run_does_not_depend_on_its_chunk():
    study = ModelStudy(HeavyRegression(1), n_records=300, n_steps=40, sample_rate=0.2)
    arguments = {
        "method": "exact", "epsilon": 1.0, "seed": 3,
        "settings": {"recipe": "tied", "n_draws": 5, "max_grad_norm": 2.0},
    }  # fmt: skip
    together, alone = study.run_chunk(1, 2, **arguments), study.run_chunk(2, 1, **arguments)
    assert together.centre[1].tobytes() == alone.centre[0].tobytes()
    data = simulate_data(study.model, 300, first=2, count=1, seed=3)
    np.testing.assert_array_equal(data.truth, alone.truth)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="generalised linear"):
        ModelStudy(dpi.models.BetaBernoulli())
    with pytest.raises(ValueError, match="n_steps"):
        ModelStudy(LogisticRegression(1), n_steps=1)
    assert ModelStudy(LinearRegression(1)).parameters == ("coef[0]", "noise_variance")

"""Diagnostics of posteriors are one type: what there is can be read by name, by a program and by people."""

from dataclasses import fields, replace

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.inference import PosteriorDiagnostics
from dpinfer.release import release_from_arrays


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(2)
    x = rng.normal(2.0, 1.0, (400, 3))
    g = 5.0 * (x - 2.0) + rng.normal(0.0, 3.0, x.shape)
    release = release_from_arrays(x, g, noise_stddev=3.0, sample_rate=0.1, family="point")
    return dpi.noise_aware_posterior(release, burn_in=0)


def test_what_a_method_does_not_say_is_none_and_not_in_the_dictionary(posterior):
    said = posterior.diagnostics.to_dict()
    for item in fields(PosteriorDiagnostics):
        value = getattr(posterior.diagnostics, item.name)
        assert (item.name in said) == (value is not None and not (isinstance(value, (str, tuple)) and not value))
    assert {"noise_ratio", "n_steps_used", "verdict"} <= set(said)
    assert not {"rhat", "fallback", "prior_only"} & set(said)
    assert PosteriorDiagnostics().to_dict() == {}
    assert repr(PosteriorDiagnostics()) == "PosteriorDiagnostics"


def test_zero_and_false_are_said():
    said = PosteriorDiagnostics(share_dropped=0.0, burn_in_holds=np.False_, n_steps_used=np.int64(0)).to_dict()
    assert said == {"n_steps_used": 0, "burn_in_holds": False, "share_dropped": 0.0}
    assert [type(value) for value in said.values()] == [int, bool, float]


def test_every_diagnostic_is_a_line_and_every_field_is_documented(posterior):
    lines = repr(posterior.diagnostics).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(posterior.diagnostics.to_dict())
    assert "median" in lines[1]
    names = PosteriorDiagnostics.__doc__.partition("Parameters\n")[2].partition("Raises\n")[0].replace(",", " ").split()
    assert {item.name for item in fields(PosteriorDiagnostics)} <= set(names)


def test_arrays_cannot_be_written_to_and_the_callers_stay_as_they_are(posterior):
    with pytest.raises(ValueError, match="read-only"):
        posterior.diagnostics.noise_ratio[0] = 2.0
    own = np.ones(3)
    PosteriorDiagnostics(noise_ratio=own)
    own[0] = 2.0


def test_anything_else_is_refused(posterior):
    with pytest.raises(TypeError, match="diagnostics must be PosteriorDiagnostics, got dict"):
        replace(posterior, diagnostics={"n_steps_used": 3})
    with pytest.raises(TypeError, match="n_steps"):
        PosteriorDiagnostics(n_steps=3)

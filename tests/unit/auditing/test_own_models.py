"""A link of a user's own is audited as the library's are, and a wrong sum of it is found out."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy import special

import dpinfer as dpi
from dpinfer.auditing import audit
from dpinfer.auditing import checks as check_module
from dpinfer.auditing.paths import model_paths
from dpinfer.mechanism.sums import gradients
from dpinfer.mechanism.sums.sites import EvidenceSession
from dpinfer.models import GeneralizedLinearModel
from dpinfer.testing import InsecureRNG


@dataclass(frozen=True)
class CauchitRegression(GeneralizedLinearModel):
    """P(y = 1) = 1/2 + arctan(eta) / pi."""

    response: ClassVar[str] = "binary"

    def inverse_link(self, eta):
        return 0.5 + np.arctan(eta) / np.pi

    def log_density(self, eta, response):
        return np.log(self.inverse_link((2.0 * response - 1.0) * eta))

    def loss_slopes(self, eta, response, loc):
        sign = 2.0 * response - 1.0
        ratio = 1.0 / (np.pi * (1.0 + eta**2)) / self.inverse_link(sign * eta)
        return -sign * ratio, ratio**2 + sign * ratio * 2.0 * eta / (1.0 + eta**2)

    def expected_curvature(self, loc, spread):
        return 0.4 / (1.0 + spread)


def test_every_path_of_it_passes_the_checks_of_the_library():
    for path in model_paths(CauchitRegression(3)):
        for canary in (path.plus, path.minus):
            near = path.opposed(canary)
            assert check_module.check_neighbours(path, "", near, canary, InsecureRNG(1), alpha=1e-6).passed
        assert check_module.check_noise(path, "", path.base, 1.0, 400, InsecureRNG(2), alpha=1e-6).passed


def test_the_audit_lists_it():
    planned = sys.modules["dpinfer.auditing.audit"]._plan(1000, 1.0, InsecureRNG(3), model_paths(CauchitRegression(3)))
    names = [check.args[1] for check in planned if isinstance(check.args[1], str)]
    for path in ("CauchitRegression, quadrature", "CauchitRegression, draws", "DP-SEP, CauchitRegression"):
        assert path in names
        assert f"{path}: opposed, canary -" in names
    with pytest.raises(TypeError, match="regressions without a noise variance"):
        audit(1000, models=[dpi.models.LinearRegression(2)])


def test_a_sum_that_is_not_clipped_is_found_out(monkeypatch):
    """The power twin: contributions are divided by a thousand first, and the sum multiplied by it."""

    class Loose(gradients.NumpySession):
        def noisy_sum(self, step, beta, offset, noise_multiplier):
            return 1000.0 * super().noisy_sum(step, beta / 1000.0, offset / 1000.0, noise_multiplier)

    path = model_paths(CauchitRegression(3))[0]
    with monkeypatch.context() as patch:
        patch.setattr(gradients, "NumpySession", Loose)
        wrong = check_module.check_neighbours(path, "", path.opposed(path.plus), path.plus, InsecureRNG(1), alpha=1e-6)
    assert not wrong.passed


def test_the_evidence_has_the_slopes_of_its_logarithm():
    """Against quadrature of the same integral by differences, far from the node count that is used."""
    model, nodes = CauchitRegression(1), np.polynomial.hermite_e.hermegauss(60)
    rule = nodes[0], nodes[1] / nodes[1].sum()
    session = EvidenceSession(model, np.ones((1, 1)), np.ones(1), rule=rule, max_site_norm=1.0, key=bytes(32))
    session.set_state(
        cavity_loc=np.zeros((1, 1)), cavity_cov=np.ones((1, 1, 1)), centre=np.zeros((1, 1)), neutral=np.zeros(2),
        block_weight=1.0,
    )  # fmt: skip

    def log_evidence(mean, variance):
        grid, weights = special.roots_hermitenorm(400)
        density = np.exp(model.log_density(mean + np.sqrt(variance) * grid, np.ones(400)))
        return np.log(np.sum(weights * density) / np.sqrt(2.0 * np.pi))

    for mean, variance in ((0.3, 0.2), (-1.0, 0.5)):
        first, second = session._slopes(np.array([mean]), np.array([variance]), np.ones(1))
        step = 1e-3
        up, here, down = (log_evidence(mean + shift, variance) for shift in (step, 0.0, -step))
        assert first[0] == pytest.approx((up - down) / (2.0 * step), rel=1e-4)
        assert second[0] == pytest.approx(-(up - 2.0 * here + down) / step**2, rel=1e-3)

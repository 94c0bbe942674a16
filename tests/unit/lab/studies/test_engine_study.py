"""The laboratory around the compiled engine: simulated runs, resumed and spread over threads, give the same bits."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special, stats
from tests.reference.analytic_study import assert_same

import dpinfer as dpi
from dpinfer.lab import _native
from dpinfer.lab.studies.chunk import ChunkResult

N_RECORDS, N_STEPS = 500, 300


@dataclass(frozen=True)
class BernoulliEngine:
    """Beta-Bernoulli runs of the batch engine; the naive posterior q at the last iterate."""

    name: str = "beta-bernoulli-engine"
    parameters: tuple = ("logit p",)

    def run_chunk(self, first, count, *, method, epsilon, seed, settings):
        truth, counts, keys, reference = np.empty((count, 1)), np.empty((count, 2), dtype=np.int64), [], []
        for row in range(count):
            rng = np.random.default_rng([seed, first + row])
            p = rng.beta(10.0, 10.0)
            ones = int(rng.binomial(N_RECORDS, p))
            truth[row], counts[row] = special.logit(p), (N_RECORDS - ones, ones)
            keys.append(hashlib.sha256(f"{seed} {first + row}".encode()).digest())
            exact = stats.beta.ppf([0.05, 0.95], 10.0 + ones, 10.0 + N_RECORDS - ones)
            reference.append(np.ptp(special.logit(exact)))
        nodes, weights = np.polynomial.hermite_e.hermegauss(16)
        settings_of_run = {
            "n_steps": N_STEPS,
            "n_records": N_RECORDS,
            "sample_rate": 0.1,
            "noise_multiplier": 0.2 / epsilon,
            "max_grad_norm": 4.0,
            "kind": "quadrature",
            "n_draws": 1,
            "per_example": False,
            "fisher": True,
            "raw_ratio": 0.5,
            "excursion": 1.0,
            "grad_scale": np.ones(2),
            "learning_rate": np.ones(2),
            "schedule": np.full(N_STEPS, 0.1),
            "start": np.array([0.0, -2.0]),
        }
        runs = _native.simulate_conjugate(
            family="binomial",
            prior=np.array([10.0, 10.0]),
            n_trials=1.0,
            statistics=np.array([[0.0], [1.0]]),
            counts=counts,
            settings=settings_of_run,
            boundaries=np.array([0, N_STEPS], dtype=np.int64),
            nodes=np.ascontiguousarray(nodes[:, None]),
            weights=np.ascontiguousarray(weights / weights.sum()),
            keys=keys,
            n_threads=settings["n_threads"] or 0,
            keep_trace=False,
        )
        centre, scale = runs["final_params"][:, :1], np.logaddexp(0.0, runs["final_params"][:, 1:])
        normal = [
            np.random.default_rng([seed, 1, first + i]).standard_normal(settings["n_draws"]) for i in range(count)
        ]
        return ChunkResult(
            truth=truth,
            draws=centre + scale * np.stack(normal, axis=1)[..., None],
            centre=centre,
            scale=scale,
            pit=special.ndtr((truth - centre) / scale),
            width90=2.0 * special.ndtri(0.95) * scale,
            reference_width90=np.array(reference)[:, None],
            failed=~runs["finite"],
        )


OPTIONS = {"method": "naive", "n_runs": 24, "n_draws": 50, "n_repeats": 3, "epsilon": 10.0}


@pytest.fixture(scope="module")
def whole():
    """All runs in one chunk."""
    return dpi.coverage_study(BernoulliEngine(), chunk_size=24, **OPTIONS)


def test_posteriors_are_posteriors(whole):
    assert whole.n_failed == 0
    assert np.all(np.abs(whole.sbc.mean_z) < 3.0)
    assert 0.5 < np.median(whole.relative_width) < 2.0


def test_same_bits_in_chunks_threads_and_after_a_break(whole, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        assert_same(dpi.coverage_study(BernoulliEngine(), executor=pool, chunk_size=5, **OPTIONS).runs, whole.runs)
    dpi.coverage_study(BernoulliEngine(), checkpoint=tmp_path, chunk_size=7, n_threads=1, **OPTIONS | {"n_runs": 9})
    resumed = dpi.coverage_study(BernoulliEngine(), checkpoint=tmp_path, chunk_size=11, n_threads=2, **OPTIONS)
    assert_same(resumed.runs, whole.runs)

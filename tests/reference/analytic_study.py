"""A study whose posterior is known in closed form, in the place of the real ones: a normal mean seen through noise."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import special

from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.run_statistics import reduce_chunk

PRIOR_VARIANCE = np.array([1.0, 4.0])
DATA_VARIANCE = np.array([0.1, 0.5])
PRIVACY_VARIANCE = 0.05
SETTINGS = {"recipe": None, "n_draws": 40, "n_threads": 1}
WIDTH90 = 2.0 * special.ndtri(0.95)


@dataclass(frozen=True)
class AnalyticStudy:
    """theta ~ N(0, prior); statistic ~ N(theta, data); release ~ N(statistic, privacy / epsilon).

    Methods: "exact"; "naive", which forgets the privacy noise; "shifted" by half a posterior standard deviation;
    "no-draws"; "broken", which fails on every seventh run, each time in another way.
    """

    name: str = "analytic"
    parameters: tuple = ("a", "b")
    fail_at: int | None = None
    error: type = RuntimeError
    log: str | None = None
    delay: float = 0.0
    reference_box: tuple = ((-3.0, -6.0), (3.0, 6.0))

    def run_chunk(self, first, count, *, method, epsilon, seed, settings):
        if method not in ("exact", "naive", "shifted", "no-draws", "broken"):
            raise ValueError(f"method must be one that this study knows, got {method!r}")
        if self.log is not None:
            (Path(self.log) / f"{first}-{first + count}").touch()
        if self.delay:
            time.sleep(self.delay)
        if self.fail_at is not None and first <= self.fail_at < first + count:
            raise self.error("injected")
        runs = [
            self._run(np.random.default_rng([seed, first + i]), method, epsilon, settings["n_draws"])
            for i in range(count)
        ]
        columns = [np.stack(column, axis=0) for column in zip(*runs, strict=True)]
        truth, draws, centre, scale, reference = columns
        failed = np.zeros(count, dtype=bool)
        pit = special.ndtr((truth - centre) / scale)
        if method == "broken":
            for row, run in enumerate(range(first, first + count)):
                if run % 7 == 0:
                    kind = run // 7 % 5
                    failed[row] = kind == 0
                    if kind == 1:
                        draws[row, 3, 0] = np.nan
                    elif kind == 2:
                        scale[row, 1] = 0.0
                    elif kind == 3:
                        pit[row, 0] = 1.5
                    elif kind == 4:
                        centre[row, 0] = np.inf
        return ChunkResult(
            truth=truth,
            draws=None if method == "no-draws" else np.ascontiguousarray(draws.swapaxes(0, 1)),
            centre=centre,
            scale=scale,
            pit=pit,
            width90=WIDTH90 * scale,
            reference_width90=np.tile(WIDTH90 * reference, (count, 1)) if reference.ndim == 1 else WIDTH90 * reference,
            failed=failed,
        )

    def _run(self, rng, method, epsilon, n_draws):
        truth = np.sqrt(PRIOR_VARIANCE) * rng.standard_normal(2)
        statistic = truth + np.sqrt(DATA_VARIANCE) * rng.standard_normal(2)
        noise = PRIVACY_VARIANCE / epsilon
        release = statistic + np.sqrt(noise) * rng.standard_normal(2)
        total = DATA_VARIANCE + (0.0 if method == "naive" else noise)
        variance = 1.0 / (1.0 / PRIOR_VARIANCE + 1.0 / total)
        scale = np.sqrt(variance)
        centre = variance * release / total + (0.5 * scale if method == "shifted" else 0.0)
        draws = centre + scale * rng.standard_normal((n_draws, 2))
        reference = np.sqrt(1.0 / (1.0 / PRIOR_VARIANCE + 1.0 / DATA_VARIANCE))
        return truth, draws, centre, scale, reference


def compute(study, first, count, method="exact", box=None):
    """Return reduced runs of a study with few draws."""
    chunk = study.run_chunk(first, count, method=method, epsilon=0.1, seed=5, settings=SETTINGS)
    return reduce_chunk(chunk, first, seed=5, n_repeats=3, box=box, n_threads=1)


def task(**options):
    """Return the same as a function of first run and number of runs, which can be pickled."""
    return partial(compute, AnalyticStudy(**options))


def assert_same(a, b):
    """Compare reduced runs bit for bit."""
    assert a.n_draws == b.n_draws
    for name, array in a.arrays.items():
        np.testing.assert_array_equal(array, b.arrays[name], err_msg=name)

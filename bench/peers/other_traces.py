"""Posteriors from traces of Opacus and JAX-Privacy: covered with a curvature, flagged without one.

    python bench/peers/other_traces.py [--runs 40] [--records 2000] [--steps 300]

Logistic regressions with three N(0, 1) features and weights, trained by the other package with a noise multiplier of 5
at a sampling rate of 0.1, and recorded as docs/any-model.md says.  90% intervals for the true weights: bare, and with
the curvature of made-up records at the optimum that the trace tells.  A clip of 3 is beyond most gradients; one of 0.5
is beyond few, and moves the optimum.  Needs ``opacus`` or ``jax_privacy``.
"""

import argparse
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.other_traces import TRAINERS, sigmoid

FloatArray = npt.NDArray[np.float64]

WEIGHTS, RATE, NOISE, CLIPS = 3, 0.1, 5.0, (3.0, 0.5)
LEVELS = [0.05, 0.95]


def curvature(weights: FloatArray, n_records: int) -> FloatArray:
    """Return the diagonal of the negative log posterior's Hessian, from made-up records at these weights."""
    X = np.random.default_rng(3).standard_normal((20_000, weights.size))
    p = sigmoid(X @ weights)
    return np.asarray(n_records * np.mean(X**2 * (p * (1.0 - p))[:, None], axis=0) + 1.0)


def one(package: str, clip: float, seed: int, n_records: int, steps: int) -> list[tuple[FloatArray, FloatArray, bool]]:
    """Return, bare and with curvature: what is covered, the intervals' widths, and whether the summary warns."""
    rng = np.random.default_rng([17, seed])
    truth = rng.standard_normal(WEIGHTS)
    X = rng.standard_normal((n_records, WEIGHTS))
    y = (rng.random(n_records) < sigmoid(X @ truth)) * 1.0
    trace = TRAINERS[package](
        X, y, noise_multiplier=NOISE, norm=clip, rate=RATE, steps=steps, learning_rate=0.5, seed=seed
    )
    arrays = np.array(trace["params"]), np.array(trace["gradients"])
    given: dict[str, Any] = {"noise_stddev": trace["stddev"], "sample_rate": RATE, "family": "point"}
    bare = dpi.noise_aware_posterior(dpi.release_from_arrays(*arrays, **given))
    counted = dpi.noise_aware_posterior(
        dpi.release_from_arrays(*arrays, curvature=curvature(bare.mean, n_records), **given)
    )
    found = []
    for posterior in (bare, counted):
        low, high = posterior.quantile(LEVELS)
        found.append(((low < truth) & (truth < high), high - low, bool(posterior.summary().warnings)))
    return found


def main() -> None:
    """Print a line for each package and clip."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    for package in ("opacus", "jax_privacy"):
        if not find_spec(package):
            print(f"{package}: not installed, left out")
            continue
        for clip in CLIPS:
            runs = [one(package, clip, seed, chosen.records, chosen.steps) for seed in range(chosen.runs)]
            told = []
            for kind, name in enumerate(("bare", "curvature")):
                share = np.array([run[kind][0].mean() for run in runs])
                width = np.median([run[kind][1] for run in runs])
                warned = np.mean([run[kind][2] for run in runs])
                error = share.std(ddof=1) / len(share) ** 0.5
                told.append(f"{name} {share.mean():.3f} +- {error:.3f}, width {width:.3f}, flagged {warned:.0%}")
            print(f"{package:12s} clip {clip:3.1f} runs {chosen.runs}  {'  '.join(told)}", flush=True)


if __name__ == "__main__":
    main()

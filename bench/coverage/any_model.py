"""Coverage and width of the private Newton posterior of models that a user might bring, against no privacy.

    python bench/coverage/any_model.py [--runs 100] [--first 0] [--epsilon 0.3 1 3] [--records 10000] [--model NAME ...]
                              [--wrong] [--bare] [--method exact|simulated] [--kept FILE]

Parameters are drawn from the model's prior, features are AR(1) with 0.5 where the bounds of a run are simulated with
independent ones. Intervals are 90%. Without privacy: the normal approximation at the mode. Widths are ratios of the
intervals' widths before the maps of the parameters, medians over runs and parameters. --wrong: 3% of responses are
drawn at another parameter. --bare: the run is not given the sampler. --kept: runs are appended to this file, and those
in it are not made again; several processes share the runs, each from its own --first on. Models of a framework run
through its adapter: "two-layer network" (PyTorch), "divorce rates" (NumPyro), "Weibull in JAX"; the others are NumPy
code. The network has a twin in NumPy: the line says how far their releases with the same insecure key are apart at
most.
"""

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.framework_models import FRAMEWORK_EXAMPLES, apart
from tests.reference.own_models import CURVED, EXAMPLES

FloatArray = npt.NDArray[np.float64]

LEVELS = [0.05, 0.95]
NORMAL_HALF_WIDTH = 1.6449
SHARE_WRONG = 0.03


def mode(model: dpi.models.OwnModel, X: FloatArray, y: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the posterior mode without privacy, and a root (n, n) of the covariance of its normal approximation."""
    prior = model.parameters

    def slope(theta: FloatArray) -> FloatArray:
        return model.scores(X, y, theta).sum(axis=0) + model.log_prior_gradient(theta)

    def height(theta: FloatArray) -> float:
        density = model.code.log_likelihood(prior.constrain(theta), X, y)
        return float(np.sum(density) + model.log_prior(theta))

    theta, step = start.copy(), 1e-5
    scale = prior.prior_scale
    for _ in range(30):
        columns = [(slope(theta + step * e) - slope(theta - step * e)) / (2.0 * step) for e in np.eye(theta.size)]
        values, vectors = np.linalg.eigh(-0.5 * (np.array(columns) + np.array(columns).T) * np.outer(scale, scale))
        # In units of the prior: held where the log posterior is not concave.
        inverse = (vectors / np.maximum(values, 0.1)) @ vectors.T * np.outer(scale, scale)
        move = inverse @ slope(theta)
        here, size = height(theta), 1.0
        while not height(theta + size * move) >= here - 1e-6 and size > 1e-3:
            size *= 0.5
        theta = theta + size * move
        if np.max(np.abs(move)) < 1e-6:
            break
    return theta, np.linalg.cholesky(inverse)


def responses(
    model: dpi.models.OwnModel, truth: FloatArray, X: FloatArray, rng: np.random.Generator, wrong: bool
) -> FloatArray:
    """Draw responses at the unconstrained truth, some of them elsewhere where asked for."""
    words = rng.integers(0, 2**64, (len(X), model.n_words), dtype=np.uint64)
    y = model.draw_responses(truth, X, words)
    if wrong:
        other = model.draw_responses(truth + 0.5 * model.parameters.prior_scale, X, words)
        y = np.where(rng.random(len(X)) < SHARE_WRONG, other, y)
    return y


def without_sampler(model: dpi.models.OwnModel) -> dpi.models.OwnModel:
    """Return the model with its code, less the sampler."""
    given = {name: value for name, value in model.to_dict().items() if name != "kind"}
    return dpi.models.OwnModel(code=replace(model.code, sampler=None), **given)


def told(values: FloatArray) -> str:
    """Return a mean and its Monte Carlo error."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.3f} +- {error:.3f}"


class Tally:
    """What the runs of one model at one epsilon have shown.

    Parameters
    ----------
    awkward : sequence of int
        Indices of its awkward parameters.
    """

    def __init__(self, awkward: Sequence[int]) -> None:
        self.awkward = list(awkward)
        self.runs: dict[int, dict[str, Any]] = {}

    def _all(self, name: str) -> FloatArray:
        return np.array([self.runs[index][name] for index in sorted(self.runs)], dtype=float)

    def shares(self, *, awkward: bool) -> FloatArray:
        """Return the share of the intervals that cover, or of the awkward parameters' alone, for each run."""
        inside = self._all("covered")
        return np.asarray((inside[:, self.awkward] if awkward else inside).mean(axis=1))

    def line(self) -> str:
        """Return what was found, in words."""
        plain, ratio = (self._all(name) for name in ("plain", "ratio"))
        awkward = self.awkward
        twins = [run["apart"] for run in self.runs.values() if "apart" in run]
        beside = f"  releases apart from the twin's {max(twins):.1e} in {len(twins)} runs" if twins else ""
        return (
            f"runs {len(plain):3d}  covered {told(self.shares(awkward=False))}  awkward "
            f"{told(self.shares(awkward=True))}  no privacy {told(plain.mean(axis=1))}, awkward "
            f"{told(plain[:, awkward].mean(axis=1))}  width {np.median(ratio):.2f}  awkward "
            f"{np.median(ratio[:, awkward]):.2f}  flagged {told(self._all('flagged'))}  run "
            f"{np.median(self._all('seconds')):.1f} s{beside}"
        )


class Kept:
    """Runs in a file of lines, each with what tells it from the others.

    Parameters
    ----------
    path : Path or None
        None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._found = {json.dumps(key): run for key, run in map(json.loads, lines)}

    def get(self, key: list[Any]) -> dict[str, Any] | None:
        """Return the run of that key."""
        return self._found.get(json.dumps(key))

    def add(self, key: list[Any], run: dict[str, Any]) -> None:
        """Append a run."""
        self._found[json.dumps(key)] = run
        if self.path is not None:
            with self.path.open("a") as stream:
                stream.write(json.dumps([key, run]) + "\n")


class Study:
    """Runs of one model at several epsilons, on the same records.

    Parameters
    ----------
    example : Example
    epsilons : sequence of float
    n_records, seed : int
    wrong, bare : bool
    method : str
        Of the posterior.
    kept : Kept
    """

    def __init__(
        self,
        example: Any,
        epsilons: Sequence[float],
        n_records: int,
        seed: int,
        *,
        wrong: bool,
        bare: bool,
        method: str,
        kept: Kept,
    ) -> None:
        self.example, self.n_records, self.seed, self.wrong, self.kept = example, n_records, seed, wrong, kept
        self.method = method
        self.key = [example.model.name, n_records, seed, wrong, bare, method]
        self.private, self.twin = (
            without_sampler(model) if bare and model else model for model in (example.model, example.twin)
        )
        public = {"target_delta": 1e-5, "n_records": n_records}
        self.plans = {epsilon: dpi.plan_newton(self.private, target_epsilon=epsilon, **public) for epsilon in epsilons}
        self.tallies = {epsilon: Tally(example.awkward) for epsilon in epsilons}

    def _released(self, model: dpi.models.OwnModel, X: FloatArray, y: FloatArray, epsilon: float, index: int) -> Any:
        source = InsecureRNG(1000 * self.seed + index)
        given = {"plan": self.plans[epsilon], "n_records": self.n_records, "n_threads": 1, "random_source": source}
        return dpi.run_newton(model, X, y, **given)

    def run(self, index: int) -> None:
        """Make the runs on one data set that are not kept."""
        missing = []
        for epsilon in self.plans:
            found = self.kept.get([*self.key, index, epsilon])
            if found is None:
                missing.append(epsilon)
            else:
                self.tallies[epsilon].runs[index] = found
        if not missing:
            return
        model = self.example.model
        rng = np.random.default_rng([self.seed, index])
        truth = model.parameters.prior_mean + model.parameters.prior_scale * rng.standard_normal(model.n_params)
        X = self.example.features(self.n_records, rng)
        y = responses(model, truth, X, rng, self.wrong)
        centre, root = mode(model, X, y, truth)
        half = NORMAL_HALF_WIDTH * np.sqrt(np.sum(root**2, axis=1))
        least, most = centre - half, centre + half
        for epsilon in missing:
            begun = time.process_time()
            release = self._released(self.private, X, y, epsilon, index)
            asked = {"approximation": self.method, "model": self.private, "seed": index, "n_samples": 400}
            posterior = dpi.noise_aware_posterior(release, **asked)
            seconds = time.process_time() - begun
            low, high = posterior.quantile(LEVELS, space="unconstrained")
            diagnostics = posterior.diagnostics
            found = {
                "covered": ((low < truth) & (truth < high)).tolist(),
                "plain": ((least < truth) & (truth < most)).tolist(),
                "ratio": ((high - low) / (most - least)).tolist(),
                "flagged": diagnostics.curvature_shift is not None or bool(diagnostics.clipping_uncounted),
                "seconds": seconds,
            }
            if self.twin:
                found["apart"] = apart(release, self._released(self.twin, X, y, epsilon, index))
            self.tallies[epsilon].runs[index] = found
            self.kept.add([*self.key, index, epsilon], found)


def made(name: str) -> Any:
    """Return an example, or None where its framework is not installed."""
    if name not in FRAMEWORK_EXAMPLES:
        return (EXAMPLES | CURVED)[name]()
    needed, make = FRAMEWORK_EXAMPLES[name]
    if find_spec(needed):
        return make()
    print(f"{name}: {needed} is not installed, left out")
    return None


def stopped(*_: object) -> None:
    """End early, with what there is."""
    raise KeyboardInterrupt


def main() -> None:
    """Print a line for each model and epsilon; a signal to stop prints what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=5)
    names = [*EXAMPLES, *FRAMEWORK_EXAMPLES, *CURVED]
    parser.add_argument("--model", choices=names, nargs="+", default=list(EXAMPLES))
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--method", choices=["exact", "simulated"], default="exact")
    parser.add_argument("--kept", type=Path)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, stopped)
    examples = {name: made(name) for name in chosen.model}
    kept = Kept(chosen.kept)
    options = {"wrong": chosen.wrong, "bare": chosen.bare, "method": chosen.method}
    studies = {
        name: Study(example, chosen.epsilon, chosen.records, chosen.seed, **options, kept=kept)
        for name, example in examples.items()
        if example is not None
    }
    with contextlib.suppress(KeyboardInterrupt):
        for index in range(chosen.first, chosen.first + chosen.runs):
            for study in studies.values():
                study.run(index)
    for name, study in studies.items():
        for epsilon, tally in study.tallies.items():
            if tally.runs:
                suffix = " wrong" * chosen.wrong + " bare" * chosen.bare + " simulated" * (chosen.method != "exact")
                print(f"{name:18s} eps {epsilon:3.1f} N {chosen.records}{suffix}  {tally.line()}", flush=True)
    for epsilon in chosen.epsilon:
        full = [study.tallies[epsilon] for study in studies.values() if study.tallies[epsilon].runs]
        if len(full) > 1:
            pooled = [np.concatenate([tally.shares(awkward=part) for tally in full]) for part in (False, True)]
            print(f"all {len(full)} models, eps {epsilon:3.1f}  covered {told(pooled[0])}  awkward {told(pooled[1])}")


if __name__ == "__main__":
    main()

"""Files of every version of the formats of releases: what docs/stability.md promises to read.

python -m tests.golden.files      # adds the files of a new version; those that are there stay as they are
"""

import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism import Clusters, Units, run_network_dp_sep
from dpinfer.mechanism.silos import LocalLine, Silos, Site
from dpinfer.testing import InsecureRNG
from tests.golden import certificates

FOLDER = Path(__file__).with_name("files")
VERSION = 2
RNG = InsecureRNG(7)


def _gradient(params, X, y):
    return X * (y - 1.0 / (1.0 + np.exp(-np.sum(X * params, axis=1))))[:, None]


def _sampler(params, X, u):
    return (u[:, 0] < 1.0 / (1.0 + np.exp(-np.sum(X * params, axis=1)))).astype(float)


def releases():
    """Return small releases of the kinds that a user's call makes, by name."""
    rng = np.random.default_rng(1)
    X = np.round(rng.normal(size=(60, 2)), 3)
    y = (X[:, 0] > 0.0).astype(float)
    logistic, linear = dpi.models.LogisticRegression(2), dpi.models.LinearRegression(2)
    steps = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.2, n_steps=4)
    common = {"n_records": 60, "random_source": RNG}
    newton = {"target_epsilon": 1.0, "target_delta": 1e-5, "n_records": 60}
    population = dpi.plan_newton(logistic, target="population", **newton)
    own = {"target": "population", **newton}
    surveyed = dpi.models.LogisticRegression(2, survey_weights=dpi.models.SurveyWeights(1.0, strata=3))
    code = dpi.models.from_gradient(_gradient, 2, n_features=2, sampler=_sampler, response="binary")
    people = dpi.models.PersonModel("gaussian", ("a", "b"), max_rows=3, mean_rows=3.0, features=X)
    sites = [
        Site(X[part], y[part], random_source=InsecureRNG(part.start))
        for part in (slice(0, 20), slice(20, 40), slice(40, 60))
    ]
    silos = Silos(LocalLine(sites), may_vanish=0)
    return {
        "population": dpi.run_newton(logistic, X, y, plan=population, **common),
        "own-newton": dpi.run_newton(code, X, y, plan=dpi.plan_newton(code, **newton), **common),
        "own-population": dpi.run_newton(code, X, y, plan=dpi.plan_newton(code, **own), **common),
        "clusters": dpi.run_newton(
            logistic,
            X,
            y,
            plan=dpi.plan_newton(logistic, clusters=True, **own),
            unit=Clusters(np.arange(60) // 3),
            **common,
        ),
        "strata": dpi.run_newton(
            surveyed,
            X,
            np.column_stack((y, np.ones(60), np.arange(60) % 3)),
            plan=dpi.plan_newton(surveyed, **own),
            **common,
        ),
        "people": dpi.run_newton(
            people, X, X[:, 0], plan=dpi.plan_newton(people, **newton), unit=Units(np.arange(60) // 3, 3, 3.0), **common
        ),
        "silos": dpi.run_newton(logistic, silos, plan=dpi.plan_newton(logistic, **newton), n_records=60),
        "site": dpi.run_dp_sep(logistic, X, y, plan=steps, **common),
        "network": run_network_dp_sep(dpi.models.BayesianNeuralNetwork(2, 3), X, y, plan=steps, **common),
        "trace": dpi.run_dpvi(logistic, X, y, plan=steps, max_grad_norm=1.0, **common),
        "glm-newton": dpi.run_newton(logistic, X, y, plan=dpi.plan_newton(logistic, **newton), **common),
        "newton": dpi.run_newton(
            linear, X, X[:, 0] - 0.5, plan=dpi.plan_newton(linear, **newton), response_scale=1.0, **common
        ),
        "sum": dpi.private_sum(X, lambda rows: rows, names=("a", "b"), max_norm=2.0, epsilon=1.0, random_source=RNG),
        "statistic": dpi.run_statistic(dpi.models.BetaBernoulli(1.0, 1.0), y, epsilon=1.0, **common),
    }


def as_version_1(content):
    """Return a release's file as version 1 wrote it: without parts and leaks, the accountant among the settings."""
    document = json.loads(content["release.json"])
    header = document["release"]
    header["settings"]["accountant"] = header.pop("accountant")
    del header["other_parts"], header["leaks"]
    document["version"] = 1
    return content | {"release.json": json.dumps(document, sort_keys=True, indent=1).encode()}


def main():
    from tests.contract.test_stability import read_of

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, release in releases().items():
            path = Path(folder) / f"{name}-{VERSION}.release"
            release.save(path)
            if not (FOLDER / path.name).exists():
                shutil.copy(path, FOLDER)
        with zipfile.ZipFile(Path(folder) / f"trace-{VERSION}.release") as archive:
            members = as_version_1({name: archive.read(name) for name in archive.namelist()})
    if not (FOLDER / "trace-1.release").exists():
        with zipfile.ZipFile(FOLDER / "trace-1.release", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    shutil.copy(certificates.FOLDER / "honest.ledger", FOLDER / "spent-1.ledger")
    found = {path.name: read_of(path) for path in sorted(FOLDER.glob("*.release"))}
    (FOLDER / "expected.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Questions of a coordinator that lies: with wrong numbers, kinds and passes; and how far a record moves a part."""

import contextlib
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

import dpinfer as dpi
from dpinfer.errors import SiloError
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.mechanism import _native
from dpinfer.mechanism.silos import LocalLine, Silos, Site, Terms
from dpinfer.mechanism.silos.messages import _MAGIC, _TAG, _blob, unpack
from dpinfer.mechanism.silos.work import WORKS, Task
from dpinfer.models import Model, OwnModel, SurveyWeights

TERMS = Terms(3, 0, 1)
N = 40
KEY = bytes(range(32))
WEIGHTED = dpi.models.LinearRegression(2, survey_weights=SurveyWeights(1.0, 0.5))
MODELS = {
    "linear": dpi.models.LinearRegression(2, fit_intercept=True),
    "logistic": dpi.models.LogisticRegression(2),
    "moments": dpi.models.LogisticRegression(2, feature_moments=np.eye(3)),
    "probit": dpi.models.ProbitRegression(2),
    "poisson": dpi.models.PoissonRegression(2),
    "weighted": WEIGHTED,
    "own": own_logistic(),
    "bare": own_logistic(sampled=False),
}
CASES = [
    (name, target)
    for name in MODELS
    for target in ("model", "population")
    if not (name == "weighted" and target == "model")
]
NUMBERS = (0.0, -1.0, 1.0, 1.9, math.nan, math.inf, -math.inf, 1e308, 1e-308, 2.0**-40, 2.0**40)
OTHERS = (None, True, "text", [], [1.0], {"a": 1}, b"bytes", 2**70, -(2**63), np.eye(2), np.empty(0))


@dataclass
class Forged:
    """A dataclass of a message, of any kind and with any fields."""

    module: str
    name: str
    fields: dict


def forged(value):
    """Return a query as its parts, which can be changed."""
    if isinstance(value, Model):
        return value
    if is_dataclass(value):
        content = {item.name: forged(getattr(value, item.name)) for item in fields(value)}
        return Forged(type(value).__module__, type(value).__qualname__, content)
    return value


def written(value, blobs):
    """Return a value as the JSON of a message, whatever it is."""
    if isinstance(value, Forged):
        content = {name: written(item, blobs) for name, item in value.fields.items()}
        return {_TAG: "record", "module": value.module, "name": value.name, "fields": content}
    if isinstance(value, Model):
        return {_TAG: "model"}
    if isinstance(value, np.ndarray):
        kind = value.dtype.newbyteorder("<").str
        return {_TAG: "array", "type": kind, "shape": value.shape, "at": _blob(value.tobytes(), blobs)}
    if isinstance(value, bytes):
        return {_TAG: "bytes", "at": _blob(value, blobs)}
    if isinstance(value, np.generic):
        return value.item()
    return value


def message(value):
    """Return a query's message."""
    blobs = []
    header = json.dumps({"kind": "query", "fields": {"query": written(value, blobs)}}).encode()
    return b"".join((_MAGIC, len(header).to_bytes(8, "little"), header, *blobs))


def all_kinds():
    """Return every dataclass of the library that a forger may name."""
    return sorted(
        {
            (module, name)
            for module, content in list(sys.modules.items())
            if module.startswith(("dpinfer.mechanism", "dpinfer.models"))
            for name, kind in vars(content).items()
            if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module
        }
    )


def changed(value, rng):
    """Return another value in the place of one."""
    if rng.random() < 0.1:
        return OTHERS[rng.integers(len(OTHERS))]
    if isinstance(value, Forged):
        return lied(value, rng)
    if isinstance(value, np.ndarray):
        way = rng.integers(9)
        if way < 4:
            with np.errstate(all="ignore"):
                return np.asarray(value * (rng.normal(size=value.shape) * 2.0 ** rng.integers(-40, 41)), value.dtype)
        if way == 4:
            return np.full(value.shape, NUMBERS[rng.integers(len(NUMBERS))])
        if way == 5:
            return np.concatenate((value, value)) if rng.random() < 0.5 else value[:-1]
        if way == 6:
            with np.errstate(all="ignore"):
                return value.astype(["<f4", "<i8", "|b1"][rng.integers(3)])
        return value.ravel() if way == 7 else np.ascontiguousarray(value[..., None] if rng.random() < 0.5 else value.T)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        number = NUMBERS[rng.integers(len(NUMBERS))] if rng.random() < 0.4 else value * 2.0 ** rng.uniform(-8.0, 8.0)
        return int(number) if isinstance(value, int) and math.isfinite(number) else number
    if isinstance(value, str):
        return str(rng.choice(["gaussian", "logistic", "probit", "poisson", "probit_score", "none"]))
    return value


def lied(query, rng):
    """Return a forged query with one to three lies."""
    content = dict(query.fields)
    for _ in range(rng.integers(1, 4)):
        name = str(rng.choice(list(content)))
        content[name] = changed(content[name], rng)
    if rng.random() < 0.05:
        content.pop(str(rng.choice(list(content))))
    if rng.random() < 0.05:
        content["parts"] = int(rng.integers(1, 100))
    return Forged(query.module, query.name, content)


def strangely(query, rng, kinds):
    """Return a query of another kind, with the fields that it needs as far as the honest one has them."""
    module, name = kinds[rng.integers(len(kinds))]
    kind = getattr(sys.modules[module], name)
    made = {
        "n_strata": 1,
        "parts": 50,
        "reach": 5.0,
        "unit": 0.1,
        "scores": query,
        "max_norm": 1.9,
        "scale_weight": 0.0,
    }
    made |= {"rows": None, "model": None, "plan": None, **query.fields}
    return Forged(module, name, {item.name: made.get(item.name, 1.0) for item in fields(kind) if item.init})


def honest(model, target):
    """Return the plan of a run over silos, and its queries."""
    plan = dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=N, target=target)
    plan = replace(plan, stops=False)
    asked = []

    class Seen(LocalLine):
        def exchange(self, messages):
            found = unpack(next(iter(messages.values())))
            if found.kind == "pass":
                asked.append(found.fields["query"])
            return super().exchange(messages)

    own = {"model": model} if isinstance(model, OwnModel) else {}
    sites = [Site(*rows_of(model, np.random.default_rng(place), N // 3), **own) for place in range(3)]
    scale = {"response_scale": 1.0} if isinstance(model, dpi.models.LinearRegression) else {}
    dpi.run_newton(model, Silos(Seen(sites)), plan=plan, n_records=N, **scale)
    return plan, [unpack(query, model).fields["query"] for query in asked]


def rows_of(model, rng, size):
    """Return records; some are far out."""
    X = rng.normal(size=(size, 2)) * 10.0 ** rng.choice([0.0, 0.0, 2.0, 150.0, 300.0, -300.0], size=(size, 1))
    X[rng.random(X.shape) < 0.05] = 0.0
    y = (rng.random(size) < 0.5).astype(float)
    if isinstance(model, dpi.models.PoissonRegression):
        y = rng.integers(0, 50, size).astype(float)
    if isinstance(model, dpi.models.LinearRegression):
        y = rng.normal(size=size) * 10.0 ** rng.choice([0.0, 3.0, 200.0], size=size)
    return X, np.column_stack((y, rng.choice([0.0, 0.3, 1.0, 1e6], size=size))) if model is WEIGHTED else y


@contextlib.contextmanager
def drawn():
    """Give a list of the standard deviations, in lattice steps, of the noise that is drawn."""
    found, draw = [], _native.rounded_gaussian

    def watched(key, stream, stddev, length):
        found.append(stddev)
        return draw(key, stream, stddev, length)

    _native.rounded_gaussian = watched
    try:
        yield found
    finally:
        _native.rounded_gaussian = draw


def works_of(model, plan, parts):
    """Return the work of a site over each of some records."""
    works = []
    for X, y in parts:
        work = WORKS["newton"](Task("newton", model, plan.to_dict(), N), n_threads=1)
        work.open(X, y)
        works.append(work)
    return works


def moved(works, index, query, multiplier, refusal=SiloError):
    """Return how far the second site's part is from the first one's, in units of the bound that their noise is for.

    None where both refuse the question, before they sum. Raises AssertionError where one of them does.
    """
    answers = []
    for work in works:
        with drawn() as stddevs:
            try:
                question = work.question(index, query, TERMS)
            except refusal:
                answers.append(None)
                continue
            answers.append((work.sum(index, question, KEY, TERMS.noise_shares), stddevs[0]))
    if answers[0] is None or answers[1] is None:
        assert answers[0] is answers[1], "one of two neighbours refuses"
        return None
    (one, stddev), (other, same) = answers
    assert stddev == same, "noise of another size"
    difference = (one.astype(np.uint64) - other.astype(np.uint64)).astype(np.int64)
    bound = stddev * math.sqrt(TERMS.noise_shares) / multiplier
    return math.sqrt(sum(int(step) ** 2 for step in difference)) / bound


@dataclass
class Found:
    """What a number of questions came to."""

    answered: Counter
    refused: int = 0
    largest: float = 0.0


def ask(case, questions, seed):
    """Put questions to sites with neighbouring records: with one record more, at each question another."""
    model, target = MODELS[case[0]], case[1]
    rng = np.random.default_rng(seed)
    plan, asked = honest(model, target)
    kinds, found = all_kinds(), Found(Counter())
    common = rows_of(model, rng, 12)
    for number in range(questions):
        if number % 25 == 0:
            one = rows_of(model, rng, 1)
            works = works_of(model, plan, (common, [np.concatenate(pair) for pair in zip(common, one, strict=True)]))
        index = int(rng.integers(len(asked)))
        query = forged(asked[index if rng.random() < 0.9 else rng.integers(len(asked))])
        query = strangely(query, rng, kinds) if rng.random() < 0.15 else lied(query, rng)
        move = moved(works, index, message(query), plan.noise_multipliers[index])
        if move is None:
            found.refused += 1
        else:
            found.answered[query.name] += 1
            found.largest = max(found.largest, move)
    return found

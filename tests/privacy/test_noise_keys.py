"""The same noise never meets two queries, whatever is copied: each query has a key of its own.

Deterministic: keys are frozen.  What a run draws is read off the tape of the replay.
"""

import functools
import shutil
import threading

import numpy as np
import pytest
from tests.reference.plain_streams import plain_streams

import dpinfer as dpi
from dpinfer.errors import CheckpointError
from dpinfer.lab.baselines import NetworkVISettings, run_dp_em, run_network_vi
from dpinfer.lab.replays import TapeRecorder
from dpinfer.mechanism import RunCheckpoint, run_network_dp_sep
from dpinfer.mechanism.newton.plan import NewtonPlan
from dpinfer.mechanism.noise_keys import RandomSource, noise_key

N = 300
KEY = bytes(range(32))
rng = np.random.default_rng(1)
X = rng.normal(size=(N, 2))
X[::50, 0] = 60.0
y = (rng.random(N) < 0.5).astype(np.float64)
PASSES = {
    "binary": {"geometry": (0.1, 0.1), "localise": (0.1, 0.1), "measure": (0.4,), "slope": (0.2,)},
    "linear": {"scale": (0.05,), "geometry": (0.1, 0.1), "localise": (0.1, 0.1), "measure": (0.5,)},
    "own": {"localise": (0.1,) * 3, "slope": (0.2,), "measure": (0.2,) * 2},
}


class OneKey(RandomSource):
    """The same key for every run."""

    secure = False

    def take_key(self):
        return KEY


def private_plan(noise_multiplier=2.0, sample_rate=0.5):
    return dpi.PrivacyPlan.from_noise_multiplier(noise_multiplier, sample_rate, 3, 1e-5)


def newton_plan(kind, noise_multiplier=2.0):
    return NewtonPlan.from_noise_multiplier(noise_multiplier, PASSES[kind], 1e-5)


def own_model(elsewhere, *, sampler=True):
    """A logistic regression whose code differs where no made-up record is: far out."""

    def gradient(theta, X, y):
        eta = np.sum(X * theta, axis=1)
        residual = y - 1.0 / (1.0 + np.exp(-eta))
        return X * np.where(np.abs(X[:, 0]) > 50.0, elsewhere * residual, residual)[:, None]

    def draw(theta, X, u):
        return (u[:, 0] < 1.0 / (1.0 + np.exp(-np.sum(X * theta, axis=1)))).astype(float)

    return dpi.models.from_gradient(
        gradient, 2, n_features=2, response="binary", sampler=draw if sampler else None, name="own"
    )


def newton(model, kind, response=y, noise_multiplier=2.0, **options):
    return dpi.run_newton(
        model, X, response, plan=newton_plan(kind, noise_multiplier), n_records=N, random_source=OneKey(), **options
    )


def trace(model, plan=None, **options):
    options = {"max_grad_norm": 1.0} | options
    return dpi.run_dpvi(model, X, y, plan=plan or private_plan(), n_records=N, random_source=OneKey(), **options)


def sites(model, *records, plan=None, **options):
    return dpi.run_dp_sep(model, *records, plan=plan or private_plan(), n_records=N, random_source=OneKey(), **options)


def network(run, **options):
    model = dpi.models.BayesianNeuralNetwork(2, 3)
    return run(model, X, y, plan=private_plan(), n_records=N, random_source=OneKey(), **options)


def ascent(rate, norm=1.0):
    return network(run_network_vi, settings=NetworkVISettings(rate, 10.0, 1.0, 0.1), max_grad_norm=norm)


def mixture(norm):
    return run_dp_em(
        dpi.models.GaussianMixture(2, 2), X, plan=private_plan(), n_records=N, max_site_norm=norm,
        random_source=OneKey(),
    )  # fmt: skip


LOGISTIC = dpi.models.LogisticRegression(2)
LINEAR = dpi.models.LinearRegression(2)
# For each mechanism a run, and runs that ask something else, of the same records with the same key.
CASES = {
    "newton, features": (
        lambda: newton(LOGISTIC, "binary"),
        lambda: newton(dpi.models.LogisticRegression(2, feature_scale=(1.0, 2.0)), "binary"),
        lambda: newton(LOGISTIC, "binary", noise_multiplier=2.5),
        lambda: newton(dpi.models.ProbitRegression(2, feature_scale=(2.0, 2.0)), "binary"),
    ),
    "newton, scale": (
        lambda: newton(LINEAR, "linear", response_scale=1.0),
        lambda: newton(LINEAR, "linear", response_scale=2.0),
    ),
    "newton, code": (lambda: newton(own_model(1.0), "own"), lambda: newton(own_model(-1.0), "own")),
    "newton, code without a sampler": (
        lambda: newton(own_model(1.0, sampler=False), "own"),
        lambda: newton(own_model(-1.0, sampler=False), "own"),
    ),
    "trace": (
        lambda: trace(LOGISTIC),
        lambda: trace(LOGISTIC, max_grad_norm=2.0),
        lambda: trace(LOGISTIC, private_plan(3.0)),
        lambda: trace(LOGISTIC, private_plan(2.0, 0.6)),
        lambda: trace(dpi.models.ProbitRegression(2)),
        lambda: trace(LOGISTIC, gradient="aligned"),
    ),
    "trace, code": (
        lambda: trace(own_model(1.0), gradient="aligned"),
        lambda: trace(own_model(-1.0), gradient="aligned"),
    ),
    "sites": (
        lambda: sites(LOGISTIC, X, y),
        lambda: sites(LOGISTIC, X, y, max_site_norm=3.0),
        lambda: sites(LOGISTIC, X, y, plan=private_plan(3.0)),
        lambda: sites(LOGISTIC, X, y, n_nodes=30),
        lambda: sites(dpi.models.ProbitRegression(2), X, y),
    ),
    "sites, mixture": (
        lambda: sites(dpi.models.GaussianMixture(2, 2), X),
        lambda: sites(dpi.models.GaussianMixture(2, 2, covariance=2.0), X),
        lambda: sites(dpi.models.GaussianMixture(2, 2), X, annealing=None),
    ),
    "sites, network": (
        lambda: network(run_network_dp_sep, start_seed=1),
        lambda: network(run_network_dp_sep, start_seed=2),
        lambda: network(run_network_dp_sep, start_seed=1, max_site_norm=0.3),
    ),
    "gradients, network": (lambda: ascent(1e-2), lambda: ascent(1e-2, norm=2.0)),
    "expectation maximisation": (lambda: mixture(1.0), lambda: mixture(2.0)),
    "one-shot": (
        lambda: dpi.release_count(X, epsilon=1.0, random_source=OneKey()),
        lambda: dpi.release_count(X, epsilon=2.0, random_source=OneKey()),
        lambda: dpi.run_statistic(
            dpi.models.BetaBernoulli(1, 1), y, epsilon=1.0, n_records=N, random_source=OneKey()
        ),
    ),
}  # fmt: skip


def drawn(run):
    """The noised sums of a run, in order."""
    recorder = TapeRecorder()
    with recorder.recording() as tape:
        run()
    return tape.sums


def shared_streams(runs):
    """The check: how many streams of noise serve two queries, told apart by what they sum and how much noise there is.

    What two runs ask alike, of the same records with the same key, has the same noise and is the same release.
    """
    queries = {}
    for own in (own for run in runs for own in drawn(run)):
        queries.setdefault(own.stream, set()).add((own.exact, own.mechanism, own.sensitivity))
    return sum(len(asked) > 1 for asked in queries.values())


@pytest.mark.parametrize("name", CASES)
def test_no_stream_serves_two_queries(name):
    assert shared_streams(CASES[name]) == 0


@pytest.mark.parametrize("name", CASES)
def test_the_same_query_has_the_same_noise(name):
    first, second = ([(own.stream, own.noise) for own in drawn(CASES[name][0])] for _ in range(2))
    assert len(first) > 0
    assert first == second


@pytest.mark.parametrize("name", CASES)
def test_noise_reused_for_another_query_is_found(name):
    """The mutant: noise from the run's key alone, whatever is asked."""
    with plain_streams():
        assert shared_streams(CASES[name]) > 0


class StopError(Exception):
    """An interrupt between two passes."""


def test_a_copied_checkpoint_gives_no_noise_to_other_code(tmp_path):
    """Code with the same fingerprint, on the 16 made-up records, cannot take up a run that was begun by another."""
    first, second = own_model(1.0), own_model(-1.0)
    assert first.fingerprint == second.fingerprint
    path, copy = tmp_path / "run", tmp_path / "copy"

    def stop(done, total):
        if done == 2:
            raise StopError

    with pytest.raises(StopError):
        newton(first, "own", checkpoint=RunCheckpoint(path), progress=stop)
    shutil.copy(path, copy)
    with pytest.raises(CheckpointError, match="differs in asked"):
        newton(second, "own", checkpoint=copy)
    # And the code that began it draws what it would have drawn.
    mine = drawn(functools.partial(newton, first, "own", checkpoint=path))
    assert [own.stream for own in mine] == [own.stream for own in drawn(lambda: newton(first, "own"))][2:]


UNLIKE = (
    (0, 0.0), (0, False), (1, True), ("1", 1), (b"1", "1"), ((1,), [1]), ((1, 2), (12,)), (("a", "b"), ("ab",)),
    (0.0, -0.0), (1.0, np.nextafter(1.0, 2.0)), (np.zeros(2), np.zeros((2, 1))), (np.zeros(2), np.zeros(3)),
    (np.zeros(2), np.zeros(2, np.float32)), ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), (None, "None"),
    (frozenset({1, 2}), frozenset({1, 3})), (((1,), 2), (1, (2,))),
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNLIKE, ids=lambda value: repr(value)[:20])
def test_unlike_values_have_unlike_keys(one, other):
    assert noise_key(KEY, one) != noise_key(KEY, other)
    assert noise_key(KEY, one) == noise_key(KEY, one) != noise_key(bytes(32), one)


def looped(constant):
    def even(n):
        return n == constant or odd(n - 1)

    def odd(n):
        return n != constant and even(n - 1)

    return even


class Scaled:
    """A callable with a state, and methods that call each other."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, value):
        return self._times(value)

    def _times(self, value):
        return self.factor * value


class ScaledOtherwise(Scaled):
    def _times(self, value):
        return value + self.factor


GLOBAL = 3.0


def uses_a_global(value):
    return GLOBAL * value


def uses_a_function(value):
    return uses_a_global(value) + 1.0


CODE = {
    "a constant": (lambda: lambda x: x + 1, lambda: lambda x: x + 2),
    "an operation": (lambda: lambda x: x + 1, lambda: lambda x: x - 1),
    "a function that is called": (lambda: lambda x: np.exp(x), lambda: lambda x: np.expm1(x)),
    "a closure": (lambda: looped(1), lambda: looped(2)),
    "a default": (lambda: lambda x, k=1: x, lambda: lambda x, k=2: x),
    "a state": (lambda: Scaled(1.0), lambda: Scaled(2.0)),
    "a method": (lambda: Scaled(1.0), lambda: ScaledOtherwise(1.0)),
    "a bound method": (lambda: Scaled(1.0)._times, lambda: Scaled(2.0)._times),
    "a partial": (lambda: functools.partial(max, 1), lambda: functools.partial(max, 2)),
    "a nested function": (lambda: lambda x: [k + 1 for k in x], lambda: lambda x: [k + 2 for k in x]),
}


@pytest.mark.parametrize("name", CODE)
def test_code_is_read(name):
    one, other = CODE[name]
    assert noise_key(KEY, one()) == noise_key(KEY, one())
    assert noise_key(KEY, one()) != noise_key(KEY, other())


def test_what_code_looks_up_is_read(monkeypatch):
    before = noise_key(KEY, uses_a_function)
    assert before == noise_key(KEY, uses_a_function)
    monkeypatch.setitem(uses_a_function.__globals__, "GLOBAL", 4.0)
    assert noise_key(KEY, uses_a_function) != before


def test_code_of_any_depth_is_read_as_far_as_it_goes():
    """No error, which would lose a run that is paid for: what lies too deep counts as what cannot be read."""
    nested = [1]
    for _ in range(5000):
        nested = [nested]
    assert noise_key(KEY, nested) == noise_key(KEY, nested)
    lock = threading.Lock()
    assert noise_key(KEY, [lock]) == noise_key(KEY, [lock]) != noise_key(KEY, [threading.Lock()])


@pytest.mark.parametrize("made", ["def code(x):\n    return x + {}", "class code:\n    step = lambda self, x: x + {}"])
def test_code_without_a_module_is_read(made):
    keys = set()
    for number in (1, 2, 1):
        names = {}
        exec(made.format(number), names)
        keys.add(noise_key(bytes(32), names["code"]))
    assert len(keys) == 2

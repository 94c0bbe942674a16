"""Different questions never have the same noise: of two that code can ask, one is refused, or both are told apart.

Deterministic but for the noise, which is compared to the last bit: a false alarm has probability below 1e-12.
"""

import contextlib
import random
import shutil

import numpy as np
import pytest
from tests.privacy.test_noise_keys import drawn
from tests.reference import own_questions, question_mutants
from tests.reference.two_questions import NAMES, wrapped

import dpinfer as dpi
from dpinfer.errors import CheckpointError, RepeatedSpendingWarning
from dpinfer.mechanism import RunCheckpoint
from dpinfer.mechanism.private_run import PrivateRun
from dpinfer.mechanism.questions import read_question

PAIRS = 16  # of each kind: 1000 and more in all
ROWS = np.arange(200.0)[:, None] % 100.0
TERMS = {"names": ["below"], "max_norm": 1.0, "epsilon": 0.5}


class Killed(BaseException):
    """Ends a run without any of its own clean-up being able to write, as a kill does."""


def ask(function, place, **options):
    return dpi.private_sum(ROWS, function, **TERMS, checkpoint=place, **options).noisy_sums


def exact(function):
    return np.sum(np.asarray(function(ROWS.copy()), dtype=np.float64), axis=0)


def killed(monkeypatch, function, place, **options):
    """Ask a question of a process that dies when it has drawn, and return what it had drawn."""
    drawn = []

    def save(self, step, arrays, **named):
        drawn.append(arrays()["released"])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "save", save)
        patch.setattr("dpinfer.accounting.charging.Charge._cancel", lambda self, error: None)
        with pytest.raises(Killed):
            ask(function, place, **options)
    return drawn[0]


def thresholds(kind, number):
    return sorted(map(float, random.Random(f"{kind} {number}").sample(range(5, 95), 2)))


def made(kind, number, folder):
    """A pair of questions, asked through the same other objects, and what turns the world."""
    one, other, turn = NAMES[kind](*thresholds(kind, number), folder)
    return *(wrapped(function, random.Random(f"{kind} {number}")) for function in (one, other)), turn


def same_noise(first, second, released):
    """Whether the two releases differ by the exact difference of two different sums."""
    return bool(first != second and np.allclose(released[1] - released[0], second - first, rtol=0.0, atol=1e-9))


@pytest.mark.parametrize("kind", NAMES)
def test_a_question_that_is_read_whole_is_told_from_another(kind, tmp_path):
    assert merged(kind, tmp_path, PAIRS) == 0


def merged(kind, folder, pairs):
    """The check: how many pairs of different questions are both read whole, and alike."""
    found = 0
    for number in range(pairs):
        one, other, turn = made(kind, number, folder)
        turn(0)
        first, low = read_question(one), exact(one)
        one, other, turn = made(kind, number, folder)
        turn(1)
        second, high = read_question(other), exact(other)
        found += low != high and first.whole and second.whole and first.digest == second.digest
    return found


@pytest.mark.parametrize("kind", question_mutants.MUTANTS)
def test_a_reader_that_trusts_too_much_is_found(kind, tmp_path):
    """The mutants: readers that pass over a kind, each found by its kind."""
    with question_mutants.MUTANTS[kind]():
        assert merged(kind, tmp_path, 3) > 0


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_no_noise_serves_two_questions(kind, tmp_path, monkeypatch):
    """A complete checkpoint, and a copy of one whose run was killed when it had drawn, asked for something else."""
    assert shared(kind, tmp_path, monkeypatch, PAIRS) == 0


def shared(kind, folder, monkeypatch, pairs):
    """The check: how many pairs of questions, of which one took up the other's checkpoint, have the same noise."""
    found = 0
    for number in range(pairs):
        one, other, turn = made(kind, number, folder)
        place, copy = folder / f"run {number}", folder / f"copy {number}"
        turn(0)
        low = exact(one)
        if number % 2:
            first = ask(one, RunCheckpoint(place))
            copy = place
        else:
            first = killed(monkeypatch, one, place)
            shutil.copy(place, copy)
        turn(1)
        # Code that keeps a state of its own may have changed when it was called.
        high = exact(other)
        with contextlib.suppress(CheckpointError):
            second = ask(other, RunCheckpoint(copy))
            if number % 2:
                assert np.array_equal(first, second)  # what was released is given again, and nothing else
            else:
                found += same_noise(low, high, (first, second))
    return found


def test_noise_that_serves_two_questions_is_found(tmp_path, monkeypatch):
    """The mutant: a key that goes on whatever could not be read."""
    with question_mutants.keys_of_all():
        assert shared("file", tmp_path, monkeypatch, PAIRS) == PAIRS // 2


def test_a_complete_release_that_is_drawn_again_is_found(tmp_path, monkeypatch):
    """The mutant: a complete checkpoint is drawn from, as if it were not."""
    with question_mutants.drawn_again(), pytest.raises(AssertionError):
        shared("file", tmp_path, monkeypatch, 2)


READ = (
    *("closure", "field of a data class", "fields that are compared", "bound builtin", "slots"),
    *("name set in a module", "handler of an exception"),
)
UNREAD = ("environment", "frompyfunc", "globals()", "deep closure", "what cannot be pickled")


@pytest.mark.parametrize("kind", READ)
def test_an_interrupted_question_that_is_read_whole_has_its_noise(kind, tmp_path, monkeypatch):
    one, _, turn = NAMES[kind](30.0, 60.0, tmp_path)
    turn(0)
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(0.5, 1e-5))
    drawn = killed(monkeypatch, one, tmp_path / "run", ledger=account)
    assert np.array_equal(ask(one, tmp_path / "run", ledger=account), drawn)
    assert [run.status for run in account.runs()] == ["finished"]


@pytest.mark.parametrize("kind", UNREAD)
def test_an_interrupted_question_that_cannot_be_read_is_charged_again_or_refused(kind, tmp_path, monkeypatch):
    one, _, turn = NAMES[kind](30.0, 60.0, tmp_path)
    turn(0)
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(1.5, 1e-5))
    path = tmp_path / "run"
    drawn = killed(monkeypatch, one, path, ledger=account)
    record = RunCheckpoint(path).load()
    assert (record.key, record.whole, record.complete) == (b"", False, False)
    with pytest.warns(RepeatedSpendingWarning, match="cannot go on, for its code has"):
        again = ask(one, RunCheckpoint(path), ledger=account)
    assert not np.array_equal(again, drawn)
    assert [run.status for run in account.runs()] == ["started", "finished"]
    # Complete, it is given again without a charge.
    assert np.array_equal(ask(one, RunCheckpoint(path), ledger=account), again)
    assert len(account.runs()) == 2
    killed(monkeypatch, one, tmp_path / "other")
    with pytest.raises(CheckpointError, match="can be read whole"):
        ask(one, tmp_path / "other")


@pytest.mark.parametrize("run", own_questions.RUNS)
@pytest.mark.parametrize("kind", own_questions.KINDS)
def test_an_own_model_that_cannot_be_read_does_not_go_on(run, kind, tmp_path):
    """A copy of its checkpoint, without a ledger: no noise is drawn under a key that had been used."""
    first, second, turn = own_questions.KINDS[kind](tmp_path)
    turn(0)
    path, copy = tmp_path / "run", tmp_path / "copy"
    with pytest.raises(own_questions.StopError), pytest.warns(RepeatedSpendingWarning, match="complete run alone"):
        own_questions.RUNS[run](first, RunCheckpoint(path, interval=0.0), stop=True)
    shutil.copy(path, copy)
    assert RunCheckpoint(path).load().key == b""
    turn(1)
    for model in (first, second):
        with pytest.warns(RepeatedSpendingWarning), pytest.raises(CheckpointError, match=r"can be read|differs in"):
            own_questions.RUNS[run](model, RunCheckpoint(copy, interval=0.0))


@pytest.mark.parametrize("run", own_questions.RUNS)
def test_an_own_model_whose_key_goes_on_whatever_was_read_is_found(run, tmp_path):
    """The mutant: streams of noise that serve two sums, of the run and of the copy that asks something else."""
    model, _, turn = own_questions.KINDS["file"](tmp_path)
    path, copy = tmp_path / "run", tmp_path / "copy"
    with question_mutants.keys_of_all():
        with pytest.raises(own_questions.StopError):
            own_questions.RUNS[run](model, RunCheckpoint(path, interval=0.0), stop=True)
        shutil.copy(path, copy)
        mine = drawn(lambda: own_questions.RUNS[run](model, RunCheckpoint(path)))
        turn(1)
        theirs = drawn(lambda: own_questions.RUNS[run](model, RunCheckpoint(copy)))
    exact = {own.stream: own.exact for own in mine}
    assert any(exact.get(own.stream, own.exact) != own.exact for own in theirs)


@pytest.mark.parametrize("run", own_questions.RUNS)
def test_an_own_model_that_is_read_whole_goes_on_and_no_other_takes_its_place(run, tmp_path):
    path = tmp_path / "run"
    first, second = own_questions.written(1.0), own_questions.written(-1.0)
    with pytest.raises(own_questions.StopError):
        own_questions.RUNS[run](first, RunCheckpoint(path, interval=0.0), stop=True)
    with pytest.raises(CheckpointError, match="differs in asked"):
        own_questions.RUNS[run](second, RunCheckpoint(path, interval=0.0))
    again = own_questions.RUNS[run](own_questions.written(1.0), RunCheckpoint(path, interval=0.0))
    whole = own_questions.RUNS[run](first, None)
    assert own_questions.sums_of(again) == own_questions.sums_of(whole)


class Hostile:
    """An object that raises whatever is asked of it, a property of each name."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __reduce_ex__(self, protocol):
        raise RuntimeError

    def __call__(self, rows):
        return rows <= 30.0


class HostileMapping(dict):
    def items(self):
        raise RuntimeError


HELD = {
    "object": Hostile, "mapping": lambda: HostileMapping(a=1), "list": lambda: [Hostile()],
    "value": lambda: {"a": Hostile()},
}  # fmt: skip


@pytest.mark.parametrize("kind", HELD)
def test_code_that_cannot_even_be_looked_at_loses_no_run(kind, tmp_path):
    held = HELD[kind]()
    account = dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(0.5, 1e-5))
    place = RunCheckpoint(tmp_path / "run")
    first = ask(lambda rows, held=held: rows <= 30.0, place, ledger=account)
    assert place.load().key == b""
    assert np.array_equal(ask(lambda rows, held=held: rows <= 30.0, place, ledger=account), first)
    assert not read_question(held).whole


def library_models():
    models = dpi.models
    return (
        models.LogisticRegression(2), models.LinearRegression(2), models.PoissonRegression(2),
        models.ProbitRegression(2), models.MultinomialRegression(2, 3), models.GaussianMixture(2, 2),
        models.BayesianNeuralNetwork(2, 3), models.BetaBernoulli(1, 1), models.GammaExponential(),
    )  # fmt: skip


@pytest.mark.parametrize("model", library_models(), ids=lambda model: type(model).__name__)
def test_the_librarys_own_models_are_read_whole(model):
    question = read_question(model)
    assert (question.own, question.unread) == (False, ())
    assert question == read_question(model)


@pytest.mark.parametrize("run", own_questions.RUNS)
def test_code_that_keeps_a_state_does_not_go_on(run, tmp_path):
    """A later process would begin with another state: when calls have changed it, the file has no key."""
    path, seen = tmp_path / "run", []

    def factor():
        seen.append(1.0)
        return 1.0 + 0.01 * len(seen)

    model = own_questions.made(factor)
    with pytest.raises(own_questions.StopError):
        own_questions.RUNS[run](model, RunCheckpoint(path, interval=0.0), stop=True)
    record = RunCheckpoint(path).load()
    assert (record.key, record.whole, record.step) == (b"", False, 2)
    seen.clear()
    with pytest.raises(CheckpointError, match=r"can be read whole|differs in"):
        own_questions.RUNS[run](own_questions.made(factor), RunCheckpoint(path, interval=0.0))


def test_a_contribution_that_keeps_a_state_is_not_read_whole(tmp_path, monkeypatch):
    seen = []

    def below(rows):
        seen.append(0.0)
        return rows <= 30.0

    killed(monkeypatch, below, tmp_path / "run")
    assert RunCheckpoint(tmp_path / "run").load().key == b""

"""Coordinators that lie in their questions, readers that tell of a record by their errors, and what is charged."""

from dataclasses import is_dataclass, replace

import numpy as np
import pytest
from tests.reference import silo_lies
from tests.reference.silo_lies import CASES, KEY, MODELS, TERMS, Forged, ask, forged, honest, message, moved, works_of
from tests.reference.silo_runs import LossyLine, bits, over_sites
from tests.reference.silo_views import LOGISTIC, N, plan_of, records

import dpinfer as dpi
from dpinfer.errors import (
    BackendUnavailableError,
    BudgetExceededError,
    CheckpointError,
    InsecureReleaseError,
    LedgerError,
    RecordError,
    SiloError,
)
from dpinfer.mechanism import Silos, _native
from dpinfer.mechanism.newton.joint import ClusterProducts, JointScores, StratumScores
from dpinfer.mechanism.newton.own_population import OwnScores
from dpinfer.mechanism.silos import LocalLine, Site, messages, questions, work
from dpinfer.mechanism.silos.messages import pack, unpack
from dpinfer.mechanism.sums.parts import add_in_place
from dpinfer.models import PersonModel, SurveyWeights

PLAN = replace(plan_of(LOGISTIC), stops=False)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_question_moves_a_part_beyond_the_bound_of_its_noise(case):
    """5100 questions in all: wrong numbers, shapes, types, kinds and passes, to sites with one record more or less."""
    found = ask(case, 340, 17)
    assert found.largest <= 1.0
    # Power: a third is answered, of several kinds, and records reach the bound.
    assert sum(found.answered.values()) > 80
    assert found.largest > 0.9


def loosely(query, model, kinds, most_numbers):
    """Take any query, as a site once did."""
    return unpack(query, model).fields["query"]


@pytest.mark.parametrize("parts", [1, 50])
def test_a_site_that_took_any_query_would_be_seen(parts, monkeypatch):
    """Of equal parts of one record's contribution each was within the bound, and there were 50 of them."""
    model = MODELS["own"]
    plan, asked = honest(model, "population")
    index = len(asked) - 1
    scores = OwnScores(model, np.zeros(2), np.eye(2), 1.0)
    lie = message(forged(ClusterProducts(scores, 1.0, 5.0, parts)))
    common = silo_lies.rows_of(model, np.random.default_rng(1), 9)
    more = [np.concatenate((part, part[:1] * 0.0 + 3.0 - 2.0 * (part.ndim == 1))) for part in common]
    works = works_of(model, plan, (common, more))
    multiplier = plan.noise_multipliers[index]
    assert moved(works, index, lie, multiplier) is None
    kinds = {**messages.QUERIES, "mechanism.newton.joint": ("ClusterProducts",)}
    monkeypatch.setattr(messages, "QUERIES", kinds)
    assert moved(works, index, lie, multiplier) is None
    monkeypatch.setattr(work, "asked_of_model", loosely)
    assert (moved(works, index, lie, multiplier) > 1.0) == (parts > 1)


def test_integers_of_another_step_are_not_added():
    """A score of norm 1.9 has steps twice as long as those of score and count together at some bounds."""
    scores = JointScores(np.eye(2), np.zeros(2), "gaussian", 1.9)
    with pytest.raises(ValueError, match=r"use StratumScores\.of"):
        StratumScores(scores, 1)
    fitting = StratumScores.of(scores, 1)
    total = _native.PartialSum(length=3, max_norm=2.0 * fitting.max_norm)
    with pytest.raises(ValueError, match="lattice of the total"):
        add_in_place(total, _native.PartialSum(length=2, max_norm=fitting.scores.max_norm), 0, 1)


def test_what_may_travel_is_what_a_pass_may_ask():
    asked = {
        kind
        for model in MODELS.values()
        for target in ("model", "population")
        for wanted in questions.kinds_of(model, target).values()
        for kinds in wanted
        for kind in kinds
    }
    named = {(kind.__module__, kind.__name__) for kind in asked} | {("dpinfer.models.clipping", "ClippedResidual")}
    assert named == {(f"dpinfer.{module}", name) for module, names in messages.QUERIES.items() for name in names}
    assert all(is_dataclass(kind) for kind in asked)


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_every_honest_question_is_of_its_phase(case):
    """A phase that a method has and sites do not know ends here: `questions.kinds_of` has a row for each."""
    plan, asked = honest(MODELS[case[0]], case[1])
    assert len(asked) == plan.n_passes
    assert set(plan.phases) <= set(questions.kinds_of(MODELS[case[0]], case[1]))


PERSONS = PersonModel("gaussian", ("a", "b"), max_rows=3, mean_rows=2.0, features=np.eye(2))
STRATA = dpi.models.LinearRegression(2, survey_weights=SurveyWeights(1.0, 0.5, strata=2))


def planned(model, **options):
    return dpi.plan_newton(model, target_epsilon=3.0, target_delta=1e-5, n_records=40, **options)


TASKS = {
    "strata": lambda: (STRATA, planned(STRATA, target="population")),
    "clusters": lambda: (LOGISTIC, planned(LOGISTIC, target="population", clusters=True)),
    "persons": lambda: (PERSONS, planned(PERSONS)),
    "weights of the model's target": lambda: (
        MODELS["weighted"],
        replace(planned(dpi.models.LinearRegression(2)), stops=False),
    ),
    "passes of another model": lambda: (LOGISTIC, replace(planned(dpi.models.LinearRegression(2)), stops=False)),
    "passes in another order": lambda: (LOGISTIC, replace(PLAN, phases=PLAN.phases[::-1], shares=PLAN.shares[::-1])),
    "passes that may be left out": lambda: (LOGISTIC, replace(PLAN, stops=True)),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_no_run_over_silos_has_is_refused_when_it_is_opened(name, tmp_path):
    model, plan = TASKS[name]()
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours", budget=(9.0, 1e-4))
    site = Site(*records(), ledger=account, model=model if model is PERSONS else None)
    task = {"kind": "newton", "model": model.to_dict(), "terms": plan.to_dict(), "n_records": 40, "records": None}
    opening = pack("open", task=task, terms=TERMS.to_dict(), place=0)
    assert unpack(site.answer(opening)).kind == "refused"
    assert account.runs() == ()


class Telling:
    """A table whose reader raises an error at its first record."""

    def __init__(self, error, calls=None):
        self._error, self.calls = error, [] if calls is None else calls

    def __array__(self, dtype=None, copy=None):
        self.calls.append(1)
        raise self._error


ERRORS = [
    *(CheckpointError("x"), BackendUnavailableError("x"), LedgerError("x"), RecordError("x"), SiloError("x")),
    *(OSError(5, "x"), MemoryError(), BudgetExceededError("x"), InsecureReleaseError("x"), ValueError("x")),
    *(SystemExit(1), GeneratorExit(), TimeoutError(), ConnectionResetError(), StopIteration()),
]


def at_the_first_pass(site, others):
    """Return the message of the first pass for the first of some sites, of which the others have answered."""
    line = LossyLine([site, *others])
    with pytest.raises(SiloError):
        dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)
    return next(pack(asked.kind, **asked.fields) for place, asked, _ in line.seen if (place, asked.kind) == (0, "pass"))


@pytest.mark.filterwarnings("ignore::dpinfer.errors.PrivacyLeakWarning")
@pytest.mark.parametrize("refunds", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_out_of_what_reads_the_records_takes_no_charge_back(error, refunds, tmp_path):
    """Nor makes another, however often the pass is asked again, also of the process that goes on."""
    ledger = dpi.PrivacyLedger.create(tmp_path / "ledger")
    ledger.add_dataset("ours", budget=(2.5, 1e-5))
    account = ledger.dataset("ours", refund_refused=refunds)
    source = dpi.mechanism.RowSource(Telling(error).__array__)
    site = Site(source, ledger=account)
    asked = at_the_first_pass(site, [Site(*records()) for _ in range(2)])
    spent = account.spent().epsilon
    assert spent > 1.5
    saved = site.save()
    for _ in range(3):
        later = Site(source, ledger=account)
        later.load(saved)
        for place in (site, later):
            told = unpack(place.answer(asked))
            # The reason is the same for all, whatever it is.
            assert (told.kind, told.fields) == ("refused", {"reason": "an error"})
        saved = later.save()
    assert [run.status for run in account.runs()] == ["finished"]
    assert account.spent().epsilon == spent


def test_an_interrupt_of_the_reader_leaves_the_charge(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours", budget=(2.5, 1e-5))
    site = Site(dpi.mechanism.RowSource(Telling(KeyboardInterrupt()).__array__), ledger=account)
    with pytest.raises(KeyboardInterrupt):
        dpi.run_newton(LOGISTIC, Silos(LocalLine([site, Site(*records())])), plan=PLAN, n_records=N)
    assert account.spent().epsilon > 1.5


@pytest.mark.parametrize("when", ["before the charge", "after the charge"])
def test_a_session_is_charged_once_also_where_the_process_dies(when, tmp_path, monkeypatch):
    """Its state is that from before the first pass; the ledger knows the session's key, and its first question."""
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours", budget=(2.5, 1e-5))
    site, others = Site(*records(), ledger=account), [Site(*records()) for _ in range(2)]
    line, states = LossyLine([site, *others]), []
    exchange = line.exchange

    def kept(messages):
        states.append(site.save())
        return exchange(messages)

    line.exchange = kept
    release = dpi.run_newton(LOGISTIC, Silos(line), plan=PLAN, n_records=N)
    seen = [(pack(asked.kind, **asked.fields), reply) for place, asked, reply in line.seen if place == 0]
    assert len(account.runs()) == 1
    first, reply = seen[2]
    assert unpack(first).kind == "pass"
    if when == "before the charge":
        # The process died when the entry of the charge was written, and that of the question was not.
        account = dpi.PrivacyLedger.create(tmp_path / "other").add_dataset("ours", budget=(2.5, 1e-5))
        monkeypatch.setattr(dpi.accounting.Charge, "begin", lambda charge, binding=None: 1 / 0)
        dying = Site(*records(), ledger=account)
        dying.load(states[2])
        assert unpack(dying.answer(first)).kind == "refused"
        monkeypatch.undo()
    later = Site(*records(), ledger=account)
    later.load(states[2])
    again = unpack(later.answer(first))
    assert pack(again.kind, **again.fields) == pack(reply.kind, **reply.fields)
    assert len(account.runs()) == 1
    # Another first question would be another release for one charge.
    later = Site(*records(), ledger=account)
    later.load(states[2])
    fields = unpack(first).fields
    query = unpack(fields["query"], LOGISTIC).fields["query"]
    other = pack("pass", **fields | {"query": pack("query", query=type(query)(2.0 * query.transform, query.bound))})
    assert unpack(later.answer(other)).kind == "refused"
    assert isinstance(later.failure, LedgerError)
    assert release.settings["silos"]["present"] == [3] * PLAN.n_passes


def test_a_question_is_refused_before_anything_is_charged_or_read(tmp_path):
    account = dpi.PrivacyLedger.create(tmp_path / "ledger").add_dataset("ours", budget=(2.5, 1e-5))
    reader = Telling(ValueError())
    site, others = Site(dpi.mechanism.RowSource(reader.__array__), ledger=account), [Site(*records()) for _ in range(2)]

    class Lying(LocalLine):
        def exchange(self, messages):
            found = unpack(messages[0])
            if found.kind == "pass":
                lie = message(Forged("dpinfer.mechanism.newton.joint", "UnitSizes", {"scores": 1}))
                messages = {**messages, 0: pack("pass", **found.fields | {"query": lie})}
            return super().exchange(messages)

    with pytest.raises(SiloError, match="2 gave a sum"):
        dpi.run_newton(LOGISTIC, Silos(Lying([site, *others])), plan=PLAN, n_records=N)
    assert (account.runs(), reader.calls) == ((), [])


NONSENSE = [
    pack("open"),
    pack("open", task={}, terms={}, place=0),
    pack("open", task={"kind": "newton"}, terms=TERMS.to_dict(), place=1),
    pack("open", task=[1], terms="x", place=None),
    pack("peers", boxes=[], masks=[]),
    pack("opening", index=0, present=[True, 1.0, "x"], tags=b""),
    pack("pass", index=0, alive=[[], {}], query=b""),
    pack("done now"),
    b"dpinfer silos 1\n" + (10**5).to_bytes(8, "little") + b"[" * 10**5,
    b"dpinfer silos 1\n" + (4).to_bytes(8, "little") + b"null",
    b"dpinfer silos 1\n" + b"\xff" * 8,
    b"",
]


def test_nonsense_ends_no_session(monkeypatch):
    """Sent before each message of a run: the release, and both ends' chains of hashes, are those without it."""
    arrays = [tuple(array[part] for array in records()) for part in np.array_split(np.arange(N), 3)]
    whole, _, _ = over_sites(LOGISTIC, PLAN, arrays, n_records=N)

    class Nonsense(LossyLine):
        def exchange(self, messages):
            for place in messages:
                for text in NONSENSE[:4] if unpack(messages[place]).kind != "open" else NONSENSE:
                    assert unpack(self.sites[place].answer(text)).kind == "refused"
            return super().exchange(messages)

    monkeypatch.setattr("tests.reference.silo_runs.LossyLine", Nonsense)
    found, _, _ = over_sites(LOGISTIC, PLAN, arrays, n_records=N)
    assert bits(found) == bits(whole)
    assert found.settings["silos"]["transcripts"] == whole.settings["silos"]["transcripts"]


def test_a_request_that_the_curator_declines_ends_no_session():
    agreed = []
    site = Site(*records(), approve=lambda request: not agreed.append(1) and len(agreed) == 1)
    line = LossyLine([site, Site(*records())])

    class Twice(LocalLine):
        def exchange(self, messages):
            found = line.exchange(messages)
            if unpack(messages[0]).kind == "pass":
                opening = next(pack(asked.kind, **asked.fields) for _, asked, _ in line.seen)
                assert unpack(site.answer(opening + b" ")).fields["reason"] == "its curator"
            return found

    dpi.run_newton(LOGISTIC, Silos(Twice([None, None])), plan=PLAN, n_records=N)
    assert len(agreed) > 1


def test_a_statistic_has_no_question():
    model = dpi.models.BetaBernoulli()
    task = work.Task("statistic", model, {"epsilon": 1.0, "adjacency": "add_remove", "clip": None}, 9)
    made = work.WORKS["statistic"](task, n_threads=1)
    made.open(np.ones(9), None)
    made.question(0, b"", TERMS)
    with pytest.raises(SiloError, match="no question"):
        made.question(0, b"x", TERMS)
    assert made.sum(0, None, KEY, 2).shape == (1,)

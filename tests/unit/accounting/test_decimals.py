"""An epsilon is the decimal that a person typed: parts add as decimals, and what remains can be spent."""

import math
import random
import sys
from fractions import Fraction

import numpy as np
import pytest

import dpinfer as dpi
from dpinfer.accounting import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    PoissonSampled,
    PureEvent,
    SelfComposed,
    calibrate_noise_multiplier,
    charge_run,
)
from dpinfer.accounting.decimals import at_least, at_most, check_epsilon, decimal_of, share_of
from dpinfer.errors import BudgetExceededError
from dpinfer.mechanism import discrete_laplace, lattice_sums

PETS = {"pet": ["cat"] * 30 + ["dog"] * 10}
SCHEMA = dpi.tabular.Schema.from_dict({"columns": {"pet": {"kind": "categorical", "categories": ["cat", "dog"]}}})


@pytest.fixture
def account(tmp_path):
    def make(epsilon=1.0, **options):
        ledger = dpi.PrivacyLedger.create(tmp_path / f"{len(list(tmp_path.iterdir()))}.ledger")
        return ledger.add_dataset("people", budget=(epsilon, 1e-6), **options)

    return make


def charge(account, event):
    with charge_run(account, event, adjacency="add_remove", mechanism="test", secure=True, delta=1e-6) as charged:
        charged.begin()


def pure(epsilon):
    return PureEvent(epsilon, "add_remove")


def same(records):
    return records[:, None]


def typed(rng):
    """Numbers as people type them, and as programs compute them."""
    return rng.choice(
        [round(rng.uniform(0.001, 3.0), rng.randint(1, 6)) or 0.1, rng.random() + 1e-9, 1.0 / rng.randint(1, 40)]
    )


def test_decimals_enclose_every_fraction():
    rng = random.Random(1)
    for _ in range(2000):
        value = Fraction(rng.randint(1, 10**20), rng.randint(1, 10**20)) * Fraction(10) ** rng.randint(-300, 280)
        low, high = at_most(value), at_least(value)
        assert decimal_of(low) <= value <= decimal_of(high)
        assert high in (low, math.nextafter(low, math.inf))
        number = typed(rng)
        assert at_most(decimal_of(number)) == at_least(decimal_of(number)) == number
    assert at_least(Fraction(10) ** 400) == math.inf
    assert at_most(Fraction(10) ** 400) == sys.float_info.max


@pytest.mark.parametrize("parts", [2, 3, 4, 5, 8, 10, 20])
def test_equal_parts_of_a_budget_fit_it(parts, account):
    spent = account()
    for _ in range(parts):
        dpi.tables.counts(PETS, "pet", schema=SCHEMA, epsilon=1 / parts, ledger=spent)
    assert spent.spent().epsilon == pytest.approx(1.0, abs=2e-16)
    assert spent.spent().epsilon <= 1.0
    with pytest.raises(BudgetExceededError, match="remaining"):
        dpi.tables.counts(PETS, "pet", schema=SCHEMA, epsilon=0.01, ledger=spent)


@pytest.mark.parametrize("seed", range(40))
def test_decimals_add_exactly_and_what_remains_can_be_spent(seed, account):
    rng = random.Random(seed)
    budget, spent = typed(rng) + 1.0, None
    spent = account(budget)
    total = Fraction(0)
    for _ in range(rng.randint(1, 5)):
        epsilon = typed(rng)
        if total + decimal_of(epsilon) > decimal_of(budget):
            with pytest.raises(BudgetExceededError):
                charge(spent, pure(epsilon))
            continue
        charge(spent, pure(epsilon))
        total += decimal_of(epsilon)
    assert spent.spent().epsilon == at_least(total)
    rest = spent.remaining()
    if rest > 0.0:
        assert decimal_of(rest) + total <= decimal_of(budget)
        charge(spent, pure(rest))
    assert spent.remaining() < 1e-15


@pytest.mark.parametrize("composition", ["pld", "filter"])
@pytest.mark.parametrize("seed", range(6))
def test_what_remains_beside_other_runs_can_be_spent(seed, composition, account):
    rng = random.Random(seed)
    spent = account(3.0, composition=composition)
    events = [
        GaussianEvent(rng.uniform(5.0, 20.0)),
        pure(round(rng.uniform(0.01, 0.3), 2)),
        ApproximateEvent(0.1, 2e-7, "add_remove"),
        SelfComposed(PoissonSampled(0.1, GaussianEvent(rng.uniform(5.0, 20.0))), 100),
    ]
    for event in rng.sample(events, 3):
        if not (composition == "filter" and isinstance(event, ApproximateEvent)):
            charge(spent, event)
    rest = spent.remaining()
    assert rest > 0.5
    charge(spent, pure(rest))
    assert spent.spent().epsilon <= 3.0


@pytest.mark.parametrize("seed", range(10))
def test_what_remains_can_be_spent_by_gaussian_noise_too(seed, account):
    rng = random.Random(seed)
    spent = account()
    charge(spent, pure(round(rng.uniform(0.01, 0.6), 2)))
    if seed % 2:
        charge(spent, GaussianEvent(rng.uniform(20.0, 90.0)))
    rest = spent.remaining()
    charge(spent, GaussianEvent(calibrate_noise_multiplier(GaussianEvent, target_epsilon=rest, target_delta=1e-6)))
    assert spent.spent().epsilon <= 1.0


def test_deltas_add_as_decimals_too(account):
    spent = account()
    for _ in range(10):
        charge(spent, ApproximateEvent(0.1, 1e-7, "add_remove"))
    assert spent.spent().epsilon == 1.0
    with pytest.raises(BudgetExceededError):
        charge(
            account(), Composed((ApproximateEvent(0.1, 1e-6, "add_remove"), ApproximateEvent(0.1, 1e-9, "add_remove")))
        )


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.7, 1e-12, 2.5])
def test_noise_is_drawn_for_the_decimal(epsilon, monkeypatch):
    scales = []
    draw = discrete_laplace.discrete_laplace
    monkeypatch.setattr(
        discrete_laplace,
        "discrete_laplace",
        lambda key, scale, *a, **b: scales.append(scale) or draw(key, scale, *a, **b),
    )
    total = lattice_sums.NormSum(1, 1.0)
    total.noisy_sum(bytes(32), epsilon=epsilon, replace=False)
    assert scales == [total.largest / Fraction(repr(epsilon))]


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-200, 1e-51, 1e51, 1e300, math.inf, math.nan, 0.0, -1.0])
def test_an_epsilon_beyond_all_noise_is_refused_by_name(epsilon, account):
    spent = account()
    calls = (
        lambda: dpi.tables.counts(PETS, "pet", schema=SCHEMA, epsilon=epsilon, ledger=spent),
        lambda: dpi.private_sum([1.0], same, names=["a"], max_norm=1.0, epsilon=epsilon, ledger=spent),
        lambda: dpi.release_count([1.0], epsilon=epsilon, ledger=spent),
        lambda: dpi.release_bounds([[1.0]], epsilon=epsilon, ledger=spent),
        lambda: dpi.release_categories(["a"], epsilon=epsilon, delta=1e-6, ledger=spent),
        lambda: dpi.run_statistic(
            dpi.models.BetaBernoulli(1, 1), [1.0], epsilon=epsilon, n_records=1, ledger=spent
        ),
        lambda: dpi.fit(
            dpi.models.BetaBernoulli(1, 1), [1.0], epsilon=epsilon, delta=0.0, n_records=1, ledger=spent,
            method="statistic",
        ),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match="epsilon"):
            call()
    assert spent.runs() == ()


@pytest.mark.parametrize("epsilon", [1e-50, 1e-30, 1e30, 1e50])
def test_an_extreme_epsilon_is_a_release(epsilon):
    for norm in (1e-99, 1.0, 1e100):
        release = dpi.private_sum(norm * np.ones(3), same, names=["a"], max_norm=norm, epsilon=epsilon)
        assert np.all(np.isfinite(release.noisy_sums))
        assert np.all(np.isfinite(release.interval(0.9)))
    assert check_epsilon("epsilon", epsilon) == epsilon


# Many runs on one budget


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("parts", [1, 2, 10, 37])
@pytest.mark.parametrize("composition", ["pld", "filter"])
def test_as_many_runs_as_were_asked_for_fit_and_hardly_more_is_left(epsilon, parts, composition, account):
    spent = account(epsilon, composition=composition)
    charge(spent, GaussianEvent(60.0))
    share = spent.share(parts)
    noise = calibrate_noise_multiplier(GaussianEvent, target_epsilon=share, target_delta=1e-6)
    for _ in range(parts):
        charge(spent, GaussianEvent(noise))
    assert 0.99 * epsilon < spent.spent().epsilon <= epsilon


@pytest.mark.parametrize("parts", [1, 3, 7, 10, 11, 49])
def test_as_many_pure_runs_as_were_asked_for_fit(parts, account):
    spent = account(1.0)
    share = spent.share(parts, pure=True)
    assert share == share_of(1.0, parts) == pytest.approx(1.0 / parts, rel=1e-15)
    for _ in range(parts):
        charge(spent, pure(share))
    assert spent.spent().epsilon <= 1.0


def test_fits_get_the_share(account, rng):
    spent = account(3.0)
    X = rng.normal(size=(400, 2))
    y = (rng.random(400) < 0.5).astype(float)
    share = spent.share(3)
    for _ in range(3):
        dpi.fit(
            dpi.models.LogisticRegression(2), X, y, epsilon=share, delta=1e-6, n_records=400, method="newton",
            ledger=spent,
        )  # fmt: skip
    assert 2.9 < spent.spent().epsilon <= 3.0


def test_a_share_of_nothing_says_so(account, tmp_path):
    spent = account(1.0)
    charge(spent, pure(1.0))
    for kind in (True, False):
        with pytest.raises(BudgetExceededError, match="left of the budget"):
            spent.share(2, pure=kind)
    with pytest.raises(ValueError, match="parts"):
        spent.share(0)
    free = dpi.PrivacyLedger.create(tmp_path / "free").add_dataset("people")
    with pytest.raises(ValueError, match="must have a budget"):
        free.share(2)


# A long ledger


@pytest.mark.parametrize("kind", ["pure", "gaussian"])
def test_a_charge_of_a_long_ledger_reads_what_is_new(kind, account, monkeypatch):
    """Work is counted, for seconds depend on the machine: hashes, and entries that are given a meaning."""
    from dpinfer.accounting import _ledger_file, ledger_state

    spent = account(1e3)
    calls = {"_digest": 0, "_apply": 0}

    def counted(module, name):
        real = getattr(module, name)

        def call(*arguments):
            calls[name] += 1
            return real(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(_ledger_file, "_digest")
    counted(ledger_state, "_apply")
    work = []
    for number in range(120):
        calls.update(_digest=0, _apply=0)
        charge(spent, pure(0.1) if kind == "pure" else GaussianEvent(20.0 + number))
        work.append(dict(calls))
    assert work[5] == work[-1]
    assert sum(work[-1].values()) < 10


def test_what_is_known_of_a_file_is_not_trusted_when_it_changes(account):
    import sqlite3

    spent = account(1.0)
    for _ in range(4):
        charge(spent, pure(0.1))
    assert spent.spent().epsilon == 0.4
    with sqlite3.connect(spent.path) as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET content = replace(content, '0.1', '0.2') WHERE number = 2")
        connection.execute(
            "CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries "
            "BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END"
        )
    connection.close()
    with pytest.raises(dpi.errors.LedgerFormatError, match="do not chain"):
        spent.spent()


def test_entries_that_are_given_out_cannot_change_what_is_known(account):
    spent = account(1.0)
    charge(spent, pure(0.4))
    ledger = dpi.PrivacyLedger(spent.path)
    for entry in ledger.entries():
        entry.content.clear()
    spent.runs()
    assert spent.spent().epsilon == 0.4
    assert ledger.entries()[1].content["budget"] == [1.0, 1e-6]

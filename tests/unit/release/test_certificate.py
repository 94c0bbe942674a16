"""Certificates: honest ones are accepted, and what was tampered with is refused, by a program that knows no dpinfer."""

import ast
import dataclasses
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from tests.reference.release_certificates import (
    KEY,
    TAMPERINGS,
    UNKNOWN,
    Composition,
    bomb,
    charged_bundle,
    endless_ledger,
    exact_delta,
    false_certificate,
    follows_once,
    gradient_trace,
    honest_release,
    least_epsilon,
    noisy,
    random_composition,
    slightly_less,
    stating,
    tampered,
)

import dpinfer as dpi
from dpinfer import verify_release
from dpinfer.accounting import Composed, NonPrivateEvent, account, run_event
from dpinfer.errors import LedgerError
from dpinfer.testing import InsecureRNG
from dpinfer.verify_release import (
    EXACT,
    Accountant,
    ContradictionError,
    Normal,
    Step,
    UnableError,
    Work,
    follows,
    signed,
    verify,
)

PROGRAM = Path(verify_release.__file__)
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"


@pytest.fixture
def once(monkeypatch):
    """Have `verify` compute what follows from the same events once."""
    monkeypatch.setattr(verify_release, "follows", follows_once)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return charged_bundle(tmp_path_factory.mktemp("certificates"))


def test_the_bundle_is_accepted_with_its_signature(bundle):
    report = dataclasses.replace(bundle, public_key=PUBLIC).report()
    assert report.contradicts == []
    assert len(report.holds) == 7
    assert not report.promised  # it names a leak


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_was_tampered_with_is_refused(once, bundle, name):
    assert tampered(bundle, name).report().contradicts != []


@pytest.mark.parametrize("number", range(60))
def test_no_false_certificate_has_status_zero(once, bundle, number):
    """Any field understated by a factor from 1.0001 to 10; bench/privacy/certificates.py has 500, some sampled."""
    false, what = false_certificate(np.random.default_rng([3, number]), number, bundle, kinds=(0,))
    assert false.report().status in (1, 3), what


@pytest.mark.parametrize("count", [1, 60])
def test_an_epsilon_of_sampled_steps_below_the_truth_has_no_tolerance(count):
    composition = Composition("add_remove", 1e-6, [], [], [], ("poisson", 2.0, 0.1, count))
    events, epsilon = [event.to_dict() for event in composition.events], least_epsilon(composition)
    certified = account(Composed(tuple(composition.events)), delta=composition.delta).epsilon
    assert stating(events, certified, composition.delta).report().status == 0
    report = stating(events, epsilon * (1.0 - 1e-4), composition.delta).report()
    assert (report.contradicts, report.status) == ([], 3)


def test_a_sample_of_all_records_is_plain_noise():
    certified = account(dpi.accounting.GaussianEvent(2.0), delta=1e-6).epsilon
    assert stating([noisy(2.0, 1.0)], certified).report().status == 0
    assert stating([noisy(2.0, 1.0)], certified * (1.0 - 1e-6)).report().status == 1


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_accountant_gives_up_is_unknown_and_never_green(name, monkeypatch):
    monkeypatch.setattr(verify_release, "WORK", 3 * 10**7)
    report = stating(UNKNOWN[name], 0.1).report()
    assert (report.contradicts, report.status) == ([], 3)
    assert "accountant" in report.unknown[0]


def test_without_the_release_nothing_is_green(bundle):
    honest = stating([noisy(2.0)], account(dpi.accounting.GaussianEvent(2.0), delta=1e-6).epsilon)
    assert honest.report().status == 0
    honest.release = None
    report = honest.report()
    assert (report.contradicts, report.promised, report.status) == ([], True, 3)
    assert bundle.report().status == 3  # it names a leak


@pytest.mark.parametrize("what", ["endless rows", "a bomb", "an overlapping archive", "a long text"])
def test_hostile_files_end_in_a_verdict(bundle, what, once):
    text, release, ledger, _ = bundle.arguments()
    if what == "endless rows":
        report = verify(text, release, endless_ledger())
    elif what == "a bomb":
        report = verify(text, bomb(), ledger)
    elif what == "an overlapping archive":
        directory = release[release.index(b"PK\x01\x02") : release.index(b"PK\x05\x06")]
        entries = len(release) - len(directory) - 22
        tail = bytearray(release[entries + len(directory) :])
        times = 1 + len(release) // 100
        tail[8:12] = 2 * (int.from_bytes(tail[8:10], "little") * times).to_bytes(2, "little")
        tail[12:16] = (len(directory) * times).to_bytes(4, "little")
        report = verify(text, release[:entries] + directory * times + bytes(tail), ledger)
    else:
        report = verify(text + b" " * 2**24, release, ledger)
    assert report.status == (3 if what == "a long text" else 1)


def test_there_are_forty_ways_or_more():
    assert len(TAMPERINGS) >= 40


@pytest.mark.parametrize("number", range(25))
def test_honest_releases_are_accepted(number, tmp_path):
    release = honest_release(np.random.default_rng(number), number)
    release.save(tmp_path / "a.release")
    report = verify(release.certificate().encode(), (tmp_path / "a.release").read_bytes())
    assert report.contradicts == []
    assert report.promised == math.isfinite(release.epsilon)


def test_private_runs_are_accepted_with_their_ledger(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(600, 2))
    y = (rng.random(600) < 0.5).astype(float)
    model = dpi.models.LogisticRegression(n_features=2)
    ledger = dpi.PrivacyLedger.create(tmp_path / "spent.ledger")
    account_of = ledger.add_dataset("census", budget=(4.0, 1e-5))
    plan = dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-6, n_records=600)
    newton = dpi.run_newton(model, X, y, plan=plan, n_records=600, ledger=account_of)
    steps = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-6, sample_rate=0.2, n_steps=20)
    trace = dpi.run_dpvi(model, X, y, plan=steps, max_grad_norm=1.0, n_records=600, ledger=account_of)
    for release in (newton, trace):
        release.save(tmp_path / "a.release")
        text = release.certificate(ledger=ledger.path).encode()
        report = verify(text, (tmp_path / "a.release").read_bytes(), Path(ledger.path).read_bytes())
        assert report.contradicts == []
        assert report.promised
        assert report.unknown == []
        assert "signed" in " ".join(report.beyond)


def test_a_release_without_a_guarantee_has_a_certificate_that_says_so():
    rng = np.random.default_rng(3)
    event = run_event(2.0, 0.1, 4)
    for release in (
        gradient_trace(rng, event, secure=False),
        gradient_trace(rng, event, leaks=("a count without noise",)),
        dataclasses.replace(gradient_trace(rng, event), event=NonPrivateEvent(), certified_epsilon=math.inf),
    ):
        report = verify(release.certificate().encode())
        assert (report.contradicts, report.promised) == ([], False)


def test_a_certificate_needs_the_ledger_that_charged_the_release(bundle, tmp_path):
    release = gradient_trace(np.random.default_rng(1), run_event(2.0, 0.1, 4))
    with pytest.raises(ValueError, match="charged to none"):
        release.certificate(ledger=bundle.ledger)
    (tmp_path / "a.release").write_bytes(bundle.release)
    other = dpi.PrivacyLedger.create(tmp_path / "other.ledger")
    with pytest.raises(LedgerError, match="must hold the entry"):
        dpi.load_release(tmp_path / "a.release").certificate(ledger=other.path)


def test_the_program_runs_alone(bundle, tmp_path):
    shutil.copy(PROGRAM, tmp_path / "verify_release.py")
    (tmp_path / "c.json").write_bytes(verify_release.canonical(bundle.document) + b"\n")
    (tmp_path / "a.release").write_bytes(bundle.release)
    command = [sys.executable, "-I", "-S", tmp_path / "verify_release.py", tmp_path / "c.json"]
    files = ["--release", tmp_path / "a.release", "--ledger", bundle.ledger, "--public-key", PUBLIC]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "NO GUARANTEE" in done.stdout
    forged = bundle.document | {"digest": "0" * 64}
    (tmp_path / "c.json").write_bytes(verify_release.canonical(forged))
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, "CONTRADICTS" in done.stdout) == (1, True)
    honest = stating([noisy(2.0)], account(dpi.accounting.GaussianEvent(2.0), delta=1e-6).epsilon)
    (tmp_path / "c.json").write_bytes(verify_release.canonical(honest.document))
    (tmp_path / "a.release").write_bytes(honest.release)
    for files, status in ((["--release", tmp_path / "a.release"], 0), ([], 3)):
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, "NOT KNOWN" in done.stdout) == (status, status == 3)
    done = subprocess.run([*command[:-1], "missing"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2


def test_the_program_is_short_and_imports_the_standard_library_alone():
    source = PROGRAM.read_text(encoding="utf-8")
    tree = ast.parse(source)
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} <= sys.stdlib_module_names
    assert len(source.splitlines()) <= 600


@pytest.mark.parametrize("z", [-17.0, -6.3, -1.0, -1e-9, 0.0, 0.25, 3.0, 9.5, 40.0])
def test_the_normal_distribution_is_bounded(z):
    for digits in (25, 60, 150):
        normal = Normal(digits, Work())
        with localcontext(normal.context):
            low, high = normal.cdf(Decimal(z))
            assert high - low <= Decimal("2.001") * normal.least
        with mpmath.workdps(digits + 30):
            exact = mpmath.ncdf(mpmath.mpf(z))
            assert mpmath.mpf(str(low)) <= exact <= mpmath.mpf(str(high))


@pytest.mark.parametrize("removed", [True, False])
def test_a_steps_delta_and_that_of_its_law_are_from_above(removed):
    mu, rate = Decimal("0.7"), Fraction(1, 9)
    step = Step(False, mu, rate)
    accountant = Accountant(Counter({step: 3}), Fraction(0), Fraction(1), Fraction(1, 10**6), 1, Work())
    with localcontext(accountant.normal.context), mpmath.workdps(45):
        law = accountant.law(step, removed)
        wider = accountant.halved(law, accountant.bits)
        for epsilon in (-1, Decimal("-0.1"), Decimal("0.013"), 1):
            exact = _one_sampled(1 / mpmath.mpf("0.7"), mpmath.mpf(1) / 9, epsilon, removed)
            alone = accountant.profile(step, Decimal(epsilon), removed)
            assert exact <= mpmath.mpf(str(alone)) <= exact + mpmath.mpf("1e-30")
            least = exact
            for law_of, bits in ((law, accountant.bits), (wider, accountant.bits - 1)):
                points = [(mass, k * Decimal(2) ** -bits) for k, mass in enumerate(law_of.masses, law_of.start)]
                whole = sum(mass * max(0, 1 - (epsilon - loss).exp()) for mass, loss in points) + law_of.infinite
                delta = mpmath.mpf(str(whole / accountant.unit))
                assert least <= delta <= exact + 4e-4
                least = delta


def _one_sampled(sigma, rate, epsilon, removed):
    """Return delta of one Poisson-sampled Gaussian at any epsilon, by quadrature of its densities."""
    mp = mpmath

    def excess(z):
        near = mp.npdf(z)
        mixed = (1 - rate) * near + rate * mp.npdf(z - 1 / sigma)
        one, two = (mixed, near) if removed else (near, mixed)
        return max(mp.mpf(0), one - mp.exp(mp.mpf(str(epsilon))) * two)

    odds = (mp.exp(mp.mpf(str(epsilon if removed else -epsilon))) - 1 + rate) / rate
    edge = [sigma * mp.log(odds) + 1 / (2 * sigma)] if odds > 0 else []
    return mp.quad(excess, sorted([*range(-18, 19), *edge]))


@pytest.mark.parametrize("number", [*range(0, 24, 3), 1, 4, 7, 10])
def test_what_follows_is_what_sixty_digits_allow_and_near_the_librarys(number):
    composition = random_composition(np.random.default_rng([7, number]), number)
    events = [event.to_dict() for event in composition.events]
    terms = {"delta": composition.delta, "adjacency": composition.relation}
    certified = account(Composed(tuple(composition.events)), **terms).epsilon
    assert follows(events, composition.relation, Fraction(certified) * (1 + EXACT), composition.delta)
    # A finer grid takes longer, and cannot prove what does not hold.
    assert not follows(events, composition.relation, (certified - 1e-9) / 1.01, composition.delta, 1)
    if certified and (composition.sampled is None or composition.sampled[0] == "poisson"):
        assert exact_delta(composition, 1.01 * certified) <= composition.delta
        assert not follows(events, composition.relation, slightly_less(composition, certified), composition.delta, 8)


def test_many_sampled_steps_are_bounded_by_an_inverted_characteristic_function():
    composition = Composition("add_remove", 1e-6, [], [], [], ("poisson", 2.0, 0.1, 60))
    events = [event.to_dict() for event in composition.events]
    low, high = 0.5, 5.0
    while high - low > 0.004:
        middle = (low + high) / 2
        low, high = (low, middle) if follows(events, "add_remove", middle, 1e-6, 1) else (middle, high)
    assert exact_delta(composition, high, digits=25) <= composition.delta < exact_delta(composition, 0.98 * high, 25)


def test_events_that_nothing_is_known_of_are_refused():
    gaussian = {"type": "gaussian", "noise_multiplier": 1.0}
    poisson = {"type": "poisson_sampled", "sample_rate": 0.1, "event": gaussian}
    for event, relation in (
        (poisson, "replace_one"),
        ({"type": "sampled_without_replacement", "n_records": 9, "n_sampled": 3, "event": gaussian}, "add_remove"),
        ({"type": "poisson_sampled", "sample_rate": 0.1, "event": poisson}, "add_remove"),
        ({"type": "pure", "epsilon": 1.0, "adjacency": "zero_out"}, "add_remove"),
        ({"type": "gaussian", "noise_multiplier": True}, "add_remove"),
        ({"type": "gaussian", "noise_multiplier": 0.0}, "add_remove"),
        ({"type": "self_composed", "event": gaussian, "count": 0}, "add_remove"),
        ({"type": "composed", "events": []}, "add_remove"),
        ([], "add_remove"),
    ):
        with pytest.raises(ContradictionError):
            follows([event], relation, 1.0, 1e-6)
    assert not follows([gaussian, {"type": "non_private"}], "add_remove", 1e6, 0.5)


def test_what_takes_too_long_is_neither_confirmed_nor_contradicted(monkeypatch):
    poisson = {"type": "poisson_sampled", "sample_rate": 0.1, "event": {"type": "gaussian", "noise_multiplier": 1.0}}
    rare = {"type": "poisson_sampled", "sample_rate": 1e-9, "event": {"type": "gaussian", "noise_multiplier": 0.1}}
    monkeypatch.setattr(verify_release, "WORK", 10**6)
    for event in ({"type": "self_composed", "event": poisson, "count": 10**7}, rare):
        with pytest.raises(UnableError):
            follows([event], "add_remove", 1e-6, 1e-12)


def test_signatures_are_those_of_rfc_8032():
    # Section 7.1, TEST 2.
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    value = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert signed(public, b"r", value)
    assert not signed(public, b"s", value)
    order = (2**252 + 27742317777372353535851937790883648493).to_bytes(32, "little")
    scalar = int.from_bytes(value[32:], "little") + int.from_bytes(order, "little")
    assert not signed(public, b"r", value[:32] + scalar.to_bytes(32, "little"))


def test_a_seeded_run_is_certified_as_not_private():
    model = dpi.models.LogisticRegression(n_features=1)
    X, y = np.linspace(-1.0, 1.0, 50)[:, None], np.tile([0.0, 1.0], 25)
    plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-6, sample_rate=0.5, n_steps=2)
    release = dpi.run_dpvi(model, X, y, plan=plan, max_grad_norm=1.0, n_records=50, random_source=InsecureRNG(1))
    assert json.loads(release.certificate(key=KEY))["statement"]["guarantee"]["secure"] is False
    assert not verify(release.certificate(key=KEY).encode()).promised


VECTORS = Path(__file__).parents[2] / "golden" / "certificates"


def test_the_vectors_of_the_specification(once):
    files = sorted(VECTORS.glob("*.json"))
    assert len(files) == 9
    release, ledger = ((VECTORS / f"honest.{kind}").read_bytes() for kind in ("release", "ledger"))
    for path in files:
        if path.stem == "events":
            for vector in json.loads(path.read_bytes()):
                for share, answer in ((1.01, True), (1 - 1e-9, False)):
                    given = vector["events"], vector["adjacency"], share * vector["epsilon"], vector["delta"]
                    assert follows(*given, 8) == answer
        else:
            report = verify(path.read_bytes(), release, ledger, PUBLIC if path.stem == "somebody-else" else None)
            assert (report.contradicts == []) == (path.stem == "honest"), path.stem

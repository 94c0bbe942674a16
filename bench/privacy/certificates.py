"""The verifier of certificates: its answers against 60 digits and the library's, honest releases, tampering, seconds.

    python bench/privacy/certificates.py [--compositions 300] [--releases 1000] [--false 500] [--seed 11]

Checks: an epsilon that is 1e-9 below that of 60 digits is never accepted (compositions without sampling, of one sampled
step, of many Poisson-sampled steps; sampling without replacement is compared with the library alone); the library's
epsilon always is, and 1% below never; every honest release is accepted, and every tampering refused; no false
certificate has status 0: any field of an honest one understated by a factor from 1.0001 to 10, epsilon or delta of
random compositions below what 25 digits allow.  Where Node is installed, the page of the documentation gives the same
answers.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.release_certificates import (
    TAMPERINGS,
    charged_bundle,
    false_certificate,
    follows_once,
    honest_release,
    random_composition,
    slightly_less,
    tampered,
)
from tests.reference.verify_page import told_by_the_page

from dpinfer import verify_release
from dpinfer.accounting import Composed, account
from dpinfer.release.files import release_bytes
from dpinfer.verify_release import EXACT, follows, verify

# The accountant's grids were tuned on 120 compositions of the first; docs/certificates.md reports both.
SEEDS = (11, 20261124)


def compositions(count, seed):
    """Compare the verifier's answers with 60 digits and with the library's epsilon."""
    slowest, compared, claims, told = 0.0, 0, [], []
    for number in range(count):
        composition = random_composition(np.random.default_rng([seed, number]), number)
        events, relation, delta = composition.events, composition.relation, composition.delta
        certified = account(Composed(tuple(events)), delta=delta, adjacency=relation).epsilon
        asked = {float(Fraction(certified) * (1 + EXACT)): True, (certified - 1e-9) / 1.01: False}
        if certified and (composition.sampled is None or composition.sampled[0] == "poisson"):
            asked[slightly_less(composition, certified)] = False
            compared += 1
        for epsilon, answer in asked.items():
            claims.append(([event.to_dict() for event in events], relation, epsilon, delta, 32 if answer else 8))
            start = time.process_time()
            told.append(follows(*claims[-1]))
            slowest = max(slowest, time.process_time() - start)
            assert told[-1] == answer, (number, epsilon, certified)
    print(f"{count} compositions: the library's epsilon accepted, 1% below refused")
    print(f"  {compared} of them: 1e-9 below the epsilon of 60 digits refused")
    print(f"  slowest answer: {slowest:.2f} s of processor time")
    if shutil.which("node"):
        assert told_by_the_page([], claims)[1] == told
        print(f"  the page gives the same {len(told)} answers")


def releases(count, seed):
    """Check that honest releases are accepted."""
    rng, slowest, accepted = np.random.default_rng(seed), 0.0, 0
    for number in range(count):
        release = honest_release(rng, number)
        text, content = release.certificate().encode(), release_bytes(release)
        start = time.process_time()
        report = verify(text, content)
        slowest = max(slowest, time.process_time() - start)
        assert not report.contradicts, (number, report.contradicts)
        accepted += 1
    print(f"{accepted} of {count} honest releases accepted; slowest: {slowest:.2f} s of processor time")


def tampering():
    """Check that everything that was tampered with is refused."""
    slowest, refused, reports, cases = 0.0, 0, [], []
    with tempfile.TemporaryDirectory() as folder:
        bundle = charged_bundle(Path(folder))
        assert not bundle.report().contradicts
        for name in TAMPERINGS:
            changed = tampered(bundle, name)
            start = time.process_time()
            reports.append(changed.report()._asdict())
            slowest = max(slowest, time.process_time() - start)
            refused += bool(reports[-1]["contradicts"])
            cases.append(changed.arguments())
        if shutil.which("node"):
            assert told_by_the_page(cases, [])[0] == reports
            print("the page's verdicts are the same")
    assert refused == len(TAMPERINGS)
    print(f"{refused} of {len(TAMPERINGS)} ways to tamper refused; slowest: {slowest:.2f} s of processor time")


def false_ones(count, seed):
    """Check that no false certificate has status 0."""
    told, slowest, asked = Counter(), 0.0, verify_release.follows
    verify_release.follows = follows_once
    with tempfile.TemporaryDirectory() as folder:
        honest = charged_bundle(Path(folder))
        for number in range(count):
            false, what = false_certificate(np.random.default_rng([seed, number]), number, honest)
            start = time.process_time()
            status = false.report().status
            slowest = max(slowest, time.process_time() - start)
            assert status, (number, what)
            told[("a field", "epsilon", "delta")[number % 3], ("contradicts", "unknown")[status == 3]] += 1
    verify_release.follows = asked
    listed = ", ".join(f"{kind} {answer}: {times}" for (kind, answer), times in sorted(told.items()))
    print(f"{count} false certificates: none has status 0 ({listed}); slowest: {slowest:.2f} s of processor time")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compositions", type=int, default=300)
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--false", type=int, default=500)
    parser.add_argument("--seed", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    tampering()
    for seed in options.seed:
        print(f"seed {seed}:")
        false_ones(options.false, seed)
        releases(options.releases, seed)
        compositions(options.compositions, seed)

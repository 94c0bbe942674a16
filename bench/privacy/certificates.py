"""The verifier of certificates: its epsilon against 60 digits and the library's, honest releases, tampering, seconds.

    python bench/privacy/certificates.py [--compositions 300] [--releases 1000] [--seed 11]

Checks: the verifier's epsilon never gives a delta above the target by 60-digit arithmetic (compositions without
sampling, of one sampled step, of many Poisson-sampled steps; sampling without replacement is compared with the library
alone), and is at most 1% above the library's; every honest release is accepted, and every tampering refused.  Where
Node is installed, the page of the documentation says the same, to 13 digits.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.reference.release_certificates import (
    TAMPERINGS,
    charged_bundle,
    exact_delta,
    honest_release,
    random_composition,
    tampered,
)
from tests.reference.verify_page import told_by_the_page

from dpinfer.accounting import Composed, account
from dpinfer.release.files import release_bytes
from dpinfer.verify_release import epsilon_from_above, verify

# The accountant's grids were tuned on the compositions of the first; docs/certificates.md reports both.
SEEDS = (11, 20261124)


def compositions(count, seed):
    """Compare the verifier's epsilon with 60 digits and with the library's."""
    largest, slowest, compared, told = 0.0, 0.0, 0, []
    for number in range(count):
        composition = random_composition(np.random.default_rng([seed, number]), number)
        events = composition.events
        given = [event.to_dict() for event in events], composition.relation, composition.delta
        start = time.process_time()
        found = epsilon_from_above(*given)
        told.append((given, found))
        slowest = max(slowest, time.process_time() - start)
        certified = account(Composed(tuple(events)), delta=composition.delta, adjacency=composition.relation).epsilon
        assert found <= 1.01 * certified, (number, found, certified)
        largest = max(largest, found / certified - 1.0 if certified else 0.0)
        if composition.sampled is None or composition.sampled[0] == "poisson":
            assert exact_delta(composition, found) <= composition.delta, number
            compared += 1
    print(f"{count} compositions, {compared} never below 60 digits, at most {100 * largest:.3f}% above the library's")
    print(f"  slowest: {slowest:.2f} s of processor time")
    if shutil.which("node"):
        _, page = told_by_the_page([], [given for given, _ in told])
        assert [f"{item:.13g}" for item in page] == [f"{item:.13g}" for _, item in told]
        print(f"  the page finds the same {len(page)}, to 13 digits")


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compositions", type=int, default=300)
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--seed", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    tampering()
    for seed in options.seed:
        print(f"seed {seed}:")
        releases(options.releases, seed)
        compositions(options.compositions, seed)

"""Tables of the accounting: epsilon per accountant and calibrated noise, each answer checked before it is timed.

    python bench/privacy/accounting.py [--skip-prv] [--many]

Checks: the default's epsilon lies inside prv-accountant's interval and below the Rényi bound; a calibrated noise
multiplier is certified, and one a relative 1.1e-4 smaller is not.  `--many` prints the last table alone: what many fits
cost together, and the share of a budget for each of many fits, with which they are charged.
"""

import argparse
import pathlib
import tempfile
import time
import warnings

from dpinfer.accounting import (
    AccountantFallbackWarning,
    Adjacency,
    GaussianEvent,
    PoissonSampled,
    PrivacyLedger,
    SampledWithoutReplacement,
    SelfComposed,
    account,
    calibrate_noise_multiplier,
    charge_run,
)
from dpinfer.accounting.rdp import RenyiFilter

DELTA = 1e-5
REGIMES = [
    (20.0, 0.1, 10_000),
    (1.0, 1e-4, 1_000_000),
    (1.0, 0.01, 10_000),
    (1.0, 0.3, 2000),
    (0.5, 0.1, 1000),
    (1.0, 0.01, 1),
    (0.3, 1e-4, 100_000),
    (100.0, 1.0, 10_000),
]
TARGETS = [(0.1, 10_000, 0.1), (0.1, 10_000, 0.3), (0.1, 10_000, 1.0), (0.01, 10_000, 3.0), (1.0, 100, 1.0)]


def poisson(noise, rate, count):
    return SelfComposed(PoissonSampled(rate, GaussianEvent(noise)), count)


def timed(function, repeats):
    """Return the answer and the shortest of some times, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        answer = function()
        times.append(time.perf_counter() - start)
    return answer, min(times)


def epsilon_table(accountants):
    print(f"\nepsilon at delta = {DELTA:g}, add/remove")
    print(f"{'noise':>8} {'rate':>8} {'steps':>9}" + "".join(f" {name + ' (time)':>26}" for name in accountants))
    for noise, rate, count in REGIMES:
        event = poisson(noise, rate, count)
        default = account(event, delta=DELTA)
        cells = []
        for name in accountants:
            bound, seconds = timed(
                lambda name=name, event=event: account(event, delta=DELTA, accountant=name), 3 if name == "pld" else 1
            )
            if name == "rdp":
                assert default.epsilon <= bound.epsilon * (1.0 + 1e-9), (noise, rate, count)
            if name == "prv" and bound.fallback is None:
                assert bound.lower <= default.epsilon <= bound.epsilon * (1.0 + 1e-4), (noise, rate, count)
            text = f"{bound.epsilon:.5g}" + ("" if bound.lower is None else f" [{bound.lower:.4g}]")
            text += "" if bound.fallback is None else " (pld)"
            cells.append(f" {text + f' {seconds:.3f} s':>26}")
        print(f"{noise:8g} {rate:8g} {count:9d}" + "".join(cells))


def calibration_table():
    print(f"\nleast noise multiplier at delta = {DELTA:g}, add/remove; excess: certified epsilon below the target")
    print(
        f"{'rate':>8} {'steps':>9} {'target':>8} {'noise':>10} {'time':>9} {'excess':>9}"
        f" {'rdp noise':>10} {'rdp time':>9}"
    )
    for rate, count, target in TARGETS:

        def make(noise, rate=rate, count=count):
            return poisson(noise, rate, count)

        def calibrate(name, make=make, target=target):
            return calibrate_noise_multiplier(make, target_epsilon=target, target_delta=DELTA, accountant=name)

        noise = calibrate("pld")
        reached = account(make(noise), delta=DELTA).epsilon
        assert reached <= target < account(make(noise / 1.00011), delta=DELTA).epsilon, (rate, count, target)
        _, seconds = timed(lambda: calibrate("pld"), 3)
        loose, loose_seconds = timed(lambda: calibrate("rdp"), 1)
        excess = 1.0 - reached / target
        print(
            f"{rate:8g} {count:9d} {target:8g} {noise:10.5g} {seconds:7.3f} s {excess:9.1e} {loose:10.5g} "
            f"{loose_seconds:7.3f} s"
        )


def filter_table():
    """Print the least noise that the ledger's filter admits as one run, next to the tight rule's."""
    print(f"\nleast noise multiplier that a filter's budget admits, rate 0.1, 10000 steps, delta = {DELTA:g}")
    print(f"{'epsilon':>8} {'order':>6} {'filter':>9} {'pld':>9} {'ratio':>6}")
    for epsilon in (0.1, 0.3, 1.0, 3.0, 8.0):
        rule = RenyiFilter(epsilon, DELTA)
        low, high = 1.0, 2000.0
        while high / low > 1.0001:
            middle = (low * high) ** 0.5
            fits = rule.bound(poisson(middle, 0.1, 10_000), Adjacency.ADD_REMOVE).epsilon <= epsilon
            low, high = (low, middle) if fits else (middle, high)
        tight = calibrate_noise_multiplier(
            lambda noise: poisson(noise, 0.1, 10_000), target_epsilon=epsilon, target_delta=DELTA
        )
        print(f"{epsilon:8g} {rule.order:6d} {high:9.3f} {tight:9.3f} {high / tight:6.3f}")


def without_replacement():
    event = SelfComposed(SampledWithoutReplacement(1000, 1, GaussianEvent(2.0)), 100_000)
    print("\nwithout replacement, 1 of 1000 records, 100 epochs, noise 1 per sensitivity, replace-one:")
    for name in ("pld", "rdp"):
        bound, seconds = timed(
            lambda name=name: account(event, delta=DELTA, adjacency="replace_one", accountant=name), 1
        )
        print(f"  {name}: {bound.epsilon:.4g} in {seconds:.3f} s")


def many_fits():
    """Print what fits of one epsilon cost together, and each one's share of a budget of 3."""
    noise = calibrate_noise_multiplier(GaussianEvent, target_epsilon=1.0, target_delta=DELTA)
    print(f"\nmany fits by Gaussian noise, delta = {DELTA:g}, add/remove")
    print(f"{'fits':>5} {'together, of 1':>15} {'a share of 3':>13} {'together':>9} {'a share of 3, pure':>19}")
    for count in (1, 2, 4, 9, 10, 20, 50):
        with tempfile.TemporaryDirectory() as folder:
            ledger = PrivacyLedger.create(pathlib.Path(folder) / "spent.ledger").add_dataset(
                "people", budget=(3.0, DELTA)
            )
            share, pure = ledger.share(count), ledger.share(count, pure=True)
            own = calibrate_noise_multiplier(GaussianEvent, target_epsilon=share, target_delta=DELTA)
            for _ in range(count):
                terms = {"adjacency": "add_remove", "mechanism": "newton", "secure": True, "delta": DELTA}
                with charge_run(ledger, GaussianEvent(own), **terms) as charge:
                    charge.begin()
            reached = ledger.spent().epsilon
        assert 2.99 < reached <= 3.0
        together = account(SelfComposed(GaussianEvent(noise), count), delta=DELTA).epsilon
        print(f"{count:5d} {together:15.2f} {share:13.4f} {reached:9.4f} {pure:19.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-prv", action="store_true", help="leave out prv-accountant, which takes seconds per row")
    parser.add_argument("--many", action="store_true", help="the table of many fits alone")
    options = parser.parse_args()
    if options.many:
        many_fits()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccountantFallbackWarning)
        epsilon_table(("pld", "rdp") if options.skip_prv else ("pld", "prv", "rdp"))
    calibration_table()
    filter_table()
    without_replacement()
    many_fits()


if __name__ == "__main__":
    main()

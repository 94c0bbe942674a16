"""Check a certificate of dpinfer with the standard library alone: copy this file, and trust nothing else.

    python verify_release.py certificate.json [--release FILE] [--ledger FILE] [--public-key HEX]

It recomputes the hashes, the signature and epsilon, by an accountant of its own that rounds up: integers and decimals
with bounded errors, no floating point.  Exit status: 0 if all holds, 3 if it does and no guarantee is promised, 1 if
something contradicts, 2 if the arguments are wrong.  Format and proofs: docs/certificates.md.
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import re
import sqlite3
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Report", "canonical", "epsilon_from_above", "sha256", "verify"]

FIELDS = {
    "certificate": "format version statement digest signature",
    "statement": "library release guarantee parts bounds plan ledger",
    "library": "name version build",
    "release": "format version members",
    "guarantee": "epsilon delta adjacency accountant secure leaks",
    "part": "name event adjacency",
    "ledger": "dataset run entry digest composed_epsilon composed_delta previous content",
    "signature": "algorithm public_key value",
    "gaussian": "type noise_multiplier",
    "non_private": "type",
    "pure": "type epsilon adjacency",
    "approximate": "type epsilon delta adjacency",
    "poisson_sampled": "type sample_rate event",
    "sampled_without_replacement": "type n_records n_sampled event",
    "self_composed": "type event count",
    "composed": "type events",
}
SIGNED = "dpinfer-certificate-1\n"
SUMS = {"dpinfer-release": "noisy_gradients", "dpinfer-site-release": "noisy_sums"}
# How far a stated epsilon may lie below the bound found here, for plain and for sampled noise, and how far above it.
EXACT, SAMPLED, EXCESS = Fraction(1, 10**9), Fraction(1, 100), {"pld": Fraction(1, 100), "prv": Fraction(1, 5)}


class ContradictionError(Exception):
    """Something in a certificate contradicts something else."""


class UnableError(Exception):
    """Something can be neither confirmed nor contradicted here."""


def need(condition: object, message: str) -> None:
    """Raise ContradictionError unless `condition`."""
    if not condition:
        raise ContradictionError(message)


def fields(name: str, value: Any) -> dict[str, Any]:
    """Return `value` as an object with exactly the fields of `name`."""
    need(isinstance(value, dict) and set(value) == set(FIELDS[name].split()), f"{name} has other fields than its own")
    return dict(value)


def number(value: Any, low: float, high: float = sys.float_info.max, *, whole: bool = False) -> Any:
    """Return a number in (low, high]."""
    good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and low < value <= high
    need(good, "a number is not of its kind, or out of its range")
    return value


def wide(digits: int, rounding: str | None = None) -> Context:
    """Return arithmetic with so many digits and any exponent."""
    return Context(prec=digits, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)


def up(value: Fraction, digits: int = 60) -> Decimal:
    """Return a decimal that is at least `value`."""
    return wide(digits, ROUND_CEILING).divide(Decimal(value.numerator), Decimal(value.denominator))


def root_up(value: Fraction) -> Decimal:
    """Return a decimal that is at least the square root of `value`."""
    return up(value).sqrt(wide(60)).next_plus(wide(59))


# The normal distribution by a series of positive terms, so that nothing cancels.


def root_two_pi(digits: int) -> Decimal:
    """Return 1 / sqrt(2 pi) (Machin's formula)."""
    scale, c = 10 ** (digits + 15), wide(digits + 10)

    def arctan(n: int) -> int:
        return sum((-1) ** k * (scale // n ** (2 * k + 1) // (2 * k + 1)) for k in range(digits + 20))

    return c.divide(Decimal(1), c.sqrt(c.divide(Decimal(8 * (4 * arctan(5) - arctan(239))), Decimal(scale))))


class Normal:
    """Bounds on the distribution function of N(0, 1) with an absolute error of 10**-digits."""

    def __init__(self, digits: int) -> None:
        self.context, self.digits, self.bits = wide(digits + 20), digits, math.ceil((digits + 12) * 3.3220)
        self.least, self.root = Decimal(10) ** -digits, root_two_pi(digits + 20)
        self.reach = Decimal(math.ceil(math.sqrt(4.62 * (digits + 2))) + 1)  # exp(-reach**2 / 2) is below 10**-digits

    def cdf(self, z: Decimal) -> tuple[Decimal, Decimal]:
        """Return a lower and an upper bound on Phi(z) = 1/2 + phi(z) (z + z**3/3 + z**5/(3*5) + ...)."""
        c, bits = self.context, self.bits
        if abs(z) > self.reach:
            return (Decimal(0), self.least) if z < 0 else (1 - self.least, Decimal(1))
        term = total = int(c.multiply(abs(z), Decimal(1 << bits)))
        square, n = (total * total) >> bits, 1
        while term:
            n += 2
            term = ((term * square) >> bits) // n
            total += term
        # Each term is off by a few units, relative to the largest, and phi is at most the inverse of their sum: of the
        # 10**12 units in 10**-digits these are far less than one in a million.
        density = c.multiply(self.root, c.exp(c.multiply(Decimal("-0.5"), c.multiply(z, z))))
        half = c.divide(c.multiply(density, Decimal(total)), Decimal(1 << bits))
        value = c.add(Decimal("0.5"), half.copy_sign(z))
        return max(Decimal(0), value - self.least), min(Decimal(1), value + self.least)


def gaussian_delta(mu: Decimal, epsilon: Decimal, normal: Normal) -> Decimal:
    """Return an upper bound on delta: Balle and Wang (2018), Phi(a) - e**epsilon Phi(b)."""
    c, ratio = normal.context, normal.context.divide(epsilon, mu)
    upper = normal.cdf(mu / 2 - ratio)[1]
    if epsilon > 2000:  # without the second term it is an upper bound, too
        return upper
    return upper - c.multiply(c.exp(epsilon), normal.cdf(-mu / 2 - ratio)[0]) * (1 - normal.least)


def bisect(high: Decimal, good: Callable[[Decimal], bool], share: str) -> Decimal:
    """Return about the least number at which `good` holds, and where it does; it holds at `high`."""
    if good(low := Decimal(0)):
        return low
    while high - low > high * Decimal(share):
        middle = (low + high) / 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def gaussian_epsilon(mu: Decimal, delta: Fraction) -> Decimal:
    """Return the least epsilon, rounded up, of a plain Gaussian."""
    if not Decimal("1e-30") < mu < 1000 or delta < Fraction(1, 10**400):
        raise UnableError("the noise is beyond what this accountant evaluates")
    target, high = up(delta).next_minus(wide(50)), mu * (mu / 2 + 1)
    while (
        gaussian_delta(mu, high, normal := Normal(30 - target.adjusted() + int(min(high, Decimal(2000)) / 2))) > target
    ):
        high *= 2
    return bisect(high, lambda epsilon: gaussian_delta(mu, epsilon, normal) <= target, "1e-15")


def pure_mu(epsilon: Fraction) -> Decimal:
    """Return a mu whose Gaussian dominates a pure guarantee: Phi(mu / 2) is at least e**epsilon / (1 + e**epsilon)."""
    normal = Normal(60)
    corner = 1 - normal.context.divide(Decimal(1), 1 + normal.context.exp(up(epsilon))) + normal.least
    return bisect(Decimal(40), lambda mu: normal.cdf(mu / 2)[0] >= corner, "1e-20")


# From events to steps.


class Step(NamedTuple):
    """One law: plain, Poisson-sampled or drawn without replacement; `mu` from above, `rate` exact."""

    kind: str
    mu: Decimal
    rate: Fraction


class Steps:
    """All that a composition is made of: noise, pure guarantees, what may fail, and the noise's finite precision."""

    def __init__(self) -> None:
        self.sampled, self.pure, self.private = Counter[Step](), Counter[Fraction](), True
        self.squared_mu = self.failure = self.slack = Fraction(0)

    def collect(self, event: Any, relation: str, count: int, depth: int = 0) -> None:
        """Add `count` runs of an event."""
        name = event.get("type") if isinstance(event, dict) else None
        need(isinstance(name, str) and name in FIELDS and depth <= 32, "an event is of no known type")
        value = fields(str(name), event)
        if name == "non_private" or value.get("event") == {"type": "non_private"}:
            self.private = False
        elif name == "composed":
            need(isinstance(value["events"], list) and value["events"], "a composition is empty")
            for part in value["events"]:
                self.collect(part, relation, count, depth + 1)
        elif name == "self_composed":
            count *= number(value["count"], 0, math.inf, whole=True)
            self.collect(value["event"], relation, count, depth + 1)
        elif name in ("pure", "approximate"):
            need(value["adjacency"] == relation, "a part's guarantee is stated under another relation")
            self.pure[Fraction(number(value["epsilon"], 0))] += count
            self.failure += count * Fraction(number(value["delta"], 0, 1 - 2**-53)) if name == "approximate" else 0
        else:
            kind, rate, factor = "plain", Fraction(1), 2 if relation == "replace_one" else 1
            if name == "poisson_sampled":
                rate = Fraction(number(value["sample_rate"], 0, 1))
                kind = "plain" if rate == 1 else "poisson"
            elif name == "sampled_without_replacement":
                total = number(value["n_records"], 0, math.inf, whole=True)
                rate = Fraction(number(value["n_sampled"], 0, total, whole=True), total)
                need(relation != "add_remove", "this sampling has no known bound under this relation")
                kind, factor = ("plain", factor) if rate == 1 else ("subset", 2)
            need(kind != "poisson" or relation != "replace_one", "this sampling has no known bound under this relation")
            noise = fields("gaussian", value.get("event", value))
            need(noise["type"] == "gaussian", "sampling of this event has no known bound")
            sigma = Fraction(number(noise["noise_multiplier"], 0))
            self.slack += count * (sigma / 2**111 + Fraction(1, 2**118))  # docs/derivations/noise.md, taken as given
            if kind == "plain":
                self.squared_mu += count * (factor / sigma) ** 2
            else:
                self.sampled[Step(kind, up(factor / sigma), rate)] += count


# Laws of the privacy loss on a grid, in integers of 10**-unit, and their products: exact, then rounded up.


class Law(NamedTuple):
    """Masses at start, start + 1, ... times the grid's width, and the mass at infinity."""

    start: int
    masses: list[int]
    infinite: int


def product(one: Law, two: Law, unit: int, cut: int) -> Law:
    """Return a law that dominates the sum of two losses; at most `cut` units of each tail are moved up.

    Polynomials with a slot of decimal digits for each coefficient: `decimal` multiplies them by a fast exact transform.
    """
    slot = len(str(max(one.masses) * max(two.masses) * min(len(one.masses), len(two.masses)))) + 1
    packed = [Decimal("".join([f"{mass:0{slot}d}" for mass in reversed(law.masses)])) for law in (one, two)]
    digits = f"{wide(MAX_PREC).multiply(*packed):f}".zfill(slot * (len(one.masses) + len(two.masses) - 1))
    masses = [-(-int(digits[k : k + slot]) // 10**unit) for k in range(len(digits) - slot, -1, -slot)]
    totals = sum(one.masses) + one.infinite, sum(two.masses) + two.infinite
    infinite = -(-(one.infinite * totals[1] + totals[0] * two.infinite) // 10**unit)
    low, high, below, above = 0, len(masses), 0, 0
    while high > low + 2 and above + masses[high - 1] <= cut:
        high, above = high - 1, above + masses[high - 1]
    while high > low + 2 and below + masses[low] <= cut:
        low, below = low + 1, below + masses[low]
    masses[low] += below
    return Law(one.start + two.start + low, masses[low:high], infinite + above)


def power(law: Law, count: int, unit: int, cut: Fraction) -> Law:
    """Return the law of `count` losses, by squaring; `cut` is what each of them may lose."""
    result, size, done = law, 1, 0
    while True:
        if count & 1:
            done += size
            result = law if done == size else product(result, law, unit, int(cut * done))
        count, size = count >> 1, 2 * size
        if not count:
            return result
        law = product(law, law, unit, int(cut * size))


class Grid:
    """One step's loss log((1 - q) + q e**(mu z - mu**2/2)), cut into bins at multiples of `width`."""

    def __init__(self, step: Step, width: Fraction, normal: Normal) -> None:
        c = self.context = normal.context
        self.step, self.normal = step, normal
        self.rate = c.divide(Decimal(step.rate.numerator), Decimal(step.rate.denominator))
        self.width = c.divide(Decimal(width.numerator), Decimal(width.denominator))
        self.known: dict[int, tuple[Decimal, ...]] = {}

    def at(self, k: int) -> tuple[Decimal, ...]:
        """Return e**loss, and bounds on the masses of N(0, 1) and of the mixture below the loss."""
        if k not in self.known:
            c, mu, q = self.context, self.step.mu, self.rate
            growth = c.exp(c.multiply(Decimal(k), self.width))
            odds = c.divide(growth - 1 + q, q)
            z = c.add(mu / 2, c.divide(c.ln(odds), mu)) if odds > 0 else -2 * self.normal.reach
            pairs = zip(self.normal.cdf(z), self.normal.cdf(z - mu), strict=True)
            bounds = [(near, c.add(c.multiply(1 - q, near), c.multiply(q, far))) for near, far in pairs]
            self.known[k] = (growth, bounds[0][0], bounds[1][0], bounds[0][1], bounds[1][1])
        return self.known[k]

    def edges(self, stride: int, coarse: int, tail: Decimal) -> list[int]:
        """Return edges at multiples of `stride`: `coarse` of them apart, and further where mass is rare."""
        found = {0}
        for sign in (1, -1):
            k, mass = 0, 1.0
            while mass > tail:
                k += sign * stride * max(1, coarse, int(mass**-0.15))
                mass = float(self.at(k)[4] if sign < 0 else 1 - self.at(k)[4])
                found.add(k)
        return sorted(k for k in found if k >= 0 or self.step.kind != "subset")

    def law(self, order: str, stride: int, index: list[int], unit: int) -> Law:
        """Return a law that dominates the step's: each bin's mass is split between its ends, so that both masses stay.

        Of all laws with these masses, that on the ends has the largest delta at every epsilon.  What lies beyond the
        last edge becomes infinite, and what lies before the first is moved up to it.
        """
        c, margin, masses = self.context, self.normal.least * 1000, Counter[int]()
        subset = self.step.kind == "subset"

        def put(k: int, mass: Decimal) -> None:
            masses[k // stride] += int(c.multiply(max(Decimal(0), mass), Decimal(10) ** unit)) + 1

        for low, high in pairwise(index):
            growth, near_a, near_b, mixed_a, mixed_b = self.at(low)
            grown, near_c, near_d, mixed_c, mixed_d = self.at(high)
            for way in ("remove", "add") if subset else (order,):
                # The mass of the bin from above; that under the other data set, from below, times e**(the lower loss).
                if way == "remove":
                    whole, rest, ends = mixed_d - mixed_a, c.multiply(growth, near_c - near_b), (low, high)
                else:
                    whole, rest, ends = near_d - near_a, c.divide(mixed_c - mixed_b, grown), (-high, -low)
                upper = whole - max(Decimal(0), c.multiply(rest, 1 - margin))
                upper = min(whole, c.divide(max(Decimal(0), upper), 1 - c.divide(growth, grown)) + margin)
                put(ends[0], whole - upper)
                put(ends[1], upper)
        first, last = self.at(index[0]), self.at(index[-1])
        infinite = 1 - last[3] if subset or order == "remove" else first[2]
        if subset:
            put(0, c.multiply(1 - self.rate, 2 * self.normal.cdf(self.step.mu / 2)[1] - 1) + margin)
        if subset or order == "add":
            put(-index[-1], 1 - last[1])
        else:
            put(index[0], first[4])
        listed = [masses[k] for k in range(min(masses), max(masses) + 1)]
        return Law(min(masses), listed, int(c.multiply(infinite, Decimal(10) ** unit)) + 1)


def single_delta(step: Step, epsilon: Decimal, normal: Normal) -> Decimal:
    """Return an upper bound on delta of one sampled step, in closed form, for both orders of the data sets."""
    grid = Grid(step, Fraction(epsilon), normal)
    growth, _, near, mixed, _ = grid.at(1)
    shrink, _, below, least, _ = grid.at(-1)
    removed = 1 - mixed - normal.context.multiply(growth, 1 - near)
    added = below - normal.context.divide(least, shrink)
    return (removed if step.kind == "subset" else max(removed, added)) + normal.least * 1000


def read_off(law: Law, width: Decimal, delta: Fraction, unit: int) -> Decimal:
    """Return a bound on the least epsilon at which the law's delta is below `delta`."""
    c = wide(unit + 80)
    budget = math.floor(delta * 10**unit) - law.infinite
    if budget <= 0:
        return Decimal("Infinity")
    top = law.start + len(law.masses) - 1
    weight, growth = c.exp(c.multiply(Decimal(-top), width)), c.exp(width)
    mass, inverse = 0, Decimal(0)
    for k in range(top, max(0, law.start) - 1, -1):  # mass and mass e**-loss above (k - 1) width, and delta there
        mass += law.masses[k - law.start]
        inverse = c.add(inverse, c.multiply(Decimal(law.masses[k - law.start]), weight))
        weight = c.multiply(weight, growth)
        if mass - c.divide(inverse, weight) > budget:
            # Between two points delta is mass - e**epsilon inverse.
            return max(Decimal(0), c.ln(c.divide(Decimal(mass - budget), inverse))) + Decimal(10) ** -unit
    return Decimal(0)


def composed_epsilon(sampled: Counter[Step], squared_mu: Fraction, delta: Fraction) -> Decimal:
    """Return an upper bound on epsilon of sampled steps and a plain Gaussian, on grids that become finer."""
    if not sampled:
        return gaussian_epsilon(root_up(squared_mu), delta) if squared_mu else Decimal(0)
    counts = sampled + Counter({Step("plain", root_up(squared_mu), Fraction(1)): 1 if squared_mu else 0})
    total = counts.total()
    if total > 10**6 or max(step.mu for step in counts) > 60 or delta < Fraction(1, 10**60):
        raise UnableError("the composition is beyond what this accountant evaluates")
    if total == 1:
        step, normal, target = next(iter(counts)), Normal(50 + len(str(int(1 / delta)))), up(delta).next_minus(wide(50))
        high = gaussian_epsilon(step.mu, delta)  # without sampling: never less
        return bisect(high, lambda epsilon: single_delta(step, epsilon, normal) <= target, "1e-12")
    unit = 13 + len(str(total)) + len(str(int(1 / delta)))
    tail, cut = up(delta / (10**6 * total)).next_minus(wide(9)), delta * 10**unit / (10**5 * total)
    # About how far the loss reaches: any choice of the widths gives a bound.
    spread = sum(n * float(step.rate) ** 2 * math.expm1(min(float(step.mu) ** 2, 2.0)) for step, n in counts.items())
    reach = 14 * math.sqrt(spread) + max(float(step.mu) ** 2 / 2 + 5 * float(step.mu) for step in counts)
    finest = Fraction(1, 2 ** max(0, math.ceil(math.log2(500 * 2**8 / reach))))
    grids = {step: Grid(step, finest, Normal(unit + 25)) for step in counts}

    def one_order(order: str, stride: int) -> tuple[Decimal, int]:
        law, done = Law(0, [10**unit], 0), 0
        for step, count in sorted(counts.items(), key=lambda item: item[1]):
            index = grids[step].edges(stride, math.isqrt(total // (3 * count)), tail)
            own, done = power(grids[step].law(order, stride, index, unit), count, unit, cut), done + count
            law = product(law, own, unit, int(cut * done))
        found = read_off(law, stride * grids[step].width, delta, unit)
        return found + total * Decimal(10) ** -unit, len(law.masses)  # edges are off by less than a unit each

    worst, level = Decimal(0), 8
    for order in ("remove", "add") if any(step.kind == "poisson" for step in counts) else ("remove",):
        before, level, finer = math.inf, min(8, level + 1), 1
        while True:
            found, size = one_order(order, 1 << level)
            # The error falls with the square of the width: two grids tell what is left, and how fine the next is.
            known = worst < found < before < math.inf
            left = (before - float(found)) / (4**finer - 1) / float(found) if known else 1.0
            if found <= worst or left < 0.002 or not level or size > (30_000 if total > 100 else 8000):
                break
            before, finer = float(found), min(level, math.ceil(math.log(left / 0.0015, 4)) if left < 1.0 else 1)
            level -= finer
        worst = max(worst, found)
    return worst


def epsilon_from_above(events: list[Any], relation: str, delta: float) -> float:
    """Return an upper bound on epsilon of events in composition, infinity where no guarantee is claimed.

    Raises ContradictionError for events of which nothing is known, UnableError where this accountant's range ends.
    """
    # What is written with operators has fewer digits than this: it is exact.
    with localcontext(wide(4000)):
        steps, exact = Steps(), Fraction(delta)
        for event in events:
            steps.collect(event, relation, 1)
        left, noisy = exact - steps.failure, bool(steps.sampled or steps.squared_mu)
        if not steps.private or left < 0 or (noisy and not left):
            return math.inf
        pure = sum((e * n for e, n in steps.pure.items()), Fraction(0))
        found = Decimal("Infinity") if noisy else up(pure)
        shares = [exact / 2**k for k in (30, 20, 10, 5, 3, 1)] if noisy else [Fraction(0)]
        for share in (item for item in shares if item < left):
            best = up(pure) + composed_epsilon(steps.sampled, steps.squared_mu, left - share)
            if pure and max(steps.pure) <= 100:  # a Gaussian dominates each, and squares add
                added = sum((Fraction(pure_mu(e)) ** 2 * n for e, n in steps.pure.items()), steps.squared_mu)
                best = min(best, composed_epsilon(steps.sampled, added, left - share))
            # Beyond 40 the finite precision of the noise is not counted, by the library either.
            if best > 40 or steps.slack * (1 + Fraction(best.exp(wide(30)).next_plus(wide(20)))) <= share:
                found = min(found, best)
                break
        return float(found) if float(found) >= found else math.nextafter(float(found), math.inf)


# Hashes and the signature.


def canonical(value: Any) -> bytes:
    """Return the one text of a value: sorted names, no spaces, the shortest digits of a number, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(content: bytes | str) -> str:
    """Return 64 hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


PRIME, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME
Point = tuple[int, int, int, int]


def plus(p: Point, q: Point) -> Point:
    """Add two points of Ed25519 (RFC 8032, section 5.1.4)."""
    a, b, c, d = (p[1] - p[0]) * (q[1] - q[0]), (p[1] + p[0]) * (q[1] + q[0]), 2 * p[3] * q[3] * CURVE, 2 * p[2] * q[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def times(n: int, p: Point) -> Point:
    """Multiply a point by a number that is no secret."""
    result = (0, 1, 1, 0)
    while n:
        result = plus(result, p) if n & 1 else result
        p, n = plus(p, p), n >> 1
    return result


def point(encoded: bytes) -> Point:
    """Decode a point."""
    sign, y = divmod(int.from_bytes(encoded, "little"), 2**255)
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    x = x if (x * x - square) % PRIME == 0 else x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    need(len(encoded) == 32 and y < PRIME and (x * x - square) % PRIME == 0 and (x or not sign), "it is no point")
    x = PRIME - x if x & 1 != sign else x
    return x, y, 1, x * y % PRIME


def signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is that of the message."""
    scalar = int.from_bytes(signature[32:], "little")
    base = point((4 * pow(5, -1, PRIME) % PRIME).to_bytes(32, "little"))
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % ORDER
    one, two = times(scalar, base), plus(point(signature[:32]), times(challenge, point(public_key)))
    apart = [(one[i] * two[2] - two[i] * one[2]) % PRIME for i in (0, 1)]
    return len(signature) == 64 and scalar < ORDER and apart == [0, 0]


# What is checked.


class Report(NamedTuple):
    """What holds, what contradicts, and what cannot be known; `promised` is whether a guarantee is claimed at all."""

    holds: list[str]
    contradicts: list[str]
    unknown: list[str]
    promised: bool


def verify(
    certificate: bytes,
    release: bytes | None = None,
    ledger: Path | None = None,
    public_key: str | None = None,
) -> Report:
    """Check a certificate, and against it whatever else is at hand; nothing is raised, all is in the report."""
    report = Report([], [], ["that this program ran as it is, on those data, with noise that nobody can predict"], True)

    def check(what: str, test: Callable[..., str | None], *arguments: Any) -> None:
        try:
            report.holds.append(test(*arguments) or what)
        except UnableError as error:
            report.unknown.append(f"{what}: {error}")
        except Exception as error:
            why = error if isinstance(error, ContradictionError) else type(error).__name__
            report.contradicts.append(f"not so: {what} ({why})")

    check("the certificate is of this format, and its text canonical", check_form, certificate)
    if report.contradicts:
        return report._replace(promised=False)
    document = json.loads(certificate)
    statement = document["statement"]
    guarantee, own = statement["guarantee"], statement["ledger"]
    check("the digest is that of the statement", same, sha256(canonical(statement)), document["digest"])
    check("it is signed", check_signature, document, public_key)
    check("epsilon follows from the events of the parts", check_epsilon, guarantee, statement["parts"])
    if release is None:
        report.unknown.append("what the release holds: give it with --release")
    else:
        check("the release is the one that is certified, every byte of its members", check_release, release, statement)
    if own is not None:
        check("the ledger's entry that charged the run has its hash, its run, its event", check_entry, statement)
    if own is not None and ledger is not None:
        check("the ledger is whole, holds the entry, and is within its budget", check_ledger, ledger, own)
    else:
        report.unknown.append(
            "what else was released from the same data, as a ledger tells that is given with --ledger"
        )
    report.unknown.append("that the build with that digest is what its authors published")
    return report._replace(promised=guarantee["secure"] and not guarantee["leaks"] and guarantee["epsilon"] is not None)


def same(one: Any, two: Any) -> None:
    """Raise ContradictionError unless both are equal, also in their types."""
    need(canonical(one) == canonical(two), "they differ")


def check_form(certificate: bytes) -> None:
    """Check that a certificate has the fields of the format, and one text."""
    document = fields("certificate", json.loads(certificate))
    same([document["format"], document["version"]], ["dpinfer-certificate", 1])
    need(canonical(document) == certificate.removesuffix(b"\n"), "the text is another")
    statement = fields("statement", document["statement"])
    need(isinstance(statement["parts"], list) and statement["parts"], "it has no parts")
    inner = [(name, statement[name]) for name in ("library", "release", "guarantee")]
    inner += [("part", part) for part in statement["parts"]]
    for name, value in inner + [("ledger", statement["ledger"])] * (statement["ledger"] is not None):
        fields(name, value)


def check_signature(document: dict[str, Any], public_key: str | None) -> str:
    """Check the signature of the digest."""
    if document["signature"] is None and public_key is None:
        raise UnableError("it is not, so anybody may have written it")
    signature = fields("signature", document["signature"])
    key, value = bytes.fromhex(signature["public_key"]), bytes.fromhex(signature["value"])
    need(signature["algorithm"] == "ed25519", "its algorithm is unknown")
    need(signed(key, (SIGNED + document["digest"]).encode(), value), "the signature is not that of the key")
    need(public_key is None or key.hex() == public_key.lower(), "by another key")
    return f"it is signed by the key {key.hex()}" + ("" if public_key else ", whoever has that")


def check_epsilon(guarantee: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    """Check the stated epsilon against this program's own, which is an upper bound."""
    relation, delta, stated, accountant = (guarantee[name] for name in ("adjacency", "delta", "epsilon", "accountant"))
    need(
        relation in ("add_remove", "zero_out", "replace_one") and all(part["adjacency"] == relation for part in parts),
        "its relations differ",
    )
    need(accountant in ("pld", "prv", "rdp"), "its accountant is unknown")
    marks = [type(guarantee["secure"]), type(guarantee["leaks"]), *map(type, guarantee["leaks"])]
    need(marks[:2] == [bool, list] and set(marks[2:]) <= {str}, "its marks are unknown")
    events = [part["event"] for part in parts]
    found = epsilon_from_above(events, relation, float(number(delta, -5e-324, 1 - 2**-53)))
    if stated is None:
        need(math.isinf(found) or accountant != "pld", f"it is at most {found:.9g}, and none is stated")
        return "no epsilon is claimed, and none follows"
    exact = Fraction(number(stated, -5e-324))
    need(math.isfinite(found), "no guarantee follows from the events")
    below = SAMPLED if "sample" in json.dumps(events) else EXACT
    numbers = f"{stated:.9g} is stated, and this accountant finds at most {found:.9g} at delta = {delta:g}"
    need(Fraction(found) <= exact * (1 + below), numbers)
    need(accountant == "rdp" or exact <= Fraction(found) * (1 + EXCESS[accountant]) + EXACT, numbers)
    return f"epsilon follows from the events of the parts: {numbers}"


def check_release(content: bytes, statement: dict[str, Any]) -> None:
    """Check the release's file: every member's hash, and what its header says."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        listed = [(item.filename, archive.read(item)) for item in archive.infolist()]
    found, guarantee, named = dict(listed), statement["guarantee"], statement["release"]
    same(sorted((name, sha256(member)) for name, member in listed), sorted(named["members"].items()))
    document = json.loads(found["release.json"])
    header = document["release"]
    same([document["format"], document["version"]], [named["format"], named["version"]])
    same({name: header["certified_" * (name == "epsilon") + name] for name in guarantee}, guarantee)
    own = {"name": statement["parts"][-1]["name"], "event": header["event"], "adjacency": header["adjacency"]}
    same([*header["other_parts"], own], statement["parts"])
    same({name: header[name] for name in statement["bounds"]}, statement["bounds"])
    same(header["settings"].get("plan"), statement["plan"])
    charged, ledger = header["settings"].get("ledger"), statement["ledger"]
    same(charged, ledger and {name: ledger[name] for name in FIELDS["ledger"].split()[:6]})
    event = header["event"]
    if document["format"] in SUMS and event["type"] == "self_composed" and event["event"]["type"] != "gaussian":
        shape = re.search(rb"'shape': \((\d+),", found[SUMS[document["format"]] + ".npy"][:200])
        need(shape and int(shape[1]) <= event["count"], "it holds more sums than its event has")
        same(header["noise_multiplier"], event["event"]["event"]["noise_multiplier"])


def check_entry(statement: dict[str, Any]) -> None:
    """Check that the entry's hash is that of its content, and that it charged this run for this event."""
    own = statement["ledger"]
    if own["content"] is None:
        raise UnableError("its content is not in the certificate")
    same(sha256(json.dumps([own["previous"], own["entry"], "charge", own["content"]])), own["digest"])
    content = json.loads(own["content"])
    same([content["run"], content["dataset"]], [own["run"], own["dataset"]])
    same(content["event"], statement["parts"][-1]["event"])


def check_ledger(path: Path, own: dict[str, Any]) -> str:
    """Check a ledger's whole chain, that it holds the entry, and what its runs compose to."""
    entries: list[tuple[str, dict[str, Any], str]] = [("", {}, "")]
    with tempfile.TemporaryDirectory() as folder:  # a copy: nothing but SQLite may open a ledger that is in use
        copy = Path(folder) / "ledger"
        copy.write_bytes(path.read_bytes())
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            for number_, kind, text, digest in connection.execute("SELECT * FROM entries ORDER BY number"):
                same(digest, sha256(json.dumps([entries[-1][2], number_, kind, text])))
                entries.append((kind, json.loads(text), digest))
                need(number_ == len(entries) - 2, "an entry is missing")
    same(entries[own["entry"] + 1][2], own["digest"])
    cancelled = {content["run"] for kind, content, _ in entries if kind == "cancel"}
    need(own["run"] not in cancelled, "the run is cancelled")
    account = next(c for kind, c, _ in entries if kind == "dataset" and c["dataset"] == own["dataset"])
    runs = [c for kind, c, _ in entries if kind == "charge" and c["dataset"] == own["dataset"]]
    events = [run["event"] for run in runs if run["run"] not in cancelled]
    epsilon, delta = account["budget"] or (math.inf, own["composed_delta"])
    found = epsilon_from_above(events, account["adjacency"], delta)
    numbers = f"{len(events)} runs on {own['dataset']!r} compose to epsilon at most {found:.9g} at delta = {delta:g}"
    need(found <= epsilon * 1.01 or account.get("composition") == "filter", f"{numbers}, above the budget")
    return f"the ledger is whole and holds the entry; {numbers}, of a budget of {epsilon:g}"


def main(arguments: list[str] | None = None) -> int:
    """Print what holds, what contradicts and what cannot be known."""
    parser = argparse.ArgumentParser(description="Check a certificate of dpinfer with the standard library alone.")
    parser.add_argument("certificate", type=Path)
    parser.add_argument("--release", type=Path, help="the file that release.save() wrote")
    parser.add_argument("--ledger", type=Path, help="the ledger that the run was charged to")
    parser.add_argument("--public-key", help="whose signature it must have: 64 hexadecimal digits")
    given = parser.parse_args(arguments)
    try:
        release = given.release and given.release.read_bytes()
        report = verify(given.certificate.read_bytes(), release, given.ledger, given.public_key)
    except OSError as error:
        parser.error(str(error))
    for title, lines in zip(("holds", "CONTRADICTS", "not known here"), report[:3], strict=False):
        print("".join(f"{title}: {line}\n" for line in lines), end="")
    if not (report.contradicts or report.promised):
        print("NO GUARANTEE is promised: see the certificate's epsilon, its leaks, and whether its noise was secure")
    return 1 if report.contradicts else 0 if report.promised else 3


if __name__ == "__main__":
    sys.exit(main())

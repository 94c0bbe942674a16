"""Check a certificate of dpinfer with the standard library alone: copy this file, and trust nothing else.

    python verify_release.py certificate.json [--release FILE] [--ledger FILE] [--public-key HEX]

It recomputes hashes, signature and epsilon, by an accountant of its own that rounds up: integers and decimals with
bounded errors, no floating point. Exit status: 0 if all claims hold, 3 if they hold and no guarantee is promised, 1 for
a contradiction, 2 for wrong arguments.  Format and proofs: docs/certificates.md.
"""

import argparse
import hashlib
import io
import json
import math
import re
import sqlite3
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
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
SIGNED, NO_SIGNATURE = "dpinfer-certificate-1\n", "the signature is not that of the key"
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


class Normal:
    """Bounds on the distribution function of N(0, 1) with an absolute error of 10**-digits."""

    def __init__(self, digits: int) -> None:
        self.context = c = wide(digits + 20)
        self.bits, self.least = math.ceil((digits + 12) * 3.3220), Decimal(10) ** -digits
        self.reach = Decimal(math.ceil(math.sqrt(4.62 * (digits + 2))) + 1)  # exp(-reach**2 / 2) is below 10**-digits
        one = 10 ** (digits + 35)  # pi by Machin's formula
        tan = [sum((-1) ** k * (one // n ** (2 * k + 1) // (2 * k + 1)) for k in range(digits + 40)) for n in (5, 239)]
        self.root = c.divide(1, c.sqrt(c.divide(8 * (4 * tan[0] - tan[1]), one)))

    def cdf(self, z: Decimal) -> tuple[Decimal, Decimal]:
        """Return a lower and an upper bound on Phi(z) = 1/2 + phi(z) (z + z**3/3 + z**5/(3*5) + ...)."""
        c, bits = self.context, self.bits
        if abs(z) > self.reach:
            return (Decimal(0), self.least) if z < 0 else (1 - self.least, Decimal(1))
        term = total = int(c.multiply(abs(z), 1 << bits))
        square, n = (total * total) >> bits, 1
        while term:  # all terms are positive: nothing cancels
            n += 2
            term = ((term * square) >> bits) // n
            total += term
        # Each term is off by a few units, relative to the largest, and phi is at most the inverse of their sum: of the
        # 10**12 units in 10**-digits these are far less than one in a million.
        density = c.multiply(self.root, c.exp(c.multiply(Decimal("-0.5"), c.multiply(z, z))))
        value = c.add(Decimal("0.5"), c.divide(c.multiply(density, total), 1 << bits).copy_sign(z))
        return max(Decimal(0), value - self.least), min(Decimal(1), value + self.least)


def bisect(high: Decimal, good: Callable[[Decimal], bool], share: str) -> Decimal:
    """Return the least number with `good`, approximately; the result satisfies `good`, as does `high`."""
    if good(low := Decimal(0)):
        return low
    while high - low > high * Decimal(share):
        middle = (low + high) / 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def gaussian_epsilon(mu: Decimal, delta: Fraction) -> Decimal:
    """Return the least epsilon, rounded up, of a plain Gaussian (Balle and Wang 2018)."""
    if not Decimal("1e-30") < mu < 1000 or delta < Fraction(1, 10**400):
        raise UnableError("the noise is beyond what this accountant evaluates")
    target, high = up(delta).next_minus(wide(50)), mu * (mu / 2 + 1)

    def good(epsilon: Decimal) -> bool:  # whether Phi(a) - e**epsilon Phi(b), from above, is at most the target
        c, ratio = normal.context, normal.context.divide(epsilon, mu)
        upper = normal.cdf(mu / 2 - ratio)[1]
        if epsilon <= 2000:  # without the second term it is an upper bound, too
            upper -= c.multiply(c.exp(epsilon), normal.cdf(-mu / 2 - ratio)[0]) * (1 - normal.least)
        return upper <= target

    while True:
        normal = Normal(30 - target.adjusted() + int(min(high, Decimal(2000)) / 2))
        if good(high):
            return bisect(high, good, "1e-15")
        high *= 2


def pure_mu(epsilon: Fraction) -> Decimal:
    """Return a mu whose Gaussian dominates a pure guarantee: Phi(mu / 2) is at least e**epsilon / (1 + e**epsilon)."""
    normal = Normal(60)
    corner = 1 - normal.context.divide(1, 1 + normal.context.exp(up(epsilon))) + normal.least
    return bisect(Decimal(40), lambda mu: normal.cdf(mu / 2)[0] >= corner, "1e-20")


class Step(NamedTuple):
    """One law: plain at rate 1, else Poisson-sampled or a subset of fixed size; `mu` from above, `rate` exact."""

    subset: bool
    mu: Decimal
    rate: Fraction


def leaves(event: Any, count: int, depth: int = 0) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield name, fields and number of runs of each elementary event in `count` runs of an event."""
    name = event.get("type") if isinstance(event, dict) else None
    need(isinstance(name, str) and name in FIELDS and depth <= 32, "an event is of no known type")
    value = fields(str(name), event)
    if name == "composed":
        need(isinstance(value["events"], list) and value["events"], "a composition is empty")
        for part in value["events"]:
            yield from leaves(part, count, depth + 1)
    elif name == "self_composed":
        yield from leaves(value["event"], count * number(value["count"], 0, math.inf, whole=True), depth + 1)
    else:
        yield ("non_private" if value.get("event") == {"type": "non_private"} else str(name)), value, count


def noisy_step(name: str, value: dict[str, Any], relation: str) -> tuple[Step, Fraction]:
    """Return the law of Gaussian noise, sampled or not, and its noise multiplier."""
    rate, bound, factor = Fraction(1), True, 2 if relation == "replace_one" else 1
    if name == "poisson_sampled":
        rate = Fraction(number(value["sample_rate"], 0, 1))
        bound = rate == 1 or relation != "replace_one"
    elif name == "sampled_without_replacement":
        total = number(value["n_records"], 0, math.inf, whole=True)
        rate = Fraction(number(value["n_sampled"], 0, total, whole=True), total)
        bound, factor = relation != "add_remove", 2 if rate < 1 else factor
    need(bound, "this sampling has no known bound under this relation")
    noise = fields("gaussian", value.get("event", value))
    need(noise["type"] == "gaussian", "sampling of this event has no known bound")
    sigma = Fraction(number(noise["noise_multiplier"], 0))
    return Step(rate < 1 and name != "poisson_sampled", up(factor / sigma), rate), sigma


# A privacy loss: masses in units of 10**-unit at start, start + 1, ... times a width; start; the mass at infinity.
Law = tuple[list[int], int, int]


def product(one: Law, two: Law, unit: int, cut: int) -> Law:
    """Return a law that dominates the sum of two losses; at most `cut` units of each tail are moved up."""
    # Polynomials with a slot of digits for each coefficient: `decimal` multiplies them by a fast exact transform.
    slot = len(str(max(one[0]) * max(two[0]) * min(len(one[0]), len(two[0])))) + 1
    packed = [Decimal("".join([f"{mass:0{slot}d}" for mass in reversed(law[0])])) for law in (one, two)]
    digits = f"{wide(MAX_PREC).multiply(*packed):f}".zfill(slot * (len(one[0]) + len(two[0]) - 1))
    masses = [-(-int(digits[k : k + slot]) // 10**unit) for k in range(len(digits) - slot, -1, -slot)]
    infinite = -(-(one[2] * (sum(two[0]) + two[2]) + sum(one[0]) * two[2]) // 10**unit)
    low, high, below, above = 0, len(masses), 0, 0
    while high > low + 2 and above + masses[high - 1] <= cut:
        high, above = high - 1, above + masses[high - 1]
    while high > low + 2 and below + masses[low] <= cut:
        low, below = low + 1, below + masses[low]
    return [masses[low] + below, *masses[low + 1 : high]], one[1] + two[1] + low, infinite + above


def power(law: Law, count: int, unit: int, cut: Fraction) -> Law:
    """Return the law of `count` losses, by squaring; `cut` units of each may be moved up."""
    result, size, done = law, 1, 0
    while count:
        if count & 1:
            done += size
            result = law if done == size else product(result, law, unit, int(cut * done))
        count, size = count >> 1, 2 * size
        law = product(law, law, unit, int(cut * size)) if count else law
    return result


class Grid:
    """One step's loss log((1 - q) + q e**(mu z - mu**2/2)), cut into bins at multiples of `width`."""

    def __init__(self, step: Step, width: Fraction, normal: Normal) -> None:
        self.step, self.subset, self.normal, self.context = step, step.subset, normal, normal.context
        self.rate, self.width = (self.context.divide(item.numerator, item.denominator) for item in (step.rate, width))
        self.known: dict[int, tuple[Decimal, ...]] = {}

    def at(self, k: int) -> tuple[Decimal, ...]:
        """Return e**loss, and bounds on the masses of N(0, 1) and of the mixture below the loss."""
        if k not in self.known:
            c, mu, q = self.context, self.step.mu, self.rate
            growth = c.exp(c.multiply(k, self.width))
            odds = c.divide(growth - 1 + q, q)
            z = c.add(mu / 2, c.divide(c.ln(odds), mu)) if odds > 0 else -2 * self.normal.reach
            near, far = self.normal.cdf(z), self.normal.cdf(z - mu)
            mixed = [c.add(c.multiply(1 - q, near[i]), c.multiply(q, far[i])) for i in (0, 1)]
            self.known[k] = (growth, *near, *mixed)
        return self.known[k]

    def edges(self, stride: int, coarse: int, tail: Decimal) -> list[int]:
        """Return edges at multiples of `stride`: `coarse` of them apart, and further where mass is rare."""
        places = {0}
        for sign in (1, -1):
            k, mass = 0, 1.0
            while mass > tail:
                k += sign * stride * max(1, coarse, int(mass**-0.15))
                mass = float(self.at(k)[4] if sign < 0 else 1 - self.at(k)[4])
                places.add(k)
        return sorted(k for k in places if k >= 0 or not self.subset)

    def law(self, order: str, stride: int, index: list[int], unit: int) -> Law:
        """Return a law that dominates the step's: each bin's mass is split between its ends, so that both masses stay.

        Of all laws with these masses, that on the ends has the largest delta at every epsilon.  What lies beyond the
        last edge becomes infinite, and what lies before the first is moved up to it.
        """
        c, margin, masses = self.context, self.normal.least * 1000, Counter[int]()

        def units(mass: Decimal) -> int:
            return int(c.multiply(max(Decimal(0), mass), Decimal(10) ** unit)) + 1

        for low, high in pairwise(index):
            growth, near_a, near_b, mixed_a, mixed_b = self.at(low)
            grown, near_c, near_d, mixed_c, mixed_d = self.at(high)
            for way in ("remove", "add") if self.subset else (order,):
                # The mass of the bin from above; that under the other data set, from below, times e**(the lower loss).
                if way == "remove":
                    whole, rest, ends = mixed_d - mixed_a, c.multiply(growth, near_c - near_b), (low, high)
                else:
                    whole, rest, ends = near_d - near_a, c.divide(mixed_c - mixed_b, grown), (-high, -low)
                upper = whole - max(Decimal(0), c.multiply(rest, 1 - margin))
                upper = min(whole, c.divide(max(Decimal(0), upper), 1 - c.divide(growth, grown)) + margin)
                masses[ends[0] // stride] += units(whole - upper)
                masses[ends[1] // stride] += units(upper)
        first, last = self.at(index[0]), self.at(index[-1])
        if self.subset:
            masses[0] += units(c.multiply(1 - self.rate, 2 * self.normal.cdf(self.step.mu / 2)[1] - 1) + margin)
        if self.subset or order == "add":
            masses[-index[-1] // stride] += units(1 - last[1])
        else:
            masses[index[0] // stride] += units(first[4])
        infinite = units(1 - last[3] if self.subset or order == "remove" else first[2])
        return [masses[k] for k in range(min(masses), max(masses) + 1)], min(masses), infinite


def read_off(law: Law, width: Decimal, delta: Fraction, unit: int) -> Decimal:
    """Return a bound on the least epsilon at which the law's delta is below `delta`."""
    c, (masses, start, infinite) = wide(unit + 80), law
    budget, top = math.floor(delta * 10**unit) - infinite, start + len(masses) - 1
    if budget <= 0:
        return Decimal("Infinity")
    weight, growth = c.exp(c.multiply(-top, width)), c.exp(width)
    mass, inverse = 0, Decimal(0)
    for k in range(top, max(0, start) - 1, -1):  # mass and mass e**-loss above (k - 1) width, and delta there
        mass += masses[k - start]
        inverse = c.add(inverse, c.multiply(masses[k - start], weight))
        weight = c.multiply(weight, growth)
        if mass - c.divide(inverse, weight) > budget:  # between two points delta is mass - e**epsilon inverse
            return max(Decimal(0), c.ln(c.divide(mass - budget, inverse))) + Decimal(10) ** -unit
    return Decimal(0)


def composed_epsilon(sampled: Counter[Step], squared_mu: Fraction, delta: Fraction) -> Decimal:
    """Return an upper bound on epsilon of sampled steps and a plain Gaussian, on grids that become finer."""
    plain = up(squared_mu).sqrt(wide(60)).next_plus(wide(59))
    if not sampled:
        return gaussian_epsilon(plain, delta) if squared_mu else Decimal(0)
    counts = sampled + Counter({Step(False, plain, Fraction(1)): 1 if squared_mu else 0})
    total = counts.total()
    if total > 10**6 or max(step.mu for step in counts) > 60 or delta < Fraction(1, 10**60):
        raise UnableError("the composition is beyond what this accountant evaluates")
    unit = 13 + len(str(total)) + len(str(int(1 / delta)))
    tail, cut = up(delta / (10**6 * total)).next_minus(wide(9)), delta * 10**unit / (10**5 * total)
    # The approximate range of the loss: any choice of the widths gives a bound.
    spread = sum(n * float(step.rate) ** 2 * math.expm1(min(float(step.mu) ** 2, 2.0)) for step, n in counts.items())
    reach = 14 * math.sqrt(spread) + max(float(step.mu) ** 2 / 2 + 5 * float(step.mu) for step in counts)
    finest = Fraction(1, 2 ** max(0, math.ceil(math.log2(500 * 2**8 / reach))))
    grids = {step: Grid(step, finest, Normal(unit + 25)) for step in counts}

    def one_order(order: str, stride: int) -> tuple[Decimal, int]:
        law, done = ([10**unit], 0, 0), 0
        for step, count in sorted(counts.items(), key=lambda item: item[1]):
            index = grids[step].edges(stride, math.isqrt(total // (3 * count)), tail)
            own, done = power(grids[step].law(order, stride, index, unit), count, unit, cut), done + count
            law = product(law, own, unit, int(cut * done))
        found = read_off(law, stride * grids[step].width, delta, unit)
        return found + total * Decimal(10) ** -unit, len(law[0])  # edges are off by less than a unit each

    worst, level = Decimal(0), 8
    for order in ("remove", "add") if not all(step.subset for step in sampled) else ("remove",):
        before, level, finer = math.inf, min(8, level + 1), 1
        while True:
            found, size = one_order(order, 1 << level)
            # The error falls with the square of the width: two grids give the remaining error, and the next width.
            known = worst < found < before < math.inf
            left = (before - float(found)) / (4**finer - 1) / float(found) if known else 1.0
            if found <= worst or left < 0.002 or not level or size > (30_000 if total > 100 else 8000):
                break
            before, finer = float(found), min(level, math.ceil(math.log(left / 0.0015, 4)) if left < 1.0 else 1)
            level -= finer
        worst = max(worst, found)
    return worst


def epsilon_from_above(events: list[Any], relation: str, delta: float) -> float:
    """Return an upper bound on epsilon of composed events, infinity if no guarantee is claimed.

    Raises ContradictionError for unknown events, UnableError outside of this accountant's range.
    """
    with localcontext(wide(4000)):  # what is written with operators has fewer digits than this: it is exact
        sampled, parts, private, exact = Counter[Step](), Counter[Fraction](), True, Fraction(delta)
        squared_mu = slack = failure = Fraction(0)
        for name, value, count in (leaf for event in events for leaf in leaves(event, 1)):
            if name == "non_private":
                private = False
            elif name in ("pure", "approximate"):
                need(value["adjacency"] == relation, "a part's guarantee is stated under another relation")
                parts[Fraction(number(value["epsilon"], 0))] += count
                failure += count * Fraction(number(value["delta"], 0, 1 - 2**-53)) if name == "approximate" else 0
            else:
                step, sigma = noisy_step(name, value, relation)
                slack += count * (sigma / 2**111 + Fraction(1, 2**118))  # docs/derivations/noise.md, taken as given
                squared_mu += count * Fraction(step.mu) ** 2 if step.rate == 1 else 0
                sampled += Counter({step: count if step.rate < 1 else 0})
        left, noisy = exact - failure, bool(sampled or squared_mu)
        if not private or left < 0 or (noisy and not left):
            return math.inf
        pure = up(sum((e * n for e, n in parts.items()), Fraction(0)))
        result = Decimal("Infinity") if noisy else pure
        shares = [exact / 2**k for k in (30, 20, 10, 5, 3, 1)] if noisy else [Fraction(0)]
        for share in (item for item in shares if item < left):
            best = pure + composed_epsilon(sampled, squared_mu, left - share)
            if pure and max(parts) <= 100:  # a Gaussian dominates each, and squares add
                added = sum((Fraction(pure_mu(e)) ** 2 * n for e, n in parts.items()), squared_mu)
                best = min(best, composed_epsilon(sampled, added, left - share))
            # Beyond 40 the finite precision of the noise is not counted, by the library either.
            if best > 40 or slack * (1 + Fraction(best.exp(wide(30)).next_plus(wide(20)))) <= share:
                result = best
                break
        return float(result) if float(result) >= result else math.nextafter(float(result), math.inf)


def signed(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is that of the message (RFC 8032, section 5.1)."""
    p, order = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
    d = -121665 * pow(121666, -1, p) % p

    def plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        both = d * a[0] * b[0] * a[1] * b[1]
        x, y = (a[0] * b[1] + b[0] * a[1]) * pow(1 + both, -1, p), (a[1] * b[1] + a[0] * b[0]) * pow(1 - both, -1, p)
        return x % p, y % p

    def times(n: int, a: tuple[int, int]) -> tuple[int, int]:
        doubled = times(n // 2, plus(a, a)) if n else (0, 1)
        return plus(doubled, a) if n & 1 else doubled

    def point(encoded: bytes) -> tuple[int, int]:
        sign, y = divmod(int.from_bytes(encoded, "little"), 2**255)
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = pow(square, (p + 3) // 8, p)
        x = x if (x * x - square) % p == 0 else x * pow(2, (p - 1) // 4, p) % p
        need(
            len(encoded) == 32 and y < p and (x * x - square) % p == 0 and (x or not sign),
            "the signature is not that of the key",
        )
        return p - x if x & 1 != sign else x, y

    scalar, base = int.from_bytes(signature[32:], "little"), point((4 * pow(5, -1, p) % p).to_bytes(32, "little"))
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % order
    combined = plus(point(signature[:32]), times(challenge, point(public_key)))
    return len(signature) == 64 and scalar < order and times(scalar, base) == combined


class Report(NamedTuple):
    """Claims that hold, contradictions, claims that cannot be checked, and whether a guarantee is claimed."""

    holds: list[str]
    contradicts: list[str]
    unknown: list[str]
    promised: bool


def verify(
    certificate: bytes, release: bytes | None = None, ledger: bytes | None = None, public_key: str | None = None
) -> Report:
    """Check a certificate, and the given files against it; the report holds all results, and nothing is raised."""
    report = Report([], [], ["that this program ran as it is, on those data, with noise that nobody can predict"], True)

    def check(what: str, test: Callable[..., str | None], *arguments: Any) -> None:
        try:
            report.holds.append(test(*arguments) or what)
        except UnableError as error:
            report.unknown.append(f"{what}: {error}")
        except Exception as error:
            why = error if isinstance(error, ContradictionError) else "it is malformed"
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
        report.unknown.append("what the release holds: give its file")
    else:
        check("the release is the one that is certified, every byte of its members", check_release, release, statement)
    if own is not None:
        check("the ledger's entry that charged the run has its hash, its run, its event", check_entry, statement)
    if own is not None and ledger is not None:
        check("the ledger is whole, holds the entry, and is within its budget", check_ledger, ledger, own)
    else:
        report.unknown.append("what else was released from the same data, as a ledger tells: give its file")
    report.unknown.append("that the build with that digest is what its authors published")
    promised = guarantee["secure"] is True and guarantee["leaks"] == [] and guarantee["epsilon"] is not None
    return report._replace(promised=promised)


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value: sorted names, no spaces, the shortest digits of a number, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(content: bytes | str) -> str:
    """Return 64 hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


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
    need(signed(key, (SIGNED + document["digest"]).encode(), value), NO_SIGNATURE)
    need(public_key is None or key.hex() == public_key.lower(), "by another key")
    return f"it is signed by the key {key.hex()}" + ("" if public_key else ", whoever has that")


def check_epsilon(guarantee: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    """Check the stated epsilon against this program's own, which is an upper bound."""
    relation, delta, stated, accountant = (guarantee[name] for name in ("adjacency", "delta", "epsilon", "accountant"))
    need(relation in ("add_remove", "zero_out", "replace_one"), "its relation is unknown")
    need(all(part["adjacency"] == relation for part in parts), "its relations differ")
    need(accountant in ("pld", "prv", "rdp"), "its accountant is unknown")
    secure, leaks = guarantee["secure"], guarantee["leaks"]
    promised = isinstance(secure, bool) and isinstance(leaks, list) and all(isinstance(leak, str) for leak in leaks)
    need(promised, "its marks are unknown")
    events = [part["event"] for part in parts]
    bound = epsilon_from_above(events, relation, float(number(delta, -5e-324, 1 - 2**-53)))
    if stated is None:
        need(math.isinf(bound) or accountant != "pld", f"it is at most {bound:.9g}, and none is stated")
        return "no epsilon is claimed, and none follows"
    exact = Fraction(number(stated, -5e-324))
    need(math.isfinite(bound), "no guarantee follows from the events")
    below = SAMPLED if "sample" in json.dumps(events) else EXACT
    numbers = f"{stated:.9g} is stated, and this accountant finds at most {bound:.9g} at delta = {delta:g}"
    need(Fraction(bound) <= exact * (1 + below), numbers)
    need(accountant == "rdp" or exact <= Fraction(bound) * (1 + EXCESS[accountant]) + EXACT, numbers)
    return f"epsilon follows from the events of the parts: {numbers}"


def check_release(content: bytes, statement: dict[str, Any]) -> None:
    """Check the release's file: every member's hash, and its header."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        listed = [(item.filename, archive.read(item)) for item in archive.infolist()]
    found, guarantee, named = dict(listed), statement["guarantee"], statement["release"]
    same(sorted((name, sha256(member)) for name, member in listed), sorted(named["members"].items()))
    document = json.loads(found["release.json"])
    header, ledger = document["release"], statement["ledger"]
    event, settings = header["event"], header["settings"]
    part = {"name": statement["parts"][-1]["name"], "event": event, "adjacency": header["adjacency"]}
    charged = ledger and {name: ledger[name] for name in FIELDS["ledger"].split()[:6]}
    same([document["format"], document["version"]], [named["format"], named["version"]])
    same({name: header["certified_" * (name == "epsilon") + name] for name in guarantee}, guarantee)
    same({name: header[name] for name in statement["bounds"]}, statement["bounds"])
    same([*header["other_parts"], part], statement["parts"])
    same([settings.get("plan"), settings.get("ledger")], [statement["plan"], charged])
    if document["format"] in SUMS and event["type"] == "self_composed" and event["event"]["type"] != "gaussian":
        shape = re.search(rb"'shape': \((\d+),", found[SUMS[document["format"]] + ".npy"][:200])
        need(shape and int(shape[1]) <= event["count"], "it holds more sums than its event has")
        same(header["noise_multiplier"], event["event"]["event"]["noise_multiplier"])


def check_entry(statement: dict[str, Any]) -> None:
    """Check the entry's hash, and that the entry charged this run for this event."""
    entry = statement["ledger"]
    if entry["content"] is None:
        raise UnableError("its content is not in the certificate")
    same(sha256(json.dumps([entry["previous"], entry["entry"], "charge", entry["content"]])), entry["digest"])
    content, event = json.loads(entry["content"]), statement["parts"][-1]["event"]
    same([content["run"], content["dataset"], content["event"]], [entry["run"], entry["dataset"], event])


def check_ledger(ledger: bytes, own: dict[str, Any]) -> str:
    """Check a ledger's whole chain, its entry of the run, and the composition of its runs."""
    entries: list[tuple[str, dict[str, Any], str]] = [("", {}, "")]
    connection = sqlite3.connect(":memory:")
    connection.deserialize(ledger)
    connection.execute("PRAGMA trusted_schema = OFF")
    for number_, kind, text, digest in connection.execute("SELECT * FROM entries ORDER BY number"):
        same(digest, sha256(json.dumps([entries[-1][2], number_, kind, text])))
        entries.append((kind, json.loads(text), digest))
        need(number_ == len(entries) - 2, "an entry is missing")
    connection.close()
    same(entries[own["entry"] + 1][2], own["digest"])
    cancelled = {content["run"] for kind, content, _ in entries if kind == "cancel"}
    need(own["run"] not in cancelled, "the run is cancelled")
    account = next(c for kind, c, _ in entries if kind == "dataset" and c["dataset"] == own["dataset"])
    runs = [c for kind, c, _ in entries if kind == "charge" and c["dataset"] == own["dataset"]]
    events = [run["event"] for run in runs if run["run"] not in cancelled]
    epsilon, delta = account["budget"] or (math.inf, own["composed_delta"])
    bound = epsilon_from_above(events, account["adjacency"], delta)
    name = json.dumps(own["dataset"])
    numbers = f"{len(events)} runs on {name} compose to epsilon at most {bound:.9g} at delta = {delta:g}"
    need(bound <= epsilon * 1.01 or account.get("composition") == "filter", f"{numbers}, above the budget")
    return f"the ledger is whole and holds the entry; {numbers}, of a budget of {epsilon:g}"


def main(arguments: list[str] | None = None) -> int:
    """Print claims that hold, contradictions, and claims that cannot be checked."""
    parser = argparse.ArgumentParser(description="Check a certificate of dpinfer with the standard library alone.")
    parser.add_argument("certificate", type=Path)
    parser.add_argument("--release", type=Path, help="the file that release.save() wrote")
    parser.add_argument("--ledger", type=Path, help="the ledger that the run was charged to")
    parser.add_argument("--public-key", help="whose signature it must have: 64 hexadecimal digits")
    options = parser.parse_args(arguments)
    paths = options.certificate, options.release, options.ledger
    try:
        certificate, release, ledger = (path and path.read_bytes() for path in paths)
    except OSError as error:
        parser.error(str(error))
    report = verify(certificate, release, ledger, options.public_key)
    for title, lines in zip(("holds", "CONTRADICTS", "not known here"), report[:3], strict=True):
        print("".join(f"{title}: {line}\n" for line in lines), end="")
    if not (report.contradicts or report.promised):
        print("NO GUARANTEE is promised: see the certificate's epsilon, its leaks, and whether its noise was secure")
    return 1 if report.contradicts else 0 if report.promised else 3


if __name__ == "__main__":
    sys.exit(main())

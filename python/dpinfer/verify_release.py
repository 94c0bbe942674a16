"""Check a certificate of dpinfer with the standard library alone: copy this file, and trust nothing else.

    python verify_release.py certificate.json [--release FILE] [--ledger FILE] [--public-key HEX]

It recomputes hashes, signature and delta at epsilon, by an accountant of its own that rounds up: integers and decimals
with bounded errors.  Exit status: 0 if all claims hold, 3 if nothing contradicts but something is not known or no
guarantee is promised, 1 for a contradiction, 2 for wrong arguments.  Format and proofs: docs/certificates.md.
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
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Report", "canonical", "follows", "sha256", "verify"]

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
NEWTON = ["newton", "glm-newton", "own-newton", "population", "clustered-population", "own-population"]
OWN_PARTS = {"dpinfer-release": "gradient trace", "dpinfer-statistic-release": "sufficient statistics"} | {
    f"dpinfer-{kind}-release": name
    for kind, name in [("site", "site trace"), ("network", "network trace"), ("sum", "private sums")]
    + [(kind, "sums of a private Newton run") for kind in NEWTON]
}
EXACT = Fraction(1, 10**9)  # how far a stated epsilon may lie below what follows: another machine's arithmetic
EXCESS = {"pld": Fraction(1, 100), "prv": Fraction(1, 5), "rdp": Fraction(10**6)}  # how far above, by accountant
FINENESS = 1, 8, 32  # of the grids that are tried: a relative 5e-4, 1e-5, 5e-7 of epsilon
LONGEST, WORK, LONGEST_TEXT = (
    400_000,
    2 * 10**9,
    2**24,
)  # points of a law, a minute of arithmetic, bytes of a certificate
TOO_LONG = "it has too many steps for this accountant"
TABLE = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, digest TEXT NOT NULL)"
)


class ContradictionError(Exception):
    """Something in a certificate contradicts something else."""


class UnableError(Exception):
    """Something can be neither confirmed nor contradicted here."""


class UnaskedError(UnableError):
    """Nobody claims it, or asks for it."""


def need(condition: object, message: str, error: type[Exception] = ContradictionError) -> None:
    """Raise an error unless `condition`."""
    if not condition:
        raise error(message)


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


def up(value: Fraction) -> Decimal:
    """Return a decimal that is at least `value`, by less than a relative 10**-59."""
    return wide(60, ROUND_CEILING).divide(Decimal(value.numerator), Decimal(value.denominator))


class Work:
    """What is left of the arithmetic that one question may take, in units of some nanoseconds."""

    def __init__(self) -> None:
        self.left = WORK

    def spend(self, units: int) -> None:
        """Take off some work; raise UnableError if none is left."""
        self.left -= units
        need(self.left > 0, TOO_LONG, UnableError)


class Normal:
    """Bounds on the distribution function of N(0, 1) with an absolute error of 10**-digits."""

    def __init__(self, digits: int, work: Work) -> None:
        self.context, self.least, self.work = wide(digits + 20, ROUND_CEILING), Decimal(10) ** -digits, work
        self.reach = Decimal(math.isqrt(5 * digits + 80))  # exp(-reach**2 / 2) is far below 10**-digits
        with localcontext(self.context):
            self.half = self.integral(self.reach)

    def integral(self, z: Decimal) -> Decimal:
        """Return the integral of e**(-x**2/2) from 0 to z >= 0: e**(-z**2/2) (z + z**3/3 + z**5/(3*5) + ...)."""
        term, total, square, n = z, z, z * z, 1
        while term * 10 > self.least * total:  # all terms are positive: nothing cancels
            n += 2
            term *= square / n
            total += term
        self.work.spend(n * (self.context.prec + self.context.prec**2 // 300))
        return total * (square / -2).exp()

    def cdf(self, z: Decimal) -> tuple[Decimal, Decimal]:
        """Return a lower and an upper bound on Phi(z)."""
        part = (self.integral(min(abs(z), self.reach)) / self.half / 2).copy_sign(z)
        return max(Decimal(0), Decimal("0.5") + part - self.least), min(Decimal(1), Decimal("0.5") + part + self.least)


def pure_mu(epsilon: Fraction, work: Work) -> Fraction:
    """Return a mu whose Gaussian dominates a pure guarantee: Phi(mu / 2) is at least e**epsilon / (1 + e**epsilon)."""
    normal, low, high = Normal(60, work), Decimal(0), Decimal(40)
    with localcontext(normal.context):
        corner = 1 - 1 / (1 + up(epsilon).exp()) + normal.least
        while high - low > high * Decimal("1e-15"):
            middle = (low + high) / 2
            low, high = (low, middle) if normal.cdf(middle / 2)[0] >= corner else (middle, high)
    return Fraction(high)


class Step(NamedTuple):
    """Gaussian noise, sampled with a rate by Poisson or as a subset of fixed size; `mu` from above, `rate` exact."""

    subset: bool
    mu: Decimal
    rate: Fraction


class Law(NamedTuple):
    """A privacy loss: masses in whole units at start, start + 1, ... times a width, and the mass at infinity."""

    masses: list[int]
    start: int
    infinite: int


class Accountant:
    """Delta at one epsilon, from above, of sampled steps and one plain Gaussian: laws on a grid of losses."""

    def __init__(
        self, steps: Counter[Step], squared_mu: Fraction, epsilon: Fraction, delta: Fraction, fine: int, work: Work
    ) -> None:
        mu, total = up(squared_mu).sqrt(wide(60)).next_plus(wide(59)) if squared_mu else Decimal(0), steps.total()
        known = total <= 10**9 and all(step.mu <= 60 for step in steps) and (Decimal("1e-30") < mu < 1000 or not mu)
        need(known and epsilon <= 10**6 and delta > Fraction(1, 10**60), "it is beyond this accountant", UnableError)
        digits, growth = (
            13 + len(str(total * fine)) + len(str(int(1 / delta))),
            min(int(epsilon), 2000) // 2 if mu else 0,
        )
        self.steps, self.plain, self.epsilon = steps, Step(False, mu, Fraction(1)), -up(-epsilon)
        self.unit, self.normal = 10**digits, Normal(digits + 25 + growth, work)
        self.tail = up(delta / (10**6 * fine**2 * total + 1))
        self.cut = delta * self.unit / (10**5 * fine**2 * total + 1)
        self.rare = min(1.0, float(delta) * total**2)  # below this mass of a step, bins may be wider
        # Bins of width h add about (t + 1) / 2 times the variance that they add to epsilon, where e**(t loss) weighs
        # the losses near it; h doubles with every second doubling of the steps.  By either estimate of t that is at
        # most 0.05 % of epsilon for fine = 1; any width gives a bound.
        doublings = total.bit_length()
        spread = sum(n * float(step.rate) ** 2 * math.expm1(min(float(step.mu) ** 2, 2.0)) for step, n in steps.items())
        scale = max(math.sqrt(spread), epsilon / math.sqrt(epsilon / 2 - math.log(delta)), 1e-15)
        last = math.ceil(-math.log2(scale * math.sqrt(0.001 / (0.3 * doublings + 0.4)) / fine))
        self.bits = max(0, last) + max(0, doublings - 1) // 2

    def profile(self, step: Step, epsilon: Decimal, removed: bool) -> Decimal:
        """Return delta of one step at any epsilon, from above, for a record that is removed or added."""
        growth, rate = epsilon.exp(), Decimal(step.rate.numerator) / step.rate.denominator
        if epsilon < 0 if step.subset else not removed:
            return 1 - growth + growth * self.profile(step._replace(subset=False), -epsilon, True)
        # With a rate, delta is the rate times that of the Gaussian (Balle and Wang 2018) at an epsilon of ln(odds).
        odds = 1 + (growth - 1) / rate
        if not step.mu or odds <= 0:
            return max(Decimal(0), 1 - growth) + self.normal.least
        ratio, half = odds.ln() / step.mu, step.mu / 2
        upper = self.normal.cdf(half - ratio)[1]
        return rate * (upper - odds * self.normal.cdf(-half - ratio)[0] * (1 - self.normal.least))

    def law(self, step: Step, removed: bool) -> Law:
        """Return a law whose delta is at least the step's at every epsilon: chords of it in e**epsilon, on the grid."""
        edges, masses, above, width = dict[int, Decimal](), Counter[int](), Decimal(1), Decimal(2) ** -self.bits
        for sign in (1, -1):  # until delta is nearly that of no loss, and in longer strides where that is near
            k, excess = 0, Decimal(1)
            while excess > self.tail:
                need(abs(k) < LONGEST, TOO_LONG, UnableError)
                edges[k] = self.profile(step, k * width, removed)
                excess = max(self.tail, edges[k] - max(Decimal(0), 1 - (k * width).exp()))
                k += sign * max(1, int((self.rare / float(excess)) ** 0.2))
        for (k, delta), (following, lower) in pairwise([*sorted(edges.items()), (max(edges) + 1, edges[max(edges)])]):
            further = delta + (delta - lower) / (((following - k) * width).exp() - 1)  # the mass above k
            masses[k] = max(0, int((above - further) * self.unit)) + 2
            above = further
        return Law([masses[k] for k in range(min(masses), max(masses) + 1)], min(masses), int(above * self.unit) + 2)

    def product(self, one: Law, two: Law, done: int) -> Law:
        """Return a law that dominates the sum of two losses, of `done` steps in all: tails may be moved up."""
        size, cut = len(one.masses) + len(two.masses) - 1, self.cut * done
        need(size < 2 * LONGEST, TOO_LONG, UnableError)
        # Polynomials with a slot of digits for each coefficient: `decimal` multiplies them by a fast exact transform.
        slot = len(str(max(one.masses) * max(two.masses) * size))
        self.normal.work.spend(40 * slot * size)
        packed = [Decimal("".join([f"{mass:0{slot}d}" for mass in reversed(law.masses)])) for law in (one, two)]
        digits = f"{wide(MAX_PREC).multiply(*packed):f}".zfill(slot * size)
        masses = [-(-int(digits[k : k + slot]) // self.unit) for k in range(len(digits) - slot, -1, -slot)]
        infinite = one.infinite * (sum(two.masses) + two.infinite) + sum(one.masses) * two.infinite
        low = min(size - 1, bisect(list(accumulate(masses)), cut))
        high = max(low + 1, size - bisect(list(accumulate(reversed(masses))), cut))
        kept = [sum(masses[: low + 1]), *masses[low + 1 : high]]
        return Law(kept, one.start + two.start + low, -(-infinite // self.unit) + sum(masses[high:]))

    def halved(self, law: Law, bits: int) -> Law:
        """Return a law on a grid twice as wide: every other point goes to its neighbours, its mean of e**-x kept."""
        share = 1 / (1 + (-(Decimal(2) ** -bits)).exp())
        upper, lower, before = int(share * self.unit) + 2, int((1 - share) * self.unit) + 2, law.start & 1
        masses = [0] * ((len(law.masses) + before) // 2 + 1)
        for k, mass in enumerate(law.masses, before):
            masses[k // 2] += -(-mass * lower // self.unit) if k & 1 else mass
            masses[k // 2 + (k & 1)] += -(-mass * upper // self.unit) if k & 1 else 0
        return Law(masses, law.start // 2, law.infinite)

    def composed(self, removed: bool) -> tuple[Law, int]:
        """Return a law that dominates the sum of all steps' losses, by doubling, and the bits of its grid."""
        laws, law = [(self.law(step, removed), count) for step, count in self.steps.items()], Law([self.unit], 0, 0)
        doublings, bits = self.steps.total().bit_length(), self.bits
        for bit in reversed(range(doublings)):
            done = sum(count >> bit for _, count in laws)
            law = self.product(law, law, done)
            for factor in (factor for factor, count in laws if count >> bit & 1):
                law = self.product(law, factor, done)
            if bit and bit % 2 == 0:
                law, laws = self.halved(law, bits), [(self.halved(factor, bits), count) for factor, count in laws]
                bits -= 1
        return law, bits

    def delta(self) -> Fraction:
        """Return delta at epsilon, from above, in the worse of the two orders: the mean of the plain Gaussian's."""
        worst = Decimal(0)
        with localcontext(self.normal.context):
            for removed in (True,) if all(step.subset for step in self.steps) else (True, False):
                law, bits = self.composed(removed)
                total, width = Decimal(law.infinite), Decimal(2) ** -bits
                for k, mass in enumerate(law.masses, law.start):
                    total += mass * self.profile(self.plain, self.epsilon - k * width, True)
                worst = max(worst, total / self.unit)
        return Fraction(worst)


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
        total = number(value["n_records"], 0, 2**63, whole=True)
        rate = Fraction(number(value["n_sampled"], 0, total, whole=True), total)
        bound, factor = relation != "add_remove", 2 if rate < 1 else factor
    need(bound, "this sampling has no known bound under this relation")
    noise = fields("gaussian", value.get("event", value))
    need(noise["type"] == "gaussian", "sampling of this event has no known bound")
    sigma = Fraction(number(noise["noise_multiplier"], 0))
    return Step(rate < 1 and name != "poisson_sampled", up(factor / sigma), rate), sigma


def follows(
    events: list[Any], relation: str, epsilon: Fraction | float, delta: Fraction | float, finest: int = FINENESS[-1]
) -> bool:
    """Whether it is proven, by an upper bound on delta, that composed events have `epsilon` at `delta`."""
    epsilon, left, squared_mu, work = Fraction(epsilon), Fraction(delta), Fraction(0), Work()
    sampled, parts = Counter[Step](), Counter[Fraction]()
    # Beyond 40 the finite precision of the noise is not counted, by the library either.
    growth = 1 + Fraction(up(epsilon).exp(wide(30)).next_plus(wide(20))) if epsilon <= 40 else 0
    for name, value, count in (leaf for event in events for leaf in leaves(event, 1)):
        work.spend(5000)
        if name == "non_private":
            left -= count
        elif name in ("pure", "approximate"):
            need(value["adjacency"] == relation, "a part's guarantee is stated under another relation")
            parts[Fraction(number(value["epsilon"], 0))] += count
            left -= count * Fraction(number(value["delta"], 0, 1 - 2**-53)) if name == "approximate" else 0
        else:
            step, sigma = noisy_step(name, value, relation)
            left -= count * (sigma / 2**111 + Fraction(1, 2**118)) * growth  # docs/derivations/noise.md, taken as given
            squared_mu += count * Fraction(step.mu) ** 2 if step.rate == 1 else 0
            sampled[step] += count if step.rate < 1 else 0
    sampled, pure = +sampled, sum((e * n for e, n in parts.items()), Fraction(0))
    simple = not sampled and not squared_mu and pure <= epsilon
    if simple or left <= 0:
        return simple and left >= 0
    tries = [(squared_mu, epsilon - pure)]
    if parts and max(parts) <= 100:  # a Gaussian dominates each, and squares add
        tries.append((squared_mu + sum(pure_mu(e, work) ** 2 * n for e, n in parts.items()), epsilon))
    return any(
        rest >= 0 and Accountant(sampled, mu, rest, left, fine, work).delta() <= left
        for fine in (fine for fine in FINENESS if fine == 1 or (sampled and fine <= finest))
        for mu, rest in tries
    )


def need_follows(what: str, events: list[Any], relation: str, epsilon: Fraction, delta: Fraction | float) -> None:
    """Raise ContradictionError unless an epsilon follows from events, or UnableError if one per cent more does."""
    found = (leaf for event in events for leaf in leaves(event, 1))
    sampled = any("sampled" in name and noisy_step(name, value, relation)[0].rate < 1 for name, value, _ in found)
    need(not sampled or follows(events, relation, epsilon * Fraction(101, 100), delta, 1), what)
    kind = UnableError if sampled else ContradictionError
    need(follows(events, relation, epsilon * (1 + EXACT), delta), what + ", one per cent more does" * sampled, kind)


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
        need(len(encoded) == 32 and y < p and (x * x - square) % p == 0 and (x or not sign), NO_SIGNATURE)
        return p - x if x & 1 != sign else x, y

    scalar, base = int.from_bytes(signature[32:], "little"), point((4 * pow(5, -1, p) % p).to_bytes(32, "little"))
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % order
    combined = plus(point(signature[:32]), times(challenge, point(public_key)))
    return len(signature) == 64 and scalar < order and times(scalar, base) == combined


def canonical(value: Any) -> bytes:
    """Return the canonical text of a value: sorted names, no spaces, the shortest digits of a number, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(content: bytes | str) -> str:
    """Return 64 hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def same(one: Any, two: Any) -> None:
    """Raise ContradictionError unless both are equal, also in their types."""
    need(canonical(one) == canonical(two), "they differ")


class Report(NamedTuple):
    """Claims that hold, contradictions, claims that are not known, what nobody knows here, and whether all is well."""

    holds: list[str]
    contradicts: list[str]
    unknown: list[str]
    beyond: list[str]
    promised: bool

    @property
    def status(self) -> int:
        """The exit status: 0 where a guarantee is promised, and all that it rests on was checked and holds."""
        return 1 if self.contradicts else 0 if self.promised and not self.unknown else 3


def verify(
    certificate: bytes, release: bytes | None = None, ledger: bytes | None = None, public_key: str | None = None
) -> Report:
    """Check a certificate, and the given files against it; the report holds all results, and nothing is raised."""
    never = ["that this program ran as it is, on those data, with noise that nobody can predict"]
    report = Report([], [], [], [*never, "that the named build is what its authors published"], True)

    def check(what: str, test: Callable[..., str | None], *arguments: Any) -> None:
        try:
            report.holds.append(test(*arguments) or what)
        except UnableError as error:
            (report.beyond if isinstance(error, UnaskedError) else report.unknown).append(f"{what}: {error}")
        except Exception as error:
            why = error if isinstance(error, ContradictionError) else "it is malformed"
            report.contradicts.append(f"not so: {what} ({why})")

    check("the certificate is of this format, and its text canonical", check_form, certificate)
    if report.contradicts or report.unknown:
        return report._replace(promised=False)
    document = json.loads(certificate)
    statement = document["statement"]
    guarantee, own = statement["guarantee"], statement["ledger"]
    check("the digest is that of the statement", same, sha256(canonical(statement)), document["digest"])
    check("it is signed", check_signature, document, public_key)
    check("epsilon follows from the events of the parts", check_epsilon, guarantee, statement["parts"])
    check("the release is the one that is certified, every byte of its members", check_release, release, statement)
    check("the ledger's entry that charged the run has its hash, its run, its event", check_entry, statement)
    check("the ledger is whole, holds the entry, and is within its budget", check_ledger, ledger, own)
    promised = guarantee["secure"] is True and guarantee["leaks"] == [] and guarantee["epsilon"] is not None
    return report._replace(promised=promised)


def check_form(certificate: bytes) -> None:
    """Check that a certificate has the fields of the format, and one text."""
    need(len(certificate) <= LONGEST_TEXT, "its text is longer than this program reads", UnableError)
    document = fields("certificate", json.loads(certificate))
    same([document["format"], document["version"]], ["dpinfer-certificate", 1])
    same(document["statement"]["library"]["name"], "dpinfer")
    need(canonical(document) == certificate.removesuffix(b"\n"), "the text is another")
    statement = fields("statement", document["statement"])
    need(isinstance(statement["parts"], list) and statement["parts"], "it has no parts")
    inner = [(name, statement[name]) for name in ("library", "release", "guarantee")]
    inner += [("part", part) for part in statement["parts"]]
    for name, value in inner + [("ledger", statement["ledger"])] * (statement["ledger"] is not None):
        fields(name, value)


def check_signature(document: dict[str, Any], public_key: str | None) -> str:
    """Check the signature of the digest."""
    if document["signature"] is None and not public_key:
        raise UnaskedError("it is not, so anybody may have written it")
    signature = fields("signature", document["signature"])
    key, value = bytes.fromhex(signature["public_key"]), bytes.fromhex(signature["value"])
    need(signature["algorithm"] == "ed25519", "its algorithm is unknown")
    need(signed(key, (SIGNED + document["digest"]).encode(), value), NO_SIGNATURE)
    need(public_key is None or key.hex() == public_key.lower(), "by another key")
    return f"it is signed by the key {key.hex()}" + ("" if public_key else ", whoever has that")


def check_epsilon(guarantee: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    """Check that the stated epsilon follows from the events, and that one that is a little less would not."""
    relation, delta, stated, accountant = (guarantee[name] for name in ("adjacency", "delta", "epsilon", "accountant"))
    need(relation in ("add_remove", "zero_out", "replace_one"), "its relation is unknown")
    need(all(part["adjacency"] == relation for part in parts), "its relations differ")
    marked = isinstance(guarantee["secure"], bool) and isinstance(guarantee["leaks"], list) and accountant in EXCESS
    need(marked and all(isinstance(leak, str) for leak in guarantee["leaks"]), "its accountant or marks are unknown")
    events, delta = [part["event"] for part in parts], Fraction(number(delta, -5e-324, 1 - 2**-53))
    if stated is None:
        need(accountant != "pld" or not follows(events, relation, 1000, delta, 1), "1000 follows, and none is stated")
        return "no epsilon is claimed, and 1000 would not follow"
    exact = Fraction(number(stated, -5e-324))
    claim = f"epsilon {stated:.9g} at delta {float(delta):g}"
    need_follows(f"{claim} does not follow", events, relation, exact, delta)
    less = (exact - EXACT) / (1 + EXCESS[accountant])
    need(not follows(events, relation, less, delta, 1), f"{claim} is in excess: {float(less):.9g} follows, too")
    return f"{claim} follows from the events of the parts, and {float(less):.9g} would not"


def check_release(content: Any, statement: dict[str, Any]) -> None:
    """Check the release's file: every member's hash, and its header."""
    need(content is not None, "it takes the release's file", UnableError)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        items = archive.infolist()
        need(not any(item.compress_type for item in items), "a member is compressed, and the library compresses none")
        need(sum(item.file_size for item in items) <= len(content), "its members are larger than the file")
        listed = [(item.filename, archive.read(item)) for item in items]
    found, guarantee, named = dict(listed), statement["guarantee"], statement["release"]
    same(sorted((name, sha256(member)) for name, member in listed), sorted(named["members"].items()))
    document = json.loads(found["release.json"])
    header, ledger = document["release"], statement["ledger"]
    event, settings = header["event"], header["settings"]
    name = OWN_PARTS.get(document["format"], statement["parts"][-1]["name"])
    part = {"name": name, "event": event, "adjacency": header["adjacency"]}
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
    if not entry or entry["content"] is None:
        raise UnaskedError("the certificate holds none")
    same(sha256(json.dumps([entry["previous"], entry["entry"], "charge", entry["content"]])), entry["digest"])
    content, event = json.loads(entry["content"]), statement["parts"][-1]["event"]
    same([content["run"], content["dataset"], content["event"]], [entry["run"], entry["dataset"], event])


def check_ledger(ledger: Any, own: Any) -> str:
    """Check a ledger's whole chain, its entry of the run, and the composition of its runs."""
    if ledger is None:
        raise UnaskedError("it takes the file of a ledger that the release was charged to")
    need(own, "the certificate names none", UnableError)
    entries: list[tuple[str, dict[str, Any], str]] = [("", {}, "")]
    connection = sqlite3.connect(":memory:")
    connection.deserialize(ledger)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_progress_handler(lambda: 1, 10**6 + len(ledger))  # a longer statement reads no honest file
    same(connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'entries'").fetchall(), [(TABLE,)])
    for place, kind, text, digest in connection.execute("SELECT * FROM entries ORDER BY number"):
        same(digest, sha256(json.dumps([entries[-1][2], place, kind, text])))
        entries.append((kind, json.loads(text), digest))
        need(place == len(entries) - 2, "an entry is missing")
    connection.close()
    same(entries[own["entry"] + 1][2], own["digest"])
    cancelled = {content["run"] for kind, content, _ in entries if kind == "cancel"}
    need(own["run"] not in cancelled, "the run is cancelled")
    account = next(c for kind, c, _ in entries if kind == "dataset" and c["dataset"] == own["dataset"])
    runs = [c for kind, c, _ in entries if kind == "charge" and c["dataset"] == own["dataset"]]
    events = [run["event"] for run in runs if run["run"] not in cancelled]
    held = f"the ledger is whole and holds the entry; {len(events)} runs on {json.dumps(own['dataset'])}"
    if account["budget"] is None:
        return f"{held}, which has no budget"
    need(account.get("composition") != "filter", "its composition, a filter, is not checked here", UnableError)
    epsilon, delta = account["budget"]
    budget = f"budget, epsilon {epsilon:g} at delta {delta:g}"
    exceeded = f"that {len(events)} runs compose within the {budget}, does not follow"
    need_follows(exceeded, events, account["adjacency"], Fraction(epsilon), delta)
    return f"{held} compose within the {budget}"


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
    for title, lines in zip(("holds", "CONTRADICTS", "NOT KNOWN", "beyond this program"), report[:4], strict=True):
        print("".join(f"{title}: {line}\n" for line in lines), end="")
    if not (report.contradicts or report.promised):
        print("NO GUARANTEE is promised: see the certificate's epsilon, its leaks, and whether its noise was secure")
    return report.status


if __name__ == "__main__":
    sys.exit(main())

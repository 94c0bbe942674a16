"""Releases with certificates, forty ways to tamper with them, and random compositions with what is known of them."""

import copy
import io
import json
import math
import sqlite3
import zipfile
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
from scipy.optimize import brentq

import dpinfer as dpi
from dpinfer.accounting import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    PoissonSampled,
    PureEvent,
    SampledWithoutReplacement,
    SelfComposed,
    charge_run,
    run_event,
)
from dpinfer.release import GradientTrace, Part, StatisticRelease
from dpinfer.verify_release import canonical, follows, sha256, verify

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
LEAK = "bounds were read from the private records"
_ANSWERS = {}


def follows_once(*given):
    """Answer as `follows`, which takes seconds, and is asked the same of each of many certificates of one release."""
    asked = repr(given)
    if asked not in _ANSWERS:
        _ANSWERS[asked] = follows(*given)
    return _ANSWERS[asked]


@dataclass
class Bundle:
    """What an auditor is handed."""

    document: dict
    release: bytes
    ledger: Path | None
    text: bytes | None = None
    public_key: str | None = None

    def seal(self):
        """Write the digest anew, as anybody can, and drop the signature, which nobody else can make."""
        self.document["digest"] = sha256(canonical(self.document["statement"]))
        self.document["signature"] = None
        return self

    def arguments(self):
        text = canonical(self.document) if self.text is None else self.text
        ledger = None if self.ledger is None else self.ledger.read_bytes()
        return text, self.release, ledger, self.public_key

    def report(self):
        return verify(*self.arguments())


def gradient_trace(rng, event, *, delta=1e-6, adjacency="add_remove", **changes):
    """Return a trace with made-up numbers; `event` is a run of sampled Gaussian sums."""
    inner = event.event
    steps = event.count
    params = rng.normal(size=(steps, 4))
    fields = {
        "params": params,
        "positions": params,
        "noisy_gradients": params + rng.normal(size=(steps, 4)),
        "noise_stddev": np.ones(4),
        "final_params": params[-1],
        "sample_rate": inner.sample_rate,
        "names": ("age", "dose"),
        "max_grad_norm": 1.0,
        "noise_multiplier": inner.event.noise_multiplier,
        "event": event,
        "delta": delta,
        "adjacency": adjacency,
    }
    return GradientTrace(**(fields | changes))


def charged_bundle(folder: Path) -> Bundle:
    """Return a trace of three sampled steps with counts before it and a leak, charged to a ledger with another run."""
    rng = np.random.default_rng(5)
    ledger = dpi.PrivacyLedger.create(folder / "spent.ledger")
    account = ledger.add_dataset("census", budget=(9.0, 1e-5))
    event = run_event(3.0, 0.2, 3)
    terms = {"adjacency": "add_remove", "mechanism": "dpvi", "secure": True, "delta": 1e-6}
    with charge_run(account, GaussianEvent(20.0), **terms) as charge:
        charge.begin()
    with charge_run(account, event, **terms) as charge:
        charge.begin()
        settings = {"ledger": charge.settings, "mechanism": "dpvi", "plan": {"noise_multiplier": 3.0}}
    parts = (Part("counts", GaussianEvent(9.0), "add_remove"), Part("shares", GaussianEvent(30.0), "add_remove"))
    release = gradient_trace(rng, event, settings=settings, other_parts=parts, leaks=(LEAK,))
    path = folder / "study.release"
    release.save(path)
    document = json.loads(release.certificate(ledger=ledger.path, key=KEY))
    return Bundle(document, path.read_bytes(), ledger.path)


def repacked(bundle, change):
    """Change the members of the release's file, and its hashes in the certificate with them."""
    with zipfile.ZipFile(io.BytesIO(bundle.release)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    bundle.release = stream.getvalue()
    bundle.document["statement"]["release"]["members"] = {name: sha256(item) for name, item in members.items()}


def _set(*path):
    """Return a tampering that sets a field of the statement, found by its path, to the last argument."""

    def tamper(bundle):
        place = bundle.document["statement"]
        for name in path[:-2]:
            place = place[name]
        place[path[-2]] = path[-1]
        bundle.seal()

    return tamper


def _scale(*path):
    """Return a tampering that multiplies a number of the statement by the last argument."""

    def tamper(bundle):
        place = bundle.document["statement"]
        for name in path[:-2]:
            place = place[name]
        place[path[-2]] *= path[-1]
        bundle.seal()

    return tamper


def _header(change):
    """Return a tampering with the header of the release's file alone, hashes included."""

    def tamper(bundle):
        def rewrite(members):
            document = json.loads(members["release.json"])
            change(document["release"])
            members["release.json"] = json.dumps(document, sort_keys=True, indent=1).encode()

        repacked(bundle, rewrite)
        bundle.seal()

    return tamper


def _longer(bundle):
    def rewrite(members):
        array = np.load(io.BytesIO(members["noisy_gradients.npy"]))
        stream = io.BytesIO()
        np.save(stream, np.concatenate((array, array)))
        members["noisy_gradients.npy"] = stream.getvalue()

    repacked(bundle, rewrite)
    bundle.seal()


def _extra_member(bundle):
    with zipfile.ZipFile(stream := io.BytesIO(bundle.release), "a") as archive:
        archive.writestr("more.npy", b"0")
    bundle.release = stream.getvalue()


def _flipped(bundle):
    content = bytearray(bundle.release)
    content[content.index(b"params.npy") + 400] ^= 1
    bundle.release = bytes(content)


def _cleaner_both(bundle):
    _header(lambda header: header.update(noise_multiplier=9.0))(bundle)
    _set("bounds", "noise_multiplier", 9.0)(bundle)


def _entry(change):
    """Return a tampering with the ledger's entry in the certificate, its hash made anew."""

    def tamper(bundle):
        own = bundle.document["statement"]["ledger"]
        content = json.loads(own["content"])
        change(content)
        own["content"] = json.dumps(content, sort_keys=True)
        own["digest"] = sha256(json.dumps([own["previous"], own["entry"], "charge", own["content"]]))
        bundle.seal()

    return tamper


def _by_hand(*statements):
    """Return a tampering with the ledger's file, whose triggers were dropped."""

    def tamper(bundle):
        copied = bundle.ledger.with_name("changed.ledger")
        copied.write_bytes(bundle.ledger.read_bytes())
        with sqlite3.connect(copied) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                connection.execute(statement)
        bundle.ledger = copied

    return tamper


def _signed_by(key, *, then):
    def tamper(bundle):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        private = Ed25519PrivateKey.from_private_bytes(key)
        value = private.sign(b"dpinfer-certificate-1\n" + bundle.document["digest"].encode())
        public = private.public_key().public_bytes_raw().hex()
        bundle.document["signature"] = {"algorithm": "ed25519", "public_key": public, "value": value.hex()}
        then(bundle, public)

    return tamper


def _text(change):
    def tamper(bundle):
        bundle.text = change(canonical(bundle.document))

    return tamper


def _bit(name, place):
    def tamper(bundle):
        text = bundle.document["signature"][name]
        bundle.document["signature"][name] = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]

    return tamper


SAMPLED = ("parts", -1, "event")
TAMPERINGS = {
    "epsilon lowered by two per cent": _scale("guarantee", "epsilon", 0.98),
    "epsilon raised": _scale("guarantee", "epsilon", 1.05),
    "epsilon left out": _set("guarantee", "epsilon", None),
    "epsilon in quotes": _set("guarantee", "epsilon", "1"),
    "delta lowered": _scale("guarantee", "delta", 0.1),
    "delta raised": _scale("guarantee", "delta", 10.0),
    "another relation": _set("guarantee", "adjacency", "zero_out"),
    "another relation everywhere": lambda bundle: [
        _set("guarantee", "adjacency", "replace_one")(bundle),
        *[_set("parts", k, "adjacency", "replace_one")(bundle) for k in range(3)],
    ],
    "another accountant": _set("guarantee", "accountant", "rdp"),
    "secure as a number": _set("guarantee", "secure", 1),
    "not secure": _set("guarantee", "secure", False),
    "a leak left out": _set("guarantee", "leaks", []),
    "a leak in other words": _set("guarantee", "leaks", ["nothing of note"]),
    "more noise": _scale(*SAMPLED, "event", "event", "noise_multiplier", 1.5),
    "a lower sampling rate": _scale(*SAMPLED, "event", "sample_rate", 0.5),
    "fewer steps": _set(*SAMPLED, "count", 1),
    "a part left out": lambda bundle: [bundle.document["statement"]["parts"].pop(0), bundle.seal()],
    "parts exchanged": lambda bundle: [
        (parts := bundle.document["statement"]["parts"]).insert(0, parts.pop(1)), bundle.seal()],
    "a part with another name": _set("parts", 0, "name", "means"),
    "a part without a guarantee": _set("parts", 0, "event", {"type": "non_private"}),
    "an event of no known type": _set("parts", 0, "event", {"type": "laplace", "scale": 3.0}),
    "an event with one more field": _set("parts", 0, "event", {"type": "gaussian", "noise_multiplier": 9.0, "n": 1}),
    "another bound": _set("bounds", "max_grad_norm", 0.1),
    "a bound left out, and one of noise": _set("bounds", "noise_multiplier", 30.0),
    "noise that is not the event's, in both": _cleaner_both,
    "another plan": _set("plan", {"noise_multiplier": 30.0}),
    "another kind of release": _set("release", "format", "dpinfer-site-release"),
    "another version of its format": _set("release", "version", 1),
    "another hash of a member": _set("release", "members", "params.npy", "0" * 64),
    "a member that is not named": lambda bundle: [
        bundle.document["statement"]["release"]["members"].pop("params.npy"), bundle.seal()],
    "a number of the release changed": _flipped,
    "one more member in the file": _extra_member,
    "the release's own epsilon lowered": _header(lambda header: header.update(certified_epsilon=0.1)),
    "the release's own leak left out": _header(lambda header: header.update(leaks=[])),
    "the release's own event, of fewer steps": _header(lambda header: header["event"].update(count=1)),
    "more sums than steps": _longer,
    "another entry of the ledger": _set("ledger", "entry", 2),
    "another hash of the entry": _set("ledger", "digest", "0" * 64),
    "another hash before the entry": _set("ledger", "previous", "0" * 64),
    "another run": _set("ledger", "run", "0" * 64),
    "another data set": _set("ledger", "dataset", "survey"),
    "an entry that charged less": _entry(lambda content: content["event"].update(count=1)),
    "an entry of another time": _entry(lambda content: content.update(time="2020-01-01T00:00:00+00:00")),
    "no ledger": _set("ledger", None),
    "the ledger's entry changed by hand": _by_hand("UPDATE entries SET content = replace(content, '0.2', '0.1')"),
    "the ledger's last entries removed": _by_hand("DELETE FROM entries WHERE number > 3"),
    "the ledger's entries moved": _by_hand("UPDATE entries SET number = 60 WHERE number = 2"),
    "another digest": lambda bundle: bundle.document.update(digest="0" * 64),
    "one more field": lambda bundle: bundle.document.update(note="audited"),
    "another version": lambda bundle: bundle.document.update(version=2),
    "spaces": _text(lambda text: text.replace(b",", b", ")),
    "a name twice": _text(lambda text: text.replace(b'"version":1}', b'"version":1,"version":1}')),
    "a number in other digits": _text(lambda text: text.replace(b"1e-06", b"0.000001")),
    "cut off": _text(lambda text: text[:-20]),
    "a bit of the signature": _bit("value", 10),
    "a bit of the key": _bit("public_key", 3),
    "a signature of something else": lambda bundle: [_scale("guarantee", "epsilon", 1.0)(bundle), _signed_by(
        KEY, then=lambda b, _: b.document.update(digest=b.document["digest"]))(bundle), _bit("value", 100)(bundle)],
    "somebody else's signature": _signed_by(OTHER_KEY, then=lambda bundle, _: setattr(
        bundle, "public_key", "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")),
    "no signature where one is asked for": lambda bundle: [bundle.seal(), setattr(
        bundle, "public_key", "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")],
}  # fmt: skip


def tampered(bundle, name):
    """Return a copy that was tampered with."""
    changed = copy.deepcopy(bundle)
    TAMPERINGS[name](changed)
    return changed


def honest_release(rng, number):
    """Return one of many kinds of releases: a statistic, an unsampled or a sampled trace, with parts and without."""
    relation = ("add_remove", "zero_out", "replace_one")[rng.integers(3)]
    delta = float(10.0 ** -rng.integers(4, 9))
    parts = tuple(
        Part(f"part {k}", random_part(rng, relation, delta), relation) for k in range(int(rng.integers(0, 3)))
    )
    kind = number % 5
    if kind == 0:
        event = PureEvent(float(rng.uniform(0.05, 2.0)), relation)
    elif kind < 4:
        event = Composed(tuple(GaussianEvent(float(s)) for s in 10.0 ** rng.uniform(0.0, 2.0, rng.integers(1, 12))))
    else:
        relation = "zero_out" if relation == "replace_one" else relation
        parts = tuple(part for part in parts if part.adjacency == relation)
        event = run_event(
            float(rng.uniform(1.0, 6.0)), float(10.0 ** rng.uniform(-2.0, -0.5)), int(rng.integers(1, 200))
        )
        return gradient_trace(rng, event, delta=delta, adjacency=relation, other_parts=parts)
    return StatisticRelease(
        method="gibbs_ss_noisy", names=("a", "b"), noisy_statistics=rng.normal(size=2), laplace_scale=np.ones(2),
        n_records=100, event=event, adjacency=relation, other_parts=parts, delta=delta,
    )  # fmt: skip


def random_part(rng, relation, delta):
    """Return an event that many releases have beside their own."""
    kind = rng.integers(3)
    if kind == 0:
        return GaussianEvent(float(10.0 ** rng.uniform(0.0, 2.0)))
    if kind == 1:
        return PureEvent(float(10.0 ** rng.uniform(-2.0, 0.0)), relation)
    return ApproximateEvent(float(10.0 ** rng.uniform(-2.0, 0.0)), delta * float(rng.uniform(0.01, 0.3)), relation)


@dataclass
class Composition:
    """Plain Gaussians, pure guarantees, failures, and a sampled step, under a relation at a delta."""

    relation: str
    delta: float
    sigmas: list[float]
    pures: list[float]
    failures: list[float]
    sampled: tuple[str, float, float, int] | None

    @property
    def events(self):
        events = [GaussianEvent(sigma) for sigma in self.sigmas]
        failing = len(self.failures)
        events += [ApproximateEvent(e, d, self.relation) for e, d in zip(self.pures, self.failures, strict=False)]
        events += [PureEvent(e, self.relation) for e in self.pures[failing:]]
        if self.sampled:
            kind, sigma, rate, count = self.sampled
            noise = GaussianEvent(sigma)
            sampled = (
                PoissonSampled(rate, noise)
                if kind == "poisson"
                else SampledWithoutReplacement(1000, round(1000 * rate), noise)
            )
            events.append(SelfComposed(sampled, count))
        return events


def random_composition(rng, number):
    """Return one of three kinds: without sampling; one or two sampled steps; or many of them."""
    relation = ("add_remove", "zero_out", "replace_one")[rng.integers(3)]
    delta = float(10.0 ** -rng.uniform(4.0, 9.0))
    sigmas = (10.0 ** rng.uniform(-0.2, 2.3, rng.integers(1, 20))).tolist()
    pures = (10.0 ** rng.uniform(-2.0, 0.0, rng.integers(0, 4))).tolist()
    failures = (delta * rng.uniform(0.01, 0.3, min(len(pures), int(rng.integers(0, 3))))).tolist()
    if number % 3 == 0:
        return Composition(relation, delta, sigmas, pures, failures, None)
    kind = "subset" if relation == "replace_one" else "poisson"
    rate = round(float(10.0 ** rng.uniform(-2.5, -0.3)), 3)
    sigma = float(10.0 ** rng.uniform(-0.1, 1.0))
    if number % 3 == 1:
        return Composition(relation, delta, sigmas[:1] if rng.random() < 0.5 else [], [], [], (kind, sigma, rate, 1))
    count = int(10.0 ** rng.uniform(1.5, 3.3))
    return Composition(relation, delta, [], [], [], (kind, sigma, rate, count))


def exact_delta(composition, epsilon, digits=60):
    """Return delta of the dominating pairs at `epsilon`, to about half of so many digits; pure parts by either bound.

    One sampled step and plain Gaussians by quadrature, many sampled steps by the inversion of their characteristic
    function; only Poisson sampling or none.
    """
    with mpmath.workdps(digits):
        mp = mpmath
        factor = 2 if composition.relation == "replace_one" else 1
        squared = mp.fsum((mp.mpf(factor) / mp.mpf(sigma)) ** 2 for sigma in composition.sigmas)
        failure = mp.fsum(mp.mpf(item) for item in composition.failures)
        epsilon = mp.mpf(epsilon)
        if composition.sampled is None:
            pure = mp.fsum(mp.mpf(e) for e in composition.pures)
            added = squared + mp.fsum(
                (2 * _quantile(mp.exp(mp.mpf(e)) / (1 + mp.exp(mp.mpf(e))))) ** 2 for e in composition.pures
            )
            return failure + min(_gaussian(mp.sqrt(squared), epsilon - pure), _gaussian(mp.sqrt(added), epsilon))
        _, sigma, rate, count = composition.sampled
        mu, q = 1 / mp.mpf(sigma), mp.mpf(rate)
        if count == 1:
            return max(_one_sampled(mu, q, mp.sqrt(squared), epsilon, order) for order in (1, -1))
        return max(_many_sampled(mu, q, count, epsilon, order) for order in (1, -1))


def slightly_less(composition, certified):
    """Return an epsilon a relative 1e-9 below that at which delta is reached; delta there exceeds it by 60 digits."""

    def excess(epsilon):
        return math.log(exact_delta(composition, epsilon, digits=25) / composition.delta)

    epsilon = brentq(excess, 0.97 * certified, 1.0001 * certified, xtol=1e-13 * certified) * (1.0 - 1e-9)
    assert exact_delta(composition, epsilon) > composition.delta
    return epsilon


def _quantile(mass):
    """Return the point below which N(0, 1) has `mass`."""
    mp = mpmath
    return mp.findroot(lambda x: mp.ncdf(x) - mass, mp.mpf(float(mass) - 0.5) * 2.5)


def _gaussian(mu, epsilon):
    mp = mpmath
    if not mu:
        return max(mp.mpf(0), 1 - mp.exp(epsilon))
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def _sampled_loss(mu, q, z, order):
    mp = mpmath
    return order * mp.log(1 - q + q * mp.exp(mu * z - mu * mu / 2))


def _one_sampled(mu, q, other, epsilon, order):
    """Integrate the plain Gaussian's delta over the sampled step's noise, which is analytic, by the trapezoid rule."""
    mp = mpmath
    if not other:  # the closed form
        if order == 1:
            z = mp.log((mp.exp(epsilon) - 1 + q) / q) / mu + mu / 2
            return (1 - q) * mp.ncdf(-z) + q * mp.ncdf(mu - z) - mp.exp(epsilon) * mp.ncdf(-z)
        if mp.exp(-epsilon) <= 1 - q:
            return mp.mpf(0)
        z = mp.log((mp.exp(-epsilon) - 1 + q) / q) / mu + mu / 2
        return mp.ncdf(z) - mp.exp(epsilon) * ((1 - q) * mp.ncdf(z) + q * mp.ncdf(z - mu))
    step, reach = mp.mpf(1) / 12, 14
    total = mp.mpf(0)
    for k in range(-12 * reach, int(12 * (reach + mu)) + 1):
        z = k * step
        near, far = mp.npdf(z), mp.npdf(z - mu)
        mass = (1 - q) * near + q * far if order == 1 else near
        total += mass * _gaussian(other, epsilon - _sampled_loss(mu, q, z, order))
    return total * step


def _many_sampled(mu, q, count, epsilon, order):
    """Invert the moment generating function along a line through its saddle point, by the trapezoid rule.

    delta = (1 / 2 pi i) int e**(K(s) - s epsilon) / (s (s + 1)) ds, K the logarithm of E e**(s L) of all steps,
    along any line with a positive real part.
    """
    mp = mpmath
    step = mp.mpf(1) / 8
    nodes = [k * step for k in range(-8 * 13, int(8 * (13 + mu)) + 1)]
    losses = [_sampled_loss(mu, q, z, order) for z in nodes]
    masses = [((1 - q) * mp.npdf(z) + q * mp.npdf(z - mu) if order == 1 else mp.npdf(z)) * step for z in nodes]
    values, weights = np.array(losses, dtype=float), np.array(masses, dtype=float)

    def slope(s):
        grown = weights * np.exp(s * (values - values.max()))
        return count * float(grown @ values / grown.sum()) - float(epsilon) - 1 / s - 1 / (s + 1)

    low, high = 1e-3, 1e4
    if slope(high) < 0:
        return mp.mpf(0)  # epsilon is beyond what the loss reaches: only addition has such an end
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    s0 = mp.mpf(low)
    spread = math.sqrt(max(1e-12, (slope(low * 1.001) - slope(low)) / (0.001 * low)))
    width, total, k = mp.mpf(min(0.25 / spread, low / 3)), mp.mpf(0), 0
    while True:
        s = mp.mpc(s0, k * width)
        moment = mp.fsum(mass * mp.exp(s * loss) for mass, loss in zip(masses, losses, strict=True))
        term = mp.re(moment**count * mp.exp(-s * epsilon) / (s * (s + 1)))
        total += term if k else term / 2
        if k > 20 and abs(moment) ** count * mp.exp(-s0 * epsilon) / abs(s) ** 2 < abs(total) * mp.mpf("1e-13"):
            return total * width / mp.pi
        k += 1


def by_hand(composition, epsilon, delta):
    """Return a certificate of a composition with its release, which nobody but the verifier has read."""
    parts = [
        {"name": f"part {k}", "event": event.to_dict(), "adjacency": composition.relation}
        for k, event in enumerate(composition.events)
    ]
    guarantee = {"delta": delta, "adjacency": composition.relation, "accountant": "pld", "secure": True, "leaks": []}
    header = guarantee | {
        "certified_epsilon": epsilon, "event": parts[-1]["event"], "other_parts": parts[:-1], "settings": {},
    }  # fmt: skip
    text = json.dumps({"format": "a-release", "version": 2, "release": header}).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("release.json", text)
    statement = {
        "library": {"name": "dpinfer", "version": "0.1", "build": "0" * 64},
        "release": {"format": "a-release", "version": 2, "members": {"release.json": sha256(text)}},
        "guarantee": guarantee | {"epsilon": epsilon},
        "parts": parts, "bounds": {}, "plan": None, "ledger": None,
    }  # fmt: skip
    return Bundle(
        {"format": "dpinfer-certificate", "version": 1, "statement": statement}, stream.getvalue(), None
    ).seal()


def least_epsilon(composition):
    """Return the epsilon at which delta is reached, to ten digits, by quadrature; None where any has less delta."""

    def excess(epsilon):
        return math.log(max(mpmath.mpf("1e-300"), exact_delta(composition, epsilon, digits=25)) / composition.delta)

    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    low = high
    while excess(low) < 0.0:
        low /= 2.0
        if low < 1e-6:
            return None
    return brentq(excess, low, high, xtol=1e-11 * high)


# Not compared with anything: what the library is called by its authors.
_NAMES_ALONE = {("library", "version"), ("library", "build")}


def _leaves(value, path=()):
    if isinstance(value, (dict, list)) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*path, key))
    elif path[:2] not in _NAMES_ALONE:
        yield path, value


def _understated(rng, value):
    """Return another value: a number by a factor from 1.0001 to 10, either way."""
    factor = (1.0 + 10.0 ** rng.uniform(-4.0, math.log10(9.0))) ** rng.choice((-1.0, 1.0))
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        changed = round(value * factor)
        return changed if changed != value else value + 1
    if isinstance(value, float):
        return value * factor
    return value[:-1] if isinstance(value, str) and value else ["something"]


def false_certificate(rng, number, honest, kinds=(0, 0, 1, 2)):
    """Return a certificate that states less than the truth, and what is false of it.

    Of three kinds: any field of an honest one, beside the honest release; epsilon, or delta, of random compositions, in
    certificate and release alike, below what 25 digits allow.  Everybody can make the digests anew.  `kinds` are those
    of `random_composition` to choose from.
    """
    if number % 3 == 0:
        changed = copy.deepcopy(honest)
        places = [path for path, _ in _leaves(changed.document["statement"])]
        path = places[rng.integers(len(places))]
        place = changed.document["statement"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = _understated(rng, place[path[-1]])
        if rng.random() < 0.3:
            changed.release = None
        return changed.seal(), ".".join(map(str, path))
    epsilon = None
    while epsilon is None:
        composition = random_composition(rng, int(rng.choice(kinds)))
        if composition.sampled and composition.sampled[0] == "subset":
            composition.relation = "add_remove"
            composition.sampled = ("poisson", *composition.sampled[1:])
        epsilon = least_epsilon(composition)
    delta = composition.delta
    factor = 1.0 + 10.0 ** rng.uniform(-4.0, math.log10(9.0))
    if number % 3 == 1:
        return by_hand(composition, epsilon / factor, delta), "epsilon"
    return by_hand(composition, epsilon, delta / factor), "delta"


def endless_ledger():
    """Return the bytes of a database whose entries are a view without end."""
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE VIEW entries AS WITH RECURSIVE more(number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM more) "
        "SELECT number, 'charge' AS kind, '{}' AS content, '' AS digest FROM more"
    )
    return connection.serialize()


def bomb():
    """Return a zip of 50 kB that would unpack to 50 MB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("release.json", bytes(50_000_000))
    return stream.getvalue()


def noisy(sigma, rate=None, count=1):
    """Return the plain form of Gaussian noise, sampled with a rate, in a number of steps."""
    event = {"type": "gaussian", "noise_multiplier": sigma}
    if rate is not None:
        event = {"type": "poisson_sampled", "sample_rate": rate, "event": event}
    return {"type": "self_composed", "event": event, "count": count}


def stating(events, epsilon, delta=1e-6):
    """Return a certificate that states an epsilon of events, in plain form, with its release."""

    @dataclass
    class Plain:
        value: dict

        def to_dict(self):
            return self.value

    @dataclass
    class Given:
        relation: str
        events: list

    return by_hand(Given("add_remove", [Plain(event) for event in events]), epsilon, delta)


# What stated epsilon 0.1, and had status 0 or did not end.
UNKNOWN = {
    "nearly no noise": [noisy(0.0005)],
    "too many steps": [noisy(0.02, 0.5, 10**9 + 1)],
    "more than can be composed": [noisy(2.0 + 0.001 * k, 0.1 + 1e-5 * k) for k in range(3000)],
}

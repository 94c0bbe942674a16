"""Sites over masks: the bits of one machine with the same noise shares, whoever vanishes, and what the server sees."""

import math

import numpy as np
import pytest
from tests.reference import silo_mutants
from tests.reference.silo_runs import LARGEST_SEED, LossyLine, bits, key_of, on_one_machine, over_sites, split
from tests.reference.silo_views import (
    LOGISTIC,
    N,
    five_sites,
    is_uniform,
    noise_is_right,
    opened_without_arithmetic,
    plan_of,
    records,
)

import dpinfer as dpi
from dpinfer.errors import SiloError
from dpinfer.lab.replays.mechanisms import own_logistic
from dpinfer.mechanism import Silos
from dpinfer.mechanism.silos import LocalLine, Site, Terms, masks
from dpinfer.mechanism.silos.messages import pack, unpack
from dpinfer.testing import InsecureRNG

LINEAR = dpi.models.LinearRegression(2, fit_intercept=True)
OWN = own_logistic()


def parts_of(n_sites, rng, arrays):
    return [tuple(array[part] for array in arrays) for part in split(N, n_sites, rng)]


def options_of(model):
    return {"n_records": N, **({"response_scale": 1.0} if model is LINEAR else {})}


def random_session(seed):
    """Return a random number of sites, who is lost where, and the most that may be lost."""
    rng = np.random.default_rng(seed)
    n_sites = int(rng.integers(2, 13))
    may_vanish = min(n_sites // 3, n_sites - 2)
    lost = rng.choice(n_sites, int(rng.integers(0, may_vanish + 1)), replace=False)
    n_passes = plan_of(LINEAR).n_passes
    losses = {int(place): (str(rng.choice(["pass", "opening"])), int(rng.integers(0, n_passes - 2))) for place in lost}
    return rng, n_sites, may_vanish, losses


@pytest.mark.parametrize(
    ("model", "seed"),
    # Two sessions of each model, and none twice.
    [
        pytest.param(model, 2 * place + seed, id=f"{name}-{2 * place + seed}")
        for place, (name, model) in enumerate({"linear": LINEAR, "logistic": LOGISTIC, "own": OWN}.items())
        for seed in range(2)
    ],
)
def test_sites_give_the_bits_of_one_machine_with_the_same_noise_shares(model, seed, monkeypatch):
    """Up to a third of the sites vanish in the middle of passes: before they give a sum, or before they open it."""
    rng, n_sites, may_vanish, losses = random_session(seed)
    arrays = parts_of(n_sites, rng, records())
    plan, first = plan_of(model), LARGEST_SEED * seed
    release, line, silos = over_sites(
        model, plan, arrays, losses=losses, first_seed=first, may_vanish=may_vanish, **options_of(model)
    )
    present = line.present(plan.n_passes)
    assert release.settings["silos"]["present"] == [len(here) for here in present]
    assert (len(present[-1]) < n_sites) == bool(losses)
    keys = [key_of(first + place) for place in range(n_sites)]
    same = on_one_machine(monkeypatch, model, plan, arrays, keys, silos, present, **options_of(model))
    assert bits(release) == bits(same)
    # Power: another share of one site gives other bits.
    others = [key_of(first + n_sites), *keys[1:]] if 0 in present[0] else [*keys[:-1], key_of(first + n_sites)]
    other = on_one_machine(monkeypatch, model, plan, arrays, others, silos, present, **options_of(model))
    assert bits(release) != bits(other)


def test_a_run_ends_when_more_sites_vanish_than_may():
    arrays = parts_of(5, np.random.default_rng(0), records())
    losses = {0: ("pass", 3), 2: ("opening", 4)}
    for may_vanish, enough in ((2, True), (1, False)):
        if enough:
            over_sites(LOGISTIC, plan_of(LOGISTIC), arrays, losses=losses, may_vanish=may_vanish, n_records=N)
            continue
        with pytest.raises(SiloError, match="4 sites must be there in every pass, and 3 opened the sum"):
            over_sites(LOGISTIC, plan_of(LOGISTIC), arrays, losses=losses, may_vanish=may_vanish, n_records=N)


@pytest.mark.statistical
def test_the_servers_view_is_uniform():
    """False-positive rate 1e-6 for each of the four views."""
    assert is_uniform(range(5)) == dict.fromkeys(
        ("vectors", "without own masks", "differences of passes", "sums before they are opened"), True
    )


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("mutant", "seen"),
    [
        (silo_mutants.without_pair_masks, "without own masks"),
        (silo_mutants.without_own_masks, "sums before they are opened"),
        (silo_mutants.with_a_reused_mask, "differences of passes"),
    ],
    ids=lambda item: getattr(item, "__name__", "view"),
)
def test_mutants_of_masks_are_not_uniform(mutant, seen, monkeypatch):
    """Power twin of the view of the server."""
    mutant(monkeypatch)
    # With a reused mask nothing can be opened as it should: the view is what counts.
    monkeypatch.setattr(Silos, "open", opened_without_arithmetic(Silos.open))
    assert not is_uniform(range(2))[seen]


@pytest.mark.statistical
def test_the_noise_is_that_of_all_shares():
    """False-positive rate 1e-6."""
    assert noise_is_right(range(2))


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", [silo_mutants.noise_share_left_out, silo_mutants.noise_share_twice])
def test_mutants_of_noise_shares_have_the_wrong_noise(mutant, monkeypatch):
    mutant(monkeypatch)
    assert not noise_is_right(range(2))


def test_the_noise_is_no_more_than_what_tolerance_costs():
    """At most sqrt(n / (n - t)) of the central noise, whoever is there."""
    release, _, _ = five_sites()
    central = dpi.run_newton(LOGISTIC, *records(), plan=plan_of(LOGISTIC), n_records=N)
    ratio = release.moment_stddev[0] / central.moment_stddev[0]
    assert ratio == pytest.approx(math.sqrt(5 / 3), rel=1e-12)
    lossy, _, _ = five_sites(losses={1: ("pass", 0)})
    assert lossy.moment_stddev[0] / central.moment_stddev[0] == pytest.approx(math.sqrt(4 / 3), rel=1e-12)


def test_what_is_opened_of_a_pass_is_a_mask_or_a_key_and_never_both():
    """No site's own mask and key of one pass are both opened, by any site that answers."""
    _, line, _ = five_sites(losses={1: ("pass", 2)})
    opened = {}
    for place, asked, reply in line.seen:
        if reply.kind == "opened":
            index, present = asked.fields["index"], asked.fields["present"]
            opened.setdefault(index, set()).add(tuple(present))
            assert place in present
    assert all(len(sets) == 1 for sets in opened.values())
    assert opened[2] == {(0, 2, 3, 4)}


def test_a_site_refuses_what_the_protocol_does_not_allow():
    plan = plan_of(LOGISTIC)
    arrays = parts_of(4, np.random.default_rng(3), records())
    sites = [Site(X, y, random_source=InsecureRNG(place)) for place, (X, y) in enumerate(arrays)]

    line = LossyLine(sites)
    dpi.run_newton(LOGISTIC, Silos(line, may_vanish=1), plan=plan, n_records=N)
    fresh = [Site(X, y, random_source=InsecureRNG(place)) for place, (X, y) in enumerate(arrays)]
    sent = [(place, pack(asked.kind, **asked.fields)) for place, asked, _ in line.seen[:16]]
    for place, message in sent[:12]:
        fresh[place].answer(message)
    opening = sent[12][1]
    tried = {
        "a pass twice": pack("pass", **line.seen[8][1].fields | {"alive": [0, 1, 2]}),
        "of too few": pack("opening", index=0, present=[0], tags=b""),
        "without itself": pack("opening", index=0, present=[1, 2, 3], tags=b""),
        "of a stranger": pack("opening", index=0, present=[0, 1, 2, 3, 4], tags=b""),
        "of another pass": pack("opening", index=1, present=[0, 1, 2, 3], tags=b""),
        "without tags": pack("opening", index=0, present=[0, 1, 2, 3]),
        "other peers": pack("peers", boxes=[], masks=[]),
        "nonsense": b"nonsense",
        "cut": opening[:-3],
        "unknown": pack("dump"),
    }
    for name, message in tried.items():
        reply = unpack(fresh[0].answer(message))
        assert (name, reply.kind, reply.fields.get("reason")) == (name, "refused", "the protocol")
    opened = fresh[0].answer(opening)
    assert unpack(opened).kind == "opened"
    # The same once more gets the same, byte for byte, and is not noted twice.
    digest = fresh[0].transcript.digest
    assert fresh[0].answer(opening) == opened
    assert fresh[0].transcript.digest == digest
    # A second opening, of other sites, would tell a mask and a key.
    tags = unpack(opening).fields["tags"]
    for present in ([0, 1, 2], [0, 1, 3]):
        again = pack("opening", index=0, present=present, tags=tags[:96])
        assert unpack(fresh[0].answer(again)).kind == "refused"


def test_sites_that_were_told_of_other_sites_do_not_open_shares():
    """A coordinator that swaps a key between two sites is seen before a pass is made."""

    class Swapping(LocalLine):
        def exchange(self, messages):
            if unpack(messages[0]).kind == "peers":
                given = unpack(messages[0]).fields
                swapped = [masks.public_key(bytes(31) + b"\1"), *given["boxes"][1:]]
                messages = {**messages, 1: pack("peers", boxes=swapped, masks=given["masks"])}
            return super().exchange(messages)

    arrays = parts_of(3, np.random.default_rng(3), records())
    sites = [Site(X, y, random_source=InsecureRNG(place)) for place, (X, y) in enumerate(arrays)]
    with pytest.raises(SiloError, match="must be there in every pass"):
        dpi.run_newton(LOGISTIC, Silos(Swapping(sites)), plan=plan_of(LOGISTIC), n_records=N)
    assert all("with another list of sites" in str(site.failure) for site in sites)


def test_both_ends_have_the_same_transcript(tmp_path):
    arrays = parts_of(3, np.random.default_rng(3), records())
    sites = [
        Site(X, y, random_source=InsecureRNG(place), log=tmp_path / f"own-{place}")
        for place, (X, y) in enumerate(arrays)
    ]
    release = dpi.run_newton(LOGISTIC, Silos(LocalLine(sites), log=tmp_path), plan=plan_of(LOGISTIC), n_records=N)
    assert release.settings["silos"]["transcripts"] == [site.transcript.digest for site in sites]
    for place in range(3):
        own = (tmp_path / f"own-{place}").read_text(encoding="utf-8")
        assert own == (tmp_path / f"site-{place}.jsonl").read_text(encoding="utf-8")
        assert own.count("\n") == 2 * (2 + 2 * plan_of(LOGISTIC).n_passes + 1)


def test_a_site_goes_on_from_what_it_saved():
    """As it does where every message is answered by another process."""

    class Restarting(LocalLine):
        def exchange(self, messages):
            replies = {}
            for place, message in messages.items():
                X, y = arrays[place]
                site = Site(X, y, random_source=InsecureRNG(place))
                site.load(states.get(place, b""))
                replies[place] = site.answer(message)
                states[place] = site.save()
            return replies

    arrays, states = parts_of(3, np.random.default_rng(3), records()), {}
    line = Restarting([None] * 3)
    release = dpi.run_newton(LOGISTIC, Silos(line), plan=plan_of(LOGISTIC), n_records=N)
    whole, _, _ = over_sites(LOGISTIC, plan_of(LOGISTIC), arrays, n_records=N)
    assert bits(release) == bits(whole)
    assert release.settings["silos"]["transcripts"] == whole.settings["silos"]["transcripts"]


def test_shares_of_a_secret():
    rng = np.random.default_rng(0)
    secret, rest = masks.PRIME - 5, [int.from_bytes(rng.bytes(32), "little") % masks.PRIME for _ in range(3)]
    shares = dict(enumerate(masks.split(secret, rest, 7), 1))
    for places in ((1, 2, 3, 4), (7, 2, 5, 3)):
        assert masks.combine({place: shares[place] for place in places}) == secret
    assert masks.combine({place: shares[place] for place in (1, 2, 3)}) != secret
    # Any three shares are those of any secret: the polynomial through them and another secret exists.
    three = {0: 12345} | {place: shares[place] for place in (1, 2, 3)}
    weights = dict(zip(three, lagrange_at(4, three), strict=True))
    made = sum(weights[place] * three[place] for place in three) % masks.PRIME
    assert masks.combine({1: shares[1], 2: shares[2], 3: shares[3], 4: made}) == 12345


def lagrange_at(point, values):
    for own in values:
        above = below = 1
        for other in values:
            if other != own:
                above, below = above * (point - other) % masks.PRIME, below * (own - other) % masks.PRIME
        yield above * pow(below, -1, masks.PRIME) % masks.PRIME


def test_terms_leave_an_honest_site():
    assert Terms(5, 1, 1).noise_shares == 3
    assert Terms(5, 1, 1).fewest == 4
    assert Terms(5, 1, 1).withstands_lies
    assert not Terms(5, 2, 1).withstands_lies
    for wrong in ((1, 0, 1), (4, 2, 2), (3, 0, 0), (3, -1, 1), (201, 0, 1)):
        with pytest.raises(ValueError, match=r"n_sites|may_vanish|may_collude"):
            Terms(*wrong)


def test_messages_hold_plain_values_and_no_code():
    content = {"a": [1, 2.5, None, True, "x"], "b": (1, (2,)), "c": b"\0\1", "d": np.arange(6.0).reshape(2, 3)}
    found = unpack(pack("kind", **content)).fields
    assert found["a"] == content["a"]
    assert found["b"] == content["b"]
    assert found["c"] == content["c"]
    np.testing.assert_array_equal(found["d"], content["d"])
    with pytest.raises(TypeError, match="plain values"):
        pack("kind", value=print)
    with pytest.raises(TypeError, match="strings for keys"):
        pack("kind", value={1: 2})
    whole = pack("kind", value=np.arange(3.0))
    for broken in (b"", whole[:20], whole[:-1], whole.replace(b"array", b"arrow")):
        with pytest.raises(SiloError):
            unpack(broken)
    for module, name in (("os", "system"), ("dpinfer.mechanism.newton.run", "run_newton"), ("dpinfer.models", "Model")):
        text = pack("kind", value={"x": 1}).replace(
            b'{"x":1}', f'{{"%":"record","module":"{module}","name":"{name}","fields":{{}}}}'.encode()
        )
        head = len(b"dpinfer silos 1\n")
        text = text[:head] + (len(text) - head - 8).to_bytes(8, "little") + text[head + 8 :]
        with pytest.raises(SiloError, match="unknown to this protocol"):
            unpack(text)

"""Coordinators that do not follow the protocol, and what the page's table of messages says that each party gets."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from tests.reference.silo_runs import LossyLine, bits, key_of, sites_of
from tests.reference.silo_views import LOGISTIC, N, five_sites, plan_of, records

import dpinfer as dpi
from dpinfer.errors import SiloError
from dpinfer.mechanism.silos import LocalLine, Silos, Terms, masks
from dpinfer.mechanism.silos.messages import pack, unpack

PLAN = plan_of(LOGISTIC)
PAGE = Path(__file__).parents[3] / "docs" / "silos.md"


class Lying(LocalLine):
    """A coordinator's line that changes messages on their way to the sites."""

    def __init__(self, sites, change):
        super().__init__(sites)
        self._change, self.replies = change, []

    def exchange(self, messages):
        changed = {}
        for place, message in messages.items():
            asked = unpack(message)
            fields = self._change(place, asked.kind, asked.fields)
            changed[place] = message if fields is None else pack(asked.kind, **asked.fields | fields)
        replies = super().exchange(changed)
        self.replies += [unpack(reply).kind for reply in replies.values()]
        return {place: self._padded(reply) for place, reply in replies.items()}

    def _padded(self, reply):
        """Return a reply with tags for all sites: this coordinator goes on with whom it has told of fewer."""
        found = unpack(reply)
        if found.kind != "vector":
            return reply
        tags = found.fields["tags"].ljust(32 * self.n_sites, b"\0")
        return pack("vector", **found.fields | {"tags": tags})


def lied_to(change, n_sites=5, may_vanish=1):
    """Return the line of a coordinator that lies, after its run has failed, and the sites."""
    sites = sites_of(np.array_split(np.arange(N), n_sites), *records())
    line = Lying(sites, change)
    with pytest.raises(SiloError):
        dpi.run_newton(LOGISTIC, Silos(line, may_vanish=may_vanish), plan=PLAN, n_records=N)
    return line, sites


def test_every_site_looks_for_its_own_keys():
    """Keys of masks that the coordinator has made, told to all sites alike: their fingerprints would agree."""
    false = masks.public_key(b"\7" * 32) + b"".join(masks.public_key(bytes([place]) * 32) for place in range(1, 40))

    def change(place, kind, fields):
        if kind == "peers":
            return {"masks": [false[: len(fields["masks"][0])], *fields["masks"][1:]]}
        return None

    line, sites = lied_to(change)
    assert "opened" not in line.replies
    assert "those that they gave" in str(sites[0].failure)


@pytest.mark.parametrize("what", ["who is there", "question", "terms"])
def test_a_sum_is_not_opened_with_a_site_that_was_asked_something_else(what):
    """Otherwise a sum of fewer sites than the terms say, or of smaller noise, could be opened."""

    def change(place, kind, fields):
        if kind == "open" and what == "terms" and place == 0:
            return {"terms": fields["terms"] | {"may_vanish": 0}}
        if kind == "pass" and place == 0 and what == "who is there":
            return {"alive": [0, 1, 2, 3]}
        if kind == "pass" and place == 0 and what == "question":
            asked = unpack(fields["query"], LOGISTIC).fields["query"]
            return {"query": pack("query", query=type(asked)(2.0 * asked.transform, asked.bound))}
        return None

    line, sites = lied_to(change)
    assert "opened" not in line.replies
    if what == "terms":
        # Their boxes are about the terms, too: no pass is made.
        assert "vector" not in line.replies
        assert any("with another list of sites" in str(site.failure) for site in sites)
    else:
        assert line.replies.count("vector") == 5
        # The first one was told of fewer sites than it is to open.
        assert all("got the same question" in str(site.failure) for site in sites[1:])
        assert "got the same question" in str(sites[0].failure) or "of enough sites" in str(sites[0].failure)


def test_answers_of_another_session_are_of_no_use():
    """What a site gave in another session with the same records does not fit: its masks are others."""
    first, second = five_sites(0)[1], five_sites(1)[1]
    taken = {place: pack(reply.kind, **reply.fields) for place, asked, reply in first.seen if asked.kind == "peers"}
    sites = sites_of(np.array_split(np.arange(N), 5), *records(), first_seed=100)

    class Replaying(LossyLine):
        def exchange(self, messages):
            replies = super().exchange(messages)
            return taken if unpack(messages[0]).kind == "peers" else replies

    line = Replaying(sites)
    with pytest.raises(SiloError, match="must be there in every pass"):
        dpi.run_newton(LOGISTIC, Silos(line, may_vanish=1), plan=PLAN, n_records=N)
    assert not np.array_equal(first.vectors()[0, 0], second.vectors()[0, 0])


def least_shares(n_sites, may_vanish, may_collude):
    """Return the fewest honest noise shares of a sum that can be opened, over all lies about survivors, and the terms'.

    Each honest site is told of survivors with itself and at least n - l sites; colluding ones open everything.
    """
    terms = Terms(n_sites, may_vanish, may_collude)
    honest = range(n_sites - may_collude)
    lost = [
        [
            set(gone)
            for size in range(may_vanish + 1)
            for gone in itertools.combinations([site for site in honest if site != own], size)
        ]
        for own in honest
    ]
    least = n_sites
    for told in itertools.product(*lost):
        named = [sum(site in gone for gone in told) for site in honest]
        keys = {site for site in honest if named[site] + may_collude >= terms.fewest}
        seeds = {site for site in honest if len(honest) - named[site] + may_collude >= terms.fewest}
        # A sum without own masks is open when all other honest sites' keys are.
        if seeds | keys == set(honest):
            least = min(least, len(seeds - keys))
    return least, terms


@pytest.mark.parametrize(("n_sites", "may_collude"), [(4, 1), (5, 1), (5, 2), (6, 1), (6, 3)])
def test_lies_about_survivors_open_no_smaller_sum_where_the_terms_say_so(n_sites, may_collude):
    """Every lie about one lost site: all combinations."""
    least, terms = least_shares(n_sites, 1, may_collude)
    assert terms.withstands_lies == (n_sites - may_collude > 2)
    assert least == terms.noise_shares


@pytest.mark.parametrize("may_vanish", [1, 2, 3, 4])
def test_the_terms_that_withstand_lies_are_all_that_do(may_vanish):
    """One honest site fewer, and l + 1 keys can be opened: each named by all honest sites but l."""
    for honest in (may_vanish * (may_vanish + 1), may_vanish * (may_vanish + 1) + 1):
        terms = Terms(honest + 1, may_vanish, 1)
        needed = terms.fewest - terms.may_collude
        # l + 1 sites name each other; each of the rest leaves out one of them, in turn.
        left_out = [site % (may_vanish + 1) for site in range(honest - may_vanish - 1)]
        named = [may_vanish + len(left_out) - left_out.count(site) for site in range(may_vanish + 1)]
        assert (min(named) >= needed) == (not terms.withstands_lies)
        # And no other way: each of the honest sites names at most l.
        assert (may_vanish * honest < (may_vanish + 1) * needed) == terms.withstands_lies


def rows_of(heading):
    """Return the cells of the page's first table after a heading, without its head."""
    after = PAGE.read_text(encoding="utf-8").split(heading)[1].split("|---", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in after.splitlines()[1:]]


def test_what_each_party_gets_is_what_the_page_says():
    """Every message of a run in which a site vanishes, field by field; and whose shares are opened."""
    _, line, _ = five_sites(losses={1: ("opening", 2)})
    said = {row[0].strip("`"): (row[1], set(row[2].replace("`", "").split(", "))) for row in rows_of("## Messages")}
    seen = {}
    for _, asked, reply in line.seen:
        seen.setdefault(asked.kind, []).append(("the coordinator", set(asked.fields)))
        seen.setdefault(reply.kind, []).append(("a site", set(reply.fields)))
    assert set(seen) == set(said)
    for kind, each in seen.items():
        sender, fields = said[kind]
        assert all(item[0] == sender and item[1] <= fields for item in each), kind
        assert set.union(*(item[1] for item in each)) == fields - {"nothing"}, kind
    # Which of them are as long as the question's answer, or depend on the records: the vectors alone.
    other = five_sites(losses={1: ("opening", 2)})[1]
    assert [reply.fields.keys() for _, _, reply in line.seen] == [reply.fields.keys() for _, _, reply in other.seen]


def test_what_leaves_a_site_depends_on_its_records_in_its_vectors_alone():
    """Other records, the same keys: all else that a site sends up to the first sum is the same, byte for byte."""
    X, y = records()
    lines = []
    for change in (0, 1):
        arrays = (X + change, np.abs(y - change))
        line = LossyLine(sites_of(np.array_split(np.arange(N), 5), *arrays))
        dpi.run_newton(LOGISTIC, Silos(line, may_vanish=1), plan=PLAN, n_records=N)
        lines.append(line.seen[:20])
    assert [asked.kind for _, asked, _ in lines[0]] == ["open"] * 5 + ["peers"] * 5 + ["pass"] * 5 + ["opening"] * 5
    for (_, asked, one), (_, _, other) in zip(*lines, strict=True):
        same = {name: value for name, value in one.fields.items() if name != "numbers"}
        assert pack("same", **same) == pack("same", **{name: other.fields[name] for name in same})
        if asked.kind == "pass":
            assert not np.array_equal(one.fields["numbers"], other.fields["numbers"])


def test_shares_that_are_opened_give_own_masks_of_present_sites_and_keys_of_lost_ones():
    """What the coordinator gets of secrets, from the messages: never both of one site and pass."""
    _, line, silos = five_sites(losses={1: ("pass", 2)})
    known = {}
    for index in range(PLAN.n_passes):
        opened = {
            place: masks.parted(reply.fields["shares"])
            for place, _, reply in line.seen
            if reply.kind == "opened" and reply.fields["index"] == index
        }
        alive = next(a.fields["alive"] for _, a, _ in line.seen if a.kind == "pass" and a.fields["index"] == index)
        givers = sorted(opened)[: silos.terms.fewest]
        weights = masks.weights_at_zero([place + 1 for place in givers])
        for at, place in enumerate(alive):
            secret = masks.to_key(masks.combine({giver + 1: opened[giver][at] for giver in givers}, weights))
            keys = masks.SiteKeys(key_of(place))
            names = {keys.own_seed(index): "own", keys.mask_private(index): "key"}
            known[index, place] = names[secret]
    assert known[2, 1] == "key"
    assert list(known.values()).count("key") == 1
    # After that the lost site is not asked, and nothing of it is opened.
    assert (3, 1) not in known


def test_the_population_target_over_sites_has_the_bits_of_one_machine(monkeypatch):
    from tests.reference.silo_runs import on_one_machine, over_sites

    plan = dpi.plan_newton(LOGISTIC, target_epsilon=2.0, target_delta=1e-5, n_records=N, target="population")
    arrays = [tuple(array[part] for array in records()) for part in np.array_split(np.arange(N), 4)]
    release, line, silos = over_sites(LOGISTIC, plan, arrays, losses={2: ("pass", 3)}, may_vanish=1, n_records=N)
    keys = [key_of(place) for place in range(4)]
    same = on_one_machine(monkeypatch, LOGISTIC, plan, arrays, keys, silos, line.present(plan.n_passes), n_records=N)
    assert bits(release) == bits(same)
    assert np.all(np.isfinite(dpi.noise_aware_posterior(release).stddev))

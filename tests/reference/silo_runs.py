"""Runs over sites in this process, a line that loses them, and one machine that draws the same noise shares."""

import hashlib

import numpy as np

import dpinfer as dpi
from dpinfer.mechanism import Silos, _native
from dpinfer.mechanism.newton import run as newton_run
from dpinfer.mechanism.newton.own_rows import OwnRecords
from dpinfer.mechanism.newton.pass_records import open_records
from dpinfer.mechanism.silos import LocalLine, Site
from dpinfer.mechanism.silos.masks import SiteKeys
from dpinfer.mechanism.silos.messages import pack, unpack
from dpinfer.mechanism.silos.rows import SiloRecords
from dpinfer.mechanism.silos.work import gaussian_share
from dpinfer.models import OwnModel
from dpinfer.testing import InsecureRNG

LARGEST_SEED = 2**20


class LossyLine(LocalLine):
    """Loses sites, and keeps what was sent either way.

    Parameters
    ----------
    sites : sequence of Site
    losses : dict
        From a site's place to (kind of message, number of the pass): lost before it answers this.
    """

    def __init__(self, sites, losses=()):
        super().__init__(sites)
        self._losses, self._gone = dict(losses), set()
        self.seen = []

    def exchange(self, messages):
        replies = {}
        for place, message in messages.items():
            asked = unpack_any(message)
            if self._losses.get(place) == (asked.kind, asked.fields.get("index")):
                self._gone.add(place)
            if place in self._gone:
                continue
            replies[place] = self.sites[place].answer(message)
            self.seen.append((place, asked, unpack_any(replies[place])))
        return replies

    def present(self, n_passes):
        """Return the sites whose vectors each pass has."""
        return [
            sorted(
                place
                for place, asked, reply in self.seen
                if asked.kind == "pass" and reply.kind == "vector" and asked.fields["index"] == index
            )
            for index in range(n_passes)
        ]

    def vectors(self):
        """Return what every site gave, by (pass, place)."""
        return {
            (asked.fields["index"], place): reply.fields["numbers"].astype(np.uint64)
            for place, asked, reply in self.seen
            if reply.kind == "vector"
        }


def unpack_any(message):
    """Return a message."""
    return unpack(message)


def split(n_records, n_sites, rng):
    """Return the rows of each of some sites, at least one each."""
    cuts = np.sort(rng.choice(np.arange(1, n_records), n_sites - 1, replace=False))
    return np.split(rng.permutation(n_records), cuts)


def sites_of(parts, *arrays, first_seed=0, **options):
    """Return sites with test keys."""
    return [
        Site(*(array[part] for array in arrays), random_source=InsecureRNG(first_seed + place), **options)
        for place, part in enumerate(parts)
    ]


def key_of(seed):
    """Return the key that a site of this seed takes first."""
    return InsecureRNG(seed).take_key()


class OneMachine(SiloRecords):
    """All records in one place, in one sum, with the noise shares of the sites that were present."""

    def __init__(self, model, plan, arrays, keys, terms, present):
        self.n_rows = len(arrays[0][0])
        self._plan, self._keys, self._terms, self._present = plan, keys, terms, present
        self._model, self._arrays, self._index = model, arrays, -1

    secure = False

    def state(self):
        return {}

    def excess(self, index):
        return float(np.sqrt(len(self._present[index]) / self._terms.noise_shares))

    def noisy_sum(self, query, keep):
        self._index += 1
        here = self._present[self._index]
        X, y = (np.concatenate([arrays[place] for place in here]) for arrays in zip(*self._arrays, strict=True))
        if isinstance(self._model, OwnModel):
            records = OwnRecords(X, y, drawn=self._model.has_sampler)
        else:
            records = open_records(self._model, X, y, self._plan.adjacency, n_threads=1)
        total = _native.PartialSum(length=query.length, max_norm=query.max_norm)
        records.add(total, query)
        asked = hashlib.sha256(pack("query", query=query)).digest()
        shares = self._terms.noise_shares
        for place in here:
            key = SiteKeys(self._keys[place]).noise_key(self._index, asked)
            total.merge(gaussian_share(key, query, self._plan.noise_multipliers[self._index], shares))
        return total.integers * total.lattice_step

    def close(self, plan):
        return {}


def on_one_machine(monkeypatch, model, plan, arrays, keys, silos, present, **options):
    """Return the release of one machine that draws the noise shares of these keys."""
    records = OneMachine(model, plan, arrays, keys, silos.terms, present)
    with monkeypatch.context() as patch:
        patch.setattr(newton_run, "_records_of", lambda *ignored: records)
        return dpi.run_newton(model, silos, plan=plan, **options)


def over_sites(model, plan, arrays, *, losses=(), first_seed=0, may_vanish=0, may_collude=1, **options):
    """Return a release over sites with arrays (X, y) each, and the line."""
    sites = [
        Site(X, y, random_source=InsecureRNG(first_seed + place), model=model if isinstance(model, OwnModel) else None)
        for place, (X, y) in enumerate(arrays)
    ]
    line = LossyLine(sites, losses)
    silos = Silos(line, may_vanish=may_vanish, may_collude=may_collude)
    return dpi.run_newton(model, silos, plan=plan, **options), line, silos


def bits(release):
    """Return the bytes of every array of a release."""
    return {name: value.tobytes() for name, value in vars(release).items() if isinstance(value, np.ndarray)}

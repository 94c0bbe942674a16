"""Bugs in the private Newton run of a user's own model: records that look at each other, seeds from their places."""

import contextlib
from dataclasses import replace

import numpy as np

from dpinfer.mechanism.newton.own_clipped_model import ClippedScores
from dpinfer.mechanism.newton.own_population import OwnScores
from dpinfer.mechanism.newton.own_rows import CentredScores, OwnQuery, OwnRows, PersonScores

from .replay_mutants import Mutant

OWN = "run_newton: own model"


def in_place_of(owner, name, make):
    """`make(right)` in the place of a method."""

    @contextlib.contextmanager
    def installed():
        right = vars(owner)[name]
        setattr(owner, name, make(getattr(owner, name)))
        try:
            yield
        finally:
            setattr(owner, name, right)

    return installed


def weight_of_the_batch(right):
    """The weight comes from the block's mean rather than from each record's own draws."""

    def weight(query, simulated):
        size = np.mean(np.sum(simulated**2, axis=0))
        return np.full(simulated.shape[2], min(1.0, query.weight_bound / (size + 1e-300)))

    return weight


def centre_of_the_batch(right):
    """Scores are centred by the mean of the records rather than by the model's own draws."""

    def contributions(query, rows, block):
        own = right(query, rows, block)
        return np.ascontiguousarray(own - 0.1 * own.mean(axis=0))

    return contributions


def clip_of_the_records(right):
    """The clip is a quantile of the records' own norms."""

    def add(query, total, rows):
        norms = np.linalg.norm(np.clip(rows.features, -1e3, 1e3), axis=1)
        object.__setattr__(query, "clip", float(norms.max()))
        return right(query, total, rows)

    return add


def excess_of_the_batch(right):
    """Every record has the excess of the block's largest."""

    def excess(query, own, simulated):
        found = right(query, own, simulated)
        return np.full_like(found, found.max())

    return excess


def seeds_of_places(right):
    """A record's draws come from its number in the file: they move up when a record before it goes."""

    def of(features, response, *threads):
        words = np.random.default_rng(1).integers(0, 2**64, (len(response), 2), dtype=np.uint64)
        return replace(right(features, response, *threads), seeds=words)

    return staticmethod(of)


def counts_of_the_batch(right):
    """Norms are counted in units of the block's largest rather than of the public clip."""

    def contributions(query, rows, block):
        norms = np.linalg.norm(np.clip(rows.features[block], -1e3, 1e3), axis=1)
        return right(replace(query, clip=query.clip * float(norms.max())), rows, block)

    return contributions


def weight_of_the_persons(right):
    """All draws of a block have the smallest weight of any of its persons."""

    def weighed(query, simulated):
        draws, weights = right(query, simulated)
        return draws, np.full_like(weights, weights.min())

    return weighed


PERSON_MUTANTS = {
    "weight_of_the_persons": in_place_of(PersonScores, "_weighed", weight_of_the_persons),
    "seeds_of_places": in_place_of(OwnRows, "of", seeds_of_places),
}

BATCH_MUTANTS = {
    "weight_of_the_batch": in_place_of(CentredScores, "_weight", weight_of_the_batch),
    "centre_of_the_batch": in_place_of(CentredScores, "contributions", centre_of_the_batch),
    "excess_of_the_batch": in_place_of(CentredScores, "_excess", excess_of_the_batch),
    "seeds_of_places": in_place_of(OwnRows, "of", seeds_of_places),
}


def scores_about_their_mean(right):
    """Scores lose the mean of their block."""

    def contributions(query, rows, block):
        own = right(query, rows, block)
        return np.ascontiguousarray(own - own.mean(axis=0))

    return contributions


OWN_NEWTON_MUTANTS = {
    "scores_about_their_mean": Mutant(
        "run_newton: population, own model",
        in_place_of(OwnScores, "contributions", scores_about_their_mean),
        "sensitivity",
    ),
    "counts_of_the_batch": Mutant(
        f"{OWN} without a sampler",
        in_place_of(ClippedScores, "contributions", counts_of_the_batch),
        "sensitivity",
    ),
    "weight_of_the_batch": Mutant(OWN, BATCH_MUTANTS["weight_of_the_batch"], "sensitivity"),
    "clip_of_the_records": Mutant(OWN, in_place_of(OwnQuery, "add", clip_of_the_records), "outcome"),
}

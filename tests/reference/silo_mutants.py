"""Deliberate faults of the sites, each of which a named test must see."""

import numpy as np

from dpinfer.mechanism.silos import masks, site, work
from tests.reference import silo_views

SOURCE_OF_SHARES = work.gaussian_share


def without_pair_masks(patch):
    """Sites hide behind their own mask alone, which the coordinator opens."""
    patch.setattr(site, "pair_mask", lambda *keys, length, **places: np.zeros(length, dtype=np.uint64))


def without_own_masks(patch):
    """Sites hide behind the others alone: their sum is open before anybody has said who is in it."""
    patch.setattr(site, "own_mask", lambda seed, about, length: np.zeros(length, dtype=np.uint64))


def with_a_reused_mask(patch):
    """Every pass has the masks of the first."""
    own_seed, mask_private = masks.SiteKeys.own_seed, masks.SiteKeys.mask_private
    patch.setattr(masks.SiteKeys, "own_seed", lambda self, index: own_seed(self, 0))
    patch.setattr(masks.SiteKeys, "mask_private", lambda self, index: mask_private(self, 0))
    pair_mask, own_mask = masks.pair_mask, masks.own_mask

    def first(private, public, *, about, **rest):
        return pair_mask(private, public, about=b"", **rest)

    patch.setattr(site, "pair_mask", first)
    patch.setattr(site, "own_mask", lambda seed, about, length: own_mask(seed, b"", length))
    # The server that looks at differences knows what was asked, and of this fault.
    patch.setattr(silo_views, "asked_of_pass", lambda *asked: b"")


def _shares(patch, factor):
    calls = []

    def share(key, *arguments):
        # One site of five: each asks once a pass.
        calls.append(key)
        return SOURCE_OF_SHARES(key, *arguments) * (factor if len(calls) % 5 == 1 else 1)

    patch.setattr(work, "gaussian_share", share)


def noise_share_left_out(patch):
    """The first of five sites adds no noise."""
    _shares(patch, 0)


def noise_share_twice(patch):
    """The first of five sites adds its noise share twice."""
    _shares(patch, 2)

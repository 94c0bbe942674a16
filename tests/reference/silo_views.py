"""What is measured of sessions: how uniform the server's view is, how large the noise, and how exact epsilon."""

import itertools
import math

import mpmath
import numpy as np
from scipy import stats

import dpinfer as dpi
from dpinfer.accounting import GaussianEvent, account
from dpinfer.mechanism.silos import masks
from dpinfer.mechanism.silos.messages import asked_of_pass
from dpinfer.mechanism.silos.terms import event_with_shares
from tests.reference.silo_runs import LARGEST_SEED, key_of, over_sites, split

N = 300
LOGISTIC = dpi.models.LogisticRegression(2)
# Each of the tests below is wrong once in so many.
WRONG_ONCE_IN = 1e6
# Fixed-point numbers of 60 digits.
BITS = 200
# The smallest noise share that a site draws, and a sensitivity, in lattice steps.
SHARE, SHIFT = 64.0, 40


def plan_of(model):
    """Return the plan of a run over N records."""
    return dpi.plan_newton(model, target_epsilon=2.0, target_delta=1e-5, n_records=N)


def records(seed=0):
    """Return N records."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 2))
    return X, (X[:, 0] + rng.normal(size=N) > 0.0).astype(float)


def five_sites(seed=0, losses=()):
    """Return a run over five sites, of which one may vanish."""
    arrays = [tuple(array[part] for array in records()) for part in split(N, 5, np.random.default_rng(1))]
    options = {"may_vanish": 1, "n_records": N, "first_seed": LARGEST_SEED * seed}
    return over_sites(LOGISTIC, plan_of(LOGISTIC), arrays, losses=losses, **options)


def words_of_the_server(line, first_seed):
    """Return what the server can make of the vectors, words that are independent and uniform in theory.

    As they come; without the own masks, which it opens, of all sites but the last, as their sum is known; the
    differences of these between one pass and the next; and the sums of all sites, before they are opened.
    """
    vectors = line.vectors()
    abouts = {
        asked.fields["index"]: asked_of_pass(*(asked.fields[name] for name in ("index", "alive", "query")))
        for _, asked, _ in line.seen
        if asked.kind == "pass"
    }
    bare = {}
    for (index, place), vector in vectors.items():
        if place < line.n_sites - 1:
            seed = masks.SiteKeys(key_of(first_seed + place)).own_seed(index)
            bare[index, place] = vector - masks.own_mask(seed, abouts[index], vector.size)
    pairs = [(bare[index, place], bare.get((index + 1, place))) for index, place in bare]
    passes = {index for index, _ in vectors}
    sums = [
        np.sum([vector for (own, _), vector in vectors.items() if own == index], axis=0, dtype=np.uint64)
        for index in passes
    ]
    return {
        "vectors": np.concatenate(list(vectors.values())),
        "without own masks": np.concatenate(list(bare.values())),
        "differences of passes": np.concatenate([b - a for a, b in pairs if b is not None and a.size == b.size]),
        "sums before they are opened": np.concatenate(sums),
    }


def p_values(words):
    """Return the p-values of uniformity: the upper half of each of the eight bytes, and every bit."""
    octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    found = [stats.chisquare(np.bincount(octets[:, column] >> 4, minlength=16)).pvalue for column in range(8)]
    ones = np.unpackbits(octets, axis=1).sum(axis=0)
    found += [stats.binomtest(int(count), len(words), 0.5).pvalue for count in ones]
    return np.array(found)


def is_uniform(seeds):
    """Return by name whether a view looks uniform; wrong once in 1e6 runs each, by Bonferroni over all p-values."""
    found = []
    for seed in seeds:
        _, line, _ = five_sites(seed)
        words = words_of_the_server(line, LARGEST_SEED * seed)
        found.append({name: p_values(each).min() for name, each in words.items()})
    return {name: min(each[name] for each in found) > 1.0 / (WRONG_ONCE_IN * 72 * len(found)) for name in found[0]}


def opened_without_arithmetic(original):
    """Return sessions whose sums are cut off, so that a run with broken masks reaches its end."""

    def opened(self, *arguments):
        session = original(self, *arguments)
        real = session.sum
        session.sum = lambda *asked: np.clip(real(*asked), -(2**20), 2**20)
        return session

    return opened


def noise_of_a_run(seed):
    """Return noise in units of what the release says: second moments of rows of zeros are noise alone."""
    model = dpi.models.LogisticRegression(40)
    parts = np.array_split(np.arange(N), 5)
    arrays = [(np.zeros((part.size, 40)), np.zeros(part.size)) for part in parts]
    first = LARGEST_SEED * seed
    release, _, _ = over_sites(model, plan_of(model), arrays, may_vanish=1, n_records=N, first_seed=first)
    rows, columns = np.triu_indices(40)
    scale = np.where(rows == columns, 1.0, math.sqrt(0.5))
    return (release.moments[:, rows, columns] / scale / release.moment_stddev[:, None]).ravel()


def noise_is_right(seeds):
    """Return whether the variance of noise is what the release says: chi-square, wrong once in 1e6."""
    z = np.concatenate([noise_of_a_run(seed) for seed in seeds])
    assert z.size >= 1600
    tail = stats.chi2(z.size).cdf(float(z @ z))
    return 0.5 / WRONG_ONCE_IN < tail < 1.0 - 0.5 / WRONG_ONCE_IN


def noise_ratio(seeds):
    """Return measured over stated standard deviation of noise, its standard error, and stated over central."""
    z = np.concatenate([noise_of_a_run(seed) for seed in seeds])
    release, _, _ = five_sites()
    central = dpi.run_newton(LOGISTIC, *records(), plan=plan_of(LOGISTIC), n_records=N)
    over_central = release.moment_stddev[0] / central.moment_stddev[0]
    return float(np.sqrt(np.mean(z * z))), 1.0 / math.sqrt(2.0 * z.size), float(over_central)


def rounded_normal(stddev, reach):
    """Return P(round(stddev z) = j), j = -reach, ..., reach, as integers times 2**-BITS, at 60 digits."""
    with mpmath.workdps(70):
        edges = [mpmath.ncdf((mpmath.mpf(j) - 0.5) / stddev) for j in range(-reach, reach + 2)]
        return [int((b - a) * mpmath.mpf(2) ** BITS) for a, b in itertools.pairwise(edges)]


def convolved(law, count):
    """Return the law of a sum of `count` independent draws: exact products of one large integer for each law."""
    width = 2 * BITS + 64
    total = list(law)
    for _ in range(count - 1):
        one, other = (
            int.from_bytes(b"".join(value.to_bytes(width // 8, "little") for value in item), "little")
            for item in (total, law)
        )
        size = len(total) + len(law) - 1
        product = (one * other).to_bytes(size * width // 8 + 8, "little")
        places = range(0, size * width // 8, width // 8)
        total = [int.from_bytes(product[at : at + width // 8], "little") >> BITS for at in places]
    return total


def exact_delta(law, epsilon):
    """Return the hockey-stick divergence of a law on the integers and its copy moved by SHIFT, at 60 digits."""
    with mpmath.workdps(60):
        factor = mpmath.e ** mpmath.mpf(epsilon)
        moved, there = [0] * SHIFT + law, law + [0] * SHIFT
        differences = (mpmath.mpf(a) - factor * b for a, b in zip(there, moved, strict=True))
        return float(mpmath.fsum(item for item in differences if item > 0) / mpmath.mpf(2) ** BITS)


def law_of_shares(count):
    """Return the exact law of a sum of the smallest noise shares."""
    return convolved(rounded_normal(SHARE, 900), count)


def certified_epsilon(needed, unknown, delta):
    """Return epsilon of a sum with these shares, as it is accounted."""
    event = GaussianEvent(SHARE * math.sqrt(needed) / SHIFT)
    return account(event_with_shares(event, [unknown], needed), delta=delta).epsilon

"""Posteriors from noisy counts: successes in known trials, and categories, both summed over every possible count."""

from dataclasses import dataclass

import numpy as np
from scipy import special

from dpinfer._arrays import FloatArray, IntArray
from dpinfer.inference.posterior.theta import (
    DrawnTheta,
    TabulatedTheta,
    VarianceParts,
    mixture_of_table,
    visible_range,
)
from dpinfer.inference.statistic.noise_laws import NoiseLaw

_LOG_NEGLIGIBLE = 45.0  # exp(-45) is 3e-20: below double precision even summed over all counts
_LOG_VISIBLE = 34.0  # exp(-34) is 2e-15: below double precision
_NEGLIGIBLE = 1e-16  # below double precision
_MOST_COUNTS = 2**18  # memory and time; the docstring states the even subset
_GROUP_WIDTH = 0.05  # in standard deviations: a group's spread adds less than 1e-3 to the variance; tolerance
_GRID = 801  # points of a tabulated density: smooth over some 10 standard deviations
_CHUNK = 256  # rows at once: memory only
_TAIL = 1e-13  # probability outside of the grid
_DRAWS = 8192  # Monte Carlo error 0.8% of a standard deviation (1 / sqrt(2 * 8192))
_SEED = 20_261_122  # a date


def success_weights(
    noisy: float, law: NoiseLaw, *, trials: int, a: float, b: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return counts of successes, (m,), their probabilities given a noisy one, and log P(noisy) but for a constant.

    Under p ~ Beta(a, b) a count s of `trials` has the beta-binomial probability; the noise has `law`.  Counts are all
    with a probability that is not negligible; an even subset if there are more than 2**18.
    """
    low, high = 0.0, float(trials)
    while True:
        step = max(1.0, np.ceil((high - low) / _MOST_COUNTS))
        counts = np.arange(low, high + 0.5, step)
        failures = trials - counts
        log_weight = (
            special.gammaln(a + counts)
            - special.gammaln(counts + 1.0)
            + special.gammaln(b + failures)
            - special.gammaln(failures + 1.0)
            + law.log_probability(noisy - counts)
        )
        first, last = visible_range(log_weight, _LOG_NEGLIGIBLE)
        if step == 1.0 or last - first > counts.size // 4:
            weight = np.exp(log_weight[first : last + 1] - log_weight.max())
            evidence = log_weight.max() + np.log(step * weight.sum())
            evidence += special.gammaln(trials + 1.0) - special.gammaln(a + b + trials)
            return counts[first : last + 1], weight / weight.sum(), float(evidence)
        low, high = counts[first], counts[last]


def success_theta(
    noisy: float,  # released count, an integer, possibly outside 0 ... trials
    law: NoiseLaw,  # of the noise in it
    *,
    # number of trials of all records together, public; or numbers that are alike likely, (m,), a repeated one twice
    trials: IntArray | int,
    # a, b: of the prior Beta(a, b)
    a: float,
    b: float,
) -> TabulatedTheta:
    """Return the posterior of theta = logit(p): Beta(a + s, b + trials - s) averaged over counts s, and trials."""
    numbers, repeats = np.unique(trials, return_counts=True)
    weighed = [success_weights(noisy, law, trials=int(number), a=a, b=b) for number in numbers]
    log_share = np.log(repeats) + np.array([evidence for _, _, evidence in weighed])
    share = np.exp(log_share - log_share.max())
    weights, firsts, seconds = [], [], []
    for number, own, (counts, weight, _) in zip(numbers, share / share.sum(), weighed, strict=True):
        centre, merged = _grouped(counts, weight, trials=int(number), a=a, b=b)
        weights.append(own * merged)
        firsts.append(a + centre)
        seconds.append(b + number - centre)
    weight, first, second = (np.concatenate(parts) for parts in (weights, firsts, seconds))
    visible = weight > _NEGLIGIBLE
    weight, first, second = weight[visible] / weight[visible].sum(), first[visible], second[visible]
    table = mixture_of_table(*logit_beta_mixture(weight, first, second))
    return TabulatedTheta(table, _parts(weight, first[:, None], second[:, None]))


def _grouped(
    counts: FloatArray, weight: FloatArray, *, trials: int, a: float, b: float
) -> tuple[FloatArray, FloatArray]:
    """Merge neighbouring counts into groups far narrower than the spread of p at a known count."""
    spread = np.sqrt((a + counts) * (b + trials - counts) / (a + b + trials))
    width = np.maximum(1.0, _GROUP_WIDTH * spread / max(float(counts[-1] - counts[0]) / max(counts.size - 1, 1), 1.0))
    group = np.floor(np.cumsum(1.0 / width) - 1.0 / width + 1e-9)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(group) > 0.0)))
    merged = np.add.reduceat(weight, starts)
    centre = np.add.reduceat(weight * counts, starts) / np.maximum(merged, 1e-300)
    visible = merged > _NEGLIGIBLE
    return centre[visible], merged[visible] / merged[visible].sum()


def logit_beta_mixture(weight: FloatArray, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return an even grid and the log density there of logit(p), p a mixture of Beta(first, second).

    `weight`, `first` and `second` (m,) float64: mixture weights, and the shapes of the betas, positive.
    """
    low = _log_odds(special.betaincinv(first, second, _TAIL)).min()
    high = -_log_odds(special.betaincinv(second, first, _TAIL)).min()
    for _ in range(2):
        grid = np.linspace(low, high, _GRID)
        log_density = _log_mixture(grid, weight, first, second)
        low, high = grid[list(visible_range(log_density, _LOG_VISIBLE))]
    return grid, log_density


def _log_odds(probability: FloatArray) -> FloatArray:
    """Return logit(probability) of small probabilities."""
    return np.log(np.maximum(probability, np.finfo(float).tiny)) - np.log1p(-np.minimum(probability, 1.0 - 1e-16))


def _log_mixture(grid: FloatArray, weight: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    constant = np.log(np.maximum(weight, 1e-300)) - special.betaln(first, second)
    left, right = -np.logaddexp(0.0, -grid), -np.logaddexp(0.0, grid)
    total = np.full(grid.size, -np.inf)
    for start in range(0, weight.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        terms = constant[part, None] + np.outer(first[part], left) + np.outer(second[part], right)
        total = np.logaddexp(total, special.logsumexp(terms, axis=0))
    return total


def _parts(weight: FloatArray, first: FloatArray, second: FloatArray) -> VarianceParts:
    """Return the variance of logits of betas (m, n) with weights (m,): within a count (the data's), and between."""
    mean = special.digamma(first) - special.digamma(second)
    within = weight @ (special.polygamma(1, first) + special.polygamma(1, second))
    between = weight @ (mean - weight @ mean) ** 2
    return VarianceParts(within, between, np.zeros_like(between))


@dataclass(frozen=True)
class CategoryCounts:
    """The posterior of the counts of M categories that sum to a public N, given noisy ones: exact draws.

    With p ~ Dirichlet(alpha) the counts n have probability proportional to the product of
    f_j(n_j) = Gamma(alpha_j + n_j) / n_j! P(noisy_j - n_j) over all n that sum to N: a chain in the remainder of
    the later categories, whose messages are convolutions.
    """

    noisy: FloatArray  # (M,) float64: released counts, integers
    law: NoiseLaw  # of the noise in each
    n_records: int
    concentration: FloatArray  # (M,) float64

    def draw(self, size: int, rng: np.random.Generator) -> IntArray:
        """Return draws of the counts, (size, M), each summing to `n_records`."""
        starts, factors = self._factors()
        lows, messages = _messages(starts, factors)
        counts = np.empty((size, self.noisy.size), dtype=np.int64)
        remaining = np.full(size, self.n_records, dtype=np.int64)
        for j in range(self.noisy.size - 1):
            uniform = rng.random(size)
            for total in np.unique(remaining):
                rows = remaining == total
                places = np.arange(factors[j].size) + starts[j]
                rest = total - places - lows[j + 1]
                inside = (rest >= 0) & (rest < messages[j + 1].size)
                weight = np.where(inside, factors[j] * messages[j + 1][np.where(inside, rest, 0)], 0.0)
                table = np.cumsum(weight)
                chosen = np.searchsorted(table, uniform[rows] * table[-1], side="right")
                counts[rows, j] = places[np.minimum(chosen, places.size - 1)]
            remaining = remaining - counts[:, j]
        counts[:, -1] = remaining
        return counts

    def _factors(self) -> tuple[list[int], list[FloatArray]]:
        """Return where each category's counts start, and f_j tilted so that the expected sum is near N."""
        tables = []
        reach = self.law.reach(_LOG_NEGLIGIBLE)
        # Beyond, Laplace noise has the same likelihood for every count, and no other noise reaches it.
        nearest = np.clip(self.noisy, -8.0 * reach, self.n_records + 8.0 * reach)
        # Room for the other categories' noise too, which the sum's constraint may push into one of them.
        reach += abs(float(nearest.sum()) - self.n_records)
        for noisy, alpha in zip(nearest, self.concentration, strict=True):
            low = int(np.clip(np.floor(noisy - reach), 0, self.n_records))
            high = int(np.clip(np.ceil(noisy + reach), low, self.n_records))
            counts = np.arange(low, high + 1, dtype=np.float64)
            log_factor = special.gammaln(alpha + counts) - special.gammaln(counts + 1.0)
            tables.append((low, counts, log_factor + self.law.log_probability(noisy - counts)))

        def tilted(tilt: float) -> list[FloatArray]:
            scores = [log_factor + tilt * (counts - counts.mean()) for _, counts, log_factor in tables]
            return [np.exp(score - score.max()) / np.exp(score - score.max()).sum() for score in scores]

        def excess(tilt: float) -> float:
            means = (weight @ counts for weight, (_, counts, _) in zip(tilted(tilt), tables, strict=True))
            return float(sum(means)) - self.n_records

        from scipy import optimize  # slow to import

        bound = 1.0
        while bound < 1e12 and excess(-bound) * excess(bound) > 0.0:
            bound *= 4.0
        tilt = optimize.brentq(excess, -bound, bound, xtol=1e-10) if excess(-bound) * excess(bound) < 0.0 else 0.0
        return [low for low, _, _ in tables], tilted(tilt)


def _messages(starts: list[int], factors: list[FloatArray]) -> tuple[list[int], list[FloatArray]]:
    """Return, from each category on, the law of the sum of the counts of it and of the later ones: start and table."""
    from scipy import signal  # half a second to import, so only if needed

    lows, messages = [starts[-1]], [factors[-1]]
    for start, factor in zip(starts[-2::-1], factors[-2::-1], strict=True):
        message = np.maximum(signal.fftconvolve(factor, messages[-1]), 0.0)
        visible = np.flatnonzero(message > message.max() * _NEGLIGIBLE)
        low = int(visible[0])
        messages.append(message[low : int(visible[-1]) + 1] / message.max())
        lows.append(start + lows[-1] + low)
    return lows[::-1], messages[::-1]


def categorical_theta(
    noisy: FloatArray,  # (M,) float64
    law: NoiseLaw,  # of the noise in each count
    *,
    n_records: int,  # public; the sum of the counts
    concentration: FloatArray,  # (M,) float64: of the Dirichlet prior
    sticks: bool,  # whether theta are the logits of stick-breaking shares; else log p_j - log p_M
) -> DrawnTheta:
    """Return the posterior of theta given noisy counts of all M categories: 8192 independent draws of a fixed seed."""
    rng = np.random.default_rng(_SEED)
    shapes = concentration + CategoryCounts(noisy, law, n_records, concentration).draw(_DRAWS, rng)
    first = shapes[:, :-1]
    later = np.cumsum(shapes[:, ::-1], axis=1)[:, ::-1][:, 1:]
    second = later if sticks else np.repeat(shapes[:, -1:], first.shape[1], axis=1)
    # log of a gamma: a small shape has most of its draws below the smallest number, but not their logarithms.
    logs = np.log(rng.standard_gamma(shapes + 1.0)) + np.log(rng.random(shapes.shape)) / shapes
    rest = np.logaddexp.accumulate(logs[:, ::-1], axis=1)[:, ::-1][:, 1:] if sticks else logs[:, -1:]
    parts = _parts(np.full(_DRAWS, 1.0 / _DRAWS), first, second)
    return DrawnTheta(np.asarray(logs[:, :-1] - rest), np.zeros(first.shape), None, parts)

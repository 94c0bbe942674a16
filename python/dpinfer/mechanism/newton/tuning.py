"""Chosen numbers of private Newton runs: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass
from typing import TypeAlias

Shares: TypeAlias = tuple[tuple[float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of a regression's run for the model's weights."""

    bound: float = 1.3  # B**2 over the expected trace of the whitened second moments; 1 to 2; Scope
    # geometry, sloped_geometry: shares of the rounds of second moments by the least noise multiplier times weights over
    # records that they are for, with and without an unknown scale; 0.05 to 0.5 in all; Scope
    geometry: Shares = (
        (0.03, (0.03, 0.05, 0.08, 0.12, 0.22)),
        (0.015, (0.03, 0.03, 0.05, 0.08, 0.08, 0.16)),
        (0.004, (0.03, 0.03, 0.04, 0.04, 0.06)),
        (0.0, (0.02, 0.03, 0.04, 0.04)),
    )
    sloped_geometry: Shares = ((0.004, (0.02, 0.03, 0.04, 0.06)), (0.0, (0.01, 0.02, 0.03, 0.04)))
    # white: of the mean eigenvalue, to the least less its floor: no other round; 0.2 to 0.8; Scope, as the shares of
    # `geometry` from 0.0 to 0.03, by predicted widths and then by runs
    white: float = 0.7
    after_means: tuple[float, ...] = (0.04, 0.06)  # the same after a pass for means; 0.05 to 0.2 in all; Scope
    # localise, sloped_localise: shares of the steps toward the zero; 0.05 to 0.3 in all; Scope
    localise: tuple[float, ...] = (0.01, 0.01, 0.01, 0.012, 0.014, 0.016, 0.02)
    sloped_localise: tuple[float, ...] = (0.02, 0.03, 0.04, 0.05)
    # measure, sloped_measure: how the measurements divide what is left; 0.1 to 0.8; Scope
    measure: tuple[float, ...] = (0.2, 0.3, 0.5)
    sloped_measure: tuple[float, ...] = (0.21, 0.33, 0.46)
    slope: float = 0.2  # share of the matrix of slopes; 0.05 to 0.3; Scope
    # scale_noise, least_scale, most_scale: noise in a share of the records that the pass of octaves aims at, and ends
    # of its share; 0.02 to 0.1; Scope
    scale_noise: float = 0.05
    least_scale: float = 0.01
    most_scale: float = 0.06
    counted_scale: float = 0.02  # the share of that pass for counts; 0.01 to 0.05; Scope
    # means_noise, least_means, most_means: relative noise of means that their pass aims at, and ends of its share; 0.05
    # to 0.2; Scope
    means_noise: float = 0.1
    least_means: float = 0.01
    most_means: float = 0.03
    octaves: int = 6  # on either side of `response_scale`, a factor of 64; 4 to 10; not tuned: wide
    scale_weight: float = 0.12  # squared norm of the scale score over that of the location score; 0.05 to 0.3; Scope
    scale_unit: float = 1.6  # the scale score is min(abs(r) / (scale_unit spread), 1) less its mean; 1 to 2; Scope
    # clip_decay, least_clip, largest_clip: while it localises, a clip is taken for a spread of at least clip_decay**k
    # times the first one, itself taken for at most largest_clip times the present one, and is at least least_clip of
    # it; 0 to 0.9, 0 to 1, 4 to 16; Scope, rare categories (tests/unit/mechanism/test_newton_rare_records.py), and
    # `largest_clip` responses far from zero (bench/coverage/newton_scope.py ablate --far)
    clip_decay: float = 0.8
    least_clip: float = 0.7
    largest_clip: float = 8.0
    # error granted to a scale score while it localises; 0 to 0.1; Scope, and rare categories (as above)
    scale_error: float = 0.02
    # log_scale_shift, log_scale_stddev: the prior of log sigma while it localises; -2 to 0, 1 to 3; not tuned: that of
    # the posterior
    log_scale_shift: float = -1.0
    log_scale_stddev: float = 2.0
    score_error: float = 0.2  # relative error of scores far from their zero, of the population's too; 0 to 0.5; Scope
    # error of the predictor of counts at the start; 0 to 0.5; by hand, on counts of 3000, whose runs do not arrive
    # without it (tests/unit/mechanism/test_newton.py)
    misplaced: float = 0.15
    steepest: float = 2.5  # slopes steeper than any so many sd about the predictor's mean are cut off; 2 to 4; Scope


@dataclass(frozen=True)
class PopulationTuning:
    """Chosen numbers of a run for the population's coefficients; `scale_unit` and others are those of `Tuning`."""

    # shares of matrices by the least noise multiplier times weights over records that they are for; where the ratio is
    # large noise hides directions, along which intervals are many times as wide: matrices have most of the budget; 0.2
    # to 0.7 in all; Responses, by the mean logarithm of interval scores
    matrices: tuple[tuple[float, dict[str, tuple[float, ...]]], ...] = (
        (0.03, {"geometry": (0.02, 0.03, 0.04, 0.06, 0.08), "bread": (0.4,), "sizes": (0.03,), "meat": (0.03,)}),
        (0.014, {"geometry": (0.03, 0.05, 0.08, 0.12), "bread": (0.22,), "sizes": (0.03,), "meat": (0.05,)}),
        (0.004, {"geometry": (0.02, 0.03, 0.05), "bread": (0.12,), "sizes": (0.03,), "meat": (0.07,)}),
        (1e-4, {"geometry": (0.02, 0.03, 0.04), "bread": (0.08,), "sizes": (0.04,), "meat": (0.09,)}),
        (0.0, {"geometry": (0.02, 0.03, 0.04), "bread": (0.12,), "sizes": (0.04,), "meat": (0.45,)}),
    )
    # lengths, localise: shares of records' lengths, and of the steps toward the zero; 0.005 to 0.1 in all; Responses
    lengths: tuple[float, ...] = (0.012,)
    localise: tuple[float, ...] = (0.0135,) * 4
    # own_localise: of a model as code: scores and matrices, which find the coordinates as well; 0.1 to 0.4 in all;
    # Models: two thirds of `OwnTuning.localise`
    own_localise: tuple[float, ...] = (0.024,) * 9
    # clusters, strata: shares of the sizes of clusters' sums, and of scores by stratum; 0.02 to 0.1; by hand: as sizes
    clusters: float = 0.04
    strata: float = 0.04
    measure: tuple[float, ...] = (0.1, 0.2, 0.7)  # of what is left, to each measurement; 0.1 to 0.8; Responses
    # found: without a scale: sampling errors within which steps begin, so that noise moves them no farther; 2 to 8; by
    # hand
    found: float = 4.0
    # seen: noise of the bread over what is left of it along a rare level, up to which its bound is longer; 0.1 to 0.5;
    # by hand, on exposures of 1 to 2% of 8000
    seen: float = 0.25
    # negligible: noise of a bread that keeps all records that are seen, below which nothing is cut; 0.01 to 0.05; by
    # hand
    negligible: float = 0.02
    # frame, approach: without a scale: share of the bread's part that finds the coordinates, before it is measured near
    # the zero; and shares of what is left to the steps there and, in turn, breads between them, by the least noise
    # multiplier times weights over records that they are for; 0.2 to 0.6, 0.02 to 0.2; by hand
    frame: float = 0.35
    approach: Shares = (
        (0.002, (0.1,)),
        (0.0003, (0.04, 0.02, 0.06)),
        (1e-4, (*(0.02, 0.015) * 3, 0.03)),
        (0.0, (*(0.02, 0.015) * 5, 0.3)),
    )
    # rare, stretched, short, ordinary: a pass of share `rare` finds the stretched directions that few records make up.
    # A direction is stretched if features vary there by less than 1 / stretched of their declared size.  Few records
    # make it up if records, shortened to the square `short`, have less than `ordinary` of normal features' moment along
    # it, by two standard deviations of the noise; 0.003 to 0.02, 2 to 10, 1 to 3, 0.2 to 0.5; by hand: Adult with 25
    # coefficients, and half of 40 simulated tables with rare categories; no seen cell of Responses has such a one
    rare: float = 0.006
    stretched: float = 4.0
    short: float = 3.0
    ordinary: float = 0.3
    clip: float = 3.0  # of a score while it localises, in units of what is usual; 2 to 5; by hand
    scale_weight: float = 0.25  # squared norm of the scale score over that of the score; 0.05 to 0.5; by hand
    # least_step, largest_step, explained: of the residuals' scale: ends of its change from one pass to the next, and
    # the least part that a step leaves; 0.01 to 0.1, 1.5 to 4, 0.03 to 0.3; by hand
    least_step: float = 0.03
    largest_step: float = 2.0
    explained: float = 0.1
    counted: float = 0.5  # of a row in its stratum over its score's norm; 0.2 to 1; by hand: few hundred rows are seen


@dataclass(frozen=True)
class OwnTuning:
    """Chosen numbers of a run of a model as code."""

    # localise, slope, measure: shares of the passes: scores and matrices together while it localises; 0.2 to 0.5, 0.05
    # to 0.2, 0.5 to 0.7 in all; Models
    localise: tuple[float, ...] = (0.32 / 9.0,) * 9
    slope: tuple[float, ...] = (0.08,)
    measure: tuple[float, ...] = (0.15,) * 4
    score_share: float = 0.625  # of a localising pass, to the score; the rest is the matrix's; 0.4 to 0.8; Models
    tally_share: float = 0.02  # of a measurement: variance of scores, number of records; 0.01 to 0.05; Models
    # trust, short_trust: longest steps in whitened units: to the zero, and between measurements; 0.2 to 2; Models
    trust: float = 1.0
    short_trust: float = 0.3
    model_error: float = 0.35  # of a step's length: error of the zero of a linearised score; 0.2 to 0.5; Models
    surprise: float = 4.0  # squared length of a step over a correct filter's, beyond which it forgets; 2 to 10; Models
    farthest_reach: float = 3.0  # length of a step that is made longer, in whitened units; 2 to 5; Models
    farthest: float = 10.0  # in prior standard deviations, an end of the parameters; 5 to 20; not tuned: wide
    floor: float = 0.1  # least eigenvalue of a slope, over the norm of its noise; 0.05 to 0.5; Models
    # weight_level, clip_levels, centres: quantile of made-up records' lengths, of which longer ones weigh less;
    # quantiles of made-up scores that are tried as clips; largest norms of a score's centre over the clip, that are
    # tried; 0.9 to 1, 0.5 to 1, 0.25 to 1; Models
    weight_level: float = 0.95
    clip_levels: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
    centres: tuple[float, ...] = (0.25, 0.5, 1.0)
    # draws, person_draws: of made-up responses for a record's weight, and as many for its centre; of a person's, all of
    # which serve for both: widths that six models predict are at most 1.7% above those with 16 at 20 000 persons, and
    # 6% at 1000 with noise of 5; 4 to 32, 2 to 16; by hand
    draws: int = 8
    person_draws: int = 4
    # spare, negligible: nothing is clipped, with bounds `spare` times the longest made-up score, where this noise is
    # below `negligible` of what records leave open; 1.2 to 2, 0.02 to 0.1; Models
    spare: float = 1.5
    negligible: float = 0.05
    longer: tuple[float, ...] = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # factors of a step, tried in turn; 1 to 8; Models
    shifted: float = 3.0  # sd from where on a simulated shift counts; 2 to 4; by hand: one in 370 normal ones
    # localise_count, slope_count, measure_count: without a sampler, parts of passes that count norms; 0.02 to 0.2;
    # Models (--bare)
    localise_count: float = 0.1
    slope_count: float = 0.1
    measure_count: float = 0.05
    # start_level, clipped: quantile of made-up scores at which the first clip is; share of the scores above a clip, as
    # far as their counts tell; 0.8 to 0.95, 0.002 to 0.05; Models (--bare)
    start_level: float = 0.9
    clipped: float = 0.01
    # least_norm, slope_noise: Frobenius norm of a record's slope: at least so much of the expected trace, and as much
    # more, up to the squared clip, as leaves the noise of an entry at this share of the expected eigenvalue; 1 to 2,
    # 0.05 to 0.3; Models (--bare)
    least_norm: float = 1.3
    slope_noise: float = 0.15


TUNING = Tuning()
POPULATION = PopulationTuning()
OWN = OwnTuning()

"""Chosen numbers of private Newton posteriors: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of the posterior."""

    # scores, near: the posterior reads the last ones, and those whose predictor was off by less than so many noise
    # variances; 1 to all, 0 to 10; Scope, and responses far from zero (derivations/private-newton.md): with all scores
    # true models were warned of
    scores: int = 3
    near: float = 3.0
    # error of a step's score over its mean, where a scale is learned, and of the population's, which is clipped far
    # from its zero; 0 to 0.5; not tuned: the run's own
    step_error: float = 0.2
    slope_error: float = 0.05  # relative error of the slope of a score, which is that of a model; 0 to 0.2; Scope
    # the same, times the share of a residual's variance that is error of the predictor; 0 to 0.5; Scope,
    # false warnings with responses far from zero (ablate --far)
    slope_error_of_excess: float = 0.15
    scale_error_of_excess: float = 0.1  # error of a scale score, times that share; 0 to 0.5; Scope
    records_error: float = 0.1  # sd of the public number of records over the true one; 0 to 0.3; Scope
    # relative error of the records' mean weight, that of normal features; 0 to 0.2; Scope, warnings (ablate --far)
    weight_error: float = 0.05
    # log_scale_shift, log_scale_stddev: the weak prior of log sigma: its mean less the log of the responses' spread,
    # and its standard deviation, 95% of it over a factor of 3000; -2 to 0, 1 to 3; not tuned: wide
    log_scale_shift: float = -1.0
    log_scale_stddev: float = 2.0
    # least_spread, largest_spread: ends of the spread of entries over the mean eigenvalue; 0.001 to 2; not tuned: wide
    least_spread: float = 0.003
    largest_spread: float = 1.2
    # least_centre, largest_centre: ends of the centre in the same units; 0.02 to 10; not tuned: wide
    least_centre: float = 0.05
    largest_centre: float = 5.0
    # the second moments are held positive definite where draws are worth at least this share of them; 0.02 to 0.2;
    # Scope, seen half: no release has a share between 0.03 and 0.09, and below far more draws would be needed
    definite: float = 0.05
    # weights, of more of which the posterior is taken for normal; 200 to 400; by hand, for seconds
    # (bench/speed/newton_posterior_speed.py)
    many_weights: int = 300
    rough: float = 1.0  # error that is stated then where directions are hidden, in posterior sd; 0.5 to 2; by hand
    # errors are drawn, not taken for normal, where what bends the scores moves weights by so many posterior standard
    # deviations, and where a direction is hidden; 0.005 to 0.02; Scope, seen half, eigenvalues of 1.5 to 40 times the
    # norm of noise: of 33 releases below it quantiles of the two differ by at most 0.04, of 30 above it by up to 0.58
    near_hidden: float = 0.01
    # nodes_apart, offsets, lengths_apart, rounds, flat, resolved: of proposals of errors: every k-th node of the
    # spread t, k two thirds of the root of d, and at most so many; nodes of offsets; distance of the lengths' logs,
    # at first and then; rounds, until `resolved` nodes of either are within `flat` of the largest log mass; 3 to
    # 10, 4 to 12, 0.5 to 2, 4 to 12, 4 to 10, 3 to 8; Scope, for draws in a second: with fewer nodes of t, or
    # farther apart, quantiles are off
    nodes_apart: int = 6
    offsets: int = 6
    lengths_apart: tuple[float, float] = (1.6, 1.0)
    rounds: int = 8
    flat: float = 6.0
    resolved: int = 4
    # least distance of the logs of lengths of two laws; 0.1 to 0.5; Scope, half of the seen cells: draws are worth
    # as much as with laws as near as sqrt(2 / d), which cost seconds with many weights
    laws_apart: float = 0.25
    error: float = 0.05  # largest error of a quantile, in posterior sd, with nothing said; 0.02 to 0.1; not tuned
    aim: float = 0.045  # the error at which drawing ends: below `error`, as it is estimated; 0.02 to 0.05; not tuned
    fine: float = 0.02  # the same while draws cost little: few are then above `error`; 0.01 to 0.05; not tuned
    unresolved: float = 2.0  # hidden directions: eigenvalue over the norm of noise; 1 to 3; Warnings
    # prior_level, fit_level, doubt: p-values below which weights are larger than their prior expects, scores contradict
    # each other, the verdict says that the model is in doubt; 0.001 to 0.05; Warnings: a release that fits is doubted
    # in fewer than 2%
    prior_level: float = 0.005
    fit_level: float = 0.003
    doubt: float = 0.05
    # share by which the number of records must differ from the declared one to be warned of; 0.02 to 0.5; by hand:
    # public numbers are rounded, and some rows lack a value
    records_apart: float = 0.2
    # relative error of the records' mean weight where it tells their number; 0 to 0.2; by hand: uniform, normal and
    # binary features (bench/coverage/used_records.py)
    constant_weight: float = 0.1
    sure: float = 3.0  # noisy shares count beyond so many standard deviations of their noise; 2 to 4; Warnings
    # beyond, below: share of the responses larger, smaller than the declared scale allows for; 0 to 0.5; Warnings
    beyond: float = 0.02
    below: float = 0.2
    # where a fifth of the responses of a smooth law lies below an edge, 68% lie below so many times as much; 4 to 8;
    # not tuned: normal and Cauchy laws
    spread_below: float = 6.0
    # far, tail: share `tail` of the responses beyond `far` times their 68% point; 2 to 8 and 0.005 to 0.1; Warnings
    far: float = 4.0
    tail: float = 0.02
    # saturated, margin: share of the largest trace that second moments can have in the declared units, and what it
    # exceeds that of features as declared by; 0.8 to 1 and 0 to 0.2; Warnings
    saturated: float = 0.89
    margin: float = 0.07
    # contradicted, wider, expected, widest: with a p-value of the weights' size below `contradicted` the population's
    # prior gets `wider` times as wide until it is above `expected`, at most `widest` times; 0.01 to 0.1, 4 to 64, 0.9
    # to 0.999, a million to a billion; Responses, `widest` by a table of nearly equal columns
    contradicted: float = 0.05
    wider: float = 16.0
    expected: float = 0.99
    widest: float = 16.0**6
    # determined: of the population's prior: variance of a weight over its prior's from where on the prior counts half;
    # 0.02 to 0.2; by hand: levels of 400 ones in 400 records have their prior, and likelihoods of three events have not
    determined: float = 0.1
    # few_events, prior_counts: of a level of a yes/no response or of counts: events that a variance is worth, fewer of
    # which are told beside its row, where sampling alone or with the prior's part makes it so; 5 to 15, 0.05 to 0.3; by
    # hand: levels that differ from one with three events
    few_events: float = 8.0
    prior_counts: float = 0.1
    # pair_far, pair_ridge: a pair of effects of persons' binary responses, further than so many standard deviations
    # from zero, has a normal likelihood with so many times less ridge; 2 to 8 and 1 to 30; People (agree)
    pair_far: float = 4.0
    pair_ridge: float = 12.0
    level: float = 0.01  # of the check of the population's model; 0.001 to 0.05; not tuned: Responses shows it
    # few: directions with the information of at most so many records are left out of the check of the population's
    # model, as bread and meat differ there by chance, and are flat where noise hides them; 5 to 50; by hand, on
    # tables of tests/limit/white.py with seed 7
    few: float = 20.0
    independent: float = 0.5  # share of the entries of a matrix that vary by themselves; 0.3 to 1; Responses
    shares_error: float = 0.7  # relative, of a variance that is made of shares of sizes; 0.3 to 1; Responses
    biased: float = 1.5  # shift by the clip that is warned of, in sampling errors; 1 to 3; Responses: few such cells
    # long, lost, dominated: of the check of features: kurtosis of the records' lengths over that of normal features,
    # share of their square that the bread's bound takes, and eigenvalue of the bread in coordinates that whiten
    # shortened features; 2 to 10, 0.05 to 0.3, 2 to 5; Responses
    long: float = 4.0
    lost: float = 0.1
    dominated: float = 3.0
    # seen_stratum, least_stratum: a stratum counts if its number of scores is so many standard deviations of its noise,
    # and at least so much of the mean one; 3 to 10, 0.03 to 0.3; by hand: the sums of smaller ones are mostly noise
    # (bench/coverage/survey.py --strata)
    seen_stratum: float = 6.0
    least_stratum: float = 0.1
    clear: float = 2.0  # sd from where on directions of strata, or own models' shifts, count; 1.5 to 3; not tuned
    # own_saturated, own_beyond: warnings of models as code: way from the expected slope to the largest possible one,
    # share of the first scores that are longer than the largest edge; 0.3 to 0.9, 0.3 to 0.7; Warnings (--model own)
    own_saturated: float = 0.5
    own_beyond: float = 0.5


TUNING = Tuning()

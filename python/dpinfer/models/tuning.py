"""Chosen numbers of runs, posteriors and plans: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of noisy second moments, of noisy shares of records by size, and of clips of gradient traces."""

    least_trace: float = 0.05  # of the expected trace, where noise makes it negative; 0.01 to 0.2; Scope
    least_energy: float = 0.02  # of the noise's, for a matrix that shows no spread of its own; 0 to 0.1; Scope
    floor: float = 0.7  # of sqrt(2 d) errors of an entry, the largest eigenvalue of noise alone; 0.3 to 1; Scope
    relative_floor: float = 5e-4  # of the mean eigenvalue, where there is hardly any noise; 0 to 0.01; Scope
    kept_floor: float = 0.3  # share of the floor that eigenvalues of the matrix are raised by; 0.1 to 1; Scope
    # mean weight of records as long as B in one direction, usual in others; 0.5 to 1; Scope, and rare categories, which
    # otherwise get longer in every round (tests/unit/models/test_whitening.py)
    weighted: float = 0.75
    lost: float = 0.3  # of the predicted matrix: larger deficits are due to weights and not to noise; 0.2 to 0.5; Scope
    # least spread of entries where it is learned from themselves, squared, over the level's square; 0 to 0.01; by hand:
    # a spread of 1%
    least_spread: float = 1e-4
    least_level: float = 0.1  # least eigenvalue, and level, of whitened moments; 0.03 to 0.3; not tuned: a guard
    # least eigenvalue of slopes of models as code, and of a bread, over the mean one; 0.02 to 0.2; by hand, on the
    # models of bench/coverage/any_model.py
    least_slope: float = 0.05
    # sure, alone, far: standard deviations of its noise from where on a share counts beside one that does; alone, or
    # with up to three that follow, less than two octaves beyond; and farther: few records far from the others, as where
    # a response has an upper code.  Noise is taken for such in three of ten thousand histograms of normal errors;
    # intervals are then wider by up to 2 ** (gap / 2); 1.5 to 3, 3 to 5, 4 to 6; by hand: Adult's capital gains, and
    # normal errors (bench/coverage/real_responses.py far)
    sure: float = 2.0
    alone: float = 4.0
    far: float = 4.8
    # near, together: such intervals of half an octave: within two octaves, and that follow each other; 2 to 6; by hand
    near: int = 4
    together: tuple[int, ...] = (2, 3, 4)
    # noise of a share that hides sizes; 0.02 to 0.1; Responses: a quarter of the fullest interval of normal scores
    hidden_sizes: float = 0.05
    hidden: tuple[float, ...] = (0.4, 0.2)  # of records, in the next two intervals; 0.1 to 0.5; Responses
    square_error: float = 0.1  # relative, of a mean square: sizes differ within half an octave; 0 to 0.2; not tuned
    first_clip: float = 0.5  # of the first score over the others: shows a tail's direction; 0.3 to 0.7; Responses
    factor_spread: float = 2.0  # sd of the binary logarithm of the clipped part's prior variance; 1 to 4; Responses
    # alike, one_way: correlation of the mean directions of the parts that two clips take off, and share of the clipped
    # part of curvatures that points one way; 0.5 to 1; by hand
    alike: float = 0.8
    one_way: float = 0.5
    # alignment: length of the sum of what a clip takes off scores over the sum of their lengths; 0.1 to 0.5; by hand
    alignment: float = 0.3
    # no_tail: error of scores with one clip over that with a shorter first one, below which they have one: noise is so
    # small that nothing is clipped; 0.3 to 0.8; by hand
    no_tail: float = 0.5
    # misfit, least_weighted: of yes/no responses, whose long scores have less weight: share of what weights take that
    # does not cancel between both responses, as the model is not true; and least eigenvalue of a bread with weights,
    # over the mean one; 0.02 to 0.3, 0.01 to 0.1; by hand, on the zeros of eight binary tables
    misfit: float = 0.1
    least_weighted: float = 0.02
    # prior_quantile, clip_quantile, pivotal_quantile: of norms of simulated gradients: over draws of the prior, at
    # which a gradient trace clips them, and where gradients are pivotal; 0.9 to 1; Recipe
    prior_quantile: float = 0.99
    clip_quantile: float = 0.985
    pivotal_quantile: float = 0.93
    # an unstable recursion's distance may grow so much in a run; 1000 to 1e9; not tuned: a few steps
    # that are too long do no harm
    growth: float = 1e6


@dataclass(frozen=True)
class FullRankTuning:
    """Chosen numbers of the full-rank normal guide of a gradient trace."""

    clip_level: float = 0.98  # clipping norm, a quantile of simulated norms; 0.9 to 1; Curved
    mixing_times: float = 10.0  # of the steps: rho = min(1/2, 10/T, 1/nu); 5 to 20; Curved
    largest_rate: float = 0.5  # of rho; 0.1 to 1; by hand: a natural step of 1 would be a full Newton step
    # longest, longest_turn: step of m in standard deviations, and of K; 0.3 to 2, 0.1 to 0.5; by hand: L keeps a
    # positive diagonal
    longest: float = 1.0
    longest_turn: float = 0.3
    turn_variance: float = 0.2  # of K's rate; 0.05 to 0.5; by hand: stationary variances of K add up to about a tenth


@dataclass(frozen=True)
class PriorTuning:
    """Chosen priors of formulas and of persons; the specification of a release's model has them."""

    on_link: float = 2.5  # scale of effects on a link; 1 to 10; not tuned: brms's default (Buerkner 2017)
    over_noise: float = 10.0  # of effects of gaussian responses, over the noise's sd; 2.5 to 100; not tuned: wide
    # log_sigma, log_size: mean and sd of the log of a scale, the response's public spread being 1, and of a size, 90%
    # of it between 0.23 and 32; -2 to 2, 1 to 3; not tuned: wide
    log_sigma: tuple[float, float] = (-0.7, 1.0)
    log_size: tuple[float, float] = (1.0, 1.5)
    # usual_variance, variance_spread: of persons' effects, from where a run begins, and prior sd of log(variance +
    # ridge); 0.1 to 1, 1 to 3; by hand (bench/coverage/people.py)
    usual_variance: float = 0.3
    variance_spread: float = 1.5
    degrees: float = 3.0  # of the half t prior of their sds; 1 to 10; not tuned: brms's default (Gelman 2006)
    # binary_weight, probit_weight, count_weights: what a row says of its effect on the link, at a usual mean, over a
    # gaussian's; of counts it is their mean, between these; 0.05 to 0.25, 0.3 to 0.64, 0.05 to 100; by hand: means of
    # about a fifth (bench/coverage/people.py)
    binary_weight: float = 0.15
    probit_weight: float = 0.5
    count_weights: tuple[float, float] = (0.2, 20.0)


TUNING = Tuning()
PRIORS = PriorTuning()
FULL_RANK = FullRankTuning()

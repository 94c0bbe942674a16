"""What was chosen of the posterior of a private Newton run: every number, its range, and what chose it."""

from dataclasses import dataclass

__all__ = ["TUNING", "Tuning"]


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of the posterior.

    "Scope" is the seen half of the design of bench/coverage/newton_scope.py; its part ``ablate`` prints what coverage,
    width and time are without each.  "Warnings" is the seen half of bench/coverage/newton_warnings.py.

    Parameters
    ----------
    scores : int
        Last scores that the posterior reads, 1 to all.  Scope, and responses far from zero (derivations/
        private-newton.md): with earlier ones true models were warned of.
    step_error : float
        Error of a step's score over its mean, where a scale is learned; 0 to 0.5.  Not tuned: the run's own.
    slope_error : float
        Relative error granted to the slope of a score, which is that of a model; 0 to 0.2.  Scope.
    slope_error_of_excess : float
        The same, times the share of a residual's variance that is error of the predictor; 0 to 0.5.  Scope.
    scale_error_of_excess : float
        Error of a scale score, times that share; 0 to 0.5.  Scope.
    records_error : float
        Standard deviation of the public number of records over the true one; 0 to 0.3.  Scope, whose cells have 10%.
    weight_error : float
        Relative error of the records' mean weight, which is that of normal features; 0 to 0.2.  Scope.
    sampling_share : float
        Share of a score's sampling variance that it does not have in common with the last one's; 0 to 1.  Scope.
    log_scale_shift, log_scale_stddev : float
        The weak prior of log sigma: its mean less the log of the responses' spread, and its standard deviation, 95% of
        it over a factor of 3000.  Not tuned: wide.
    least_spread, largest_spread : float
        Ends of the spread of entries over the mean eigenvalue.  Not tuned: wide.
    least_centre, largest_centre : float
        Ends of the centre in the same units.  Not tuned: wide.
    few : int
        Weights, of more of which all is taken for normal; 40 to 100.  Not tuned: 5 s, and memory; scope has at most 69.
    definite : float
        The second moments are held positive definite where at least this share of draws is left; 0.05 to 0.2.  Scope,
        seen half: no release has a share between 0.07 and 0.13, and below far more draws would be needed.
    rough : float
        The error that is stated then where directions are hidden, in posterior standard deviations.  Scope: 0.57 once.
    near_hidden : float
        Eigenvalues below so many times what hides a direction are sampled, not taken for normal; 1 to 4.  Scope: there
        quantiles of the two differ by more than 5% of a standard deviation.
    error : float
        Largest Monte Carlo error of a quantile, in posterior standard deviations, with nothing said.  Not tuned.
    aim : float
        The error at which drawing ends: below `error`, as it is estimated.  Not tuned.
    fine : float
        The same while draws cost little: a third of `error`, so that few quantiles are off by that.  Not tuned.
    unresolved : float
        A direction is hidden where the eigenvalue is below so many times the norm of noise; 1 to 3.  Warnings.
    prior_level, fit_level, doubt : float
        p-values below which weights are larger than their prior expects, scores contradict each other, the verdict says
        that the model is in doubt; 0.001 to 0.05.  Warnings: a release that fits is doubted in fewer than 2%.
    sure : float
        Noisy shares count beyond so many standard deviations of their noise; 2 to 4.  Warnings.
    beyond, below : float
        Share of the responses larger, smaller than the declared scale allows for; 0 to 0.5.  Warnings.
    spread_below : float
        Where a fifth of the responses of a smooth law lies below an edge, 68% lie below so many times as much: normal
        and Cauchy laws.
    far, tail : float
        Share `tail` of the responses beyond `far` times their 68% point; 2 to 8 and 0.005 to 0.1.  Warnings.
    saturated, margin : float
        Share of the largest trace that second moments can have in the declared units, and what it exceeds that of
        features as declared by; 0.8 to 1 and 0 to 0.2.  Warnings.
    near : float
        A score checks the model where the predictor's error is below so many noise variances; 1 to 10.  Warnings.
    large_on_link : float
        An effect on the scale of a link before anything is known: the default of brms (Buerkner 2017).
    pair_far, pair_ridge : float
        A pair of effects of persons' binary responses, further than so many standard deviations from zero, has a normal
        likelihood with so many times less ridge; 2 to 8 and 1 to 30.  People (bench/coverage/people.py agree).
    """

    scores: int = 3
    step_error: float = 0.2
    slope_error: float = 0.05
    slope_error_of_excess: float = 0.15
    scale_error_of_excess: float = 0.1
    records_error: float = 0.1
    weight_error: float = 0.05
    sampling_share: float = 0.15
    log_scale_shift: float = -1.0
    log_scale_stddev: float = 2.0
    least_spread: float = 0.003
    largest_spread: float = 1.2
    least_centre: float = 0.05
    largest_centre: float = 5.0
    few: int = 70
    definite: float = 0.1
    rough: float = 0.6
    near_hidden: float = 2.0
    error: float = 0.05
    aim: float = 0.045
    fine: float = 0.017
    unresolved: float = 2.0
    prior_level: float = 0.005
    fit_level: float = 0.003
    doubt: float = 0.05
    sure: float = 3.0
    beyond: float = 0.02
    below: float = 0.2
    spread_below: float = 6.0
    far: float = 4.0
    tail: float = 0.02
    saturated: float = 0.89
    margin: float = 0.07
    near: float = 3.0
    large_on_link: float = 2.5
    pair_far: float = 4.0
    pair_ridge: float = 12.0


TUNING = Tuning()

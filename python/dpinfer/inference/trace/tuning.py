"""Chosen numbers of posteriors of traces: meaning; range; script (docs/architecture.md, "Chosen numbers")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of checks, burn-in, priors and simulated posteriors of a trace."""

    level: float = 0.01  # of each test of a trace, over all of its coordinates; 0.001 to 0.05; not tuned: a usual level
    well_identified: float = 3.0  # slopes of fewer standard errors are marked; 2 to 5; by hand: errors of a third
    # noise_ratio, dropped: extra noise, and share of the Hessian's draws that are not positive definite, which a
    # summary remarks; 1.05 to 1.5, 0.2 to 0.8; by hand: remarks and no tests
    noise_ratio: float = 1.1
    dropped: float = 0.5
    # model_burn_in, gram_burn_in, variance_burn_in, fisher_burn_in, simulated_burn_in: shares of the trace that are
    # left out: under the model, of weights of a full Hessian, of noise variances, which settle later, of Fisher-scaled
    # traces, of few steps near the optimum; 0.05 to 0.5; Recipe, the first and the last by hand
    model_burn_in: float = 0.15
    gram_burn_in: float = 0.1
    variance_burn_in: float = 0.5
    fisher_burn_in: float = 0.35
    simulated_burn_in: float = 0.2
    # variance_tolerance, whole_trace: of the slope in the noise variance, which is the public number of records; share
    # of the first steps that even the judgement of excursions leaves out; 0 to 0.1; Recipe
    variance_tolerance: float = 0.02
    whole_trace: float = 0.06
    # optimum_spreads, slope_scores: widths of weak priors: of the optimum in spreads of the positions, of the slope in
    # its own size; 3 to 30, 30 to 300; not tuned: wide (Notes of `coordinate_priors`)
    optimum_spreads: float = 10.0
    slope_scores: float = 100.0
    fewest_draws: float = 10.0  # worth, in draws, below which traces contradict each other; 3 to 30; by hand
    # level_spread, least_spread, least_ratio: of the simulated ratio: its prior around 1, least spread of deviations,
    # so that a release with little noise is not taken as exact, least eigenvalue over its level; 0.1 to 0.5, 0.005 to
    # 0.05, 0.05 to 0.3; Curved
    level_spread: float = 0.25
    least_spread: float = 0.02
    least_ratio: float = 0.15
    # temper, wider, kernel: share of the information that spreads truths (a quarter: twice the posterior's width),
    # factor of their covariance, bandwidth in posterior standard deviations; 0.1 to 0.5, 1 to 2, 0.1 to 0.3; Curved
    temper: float = 0.25
    wider: float = 1.5
    kernel: float = 0.2
    # longest_step, farthest: of the search for the centre: in posterior and prior standard deviations; 1 to 3, 3 to 6;
    # not tuned
    longest_step: float = 1.5
    farthest: float = 4.0


TUNING = Tuning()

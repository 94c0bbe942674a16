"""What was chosen of a private Newton run of a regression: every number, its range, and what chose it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Chosen numbers of a run for the model's weights; those of other targets stand with their phases.

    "Scope" is the seen half of the design of bench/coverage/newton_scope.py; its part ``ablate`` prints what coverage
    and width are without each.  Shares are of the whole budget; measurements get the rest.

    Parameters
    ----------
    bound : float
        B**2 over the expected trace of the whitened second moments; 1 to 2.  Scope.
    geometry, sloped_geometry : tuple of (float, tuple)
        Shares of the rounds of second moments by the least noise multiplier times weights over records that they are
        for, with and without an unknown scale; 0.05 to 0.5 in all.  Scope.
    after_means : tuple of float
        The same after a pass for means; 0.05 to 0.2 in all.  Scope.
    localise, sloped_localise : tuple of float
        Shares of the steps toward the zero; 0.05 to 0.3 in all.  Scope.
    measure, sloped_measure : tuple of float
        How the measurements divide what is left.  Scope.
    slope : float
        Share of the matrix of slopes; 0.05 to 0.3.  Scope.
    unresolved : float
        A matrix gets a small share if the whole budget would leave it noise of a larger norm; 0.3 to 1.  Scope.
    hidden_geometry, hidden_localise, hidden_slope : tuple of float
        The shares then.  Scope.
    scale_noise, least_scale, most_scale : float
        Noise in a share of the records that the pass of octaves aims at, and ends of its share; 0.02 to 0.1.  Scope.
    counted_scale : float
        The share of that pass for counts; 0.01 to 0.05.  Scope.
    means_noise, least_means, most_means : float
        Relative noise of means that their pass aims at, and ends of its share; 0.05 to 0.2.  Scope.
    octaves : int
        Octaves on either side of `response_scale`: a factor of 64.  Not tuned: wide.
    scale_weight : float
        Squared norm of the scale score over that of the location score; 0.05 to 0.3.  Scope.
    scale_unit : float
        The scale score is min(abs(r) / (scale_unit spread), 1) less its mean; 1 to 2.  Scope.
    clip_decay, least_clip, largest_clip : float
        While it localises, a clip is taken for a spread of at least clip_decay**k times the first one, itself taken for
        at most largest_clip times the present one, and is at least least_clip of it; 0 to 0.9, 0 to 1, 4 to 16.  Scope,
        and records of rare categories in tests/unit/mechanism/test_newton_rare_records.py.
    scale_error : float
        Error granted to a scale score while it localises; 0 to 0.1.  Scope.
    log_scale_shift, log_scale_stddev : float
        The prior of log sigma while it localises: that of the posterior.
    score_error : float
        Without an unknown scale: relative error granted to what a score far from its zero is expected to be; 0 to 0.5.
        Scope.
    trusted : float
        Share of what the steps have said that is kept when the measurements begin; 0 to 1.  Scope.
    misplaced : float
        By how much the predictor of counts may be off when the steps begin; 0 to 0.5.  Large counts
        (tests/unit/mechanism/test_newton.py).
    steepest : float
        Slopes steeper than any so many standard deviations about the predictor's mean are cut off; 2 to 4.  Scope.
    least_tilt : float
        Least eigenvalue of slopes over moments that is undone; 0.001 to 0.1.  Scope.
    share_error : float
        Relative error granted to shares of octaves, as predictors are not normal; 0 to 0.05.  Scope.
    """

    bound: float = 1.3
    geometry: tuple[tuple[float, tuple[float, ...]], ...] = (
        (0.03, (0.03, 0.05, 0.08, 0.12, 0.22)),
        (0.015, (0.02, 0.03, 0.05, 0.08, 0.16)),
        (0.004, (0.02, 0.03, 0.04, 0.06)),
        (0.0, (0.02, 0.03, 0.04)),
    )
    sloped_geometry: tuple[tuple[float, tuple[float, ...]], ...] = (
        (0.004, (0.02, 0.03, 0.04, 0.06)),
        (0.0, (0.01, 0.02, 0.03, 0.04)),
    )
    after_means: tuple[float, ...] = (0.04, 0.06)
    localise: tuple[float, ...] = (0.01, 0.01, 0.01, 0.012, 0.014, 0.016, 0.02)
    sloped_localise: tuple[float, ...] = (0.02, 0.03, 0.04, 0.05)
    measure: tuple[float, ...] = (0.2, 0.3, 0.5)
    sloped_measure: tuple[float, ...] = (0.21, 0.33, 0.46)
    slope: float = 0.2
    unresolved: float = 0.5
    hidden_geometry: tuple[float, ...] = (0.01, 0.02)
    hidden_localise: tuple[float, ...] = (0.03, 0.05, 0.06, 0.08)
    hidden_slope: float = 0.05
    scale_noise: float = 0.05
    least_scale: float = 0.01
    most_scale: float = 0.06
    counted_scale: float = 0.02
    means_noise: float = 0.1
    least_means: float = 0.01
    most_means: float = 0.03
    octaves: int = 6
    scale_weight: float = 0.12
    scale_unit: float = 1.6
    clip_decay: float = 0.8
    least_clip: float = 0.7
    largest_clip: float = 8.0
    scale_error: float = 0.02
    log_scale_shift: float = -1.0
    log_scale_stddev: float = 2.0
    score_error: float = 0.2
    trusted: float = 0.5
    misplaced: float = 0.15
    steepest: float = 2.5
    least_tilt: float = 0.01
    share_error: float = 0.01


TUNING = Tuning()

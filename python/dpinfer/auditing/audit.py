"""The privacy audit: the production path of every mechanism, against its claim."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_integer, check_interval
from dpinfer.accounting import Adjacency
from dpinfer.auditing import tuning
from dpinfer.auditing.checks import check_distinguishing, check_draws, check_neighbours, check_noise, check_sampling
from dpinfer.auditing.paths import AuditPath, audit_paths, draw_paths, model_paths, sampling_paths
from dpinfer.auditing.result import AuditCheck, AuditResult
from dpinfer.mechanism.noise_keys import RandomSource
from dpinfer.mechanism.private_run import check_source
from dpinfer.methods import find_method
from dpinfer.models import GeneralizedLinearModel

_LEAST_STEPS = 400  # a variance has a relative error of sqrt(2 / 400), 7%, for each coordinate
_MANY_ROWS, _NO_RATE, _THREADS = 3072, 1e-12, 3  # three blocks of rows, one for each of three threads; none is sampled


def audit(
    n_runs: int = 20_000,
    *,
    models: Sequence[GeneralizedLinearModel] = (),
    methods: Sequence[str] = (),
    noise_multiplier: float = 1.0,
    false_positive_rate: float = 1e-3,
    fail_fast: bool = False,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
) -> AuditResult:
    """Audit the private sums of every mechanism on data sets that would show its bugs.

    Four kinds of checks run the code that private fits run (clip, sum, noise):

    - *neighbours*: in integers, a record adds its own clipped vector to the sum, of norm at most C, and nothing else;
    - *sampling*: inclusions, the variance of the batch size, and pairs of steps are those of Poisson sampling;
      where a step reads one record, it is drawn as claimed;
    - *noise*: its standard deviation by an exact interval, its law, and that it is fresh at every step;
    - *distinguishing*: from trials with and without a canary, a lower confidence bound on mu is at most the claim.

    Data sets have either sign of the canary, clipped and not, beside ordinary records and beside fifty that all pull
    the other way; C is never 1.

    **Privacy.** Reads no records of the caller's: the records are made up.  A pass is evidence, not a proof; the proofs
    are in docs/derivations.  Scope and limits of an audit: docs/derivations/audit.md.

    Parameters
    ----------
    n_runs : int
        Trials per data set, at least 1000.
    models : sequence of GeneralizedLinearModel
        Your own regressions, audited like those of the library.
    methods : sequence of str
        Methods of other packages, whose paths are audited, too.
    noise_multiplier : float
        Noise of the trials, in [1e-3, 1e3]; the claim is mu = 1 / noise_multiplier (twice that for replacement).
    false_positive_rate : float in (0, 0.5]
        Probability with which a correct mechanism fails any check; it is shared among them.
    fail_fast : bool
        Whether to stop at the first check that fails.
    progress : bool or callable
        True draws a bar on a terminal; a callable gets (done, total).
    random_source : RandomSource, optional
        The operating system's generator by default.

    Notes
    -----
    Distinguishing follows Nasr et al. (2023) for Gaussian mechanisms, with errors counted together
    (docs/derivations/audit.md); thresholds come from a tenth of the trials.  The lower bounds on mu hold together, with
    confidence 1 - ``false_positive_rate`` for all data sets at once.

    Examples
    --------
    >>> import dpinfer as dpi
    >>> dpi.diagnostics.audit(1000, random_source=dpi.testing.InsecureRNG(3)).passed
    True
    """
    n_runs = check_integer("n_runs", n_runs, 1000)
    noise = check_interval("noise_multiplier", noise_multiplier, 1e-3, 1e3, low_open=False, high_open=False)
    rate = check_interval("false_positive_rate", false_positive_rate, 0.0, 0.5, high_open=False)
    source = check_source(random_source)
    report = resolve_progress(progress, "checks")
    own = [path for model in models for path in model_paths(model)]
    own += [path for method in methods for path in find_method(method)[0].audited_paths()]
    planned = list(_plan(n_runs, noise, source, own))
    checks: list[AuditCheck] = []
    for index, check in enumerate(planned):
        checks.append(check(alpha=rate / len(planned)))
        report(index + 1, len(planned))
        if fail_fast and not checks[-1].passed:
            break
    return AuditResult(tuple(checks), noise, n_runs, rate)


def _plan(
    n_runs: int, noise: float, source: RandomSource, own: Sequence[AuditPath]
) -> Iterator[Callable[..., AuditCheck]]:
    """Yield checks that wait for their share `alpha` of the false-positive rate, the quickest kinds first."""
    paths = (*audit_paths(), *own)
    cases = [(path, *case) for path in paths for case in _cases(path)]
    for path, name, base, canary in cases:
        yield partial(check_neighbours, path, name, base, canary, source)
    steps = max(_LEAST_STEPS, n_runs // tuning.TUNING.noise_share)
    for path in paths:
        yield partial(check_noise, path, path.name, path.base, noise, steps, source)
        many = np.tile(path.base[:1], (_MANY_ROWS, 1))
        name = f"{path.name}, {_THREADS} threads"
        idle: dict[str, Any] = {"rate": _NO_RATE, "n_threads": _THREADS}
        yield partial(check_noise, path, name, many, noise, _LEAST_STEPS, source, **idle)
    for path, records in sampling_paths():
        yield partial(check_sampling, path, records, tuning.TUNING.rate, steps, source)
    for path, records, permuted in draw_paths():
        yield partial(check_draws, path, records, steps, source, permuted=permuted)
    claim = Adjacency.ADD_REMOVE.sensitivity_factor / noise
    for path, name, base, canary in cases:
        both = np.vstack((base, canary))
        yield partial(check_distinguishing, path, name, base, both, claim, noise, n_runs, source)
    path = paths[0]
    replaced = (np.vstack((path.base, path.minus)), np.vstack((path.base, path.plus)))
    claim = Adjacency.REPLACE_ONE.sensitivity_factor / noise
    name = f"{path.name}: one record replaced"
    yield partial(check_distinguishing, path, name, *replaced, claim, noise, n_runs, source)


def _cases(path: AuditPath) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield (name, base, canary): both signs and opposed bases; where the path has one, an unclipped canary too."""
    for sign, canary in (("+", path.plus), ("-", path.minus)):
        yield f"{path.name}: opposed, canary {sign}", path.opposed(canary), canary
    if path.modest is not None:
        for sign, factor in (("+", 1.0), ("-", -1.0)):
            canary = path.modest * np.append(np.full(path.modest.size - 1, factor), 1.0)
            yield f"{path.name}: ordinary, canary {sign} within the norm", path.base, canary
        yield f"{path.name}: ordinary, canary +", path.base, path.plus

"""Expectation propagation without privacy: EP, stochastic EP (clipped or not) and assumed density filtering.

**Privacy.** Not private: results are functions of the exact records.  They are the yardsticks of :func:`run_dp_sep`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_choice, check_integer, check_interval, settings_of
from dpinfer.lab.baselines.contributions import some_records
from dpinfer.mechanism import _native
from dpinfer.mechanism.sites.settings import start_loc
from dpinfer.mechanism.sites.state import Cavity, SiteIterate, SitePrior
from dpinfer.mechanism.sums.sites import check_site_model, check_site_records, open_session, set_cavity, site_prior
from dpinfer.models import SiteModel
from dpinfer.release.sites.trace import smat, svec

METHODS = ("sep", "ep", "adf")
CLIPS = ("joint", "separate")
_KEY = bytes(32)  # without noise no key is needed
_CHUNK = 4096  # records at once: memory only


@dataclass(frozen=True, eq=False)
class SEPResult:
    """Approximate posterior of a run without privacy: NOT a private release.

    **Privacy.** Not private: computed from the exact records.  It must not be published if the records must not.

    Parameters
    ----------
    method : {"sep", "ep", "adf"}
    names : tuple of J d str
    loc : (J, d) float64
        Mean of each block.
    precision : (J, d, d) float64
        Precision of each block.
    n_passes : int
        Passes over the records.
    converged : bool
        Whether the last pass moved q by less than the tolerance; one pass of ADF always is.
    """

    method: str
    names: tuple[str, ...]
    loc: FloatArray
    precision: FloatArray
    n_passes: int
    converged: bool

    @property
    def safe_to_publish(self) -> bool:
        """Whether it may be published: never."""
        return False

    @property
    def cov(self) -> FloatArray:
        """Covariance of each block, (J, d, d)."""
        return np.asarray(np.linalg.inv(self.precision))

    def sample(self, size: int, *, seed: int = 0) -> FloatArray:
        """Draw parameters from q, (size, J d)."""
        rng = np.random.default_rng(check_integer("seed", seed, 0))
        blocks, d = self.loc.shape
        z = rng.standard_normal((check_integer("size", size, 0), blocks, d, 1))
        factor = np.linalg.cholesky(self.precision)
        return np.asarray(
            (self.loc[..., None] + np.linalg.solve(np.swapaxes(factor, 1, 2), z)).reshape(size, blocks * d)
        )

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        return f"SEPResult({self.method}: {self.n_passes} passes, {state})  # NOT PRIVATE"


class SEPOptions(TypedDict, total=False):
    """Fields of :class:`SEPArguments` as keyword arguments."""

    method: str
    n_passes: int
    damping: float
    max_site_norm: float | None
    clip: str
    start: npt.ArrayLike | None
    tolerance: float
    seed: int
    n_nodes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class SEPArguments:
    """Arguments of :func:`dpinfer.run_sep`; checked by the call.

    **Privacy.** Holds no records.

    Parameters
    ----------
    method : {"sep", "ep", "adf"}
        "sep" moves q by all records' sites at once, "ep" keeps a site for every record and refines them in turn, "adf"
        takes every record in once, in random order.
    n_passes : int
        Passes over the records at most; "adf" makes one.
    damping : float in (0, 1]
        Of each update of "sep" and "ep".
    max_site_norm : float, optional
        Clip the natural parameters of each site ("sep" only); not by default.
    clip : {"joint", "separate"}
        Whether the whole vector is clipped, or the linear terms and the precisions each by themselves.
    start : (J, d) array, optional
        Means at which to start; by default the prior's mean, for a mixture normal draws near it.
    tolerance : float
        A pass that moves no mean by more than so many posterior standard deviations, and no precision by more than this
        relatively, is the last.
    seed : int
        Of the order of records in "ep" and "adf", and of a mixture's start.
    n_nodes : int
        Gauss-Hermite nodes of the logistic evidence.

    Examples
    --------
    >>> SEPArguments(method="ep").n_passes
    200
    """

    method: str = "sep"
    n_passes: int = 200
    damping: float = 0.5
    max_site_norm: float | None = None
    clip: str = "joint"
    start: npt.ArrayLike | None = None
    tolerance: float = 1e-8
    seed: int = 0
    n_nodes: int = 20


def run_sep(
    model: SiteModel,
    X: npt.ArrayLike,
    y: npt.ArrayLike | None = None,
    *,
    settings: SEPArguments | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    **options: Unpack[SEPOptions],
) -> SEPResult:
    """Run EP, SEP or ADF on exact records.

    **Privacy.** Reads the records and is not private: see :class:`SEPResult`.

    Parameters
    ----------
    model : GaussianMixture or regression with binary responses
        For a network call :func:`dpinfer.lab.baselines.run_network_sep`.
    X, y
        As for :func:`dpinfer.run_dp_sep`.
    settings : SEPArguments, optional
        Method, passes, damping, clipping, start and seed.
    n_threads, progress
        As for :func:`dpinfer.run_dp_sep`.
    **options
        Fields of :class:`dpinfer.lab.baselines.SEPArguments`, such as ``method="ep"``; they replace those of
        `settings`.

    Returns
    -------
    SEPResult

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.

    Notes
    -----
    Minka (2001); Li, Hernandez-Lobato and Turner (2015).  Parallel SEP has the fixed points of the published one, which
    moves after each record.  A site without valid moments stays as it is.

    Examples
    --------
    >>> import numpy as np, dpinfer as dpi
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(200, 2)); y = (X[:, 0] > 0).astype(float)
    >>> dpi.run_sep(dpi.models.ProbitRegression(2), X, y).converged
    True
    """
    arguments = settings_of("run_sep", SEPArguments, settings, options)
    check_site_model(model)
    method = check_choice("method", arguments.method, METHODS)
    n_passes = check_integer("n_passes", arguments.n_passes, 1)
    damping = check_interval("damping", arguments.damping, 0.0, 1.0, high_open=False)
    clipped = arguments.max_site_norm is not None
    norm = check_interval("max_site_norm", arguments.max_site_norm, 0.0) if clipped else np.inf
    clip = check_choice("clip", arguments.clip, CLIPS)
    if clipped and method != "sep":
        raise ValueError(f"max_site_norm must be None with method={method!r}")
    tolerance = check_interval("tolerance", arguments.tolerance, 0.0, low_open=False)
    rng = np.random.default_rng(check_integer("seed", arguments.seed, 0))
    nodes = check_integer("n_nodes", arguments.n_nodes, 1, 200)
    threads = 0 if n_threads is None else check_integer("n_threads", n_threads, 1, 4096)
    report = resolve_progress(progress, "passes")
    loc = start_loc(model, arguments.start, rng.standard_normal)
    records = check_site_records(model, X, y)
    some_records(records.features, records.features)
    session = open_session(model, records, max_site_norm=1.0, key=_KEY, n_threads=threads, n_nodes=nodes)
    prior = site_prior(model)
    count = records.features.shape[0]
    if method == "adf":
        loc, precision = _filter(session, prior, loc, rng.permutation(count), keep_start=arguments.start is not None)
        report(1, 1)
        return SEPResult(method, model.names, loc, precision, 1, True)
    if method == "ep":
        passes = _expectation_propagation(
            session, prior, loc, model.expected_site_precision(count), rng, count, n_passes, damping, tolerance, report
        )
        return SEPResult(method, model.names, *passes)
    iterate = SiteIterate(
        prior,
        loc,
        model.expected_site_precision(count),
        n_records=count,
        centred=not clipped,
        isotropic=False,
        block_weight=1.0,
        trust_radius=np.inf,
    )
    passes = _stochastic(session, iterate, prior, count, n_passes, damping, tolerance, norm, clip, report)
    return SEPResult(method, model.names, *passes)


def _moved(old: tuple[FloatArray, FloatArray], new: tuple[FloatArray, FloatArray]) -> float:
    """Return how far q moved: means in posterior standard deviations, precisions relatively."""
    gap = new[0] - old[0]
    means = np.sqrt(np.max(np.abs(np.einsum("ji,jik,jk->j", gap, new[1], gap))))
    return max(float(means), float(np.max(np.abs(new[1] - old[1])) / np.max(np.abs(new[1]))))


def _stochastic(
    session: _native.SiteSession,
    iterate: SiteIterate,
    prior: SitePrior,
    count: int,
    n_passes: int,
    damping: float,
    tolerance: float,
    norm: float,
    clip: str,
    report: ProgressCallback,
) -> tuple[FloatArray, FloatArray, int, bool]:
    blocks, d = iterate.loc.shape
    width = blocks * d
    used = iterate.used(prior.precision)
    for done in range(1, n_passes + 1):
        before = (iterate.loc, used)
        set_cavity(session, iterate.cavity(used), 1.0)
        total = session.plain_sum(norm) if clip == "joint" else _separately_clipped(session, count, width, norm)
        precision = smat(total[width:].reshape(blocks, -1), d)
        used = iterate.move(total[:width].reshape(blocks, d), precision, damping, prior.precision)
        report(done, n_passes)
        if _moved(before, (iterate.loc, used)) <= tolerance:
            return iterate.loc, used, done, True
    return iterate.loc, used, n_passes, False


def _separately_clipped(session: _native.SiteSession, count: int, width: int, norm: float) -> FloatArray:
    """Return the sum of sites with linear terms and precisions clipped to `norm` each."""
    total = np.zeros(session.length)
    for first in range(0, count, _CHUNK):
        sites = session.contributions(np.arange(first, min(first + _CHUNK, count)))
        for part in (slice(0, width), slice(width, None)):
            length = np.linalg.norm(sites[:, part], axis=1, keepdims=True)
            total[part] += np.sum(sites[:, part] * np.minimum(1.0, norm / np.maximum(length, 1e-300)), axis=0)
    return total


def _site(
    session: _native.SiteSession, row: int, eta: FloatArray, precision: FloatArray, neutral: FloatArray
) -> FloatArray | None:
    """Return the natural parameters of one record's site given its cavity, or None when that is not a distribution."""
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError:
        return None
    cov = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    cov = np.asarray(0.5 * (cov + np.swapaxes(cov, 1, 2)), dtype=np.float64)
    loc = np.asarray((cov @ eta[..., None])[..., 0], dtype=np.float64)
    set_cavity(session, Cavity(loc, cov, neutral, np.zeros_like(loc)), 1.0)
    return np.asarray(session.contributions(np.array([row]))[0])


def _split(site: FloatArray, blocks: int, d: int) -> tuple[FloatArray, FloatArray]:
    return site[: blocks * d].reshape(blocks, d), smat(site[blocks * d :].reshape(blocks, -1), d)


def _filter(
    session: _native.SiteSession, prior: SitePrior, loc: FloatArray, order: npt.NDArray[np.int64], *, keep_start: bool
) -> tuple[FloatArray, FloatArray]:
    """Assumed density filtering: q <- q times the record's site, whose cavity is q itself."""
    blocks, d = loc.shape
    precision = np.tile(prior.precision * np.eye(d), (blocks, 1, 1))
    # A start breaks the symmetry of a mixture: it is where the prior's means are moved to.
    eta = prior.precision * (loc if keep_start or blocks > 1 else prior.loc)
    nothing = np.zeros(session.length)
    for row in order:
        site = _site(session, int(row), eta, precision, nothing)
        if site is not None:
            linear, extra = _split(site, blocks, d)
            eta, precision = eta + linear, precision + extra
    return np.asarray(np.linalg.solve(precision, eta[..., None])[..., 0], dtype=np.float64), precision


def _expectation_propagation(
    session: _native.SiteSession,
    prior: SitePrior,
    loc: FloatArray,
    precision: FloatArray,
    rng: np.random.Generator,
    count: int,
    n_passes: int,
    damping: float,
    tolerance: float,
    report: Callable[[int, int], None],
) -> tuple[FloatArray, FloatArray, int, bool]:
    blocks, d = loc.shape
    base_eta, base = prior.precision * prior.loc, prior.precision * np.eye(d)
    eta = (precision @ loc[..., None])[..., 0]
    share = np.concatenate(((eta - base_eta).ravel(), svec(precision - base).ravel())) / count
    sites = np.tile(share, (count, 1))
    for done in range(1, n_passes + 1):
        before = (loc, precision)
        for row in rng.permutation(count):
            old_eta, old = _split(sites[row], blocks, d)
            site = _site(session, int(row), eta - old_eta, precision - old, sites[row])
            if site is None:
                continue
            change = damping * (site - sites[row])
            step_eta, step = _split(change, blocks, d)
            sites[row] += change
            eta, precision = eta + step_eta, precision + step
        loc = np.asarray(np.linalg.solve(precision, eta[..., None])[..., 0], dtype=np.float64)
        report(done, n_passes)
        if _moved(before, (loc, precision)) <= tolerance:
            return loc, precision, done, True
    return loc, precision, n_passes, False

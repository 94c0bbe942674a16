"""Network sites without privacy: SEP (clipped or not), EP and ADF, record by record."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpinfer._surroundings import ProgressCallback, resolve_progress
from dpinfer._validate import check_choice, check_float_array, check_integer, check_interval
from dpinfer.lab import _native
from dpinfer.lab.baselines.contributions import some_records
from dpinfer.mechanism.sites.network_dpsep import check_network_records
from dpinfer.models import BayesianNeuralNetwork, NetworkWeights

METHODS = ("sep", "ep", "adf")
# Of the prior precision's gamma hyperprior, as for the noise (Hernandez-Lobato and Adams, 2015).
_HYPER_SHAPE, _HYPER_RATE = 6.0, 6.0
# Sites are refined by so much of the way: full steps of EP need not settle.
_EP_DAMPING = 0.3
_NOISE_PARTS = 50  # of a pass, between which the published noise is added: q forgets 2% in one; memory


def run_network_sep(
    model: BayesianNeuralNetwork,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    method: str = "sep",
    n_passes: int = 40,
    gamma: float | None = None,
    max_site_norm: float | None = None,
    block_weight: float = 0.1,
    learn_prior: bool | None = None,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
    progress: bool | ProgressCallback = False,
) -> NetworkWeights:
    """Run SEP, EP or ADF (probabilistic back-propagation) for a network on exact records.

    **Privacy.** Reads the records and is NOT private: a yardstick for :func:`dpinfer.mechanism.run_network_dp_sep`.

    Parameters
    ----------
    model : BayesianNeuralNetwork
    X : (N, n_features) array
    y : (N,) array
    method : {"sep", "ep", "adf"}
        "sep" keeps one shared site, "ep" one for every record (2 n numbers each), damped by 0.3, "adf" none: it
        takes every record in anew in each pass, as published for networks.
    n_passes : int
        Passes over the records, each in a random order.
    gamma : float in (0, N], optional
        "sep" only: how far each update moves, N (the default) being the standard update (Li et al., 2015).
    max_site_norm : float, optional
        Clip each record's centred site, (linear terms, block_weight times precisions), to this norm; not by default.
    block_weight : float
        Positive; of the precisions in that norm.
    learn_prior : bool, optional
        Whether the weights' prior precision has a Gamma(6, 6) hyperprior, updated after each pass to its conditional
        expectation given q; otherwise it stays the model's.  By default for "sep" and "adf"; not with "ep", whose
        cavities would be moved away from under their sites.
    start : (n,) array, optional
        Random weights at which to start; by default ``model.start_loc(seed)``.
    seed : int
        Of the start and of the orders.
    progress : bool or callable

    Returns
    -------
    NetworkWeights
        With ``private=False``.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used.

    Notes
    -----
    Hernandez-Lobato and Adams (2015) for the moments and the noise precision's gamma sites (eq. 13 and section 3.2);
    Li, Hernandez-Lobato and Turner (2015) for SEP.  A weight whose tilted variance would not be positive keeps its
    place.  The prior precision's update is a variational one, where the paper refines one more EP factor per weight.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)); y = np.maximum(X[:, 0], 0.0) - X[:, 1]
    >>> weights = run_network_sep(BayesianNeuralNetwork(2, 10), X, y, n_passes=20)
    >>> bool(np.sqrt(np.mean((weights.predict(X)[0] - y) ** 2)) < 0.2)
    True
    """
    return _run(model, X, y, method, n_passes, gamma, max_site_norm, block_weight, learn_prior, start, seed, progress)


def run_published_network_dp_sep(
    model: BayesianNeuralNetwork,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    noise_multiplier: float,
    max_site_norm: float,
    n_passes: int = 40,
    block_weight: float = 1.0,
    learn_prior: bool = True,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
    progress: bool | ProgressCallback = False,
) -> NetworkWeights:
    """Run clipped SEP with the noise of the published DP-SEP, which is N times too small: NOT PRIVATE.

    After each update of one record q's natural parameters get normal noise of standard deviation 2 C sigma / N, with
    sigma the `noise_multiplier` and C = `max_site_norm` (Vinaroz and Park 2021, eq. 5).  The update moves q by up to
    2 C.  :func:`dpinfer.mechanism.run_network_dp_sep` is private.

    **Privacy.** Reads the records and is NOT private.

    Parameters
    ----------
    model, X, y, max_site_norm, n_passes, block_weight, learn_prior, start, seed, progress
        As in :func:`run_network_sep`.
    noise_multiplier : float
        At least 0.
    """
    noise_multiplier = check_interval("noise_multiplier", noise_multiplier, 0.0, low_open=False)
    settings = (n_passes, None, max_site_norm, block_weight, learn_prior, start, seed, progress)
    return _run(model, X, y, "sep", *settings, noise_multiplier=noise_multiplier)


def _run(
    model: BayesianNeuralNetwork,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    method: str,
    n_passes: int,
    gamma: float | None,
    max_site_norm: float | None,
    block_weight: float,
    learn_prior: bool | None,
    *rest: Any,  # start, seed and progress
    noise_multiplier: float = 0.0,
) -> NetworkWeights:
    """Make the passes over the records."""
    start, seed, progress = rest
    if not isinstance(model, BayesianNeuralNetwork):
        raise TypeError(f"model must be a BayesianNeuralNetwork, got {type(model).__name__}")
    check_choice("method", method, METHODS)
    n_passes = check_integer("n_passes", n_passes, 1)
    norm = np.inf if max_site_norm is None else check_interval("max_site_norm", max_site_norm, 0.0)
    block_weight = check_interval("block_weight", block_weight, 0.0)
    if learn_prior is None:
        learn_prior = method != "ep"
    elif not isinstance(learn_prior, (bool, np.bool_)):
        raise TypeError(f"learn_prior must be a bool, got {type(learn_prior).__name__}")
    elif learn_prior and method == "ep":
        raise ValueError("learn_prior must be False with method='ep'")
    rng = np.random.default_rng(check_integer("seed", seed, 0))
    n = model.n_params
    loc = model.start_loc(seed) if start is None else check_float_array("start", start, (n,))
    report = resolve_progress(progress, "passes")
    features, response = some_records(*check_network_records(model, X, y))
    n_records = features.shape[0]
    if gamma is not None:
        if method != "sep":
            raise ValueError(f"gamma must be None with method={method!r}")
        gamma = check_interval("gamma", gamma, 0.0, n_records, high_open=False)
    prior_precision = np.full(n, model.prior_precision)
    noise = np.array([model.noise_shape, model.noise_rate])
    # The start enters as a site that the records' sites replace.
    passes = _native.NetworkPasses(
        features=features,
        response=response,
        n_hidden=model.n_hidden,
        own_sites=method == "ep",
        clip_norm=norm,
        site_weight=block_weight,
        eta=model.prior_precision * loc,
        precision=prior_precision.copy(),
        prior_precision=prior_precision,
        gamma=noise,
        prior_gamma=noise,
    )
    share = 1.0 / n_records if method == "sep" else 0.0
    step = _EP_DAMPING if method == "ep" else 1.0 if gamma is None else gamma / n_records
    for done in range(n_passes):
        for rows in np.array_split(rng.permutation(n_records), _NOISE_PARTS if noise_multiplier else 1):
            passes.run(rows, share, step)
            if noise_multiplier:
                # The noise of consecutive updates at once: in so few of them q hardly forgets any.
                spread = 2.0 * norm * noise_multiplier / n_records * step * np.sqrt(rows.size)
                added = spread * rng.standard_normal((2, n))
                passes.add(added[0], added[1] / block_weight)
        eta, precision, noise = passes.state()
        if learn_prior:
            moments = np.sum((eta / precision) ** 2 + 1.0 / precision)
            passes.set_prior(np.full(n, (_HYPER_SHAPE + 0.5 * n) / (_HYPER_RATE + 0.5 * moments)))
        report(done + 1, n_passes)
    return NetworkWeights(model, eta / precision, 1.0 / precision, float(noise[1] / (noise[0] - 1.0)))

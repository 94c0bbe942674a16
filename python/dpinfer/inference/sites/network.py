"""From a network's release to weights that predict."""

import numpy as np

from dpinfer._validate import check_interval
from dpinfer.models import BayesianNeuralNetwork, NetworkWeights, model_from_dict
from dpinfer.release import NetworkRelease

__all__ = ["network_posterior"]


def network_posterior(release: NetworkRelease, *, average: float = 0.0) -> NetworkWeights:
    """Return the approximate posterior of the weights that a run of DP-SEP has released.

    **Privacy.** Post-processing of a Release.

    Parameters
    ----------
    release : NetworkRelease
    average : float in [0, 1)
        0 (default): after the last step.  Otherwise the mean of the means and precisions over this last share of the
        steps.

    Returns
    -------
    NetworkWeights

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Notes
    -----
    The variances are those of SEP's q, 1 / precision with the precision floored: they count the prior and the records,
    not the privacy noise in the mean.
    """
    if not isinstance(release, NetworkRelease):
        raise TypeError(f"release must be a NetworkRelease, got {type(release).__name__}")
    average = check_interval("average", average, 0.0, 1.0, low_open=False)
    model = model_from_dict(release.model_spec)
    if not isinstance(model, BayesianNeuralNetwork):
        raise ValueError(f"release must be of a BayesianNeuralNetwork, got {type(model).__name__}")
    count = max(1, round(average * release.n_steps))
    loc = release.loc[-count:].mean(axis=0)
    precision = np.maximum(release.precision[-count:], release.floor[-count:, None]).mean(axis=0)
    noise = float(release.noise_variance[-count:].mean())
    return NetworkWeights(
        model,
        loc,
        1.0 / precision,
        noise,
        event=release.event,
        adjacency=release.adjacency,
        delta=release.delta,
        certified_epsilon=release.certified_epsilon,
        accountant=release.accountant,
        secure=release.secure,
        other_parts=release.other_parts,
        leaks=release.leaks,
    )

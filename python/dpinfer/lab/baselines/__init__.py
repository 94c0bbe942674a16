"""Other methods, one file each, for comparison with noise-aware variational inference.

DPVI as first published is ``dpinfer.noise_aware_posterior(release, approximation="naive")``; the mean of its
iterates is ``approximation="averaged"``.  Without privacy: EP, SEP and ADF (:func:`run_sep`, :func:`run_network_sep`).
"""

from dpinfer.lab.baselines.bernstein_sheldon import release_statistics
from dpinfer.lab.baselines.dp_em import EMArguments, EMRelease, run_dp_em
from dpinfer.lab.baselines.dpvim import DPVIMArguments, run_dpvim
from dpinfer.lab.baselines.gibbs.conjugate import bernstein_sheldon_posterior, gibbs_posterior
from dpinfer.lab.baselines.gibbs.families import (
    BinomialFamily,
    CategoricalFamily,
    ConjugateFamily,
    ExponentialFamily,
    conjugate_family,
)
from dpinfer.lab.baselines.gibbs.posterior import gibbs_sampler_posterior
from dpinfer.lab.baselines.gibbs.regression import (
    RegressionPrior,
    gaussian_moments,
    gibbs_ss_noisy,
    gibbs_ss_noisy_posterior,
)
from dpinfer.lab.baselines.network_sep import run_network_sep, run_published_network_dp_sep
from dpinfer.lab.baselines.network_vi import NetworkVISettings, run_network_vi
from dpinfer.lab.baselines.regression_statistics import release_regression_statistics
from dpinfer.lab.baselines.sep import SEPArguments, SEPResult, run_sep
from dpinfer.release.statistic import StatisticRelease

__all__ = [
    "BinomialFamily",
    "CategoricalFamily",
    "ConjugateFamily",
    "DPVIMArguments",
    "EMArguments",
    "EMRelease",
    "ExponentialFamily",
    "NetworkVISettings",
    "RegressionPrior",
    "SEPArguments",
    "SEPResult",
    "StatisticRelease",
    "bernstein_sheldon_posterior",
    "conjugate_family",
    "gaussian_moments",
    "gibbs_posterior",
    "gibbs_sampler_posterior",
    "gibbs_ss_noisy",
    "gibbs_ss_noisy_posterior",
    "release_regression_statistics",
    "release_statistics",
    "run_dp_em",
    "run_dpvim",
    "run_network_sep",
    "run_network_vi",
    "run_published_network_dp_sep",
    "run_sep",
]

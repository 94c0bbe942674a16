"""DP-SEP of any model with sites, for tests of what mixtures, regressions and networks have in common."""

import dpinfer as dpi
from dpinfer.mechanism import run_network_dp_sep

__all__ = ["run_sites"]


def run_sites(model, *records, **options):
    run = run_network_dp_sep if isinstance(model, dpi.models.BayesianNeuralNetwork) else dpi.run_dp_sep
    return run(model, *records, **options)

"""Models whose traces are scaled by their Fisher information, and what the posterior is told of such a run."""

import dpinfer as dpi
from dpinfer.inference.trace.scales.fisher import FisherRun, TiedTrace

MODELS = {
    "exponential": dpi.models.GammaExponential(),
    "sticks": dpi.models.DirichletCategorical((2.0, 5.0, 3.0)),
    "linear": dpi.models.LinearRegression(2),
}


def traced(release, burn_in):
    return TiedTrace.from_release(release, model_of(release), burn_in)


def model_of(release):
    return next(model for model in MODELS.values() if model.names == release.names)


def fisher_run(release, **changes):
    settings = {
        "model": model_of(release),
        "n_records": release.n_records,
        "sample_rate": release.sample_rate,
        "noise_multiplier": release.noise_multiplier,
        "max_grad_norm": release.max_grad_norm,
        "raw_ratio": release.settings["raw_ratio"],
        "tolerance": release.settings["tolerance"],
    }
    return FisherRun(**settings | changes)

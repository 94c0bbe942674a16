"""Traces of noisy gradients: models, by :func:`dpinfer.run_dpvi`, and networks."""

"""Posterior objects: what every method returns."""

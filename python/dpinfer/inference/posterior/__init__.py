"""Posterior objects: the result of every method."""

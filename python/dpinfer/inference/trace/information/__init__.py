"""Weights under a full information matrix."""

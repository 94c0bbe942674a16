"""Posteriors from the sites of DP-SEP."""

"""Samplers: Hamiltonian Monte Carlo, ensembles, NUTS."""

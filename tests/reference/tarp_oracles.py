"""Coverage shares by brute force, and the published formula of the TARP test, re-implemented from its description."""

import numpy as np


def doubled_counts(samples, thetas, references, scales):
    """Twice the draws nearer than the truth, plus ties, coordinates in order: joint (R, K), marginal (R, K, d)."""
    samples = samples.astype(np.float64)
    inverse = 1.0 / scales
    joint, marginal = [], []
    for points in references:
        squared = ((samples - points) * inverse) ** 2
        truth = ((thetas - points) * inverse) ** 2
        marginal.append((squared < truth).sum(axis=0) + (squared <= truth).sum(axis=0))
        distance, limit = np.zeros(squared.shape[:2]), np.zeros(truth.shape[0])
        for j in range(truth.shape[1]):
            distance = distance + squared[..., j]
            limit = limit + truth[..., j]
        joint.append((distance < limit).sum(axis=0) + (distance <= limit).sum(axis=0))
    return np.array(joint), np.array(marginal)


def published_coverage(samples, thetas, references, n_bins):
    """Lemos et al. (2023), algorithm 2, as their package computes it with given references and no scaling.

    Returns shares (K,), expected coverage and credibility, each (n_bins + 1,).
    """
    sample_distance = np.sqrt(np.sum((references[None] - samples) ** 2, axis=-1))
    theta_distance = np.sqrt(np.sum((references - thetas) ** 2, axis=-1))
    shares = np.sum(sample_distance < theta_distance, axis=0) / samples.shape[0]
    density, credibility = np.histogram(shares, density=True, bins=n_bins)
    coverage = np.cumsum(density) * (credibility[1] - credibility[0])
    return shares, np.concatenate([[0.0], coverage]), credibility

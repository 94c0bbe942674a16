"""What a noisy second-moment matrix says of the next coordinates: weights of long records, and none."""

import numpy as np
import pytest

from dpinfer.models.clipping import mallows_moment
from dpinfer.models.whitening import onward, shrink_moments

N = 200_000


def rows_of(rng, share):
    return np.column_stack((rng.normal(size=(N, 2)), rng.random(N) < share))


def weighted(z, bound):
    weight = np.minimum(1.0, bound**2 / np.sum(z**2, axis=1))
    return (z * weight[:, None]).T @ z / len(z)


def second_round(rng, rows, bound):
    """Return the coordinates after a first matrix, and what the second and the first say there."""
    first = shrink_moments(rows.T @ rows / N, 1e-5, 3.0)
    transform = first.whitening
    moments = shrink_moments(weighted(rows @ transform.T, bound), 1e-5, 3.0)
    return transform, moments, np.diag(first.foretold) * mallows_moment(3, bound)


def test_normal_features_lose_nothing_but_what_is_foretold(rng):
    rows = rng.normal(size=(N, 3)) * np.array([1.0, 0.1, 3.0])
    _, moments, foretold = second_round(rng, rows, 2.0)
    np.testing.assert_allclose(np.diag(foretold), moments.eigenvalues, rtol=0.02)
    ahead = onward(moments, foretold, None)
    assert ahead.wanted is None
    np.testing.assert_array_equal(ahead.transform, moments.whitening)
    np.testing.assert_array_equal(ahead.foretold, np.diag(moments.foretold))


@pytest.mark.parametrize("share", [0.002, 0.02])
def test_records_of_a_rare_category_get_the_length_of_the_bound(rng, share):
    """Whitened once more they would be many times longer than that."""
    rows, bound = rows_of(rng, share), 2.0
    transform, moments, foretold = second_round(rng, rows, bound)
    step = onward(moments, foretold, None).transform
    rare = rows[:, 2] > 0.0
    length = np.sqrt(np.sum((rows @ transform.T @ step.T)[rare] ** 2, axis=1))
    assert bound < np.median(length) < 1.7 * bound
    again = np.sqrt(np.sum((rows @ transform.T @ moments.whitening.T)[rare] ** 2, axis=1))
    assert np.median(again) > 4.0 * bound
    seen = weighted(rows @ transform.T @ step.T, bound)
    assert np.linalg.eigvalsh(seen)[1:] == pytest.approx(mallows_moment(2, bound), abs=0.15)
    assert np.linalg.eigvalsh(seen)[0] == pytest.approx(moments.eigenvalues[0], rel=0.4)


def test_later_rounds_leave_a_rare_category_at_the_length_of_the_bound(rng):
    """And whiten the others.  Power: a round that does not know what an earlier one wants makes them longer again."""
    rows, bound = rows_of(rng, 0.02) * np.array([1.0, 0.2, 1.0]), 2.0
    transform, ahead = np.eye(3), None
    lengths = []
    for _ in range(5):
        noisy = shrink_moments(weighted(rows @ transform.T, bound), 1e-5, 3.0)
        foretold = np.zeros((3, 3)) if ahead is None else ahead.foretold * mallows_moment(3, bound)
        ahead = onward(noisy, foretold, None if ahead is None else ahead.wanted)
        transform = ahead.transform @ transform
        lengths.append(np.median(np.sqrt(np.sum((rows @ transform.T)[rows[:, 2] > 0.0] ** 2, axis=1))))
    assert lengths[0] > 3.0 * bound
    assert all(0.9 * bound < length < 1.7 * bound for length in lengths[1:])
    np.testing.assert_allclose(np.linalg.eigvalsh(weighted(rows @ transform.T, bound))[1:], 1.0, atol=0.1)
    assert np.linalg.norm(rows @ (onward(noisy, foretold, None).transform @ transform).T, axis=1).max() > 3.0 * bound


def test_mean_square_of_weighted_normal_features(rng):
    for d, bound in ((1, 1.14), (4, 2.3)):
        squares = np.sum(rng.normal(size=(N, d)) ** 2, axis=1)
        simulated = np.minimum(squares, bound**2)
        assert mallows_moment(d, bound) == pytest.approx(simulated.mean() / d, abs=5.0 * simulated.std() / d / N**0.5)

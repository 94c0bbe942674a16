"""The calibration curve against hand-computed bins and exact critical values."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.diagnostics import calibration_curve
from dpinfer.lab.coverage import expected_calibration_error


def test_bins_match_sorted_blocks():
    rng = np.random.default_rng(3)
    probability = rng.uniform(size=103)
    labels = (rng.uniform(size=103) < probability).astype(int)
    curve = calibration_curve(probability, labels)
    order = np.argsort(probability)
    blocks = np.array_split(order, 10)
    assert curve.counts.tolist() == [11, 11, 11, *[10] * 7]
    np.testing.assert_allclose(curve.predicted, [probability[block].mean() for block in blocks])
    np.testing.assert_allclose(curve.observed, [labels[block].mean() for block in blocks])
    expected = np.sqrt(np.mean([(labels[b].mean() - probability[b].mean()) ** 2 for b in blocks]))
    assert curve.rmse == pytest.approx(expected)
    assert "RMSE" in repr(curve)


def test_known_value():
    curve = calibration_curve(np.array([0.2, 0.2, 0.8, 0.8]), np.array([0, 1, 1, 1]), n_bins=2)
    np.testing.assert_allclose(curve.error, [0.3, 0.2])
    assert curve.rmse == pytest.approx(np.sqrt((0.09 + 0.04) / 2))


def chi_square(curve):
    return float(np.sum((curve.error / curve.standard_error) ** 2))


@pytest.mark.statistical
def test_true_probabilities_pass_and_shrunken_ones_fail():
    # Given the predictions, the labels are independent: the sum of squared z is close to chi-square with 20 degrees of
    # freedom (bins of 2000 labels); its 1 - 1e-6 quantile is the bound.
    rng = np.random.default_rng(11)
    probability = rng.uniform(0.1, 0.9, size=40_000)
    labels = rng.uniform(size=probability.size) < probability
    critical = stats.chi2.isf(1e-6, 20)
    assert chi_square(calibration_curve(probability, labels, 20)) < critical
    overconfident = 0.5 + 1.1 * (probability - 0.5)
    assert chi_square(calibration_curve(overconfident, labels, 20)) > critical


def test_rmse_floor_is_the_mean_for_perfect_predictions():
    rng = np.random.default_rng(5)
    probability = rng.uniform(size=2000)
    squares = [calibration_curve(probability, rng.uniform(size=2000) < probability).rmse ** 2 for _ in range(200)]
    floor = calibration_curve(probability, rng.uniform(size=2000) < probability).rmse_floor
    # Five standard errors: false-positive rate 6e-7. The bins' mean variance is 0.5% below p(1 - p) at the mean p. The
    # floor of half as many labels is rejected.
    error = 5.0 * np.std(squares, ddof=1) / np.sqrt(200)
    assert 0.995 * floor**2 - error < np.mean(squares) < floor**2 + error
    assert np.mean(squares) + error < 2.0 * floor**2


@pytest.mark.parametrize(
    ("probability", "labels", "bins", "error", "word"),
    [
        ([0.1, 1.2], [0, 1], 2, ValueError, r"\[0, 1\]"),
        ([0.1, np.nan], [0, 1], 2, ValueError, r"\[0, 1\]"),
        ([0.1, 0.2], [0, 2], 2, ValueError, "only 0 and 1"),
        ([0.1, 0.2], [0], 2, ValueError, "equal length"),
        (np.empty(0), np.empty(0), 1, ValueError, "at least one"),
        ([0.1, 0.2], [0, 1], 3, ValueError, "n_bins"),
        ([0.1, 0.2], [0, 1], 0, ValueError, "n_bins"),
        (["a", "b"], [0, 1], 1, TypeError, "probabilities"),
        ([0.1, 0.2], ["a", "b"], 1, TypeError, "y must"),
    ],
)
def test_bad_arguments(probability, labels, bins, error, word):
    with pytest.raises(error, match=word):
        calibration_curve(probability, labels, bins)


def test_expected_error_is_the_weighted_gap_of_the_curve():
    rng = np.random.default_rng(8)
    probability = rng.uniform(size=203)
    labels = rng.uniform(size=203) < probability**2
    curve = calibration_curve(probability, labels, 7)
    result = expected_calibration_error(probability, labels, 7)
    assert result.value == pytest.approx(np.sum(curve.counts * np.abs(curve.error)) / 203)
    assert result.excess == pytest.approx(result.value - result.floor)
    wide = expected_calibration_error(probability, labels, 5, bins="width")
    edges = np.minimum((5 * probability).astype(int), 4)
    gaps = [abs(np.sum((labels - probability)[edges == index])) for index in range(5)]
    assert wide.value == pytest.approx(sum(gaps) / 203)
    assert "floor" in repr(wide)
    assert expected_calibration_error(np.full(5, 1.0), np.ones(5), 3, bins="width").n_bins == 1


def test_expected_error_has_the_right_floor_and_error():
    rng = np.random.default_rng(9)
    probability = rng.uniform(size=400)
    values = []
    for _ in range(300):
        labels = rng.uniform(size=400) < probability
        values.append(expected_calibration_error(probability, labels, n_resamples=100).value)
    result = expected_calibration_error(probability, rng.uniform(size=400) < probability, n_resamples=3000)
    assert result.floor == pytest.approx(np.mean(values), rel=0.1)
    assert result.standard_error == pytest.approx(np.std(values), rel=0.5)


@pytest.mark.statistical
def test_expected_error_of_true_probabilities_is_not_significant():
    # P(p-value <= 1/2001) is 1/2001 for exact predictions: a seeded test with that false-positive rate.
    rng = np.random.default_rng(10)
    probability = rng.uniform(0.1, 0.9, size=5000)
    labels = rng.uniform(size=5000) < probability
    assert expected_calibration_error(probability, labels, n_resamples=2000).pvalue > 1.0 / 2001.0
    overconfident = 0.5 + 1.2 * (probability - 0.5)
    assert expected_calibration_error(overconfident, labels, n_resamples=2000).pvalue == 1.0 / 2001.0


def test_expected_error_refuses_bad_arguments():
    for options, word in (
        ({"n_bins": 0}, "n_bins"),
        ({"n_bins": 3}, "n_bins"),
        ({"bins": "equal"}, "bins"),
        ({"n_resamples": 99}, "n_resamples"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(ValueError, match=word):
            expected_calibration_error([0.1, 0.9], [0, 1], **({"n_bins": 2} | options))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        expected_calibration_error([0.1, 1.9], [0, 1], 1)

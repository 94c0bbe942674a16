"""Multinomial regression: gradients, draws, probabilities, and refusals."""

import numpy as np
import pytest
from scipy import stats

from dpinfer.models import LogisticRegression, MultinomialRegression
from dpinfer.models.adapters.checks import check_own_model
from dpinfer.models.adapters.gradients import uniforms_of

RNG = np.random.default_rng(71)


def draws(model, theta, X, seed):
    words = np.random.default_rng(seed).integers(0, 2**64, (len(X), 1), dtype=np.uint64)
    return model.draw_responses(theta, X, words)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("classes", [2, 3, ("low", "middle", "high", "none")])
def test_scores_are_the_slopes_of_the_log_probability(classes, fit_intercept):
    model = MultinomialRegression(3, classes, fit_intercept=fit_intercept)
    X, theta = RNG.normal(size=(40, 3)), RNG.normal(size=model.n_params)
    y = RNG.integers(0, model.n_classes, 40).astype(float)

    def heights(point):
        return np.log(model.predict_probabilities(point, X)[np.arange(40), y.astype(int)])

    step = 1e-6
    slopes = [(heights(theta + step * e) - heights(theta - step * e)) / (2 * step) for e in np.eye(theta.size)]
    assert model.scores(X, y, theta) == pytest.approx(np.array(slopes).T, abs=1e-8)
    check_own_model(model, (X, y))


def test_two_classes_are_a_logistic_regression():
    two, logistic = MultinomialRegression(3, 2), LogisticRegression(3, fit_intercept=True)
    X, theta = RNG.normal(size=(20, 3)), RNG.normal(size=(5, 4))
    assert two.predict_probabilities(theta, X)[..., 1] == pytest.approx(logistic.predict_mean(theta, X))


def test_a_row_does_not_depend_on_the_others_in_any_bit():
    model = MultinomialRegression(3, 4)
    X, theta = RNG.normal(size=(300, 3)), RNG.normal(size=model.n_params)
    y = RNG.integers(0, 4, 300).astype(float)
    alone = [model.scores(X[row : row + 1], y[row : row + 1], theta)[0] for row in range(300)]
    assert np.array_equal(model.scores(X, y, theta), alone)


@pytest.mark.statistical
def test_draws_have_the_probabilities():
    """False-positive rate 1e-6; the power twin draws with the weights of two classes exchanged."""
    model = MultinomialRegression(2, 3)
    x, theta = np.array([[0.7, -0.4]]), np.array([0.5, 0.3, -0.2, -0.6, 0.8, 0.4])
    X = np.repeat(x, 6000, axis=0)
    expected = 6000 * model.predict_probabilities(theta, x)[0]

    def p_value(at):
        seen = np.bincount(draws(model, at, X, 5).astype(int), minlength=3)
        return stats.chisquare(seen, expected).pvalue

    assert p_value(theta) > 1e-6
    assert p_value(np.roll(theta, 3)) < 1e-6


def test_draws_stay_among_the_classes_at_the_ends():
    model = MultinomialRegression(1, 3, fit_intercept=False)
    X, words = np.array([[1e3], [-1e3], [1e300]]), np.array([[0], [2**64 - 1], [2**63]], dtype=np.uint64)
    assert uniforms_of(words)[1, 0] < 1.0
    with np.errstate(all="ignore"):
        drawn = model.draw_responses(np.array([1.0, -1.0]), X, words)
    assert set(drawn) <= {0.0, 1.0, 2.0}


def test_records_are_places_of_classes():
    model = MultinomialRegression(2, 3)
    assert model.invalid_records(np.array([0.0, 1.0, 2.0])) is None
    for wrong in (3.0, -1.0, 0.5, np.nan):
        assert "0 to 2" in model.invalid_records(np.array([0.0, wrong]))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((2, 1), "classes must"),
        ((2, "ab"), "classes must be a number or a sequence"),
        ((2, ("a",)), "classes must hold between 2 and 100"),
        ((2, ("a", "a")), "distinct"),
        ((0, 3), "n_features must"),
    ],
)
def test_refusals(arguments, match):
    with pytest.raises((TypeError, ValueError), match=match):
        MultinomialRegression(*arguments)
    with pytest.raises(ValueError, match="feature_names must hold 2"):
        MultinomialRegression(2, 3, feature_names=("a",))

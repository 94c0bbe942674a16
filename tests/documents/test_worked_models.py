"""docs/worked-models.md: each snippet runs, and makes the model whose coverage was measured."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.framework_models import divorce_rates, two_layer_network, weibull_in_jax
from tests.reference.own_models import group_effects, ordinal, zero_inflated

PAGE = Path(__file__).parents[2] / "docs" / "worked-models.md"
SNIPPETS = re.findall(r"^## ([^\n]+)$.*?^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
MEASURED = {
    "Ordinal": ordinal,
    "Logistic": group_effects,
    "Structural": zero_inflated,
    "Censored": weibull_in_jax,
    "A two-layer": two_layer_network,
    "A model of": divorce_rates,
}


@pytest.mark.parametrize("begins", MEASURED)
def test_a_worked_model_is_the_one_that_was_measured(begins: str) -> None:
    """The same declaration, the same scores to rounding, and the same responses from the same random words."""
    (snippet,) = (code for title, code in SNIPPETS if title.startswith(begins))
    for name in ("jax", "numpyro", "torch"):
        if f"import {name}\n" in snippet and find_spec(name) is None:
            pytest.skip(f"needs {name}")
    space: dict[str, Any] = {}
    exec(compile(snippet, str(PAGE), "exec"), space)
    model, other = space.get("own", space["model"]), MEASURED[begins]().model
    described, expected = (
        {name: value for name, value in one.to_dict().items() if name != "fingerprint"} for one in (model, other)
    )
    assert described == expected
    rng = np.random.default_rng(3)
    X = other.made_up_features(300, rng)
    words = rng.integers(0, 2**64, (300, other.n_words), dtype=np.uint64)
    for shift in (0.0, 0.7):
        theta = other.parameters.prior_mean + shift * other.parameters.prior_scale
        y = other.draw_responses(theta, X, words)
        assert np.mean(model.draw_responses(theta, X, words) != y) < 0.01
        scores = other.scores(X, y, theta)
        np.testing.assert_allclose(model.scores(X, y, theta), scores, rtol=1e-9, atol=1e-9 * np.abs(scores).max())
    np.testing.assert_array_equal(
        model.made_up_features(20, np.random.default_rng(4)), other.made_up_features(20, np.random.default_rng(4))
    )


def test_every_snippet_of_the_page_is_compared() -> None:
    assert len(SNIPPETS) == len(MEASURED)

"""Checks of a user's code on public records, before anything is spent: its results, and independence of rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpinfer._arrays import TINY, FloatArray
from dpinfer._validate import check_float_array
from dpinfer.models.adapters.own_model import RESPONSES, OwnModel, Words

_ROWS = 33  # odd, so that blocks and parts have different sizes: time
_MANY_ROWS = 4096  # for parameters that those do not inform: 0.99**4096 is 1e-18, formula of an absent group
_POINTS = 3  # parameters at which the code is checked: time
_STEP = 1e-5  # of central differences: about the cube root of double precision
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6  # tolerances of a central difference beyond its own rounding
_DRAWS, _PAIRED_DRAWS = 4096, 16_384  # for means, and variances against slopes: formula of a power at a level of 1e-10
_FARTHEST_MEAN = 7.0  # of the scores' averages under the sampler: a normal law is beyond with probability 3e-12
_LARGEST = 1e100  # of a start: tolerance
# Truths on both sides of a point are so far from it, in standard deviations of one record's information; below the
# second, where prior and saturation leave no longer step, nothing is tested.
_SHIFT, _TOLD = 0.2, 0.01
_UNEQUAL, _BENT = 0.25, 3.0  # tolerance of slope against variance: share, multiple of the change by half the step
_FAR_OUT = 5.0  # median absolute deviations: tolerance
_MANY, _FEW = 64, 256  # all draws for so many parameters, fewer for more


def check_own_model(model: OwnModel, public_data: Any = None) -> None:
    """Try the model's code on records that are public: given, or made up.

    **Privacy.** Reads no private records; nothing is spent.

    Raises TypeError or ValueError if gradients have another shape or type, are not finite at the start, are random,
    differ from finite differences of the log-likelihood, or of one record change with the others; if a parameter is
    informed by no record; or if the sampler does not fit the likelihood.

    `public_data` (X, y): records that are no secret and look like the private ones; the first 33 are used, and the
    first 4096 where these do not inform a parameter.
    """
    rng = np.random.default_rng(7)
    features, response = _trial_records(model, public_data, _ROWS, rng)
    scale = np.minimum(model.parameters.prior_scale, 1.0)
    points = [model.parameters.prior_mean + 0.5 * scale * rng.standard_normal(model.n_params) for _ in range(_POINTS)]
    with np.errstate(all="ignore"):
        start = model.scores(features, response, model.parameters.prior_mean)
        if not np.all(np.abs(start) < _LARGEST):
            raise ValueError(
                "gradients must be finite at the prior's mean, where a run starts, and are not for all public records: "
                "check logarithms and exponentials, or give prior_mean where the model makes sense"
            )
        everywhere = [start]
        for theta in points:
            everywhere.append(model.scores(features, response, theta))
            _check_rows("gradients", partial(_scores_of_rows, model, features, response, theta), features)
            _check_differences(model, features, response, theta)
        silent = np.all(np.concatenate(everywhere) == 0.0, axis=0)
        if np.any(silent):
            # A group of few records, say: none of them may be among so few.
            many = _trial_records(model, public_data, _MANY_ROWS, np.random.default_rng(8))
            silent &= np.all([np.all(model.scores(*many, theta) == 0.0, axis=0) for theta in points], axis=0)
        if np.any(silent):
            name = model.names[int(np.flatnonzero(silent)[0])]
            raise ValueError(
                f"parameters must be informed by records, and the gradient in {name!r} is 0 for all of them"
            )
        if model.has_sampler:
            _check_sampler(model, features, points[0], rng)


def _trial_records(model: OwnModel, data: Any, n_rows: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    if data is None:
        return model.made_up_records(n_rows, rng)
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError("public_data must be a pair (X, y)")
    features = check_float_array("public_data[0]", data[0], (None, model.n_features))[:n_rows]
    response = check_float_array("public_data[1]", data[1], (None,))[:n_rows]
    if not len(features) or len(features) != len(response):
        raise ValueError("public_data must have as many responses as rows, and at least one")
    if model.invalid_records(response) is not None:
        raise ValueError(f"public_data must have responses that are {RESPONSES[model.response]}")
    return features, response


def _scores_of_rows(
    model: OwnModel, features: FloatArray, response: FloatArray, theta: FloatArray, rows: Any
) -> FloatArray:
    own, responses = _rows(rows, features, response)
    return model.scores(own, responses, theta)


def _rows(rows: Any, *arrays: Any) -> list[Any]:
    return [np.ascontiguousarray(array[rows]) for array in arrays]


def _check_rows(what: str, at: Callable[[Any], FloatArray], features: FloatArray) -> None:
    """Refuse results that change between calls, or with the other rows: alone, in reverse, and in part."""
    size = len(features)
    whole = at(slice(None))
    if at(slice(None)).tobytes() != whole.tobytes():
        raise ValueError(
            f"{what} must be the same whenever they are computed: the code draws random numbers (dropout, say)"
        )
    alone = np.concatenate([at(slice(row, row + 1)) for row in range(size)])
    others = [alone, at(slice(None, None, -1))[::-1], np.concatenate([at(slice(0, 5)), at(slice(5, None))])]
    if all(other.tobytes() == whole.tobytes() for other in others):
        return
    near = all(np.allclose(other, whole, rtol=1e-9, atol=1e-12, equal_nan=True) for other in others)
    reason = (
        "rows are rounded together: np.sum(X * theta, axis=1) is not, X @ theta is; in JAX or torch, vectorize=False"
        if near
        else "records are mixed (batch norm, standardising by the batch, sorting, a mean over rows)"
    )
    raise ValueError(f"{what} of a record must not depend on the other records in any bit, and do: {reason}")


def _check_differences(model: OwnModel, features: FloatArray, response: FloatArray, theta: FloatArray) -> None:
    """Compare the gradient with central differences of the log-likelihood, if there is one."""
    code = model.code
    if code is None or code.log_likelihood is None:
        return
    log_likelihood = code.log_likelihood

    def density(at: FloatArray) -> FloatArray:
        values = model.call("log_likelihood", log_likelihood, at, features, response)
        if values.dtype.kind != "f" or values.shape != response.shape:
            raise ValueError(f"log_likelihood must return a real number for each record, got shape {values.shape}")
        return values.astype(np.float64)

    gradients = model.scores(features, response, theta)
    size = np.abs(density(theta))
    for index, name in enumerate(model.names):
        step = np.zeros(theta.size)
        step[index] = _STEP * max(1.0, abs(theta[index]))
        slope = (density(theta + step) - density(theta - step)) / (2.0 * step[index])
        # Remaining digits of the density after a difference over so short a step.
        allowed = _RELATIVE * np.abs(slope) + _ABSOLUTE + 1e-14 * size / step[index]
        wrong = np.abs(gradients[:, index] - slope) > allowed
        if np.any(wrong & np.isfinite(slope)):
            raise ValueError(f"gradients must be those of log_likelihood, and in {name!r} they differ from its slope")


def _check_sampler(model: OwnModel, features: FloatArray, theta: FloatArray, rng: np.random.Generator) -> None:
    """Draws: of the declared kind, row by row, and such that the score has mean zero under them."""
    n_words = model.code.n_words if model.code is not None else 1
    words: Words = rng.integers(0, 2**64, (_DRAWS, n_words), dtype=np.uint64)
    rows = model.made_up_features(_DRAWS, rng)
    few = len(features)
    _check_rows("draws", lambda own: model.draw_responses(theta, *_rows(own, features, words[:few])), features)
    drawn = model.draw_responses(theta, rows, words)
    if not np.all(np.isfinite(drawn)) or model.invalid_records(drawn) is not None:
        raise ValueError(f"sampler must return {RESPONSES[model.response]}, all finite")
    scores = model.scores(rows, drawn, theta)
    scores = scores[np.all(np.isfinite(scores), axis=1)]
    if len(scores) < 0.9 * _DRAWS:
        raise ValueError(
            "gradients must be finite for responses drawn by the sampler, and are not for over 10% of them"
        )
    error = scores.std(axis=0) / np.sqrt(len(scores))
    far = np.abs(scores.mean(axis=0)) > _FARTHEST_MEAN * error + 1e-9
    if np.any(far):
        name = model.names[int(np.flatnonzero(far)[0])]
        raise ValueError(
            f"sampler must draw from the likelihood: the score in {name!r} has mean 0 under a model's own draws, and "
            "under these it has not"
        )
    _check_information(model, model.made_up_features(_PAIRED_DRAWS, rng), theta, rng)


def _check_information(model: OwnModel, features: FloatArray, theta: FloatArray, rng: np.random.Generator) -> None:
    """Compare the variance of each parameter's score with the slope of its mean in the truth: Bartlett's identity.

    Responses are drawn on both sides of theta with common random words, so that a density need not be smooth.  The
    identity holds given x: rows with features far out, for which the step is long, are left out.
    """
    centre = np.median(features, axis=0)
    spread = np.median(np.abs(features - centre), axis=0)
    near = np.all((spread == 0.0) | (np.abs(features - centre) <= _FAR_OUT * spread), axis=1)
    rows = features[near][: max(len(features) * _MANY // model.n_params, _FEW)]
    words: Words = rng.integers(0, 2**64, (len(rows), model.n_words), dtype=np.uint64)

    def scores(truth: FloatArray) -> FloatArray:
        return model.scores(rows, model.draw_responses(truth, rows, words), theta)

    squares = scores(theta) ** 2
    variance = np.maximum(squares.mean(axis=0), TINY)
    steps = np.minimum(_SHIFT / np.sqrt(variance), np.minimum(model.parameters.prior_scale, 1.0))
    for index, name in enumerate(model.names):
        if variance[index] * steps[index] ** 2 < _TOLD**2:
            continue
        step = steps[index] * (np.arange(theta.size) == index)
        slopes, shorter = (
            (scores(theta + part * step) - scores(theta - part * step))[:, index] / (2.0 * part * steps[index])
            for part in (1.0, 0.5)
        )
        excess = slopes - squares[:, index]
        allowed = _UNEQUAL * variance[index] + _BENT * abs(np.mean(shorter - slopes))
        if abs(excess.mean()) > allowed + _FARTHEST_MEAN * excess.std() / np.sqrt(excess.size):
            raise ValueError(
                f"the gradient in {name!r} must be that of the likelihood that the sampler draws from: its variance "
                f"under the draws is {variance[index]:.3g}, and its mean changes with the parameter of the draws by "
                f"{slopes.mean():.3g}, where a likelihood has both equal: check this column's sign and factor"
            )

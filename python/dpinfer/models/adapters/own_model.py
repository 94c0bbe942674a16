"""A model from the user's code for one record, in NumPy or a framework."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer
from dpinfer.models.adapters.parameters import Numbers, ParameterSet
from dpinfer.models.gradient_model import GradientModel

RESPONSES: Mapping[str, str] = {
    "real": "real numbers",
    "binary": "zeros and ones",
    "count": "whole numbers from 0 on",
    "positive": "positive numbers",
}

Words = npt.NDArray[np.uint64]

_MADE_UP_SEED = 20_240  # an arbitrary seed


@dataclass(frozen=True)
class ModelCode:
    """The user's code, with the interface of the library.

    **Privacy.** Code only.  A row of its result may depend on the same row of its argument alone.
    """

    # ``score(params, X, y)``: gradients of log p(y | x, params) in the flat params (n,) of the model's own space, for
    # X (B, p) and y (B,); returns (B, n)
    score: Callable[[FloatArray, FloatArray, FloatArray], Any]
    # ``log_likelihood(params, X, y)``: (B,)
    log_likelihood: Callable[[FloatArray, FloatArray, FloatArray], Any] | None = None
    # ``sampler(params, X, words)``: responses (B,) drawn given x from random words (B, n_words) of 64 bits
    sampler: Callable[[FloatArray, FloatArray, Words], Any] | None = None
    n_words: int = 1  # random words that a draw needs
    # callable or (M, p) array or None: public, made-up features: ``features(size, rng)`` returns (size, p).  Standard
    # normal where None
    features: Callable[[int, np.random.Generator], Any] | npt.NDArray[Any] | None = None
    # for messages: how the user's function behind "gradients", "log_likelihood" and "sampler" is called
    calls: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def named_failure(argument: str, call: str) -> Iterator[None]:
    """Raise the error of the user's code as a ValueError that names the argument and its call."""
    try:
        yield
    except Exception as error:
        reason = ": ".join((type(error).__name__, *str(error).splitlines()[:1])).rstrip(" .")
        raise ValueError(f"{argument} raised {reason}; it is called as {call}") from error


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


class OwnModel(GradientModel):
    """A regression of the user's own, as `from_gradient`, `from_jax`, `from_torch` and `from_numpyro` make it.

    **Privacy.** Public; holds no records.  The mechanism clips and rounds its results for a record.

    Parameters
    ----------
    parameters, bijectors, prior_mean, prior_scale
        As in :class:`ParameterSet`; or `parameters` is one.
    n_features : int
    response : {"real", "binary", "count", "positive"}
    name : str
        For messages and releases.
    fingerprint : str
        Hash of the code's results on simulated records: models with equal fingerprints count as equal.
    code : ModelCode, optional
        None for the model of a loaded release, which is used only for the posterior.
    """

    record_form: ClassVar[str] = "regression"

    def __init__(
        self,
        *,
        parameters: ParameterSet | int | Sequence[str] | Mapping[str, Sequence[int]],
        n_features: int,
        bijectors: Mapping[str, str] | None = None,
        prior_mean: Numbers = 0.0,
        prior_scale: Numbers = 1.0,
        response: str = "real",
        name: str = "own model",
        fingerprint: str = "",
        code: ModelCode | None = None,
    ) -> None:
        if not isinstance(parameters, ParameterSet):
            parameters = ParameterSet(parameters, bijectors, prior_mean, prior_scale)
        self.parameters = parameters
        self.n_features = check_integer("n_features", n_features, 1)
        self.response = check_choice("response", response, tuple(RESPONSES))
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
            raise ValueError("name must be one line of printable text, at most 200 characters long")
        self.name, self.fingerprint, self.code = name, fingerprint, code

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the n parameters, those of arrays with an index."""
        return self.parameters.names

    @property
    def has_sampler(self) -> bool:
        """Whether the model can draw a response."""
        return self.code is not None and self.code.sampler is not None

    @property
    def n_words(self) -> int:
        """Random words of 64 bits that a draw needs."""
        return self._code().n_words

    def unflatten(self, params: npt.ArrayLike) -> dict[str, FloatArray]:
        """Return draws (..., n) as named arrays, ``(..., *shape)`` each."""
        return self.parameters.unflatten(params)

    def invalid_records(self, values: FloatArray) -> str | None:
        """Return a description of valid responses if `values` are not valid, or None."""
        valid = {
            "real": True,
            "binary": np.all((values == 0.0) | (values == 1.0)),
            "count": np.all((values >= 0.0) & (values == np.floor(values))),
            "positive": np.all(values > 0.0),
        }[self.response]
        return None if valid else RESPONSES[self.response]

    def constrain(self, theta: npt.ArrayLike) -> FloatArray:
        """Map unconstrained parameters (..., n) to the model's own space."""
        return self.parameters.constrain(theta)

    def unconstrain(self, params: npt.ArrayLike) -> FloatArray:
        """Invert :meth:`constrain`."""
        return self.parameters.unconstrain(params)

    def held(self, theta: FloatArray) -> FloatArray:
        """Return the nearest unconstrained parameters (..., n) with which there is a model: all are."""
        return theta

    def _code(self) -> ModelCode:
        if self.code is None:
            raise TypeError("the model of a loaded release has no code: build it again, as it was for the run")
        return self.code

    def call(
        self, what: str, function: Callable[..., Any], theta: FloatArray, *rows: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """Return the results of the user's code for these rows, which it can read and not write.

        Raises ValueError if the code raises, or writes to its arguments; `what` names it.
        """
        call = self._code().calls.get(what, f"{what}(params, ...)")
        with named_failure(call.partition("(")[0], f"{call}; n = {self.n_params} and p = {self.n_features} here"):
            try:
                return np.asarray(function(self.parameters.constrain(theta), *map(_read_only, rows)))
            except ValueError as error:
                if "read-only" not in str(error):
                    raise
        raise ValueError(f"{what} must not write to the arrays they are given, which are the records: work on a copy")

    def scores(self, features: FloatArray, response: FloatArray, theta: FloatArray) -> FloatArray:
        """Return the gradients of log p(y | x, theta) in the unconstrained theta, (B, n).

        Raises TypeError or ValueError if the code returns anything but B rows of n real numbers.
        """
        # A copy: the result may be the code's own array.
        scores = self.mapped_scores(features, response, theta).astype(np.float64)
        if not self.parameters.unmapped:
            scores *= self.parameters.slopes(theta)
        return scores

    def mapped_scores(self, features: FloatArray, response: FloatArray, theta: FloatArray) -> npt.NDArray[Any]:
        """Return the gradients of log p(y | x, theta) in the parameters of the model's own space, (B, n).

        The code's result, if it is B rows of n real numbers: it may be the code's own array, and is not written to.
        """
        n = self.n_params
        values = self.call("gradients", self._code().score, theta, features, response)
        if values.dtype.kind not in "fiub":
            raise TypeError(f"gradients must be real numbers, got dtype {values.dtype}")
        if values.shape != (features.shape[0], n):
            rows = "B" if values.shape[:1] == features.shape[:1] else str(values.shape[:1])
            raise ValueError(
                f"gradients must have shape (B, {n}), a row for each of B records, got {values.ndim} dimensions "
                f"({rows} rows): a sum or mean over the batch is not enough"
            )
        return values

    def record_gradients(self, features: FloatArray, response: FloatArray, theta: FloatArray) -> FloatArray:
        """Return the gradients of -log p(record | theta) in theta, (B, n)."""
        slopes = -1.0 if self.parameters.unmapped else -self.parameters.slopes(theta)
        return np.asarray(self.mapped_scores(features, response, theta) * slopes, dtype=np.float64)

    def draw_responses(self, theta: FloatArray, features: FloatArray, words: Words) -> FloatArray:
        """Draw a response for each row of `features` (B, p) from its own random words (B, n_words), (B,)."""
        sampler = self._code().sampler
        if sampler is None:
            raise TypeError("the model has no sampler")
        drawn = self.call("sampler", sampler, theta, features, words)
        if drawn.dtype.kind not in "fiub" or drawn.shape != features.shape[:1]:
            raise ValueError(
                f"sampler must return B real numbers for B rows, got shape {drawn.shape} and dtype {drawn.dtype}"
            )
        return drawn.astype(np.float64)

    def made_up_features(self, size: int, rng: np.random.Generator) -> FloatArray:
        """Return public features (size, p), drawn by the model's declaration.

        Raises TypeError or ValueError if the declaration gives anything else.
        """
        declared = None if self.code is None else self.code.features
        if declared is None:
            return rng.standard_normal((size, self.n_features))
        with named_failure("features", "features(size, rng), and returns an array (size, n_features)"):
            rows = np.asarray(declared(size, rng) if callable(declared) else declared)
        if rows.dtype.kind not in "fiub":
            raise TypeError(f"features must be real numbers, got dtype {rows.dtype}")
        if not callable(declared) and rows.ndim == 2 and len(rows):
            rows = rows[rng.integers(0, len(rows), size)]
        if rows.shape != (size, self.n_features) or not np.all(np.isfinite(rows)):
            raise ValueError(
                f"features must give finite rows of {self.n_features} numbers (n_features), got shape {rows.shape}"
            )
        return np.ascontiguousarray(rows, dtype=np.float64)

    def made_up_records(self, size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return public records: made-up features, and responses drawn by the sampler or of the declared kind."""
        features = self.made_up_features(size, rng)
        if self.has_sampler:
            words = rng.integers(0, 2**64, (size, self.n_words), dtype=np.uint64)
            return features, self.draw_responses(self.parameters.prior_mean, features, words)
        drawn = {
            "real": rng.standard_normal(size),
            "binary": rng.integers(0, 2, size).astype(np.float64),
            "count": rng.poisson(2.0, size).astype(np.float64),
            "positive": rng.exponential(size=size),
        }[self.response]
        return features, drawn

    def _prior_law(self) -> tuple[FloatArray | float, FloatArray | float]:
        return self.parameters.prior_mean, self.parameters.prior_scale

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values, less its code."""
        return {
            "kind": "OwnModel",
            **self.parameters.to_dict(),
            "n_features": self.n_features,
            "response": self.response,
            "name": self.name,
            "fingerprint": self.fingerprint,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnModel) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.name, self.fingerprint, self.names))

    def __repr__(self) -> str:
        return f"OwnModel({self.name!r}: {self.n_params} parameters, {self.n_features} features)"

    def take_fingerprint(self) -> None:
        """Hash the code's results on simulated records, to six digits: another function has another fingerprint."""
        rng = np.random.default_rng(_MADE_UP_SEED)
        features, response = self.made_up_records(16, rng)
        digest = hashlib.sha256()
        with np.errstate(all="ignore"):
            for step in (-0.25, 0.25):
                at = self.parameters.prior_mean + step * np.minimum(self.parameters.prior_scale, 1.0)
                for value in self.scores(features, response, at).ravel():
                    digest.update(f"{value:.6e}".encode())
        self.fingerprint = digest.hexdigest()[:32]

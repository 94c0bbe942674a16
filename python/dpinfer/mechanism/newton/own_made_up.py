"""Made-up records of a model of the user's own, with random numbers that are common to all truths: no records."""

from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer.mechanism.newton.own_rows import N_DRAWS, PERSON_DRAWS, PERSONS_STREAM, kernel_scores
from dpinfer.models import OwnModel
from dpinfer.models.person_model import PersonModel

__all__ = ["MadeUp"]


_PERSONS = 2 * N_DRAWS // PERSON_DRAWS  # whose draws are as many as those of a record


class MadeUp:
    """Made-up records; each has the random numbers of n_draws responses.

    **Privacy.** Reads no records.

    Parameters
    ----------
    model : OwnModel
        With a sampler.
    rng : Generator
        Public.
    """

    def __init__(self, model: OwnModel, size: int, rng: np.random.Generator) -> None:
        self._model: Any = model
        # As many draws in all: a person has fewer of them.
        self._rows = model.made_up_features(size * (_PERSONS if isinstance(model, PersonModel) else 1), rng)
        self.persons = isinstance(model, PersonModel)
        if self.persons:
            self._words = rng.integers(0, 2**64, (len(self._rows), 2), dtype=np.uint64)
        else:
            self._rows = np.repeat(self._rows, 2 * N_DRAWS, axis=0)
            self._words = rng.integers(0, 2**64, (len(self._rows), model.n_words), dtype=np.uint64)

    def scores(self, theta: FloatArray, truth: FloatArray) -> FloatArray:
        """Return the scores at `theta` of responses that are drawn with `truth`, (rows, draws, n)."""
        with np.errstate(all="ignore"):
            if self.persons:
                found = kernel_scores(
                    self._model, theta, truth, np.eye(theta.size), self._rows, None, self._words, PERSONS_STREAM
                )
                return np.ascontiguousarray(found.transpose(2, 1, 0))
            drawn = self._model.draw_responses(truth, self._rows, self._words)
            scores: FloatArray = self._model.scores(self._rows, drawn, theta)
            return scores.reshape(-1, 2 * N_DRAWS, theta.size)

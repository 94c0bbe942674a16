"""A coverage study of a regression of the caller's own, each run made by the production code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpinfer._validate import check_integer
from dpinfer.accounting import plan_privacy
from dpinfer.errors import NumericalError
from dpinfer.inference import noise_aware_posterior
from dpinfer.inference.posterior.theta import ThetaDistribution
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.posteriors import chunk_result
from dpinfer.lab.studies.simulation import run_keys, simulate_data
from dpinfer.mechanism import RandomSource, run_dpvi
from dpinfer.models import GeneralizedLinearModel

__all__ = ["ModelStudy"]


@dataclass(frozen=True)
class ModelStudy:
    """A study of any generalised linear model, for :func:`dpinfer.lab.studies.coverage_study` in place of a name.

    Truths come from the prior, features are independent and normal with the model's public scales, responses follow
    the model.  A run is :func:`dpinfer.run_dpvi`, a posterior :func:`dpinfer.noise_aware_posterior`; the library's own
    models have a compiled engine, which is faster and gives the same traces.

    **Privacy.** Simulated records only, with noise from seeded keys.

    Parameters
    ----------
    model : GeneralizedLinearModel
    n_records, n_steps : int
    sample_rate : float in (0, 1]
    delta : float in (0, 1)

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.

    Examples
    --------
    >>> from dpinfer.models import ProbitRegression
    >>> from dpinfer.lab.studies import ModelStudy, coverage_study
    >>> study = ModelStudy(ProbitRegression(1), n_records=400, n_steps=60, sample_rate=0.2)
    >>> found = coverage_study(study, n_runs=4, epsilon=2.0, recipe="tied", n_draws=50, max_grad_norm=2.0)
    >>> found.study
    'ProbitRegression'
    """

    model: GeneralizedLinearModel
    n_records: int = 5000
    n_steps: int = 2500
    sample_rate: float = 0.1
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not isinstance(self.model, GeneralizedLinearModel):
            raise TypeError(f"model must be a generalised linear model, got {type(self.model).__name__}")
        check_integer("n_records", self.n_records, 1)
        check_integer("n_steps", self.n_steps, 2)

    @property
    def name(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the n unconstrained parameters."""
        return self.model.names

    def run_chunk(
        self, first: int, count: int, *, method: str, epsilon: float, seed: int, settings: Mapping[str, Any]
    ) -> ChunkResult:
        """Simulate runs ``first, ..., first + count - 1`` and return their posteriors; see :class:`Study`.

        Parameters
        ----------
        first, count : int
        method : str
            Of :func:`dpinfer.noise_aware_posterior`.
        epsilon : float
        seed : int
        settings : mapping
            ``recipe``, ``n_draws`` and ``n_threads``; ``hessian``, ``prior`` and ``burn_in`` of the posterior; and any
            other keyword of :func:`dpinfer.run_dpvi` that is plain data.

        Returns
        -------
        ChunkResult
            A posterior that fails numerically is a failed run.
        """
        options = dict(settings)
        n_draws, threads = options.pop("n_draws"), options.pop("n_threads", None)
        posterior_options = {name: options.pop(name) for name in ("hessian", "prior", "burn_in") if name in options}
        plan = plan_privacy(
            target_epsilon=epsilon, target_delta=self.delta, sample_rate=self.sample_rate, n_steps=self.n_steps
        )
        data = simulate_data(self.model, self.n_records, first=first, count=count, seed=seed)
        posteriors: list[ThetaDistribution | None] = []
        for row, key in enumerate(run_keys(seed, first, count)):
            release = run_dpvi(
                self.model,
                data.features[row],
                data.response[row],
                plan=plan,
                n_records=self.n_records,
                n_threads=threads,
                random_source=_OneKey(key),
                **options,
            )
            try:
                posterior = noise_aware_posterior(release, approximation=method, **posterior_options)
            except NumericalError:
                posteriors.append(None)
            else:
                posteriors.append(posterior.distribution)
        return chunk_result(posteriors, data, first=first, seed=seed, n_draws=n_draws)


class _OneKey(RandomSource):
    """The key of one simulated run: NOT PRIVATE."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @property
    def secure(self) -> bool:
        """False."""
        return False

    def take_key(self) -> bytes:
        """Return the key."""
        return self._key

"""Mean-field variational inference for a network, without privacy or by noisy clipped gradients."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from dpinfer._arrays import FloatArray
from dpinfer._surroundings import ProgressCallback, standard_arithmetic
from dpinfer._validate import check_integer, check_interval, settings_of
from dpinfer.accounting import LedgerAccount, PrivacyPlan
from dpinfer.lab.baselines.contributions import some_records
from dpinfer.mechanism import _native
from dpinfer.mechanism.noise_keys import RandomSource, noise_step
from dpinfer.mechanism.private_run import CheckpointArgument, RunControl
from dpinfer.mechanism.records import check_arguments
from dpinfer.mechanism.run import Algorithm, check_plan, guarantee_fields, run_steps
from dpinfer.mechanism.sites.network_dpsep import check_network_records
from dpinfer.mechanism.sources.row_source import Arrays
from dpinfer.mechanism.sums.sites import open_network_session
from dpinfer.models import BayesianNeuralNetwork, NetworkWeights
from dpinfer.models.base import sigmoid, softplus

_START_RAW_SCALE = -4.0  # small scales: the start is near the mean
_FIRST_DECAY, _SECOND_DECAY, _SMALL = 0.9, 0.999, 1e-8  # Adam's defaults (Kingma and Ba 2015)


class NetworkVIOptions(TypedDict, total=False):
    """Fields of :class:`NetworkVISettings` as keyword arguments."""

    learning_rate: float
    noise_precision: float
    prior_precision: float
    kl_weight: float
    max_grad_norm: float | None
    n_epochs: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class NetworkVISettings:
    """Settings of variational inference as in tables 6 and 7 of Vinaroz and Park (2021).

    **Privacy.** Public.

    Parameters
    ----------
    learning_rate : float
        Of Adam, positive.
    noise_precision : float
        gamma, fixed, of a standardised response.
    prior_precision : float
        lambda, of weights that are not divided by the root of their number.
    kl_weight : float
        beta, positive.
    max_grad_norm : float, optional
        Clipping norm C of a record's gradient; needed with a plan.
    n_epochs, batch_size : int
        Without a plan.
    seed : int
        Of the start and, without a plan, of the minibatches.
    """

    learning_rate: float
    noise_precision: float
    prior_precision: float
    kl_weight: float
    max_grad_norm: float | None = None
    n_epochs: int = 100
    batch_size: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "noise_precision", "prior_precision", "kl_weight"):
            object.__setattr__(self, name, check_interval(name, getattr(self, name), 0.0))
        if self.max_grad_norm is not None:
            norm = check_interval("max_grad_norm", self.max_grad_norm, 1e-30, 1e30)
            object.__setattr__(self, "max_grad_norm", norm)
        for name, least in (("n_epochs", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least))


@standard_arithmetic()
def run_network_vi(
    model: BayesianNeuralNetwork,
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    settings: NetworkVISettings | None = None,
    n_records: int | None = None,
    plan: PrivacyPlan | None = None,
    n_threads: int | None = None,
    progress: bool | ProgressCallback = False,
    random_source: RandomSource | None = None,
    ledger: LedgerAccount | None = None,
    checkpoint: CheckpointArgument = None,
    **options: Unpack[NetworkVIOptions],
) -> NetworkWeights:
    """Fit a mean-field Gaussian to a network's weights by Adam on the evidence lower bound, privately or not.

    **Privacy.** Reads the records.  Without a plan the result is NOT private.  With one, each step samples records with
    probability ``plan.sample_rate``, clips each one's gradient to ``settings.max_grad_norm`` (the L2 sensitivity under
    add/remove adjacency) and adds Gaussian noise to the sum: the weights are (epsilon, delta)-differentially private
    with the plan's numbers (docs/derivations/dp-sep-network.md).  Only they are returned.

    Parameters
    ----------
    model : BayesianNeuralNetwork
        For its shape and public scales; prior and noise are those of `settings`.
    X : (N, n_features) array
    y : (N,) array
    settings : NetworkVISettings, optional
        Its first four fields have no default: give it, or them by keyword.
    n_records : int, optional
        A *public* number of records; needed with a plan.
    plan : PrivacyPlan, optional
        With Poisson sampling; fixes the noise, the sampling and the number of steps.
    n_threads : int, optional
    progress : bool or callable
    random_source : RandomSource, optional
        With a plan; the operating system's generator by default.
    ledger : LedgerAccount, optional
        With a plan: the run is charged to it before the records are looked at, or refused.
    checkpoint : path-like or RunCheckpoint, optional
        With a plan: a file from which an interrupted run goes on, as in :func:`dpinfer.run_dpvi`.  SECRET while it
        exists.
    **options
        Fields of :class:`NetworkVISettings`, such as ``max_grad_norm=1.0``: they replace those of `settings`.

    Returns
    -------
    NetworkWeights
        In the model's scaling of weights, with the guarantee; without a plan it claims none.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    RecordError
        If the records cannot be used, or are not those of the interrupted run.
    BudgetExceededError
        If the data set's budget would be exceeded; nothing was spent.
    CheckpointError
        If `checkpoint` is of a run with other settings, is in use, or is not a checkpoint.

    Notes
    -----
    Vinaroz and Park (2021), appendix D, eqs. 115-123.  Their Monte Carlo integral over the hidden weights has a closed
    form (pre-activations are Gaussian, and only the mean and variance of f enter a Gaussian log-likelihood), which is
    used instead of draws: no Monte Carlo noise, and clipping sees the exact gradient.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)); y = np.maximum(X[:, 0], 0.0) - X[:, 1]
    >>> settings = NetworkVISettings(1e-2, 20.0, 1.0, 0.1)
    >>> fit = run_network_vi(BayesianNeuralNetwork(2, 10), X, y, settings=settings, n_epochs=60, batch_size=50)
    >>> bool(np.sqrt(np.mean((fit.predict(X)[0] - y) ** 2)) < 0.3)
    True
    """
    if not isinstance(model, BayesianNeuralNetwork):
        raise TypeError(f"model must be a BayesianNeuralNetwork, got {type(model).__name__}")
    settings = settings_of("run_network_vi", NetworkVISettings, settings, options)
    control = RunControl.checked(
        random_source=random_source, ledger=ledger, checkpoint=checkpoint, progress=progress, n_threads=n_threads
    )
    if plan is not None:
        if n_records is None or settings.max_grad_norm is None:
            raise ValueError("n_records and max_grad_norm must be given with a plan")
        total = check_plan(plan, n_records)
        check_arguments(model, y, X)
        ascent = _PrivateAscent(model, settings, total, plan, settings.max_grad_norm)
        run_steps(ascent, plan, control, lambda: check_network_records(model, X, y, plan.adjacency))
        return ascent.weights(**guarantee_fields(plan, control))
    only_private = {
        "n_records": n_records,
        "max_grad_norm": settings.max_grad_norm,
        "random_source": random_source,
        "ledger": ledger,
        "checkpoint": checkpoint,
    }
    for name, value in only_private.items():
        if value is not None:
            raise ValueError(f"{name} must not be given without a plan")
    return _run_without_privacy(model, X, y, settings, control)


def _run_without_privacy(
    model: BayesianNeuralNetwork, X: npt.ArrayLike, y: npt.ArrayLike, settings: NetworkVISettings, control: RunControl
) -> NetworkWeights:
    """Run on exact minibatches."""
    features, response = some_records(*check_network_records(model, X, y))
    total = features.shape[0]
    rng = np.random.default_rng(settings.seed)
    ascent = _Ascent(model, settings, total, rng)
    session = open_network_session(
        features,
        response,
        n_hidden=model.n_hidden,
        scales=(1.0, 1.0),
        sample_rate=1.0,
        max_norm=1.0,
        key=bytes(32),
        n_threads=control.n_threads,
    )
    per_epoch = max(1, total // settings.batch_size)
    for epoch in range(settings.n_epochs):
        order = rng.permutation(total)
        for rows in np.array_split(order, per_epoch):
            ascent.prepare(session)
            ascent.move(session.plain_sum(np.ascontiguousarray(rows), math.inf) * (total / rows.size))
        control.report(epoch + 1, settings.n_epochs)
    return ascent.weights()


class _Ascent:
    """Adam (Kingma and Ba, 2015) on the lower bound divided by N, in (loc, raw_scale)."""

    def __init__(
        self, model: BayesianNeuralNetwork, settings: NetworkVISettings, total: int, rng: np.random.Generator
    ) -> None:
        self._model, self._settings, self._total = model, settings, total
        n, layer = model.n_params, (model.n_features + 1) * model.n_hidden
        self._layer = layer
        loc = rng.standard_normal(n)
        loc[:layer] *= model.hidden_scale
        loc[layer:] *= model.output_scale
        self._params = np.concatenate((loc, np.full(n, _START_RAW_SCALE)))
        self._first, self._second, self._step = np.zeros(2 * n), np.zeros(2 * n), 0
        self._ones = np.ones(n)

    @property
    def state(self) -> dict[str, FloatArray]:
        """Parameters, and Adam's moments and number of steps."""
        made = np.array([float(self._step)])
        return {"params": self._params, "first": self._first, "second": self._second, "made": made}

    @state.setter
    def state(self, values: Mapping[str, FloatArray]) -> None:
        self._params, self._first, self._second = (values[name] for name in ("params", "first", "second"))
        self._step = int(values["made"][0])

    def prepare(self, session: _native.NetworkSession) -> tuple[Any, ...]:
        """Give the session the gradient at the current parameters, and return it."""
        n = self._model.n_params
        loc, raw = self._params[:n], self._params[n:]
        scale = softplus(raw)
        slope = np.ascontiguousarray(2.0 * scale * sigmoid(raw))
        asked = (loc.copy(), scale**2, 1.0 / self._settings.noise_precision, self._ones, slope, 0.0)
        session.set_gradients(*asked)
        return asked

    def move(self, gradient: FloatArray) -> None:
        """Take one step along an estimate of the full likelihood's gradient, (2 n + 1,)."""
        n, settings = self._model.n_params, self._settings
        loc, raw = self._params[:n], self._params[n:]
        scale = softplus(raw)
        penalty = np.concatenate(
            (settings.prior_precision * loc, (settings.prior_precision * scale - 1.0 / scale) * sigmoid(raw))
        )
        ascent = (gradient[:-1] - settings.kl_weight * penalty) / self._total
        self._step += 1
        self._first = _FIRST_DECAY * self._first + (1.0 - _FIRST_DECAY) * ascent
        self._second = _SECOND_DECAY * self._second + (1.0 - _SECOND_DECAY) * ascent**2
        first = self._first / (1.0 - _FIRST_DECAY**self._step)
        second = self._second / (1.0 - _SECOND_DECAY**self._step)
        self._params = self._params + settings.learning_rate * first / (np.sqrt(second) + _SMALL)

    def weights(self, **guarantee: Any) -> NetworkWeights:
        """Return q in the model's scaling, with the fields of its guarantee."""
        n = self._model.n_params
        unit = np.full(n, 1.0 / self._model.output_scale)
        unit[: self._layer] = 1.0 / self._model.hidden_scale
        variance = softplus(self._params[n:]) ** 2 * unit**2
        noise = 1.0 / self._settings.noise_precision
        return NetworkWeights(self._model, self._params[:n] * unit, variance, noise, **guarantee)


class _PrivateAscent(Algorithm[Arrays]):
    """The ascent on noisy sums of clipped gradients."""

    mechanism = "network_vi"

    def __init__(
        self,
        model: BayesianNeuralNetwork,
        settings: NetworkVISettings,
        total: int,
        plan: PrivacyPlan,
        max_grad_norm: float,
    ) -> None:
        self._model, self._settings, self._plan, self._norm = model, settings, plan, max_grad_norm
        self.n_records = total
        self._ascent = _Ascent(model, settings, total, np.random.default_rng(settings.seed))
        self.kept = {}

    @property
    def state(self) -> dict[str, FloatArray]:
        """Parameters, and Adam's moments and number of steps."""
        return self._ascent.state

    @state.setter
    def state(self, values: Mapping[str, FloatArray]) -> None:
        self._ascent.state = values

    def description(self) -> Mapping[str, Any]:
        """Return every public setting."""
        settings = asdict(self._settings)
        for name in ("n_epochs", "batch_size"):
            del settings[name]  # they are in the plan
        return {"model": self._model.to_dict(), "n_records": self.n_records, "settings": settings}

    def start(self, records: Arrays, control: RunControl, key: bytes) -> None:
        """Open the session."""
        self._key = key
        self._session = open_network_session(
            *records,
            n_hidden=self._model.n_hidden,
            scales=(1.0, 1.0),
            sample_rate=self._plan.sample_rate,
            max_norm=self._norm,
            key=key,
            n_threads=control.n_threads,
        )

    def query(self, step: int) -> FloatArray:
        """Return the noisy sum of clipped gradients."""
        asked, sigma = self._ascent.prepare(self._session), self._plan.noise_multiplier
        stream = noise_step(self._key, step, self._plan.n_steps, asked, self._norm, sigma)
        return self._session.noisy_sum(stream, sigma)

    def update(self, step: int, noisy: FloatArray) -> None:
        """Take a step of Adam, without any release."""
        self._ascent.move(noisy / self._plan.sample_rate)

    def weights(self, **guarantee: Any) -> NetworkWeights:
        """Return the last iterate."""
        return self._ascent.weights(**guarantee)

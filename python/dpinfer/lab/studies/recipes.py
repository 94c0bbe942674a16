"""The studies by name: their models, and the settings of every recipe on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dpinfer._arrays import FloatArray
from dpinfer._validate import check_choice, check_integer, check_interval
from dpinfer.accounting import PrivacyPlan, plan_privacy
from dpinfer.inference.posterior.theta import IndependentTheta
from dpinfer.inference.trace.scales.fisher import FisherRun
from dpinfer.inference.trace.scales.tied import fisher_burn_in
from dpinfer.lab.baselines import RegressionPrior
from dpinfer.lab.studies.baseline_runs import (
    SimulatedConjugate,
    SimulatedRegression,
    bernstein_sheldon_chunk,
    gibbs_ss_noisy_chunk,
)
from dpinfer.lab.studies.chunk import ChunkResult
from dpinfer.lab.studies.posteriors import by_coordinate, chunk_result, each, plug_in, tied
from dpinfer.lab.studies.simulation import (
    N_NODES,
    RunData,
    RunReleases,
    Settings,
    StudyModel,
    simulate_data,
    simulate_releases,
)
from dpinfer.models import (
    BetaBernoulli,
    BetaBinomial,
    ConjugateModel,
    DirichletCategorical,
    GammaExponential,
    GeneralizedLinearModel,
    LinearRegression,
    LogisticRegression,
    default_max_grad_norm,
)
from dpinfer.recipes import FisherScaling, GradientArguments, choose_gradient_run, natural_scaling

__all__ = ["SimulationStudy", "find"]

DELTA = 1e-5  # of the published experiments
METHODS = ("exact", "laplace", "naive", "averaged", "dpvim", "bernstein-sheldon", "gibbs-ss-noisy")
RECIPES = ("tied", "aligned", "plain", "paper", "dpvim")
_FISHER_RECIPES = ("tied", "aligned")
_SCALING_OPTIONS = ("excursion", "largest_rate", "decay", "tolerance")
_MECHANISM_OPTIONS = {"n_steps", "sample_rate", "max_grad_norm", "raw_ratio", *_SCALING_OPTIONS}
_OPTIONS = _MECHANISM_OPTIONS | {"n_records", "burn_in", "prior", "correct", "extra_noise", "n_burn_in", "n_samples"}
_AVERAGED_BURN_IN = 0.5  # half of the trace, as the published averages


@cache
def _plan(epsilon: float, sample_rate: float, n_steps: int) -> PrivacyPlan:
    return plan_privacy(target_epsilon=epsilon, target_delta=DELTA, sample_rate=sample_rate, n_steps=n_steps)


@dataclass(frozen=True)
class Published:
    """Settings of the NA-DPVI paper for one study: start, clipping norm, preconditioner, learning-rate factors v."""

    loc: tuple[float, ...]
    raw_scale: float
    max_grad_norm: float
    raw_grad_scale: float
    loc_rate: tuple[float, ...]
    raw_rate: float


@dataclass(frozen=True)
class SimulationStudy:
    """A study of simulated runs of the mechanism on one model.

    **Privacy.** Simulated records only, with noise from seeded keys.

    Parameters
    ----------
    name : str
    model : Model
    published : Published
    published_model : Model
        The model as the NA-DPVI paper parameterises it.
    section : pair of float, optional
        Public section of the unbounded records, for Bernstein-Sheldon.
    bounds : pair of float, optional
        Public bounds of features and response, for Gibbs-SS-Noisy.
    """

    name: str
    model: StudyModel
    published: Published
    published_model: StudyModel
    section: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the n unconstrained parameters."""
        return self.model.names

    @property
    def backends(self) -> tuple[str, ...]:
        """Where private sums of the study's records can be made."""
        return ("cpu", "cuda") if isinstance(self.model, GeneralizedLinearModel) else ("cpu",)

    def default_max_grad_norm(self, raw_ratio: float = FisherScaling.raw_ratio) -> float:
        """Return the clipping norm of the recipe "tied"."""
        return default_max_grad_norm(self.model, raw_ratio)

    def run_chunk(
        self, first: int, count: int, *, method: str, epsilon: float, seed: int, settings: Mapping[str, Any]
    ) -> ChunkResult:
        """Simulate runs ``first, ..., first + count - 1`` and return their posteriors; see :class:`Study`.

        Parameters
        ----------
        first, count : int
        method : {"exact", "laplace", "naive", "averaged", "dpvim", "bernstein-sheldon", "gibbs-ss-noisy"}
            "dpvim" is "averaged" with the variance of the iterates (of their means over blocks of a hundredth of the
            steps) added to that of q: see :func:`dpinfer.lab.baselines.run_dpvim`.
        epsilon : float
        seed : int
        settings : mapping
            ``recipe``: "tied" (default; "plain" for logistic regression; "dpvim" for the method of that name),
            "aligned" (as "tied", with aligned gradients), "plain", "paper" or "dpvim"; ``n_draws``,
            ``n_threads``; and, all optional, ``backend`` ("cpu"; where sums are made, which changes no result),
            ``n_records`` (5000), ``n_steps`` (2500 for "tied" and "aligned", else 10000), ``sample_rate`` (0.1),
            ``max_grad_norm``, ``raw_ratio``, ``excursion``, ``largest_rate``, ``decay``, ``tolerance``, ``burn_in``,
            ``prior``, ``correct``, ``extra_noise``, ``n_burn_in`` and ``n_samples`` (of the Gibbs samplers).

        Returns
        -------
        ChunkResult

        Raises
        ------
        TypeError, ValueError
            If a method, a recipe or a setting is unknown or does not fit the others.
        """
        options = dict(settings)
        recipe = options.pop("recipe", None)
        n_draws = options.pop("n_draws")
        n_threads = options.pop("n_threads", None)
        backend = check_choice("backend", options.pop("backend", "cpu"), self.backends)
        unknown = set(options) - _OPTIONS
        if unknown:
            raise TypeError(f"settings must be among {sorted(_OPTIONS)}, got {sorted(unknown)}")
        check_choice("method", method, METHODS)
        n_records = check_integer("n_records", options.get("n_records", 5000), 1)
        if method in ("bernstein-sheldon", "gibbs-ss-noisy"):
            if backend != "cpu":
                raise ValueError(f"backend must be 'cpu' with method {method!r}, got {backend!r}")
            return self._baseline(first, count, method, epsilon, seed, n_records, n_draws, n_threads, options)
        default = "dpvim" if method == "dpvim" else "tied" if self.model.natural_steps else "plain"
        recipe = check_choice("recipe", default if recipe is None else recipe, RECIPES)
        if method == "laplace" and recipe in _FISHER_RECIPES:
            raise ValueError(
                "method 'laplace' must be used with recipe 'plain' or 'paper': the tied posterior is exact"
            )
        if recipe == "dpvim" and method not in ("dpvim", "averaged", "naive"):
            raise ValueError(f"recipe 'dpvim' must be used with method 'dpvim', 'averaged' or 'naive', got {method!r}")
        if method == "dpvim" and recipe != "dpvim":
            raise ValueError(f"method 'dpvim' must be used with recipe 'dpvim', got {recipe!r}")
        model = self.model if recipe in _FISHER_RECIPES else self.published_model
        mechanism = tuple(sorted((name, value) for name, value in options.items() if name in _MECHANISM_OPTIONS))
        threads = 0 if n_threads is None else n_threads
        # Chunks for a GPU are large: none is kept.
        simulated = _runs if backend == "cpu" else _runs.__wrapped__
        data, releases, fisher = simulated(
            self, model, recipe, epsilon, n_records, mechanism, first, count, seed, threads, backend
        )
        extra_noise = bool(options.get("extra_noise", True))
        if not np.all(releases.finite):
            raise ValueError("settings must keep the iterates finite: a simulated run diverged")
        posteriors: Sequence[IndependentTheta | None]
        if method == "naive":
            posteriors = plug_in(releases.final_params)
        elif method in ("averaged", "dpvim"):
            burn_in = check_interval("burn_in", options.get("burn_in", _AVERAGED_BURN_IN), 0.0, 1.0, low_open=False)
            path = releases.path[:, releases.first_block(burn_in) :]
            spread = path[:, :, : model.n_params].var(axis=1) if method == "dpvim" else None
            posteriors = plug_in(path.mean(axis=1), spread)
        elif fisher is not None:
            burn_in = check_interval(
                "burn_in", options.get("burn_in", fisher_burn_in(self.model)), 0.0, 1.0, low_open=False
            )
            correct = bool(options.get("correct", True))
            posteriors = each(
                releases,
                lambda part: tied(
                    part, fisher, burn_in=burn_in, extra_noise=extra_noise, correct=correct, n_threads=threads
                ),
            )
        else:
            burn_in = check_interval("burn_in", options.get("burn_in", 0.2), 0.0, 1.0, low_open=False)
            prior = options.get("prior", "empirical" if recipe == "paper" else "weak")
            posteriors = each(
                releases,
                lambda part: by_coordinate(
                    part,
                    model.n_params,
                    method=method,
                    prior=prior,
                    burn_in=burn_in,
                    extra_noise=extra_noise,
                    n_threads=threads,
                ),
            )
        return chunk_result(posteriors, data, first=first, seed=seed, n_draws=n_draws)

    def _settings(
        self, model: StudyModel, recipe: str, epsilon: float, n_records: int, options: dict[str, Any]
    ) -> tuple[Settings, FisherRun | None]:
        rate = check_interval("sample_rate", options.get("sample_rate", 0.1), 0.0, 1.0, high_open=False)
        steps = check_integer("n_steps", options.get("n_steps", 2500 if recipe in _FISHER_RECIPES else 10_000), 2)
        plan = _plan(epsilon, rate, steps)
        tied = recipe in _FISHER_RECIPES
        defaults = (
            self._tied(model, recipe, plan, n_records, options) if tied else self._published(recipe, plan, options)
        )
        run = choose_gradient_run(model, plan, n_records, defaults)
        chosen = run.settings
        if chosen.raw_ratio is None or chosen.tolerance is None:
            return Settings.of(run), None
        noise, norm = plan.noise_multiplier, run.max_grad_norm
        return Settings.of(run), FisherRun(model, n_records, rate, noise, norm, chosen.raw_ratio, chosen.tolerance)

    def _tied(
        self, model: StudyModel, recipe: str, plan: PrivacyPlan, n_records: int, options: dict[str, Any]
    ) -> GradientArguments:
        """Return the library's own settings, less what the options change."""
        aligned = recipe == "aligned"
        ratio = check_interval("raw_ratio", options.get("raw_ratio", FisherScaling.raw_ratio), 0.0)
        norm = options.get("max_grad_norm", self.default_max_grad_norm(0.0 if aligned else ratio))
        norm = check_interval("max_grad_norm", norm, 0.0)
        scaling_options = {name: options[name] for name in _SCALING_OPTIONS if name in options}
        scaling = natural_scaling(
            model,
            n_records,
            plan.sample_rate,
            plan.n_steps,
            plan.noise_multiplier * norm,
            **({"raw_ratio": ratio} | scaling_options),
        )
        gradient = "aligned" if aligned else "reparameterised"
        return GradientArguments(max_grad_norm=norm, grad_scale=scaling, gradient=gradient, n_nodes=N_NODES)

    def _published(self, recipe: str, plan: PrivacyPlan, options: dict[str, Any]) -> GradientArguments:
        """Return the settings of the NA-DPVI paper."""
        paper, n = self.published, self.published_model.n_params
        norm = check_interval("max_grad_norm", options.get("max_grad_norm", paper.max_grad_norm), 0.0)
        # Aligned gradients have no raw_scale gradient to precondition: it is derived from that of loc.
        grad_scale = np.repeat([1.0, 1.0 if recipe == "dpvim" else paper.raw_grad_scale], n)
        factors = np.concatenate((np.resize(paper.loc_rate, n), np.full(n, paper.raw_rate)))
        return GradientArguments(
            recipe="paper" if recipe == "paper" else "plain",
            max_grad_norm=norm,
            grad_scale=grad_scale,
            learning_rate=factors * grad_scale / (np.sqrt(plan.n_steps * 2 * n) * plan.noise_multiplier * norm),
            loss="split" if recipe == "plain" else "per_example",
            gradient="aligned" if recipe == "dpvim" else "reparameterised",
            n_nodes=N_NODES,
            start=(np.resize(paper.loc, n), np.full(n, paper.raw_scale)),
        )

    def _baseline(
        self,
        first: int,
        count: int,
        method: str,
        epsilon: float,
        seed: int,
        n_records: int,
        n_draws: int,
        n_threads: int | None,
        options: dict[str, Any],
    ) -> ChunkResult:
        model = self.published_model

        def data_of(start: int, runs: int) -> RunData:
            return simulate_data(model, n_records, first=start, count=runs, seed=seed)

        chain = {name: options[name] for name in ("n_burn_in", "n_samples") if name in options}
        if method == "bernstein-sheldon":
            if not isinstance(model, ConjugateModel):
                raise ValueError("method 'bernstein-sheldon' must be used with a conjugate study")

            def conjugate(start: int, runs: int) -> SimulatedConjugate:
                data = data_of(start, runs)
                if data.counts.size == 0:
                    records = data.statistics[..., 0]
                else:
                    values = np.arange(data.counts.shape[1])
                    records = np.stack([np.repeat(values, tally) for tally in data.counts])
                return SimulatedConjugate(data.truth, records, data.reference_width90)

            keep = model.n_params

            def unconstrain(params: FloatArray) -> FloatArray:
                return model.unconstrain(params[..., :keep])

            return bernstein_sheldon_chunk(
                first,
                count,
                simulate=conjugate,
                model=model,
                unconstrain=unconstrain,
                epsilon=epsilon,
                seed=seed,
                bounds=self.section,
                n_draws=n_draws,
                **chain,
            )
        if not isinstance(model, LinearRegression) or self.bounds is None:
            raise ValueError("method 'gibbs-ss-noisy' must be used with the study 'linear-regression'")

        def regression(start: int, runs: int) -> SimulatedRegression:
            data = data_of(start, runs)
            return SimulatedRegression(data.truth, data.features, data.response, data.reference_width90)

        prior = RegressionPrior(precision=model.prior_scale**-2.0, shape=model.variance_shape, rate=model.variance_rate)
        return gibbs_ss_noisy_chunk(
            first,
            count,
            simulate=regression,
            prior=prior,
            feature_bound=self.bounds[0],
            response_bound=self.bounds[1],
            epsilon=epsilon,
            seed=seed,
            n_draws=n_draws,
            n_threads=n_threads,
            **chain,
        )


@lru_cache(maxsize=24)
def _runs(
    study: SimulationStudy,
    model: StudyModel,
    recipe: str,
    epsilon: float,
    n_records: int,
    options: tuple[tuple[str, Any], ...],
    first: int,
    count: int,
    seed: int,
    n_threads: int,
    backend: str,
) -> tuple[RunData, RunReleases, FisherRun | None]:
    """Simulate a chunk; the last few are kept, so that several methods on the same runs simulate them once."""
    settings, fisher = study._settings(model, recipe, epsilon, n_records, dict(options))
    data = simulate_data(model, n_records, first=first, count=count, seed=seed)
    releases = simulate_releases(model, data, settings, first=first, seed=seed, n_threads=n_threads, backend=backend)
    light = replace(data, statistics=np.empty((0, 0)), features=np.empty((0, 0, 0)), response=np.empty((0, 0)))
    return light, releases, fisher


_ROOT2 = float(np.sqrt(2.0))  # preconditioner of the published experiments


@cache
def find(name: str) -> SimulationStudy:
    """Return the study of this name.

    **Privacy.** No data.

    Parameters
    ----------
    name : str

    Returns
    -------
    SimulationStudy

    Raises
    ------
    ValueError
        If there is none of this name.

    Notes
    -----
    Priors, preconditioners, clipping norms, starts and rates of the recipe "paper" are those of NA-DPVI's experiments.
    """
    conjugate = Published((0.0,), -4.0, 2.0, 100.0, (_ROOT2,), _ROOT2)
    regression = LinearRegression(10, prior_scale=2.0, fit_intercept=True, variance_shape=20.0, variance_rate=0.5)
    logistic = LogisticRegression(5, fit_intercept=True)
    studies = {
        "gamma-exponential": SimulationStudy(
            "gamma-exponential", GammaExponential(), conjugate, GammaExponential(), section=(0.0, 2.0)
        ),
        "beta-bernoulli": SimulationStudy(
            "beta-bernoulli", BetaBernoulli(), Published((0.0,), -4.0, 2.0, 120.0, (_ROOT2,), _ROOT2), BetaBernoulli()
        ),
        "beta-binomial": SimulationStudy("beta-binomial", BetaBinomial(10), conjugate, BetaBinomial(10)),
        "dirichlet-categorical": SimulationStudy(
            "dirichlet-categorical",
            DirichletCategorical(),
            Published((0.0,), -6.0, _ROOT2, 100.0, (_ROOT2,), _ROOT2),
            DirichletCategorical(bijector="softmax"),
        ),
        "linear-regression": SimulationStudy(
            "linear-regression",
            regression,
            Published(
                (1.0,) * 11 + (-4.0,), -6.0, 260.0, 1500.0, (4.0 * _ROOT2,) * 11 + (4.0 * _ROOT2 / 28.0,), 4.0 * _ROOT2
            ),
            regression,
            bounds=(4.0, float(4.0 * np.sqrt(0.5 / 19.0 * (1.0 + 4.0 * 11.0)))),
        ),
        "logistic-regression": SimulationStudy(
            "logistic-regression",
            logistic,
            Published((0.0,), -6.0, 3.0, 550.0, (float(np.sqrt(6.0)) * _ROOT2,), float(np.sqrt(6.0)) * _ROOT2),
            logistic,
        ),
    }
    check_choice("study", name, studies)
    return studies[name]

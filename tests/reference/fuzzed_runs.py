"""Private Newton runs with hostile settings as fuzzing targets: once a run is paid for, it must return a release."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import dpinfer as dpi
from dpinfer.errors import DpinferError
from dpinfer.mechanism import ShardedRows, Silos, Units, rows_of_arrays
from dpinfer.mechanism.newton.plan import has_population_target
from dpinfer.mechanism.silos import Site
from dpinfer.testing import InsecureRNG
from tests.reference.fuzzing import Target, UndocumentedError
from tests.reference.silo_runs import LossyLine

SCALES = (1e-300, 1e-100, 1e-30, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1.0, 1.0, 1e3, 1e6, 1e9, 1e12, 1e15, 1e30, 1e100)
KINDS = ("LinearRegression", "LogisticRegression", "ProbitRegression", "PoissonRegression")


class Witness(InsecureRNG):
    """A source that knows whether its key was taken: from then on the run is paid for."""

    paid = False

    def take_key(self):
        self.paid = True
        return super().take_key()


def own_model(rng, n_features, *, sampler):
    """A logistic regression, which may be wild far out."""
    wild = rng.random() < 0.3

    def gradient(theta, X, y):
        eta = np.sum(X * theta, axis=1)
        residual = y - 1.0 / (1.0 + np.exp(-eta))
        return X * (np.where(np.abs(eta) > 6.0, np.nan, residual) if wild else residual)[:, None]

    def draw(theta, X, u):
        return (u[:, 0] < 1.0 / (1.0 + np.exp(-np.sum(X * theta, axis=1)))).astype(float)

    return dpi.models.from_gradient(
        gradient,
        n_features,
        n_features=n_features,
        response="binary",
        sampler=draw if sampler else None,
        prior_scale=float(rng.choice((1.0, 1.0, 1e-6, 1e-2, 10.0, 1e4))),
        features=lambda size, generator: generator.normal(size=(size, n_features)),
    )


class NewtonSettings(Target):
    """Public settings far from what the records are like, and records far from what a model says."""

    documented = (TypeError, ValueError, DpinferError)

    def __init__(self, folder):
        self.executor = ThreadPoolExecutor(1)

    def scale(self, rng):
        return rng.choice(SCALES) if rng.random() < 0.5 else 1.0

    def model(self, rng):
        """Return a model, and the size of each feature that its declaration speaks of."""
        n = rng.choice((1, 2, 2, 3, 5))
        kind = rng.choice((*KINDS, *KINDS, "own"))
        if kind == "own":
            return own_model(rng, n, sampler=rng.random() < 0.5), np.ones(n)
        options = {"fit_intercept": rng.random() < 0.7}
        if rng.random() < 0.4:
            options["prior_scale"] = rng.choice(SCALES)
        sizes = np.array([self.scale(rng) for _ in range(n)])
        declared = rng.choice(("scales", "scale", "moments", "nothing"))
        if declared == "scales":
            options["feature_scale"] = tuple(sizes.tolist())
        elif declared == "scale":
            options["feature_scale"] = float(sizes[0])
        elif declared == "moments":
            means = sizes * rng.choice((0.0, 0.5, 1.0))
            moments = np.outer(means, means) + np.diag(sizes**2 * rng.choice((1.0, 0.25, 1e-6)))
            options["feature_moments"] = np.block([[moments, means[:, None]], [means[None], np.ones((1, 1))]]).tolist()
            options["feature_moments_known"] = rng.random() < 0.5
        return getattr(dpi.models, kind)(n, **options), sizes

    def records(self, rng, model, sizes):
        generator = np.random.default_rng(rng.randrange(2**32))
        n = rng.choice((1, 30, 200, 200))
        X = generator.normal(size=(n, model.n_features)) * sizes * rng.choice((0.0, 1.0, 1.0, 1.0, 1e-9, 1e9))
        if rng.random() < 0.2:
            X[:, -1] = X[:, 0]
        if rng.random() < 0.2:
            X[rng.randrange(n)] = rng.choice((0.0, 1e100, 1e300, -1e300, 5e-324))
        y = generator.normal(size=n)
        if model.response == "binary":
            y = (y > rng.choice((-9.0, 0.0, 0.0, 9.0))).astype(float)
        elif model.response == "count":
            y = np.floor(np.exp(np.clip(y * rng.choice((1.0, 5.0)) + rng.choice((0.0, 6.0, -9.0, 30.0)), -9, 35)))
        else:
            y = y * self.scale(rng)
        return X, y

    def streamed(self, rng, X, y):
        """Return the records as a stream, or as shards of it."""
        size, n_shards = rng.choice((1, 7, 10**4)), rng.choice((0, 1, 2, 3))
        if n_shards == 0:
            return (rows_of_arrays(X, y, block_rows=size),)
        parts = [(X[begin::n_shards], y[begin::n_shards]) for begin in range(min(n_shards, len(X)))]
        return (ShardedRows(self.executor, [rows_of_arrays(*part, block_rows=size) for part in parts]),)

    def source(self, rng, model, X, y):
        """Return the records, what else a run takes with them, and whether it is paid for."""
        witness = Witness(rng.randrange(2**31))
        options = {"random_source": witness, "n_threads": 1}
        rows = (X, y)
        if rng.random() < 0.1:
            options["unit"] = Units(np.sort(np.arange(len(X)) // 3), max_rows=rng.choice((1, 3, 1e6)))
        elif rng.random() < 0.3:
            rows = self.streamed(rng, X, y)
        return rows, options, lambda: witness.paid

    def feed(self, rng):
        model, sizes = self.model(rng)
        X, y = self.records(rng, model, sizes)
        n_records = rng.choice((len(X), len(X), 1, 2, 10**4, 10**9))
        options = {}
        if isinstance(model, dpi.models.LinearRegression):
            options["response_scale"] = self.scale(rng)
        rows, more, paid = self.source(rng, model, X, y)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            # What else warns of public arithmetic that went astray is a finding too.
            warnings.simplefilter("error", RuntimeWarning)
            plan = dpi.plan_newton(
                model,
                target_epsilon=rng.choice((0.01, 0.1, 1.0, 10.0, 100.0)),
                target_delta=1e-6,
                n_records=rng.choice((n_records, 100, 10**6)),
                adjacency=rng.choice(("add_remove", "replace_one")),
                target=rng.choice(("model", "model", "population")) if has_population_target(model) else "model",
            )
            try:
                release = dpi.run_newton(model, *rows, plan=plan, n_records=n_records, **options, **more)
            except Exception as error:
                if paid():
                    raise UndocumentedError(f"paid for and lost: {type(error).__name__}: {error}") from error
                raise
        for name, values in vars(release).items():
            if isinstance(values, np.ndarray) and not np.all(np.isfinite(values)):
                raise UndocumentedError(f"{name} is not finite")


class SiloSettings(NewtonSettings):
    """The same over sites in this process, of which one may be lost; a site is charged before its first pass."""

    def source(self, rng, model, X, y):
        n_sites, may_vanish = rng.choice((3, 4)), rng.choice((0, 1))
        own = model if isinstance(model, dpi.models.OwnModel) else None
        sites = [
            Site(X[part], y[part], model=own, random_source=InsecureRNG(rng.randrange(2**31)), n_threads=1)
            for part in np.array_split(np.arange(len(X)), n_sites)
        ]
        lost = {rng.randrange(n_sites): (rng.choice(("pass", "opening")), rng.randrange(8))} if may_vanish else {}
        silos = Silos(LossyLine(sites, lost), may_vanish=may_vanish, may_collude=1)
        return (silos,), {}, lambda: any(site._state is not None and site._state.charged for site in sites)


RUNS = (NewtonSettings, SiloSettings)

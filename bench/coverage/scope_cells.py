"""The cells of bench/coverage/newton_scope.py: a random design of regressions, their features, truths and responses.

The design is drawn from ``SEED``, which was committed before any constant or threshold looked at it.
"""

import gzip
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

import dpinfer as dpi
from newton_runs import autoregressive

SEED = 20_261_122_20
REAL_SETS = (
    "power-plant",
    "kin8nm",
    "protein-tertiary-structure",
    "wine-quality-red",
    "concrete",
    "energy",
    "naval-propulsion-plant",
    "yacht",
)
MODELS = {
    "linear": dpi.models.LinearRegression,
    "logistic": dpi.models.LogisticRegression,
    "probit": dpi.models.ProbitRegression,
    "Poisson": dpi.models.PoissonRegression,
}
# Fixed truths in units of the prior's standard deviation, over and over: the first of them in its tail.
TAIL = (2.5, -0.5, 0.8, -1.2, 0.2, -0.1)
LARGEST_MEAN = 2000.0  # of a count: tables end there
RARE_PRIOR = 3.0

FloatArray = npt.NDArray[np.float64]
Regression = dpi.models.GeneralizedLinearModel


@dataclass(frozen=True)
class Cell:
    """A population of regressions, what is declared of it, and a privacy budget.

    Parameters
    ----------
    index : int
    model : str
        One of MODELS.
    columns : str
        "normal" (AR(1)), "mixed" (numeric ones and indicators of categories), "adult" or one of REAL_SETS.
    n_features, n_records : int
        Of real columns at most.
    correlation : float
    intercept : bool
    spread : float
        Root mean square of a predictor (without a scale), or prior standard deviation of a weight in units of sigma.
    noise_variance : float
    mean : float or None
        Mean response that the intercept sets; None where it is drawn like a weight.
    tail : bool
        Whether the weights are those of TAIL instead of draws from the prior.
    scale_error, records_error, response_error : float
        Features over their declared size, declared number of records and `response_scale` over the true ones.
    schema : bool
        Whether indicators are declared as such, or as features of mean square 1.
    epsilon, delta : float
    """

    index: int
    model: str
    columns: str
    n_features: int
    n_records: int
    correlation: float
    intercept: bool
    spread: float
    noise_variance: float
    mean: float | None
    tail: bool
    scale_error: float
    records_error: float
    response_error: float
    schema: bool
    epsilon: float
    delta: float

    @property
    def seen(self) -> bool:
        """Whether constants may be chosen on this cell."""
        return self.index % 2 == 0

    def __str__(self) -> str:
        size = f"d {self.n_features} N {self.n_records}"
        what = f"{size} AR {self.correlation:.2f}" if self.columns == "normal" else f"{self.columns} {size}"
        extra = "" if self.mean is None else f" mean {self.mean:.2g}"
        extra += " tail" if self.tail else ""
        extra += "" if self.scale_error == 1.0 else f" scale {self.scale_error:.2f}"
        extra += "" if self.records_error == 1.0 else f" N {self.records_error:.1f}"
        half = "seen" if self.seen else "unseen"
        return f"{self.index:3d} {half:6s} {self.model:8s} eps {self.epsilon:4.2f} {what}{extra}"


def draw_design(size: int, seed: int = SEED) -> list[Cell]:
    """Return the first `size` cells of the design; its halves are the even and the odd cells."""
    rng = np.random.default_rng(seed)
    return [_draw_cell(index, rng) for index in range(size)]


def _draw_cell(index: int, rng: np.random.Generator) -> Cell:
    model = str(rng.choice(list(MODELS), p=[0.4, 0.25, 0.15, 0.2]))
    columns = str(rng.choice(["normal", "real", "mixed", "adult"], p=[0.4, 0.25, 0.25, 0.1]))
    real = str(rng.choice(REAL_SETS))
    spreads = {"linear": (1.0, 2.0, 4.0), "Poisson": (0.3, 0.7, 1.0)}.get(model, (0.5, 1.0, 2.0))
    set_mean = bool(rng.uniform() < 0.35)
    least, most = (0.05, 20.0) if model == "Poisson" else (0.02, 0.3)
    mean = float(np.exp(rng.uniform(np.log(least), np.log(most))))
    return Cell(
        index=index, model=model, columns=real if columns == "real" else columns,
        n_features=int(np.rint(np.exp(rng.uniform(0.0, np.log(60.0))))),
        n_records=int(np.exp(rng.uniform(np.log(1000.0), np.log(50_000.0)))),
        correlation=float(rng.choice([0.0, rng.uniform(0.2, 0.95), 0.99], p=[0.3, 0.6, 0.1])),
        intercept=bool(rng.uniform() < 0.7), spread=float(rng.choice(spreads)),
        noise_variance=float(np.exp(rng.uniform(np.log(0.02), np.log(10.0)))),
        mean=mean if set_mean and model != "linear" else None, tail=bool(rng.uniform() < 0.2),
        scale_error=float(rng.choice([1.0, 1.1, 1.3, 1.0 / 1.3], p=[0.55, 0.15, 0.15, 0.15])),
        records_error=float(rng.choice([1.0, 0.9, 1.1], p=[0.7, 0.15, 0.15])),
        response_error=float(10.0 ** rng.uniform(-1.0, 1.0)), schema=bool(rng.uniform() < 0.5),
        epsilon=float(np.exp(rng.uniform(np.log(0.1), np.log(8.0)))), delta=float(10.0 ** rng.uniform(-8.0, -5.0)),
    )  # fmt: skip


def data_folder() -> Path | None:
    """Return the folder with the public data sets, or None without DPINFER_DATA."""
    folder = os.environ.get("DPINFER_DATA")
    return Path(folder) if folder else None


@cache
def real_columns(name: str) -> FloatArray | None:
    """Return the standardised features of a UCI set, clipped at 4, or None without DPINFER_DATA."""
    folder = data_folder()
    if folder is None:
        return None
    with gzip.open(folder / f"{name}.csv.gz", "rt") as stream:
        columns = np.loadtxt(stream, delimiter=",", skiprows=1)[:, :-1]
    spread = columns.std(axis=0)
    columns = columns[:, spread > 0.0]
    return np.clip((columns - columns.mean(axis=0)) / spread[spread > 0.0], -4.0, 4.0)


@cache
def _adult() -> tuple[FloatArray, FloatArray] | None:
    """Return Adult's features and the second moments that its schema declares."""
    folder = data_folder()
    if folder is None:
        return None
    schema = dpi.tabular.Schema.load(Path(__file__).parents[2] / "examples" / "adult.toml")
    return dpi.tabular.read_table(folder / "adult.data.csv.gz", schema).X, np.asarray(schema.feature_moments)


@dataclass(frozen=True)
class Population:
    """What all runs of a cell share.

    Parameters
    ----------
    cell : Cell
    model : GeneralizedLinearModel
        As it is declared.
    fixed : (n, p) array or None
        Real columns, of which a run takes records.
    categories : tuple of int
        Numbers of categories of the mixed columns.
    """

    cell: Cell
    model: Regression
    fixed: FloatArray | None
    categories: tuple[int, ...]

    @classmethod
    def of(cls, cell: Cell) -> "Population | None":
        """Return a cell's population, or None where its columns are not there."""
        rng = np.random.default_rng([SEED, cell.index])
        fixed, moments, categories = None, None, ()
        if cell.columns == "adult":
            found = _adult()
            if found is None:
                return None
            fixed, moments = found
        elif cell.columns == "mixed":
            categories = tuple(rng.integers(3, 9, size=max(1, cell.n_features // 6)).tolist())
            moments = _declared(_numeric(cell), categories) if cell.schema else None
        elif cell.columns != "normal":
            fixed = real_columns(cell.columns)
            if fixed is None:
                return None
        width = cell.n_features if fixed is None else fixed.shape[1]
        if cell.columns == "mixed":
            width = _numeric(cell) + sum(categories) - len(categories)
        scale = RARE_PRIOR if cell.mean is not None else cell.spread
        if cell.model != "linear" and cell.mean is None:
            scale = cell.spread / np.sqrt(width)
        intercept = cell.intercept or cell.columns in ("mixed", "adult") or cell.mean is not None
        options = {} if moments is None else {"feature_moments": moments}
        model = MODELS[cell.model](width, prior_scale=float(scale), fit_intercept=intercept, **options)
        return cls(cell, model, fixed, categories)

    def features(self, rng: np.random.Generator) -> FloatArray:
        """Return the features of one run."""
        cell = self.cell
        if cell.columns == "adult" and self.fixed is not None:
            return np.ascontiguousarray(self.fixed[_some(len(self.fixed), max(cell.n_records, 5000), rng)])
        if self.fixed is not None:
            return cell.scale_error * self.fixed[_some(len(self.fixed), cell.n_records, rng)]
        if cell.columns == "normal":
            return cell.scale_error * autoregressive(cell.n_records, cell.n_features, cell.correlation)(rng)
        numeric = autoregressive(cell.n_records, _numeric(cell), cell.correlation)(rng)
        blocks = [cell.scale_error * numeric]
        for number, size in enumerate(self.categories):
            # The categories of the first block are ranges of the first number; those of the others are drawn.
            place = numeric[:, 0] if number == 0 else rng.normal(size=cell.n_records)
            shares = np.cumsum(0.5 ** np.arange(size) / np.sum(0.5 ** np.arange(size)))[:-1]
            order = np.searchsorted(np.quantile(place, shares), place)
            blocks.append((order[:, None] == np.arange(1, size)).astype(np.float64))
        return np.ascontiguousarray(np.hstack(blocks))

    def truth(self, design: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return weights: drawn from the prior, or fixed; for counts again while one has a mean beyond the tables."""
        cell, d = self.cell, self.model.n_coef
        sigma = np.sqrt(cell.noise_variance) if cell.model == "linear" else 1.0
        scale = cell.spread / np.sqrt(self.model.n_features) if cell.mean is not None else self.model.prior_scale
        for attempt in range(200):
            weights = np.resize(TAIL, d) if cell.tail else rng.normal(size=d)
            weights = weights * scale * sigma * (1.0 if attempt < 100 else 0.5)
            if cell.mean is not None:
                weights[-1] = _intercept(self.model, design[:, :-1] @ weights[:-1], cell.mean)
            if cell.model != "Poisson" or float(np.exp(np.max(design @ weights))) < LARGEST_MEAN:
                return weights
        raise RuntimeError("no weights have means within the tables")

    def responses(self, design: FloatArray, truth: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return responses of the model."""
        predictor = design @ truth
        if self.cell.model == "linear":
            return predictor + np.sqrt(self.cell.noise_variance) * rng.normal(size=len(design))
        mean = self.model.inverse_link(predictor)
        return rng.poisson(mean) + 0.0 if self.cell.model == "Poisson" else (rng.random(len(mean)) < mean) + 0.0

    def information(self, design: FloatArray, truth: FloatArray) -> FloatArray:
        """Return the precision of the weights without privacy: exact, or that of the normal approximation."""
        if self.cell.model == "linear":
            prior = np.eye(truth.size) / self.model.prior_scale**2
            return (design.T @ design + prior) / self.cell.noise_variance
        eta = design @ truth
        mean = self.model.inverse_link(eta)
        slope = (self.model.inverse_link(eta + 1e-5) - self.model.inverse_link(eta - 1e-5)) / 2e-5
        variance = mean if self.cell.model == "Poisson" else mean * (1.0 - mean)
        weight = slope**2 / np.maximum(variance, 1e-12)
        return (design * weight[:, None]).T @ design + np.eye(truth.size) / self.model.prior_scale**2


def _numeric(cell: Cell) -> int:
    return max(1, cell.n_features // 3)


def _some(size: int, wanted: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    return np.arange(size) if wanted >= size else rng.choice(size, wanted, replace=False)


def _declared(numeric: int, categories: tuple[int, ...]) -> FloatArray:
    """Return second moments of standardised numbers and of indicators of equal shares."""
    means = [np.zeros(numeric)] + [np.full(size - 1, 1.0 / size) for size in categories] + [np.ones(1)]
    mean = np.concatenate(means)
    moments = np.outer(mean, mean)
    first = 0
    for part, square in zip(means, [1.0, *(1.0 / size for size in categories), 1.0], strict=True):
        own = slice(first, first + part.size)
        moments[own, own] = square * np.eye(part.size)
        first += part.size
    return moments


def _intercept(model: Regression, predictor: FloatArray, mean: float) -> float:
    """Return the intercept with which responses have a mean of `mean`."""
    low, high = -15.0, 8.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if model.inverse_link(predictor + middle).mean() < mean else (low, middle)
    return low

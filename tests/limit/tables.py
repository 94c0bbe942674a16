"""Random tables with a formula, a family and a schema, and a private regression of them beside the ordinary fit.

``python -m tests.limit.tables --runs 300 --kind factors`` prints which of 300 tables a regression is off, and why.
"""

import argparse
import collections
import dataclasses
import time
import warnings

import numpy as np
import pandas as pd
from scipy import special

import dpinfer as dpi
from dpinfer.testing import InsecureRNG
from tests.limit.oracles import exact, ordinary

WITHIN, WIDTH = 0.1, 0.05  # standard errors, and of a width
NEAR, NEAR_WIDTH = 0.25, 0.15  # the same beside the exact posterior, whose Monte Carlo error is 0.03
WORTH = 500  # independent draws of the exact posterior, at least
LEAST = (30, 5)  # records of a level, and events and non-events among them: fewer may be marked
LETTERS = "abcdefghijklm"
FAMILIES = ("gaussian", "binomial", "poisson", "probit")
NUMBERS = ("x", "z", "u")


class Dice:
    """Choices by a random generator; :class:`Drawn` has the same choices by hypothesis."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def whole(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def real(self, low, high):
        return float(self.rng.uniform(low, high))

    def one_of(self, *choices):
        return choices[self.rng.integers(len(choices))]


@dataclasses.dataclass
class Table:
    """A table that a user might have: what is public of it, its records, and the call."""

    formula: str
    family: str
    columns: dict  # of the schema
    data: dict
    response: np.ndarray  # as a number
    options: dict = dataclasses.field(default_factory=dict)
    traits: tuple[str, ...] = ()

    @property
    def schema(self):
        return dpi.tabular.Schema.from_dict({"columns": self.columns})

    def fit(self, epsilon=1e6, seed=1, **options):
        return dpi.regression(
            self.formula,
            self.data,
            family=self.family,
            schema=self.schema,
            epsilon=epsilon,
            delta=1e-6,
            random_source=InsecureRNG(seed),
            **{"n_records": len(self.response)} | self.options | options,
        )

    @property
    def frame(self):
        """The columns of the right-hand side, with the schema's categories in its order."""
        kinds = {name: kind["categories"] for name, kind in self.columns.items() if "categories" in kind}
        return {
            name: pd.Categorical(values, categories=kinds[name]) if name in kinds else np.asarray(values)
            for name, values in self.data.items()
            if name != "y"
        }

    def ordinary(self):
        asked = {
            name: self.data[column]
            for name, column in self.options.items()
            if name in ("weights", "clusters", "strata")
        }
        if "unit" in self.options:
            asked["clusters"] = self.data[self.options["unit"].ids]
        return ordinary(self.formula, self.frame, self.response, self.family, **asked)

    def __repr__(self):
        return f"{self.formula} ({self.family}, {len(self.response)} records; {', '.join(self.traits)}; {self.options})"


def factor(dice, rng, n, n_levels, *, empty):
    """Return labels of records, and the levels: shares of 1 to 30%, the base has the rest."""
    shares = [dice.real(0.01, min(0.3, 0.9 / (n_levels - 1))) for _ in range(n_levels - 1)]
    if empty:
        shares[-1] = 0.0
    levels = list(LETTERS[:n_levels])
    return np.array(levels)[rng.choice(n_levels, n, p=[1.0 - sum(shares), *shares])], levels


def number(dice, rng, n):
    """Return values of a number, near 0 to 1 in its unit, their trait, and wide bounds."""
    law = dice.one_of("uniform", "normal", "skewed", "long")
    if law == "uniform":
        values, bounds = rng.uniform(0.0, 1.0, n), (0.0, 1.0)
    elif law == "normal":
        values, bounds = 0.5 + 0.2 * rng.normal(size=n), (-1.0, 2.0)
    elif law == "skewed":
        values, bounds = 0.3 * rng.gamma(2.0, size=n), (0.0, 8.0)
    else:
        values, bounds = 0.3 * rng.standard_t(3.0, n), (-4.0, 4.0)
    unit, shift = dice.one_of(1.0, 1.0, 1e-9, 1e9), dice.one_of(0.0, 0.0, 20.0)
    bounds = tuple(unit * (bound + shift) for bound in bounds)
    return np.clip(unit * (values + shift), *bounds), law, bounds, unit, shift


def random_table(dice, kind="any", most=50_000, families=FAMILIES):
    """Return a table. `kind`: "factors" alone, or "any" columns and calls."""
    family = dice.one_of(*families)
    n = int(np.exp(dice.real(np.log(500.0), np.log(most))))
    rng = np.random.default_rng(dice.whole(0, 2**31))
    columns, data, traits, terms = {}, {}, [], []
    eta = np.zeros(n)
    plain = kind == "factors"
    n_factors = dice.whole(2, 8) if plain else dice.whole(0, 4)
    for k in range(n_factors):
        empty = dice.whole(0, 9) == 0
        name, n_levels = f"g{k}", dice.whole(2, 5)
        data[name], levels = factor(dice, rng, n, n_levels, empty=empty)
        columns[name] = {"kind": "categorical", "categories": levels}
        effects = np.array([0.0, *(dice.real(-1.0, 1.0) for _ in levels[1:])])
        eta += effects[np.searchsorted(levels, data[name])]
        terms.append(name)
        traits += ["unused level"] if empty else []
    n_numbers = 0 if plain else dice.whole(int(n_factors == 0), 3)
    for name in NUMBERS[:n_numbers]:
        data[name], law, bounds, unit, shift = number(dice, rng, n)
        columns[name] = {"kind": "continuous", "bounds": list(bounds)}
        eta += dice.real(-1.0, 1.0) * (data[name] / unit - shift)
        form = dice.one_of("{}", "{}", "{}", "{} + I({}**2)", "poly({}, 2, raw=True)")
        terms.append(form.replace("{}", name))
        traits += [law, *([f"unit {unit:g}"] if unit != 1.0 else []), *(["far from zero"] if shift else [])]
    if n_numbers and not plain and dice.whole(0, 9) == 0:
        data["twin"], columns["twin"] = data["x"], dict(columns["x"])
        terms.append("twin")
        traits.append("equal columns")
    if n_factors >= 2 and dice.whole(0, 2) == 0:
        terms.append("g0:g1")
        traits.append("interaction")
    if not plain and n_factors and n_numbers and dice.whole(0, 3) == 0:
        terms.append("g0:x")
        traits.append("slopes by level")
    intercept = dice.whole(0, 4) > 0
    if not intercept:
        terms.insert(0, "0")
        traits.append("no intercept")
    if not plain and family != "gaussian":
        eta = eta - eta.mean()
    if family in ("binomial", "probit"):
        rate = special.expit(dice.real(*special.logit([0.005, 0.995])))
        place = special.logit(rate) if family == "binomial" else special.ndtri(rate)
        mean = special.expit(place + eta) if family == "binomial" else special.ndtr(place + eta)
        ones = rng.random(n) < mean
        data["y"], response = np.where(ones, "yes", "no"), ones.astype(float)
        columns["y"] = {"kind": "binary", "positive": "yes", "negative": "no"}
        traits.append(f"rate {response.mean():.3g}")
    elif family == "poisson":
        mean = np.exp(dice.real(np.log(0.05), np.log(5.0)) + eta)
        response = np.minimum(rng.poisson(np.minimum(mean, 200.0)), 200.0).astype(float)
        data["y"] = response
        columns["y"] = {"kind": "continuous", "bounds": [0, 200]}
        if dice.whole(0, 1):
            columns["y"] |= {"mean": float(max(response.mean(), 0.01)), "sd": float(max(response.std(), 0.1))}
        else:
            traits.append("no declared mean")
    else:
        errors = dice.one_of("normal", "skewed", "long", "wider")
        e = {
            "normal": rng.normal(size=n),
            "skewed": rng.exponential(size=n) - 1.0,
            "long": rng.standard_t(4.0, n),
            "wider": rng.normal(size=n) * np.exp(0.5 * eta),
        }[errors]
        unit, low, high = dice.one_of(1.0, 1.0, 1e-9, 1e9), dice.real(-20.0, -6.0), dice.real(6.0, 40.0)
        response = unit * np.clip(eta + e + dice.one_of(0.0, 3.0), low, high)
        data["y"], columns["y"] = response, {"kind": "continuous", "bounds": [low * unit, high * unit]}
        traits += [f"{errors} errors", *([f"response in {unit:g}"] if unit != 1.0 else [])]
    table = Table("y ~ " + " + ".join(terms), family, columns, data, response, {}, tuple(traits))
    if not plain:
        _survey(dice, rng, table)
    return table


def _survey(dice, rng, table):
    """Give a table weights, clusters, strata or an offset."""
    n, what = len(table.response), dice.one_of("", "", "", "weights", "clusters", "strata", "offset")
    if what == "weights":
        drawn = np.round(rng.gamma(2.0, 1.0, n), 2)
        drawn[rng.random(n) < dice.one_of(0.0, 0.2)] = 0.0
        table.data["w"] = np.minimum(drawn, 8.0)
        kind = {"bounds": [0, 8], "mean": float(table.data["w"].mean()), "sd": float(table.data["w"].std())}
        table.columns["w"] = {"kind": "continuous", **kind}
        table.options["weights"] = "w"
    elif what == "clusters":
        table.data["c"] = np.array([f"c{k}" for k in rng.integers(n // 5, size=n)])
        table.columns["c"] = {"kind": "ignore"}
        table.options["clusters"] = "c"
    elif what == "strata":
        table.data["s"] = np.array(["north", "south", "west"])[rng.integers(3, size=n)]
        table.columns["s"] = {"kind": "categorical", "categories": ["north", "south", "west"]}
        table.options["strata"] = "s"
    elif what == "offset" and table.family in ("gaussian", "poisson"):
        table.data["t"] = rng.uniform(1.0, 3.0, n)
        table.columns["t"] = {"kind": "continuous", "bounds": [1, 3]}
        unit = float(np.ptp(table.columns["y"]["bounds"])) / 30.0 if table.family == "gaussian" else 1.0
        table.formula += f" + offset(t * {unit!r})" if unit != 1.0 else " + offset(log(t))"
    table.traits += (what,) if what else ()


@dataclasses.dataclass(frozen=True)
class Row:
    """A coefficient beside the oracle."""

    name: str
    distance: float  # standard errors
    width: float  # over the right one
    oracle: str  # "ordinary" or "exact"
    marked: bool
    prior: float  # the prior's share of the right precision
    few: bool  # fewer records or events than :data:`LEAST`
    longest: float = 1.0  # width with HC3 over that with HC0

    @property
    def off(self):
        """How far off the row is, over what is allowed; few records may have the wider interval of HC3."""
        near, wide = (WITHIN, WIDTH) if self.oracle == "ordinary" else (NEAR, NEAR_WIDTH)
        most = max(self.longest, 1.0) if self.few else 1.0
        return max(self.distance / near, (self.width / most - 1.0) / wide, (1.0 - self.width) / wide)

    @property
    def close(self):
        return self.off <= 1.0

    @property
    def right(self):
        return self.close or self.marked

    def __str__(self):
        said = f"{self.name}: {self.distance:.2f} se, width {self.width:.2f} ({self.oracle})"
        return said + (", marked" if self.marked else "") + (", few" if self.few else "")


def prior_in_units(fit):
    """Return mean and precision of the coefficients' prior in the table's units, from the design."""
    matrix, shift = fit.design.user_units()
    model = fit.posterior.model
    scale = model.parameters.prior_scale if hasattr(model, "parameters") else model.prior_scale
    if fit.design.family == "gaussian":
        scale *= float(np.sqrt(fit.posterior.mean[-1]))
    back = np.linalg.inv(matrix) / scale
    return shift, back.T @ back


def few_events(oracle, family, response):
    """Return whether a column's own records, or their events, are few; (d,)."""
    least, events = LEAST
    own = (oracle.matrix != 0.0).astype(float)
    indicator = np.all((oracle.matrix == 0.0) | (oracle.matrix == 1.0), axis=0)
    few = indicator & (own.sum(axis=0) < least)
    if family == "gaussian":
        return few
    for happened in (response, 1.0 - response) if family != "poisson" else (response,):
        # A level, and what it is compared with.
        few |= indicator & (own.T @ happened < events)
    return few


def compare(table, fit, level=0.9, *, robust=True):
    """Return the rows of a fit beside the ordinary one, or the exact posterior where the ordinary one is not normal."""
    oracle = table.ordinary()
    ours = [_theirs(name) for name in fit.design.model.names[: len(oracle.names)]]
    order = [ours.index(name) for name in oracle.names]
    shift, precision = prior_in_units(fit)
    shift, precision = shift[order], precision[np.ix_(order, order)]
    mean, covariance = oracle.with_prior(shift, precision, meat=None if robust else oracle.information)
    _, longer = oracle.with_prior(shift, precision, meat=oracle.longer)
    share = np.diag(covariance @ precision)
    found = fit.coefficients(level=level)
    sd, longest = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(longer) / np.diag(covariance))
    usual = 2.0 * special.ndtri(0.5 + 0.5 * level)
    few = few_events(oracle, table.family, table.response)
    rows, draws = [], None
    plain = table.family != "gaussian" and not table.options
    for place, own in enumerate(order):
        marked, wide = bool(found.remark(found.names[own])), found.high[own] - found.low[own]
        away = abs(found.mean[own] - mean[place]) / sd[place]
        about = (marked, float(share[place]), bool(few[place]), float(longest[place]))
        row = Row(found.names[own], float(away), float(wide / usual / sd[place]), "ordinary", *about)
        if not row.close and plain:
            if draws is None:
                draws, worth = exact(oracle, table.family, table.response, shift, precision)
            if worth > WORTH:
                low, high = np.quantile(draws[:, place], [0.5 - 0.5 * level, 0.5 + 0.5 * level])
                away = abs(found.mean[own] - draws[:, place].mean()) / draws[:, place].std()
                other = dataclasses.replace(row, distance=away, width=wide / (high - low), oracle="exact")
                row = row if row.off < other.off else other
        rows.append(row)
    return rows


def _theirs(name):
    """Return the name of a column in formulaic: it counts functions of poly from 0."""
    if name.startswith("poly("):
        head, _, index = name.rpartition("[")
        return f"{head}[{int(index[:-1]) - 1}]"
    return name


def study(runs, kind="any", *, seed=0, epsilon=1e6, most=50_000, say=print):
    """Compare random tables, say which are off, and return their rows, an entry for each table."""
    every, off, failed = [], 0, 0
    for run in range(runs):
        table = random_table(Dice([20261128, seed, run]), kind, most)
        try:
            fit = table.fit(epsilon)
            rows = compare(table, fit)
        except Exception as error:
            failed += 1
            say(f"{run}: {table!r}: {type(error).__name__}: {error}")
            continue
        every.append((table, fit, rows))
        wrong = [row for row in rows if not row.right]
        if wrong:
            off += 1
            worst = max(wrong, key=lambda row: row.off)
            say(f"{run}: {table!r}: {len(wrong)} of {len(rows)} off; {worst}")
    rows = [row for _, _, own in every for row in own]
    needless = [row for row in rows if row.marked and not row.few and row.prior < 0.3]
    say(
        f"{off} of {runs} tables off, {failed} failed; "
        f"of {len(rows)} rows {sum(not row.right for row in rows)} are off, "
        f"{sum(row.marked for row in rows)} are marked, {len(needless)} of them with records and events enough"
    )
    return every


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--kind", choices=("any", "factors"), default="any")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epsilon", type=float, default=1e6)
    parser.add_argument("--most", type=int, default=50_000, help="records")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    every = study(asked.runs, asked.kind, seed=asked.seed, epsilon=asked.epsilon, most=asked.most)
    for name, place in (
        ("family", lambda table: [table.family]),
        ("trait", lambda table: {own.partition(" 0.")[0] for own in table.traits}),
    ):
        count = collections.Counter(own for table, _, _ in every for own in place(table))
        wrong = collections.Counter(
            own for table, _, rows in every for own in place(table) if not all(row.right for row in rows)
        )
        print(name, {own: f"{wrong[own]} of {size}" for own, size in count.most_common()})
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

"""Regressions and tables of hostile schemas, formulas, settings and values as a fuzzing target.

Once a run is paid for, it must return; its posterior may be missing where the fit says why.
"""

import warnings

import numpy as np

import dpinfer as dpi
from dpinfer.errors import DpinferError
from dpinfer.mechanism import Units
from tests.reference.fuzzed_runs import SCALES, Witness
from tests.reference.fuzzing import Target, UndocumentedError
from tests.reference.hostile_columns import VALUES

FAMILIES = ("gaussian", "gaussian", "binomial", "poisson", "probit", "multinomial", "negativebinomial")
TERMS = (
    "x", "z", "g", "h", "x", "z", "g", "x:z", "x*g", "g:h", "I(x**2)", "poly(x, 2)", "bs(z, df=4)", "C(g)", "center(z)",
    "log(x)", "offset(z)", "s(x)", "(1 | g)", "(1 + x | g)", "(0 + x | g)", "missing", "x % z", "",
)  # fmt: skip
LABELS = {"g": ("a", "b", "c"), "h": ("u", "v")}


class TableSettings(Target):
    """A schema, a formula and settings far from what the records are like, at most a third of them out of range."""

    documented = (TypeError, ValueError, DpinferError)

    def __init__(self, folder):
        pass

    def number(self, rng, *, plain):
        """Return a continuous column whose declaration a schema takes, but for one in thirty."""
        width = 10.0 if plain else rng.choice(SCALES)
        middle = rng.choice((0.0, 0.0, 1.0, -3.0)) * width if rng.random() < 0.9 else 1e9
        column = {"kind": "continuous", "bounds": [middle, middle + width]}
        if rng.random() < 0.15:
            column["scaling"] = rng.choice(("unit", "none"))
            return column, (middle, width)
        if rng.random() < 0.3:
            column["mean"] = middle + width * rng.choice((0.5, 0.01, 0.999))
        if rng.random() < 0.3:
            column["sd"] = width * rng.choice((0.3, 0.3, 1e-6, 1e6))
        return column, (middle, width)

    def columns(self, rng, size):
        """Return declarations, and values that mostly agree with them."""
        generator = np.random.default_rng(rng.randrange(2**32))
        declared, table = {}, {}
        for name in ("x", "z", "y", "w"):
            declared[name], (middle, width) = self.number(rng, plain=rng.random() < 0.75)
            table[name] = (middle + width * generator.uniform(-0.2, 1.2, size)).tolist()
        for name, labels in LABELS.items():
            labels = labels[: rng.choice((1, len(labels), len(labels)))]
            declared[name] = {
                "kind": "categorical",
                "categories": list(labels),
                "other": rng.choice((labels[0], "rest")),
            }
            if rng.random() < 0.2:
                declared[name]["missing"] = "other"
            table[name] = [rng.choice(labels) for _ in range(size)]
        declared["k"] = {"kind": "continuous", "bounds": [0, rng.choice((1, 30, 1e6))]}
        table["k"] = np.floor(np.exp(rng.choice((0.5, 3.0)) * generator.normal(size=size))).tolist()
        declared["won"] = {"kind": "binary", "positive": "1", "negative": "0"}
        declared["home"] = {"kind": "ignore"}
        table["won"] = [rng.choice((0, 1)) for _ in range(size)]
        table["home"] = [place // 3 for place in range(size)]
        # The first five records have everything, so that some are usable.
        for name in ("x", "z", "w", "g", "h"):
            for _ in range(rng.choice((0, 0, 1, 5))):
                table[name][rng.randrange(5, size)] = rng.choice(list(VALUES.values()))
        return declared, table

    def held(self, rng, table):
        if rng.random() < 0.6:
            return table
        import pandas

        return pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in table.items()})

    def settings(self, rng, size):
        found = {
            "epsilon": rng.choice((1.0, 1.0, 1e-3, 0.1, 30.0, 1e4)),
            "delta": rng.choice((1e-6, 1e-6, 1e-9, 0.1)),
            "n_records": rng.choice((size, size, 1, 2, 10**4, 10**7)),
            "target": rng.choice(("auto", "auto", "population", "model")),
            "adjacency": rng.choice(("add_remove", "add_remove", "replace_one")),
        }
        if rng.random() < 0.2:
            found["prior_scale"] = rng.choice(SCALES)
        if rng.random() < 0.1:
            found["weights"] = "w"
        others = {"clusters": "home", "strata": "h", "unit": Units("home", max_rows=rng.choice((1, 3, 50)))}
        found |= {name: value for name, value in others.items() if rng.random() < 0.07}
        if rng.random() < 0.05:
            found["prior"] = "horseshoe"
        return found

    def feed(self, rng):
        size = rng.choice((8, 60, 200))
        declared, table = self.columns(rng, size)
        source = Witness(rng.randrange(2**31))
        family = rng.choice(FAMILIES)
        response = {"binomial": "won", "probit": "won", "multinomial": "g"}.get(family, "y")
        if family in ("poisson", "negativebinomial"):
            response = "k"
        right = " + ".join(rng.choice(TERMS) for _ in range(rng.choice((1, 2, 2, 3))))
        if rng.random() < 0.15:
            right = f"0 + {right}"
        settings = self.settings(rng, size)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)
            try:
                schema = dpi.tabular.Schema.from_dict({"columns": declared})
                data = self.held(rng, table)
                if rng.random() < 0.15:
                    found = self.table(rng, data, schema, settings, source)
                else:
                    found = dpi.regression(
                        f"{response} ~ {right}", data, family=family, schema=schema, random_source=source, n_threads=1,
                        **settings,
                    )  # fmt: skip
                    str(found.summary())
            except Exception as error:
                if source.paid:
                    raise UndocumentedError(f"paid for and lost: {type(error).__name__}: {error}") from error
                raise
        release = getattr(found, "release", None)
        for name, values in vars(release).items() if release is not None else ():
            if isinstance(values, np.ndarray) and not np.all(np.isfinite(values)):
                raise UndocumentedError(f"{name} is not finite")

    def table(self, rng, data, schema, settings, source):
        terms = {"schema": schema, "epsilon": settings["epsilon"], "random_source": source}
        terms |= {"delta": settings["delta"], "adjacency": settings["adjacency"]}
        kind = rng.choice(("counts", "crosstab", "means"))
        if kind == "means":
            found = dpi.tables.means(data, rng.choice(("x", "z")), rng.choice(((), ("g",), ("g", "h"))), **terms)
        else:
            found = getattr(dpi.tables, kind)(data, ["g", "h"], **terms)
        found.rows()
        return found


TABLES = (TableSettings,)

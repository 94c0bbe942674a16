"""What the R package asks of dpinfer: every answer is plain data, every error a kind and a message."""

import base64
import json
import tomllib
import warnings
from pathlib import Path

import numpy as np
from dpinfer_words import in_words_of_r, term_in_r, words_of

import dpinfer as dpi
from dpinfer.errors import DpinferError
from dpinfer.formulas import MixedFit, PersonFit, RegressionFit
from dpinfer.formulas.records import predictors
from dpinfer.mechanism import Units
from dpinfer.models import LinearRegression
from dpinfer.release import OwnPopulationRelease, PopulationRelease

DRAWS = 4000


def answer(name, fit, given):
    """Return, as JSON, a value, or a kind of error and its message, and warnings; and a fit where one was made.

    What is no error of dpinfer's own is told by its type alone: its text could quote a record.
    """
    made = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = {"kind": None, "message": None, "value": None}
        try:
            arguments = json.loads(given, object_hook=_numbers)
            value = CALLS[name](**arguments) if fit is None else CALLS[name](fit.found, **arguments)
            if isinstance(value, Fit):
                value, made = described(value.found), value
            told["value"] = _plain(value)
        except (DpinferError, TypeError, ValueError) as error:
            kind = type(error).__name__.removesuffix("Error").lower() if isinstance(error, DpinferError) else "argument"
            # Notes added on the way, such as that the run stays charged.
            told |= {"kind": kind, "message": " ".join([str(error), *getattr(error, "__notes__", [])])}
        except KeyboardInterrupt as error:
            # Not raised: R would keep its traceback, whose frames hold the records.
            text = " ".join(["interrupted", *getattr(error, "__notes__", [])])
            told |= {"kind": "interrupted", "message": text}
        except OSError as error:
            told |= {"kind": "file", "message": f"a file cannot be read or written: {error.strerror}"}
        except Exception as error:
            text = f"something failed that should not have ({type(error).__name__}); its text is withheld"
            told |= {"kind": "failure", "message": f"{text}, because it could quote a record"}
    own = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
    return json.dumps(told | {"warnings": list(dict.fromkeys(own))}), made


def _numbers(item):
    """Return an object of JSON, or the numbers that it stands for: the bytes of doubles."""
    if set(item) == {"array"}:
        return np.frombuffer(base64.b64decode(item["array"]), "<f8")
    if set(item) == {"whole"}:
        return Whole(item["whole"])
    if set(item) == {"number"}:
        (number,) = np.frombuffer(base64.b64decode(item["number"]), "<f8")
        return float(number)
    return item


def _plain(value):
    """Return a value with its numbers as the bytes of doubles, columns first as in R."""
    if isinstance(value, (float, np.ndarray)):
        array = np.asarray(value, "<f8")
        content = base64.b64encode(array.tobytes(order="F")).decode()
        return {"array": content, "shape": list(array.shape)}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


class Whole:
    """64-bit whole numbers as the package bit64 has them: the least is its mark of a missing value."""

    def __init__(self, content):
        values = np.frombuffer(base64.b64decode(content), "<i8")
        self.values, self.missing = values, values == np.iinfo("<i8").min

    def numbers(self):
        """Return doubles, NaN where a value is missing."""
        return np.where(self.missing, np.nan, self.values.astype(float))

    def identities(self):
        """Return whole numbers with all of their digits, None where a value is missing."""
        return [None if lost else value for value, lost in zip(self.values.tolist(), self.missing, strict=True)]


def _table(data, identity=None):
    """Return the columns of a table from R; whole numbers that identify a person keep all of their digits."""
    if not isinstance(data, dict):
        return data
    return {
        name: column if not isinstance(column, Whole) else column.identities() if name == identity else column.numbers()
        for name, column in data.items()
    }


def fit(formula, data, schema, unknown, ledger, unit, n_records, **options):
    made = schema
    if not isinstance(schema, str):
        made = dpi.tabular.SchemaDraft(schema) if unknown else dpi.tabular.Schema.from_dict(schema)
    identity = options["clusters"] if unit is None else unit["ids"]
    return Fit(
        dpi.regression(
            formula,
            _table(data, identity),
            schema=made,
            n_records=None if n_records is None else _whole("n_records", n_records),
            unknown=unknown or None,
            ledger=None if ledger is None else _account(**ledger),
            unit=None if unit is None else Units(**unit),
            **options,
        )
    )


def declared(path):
    """Return what a schema's file declares of each column, so that R reads a column's class by it."""
    dpi.tabular.SchemaDraft.load(path)
    return tomllib.loads(Path(path).read_text(encoding="utf-8"))["columns"]


def load(folder):
    return Fit(dpi.load_regression(folder))


def described(found):
    """Return what R keeps of a fit; `fit` is asked for the rest."""
    names, covariance = _coefficients(found)
    design, release = found.design, found.release
    groups, person = _groups(found), design.formula.person
    terms = [term for term in design.formula.terms if term not in groups]
    return {
        "text": design.formula.text,
        "family": design.family,
        "names": names,
        "words": words_of(design, names),
        "cov": covariance,
        "n_records": float(found.plan.n_records),
        "nobs": float(max(round(found.nobs), 0)),
        "records": found.posterior.diagnostics.records,
        "method": found.plan.method,
        "target": "population" if isinstance(release, (PopulationRelease, OwnPopulationRelease)) else "model",
        "guarantee": str(release.guarantee),
        "epsilon": float(release.guarantee.epsilon),
        "delta": float(release.delta),
        "terms": [":".join(term) for term in terms],
        "labels": [term_in_r(term, design) for term in terms],
        "effects": list(found.terms) if isinstance(found, MixedFit) else [person.text] if person is not None else [],
        "classes": list(design.classes),
        "columns": {column.name: column.to_dict() for column in design.table_columns(response=False)},
    }


def _coefficients(found):
    """Return the names of the coefficients, and their covariance in the table's units."""
    if isinstance(found, MixedFit):
        layout, mixture = found.layout, found.pooled
        rows = np.pad(layout.matrix, ((0, 0), (0, mixture.mean.shape[1] - len(layout.names))))
        inner = mixture.covariance.mean(axis=0) + np.cov(mixture.mean.T, bias=True)
        return list(layout.names), rows @ inner @ rows.T
    matrix, _ = found.design.user_units()
    size = len(matrix)
    return list(found.design.model.names[:size]), matrix @ found.posterior.cov[:size, :size] @ matrix.T


def _groups(found):
    """Return the terms whose columns are effects of groups, or of a curve: they are no fixed terms."""
    effects = found.layout.effects if isinstance(found, MixedFit) else ()
    columns = {each.column for each in effects if each.kind != "curve"}
    curves = {each.term for each in effects if each.kind == "curve"}
    return {term for term in found.design.formula.terms if term[-1] in columns or set(term) <= curves}


class Fit:
    """A fit that R holds."""

    def __init__(self, found):
        self.found = found


def summary(fit, level, exp, words):
    """Return what a summary says besides its coefficients, and the table of standard deviations, if there are any."""
    notes = list(RegressionFit.summary(fit, level, exp=exp).notes)
    if isinstance(fit, PersonFit):
        # What is protected, which follows the table of standard deviations.
        notes.insert(0, fit.summary(level, exp=exp).notes[1])
    scales = None
    if isinstance(fit, (MixedFit, PersonFit)):
        scales = _columns(fit.scales(level)) | {"places": _scale_places(fit)}
    # R shows no column per sd.
    return {"notes": [in_words_of_r(note.partition("; per sd:")[0], words) for note in notes], "scales": scales}


def _scale_places(fit):
    """Return group, first and second effect of each row of ``fit.scales()``, as lme4's VarCorr has them."""
    rows = []
    if isinstance(fit, PersonFit):
        person = fit.design.formula.person
        rows = _pair(person.name, person.slope) if person.slope else [[person.name, "(Intercept)", ""]]
    for each in fit.layout.effects if isinstance(fit, MixedFit) else ():
        rows += {
            "intercept": [[each.column, "(Intercept)", ""]],
            "slope": [[each.column, each.slope, ""]],
            "pair": _pair(each.column, each.slope),
            "curve": [[each.term, "", ""]],
        }[each.kind]
    size = len(fit.scales().names)
    return rows + [["Residual", "", ""]] * (size - len(rows))


def _pair(group, slope):
    return [[group, "(Intercept)", ""], [group, slope, ""], [group, "(Intercept)", slope]]


def effects(fit, level):
    """Return the effects of groups: group, effect and label of each row, and the table."""
    if not isinstance(fit, MixedFit):
        raise ValueError("fit must have effects of groups, (1 | site): those of protected persons are not released")
    told = []
    for each in fit.layout.effects:
        if each.kind == "curve":
            continue
        table = fit.effects(each.term, level)
        kinds = {"intercept": ["(Intercept)"], "slope": [each.slope], "pair": ["(Intercept)", each.slope]}[each.kind]
        told.append(_columns(table) | {"group": each.column, "labels": list(each.labels), "kinds": kinds})
    return told


def coefficients(fit, level, exp):
    return _columns(fit.coefficients(level, exp=exp))


def contrast(fit, weights, level, exp):
    return _columns(fit.contrast(weights, level, exp=exp))


def marginal_effects(fit, new_data, level):
    return _columns(fit.marginal_effects(_table(new_data), level))


def _columns(table):
    columns = table.to_dict()
    names = columns.pop("name")
    return {
        "name": names,
        "remark": [table.remark(name) for name in names],
        **{key: np.array(values, dtype=float) for key, values in columns.items()},
    }


def mean_draws(fit, new_data):
    """Return draws of E[y | x], (draws, points) or (draws, points, classes), NaN where a value is missing."""
    design, posterior = fit.design, fit.posterior
    values = predictors(_table(new_data), design)
    known = np.flatnonzero(np.all([np.isfinite(column) for column in values.values()], axis=0))
    theta = posterior.sample(DRAWS, seed=0, space="unconstrained")
    shape = (DRAWS, len(next(iter(values.values()))), *((len(design.classes),) if design.classes else ()))
    drawn = np.full(shape, np.nan)
    for part in np.array_split(known, 1 + len(known) // 500):
        points = {name: column[part] for name, column in values.items()}
        rows = design.encode(points)
        if design.classes:
            drawn[:, part] = design.model.predict_probabilities(theta, rows)
        else:
            drawn[:, part] = design.response_units(design.model.predict_mean(theta, rows), points)
    return drawn


def new_groups(fit, new_data, groups):
    """Return mean and standard deviation of E[y | x] for groups that the release has not seen."""
    if not isinstance(fit, MixedFit):
        raise ValueError("new must be NULL for a fit without effects of groups, (1 | site)")
    mean, sd = fit.predict(_table(new_data), return_std=True, new=groups)
    return {"mean": mean, "sd": sd}


def response_draws(fit, new_data):
    """Return draws of new responses, (draws, points)."""
    return np.asarray(fit.synthetic(_table(new_data), n_sets=DRAWS).responses, dtype=float)


def draws(fit, n):
    """Return draws of the coefficients, in the table's units, of the spread of the noise, and of effects' spreads."""
    size = _whole("n", n)
    if isinstance(fit, MixedFit):
        return _mixed_draws(fit, size)
    design, posterior = fit.design, fit.posterior
    theta = posterior.sample(size, seed=0, space="unconstrained")
    matrix, shift = design.user_units()
    columns = [theta[:, : len(matrix)] @ matrix.T + shift]
    names = list(design.model.names[: len(matrix)])
    others = design.model.constrain(theta)[:, len(matrix) :]
    if isinstance(design.model, LinearRegression):
        columns.append(np.sqrt(others[:, -1:]) * design.response_scale)
        names.append("sigma")
    elif others.shape[1]:
        columns.append(others)
        names += design.model.names[len(matrix) :]
    return {"names": names, "draws": np.column_stack(columns)}


def _mixed_draws(fit, size):
    rng, mixture, layout = np.random.default_rng(0), fit.pooled, fit.layout
    chosen, fixed = rng.integers(len(mixture.mean), size=size), len(layout.names)
    roots = np.linalg.cholesky(mixture.covariance[:, :fixed, :fixed])
    drawn = mixture.mean[chosen, :fixed] + np.einsum("sij,sj->si", roots[chosen], rng.standard_normal((size, fixed)))
    columns, names = [drawn @ layout.matrix.T + layout.shift], list(layout.names)
    for each, stddev in zip(layout.effects, mixture.stddev, strict=True):
        columns.append(stddev.reshape(len(stddev), -1)[chosen] * np.array(each.units))
        names += each.names
    return {"names": names, "draws": np.column_stack(columns)}


def compare(fit, without):
    """Compare with a regression without some terms; with learned scales, under independent priors."""
    plain = fit.plain if isinstance(fit, MixedFit) else fit
    found = plain.compare(without=[without] if isinstance(without, str) else list(without))
    return {
        "columns": float(len(found.without)),
        "log_bayes_factor": found.log_bayes_factor,
        "stderr": found.stderr,
        "wald": found.wald,
        "p_value": found.p_value,
    }


def create_account(path, dataset, epsilon, delta):
    ledger = dpi.PrivacyLedger(path) if Path(path).exists() else dpi.PrivacyLedger.create(path)
    if dataset not in ledger.datasets:
        ledger.add_dataset(dataset, budget=None if epsilon is None else (epsilon, delta))
    elif epsilon is not None and ledger.dataset(dataset).budget != (epsilon, delta):
        raise ValueError("epsilon and delta must be those of the account that the ledger has")


def spent(path, dataset):
    account = _account(path, dataset)
    bound = account.spent(None if account.budget else 1e-6)
    remaining = account.remaining()
    return {
        "runs": float(len(account.runs())),
        "epsilon": float(bound.epsilon),
        "delta": float(bound.delta),
        "remaining": float("nan") if remaining is None else float(remaining),
    }


def _account(path, dataset):
    return dpi.PrivacyLedger(path).dataset(dataset)


def write(fit, what, path, ledger):
    release = fit.release
    if what == "certificate":
        Path(path).write_text(release.certificate(ledger=ledger), encoding="ascii")
    elif what == "release":
        release.save(path)
    elif what == "report":
        fit.report(path)
    else:
        fit.save(path)


def _whole(name, value):
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


CALLS = {
    call.__name__: call
    for call in (
        fit,
        declared,
        load,
        summary,
        effects,
        coefficients,
        contrast,
        marginal_effects,
        mean_draws,
        new_groups,
        response_draws,
        draws,
        compare,
        create_account,
        spent,
        write,
    )
}

"""What the R package asks of dpinfer: every answer is plain data, every error a kind and a message."""

import base64
import json
import warnings
from pathlib import Path

import numpy as np

import dpinfer as dpi
from dpinfer.errors import DpinferError
from dpinfer.formulas.records import predictors
from dpinfer.models import LinearRegression

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
            told |= {"kind": kind, "message": str(error)}
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
    return value


def fit(formula, data, family, schema, epsilon, delta, n_records, unknown, ledger, path, prior_scale):
    made = schema
    if not isinstance(schema, str):
        kind = dpi.tabular.SchemaDraft if unknown else dpi.tabular.Schema
        made = kind(schema) if unknown else kind.from_dict(schema)
    return Fit(
        dpi.regression(
            formula,
            data,
            family=family,
            schema=made,
            epsilon=epsilon,
            delta=delta,
            n_records=None if n_records is None else _whole("n_records", n_records),
            unknown=unknown or None,
            ledger=None if ledger is None else _account(**ledger),
            path=path,
            prior_scale=prior_scale,
        )
    )


def load(folder):
    return Fit(dpi.load_regression(folder))


def described(found):
    """Return what R keeps of a fit; `fit` is asked for the rest."""
    matrix, _ = found.design.user_units()
    size = len(matrix)
    covariance = matrix @ found.posterior.cov[:size, :size] @ matrix.T
    return {
        "text": found.design.formula.text,
        "family": found.design.family,
        "names": list(found.design.model.names[:size]),
        "cov": covariance,
        "n_records": float(found.plan.n_records),
        "method": found.plan.method,
        "guarantee": str(found.release.guarantee),
        "epsilon": float(found.release.guarantee.epsilon),
        "delta": float(found.release.delta),
        "terms": [":".join(term) for term in found.design.formula.terms],
        "classes": list(found.design.classes),
    }


class Fit:
    """A fit that R holds."""

    def __init__(self, found):
        self.found = found


def coefficients(fit, level, exp):
    return _columns(fit.coefficients(level, exp=exp))


def contrast(fit, weights, level, exp):
    return _columns(fit.contrast(weights, level, exp=exp))


def marginal_effects(fit, new_data, level):
    return _columns(fit.marginal_effects(new_data, level))


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
    values = predictors(new_data, design)
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


def response_draws(fit, new_data):
    """Return draws of new responses, (draws, points)."""
    return np.asarray(fit.synthetic(new_data, n_sets=DRAWS).responses, dtype=float)


def draws(fit, n):
    """Return draws of the coefficients, in the table's units, and of the spread of the noise."""
    design, posterior = fit.design, fit.posterior
    theta = posterior.sample(_whole("n", n), seed=0, space="unconstrained")
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


def compare(fit, without):
    found = fit.compare(without=[without] if isinstance(without, str) else list(without))
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
        load,
        coefficients,
        contrast,
        marginal_effects,
        mean_draws,
        response_draws,
        draws,
        compare,
        create_account,
        spent,
        write,
    )
}

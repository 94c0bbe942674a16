"""No fitted object and no file holds a record: canaries among the records, looked for in everything that is reached.

From each result all objects are visited that it holds: attributes, containers, closures, views' bases; then its pickle
and its files are searched.  The canaries are one number, in double and single precision, and one text.
"""

import gc
import io
import pickle
import struct
import types
import warnings
import zipfile

import numpy as np
import pytest
from tests.privacy.test_entry_points import CASES, runnable

import dpinfer as dpi
from dpinfer.mechanism import Units
from dpinfer.testing import InsecureRNG

NUMBER, TEXT, PLACE = 0.7123456789012345, "quetzalcanary", 17
PACKED = (
    struct.pack("<d", NUMBER),
    struct.pack(">d", NUMBER),
    struct.pack("<f", NUMBER),
    b"0.712345678",
    TEXT.encode(),
)
SKIPPED = (types.ModuleType, type, types.CodeType, types.FrameType, types.TracebackType)


def inside(value):
    """The objects that one holds, without what its functions' modules hold."""
    if isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        return [*cells, value.__defaults__, value.__kwdefaults__, vars(value)]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, np.ndarray):
        return [value.base, *(value.ravel().tolist() if value.dtype.kind == "O" else [])]
    return gc.get_referents(value)


def is_canary(value):
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            return bool(np.any(value == NUMBER) or np.any(value.astype(np.float32) == np.float32(NUMBER)))
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return bool(np.any(np.char.find(value.astype(str), TEXT) >= 0))
    if isinstance(value, (float, np.floating)):
        return float(value) == NUMBER
    if isinstance(value, str):
        return TEXT in value
    if isinstance(value, (bytes, bytearray)):
        return any(part in value for part in PACKED)
    return False


def found_in(root):
    """The kinds of objects that hold a canary, on the way from a root."""
    seen, waiting, found = {}, [(root, type(root).__name__)], []
    while waiting:
        value, way = waiting.pop()
        if id(value) in seen or isinstance(value, SKIPPED):
            continue
        seen[id(value)] = value  # kept alive: a number may be given twice otherwise
        if is_canary(value):
            found.append(way)
        waiting += [(item, f"{way} > {type(item).__name__}") for item in inside(value)]
    return found


def members(content):
    """A file's content, and that of the members of an archive."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [content, *map(archive.read, archive.namelist())]
    return [content]


def written(folder):
    contents = [part for path in folder.rglob("*") if path.is_file() for part in members(path.read_bytes())]
    return [part for content in contents for part in PACKED if part in content]


def watch(values):
    """The array with a canary among its numbers, where these are no labels."""
    array = np.array(values)
    if array.dtype.kind == "f" and not np.all(np.isin(array, (0.0, 1.0))):
        array.reshape(len(array), -1)[PLACE, 0] = NUMBER
    return array


@pytest.mark.parametrize("entry", runnable(CASES), ids=lambda entry: entry.__name__)
def test_no_release_holds_a_record(entry, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = entry(watch)
    assert found_in(release) == []
    assert not any(part in pickle.dumps(release) for part in PACKED)
    if getattr(release, "format_name", ""):
        release.save(tmp_path / "a.release")
        assert (tmp_path / "a.release").exists()
    assert written(tmp_path) == []


# Fits

N = 400
COLUMNS = {
    "x": {"kind": "continuous", "bounds": [0, 10]},
    "z": {"kind": "continuous", "bounds": [-3, 3]},
    "y": {"kind": "continuous", "bounds": [-5, 15]},
    "k": {"kind": "continuous", "bounds": [0, 30]},
    "w": {"kind": "continuous", "bounds": [0, 5], "mean": 2.0},
    "won": {"kind": "binary", "positive": "1", "negative": "0"},
    "site": {"kind": "categorical", "categories": ["p", "q", "r"], "other": "other"},
    "home": {"kind": "ignore"},
}
SCHEMA = dpi.tabular.Schema.from_dict({"columns": COLUMNS})


def table():
    rng = np.random.default_rng(12)
    x, site = rng.uniform(0.0, 10.0, N), rng.choice(list("pqr"), N).astype(object)
    homes = np.array([f"home{place // 2}" for place in range(N)], dtype=object)
    found = {
        "x": x, "z": rng.normal(size=N), "y": 1.0 + 0.5 * x + rng.normal(size=N), "three": rng.integers(0, 3, N),
        "k": rng.poisson(np.exp(0.1 * x)) * 1.0,
        "w": np.tile([1.0, 3.0], N // 2), "won": (rng.random(N) < 0.4).astype(int), "site": site, "home": homes,
    }  # fmt: skip
    for name in ("x", "z", "y", "w"):
        found[name][PLACE] = NUMBER
    site[PLACE] = homes[PLACE] = TEXT
    return found


FITS = {
    "gaussian": ("y ~ x + z + site", {}),
    "own target": ("y ~ x + z", {"target": "model"}),
    "trace": ("won ~ x", {"family": "binomial", "method": "dpvi"}),
    "binomial": ("won ~ x + z", {"family": "binomial"}),
    "poisson": ("k ~ x", {"family": "poisson"}),
    "negative binomial": ("k ~ x", {"family": "negativebinomial"}),
    "multinomial": ("site ~ x", {"family": "multinomial"}),
    "sites": ("y ~ x + (1 | site)", {}),
    "persons": ("y ~ x + (1 | home)", {"unit": Units("home", max_rows=2), "n_records": N // 2}),
    "units": ("y ~ x", {"unit": Units("home", max_rows=2), "n_records": N // 2}),
    "clusters": ("y ~ x", {"clusters": "home"}),
    "weights and strata": ("y ~ x", {"weights": "w", "strata": "site"}),
    "unknown": ("y ~ x", {"unknown": ["n_records"], "n_records": None}),
}
HOLDERS = {"mapping": dict, "pandas": lambda table: pytest.importorskip("pandas").DataFrame(table)}


@pytest.mark.parametrize(
    ("name", "holder"), [*((name, "mapping") for name in FITS), *((name, "pandas") for name in ("gaussian", "persons"))]
)
def test_no_regression_holds_a_record(name, holder, tmp_path):
    formula, options = FITS[name]
    given = {"schema": SCHEMA, "epsilon": 4.0, "delta": 1e-6, "n_records": N, "random_source": InsecureRNG(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = dpi.regression(formula, HOLDERS[holder](table()), path=tmp_path / "fit", **(given | options))
        shown = [fit, fit.summary(), fit.report_content()]
        if not fit.failure:
            shown += [fit.posterior, fit.coefficients(), fit.posterior.summary()]
            fit.report(tmp_path / "report.html")
        for each in shown:
            assert found_in(each) == []
            assert TEXT not in str(each)
    assert len(list(tmp_path.rglob("*"))) > 3
    assert written(tmp_path) == []
    assert not any(part in pickle.dumps(fit.release) for part in PACKED)


ESTIMATORS = {
    "linear": (dpi.BayesianLinearRegression, "y", {"target_bounds": (-6, 16)}),
    "logistic": (dpi.BayesianLogisticRegression, "won", {"classes": (0, 1)}),
    "logistic trace": (dpi.BayesianLogisticRegression, "won", {"classes": (0, 1), "method": "dpvi", "n_steps": 50}),
    "probit": (dpi.BayesianProbitRegression, "won", {"classes": (0, 1)}),
    "poisson": (dpi.BayesianPoissonRegression, "k", {}),
    "multinomial": (dpi.BayesianMultinomialRegression, "three", {"classes": (0, 1, 2)}),
    "unknown": (dpi.BayesianLinearRegression, "y", {"unknown": ["n_records", "target_bounds"], "n_records": None}),
    "weights": (
        dpi.BayesianLinearRegression,
        "y",
        {"target_bounds": (-6, 16), "survey_weights": dpi.models.SurveyWeights(5.0, 2.0)},
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_estimator_holds_a_record(name):
    kind, response, options = ESTIMATORS[name]
    data = table()
    given = {"epsilon": 4.0, "delta": 1e-6, "n_records": N, "data_bounds": [(0, 10), (-3, 3)]}
    weights = {"sample_weight": data["w"]} if name == "weights" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind(**(given | options)).fit(np.c_[data["x"], data["z"]], data[response], **weights)
    assert found_in(model) == []
    content = pickle.dumps(model)
    assert not any(part in content for part in PACKED)


def test_what_holds_a_record_is_found(tmp_path):
    """The power twin: views, closures, partial functions, single precision, text, pickles and files."""
    records = watch(np.linspace(-1.0, 1.0, 100))
    view = records[20:30]

    class Holder:
        def __init__(self, value):
            self.value = value

    for value in (
        records,
        view,  # its base has the record
        records.astype(np.float32),
        records.tolist(),
        lambda: records,
        {"a": (1, [Holder(records)])},
        Holder(Holder(view)).value,
        Holder(dpi._validate.DeferredArray(lambda: records)),
        np.array([TEXT, "a"], dtype=object),
        np.array([TEXT]),
        f"the value {TEXT} is wrong",
    ):
        assert found_in(value), type(value)
    assert found_in(np.linspace(-1.0, 1.0, 100)) == []
    (tmp_path / "a.bin").write_bytes(b"x" + records.tobytes())
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", records.tobytes())
    assert len(written(tmp_path)) == 2

"""No value of a record in anything that leaves: messages, logs, reports, releases, ledgers, pickles, checkpoints.

The records hold marked values, unusual numbers and words.  Every path that reads records is taken, the good one and
the bad ones, and everything that comes out is searched for the marks, as text in several spellings and as raw bytes.
"""

import gzip
import logging
import pickle
import struct
import traceback
import warnings

import numpy as np
import pytest
from tests.reference.site_runs import run_sites

import dpinfer as dpi
from dpinfer.cli.main import main
from dpinfer.errors import RecordError
from dpinfer.mechanism import RunCheckpoint
from dpinfer.tabular import Schema, read_table

WORD = "Zx77-SECRET-Qw"
NUMBERS = [73.19264058317, 41.70220046852, 88.38961429047, 17.63054187293, 8675309.2514]
SCHEMA = """\
[columns.id]
kind = "ignore"
[columns.age]
kind = "continuous"
bounds = [0, 100]
scaling = "none"
[columns.job]
kind = "categorical"
categories = ["clerk", "cook"]
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""
HEADER = "id,age,job,rich\n"


def marks(word=WORD, numbers=NUMBERS):
    """Everything that would give a value away, as bytes."""
    found = [word.encode(), word.encode("utf-16-le"), word[:8].encode()]
    for number in numbers:
        found += [f"{number:.6g}".encode(), f"{number:.8f}".rstrip("0").encode()[:9], f"{number:.12e}".encode()[:9]]
        found += [
            struct.pack("<d", number),
            struct.pack(">d", number),
            struct.pack("<f", number),
            number.hex().encode(),
        ]
    return found


def assert_clean(where, content):
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    for mark in marks():
        assert mark not in data, f"{where} shows {mark!r}"


def told(error):
    """Everything that an exception carries: text, arguments and notes of it and of those it came from."""
    parts, seen = ["".join(traceback.format_exception(error))], []
    while error is not None and error not in seen:
        seen.append(error)
        parts += [str(error), repr(error), repr(error.args), *getattr(error, "__notes__", [])]
        # UnicodeDecodeError and the like keep the offending bytes.
        parts += [repr(getattr(error, name, "")) for name in ("object", "doc", "filename")]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def test_the_search_finds_what_it_looks_for():
    """The power twin: each spelling is found in a message, an array and a pickle that hold it."""
    for content in (
        f"bad value {WORD!r}".encode(),
        f"row has {NUMBERS[0]}".encode(),
        f"row has {NUMBERS[0]:.6g}".encode(),
        f"{NUMBERS[4]:.10e}".encode(),
        np.array(NUMBERS[:1]).tobytes(),
        np.array(NUMBERS[:1], dtype=np.float32).tobytes(),
        pickle.dumps({"x": np.array(NUMBERS)}),
    ):
        with pytest.raises(AssertionError, match="shows"):
            assert_clean("it", content)
    with pytest.raises(AssertionError, match="shows"):
        assert_clean("it", told(ValueError(f"could not convert {WORD}")))
    hidden = ValueError("public")
    hidden.__context__ = UnicodeDecodeError("utf-8", WORD.encode(), 0, 1, "bad")
    with pytest.raises(AssertionError, match="shows"):
        assert_clean("it", told(hidden))


@pytest.fixture
def records(rng):
    X = rng.normal(size=(120, 3))
    X[5], X[6], X[7] = NUMBERS[0], NUMBERS[1], NUMBERS[2]
    X[8, 1] = NUMBERS[4]
    return X, (rng.random(120) < 0.5).astype(float)


@pytest.fixture(scope="module")
def plan():
    return dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.4, n_steps=120)


@pytest.fixture
def account(tmp_path):
    return dpi.PrivacyLedger.create(tmp_path / "spent.ledger").add_dataset("people", budget=(50.0, 1e-5))


# The library


def changed(records, **changes):
    X, y = (array.copy() for array in records)
    for name, value in changes.items():
        if name == "label":
            y[4] = value
        elif name == "nan":
            X[4, 0] = np.nan
        elif name == "dtype":
            X = X.astype(value)
            if value is object:
                X[3, 0] = WORD
        elif name == "words":
            X = np.full(X.shape, WORD)
        elif name == "short":
            y = y[:-1]
        elif name == "flat":
            X = X[:, 0]
    return X, y


BAD = [
    {"label": NUMBERS[3]}, {"label": np.nan}, {"nan": 1}, {"dtype": object}, {"dtype": complex},
    {"words": 1}, {"short": 1}, {"flat": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("model", ["LogisticRegression", "PoissonRegression", "LinearRegression"])
def test_refusals_of_the_mechanism(plan, records, account, caplog, change, model, tmp_path):
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            dpi.run_dpvi(
                getattr(dpi.models, model)(3), *changed(records, **change), plan=plan, n_records=120, max_grad_norm=1.0,
                recipe="plain", ledger=account, checkpoint=tmp_path / "c",
            )  # fmt: skip
        except (ValueError, TypeError) as error:
            assert_clean("the error", told(error))
        else:
            assert model == "LinearRegression"
            assert "label" in change
    assert_clean("a warning", " ".join(str(item.message) for item in caught))
    assert_clean("the log", caplog.text)
    assert_clean("the ledger", account.path.read_bytes())


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (dpi.models.GammaExponential(), -NUMBERS[0]),
        (dpi.models.BetaBernoulli(), NUMBERS[1]),
        (dpi.models.DirichletCategorical(), NUMBERS[2]),
    ],
)
def test_refusals_of_conjugate_models(plan, model, value):
    for records in (np.array([1.0, value]), np.array([value, np.nan]), np.array([[value, value]]), np.array([WORD])):
        with pytest.raises((ValueError, TypeError)) as caught:
            dpi.run_dpvi(model, records, plan=plan, n_records=2, max_grad_norm=1.0)
        assert_clean("the error", told(caught.value))


def test_what_a_run_leaves(plan, records, account, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    model = dpi.models.LogisticRegression(3)
    said = []
    release = dpi.run_dpvi(
        model, *records, plan=plan, n_records=120, max_grad_norm=1.0, ledger=account,
        progress=lambda done, total: said.append((done, total)), checkpoint=RunCheckpoint(tmp_path / "c", interval=0.0),
    )  # fmt: skip
    release.save(tmp_path / "r")
    posterior = dpi.noise_aware_posterior(release, burn_in=0.2)
    assert_clean("the release", repr(release) + repr(dict(release.settings)) + repr(dict(release.model_spec)))
    assert_clean("the release's pickle", pickle.dumps(release))
    assert_clean("the posterior", repr(posterior) + str(posterior.summary()))
    assert_clean("progress", repr(said))
    assert_clean("the log", caplog.text)
    # The checkpoint is secret, and still it holds no record.
    for path in tmp_path.iterdir():
        assert_clean(path.name, path.read_bytes())
    other = (records[0] + 1.0, records[1])
    with pytest.raises(dpi.errors.RecordError) as caught:
        dpi.run_dpvi(
            model, *other, plan=plan, n_records=120, max_grad_norm=1.0, ledger=account, checkpoint=tmp_path / "c"
        )
    assert_clean("the error", told(caught.value))


SITES = {
    "probit": dpi.models.ProbitRegression(3),
    "mixture": dpi.models.GaussianMixture(2, 3),
    "network": dpi.models.BayesianNeuralNetwork(3, 4),
}


def site_run(name, records, **options):
    return run_sites(SITES[name], *(records[:1] if name == "mixture" else records), n_records=120, **options)


@pytest.mark.parametrize("change", BAD, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("name", SITES)
def test_refusals_of_dp_sep(plan, records, account, caplog, change, name, tmp_path):
    caplog.set_level(logging.DEBUG)
    try:
        site_run(name, changed(records, **change), plan=plan, ledger=account, checkpoint=tmp_path / "c")
    except (ValueError, TypeError) as error:
        assert_clean("the error", told(error))
    else:
        # Labels that a mixture does not read, or that a network may have.
        assert {"label", "short"} & set(change)
        assert name != "probit"
    assert_clean("the log", caplog.text)
    assert_clean("the ledger", account.path.read_bytes())


@pytest.mark.parametrize("name", SITES)
def test_what_a_run_of_dp_sep_leaves(plan, records, account, tmp_path, caplog, name):
    caplog.set_level(logging.DEBUG)
    said = []
    place = RunCheckpoint(tmp_path / "c", interval=0.0)
    release = site_run(
        name, records, plan=plan, ledger=account, progress=lambda *done: said.append(done), checkpoint=place
    )
    release.save(tmp_path / "r")
    assert_clean("the release", repr(release) + repr(dict(release.settings)) + repr(dict(release.model_spec)))
    assert_clean("the release's pickle", pickle.dumps(release))
    assert_clean("progress and the log", repr(said) + caplog.text)
    for path in tmp_path.iterdir():
        assert_clean(path.name, path.read_bytes())
    with pytest.raises(dpi.errors.RecordError) as caught:
        site_run(name, (records[0] + 1.0, records[1]), plan=plan, ledger=account, checkpoint=place)
    assert_clean("the error", told(caught.value))


@pytest.mark.parametrize(
    "change", [*BAD, {"labels": 1}, {"table": 1}, {"columns": 1}], ids=lambda change: next(iter(change))
)
def test_the_estimator(records, change):
    X, y = changed(records, **change)
    if "labels" in change:
        y = np.where(np.arange(len(y)) % 3 == 0, WORD, np.where(y > 0, "a", "b"))
    elif "table" in change:
        X = [[NUMBERS[0], WORD, None]] * len(y)
    elif "columns" in change:
        X = X[:, :0]
    model = dpi.BayesianLogisticRegression(
        n_records=120, classes=(0, 1), data_bounds=(-3, 3), method="dpvi", n_steps=120, burn_in=0.2, max_grad_norm=1.0
    )
    with pytest.raises((ValueError, TypeError)) as caught:
        model.fit(X, y)
    assert_clean("the error", told(caught.value))
    model.fit(*records)
    assert_clean("the estimator", repr(model) + repr(model.get_params()))
    assert_clean("its pickle", pickle.dumps(model))
    with pytest.raises((ValueError, TypeError)) as caught:
        model.predict(np.full((2, 3), WORD))
    assert_clean("the error", told(caught.value))


def test_classes_that_are_read_from_the_data_are_not_quoted(records):
    X, y = records
    model = dpi.BayesianLogisticRegression(n_records=120, data_bounds=(-3, 3), method="dpvi", n_steps=60, burn_in=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, np.where(y > 0, WORD, "b"))
    assert_clean("the warnings", " ".join(str(item.message) for item in caught))


# Files


def rows(count=150):
    rng = np.random.default_rng(4)
    return [
        f"{WORD}{i},{NUMBERS[i % 4]},{rng.choice(['clerk', 'cook'])},{rng.choice(['yes', 'no'])}\n"
        for i in range(count)
    ]


BAD_FILES = {
    "no header": "".join(rows(5)),
    "missing column": f"id,age,job\n{WORD},1,clerk\n",
    "extra column": f"id,age,job,rich,{WORD}\n1,1,clerk,yes,2\n",
    "header twice": f"{WORD},{WORD},job,rich\n1,1,clerk,yes\n",
    "unknown category": HEADER + f"1,1,{WORD},yes\n" + "".join(rows()),
    "number for a category": HEADER + f"1,1,{NUMBERS[0]},yes\n" + "".join(rows()),
    "unknown label": HEADER + f"1,1,clerk,{WORD}\n" + "".join(rows()),
    "word for a number": HEADER + f"1,{WORD},clerk,yes\n" + "".join(rows()),
    "number out of bounds": HEADER + f"1,{NUMBERS[4]},clerk,yes\n" + "".join(rows()),
    "ragged row": HEADER + f"{WORD},{NUMBERS[0]}\n" + "".join(rows()),
    "quotes": HEADER + f'1,"{WORD},1\n' + "".join(rows()),
    "null": HEADER + f"1,{NUMBERS[1]}\x00,{WORD},yes\n" + "".join(rows()),
    "one row": HEADER + rows(1)[0],
    "not text": (HEADER + WORD).encode() + b"\xff\xfe,1,clerk,yes\n",
    "long field": HEADER + f"1,1,{WORD * 20_000},yes\n",
    "empty": b"",
}


@pytest.mark.parametrize("missing", ["drop", "refuse"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_refusals_of_files(tmp_path, capsys, case, missing):
    body = BAD_FILES[case]
    content = body if isinstance(body, bytes) else body.encode()
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "people.csv"
    path.write_bytes(content)
    (tmp_path / "in" / "people.csv.gz").write_bytes(gzip.compress(content)[:-6] + WORD.encode())
    (tmp_path / "in" / "schema.toml").write_text(f'[table]\nmissing = "{missing}"\n' + SCHEMA)
    schema = Schema.load(tmp_path / "in" / "schema.toml")
    for name in ("people.csv", "people.csv.gz"):
        try:
            read_table(tmp_path / "in" / name, schema)
        except Exception as error:
            assert_clean("the error", told(error))
    # What the curator alone sees holds counts; names in a header are no values.
    if case not in ("extra column", "header twice"):
        for more in ([], ["--json"]):
            assert call(["check", path, "--schema", tmp_path / "in" / "schema.toml", *more]) == 1
            assert_clean("the check", "".join(capsys.readouterr()))
    argv = ["fit", path, "--schema", tmp_path / "in" / "schema.toml", "--out", tmp_path / "out", *QUICK]
    left_out = ("word for a number", "null", "ragged row", "quotes")
    if case == "number out of bounds" or (missing == "drop" and case in left_out):
        return
    assert call(argv) != 0
    assert_clean("the command", "".join(capsys.readouterr()))
    assert not (tmp_path / "out").exists()


QUICK = [
    "--epsilon",
    1,
    "--delta",
    1e-5,
    "--steps",
    60,
    "--sample-rate",
    0.5,
    "--burn-in",
    0.2,
    "--method",
    "naive",
    "--threads",
    1,
    "--n-records",
    150,
]


def call(argv):
    try:
        return main([str(item) for item in argv])
    except SystemExit as error:
        return error.code


def test_what_the_command_leaves(tmp_path, capsys, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    # Drawing takes most of the time; the pictures are searched in the tests of the command.
    monkeypatch.setattr("dpinfer.cli.pipeline.draw_all", lambda *arguments, **options: {})
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "people.csv").write_text(HEADER + "".join(rows()))
    (inside / "schema.toml").write_text(SCHEMA)
    assert call(["ledger", tmp_path / "spent.ledger", "--add", "people", "--epsilon", 1.2]) == 0
    argv = [
        "fit", inside / "people.csv", "--schema", inside / "schema.toml", "--out", tmp_path / "out", *QUICK,
        "--ledger", tmp_path / "spent.ledger", "--dataset", "people", "--checkpoint", tmp_path / "secret",
    ]  # fmt: skip
    assert call(argv) == 0
    assert call([*argv, "--overwrite"]) == 3
    assert call([*argv, "--overwrite", "--dataset", "others"]) == 2
    assert call(["ledger", tmp_path / "spent.ledger"]) == 0
    assert call(["posterior", tmp_path / "out" / "fit.release", "--approximation", "naive"]) == 0
    said = capsys.readouterr()
    assert_clean("standard output", said.out)
    assert_clean("standard error", said.err)
    assert_clean("the log", caplog.text)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and inside not in path.parents]
    assert {"fit.release", "report.html", "posterior.csv", "spent.ledger"} <= {path.name for path in written}
    for path in written:
        assert_clean(path.name, path.read_bytes())

    def fail(*arguments, **options):
        raise ValueError(f"unforeseen: {WORD} {NUMBERS[0]}")

    monkeypatch.setattr("dpinfer.cli.trace.run_dpvi", fail)
    assert call([*argv[:2], *argv[2:6], "--overwrite", *QUICK]) == 1
    assert_clean("the command", "".join(capsys.readouterr()))


class Hostile:
    """Records whose conversion fails with a text, a file's name and a cause that quote them."""

    shape = (120, 3)

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        try:
            raise KeyError(WORD)
        except KeyError as cause:
            raise self.error from cause


@pytest.mark.parametrize(
    "error", [ValueError(WORD), TypeError(WORD), RuntimeError(WORD), OSError(5, WORD, WORD), AttributeError(WORD)]
)
def test_errors_of_foreign_arrays_do_not_pass(plan, records, error):
    for data in ((Hostile(error), records[1]), (records[0], Hostile(error))):
        with pytest.raises((RecordError, OSError)) as caught:
            dpi.run_dpvi(dpi.models.LogisticRegression(3), *data, plan=plan, n_records=120, max_grad_norm=1.0)
        assert_clean("the error", told(caught.value))
        with pytest.raises((RecordError, OSError)) as caught:
            estimator().fit(*data)
        assert_clean("the error", told(caught.value))


@pytest.mark.parametrize(
    "X", [[[1.0, 2.0, 3.0]] * 119 + [[1.0]], [[1.0, 2.0, 10**400]] * 120, [[1.0, WORD, 2.0]] * 120]
)
def test_records_that_are_no_table_are_refused_without_a_count(plan, records, X):
    for refused in (
        lambda: dpi.run_dpvi(
            dpi.models.LogisticRegression(3), X, records[1], plan=plan, n_records=500, max_grad_norm=1.0
        ),
        lambda: estimator().fit(X, records[1]),
    ):
        with pytest.raises((RecordError, TypeError)) as caught:
            refused()
        assert "119" not in told(caught.value).replace("test_leaks", "").split("Error: ")[-1]
        assert "120" not in str(caught.value)
        assert_clean("the error", str(caught.value))


def estimator():
    return dpi.BayesianLogisticRegression(
        n_records=500, classes=(0, 1), data_bounds=(-3.0, 3.0), method="dpvi", n_steps=20, epsilon=1.0, n_threads=1
    )

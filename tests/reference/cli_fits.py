"""A small table and its schema, and calls of ``dpinfer fit`` on them."""

import numpy as np

from dpinfer.cli.main import main

SECRET = "Zx77-SECRET-Qw"
SCHEMA = """\
[columns.id]
kind = "ignore"
[columns.age]
kind = "continuous"
bounds = [0, 100]
[columns.level]
kind = "continuous"
bounds = [0, 1]
scaling = "none"
[columns.job]
kind = "categorical"
categories = ["clerk", "<b>cook</b>"]
[columns.rich]
kind = "target"
positive = "yes"
negative = "no"
"""
HEADER = "id,age,level,job,rich\n"
QUICK = [
    "--epsilon",
    "1",
    "--delta",
    "1e-5",
    "--steps",
    "60",
    "--sample-rate",
    "0.5",
    "--burn-in",
    "0.2",
    "--threads",
    "1",
]


def rows(count=300):
    rng = np.random.default_rng(4)
    age = rng.uniform(0, 100, count)
    rich = rng.uniform(size=count) < age / 100
    jobs = rng.choice(["clerk", "<b>cook</b>"], count)
    return [
        f"{SECRET}{i},{a:.4f},0.5,{j},{'yes' if r else 'no'}\n"
        for i, (a, j, r) in enumerate(zip(age, jobs, rich, strict=True))
    ]


def arguments(place, *more, schema=True, file="people.csv", n_records=True):
    """Return a fit by the published gradient trace, unless another method is named."""
    result = ["fit", str(place / file), "--out", str(place / "out"), *QUICK]
    result += [] if "--method" in more else ["--method", "dpvi"]
    result += ["--schema", str(place / "schema.toml")] if schema else []
    result += ["--n-records", "300"] if n_records else []
    return [*result, *more]


def regression_arguments(place, *more, schema=True, file="people.csv", n_records=True):
    """Return a fit by what a plan chooses, which is the default."""
    result = ["fit", str(place / file), "--out", str(place / "out"), "--epsilon", "1", "--delta", "1e-5"]
    result += ["--schema", str(place / "schema.toml")] if schema else []
    result += ["--n-records", "300"] if n_records else []
    return [*result, "--threads", "1", "--n-samples", "40", *more]


def call(argv):
    """Return the exit code, whichever way the command ends."""
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


def refused(place, capsys, argv, code=2):
    """Run a command that must be refused; return its one line."""
    assert call(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert SECRET not in err
    assert "Traceback" not in err
    assert not (place / "out").exists()
    return err

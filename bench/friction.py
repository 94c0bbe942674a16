"""What kept first users away, replayed: each complaint with what the library answers now.

    python bench/friction.py [--only NAME ...]

Each answer is checked before it is printed: a complaint that holds again fails the script.  The records are simulated.
Estimates and intervals differ from run to run; messages do not (docs/faq.md shows them).  The report is measured in
Chromium, where there is one.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpinfer as dpi
from dpinfer.cli.main import main as command
from dpinfer.tabular import Schema

ROOT = Path(__file__).parent.parent
N, PHONE = 400, 390
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "n_records": N}
SCHEMA = """\
[columns.dose]
kind = "continuous"
bounds = [0, 50]

[columns.ward]
kind = "categorical"
categories = ["north", "south"]

[columns.cured]
kind = "target"
positive = "yes"
negative = "no"
"""
WORDS = ("--epsilon", "1", "--delta", "1e-5", "--n-records", str(N))


def dpinfer(*words: str) -> str:
    """Run the command, and return what it was and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        command(words)
    return f"$ dpinfer {' '.join(words)}\n{said.getvalue()}".rstrip()


def records() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    dose = rng.uniform(0, 50, N).round(1)
    cured = np.where(rng.random(N) < 1 / (1 + np.exp(2 - 0.1 * dose)), "yes", "no")
    return {"dose": dose, "ward": rng.choice(["north", "south"], N), "cured": cured}


def write(name: str, shown: Callable[[int, float], str], delimiter: str = ",") -> str:
    """Write the records with the dose shown in some way."""
    columns = records()
    rows = [delimiter.join((shown(i, row[0]), *row[1:])) for i, row in enumerate(zip(*columns.values(), strict=True))]
    Path(name).write_text("\n".join([delimiter.join(columns), *rows]) + "\n", encoding="utf-8")
    return name


def error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")


def only_logistic_regression() -> str:
    names = sorted(name for name in dir(dpi) if name.startswith("Bayesian") and hasattr(getattr(dpi, name), "fit"))
    assert len(names) >= 4, names
    helped = subprocess.run(["python", "-m", "dpinfer", "fit", "--help"], capture_output=True, text=True, check=True)
    families = re.findall(r"--family \{([\w,]+)\}", helped.stdout)[0]
    assert {"gaussian", "binomial", "poisson", "probit"} <= set(families.split(","))
    return f"estimators: {', '.join(names)}\ndpinfer fit --formula F --family {{{families}}}"


def no_formula_no_data_frame_no_units() -> str:
    import pandas as pd

    schema = Schema.from_toml(SCHEMA)
    fit = dpi.regression("cured ~ dose + ward", pd.DataFrame(records()), family="binomial", schema=schema, **BUDGET)
    text = str(fit.summary())
    assert "in the units of the table" in text
    # The true slope, 0.1 for a unit of the dose, is not that of a scaled column, 1.4.
    assert abs(fit.coefficients()["dose"]["mean"]) < 0.5
    return text


def half_of_the_records_fell_out() -> str:
    text = dpinfer("check", write("dose.csv", lambda i, x: f"{x} mg" if i % 2 else str(x)), "--schema", "schema.toml")
    assert "200 with a number with a unit" in text
    assert "200 (50.0%)" in text
    return text


def nothing_can_be_saved() -> str:
    fit = dpi.fit(dpi.models.BetaBernoulli(), np.ones(N), **BUDGET)
    fit.save("study")
    again = dpi.load_fit("study").posterior
    assert np.array_equal(again.quantile([0.05, 0.95]), fit.posterior.quantile([0.05, 0.95]))
    return (
        "\n".join(sorted(path.as_posix() for path in Path("study").iterdir())) + "\nthe same quantiles from the files"
    )


def no_site() -> str:
    pages = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    books = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert {"start", "choosing", "reading-a-report", "coming-from", "faq", "glossary"} <= set(pages)
    assert len(books) >= 3
    return f"docs: {', '.join(pages)}\nnotebooks: {', '.join(books)}"


def the_readme_does_not_run() -> str:
    import matplotlib as mpl

    mpl.use("Agg")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    space: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for snippet in snippets:
            exec(compile(snippet, "README.md", "exec"), space)
    assert snippets
    return f"{len(snippets)} snippets of README.md run one after the other"


def arviz_is_pinned() -> str:
    import tomllib
    from importlib.metadata import version

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert not any("<" in item for item in extras["arviz"])
    posterior = dpi.fit(dpi.models.BetaBernoulli(), np.ones(N), **BUDGET).posterior
    try:
        data = posterior.to_arviz()
    except dpi.errors.BackendUnavailableError as error:
        return f"extra: {extras['arviz'][0]}\n{error}"
    assert "posterior" in str(data)
    return f"extra: {extras['arviz'][0]}\nArviZ {version('arviz')}: {type(data).__name__} with a posterior"


def the_report_cannot_be_read_on_a_phone() -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    fit = dpi.fit(dpi.models.LogisticRegression(3), np.eye(3)[np.arange(N) % 3], np.arange(N) % 2, **BUDGET)
    fit.report("report.html")
    if browser is None:
        return "not measured: there is no Chromium"
    Path("phone.html").write_text(
        f'<iframe src="report.html" style="width:{PHONE}px" onload="document.title = '
        "'width ' + this.contentDocument.documentElement.scrollWidth\"></iframe>",
        encoding="utf-8",
    )
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    words += ["--user-data-dir=profile"]
    page = subprocess.run(
        [browser, *words, Path("phone.html").resolve().as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    width = int(re.findall(r"<title>width (\d+)</title>", page.stdout)[0])
    assert width <= PHONE, width
    return f"report.html on a screen of {PHONE} px is {width} px wide"


def a_decimal_comma_says_nothing() -> str:
    Path("divided.toml").write_text('[table]\ndelimiter = ";"\n\n' + SCHEMA, encoding="utf-8")
    name = write("comma.csv", lambda _, x: str(x).replace(".", ","), ";")
    looked = dpinfer("check", name, "--schema", "divided.toml")
    refused = dpinfer("fit", name, "--schema", "divided.toml", "--out", "out", *WORDS)
    assert f"{N} with a decimal comma" in looked
    assert "is there text, a unit, or a decimal comma?" in refused
    return "\n".join(line for line in looked.splitlines() if "comma" in line) + f"\n{refused}"


def a_wrong_delimiter_is_a_missing_column() -> str:
    text = dpinfer(
        "fit", write("semi.csv", lambda _, x: str(x), ";"), "--schema", "schema.toml", "--out", "out", *WORDS
    )
    assert "divided by ';', not by ','" in text
    return text


def errors_name_arguments_of_other_functions() -> str:
    X, y = np.zeros((N, 2)), np.arange(N) % 2
    told = []
    for kind, wrong in (
        (dpi.BayesianLogisticRegression, {"epsilon": -1.0}),
        (dpi.BayesianLogisticRegression, {"data_bounds": (1, -1)}),
        (dpi.BayesianLogisticRegression, {"data_bounds": [(0, 1)] * 3}),
        (dpi.BayesianLogisticRegression, {"sample_rate": 2}),
        (dpi.BayesianLinearRegression, {"data_bounds": None, "target_bounds": (0, 1)}),
        (dpi.BayesianLinearRegression, {"target_bounds": None}),
    ):
        options = {"n_records": N, "data_bounds": (-1, 1), **wrong}
        message = error_of(lambda kind=kind, options=options: kind(**options).fit(X, y))
        name = next(iter(wrong))
        assert message.startswith(f"ValueError: {name} "), message
        told.append(f"{kind.__name__}({name}={wrong[name]})\n    {message}")
    return "\n".join(told)


def a_public_file_that_is_missing_is_withheld() -> str:
    write("good.csv", lambda _, x: str(x))
    text = dpinfer("fit", "good.csv", "--schema", "gone.toml", "--out", "out", *WORDS)
    assert "cannot open 'gone.toml': No such file or directory" in text
    return text


COMPLAINTS: dict[str, tuple[str, Callable[[], str]]] = {
    "families": ("Only two-class logistic regression has an estimator and a command", only_logistic_regression),
    "formula": ("No formula, no data frame, coefficients without units", no_formula_no_data_frame_no_units),
    "dropped": ("Nothing says that half of the records fell out", half_of_the_records_fell_out),
    "saved": ("Results cannot be saved", nothing_can_be_saved),
    "site": ("There is no documentation site", no_site),
    "readme": ("The first snippet of the README ends in a NameError", the_readme_does_not_run),
    "arviz": ("ArviZ is pinned below 1", arviz_is_pinned),
    "phone": ("The report cannot be read on a phone", the_report_cannot_be_read_on_a_phone),
    "comma": ("A decimal comma in a number column is not named", a_decimal_comma_says_nothing),
    "delimiter": ("A wrong delimiter looks like a missing column", a_wrong_delimiter_is_a_missing_column),
    "arguments": ("An estimator's errors name arguments of other functions", errors_name_arguments_of_other_functions),
    "missing": ("A public file that is missing is 'withheld'", a_public_file_that_is_missing_is_withheld),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(COMPLAINTS), default=list(COMPLAINTS))
    names = parser.parse_args().only
    here = Path.cwd()
    warnings.simplefilter("ignore")
    for name in names:
        complaint, answer = COMPLAINTS[name]
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                Path("schema.toml").write_text(SCHEMA, encoding="utf-8")
                text = answer()
            finally:
                os.chdir(here)
        print(f"\n{complaint}\n" + "\n".join(f"    {line}".rstrip() for line in text.splitlines()), flush=True)


if __name__ == "__main__":
    main()

"""``dpinfer fit --unknown``: one budget for what nobody knows in public and for the fit."""

import pytest
from tests.reference.cli_fits import SCHEMA, arguments

import dpinfer as dpi
from dpinfer.cli.main import main

DRAFT = SCHEMA.replace("bounds = [0, 100]\n", "").replace('categories = ["clerk", "<b>cook</b>"]\n', "")
UNKNOWN = ("--unknown", "n_records,bounds,categories")


@pytest.fixture
def drafted(place):
    (place / "schema.toml").write_text(DRAFT)
    return place


@pytest.mark.usefixtures("plain")
def test_all_is_released_and_fitted_within_the_budget(drafted, capsys):
    ledger = dpi.PrivacyLedger.create(drafted / "spent.ledger")
    account = ledger.add_dataset("people", budget=(1.0, 1e-5))
    charged = ["--ledger", str(drafted / "spent.ledger"), "--dataset", "people", "--approximation", "averaged"]
    assert main(arguments(drafted, *UNKNOWN, *charged, n_records=False)) == 0
    said = capsys.readouterr().out
    release = dpi.load_release(drafted / "out" / "fit.release")
    assert release.epsilon == pytest.approx(account.spent().epsilon, rel=1e-9)
    assert 0.99 < release.epsilon <= 1.0
    assert [part.name for part in release.parts] == ["what was unknown in public", "gradient trace"]
    assert [run.mechanism for run in account.runs()] == ["release_unknown", "dpvi"]
    assert "the whole trace together with what was unknown in public" in release.guarantee
    assert release.guarantee in said
    schema = dpi.tabular.Schema.load(drafted / "out" / "schema.toml")
    assert schema.parts == release.other_parts
    age, job = schema.columns[1], schema.columns[3]
    assert age.bounds[0] < age.bounds[1]
    assert job.categories[-1] == "other"
    assert release.n_records >= 1
    # The budget is spent, and nothing more is read.
    assert main(arguments(drafted, *UNKNOWN, *charged, "--overwrite", n_records=False)) == 3


@pytest.mark.usefixtures("unspent")
@pytest.mark.parametrize(
    ("options", "n_records", "match"),
    [
        (UNKNOWN, True, "not both"),
        (("--unknown", "bounds,categories"), False, "not both"),
        ((*UNKNOWN, "--shares-budget", "0.1"), False, "--shares-budget"),
        ((*UNKNOWN, "--checkpoint", "c"), False, "--checkpoint"),
        (("--unknown", "n_records,bounds"), False, "'job' lack them"),
        (("--unknown", "n_records,names"), False, "unknown"),
    ],
)
def test_what_does_not_go_together_is_refused(drafted, capsys, options, n_records, match):
    assert main(arguments(drafted, *options, n_records=n_records)) == 2
    assert match in capsys.readouterr().err
    assert not (drafted / "out").exists()


@pytest.mark.usefixtures("unspent")
def test_a_complete_schema_has_no_gaps_to_fill(place, capsys):
    assert main(arguments(place, *UNKNOWN, n_records=False)) == 2
    assert "no column lacks them" in capsys.readouterr().err
    assert main(arguments(place, *UNKNOWN, n_records=False, schema=False)) == 2
    assert "--schema" in capsys.readouterr().err


@pytest.mark.usefixtures("plain")
def test_a_draft_without_the_option_names_what_it_lacks(drafted, capsys):
    assert main(arguments(drafted)) != 0
    assert "columns.age.bounds is required" in capsys.readouterr().err

"""The folder of a fit: its plan, its release, and its posterior."""

import json
from pathlib import Path

from dpinfer.errors import ReleaseFormatError
from dpinfer.fitting.plan import FitPlan
from dpinfer.models import Model
from dpinfer.release.archive import parse_json
from dpinfer.release.files import write_atomically

PLAN_FILE, RELEASE_FILE, POSTERIOR_FILE = "plan.json", "fit.release", "fit.posterior"
_FORMAT, _VERSION = "dpinfer-fit", 1
_LARGEST = 1 << 24  # bytes: a plan has some kB; a hostile file must not allocate more


def save_plan(plan: FitPlan, folder: Path) -> None:
    """Write the plan to a folder before the run, which shows that the folder can be written to.

    Raises
    ------
    FileExistsError
        If it holds a fit.
    OSError
        If it cannot be written to.
    """
    if (folder / RELEASE_FILE).exists():
        raise FileExistsError(f"path must be a folder without a fit, and {str(folder)!r} holds {RELEASE_FILE}")
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(plan, folder)


def write_plan(plan: FitPlan, folder: Path, failure: str = "") -> None:
    """Write the plan, and why there is no posterior."""
    data = {"format": _FORMAT, "version": _VERSION, "plan": plan.to_dict(), "failure": failure}
    write_atomically(folder / PLAN_FILE, json.dumps(data, indent=1, allow_nan=False).encode())


def load_plan(folder: Path, model: Model | None) -> tuple[FitPlan, str]:
    """Return a saved plan, and why there is no posterior.

    Raises
    ------
    ReleaseFormatError
        If the file is not that of a fit.
    """
    path = folder / PLAN_FILE
    with path.open("rb") as stream:
        content = stream.read(_LARGEST + 1)
    try:
        if len(content) > _LARGEST:
            raise ValueError("it is too large")
        data = parse_json(content)
        if data.get("format") != _FORMAT or data.get("version") != _VERSION:
            raise ValueError("it has another format or version")
        return FitPlan.from_dict(data["plan"], model=model), str(data.get("failure", ""))
    except (ValueError, KeyError) as error:
        raise ReleaseFormatError(f"{str(path)!r} is not the plan of a fit: {error}") from error

"""The design of a regression on the disk, beside its fit."""

import json
from pathlib import Path
from typing import Any

from dpinfer.errors import ReleaseFormatError
from dpinfer.fitting.result import make_folder
from dpinfer.formulas.design import Design, design
from dpinfer.mechanism import Units
from dpinfer.release.files import write_atomically
from dpinfer.tabular import Schema

DESIGN_FILE = "regression.json"
_FORMAT, _VERSION, _LARGEST = "dpinfer-regression", 1, 1 << 24


def save_first(design: Design, folder: Path) -> None:
    """Write the design to a folder before the run; raise FileExistsError if it holds a fit."""
    make_folder(folder)
    save_design(design, folder)


def save_design(design: Design, folder: Path) -> None:
    """Write formula, family and schema to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    optional: dict[str, Any] = {name: getattr(design, name) for name in ("completed", "weights", "strata")}
    if design.persons is not None:
        units = design.persons
        optional["persons"] = {"ids": str(units.ids), "max_rows": units.max_rows, "mean_rows": units.mean_rows}
    data = {
        "format": _FORMAT,
        "version": _VERSION,
        "formula": design.formula.text,
        "family": design.family,
        "prior_scale": design.prior_scale,
        **{name: value for name, value in optional.items() if value},
        "schema": design.schema.to_dict(),
    }
    write_atomically(folder / DESIGN_FILE, json.dumps(data, indent=1, allow_nan=False).encode())


def load_design(folder: Path) -> Design:
    """Read the design in a folder; raise ReleaseFormatError if it is malformed."""
    path = folder / DESIGN_FILE
    if path.stat().st_size > _LARGEST:
        raise ReleaseFormatError(f"{str(path)!r} is not the design of a regression: it is too large")
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != _VERSION:
            raise ValueError("it has another format or version")
        schema = Schema.from_dict(data["schema"])
        return design(
            data["formula"],
            schema,
            family=data["family"],
            prior_scale=data["prior_scale"],
            completed=data.get("completed", False) is True,
            weights=data.get("weights"),
            strata=data.get("strata"),
            unit=Units(**data["persons"]) if "persons" in data else None,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReleaseFormatError(f"{str(path)!r} is not the design of a regression: {error}") from error

"""What a script of this folder gets and returns: runs that are kept on disk, and a table beside the published one.

A script is a table or a figure of a paper.  The first line of its docstring is the title; PAPER is the paper's short
name; ``measure(work)`` returns a Table.  Scripts with an underscore are shared.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MISSING = "–"  # a number that the paper does not have


@dataclass(frozen=True)
class Table:
    """Rows by method, with one cell for each column: texts with their Monte Carlo errors."""

    columns: Sequence[str]  # without that of the rows' labels
    rows: Sequence[tuple[str, Sequence[str]]]
    remarks: Sequence[str] = ()  # one sentence for each difference, with the row that shows its cause
    pictures: Sequence[str] = ()  # files below docs/

    def __post_init__(self) -> None:
        for label, cells in self.rows:
            if len(cells) != len(self.columns) or not all(cells):
                raise ValueError(f"row {label!r} must have {len(self.columns)} cells that are not empty, got {cells}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and texts."""
        plain = asdict(self)
        plain["rows"] = [[label, *cells] for label, cells in self.rows]
        return plain


@dataclass
class Work:
    """Where a script keeps what it has run, and how much it may run."""

    folder: Path  # of this script alone; a quick run has another
    quick: bool = False
    most: int | None = None  # runs for each cell, in place of the script's own number
    minutes: float = math.inf  # no run starts later; what is there is tabulated
    threads: int = 1
    began: float = field(default_factory=time.monotonic)

    def size(self, whole: int, quick: int) -> int:
        """Return how many runs a cell has."""
        wanted = quick if self.quick else whole
        return wanted if self.most is None else min(wanted, self.most)

    @property
    def out_of_time(self) -> bool:
        """Whether no further run may start."""
        return time.monotonic() - self.began > 60.0 * self.minutes

    def runs(self, key: str, count: int, one: Callable[[int], Any]) -> list[Any]:
        """Return ``one(0), ..., one(count - 1)`` as JSON keeps them; those on disk are not run again."""
        path = self.folder / f"{key}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A line without its end was interrupted.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        results = [json.loads(line) for line in lines[:count]]
        with path.open("a", encoding="utf-8") as stream:
            for index in range(len(results), count):
                if self.out_of_time:
                    break
                text = json.dumps(one(index))
                stream.write(text + "\n")
                stream.flush()
                results.append(json.loads(text))
        return results

    def say(self, text: str) -> None:
        """Print how far the script is."""
        print(f"  {time.monotonic() - self.began:7.0f} s  {text}", flush=True)


def with_error(values: Iterable[float], digits: int = 3, scale: float = 1.0) -> str:
    """Return "mean ± Monte Carlo error of the mean (runs)", or a dash without a run."""
    numbers = scale * np.asarray(list(values), dtype=float)
    if not numbers.size:
        return "not run"
    if numbers.size == 1:
        return f"{numbers[0]:.{digits}f} (1 run)"
    error = numbers.std(ddof=1) / math.sqrt(numbers.size)
    return f"{numbers.mean():.{digits}f} ± {error:.{digits}f} ({numbers.size} runs)"

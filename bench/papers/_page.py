"""The page docs/papers.md, from the papers' part of bench/results.json."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAPERS = {
    "NA-DPVI": "Alrawajfeh, Jälkö and Honkela (2025), Noise-Aware Differentially Private Variational Inference",
    "DP-SEP": "Vinaroz and Park (2023), Differentially Private Stochastic Expectation Propagation",
}
ABOUT = """
The library implements two papers. This page has their tables and figures: the published number, ours by the paper's
method and recipe, ours by the default, and why they differ. It is made from `bench/results.json` by `python -m bench
papers`. A number behind ± is the Monte Carlo error of the mean, unless its table says otherwise.
"""
_WIDTH = 150


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph in lines that can be read."""
    lines = textwrap.wrap(
        " ".join(text.split()), _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines)


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; the first column holds the rows' labels."""
    lines = [["", *columns], ["---"] * (len(columns) + 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(name: str, result: Mapping[str, Any]) -> str:
    """Return the part of the page for one table or figure."""
    parts = [f"### {result['title']}", table(result["columns"], result["rows"])]
    parts += [f"![{result['title']}]({picture})" for picture in result["pictures"]]
    if result["remarks"]:
        parts.append("\n".join(wrapped(f"- {remark}", "  ") for remark in result["remarks"]))
    call = f"`python -m bench papers {name}{' --quick' if result['quick'] else ''}`"
    how = "a quick run, with few repetitions" if result["quick"] else f"{result['seconds'] / 60:.0f} minutes"
    parts.append(wrapped(f"{call}: {how}, code {result['code']}, {result['date']}."))
    return "\n\n".join(parts)


def page(results: Mapping[str, Mapping[str, Any]], notes: Path) -> str:
    """Return the page; `notes` is a folder with a Markdown file for each paper, for what no script measures."""
    parts = ["# The two papers", wrapped(ABOUT)]
    for paper, reference in PAPERS.items():
        parts += [f"## {paper}", wrapped(f"{reference}.")]
        parts += [section(name, result) for name, result in sorted(results.items()) if result["paper"] == paper]
        more = notes / f"{paper.lower()}.md"
        if more.exists():
            parts.append(more.read_text(encoding="utf-8").strip())
    return "\n\n".join(parts) + "\n"

"""Draw docs/images/architecture.svg: the packages by layer, what each imports, and which of them can see records.

    python docs/images/architecture.py [--check]

A box has the package's name and size, and below it what it imports.

Layers are those of import-linter's contract in pyproject.toml, packages and imports those of the source; lazy imports
inside of functions count, those for type checkers alone do not.  `--check` fails where the file is another one, but for
sizes.
"""

import argparse
import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "dpinfer"
PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, ROW, LINE, GAP, MARGIN = 720, 56, 28, 14, 16
MOST = 60  # characters of a line
PRIVATE, PUBLIC, LABORATORY = "#f3d3c4", "#d3e3f3", "#e6e6e6"


def layers():
    """Return the packages by layer, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (item for item in settings["tool"]["importlinter"]["contracts"] if item["type"] == "layers")
    found = []
    for layer in contract["layers"]:
        names = [name.strip().removeprefix("dpinfer.") for name in layer.split("|")]
        found.append([name for name in names if (PACKAGE / name).is_dir()])
    return [layer for layer in found if layer]


def modules():
    """Return every module's file by its name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path, known):
    """Return the modules that a module imports, but for type checkers."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module in known:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names & known.keys())
            if names - known.keys():
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update({alias.name for alias in node.names} & known.keys())
        for field in ("body", "orelse", "handlers", "finalbody"):
            for child in getattr(node, field, ()):
                visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found - {"dpinfer"}


def package(module):
    """Return the package of a module."""
    return module.split(".")[1]


def imports():
    """Return the packages that each package imports, and those of which a module leads to the mechanism."""
    known = modules()
    edges = {name: imported(path, known) for name, path in known.items() if name != "dpinfer"}
    packages: dict[str, set[str]] = {}
    for name, others in edges.items():
        packages.setdefault(package(name), set()).update({package(other) for other in others} - {package(name)})
    private = {name for name in edges if package(name) == "mechanism"}
    size = 0
    while len(private) > size:
        size = len(private)
        private |= {name for name, others in edges.items() if others & private}
    return packages, {package(name) for name in private}


def thousands(name):
    """Return the lines of a package in thousands, rounded: they need not be drawn anew at every commit."""
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / name).rglob("*.py"))
    return max(1, round(lines / 1000))


def picture():
    """Return the picture, as SVG."""
    order = layers()
    names = [name for layer in order for name in layer]
    edges, private = imports()
    parts, y = [], MARGIN
    for layer in order:
        for name in layer:
            colour = LABORATORY if name == "lab" else PRIVATE if name in private else PUBLIC
            own = [other for other in names if other in edges[name]]
            lines = textwrap.wrap(", ".join(own) or "nothing of the library", MOST)
            height = ROW + LINE * len(lines)
            parts += [
                f'<rect x="{MARGIN}" y="{y}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="8" fill="{colour}"/>',
                f'<text x="{MARGIN + 18}" y="{y + 38}" font-size="30" font-weight="600">{escape(name)}</text>',
                f'<text x="{WIDTH - MARGIN - 18}" y="{y + 38}" font-size="22" text-anchor="end">'
                f"{thousands(name)} 000 lines</text>",
            ]
            for number, line in enumerate(lines):
                place = f'x="{MARGIN + 18}" y="{y + ROW + 12 + LINE * number}"'
                parts.append(f'<text {place} font-size="22" fill="#444">{escape(line)}</text>')
            y += height + 6
        y += GAP
    legend = ((PRIVATE, "its imports lead to the mechanism"), (PUBLIC, "none of them does: releases alone"))
    for colour, text in (*legend, (LABORATORY, "the laboratory: no fit needs it")):
        parts.append(f'<rect x="{MARGIN}" y="{y}" width="28" height="28" rx="5" fill="{colour}"/>')
        parts.append(f'<text x="{MARGIN + 42}" y="{y + 22}" font-size="22">{text}</text>')
        y += 40
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + MARGIN}" font-family="sans-serif" '
        'fill="#111" role="img">'
    )
    back = f'<rect width="{WIDTH}" height="{y + MARGIN}" fill="#fff"/>'
    return "\n".join((head, back, *parts, "</svg>")) + "\n"


def main():
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where the file is not what would be drawn")
    if parser.parse_args().check:
        kept, drawn = (re.sub(r"\d+ 000 lines", "", text) for text in (PICTURE.read_text(encoding="utf-8"), picture()))
        return int(kept != drawn)
    PICTURE.write_text(picture(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Settings of the documentation site: ``sphinx-build -W docs build/site`` (extra ``docs``)."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

ROOT = Path(__file__).parents[1]
try:
    import dpinfer
except ImportError:  # the source tree, with the compiled modules beside the packages
    sys.path.insert(0, str(ROOT / "python"))
    import dpinfer

project = "dpinfer"
author = "the dpinfer developers"
project_copyright = "2026, the dpinfer developers"
version = release = dpinfer.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
if tags.has("checked"):  # noqa: F821 -- by continuous integration: no pages of source code, which cannot be wrong
    extensions.remove("sphinx.ext.viewcode")
    smartquotes = False
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
exclude_patterns = ["_templates", "paper"]  # the paper has a form of its own
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# Notebooks are kept without outputs; each is run from its first cell to its last, in a folder of its own.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
# Their kernels import the package that this process did.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(dpinfer.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False

# Parameters in single backticks are names of arguments: that several classes have one of that name is no fault.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = "dpinfer"
html_static_path = ["_static"]
html_css_files = ["site.css"]


class CommandHelp(Directive):
    """The help of ``dpinfer`` and of each of its verbs, as its own parser prints it."""

    def run(self) -> list[nodes.Node]:
        """Return a section for the command and one for each verb."""
        from dpinfer.cli.main import build_parser

        os.environ["COLUMNS"] = "100"
        parser = build_parser()
        (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        found: list[nodes.Node] = [self.section("dpinfer", parser)]
        return found + [self.section(f"dpinfer {name}", verb) for name, verb in verbs.choices.items()]

    def section(self, title: str, parser: argparse.ArgumentParser) -> nodes.Node:
        """Return the help of one parser under its title."""
        text = parser.format_help()
        section = nodes.section(ids=[nodes.make_id(title)])
        section += nodes.title(text=title)
        section += nodes.literal_block(text, text, language="text")
        return section


def setup(app: Any) -> None:
    """Tell Sphinx of the directive."""
    app.add_directive("command-help", CommandHelp)

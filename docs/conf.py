"""How Sphinx builds the site: pages in Markdown (MyST), those of the reference made from the code before each build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from site_pages import GENERATED  # noqa: E402 - a package of this folder
from site_pages.docstrings import as_restructured_text  # noqa: E402
from site_pages.write import write_pages  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from graphkit import __version__  # noqa: E402

project = "graphkit"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site_pages", "_build"]
suppress_warnings = [
    "myst.header",  # pages made of results begin sections at the level that they have in a report
    "ref.python",  # of a type such as `bytes`, that several classes have an attribute of this name
]

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"npt.ArrayLike": "numpy.typing.ArrayLike"}  # a union of private types of numpy
python_use_unqualified_type_names = True
default_role = "literal"  # what docstrings have between backticks is code
napoleon_preprocess_types = False

html_theme = "furo"
html_title = f"graphkit {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # which makes a dash of `--` in the names of options


def list_near_pages(context: dict[str, Any]) -> None:
    """Let the sidebar of a page list the pages around it: all 199 on each of them take two thirds of a build."""
    if "toctree" in context:
        whole = context["toctree"]
        context["toctree"] = lambda **options: whole(**{**options, "collapse": True})


def setup(app: Sphinx) -> None:
    """Make the pages of the reference, and read docstrings as they are written here."""
    app.connect("builder-inited", lambda _: write_pages(HERE, GENERATED))
    app.connect("html-page-context", lambda *given: list_near_pages(given[3]), priority=100)  # before the theme
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)  # before napoleon

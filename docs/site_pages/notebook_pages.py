"""The notebooks with their outputs, as `reports/notebooks` has them."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from graphkit.render.document_blocks import Drawing
from graphkit.render.html import draw_svg
from site_pages.markdown import contents

__all__ = ["pages"]

ROOT = Path(__file__).parents[2]
FLOWCHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.M | re.S)
NODE, EDGE = re.compile(r'^ *(n\d+)\["(.*)"\]$', re.M), re.compile(r"^ *(n\d+) --> (n\d+)$", re.M)
RENDERED = ROOT / "reports" / "notebooks"
INDEX = """# Notebooks

These notebooks run after `pip install onnx-graphkit[notebooks]`. The pages show them with their outputs.

"""


def pages() -> dict[str, str]:
    """Return each notebook, its drawings, and the list of them."""
    notebooks = sorted(RENDERED.glob("*.md"))
    titles = {path.stem: _title(path) for path in notebooks}
    index = INDEX + "".join(f"- [{title}]({name}.md)\n" for name, title in titles.items()) + contents(titles)
    drawings = {path.name: path.read_text(encoding="utf-8") for path in RENDERED.glob("*.svg")}
    return {"index.md": index} | drawings | {path.name: _page(path) for path in notebooks}


def _title(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def _page(path: Path) -> str:
    """Return a notebook, whose links to pages of `docs` lead from the folder of the site, its flowcharts drawn."""
    text = path.read_text(encoding="utf-8").replace("](../docs/", "](../")
    return FLOWCHART.sub(lambda match: f'<div class="drawing">{_drawn(match[1])}</div>', text)


def _drawn(flowchart: str) -> str:
    """Return a flowchart that `graphkit.render.markdown` wrote as an `<svg>` element."""
    nodes = [(name, _label(label), "const" if label == "CONST" else "step") for name, label in NODE.findall(flowchart)]
    return draw_svg(Drawing("flowchart", nodes, EDGE.findall(flowchart)))


def _label(label: str) -> str:
    return unescape(re.sub(r"#(\w+);", r"&\1;", label).replace("&35;", "#"))

"""A result as one self-contained HTML page to work in: contents, sections that fold, tables that sort, search, nodes.

The page asks no network for anything, and its content-security policy forbids it. The script is the modules of the
folder `page` after each other; without it the page is a document that can be read and printed. These are modules of our
own, because tables, a search and drawings of some dozen boxes need no library.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from graphkit.render.document_blocks import Block, Document, Heading, Table
from graphkit.render.html import STYLE, block_html, escape_html

__all__ = ["PageGraph", "html_page"]

PageGraph = Mapping[str, object]
MODULES = (
    "elements",
    "formulas",
    "sizes",
    "memory",
    "graph",
    "kinds",
    "neighbourhood",
    "pair",
    "charts",
    "treemap",
    "figures",
    "tables",
    "links",
    "panel",
    "main",
)  # each after those that it imports
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.mjs";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:function|class|const) (\w+))", re.MULTILINE)
COMMENT = re.compile(r"^ *(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)  # that fills its lines
NOT_IN_AN_ID = re.compile(r"[^a-z0-9]+")


def html_page(result: Document, graphs: Sequence[PageGraph] = (), explanations: Mapping[str, str] | None = None) -> str:
    """Return a whole page.

    Args:
        result: What to show.
        graphs: The graphs that it can be searched for, as `analysis.page_graph.page_graph` makes them.
        explanations: Texts that explain what the first section says, by title; each unfolds below it.
    """
    sections = list(_split_sections(result.blocks()))
    first, *others = map(_section_html, sections)
    shown = "".join((first, _explanation_html(explanations or {}), *others))
    style, script = _page_style(), _page_script()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_security_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape_html(result.heading())}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<div class="layout graphkit">\n{_page_bar(result, graphs)}{_contents_html(sections)}'
        f"<main>\n<h1>{escape_html(result.heading())}</h1>\n{shown}</main>\n"
        "</div>\n"
        '<aside id="panel" class="graphkit" aria-label="Node" tabindex="-1" hidden>'
        '<button id="close" type="button" title="Close (Escape)">Close</button><div class="body"></div></aside>\n'
        f'{"".join(map(_graph_data, graphs))}<script type="module">{script}</script>\n</body>\n</html>\n'
    )


Section = tuple[str, str, list[Block]]  # id, title and blocks


def _split_sections(blocks: Iterable[Block]) -> Iterator[Section]:
    """Yield the blocks before the first heading, without a title, then those of each heading."""
    section: Section = ("top", "", [])
    taken = {"top", "panel", "close", "search", "explanations"}
    for block in blocks:
        if isinstance(block, Heading) and not block.is_inner:
            yield section
            place = next(name for name in _number_anchors(_anchor_slug(block.text)) if name not in taken)
            taken.add(place)
            section = (place, block.text, [])
        else:
            section[2].append(block)
    yield section


def _number_anchors(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in range(2, 1_000_000))


def _section_html(section: Section) -> str:
    place, title, blocks = section
    shown = "".join(_block_html(place, block) for block in blocks)
    if not title:
        return f'<section id="{place}">\n{shown}</section>\n'
    summary = f"<summary><h2>{escape_html(title)}</h2></summary>"
    return f'<section id="{place}"><details open>{summary}\n{shown}</details></section>\n'


def _block_html(place: str, block: Block) -> str:
    if isinstance(block, Heading):
        return f'<h3 id="{_inner_place(place, block)}">{escape_html(block.text)}</h3>\n'
    return block_html(block, 1)


def _inner_place(place: str, heading: Heading) -> str:
    """Return the id of an inner heading, which no section has: theirs have no dot."""
    return f"{place}.{_anchor_slug(heading.text)}"


def _anchor_slug(text: str) -> str:
    return NOT_IN_AN_ID.sub("-", text.lower()).strip("-")[:60] or "section"


def _lines_html(text: str) -> str:
    return "\n".join(map(escape_html, text.splitlines()))


def _explanation_html(explanations: Mapping[str, str]) -> str:
    """Return texts that are folded away until somebody asks for one."""
    texts = "".join(
        f"<details><summary>{escape_html(title)}</summary><pre>{_lines_html(text)}</pre></details>\n"
        for title, text in explanations.items()
    )
    return f'<div id="explanations"><h2>What to do</h2>\n{texts}</div>\n' if texts else ""


def _page_bar(result: Document, graphs: Sequence[PageGraph]) -> str:
    words = "Search nodes, operators, values and weights ( / )"
    field = f'<input id="search" type="search" placeholder="{words}" aria-label="{words}">' if graphs else ""
    return f'<header class="bar"><strong>{escape_html(result.heading())}</strong>{field}</header>\n'


def _contents_html(sections: Sequence[Section]) -> str:
    rows = []
    for place, title, blocks in sections:
        count = sum(len(block.rows) for block in blocks if isinstance(block, Table))
        number = f' <span class="count">{count:,}</span>' if count else ""
        inner = "".join(_inner_row(place, block) for block in blocks if isinstance(block, Heading))
        parts = f"<ol>\n{inner}</ol>\n" if inner else ""
        rows.append(f'<li><a href="#{place}">{escape_html(title or "Verdict")}</a>{number}{parts}</li>\n')
    return f'<nav class="contents" aria-label="Contents"><ol>\n{"".join(rows)}</ol></nav>\n'


def _inner_row(place: str, heading: Heading) -> str:
    return f'<li><a href="#{_inner_place(place, heading)}">{escape_html(heading.text)}</a></li>\n'


def _graph_data(graph: PageGraph) -> str:
    """Return the data of a graph; nothing in it can end its element, and a browser runs none of it."""
    text = json.dumps(graph, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="graph">{text}</script>\n'


@cache
def _page_style() -> str:
    return f"{STYLE}{_page_file('page.css')}"


@cache
def _page_script() -> str:
    """Return the modules as one script: each is a function that returns its exports, and runs after its imports."""
    return "".join(_scope_module(name, _page_file(f"{name}.mjs")) for name in MODULES)


def _scope_module(name: str, module: str) -> str:
    exports = ", ".join(exported[2] for exported in EXPORT.finditer(module))
    body = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = \2Module;", COMMENT.sub("", module)))
    return f"const {name}Module = (() => {{\n{body}return {{ {exports} }};\n}})();\n"


def _page_file(name: str) -> str:
    return (files("graphkit.render") / "page" / name).read_text("utf-8")


def _security_policy(style: str, script: str) -> str:
    """Return a content-security policy under which this style and this script are all that works."""
    hashes = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    style_hash, script_hash = hashes
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )

"""Blocks of results as HTML: tables and drawings, without a script; a piece of a page for notebooks."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from statistics import fmean

import networkx as nx

from graphkit.render.document_blocks import (
    Block,
    Document,
    Drawing,
    Formula,
    Heading,
    Lines,
    Link,
    Picture,
    Prose,
    Sentence,
    Table,
    cell_text,
    filled_columns,
    printable,
)

CODE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*", re.ASCII)

STYLE = "\n" + (files("graphkit.render") / "page" / "blocks.css").read_text("utf-8")  # of blocks, on any page
LONG = 60  # characters of a cell that gets some width, however many columns there are
Section = tuple[str, str, list[Block]]  # id, title and blocks
DRAWING: Section = ("drawing", "Drawing", [])  # which the script fills
CHARACTER, BOX_HEIGHT, GAP, ROW = 6.7, 22, 14, 52  # pixels
MAX_LABEL = 34
SHAPES = {"const": "plaintext", "data": "ellipse", "consumer": "box3d"}
PageGraph = Mapping[str, object]
MODULES = (  # each after those that it imports
    *("elements", "formulas", "sizes", "memory", "graph", "kinds", "modules", "levels", "layered", "drawing"),
    *("neighbourhood", "pair", "charts", "treemap", "figures", "tables", "links", "panel", "colours"),
    *("drawings", "main"),
)
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.mjs";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:function|class|const) (\w+))", re.MULTILINE)
COMMENT = re.compile(r"^ *//[^\n]*\n|(^ *)?/\*\*(?:(?!\*/).)*\*/(?(1)\n| ?)", re.MULTILINE | re.DOTALL)
NOT_IN_AN_ID = re.compile(r"[^a-z0-9]+")


def html_fragment(result: Document) -> str:
    """Return a piece of HTML that brings its own style, for a notebook."""
    drawn = (block for block in result.blocks() if not isinstance(block, Picture))  # which a script draws
    body = "".join((f"<h1>{escape_html(result.heading())}</h1>\n", *map(block_html, drawn)))
    return f'<style>{STYLE}</style>\n<div class="graphkit">\n{body}</div>\n'


def escape_html(text: str) -> str:
    """Return text that HTML shows as it is."""
    return escape(printable(text))


def prose_html(text: str) -> str:
    """Return text that HTML shows as it is, in which no line ends within an option: browsers would break `--dim`."""
    return OPTION.sub(r'<span class="option">\g<0></span>', escape_html(text))


def block_html(block: Block) -> str:
    """Return a block, which is under a heading of the first level."""
    if isinstance(block, Heading):
        rank = 2 + block.is_inner
        return f"<h{rank}>{escape_html(block.text)}</h{rank}>\n"
    if isinstance(block, Prose):
        kind = {"plain": "", "warning": ' class="warning"', "sizes": ' class="sized"'}[block.tone]
        return f"<p{kind}>{prose_html(block.text)}</p>\n"
    if isinstance(block, Lines):
        commands = "\n".join(escape_html(text) for text, role in block.rows if role == "command")
        kinds, others = {"warning": ' class="warning"'}, [row for row in block.rows if row[1] != "command"]
        shown = "".join(f"<li{kinds.get(role, '')}>{_sentence_html(text)}</li>\n" for text, role in others)
        return f'<ul class="lines">\n{shown}</ul>\n' + (f"<pre>{commands}</pre>\n" if commands else "")
    if isinstance(block, Table):
        return _table_html(block)
    caption = f"<figcaption>{escape_html(block.title)}</figcaption>"
    if isinstance(block, Drawing):
        return f"<figure>{caption}{draw_svg(block)}</figure>\n"
    data = escape_html(json.dumps(block.data, separators=(",", ":")))
    is_empty = not (block.data.get("parts") or block.data.get("points"))
    return "" if is_empty else f'<figure data-chart="{data}">{caption}</figure>\n'


def _sentence_html(text: str) -> str:
    parts = text.parts if isinstance(text, Sentence) else (text,)
    return "".join(_formula_html(part) if isinstance(part, Formula) else prose_html(part) for part in parts)


def _table_html(block: Table) -> str:
    shown = filled_columns(block)
    columns = [block.columns[at] for at in shown]
    classes = [' class="number"' if column.kind == "number" else "" for column in columns]
    caption = f"<caption>{_sentence_html(block.title)}</caption>" if block.title else ""
    head = "".join(f"<th{kind}>{escape_html(c.name)}</th>" for c, kind in zip(columns, classes, strict=True))
    rows = []
    for number, row in enumerate(block.rows):
        cells = []
        for at, column, kind in zip(shown, columns, classes, strict=True):
            cell = row[at]
            content = _formula_html(cell) if isinstance(cell, Formula) else escape(cell_text(cell))
            content = f'<a href="{escape(cell.address)}">{content}</a>' if isinstance(cell, Link) else content
            kind = kind or (' class="long"' if column.kind != "code" and len(content) > LONG else "")
            cells.append(f"<td{kind}>{f'<code>{content}</code>' if column.kind == 'code' else content}</td>")
        tone = ' class="warning"' if number in block.marked else ""
        rows.append(f"<tr{tone}>{''.join(cells)}</tr>\n")
    return (
        f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>\n"
    )


def _formula_html(cell: Formula) -> str:
    named = {
        "value": "" if cell.value is None else str(cell.value),
        "data-formula": cell.expression,
        "data-unit": cell.unit,
        "data-whole": cell.whole,
        "data-model": "" if cell.model is None else str(cell.model),
        "data-over": f"{cell.over[0]} {cell.over[1]}" if cell.over is not None else "",
    }
    attributes = "".join(f' {name}="{escape_html(text)}"' for name, text in named.items() if text)
    return f"<data{attributes}>{escape_html(cell.text)}</data>"


def html_page(
    result: Document, graphs: Sequence[PageGraph] = (), explanations: Mapping[str, str] | None = None, title: str = ""
) -> str:
    """Return a whole page about a result; its title is that of the result where none is given.

    `graphs` can be searched, as `analysis.page_graph.page_graph` makes them; `explanations` are texts that explain what
    the first section says, by title, and unfold below it.
    """
    title = escape_html(title or result.heading())
    first, *others = _split_sections(result.blocks())
    sections = [first, *([DRAWING] if graphs else []), *others]
    before, *after = map(_section_html, sections)
    unfolded = "".join(
        f'<details id="explanations.{_anchor_slug(about)}"><summary>{escape_html(about)}</summary>\n'
        f"{_markdown_html(text)}</details>\n"
        for about, text in (explanations or {}).items()
    )
    advice = f'<div id="explanations"><h2>What to do</h2>\n{unfolded}</div>\n' if unfolded else ""
    shown = "".join((before, advice, *after))
    style, script = f"{STYLE}{_page_file('page.css')}", _page_script()
    style_hash, script_hash = (b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style, script))
    policy = (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )
    words = "Search nodes, operators, values and weights ( / )"
    search = f'<input id="search" type="search" placeholder="{words}" aria-label="{words}">' if graphs else ""
    bar = f'<header class="bar"><strong>{title}</strong>{search}</header>\n'
    texts = (json.dumps(graph, separators=(",", ":")).replace("<", "\\u003c") for graph in graphs)  # ends no element
    data = "".join(f'<script type="application/json" class="graph">{text}</script>\n' for text in texts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<div class="layout graphkit">\n{bar}{_contents_html(sections)}'
        f"<main>\n<h1>{escape_html(result.heading())}</h1>\n{shown}</main>\n"
        "</div>\n"
        '<aside id="panel" class="graphkit" aria-label="Node" tabindex="-1" hidden>'
        '<button id="close" type="button" title="Close (Escape)">Close</button><div class="body"></div></aside>\n'
        f'{data}<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _split_sections(blocks: Iterable[Block]) -> Iterator[Section]:
    """Yield the blocks before the first heading, without a title, then those of each heading."""
    section: Section = ("top", "", [])
    taken = {"top", "panel", "close", "search", "explanations", "drawing"}
    for block in blocks:
        if isinstance(block, Heading) and not block.is_inner:
            yield section
            slug = _anchor_slug(block.place or block.text)
            place = next(name for n in count(1) if (name := slug if n == 1 else f"{slug}-{n}") not in taken)
            taken.add(place)
            section = (place, block.text, [])
        else:
            section[2].append(block)
    yield section


def _section_html(section: Section) -> str:
    place, title, blocks = section
    shown = "".join(
        f'<h3 id="{_inner_place(place, block)}">{escape_html(block.text)}</h3>\n'
        if isinstance(block, Heading)
        else block_html(block)
        for block in blocks
    )
    if not title:
        return f'<section id="{place}">\n{shown}</section>\n'
    summary = f"<summary><h2>{escape_html(title)}</h2></summary>"
    return f'<section id="{place}"><details open>{summary}\n{shown}</details></section>\n'


def _inner_place(place: str, heading: Heading) -> str:
    return f"{place}.{_anchor_slug(heading.text)}"


def _anchor_slug(text: str) -> str:
    return NOT_IN_AN_ID.sub("-", text.lower()).strip("-")[:60] or "section"


def _markdown_html(text: str) -> str:
    """Return a page of a finding without its title: headings, lists, paragraphs, and code in lines."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        shown = CODE.sub(r"<code>\1</code>", "\n".join(map(prose_html, block.splitlines())))
        if block.startswith("- "):
            items = re.split(r"^- ", shown, flags=re.MULTILINE)[1:]
            parts += ["<ul>\n", *(f"<li>{item.strip()}</li>\n" for item in items), "</ul>\n"]
        elif block.startswith("## "):
            parts.append(f"<h4>{shown.removeprefix('## ')}</h4>\n")
        elif not block.startswith("# "):
            parts.append(f"<p>{shown}</p>\n")
    return "".join(parts)


def _contents_html(sections: Sequence[Section]) -> str:
    rows = []
    for place, title, blocks in sections:
        count = sum(len(block.rows) for block in blocks if isinstance(block, Table))
        number = f' <span class="count">{count:,}</span>' if count else ""
        inner = "".join(
            f'<li><a href="#{_inner_place(place, block)}">{escape_html(block.text)}</a></li>\n'
            for block in blocks
            if isinstance(block, Heading)
        )
        parts = f"<ol>\n{inner}</ol>\n" if inner else ""
        rows.append(f'<li><a href="#{place}">{escape_html(title or "Verdict")}</a>{number}{parts}</li>\n')
    return f'<nav class="contents" aria-label="Contents"><ol>\n{"".join(rows)}</ol></nav>\n'


@cache
def _page_script() -> str:
    """Return the modules as one script: each is a function that returns its exports, and runs after its imports."""
    scopes = []
    for name in MODULES:
        module = _page_file(f"{name}.mjs")
        exports = ", ".join(exported[2] for exported in EXPORT.finditer(module))
        body = EXPORT.sub(r"\1", IMPORT.sub(r"const \1 = \2Module;", COMMENT.sub("", module)))
        scopes.append(f"const {name}Module = (() => {{\n{body}return {{ {exports} }};\n}})();\n")
    return "".join(scopes)


def _page_file(name: str) -> str:
    return (files("graphkit.render") / "page" / name).read_text("utf-8")


def draw_svg(drawing: Drawing) -> str:
    """Return an `<svg>` element."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(node for node, _, _ in drawing.nodes)
    graph.add_edges_from(drawing.edges)
    texts = {node: printable(label) for node, label, _ in drawing.nodes}
    labels = {node: t if len(t) <= MAX_LABEL else f"…{t[1 - MAX_LABEL :]}" for node, t in texts.items()}
    widths = {node: len(label) * CHARACTER + 14 for node, label in labels.items()}
    # nodes by their longest distance to a sink, those that feed neighbours beside each other
    while not nx.is_directed_acyclic_graph(graph):  # only a broken model has a cycle
        graph = graph.copy()
        graph.remove_edge(*nx.find_cycle(graph)[-1][:2])
    order = {node: number for number, node in enumerate(graph.nodes)}
    layers = [sorted(layer, key=order.__getitem__) for layer in nx.topological_generations(graph.reverse())]
    place: dict[str, float] = {}
    for layer in layers:  # from the sink upwards: order by the mean place of a node's consumers
        layer.sort(key=lambda node: fmean([place[after] for after in graph.successors(node)] or [0.0]))
        for number, node in enumerate(layer):
            place[node] = number - len(layer) / 2
    layers.reverse()
    total = max((sum(widths[n] + GAP for n in layer) for layer in layers), default=0) + GAP
    centre: dict[str, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        x = (total - sum(widths[n] + GAP for n in layer)) / 2 + GAP / 2
        for node in layer:
            centre[node] = (x + widths[node] / 2, row * ROW + BOX_HEIGHT)
            x += widths[node] + GAP
    height = len(layers) * ROW
    parts = [
        f'<svg viewBox="0 0 {total:.0f} {height}" width="{total:.0f}" height="{height}" role="img" '
        f'aria-label="{escape(printable(drawing.title))}">'
    ]
    for start, end in drawing.edges:
        (x0, y0), (x1, y1) = centre[start], centre[end]
        y0, y1 = y0 + BOX_HEIGHT / 2, y1 - BOX_HEIGHT / 2
        middle = (y0 + y1) / 2
        parts.append(f'<path d="M{x0:.1f} {y0:.1f} C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"/>')
    for node, _, role in drawing.nodes:
        x, y = centre[node]
        parts.append(
            f'<rect class="{role}" x="{x - widths[node] / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" '
            f'width="{widths[node]:.1f}" height="{BOX_HEIGHT}" rx="4"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(labels[node])}</text>'
        )
    return "".join(parts) + "</svg>"


def as_dot(drawing: Drawing) -> str:
    """Return a drawing as a DOT digraph."""
    lines = ["digraph {", "    node [shape=box];"]
    for node, label, role in drawing.nodes:
        text = printable(label).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'    "{node}" [label="{text}", shape={SHAPES.get(role, "box")}];')
    lines += [f'    "{start}" -> "{end}";' for start, end in drawing.edges]
    return "\n".join([f"// {printable(drawing.title)}", *lines, "}"]) + "\n"

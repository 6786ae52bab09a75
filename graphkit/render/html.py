"""Blocks of results as HTML: tables, bar charts and drawings, without a script; a piece of a page for notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape as html_escape

from graphkit.render.document_blocks import (
    Bars,
    Block,
    Cell,
    Document,
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
from graphkit.render.drawings import draw_svg

__all__ = ["STYLE", "block_html", "escape_html", "html_fragment", "html_section"]

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*", re.ASCII)

STYLE = """
.graphkit { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d5dae1; --paper: #ffffff;
  --bar0: #3b6fb6; --bar1: #e08a3c; --warn: #fff3d6; --warnline: #c98a00; --shape: #dfeaf8; --const: #ececec;
  --data: #e3f3e3; --consumer: #fbe3cf;
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem; }
@media screen and (prefers-color-scheme: dark) { .graphkit { --ink: #e4e8ee; --soft: #9aa6b5; --line: #3a424e;
  --paper: #14181e; --bar0: #6d9fe0; --bar1: #e8a364; --warn: #3a3016; --warnline: #d9a62e; --shape: #23364e;
  --const: #30343a; --data: #213a25; --consumer: #4a3320; } }
.graphkit h1 { font-size: 1.6rem; } .graphkit h2 { font-size: 1.25rem; margin-top: 2rem; }
.graphkit h1, .graphkit h2, .graphkit h3 { line-height: 1.2; overflow-wrap: anywhere; }
.graphkit .scroll { overflow-x: auto; margin: 1rem 0; }
.graphkit .scroll table { border-collapse: collapse; table-layout: auto; margin: 0; font-size: inherit;
  color: inherit; }
.graphkit caption { text-align: left; font-weight: 600; padding: .25rem 0; }
.graphkit .scroll table tr { background: none; }
.graphkit .scroll th, .graphkit .scroll td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); max-width: none; white-space: normal; }
.graphkit .scroll th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.graphkit .number, .graphkit .scroll .number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.graphkit code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.graphkit .scroll td code { display: inline-block; max-width: min(24rem, 50vw); overflow-wrap: break-word; }
.graphkit .warning { background: var(--warn); border-left: 4px solid var(--warnline); padding: .5rem .75rem; }
.graphkit p, .graphkit li { overflow-wrap: anywhere; } .graphkit .option { white-space: nowrap; }
.graphkit .lines { list-style: none; padding: 0; } .graphkit .lines li { margin: .2rem 0; }
.graphkit .lines .warning { padding: .2rem .75rem; } .graphkit pre { overflow-x: auto; margin: .75rem 0; }
.graphkit figure { margin: 1rem 0; } .graphkit figcaption { font-weight: 600; margin-bottom: .25rem;
  overflow-wrap: anywhere; }
.graphkit .bars { display: grid; grid-template-columns: max-content max-content 1fr; gap: .15rem .75rem;
  align-items: center; }
.graphkit svg.bar { height: .8rem; border-radius: 2px; min-width: 1px; max-width: none; }
.graphkit .key { font-weight: 400; border-left: .8rem solid; padding-left: .3rem; margin-left: .6rem; }
.graphkit .key0 { border-color: var(--bar0); } .graphkit .key1 { border-color: var(--bar1); }
.graphkit .bar0 { background: var(--bar0); } .graphkit .bar1 { background: var(--bar1); }
.graphkit svg { max-width: 100%; height: auto; } .graphkit svg text { fill: var(--ink); font: 11px ui-monospace,
  monospace; text-anchor: middle; } .graphkit svg path { stroke: var(--soft); fill: none; }
.graphkit svg rect { stroke: var(--line); } .graphkit svg .op { fill: var(--paper); }
.graphkit svg .shape { fill: var(--shape); } .graphkit svg .const { fill: var(--const); }
.graphkit svg.treemap text { text-anchor: start; } .graphkit svg.treemap rect { stroke: var(--paper); }
.graphkit .part0 { fill: #8fb4e3; } .graphkit .part1 { fill: #f0b989; } .graphkit .part2 { fill: #a5d3a1; }
.graphkit .part3 { fill: #d7b3e0; } .graphkit .part4 { fill: #e6d488; } .graphkit .part5 { fill: #b4c6cc; }
.graphkit svg.treemap .depth2 { fill-opacity: .75; } .graphkit svg.treemap .depth3 { fill-opacity: .5; }
.graphkit svg.treemap text { fill: #1c2430; }
.graphkit svg .column rect { fill: var(--bar0); stroke: none; } .graphkit svg .marked rect { fill: var(--bar1); }
.graphkit svg.chart circle { fill: var(--bar0); } .graphkit svg.chart .line { stroke: var(--bar0); stroke-width: 2; }
.graphkit svg.chart .grid { stroke: var(--line); } .graphkit svg .tick { text-anchor: end; fill: var(--soft); }
.graphkit svg .under { text-anchor: middle; } .graphkit svg .axis { fill: var(--soft); }
.graphkit svg .data { fill: var(--data); } .graphkit svg .consumer { fill: var(--consumer); }
"""


def html_fragment(result: Document) -> str:
    """Return a piece of HTML that brings its own style, for a notebook."""
    body = "".join(html_section(result, 1))
    return f'<style>{STYLE}</style>\n<div class="graphkit">\n{body}</div>\n'


def html_section(result: Document, level: int) -> Iterator[str]:
    """Yield the heading of a result and its blocks."""
    yield f"<h{level}>{escape_html(result.heading())}</h{level}>\n"
    for block in result.blocks():
        if not isinstance(block, Picture):  # which a page draws, with its script
            yield block_html(block, level)


def escape_html(text: str) -> str:
    """Return text that HTML shows as it is."""
    return html_escape(printable(text))


def prose_html(text: str) -> str:
    """Return text that HTML shows as it is, in which no line ends within an option: browsers would break `--dim`."""
    return OPTION.sub(r'<span class="option">\g<0></span>', escape_html(text))


def block_html(block: Block, level: int) -> str:
    """Return a block; `level` is that of the heading that it is under."""
    if isinstance(block, Heading):
        rank = level + 1 + block.is_inner
        return f"<h{rank}>{escape_html(block.text)}</h{rank}>\n"
    if isinstance(block, Prose):
        kind = {"plain": "", "warning": ' class="warning"', "sizes": ' class="sized"'}[block.tone]
        return f"<p{kind}>{prose_html(block.text)}</p>\n"
    if isinstance(block, Lines):
        return _lines_html(block)
    if isinstance(block, Table):
        return _table_html(block)
    if isinstance(block, Bars):
        return _bars_html(block)
    if isinstance(block, Picture):
        return _picture_data(block)
    return f"<figure><figcaption>{escape_html(block.title)}</figcaption>{draw_svg(block)}</figure>\n"


def _picture_data(block: Picture) -> str:
    """Return the data of a chart, which a page draws, "" where there is nothing to draw."""
    if not (block.data.get("parts") or block.data.get("points")):
        return ""
    data = escape_html(json.dumps(block.data, separators=(",", ":")))
    return f'<figure data-chart="{data}"><figcaption>{escape_html(block.title)}</figcaption></figure>\n'


def _lines_html(block: Lines) -> str:
    commands = "\n".join(escape_html(text) for text, role in block.rows if role == "command")
    kinds = {"warning": ' class="warning"', "note": "", "plain": ""}
    shown = "".join(f"<li{kinds[role]}>{_sentence_html(text)}</li>\n" for text, role in block.rows if role != "command")
    return f'<ul class="lines">\n{shown}</ul>\n' + (f"<pre>{commands}</pre>\n" if commands else "")


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
    for row in block.rows:
        cells = []
        for at, column, kind in zip(shown, columns, classes, strict=True):
            content = _cell_content(row[at])
            cells.append(f"<td{kind}>{f'<code>{content}</code>' if column.kind == 'code' else content}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>\n"
    )


def _cell_content(cell: Cell) -> str:
    if isinstance(cell, Formula):
        return _formula_html(cell)
    text = html_escape(cell_text(cell))
    return f'<a href="{html_escape(cell.address)}">{text}</a>' if isinstance(cell, Link) else text


def _formula_html(cell: Formula) -> str:
    """Return a number with its expression, which `page/sizes.mjs` evaluates."""
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


def _bars_html(block: Bars) -> str:
    top = max((max(values) for _, values in block.rows), default=0) or 1
    parts = []
    for label, values in block.rows:
        for number, value in enumerate(values):
            name = escape_html(label) if not number else ""
            bar = f'<svg class="bar bar{number}" width="{100 * value / top:.1f}%" height="13"></svg>'
            parts.append(f'<span>{name}</span><span class="number">{value:,}</span>{bar}\n')
    keys = "".join(f' <span class="key key{n}">{escape_html(name)}</span>' for n, name in enumerate(block.series))
    caption = escape_html(block.title) + (keys if len(block.series) > 1 else "")
    return f'<figure><figcaption>{caption}</figcaption><div class="bars">\n{"".join(parts)}</div></figure>\n'

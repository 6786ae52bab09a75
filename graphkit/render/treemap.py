"""Treemaps as SVG: boxes whose areas are the parts of a whole, those of a group inside the group's box.

Squarified: Bruls, Huizing, van Wijk, "Squarified Treemaps", 2000.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from graphkit.render.document_blocks import Treemap, printable

__all__ = ["draw_treemap"]

WIDTH, HEIGHT = 880.0, 360.0  # pixels
HEAD = 16.0  # height of the name of a group
CHARACTER = 6.6
COLORS = 6
LEVELS = 3  # of groups in groups that are drawn
NAME = re.compile(r"[^/.]+(?:[/.]\d+(?=[/.]|$))?")  # of a part: a layer has its number
LEAST = 3.0  # width and height of a box that is drawn


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


@dataclass
class _Part:
    """A part of the whole, and the parts in it.

    Attributes:
        path: Its name after those of the groups around it.
        own: What belongs to it but to no part in it.
    """

    path: str
    own: int = 0
    parts: dict[str, _Part] = field(default_factory=dict)

    @property
    def value(self) -> int:
        return self.own + sum(part.value for part in self.parts.values())

    def largest_first(self) -> list[_Part]:
        """Return the parts in it, and the rest as a part of its own."""
        rest = [_Part(self.path, self.own)] if self.own and self.parts else []
        return sorted((part for part in (*self.parts.values(), *rest) if part.value), key=lambda part: -part.value)


def draw_treemap(treemap: Treemap) -> str:
    """Return an `<svg>` element, "" where all values are 0."""
    whole = _tree(treemap.rows)
    if not whole.value:
        return ""
    name = escape(printable(treemap.title))
    drawn = "".join(_drawn(whole, _Box(0, 0, WIDTH, HEIGHT), whole.value, treemap.unit))
    size = f'viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" width="{WIDTH:.0f}" height="{HEIGHT:.0f}"'
    return f'<svg class="treemap" {size} role="img" aria-label="{name}">{drawn}</svg>'


def _tree(rows: Sequence[tuple[str, int]]) -> _Part:
    """Return the parts of paths, of which both / and . divide; a group of one part alone is that part."""
    whole = _Part("")
    for path, value in rows:
        part = whole
        for name in NAME.finditer(path):
            part = part.parts.setdefault(name[0], _Part(path[: name.end()]))
        part.own += value
    return _short(whole)


def _short(part: _Part) -> _Part:
    while len(part.parts) == 1 and not part.own:
        (part,) = part.parts.values()
    part.parts = {name: _short(inner) for name, inner in part.parts.items()}
    return part


def _drawn(
    part: _Part, box: _Box, whole: int, unit: str, around: str = "", depth: int = 0, color: int = 0
) -> Iterator[str]:
    """Yield the boxes of a part and of those in it; all that lies in a part of the whole has its color.

    Where a part is nearly the whole, those in it have colors of their own.
    """
    if min(box.width, box.height) < LEAST:
        return
    if depth:
        share = f"{100 * part.value / whole:.3g} %"
        title = escape(printable(f"{part.path or 'all'}: {part.value:,} {unit}, {share}"))
        yield (
            f'<g data-module="{escape(printable(part.path))}"><title>{title}</title>'
            f'<rect class="part{color} depth{depth}" {_place(box)}/>{_label(part, around, box, share)}</g>'
        )
    inside = box if not depth else _Box(box.x + 2, box.y + HEAD, box.width - 4, box.height - HEAD - 2)
    if depth < LEVELS and part.parts and min(inside.width, inside.height) >= 2 * LEAST:
        parts, is_most = part.largest_first(), 10 * part.value >= 9 * whole
        for number, (inner, at) in enumerate(zip(parts, _squarified([p.value for p in parts], inside), strict=True)):
            yield from _drawn(inner, at, whole, unit, part.path, depth + 1, number % COLORS if is_most else color)


def _place(box: _Box) -> str:
    return f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'


def _label(part: _Part, around: str, box: _Box, share: str) -> str:
    """Return the name of a part in that around it, with its share where there is room, "" where there is none."""
    room = int((box.width - 6) / CHARACTER)
    if box.height < HEAD or room < 4:
        return ""
    inner = part.path.removeprefix(around).strip("/.")
    last = [*NAME.findall(part.path), "all"][0 if not part.path else -2]
    name = printable(inner if 0 < len(inner) <= room else last)
    text = f"{name} {share}" if len(name) + len(share) < room else name
    shown = text if len(text) <= room else f"{text[: room - 1]}…"
    return f'<text x="{box.x + 4:.1f}" y="{box.y + 12:.1f}">{escape(shown)}</text>'


def _squarified(values: Sequence[int], box: _Box) -> list[_Box]:
    """Return a box for each value, the largest first, that together fill a box and are nearly square."""
    scale = box.width * box.height / sum(values)
    areas = [value * scale for value in values]
    boxes: list[_Box] = []
    while len(boxes) < len(areas):
        waiting = areas[len(boxes) :]
        short = min(box.width, box.height)
        count = 1
        while count < len(waiting) and _worst(waiting[: count + 1], short) <= _worst(waiting[:count], short):
            count += 1
        row, box = _row(waiting[:count], box)
        boxes += row
    return boxes


def _worst(areas: Sequence[float], side: float) -> float:
    """Return the largest ratio of the sides of boxes in a row along a side."""
    thickness = sum(areas) / side
    return max(max(area / thickness**2, thickness**2 / area) for area in areas)


def _row(areas: Sequence[float], box: _Box) -> tuple[list[_Box], _Box]:
    """Return the boxes of a row along the shorter side of a box, and the rest of the box."""
    is_wide = box.width >= box.height
    short, long = (box.height, box.width) if is_wide else (box.width, box.height)
    thickness = min(sum(areas) / short, long)  # rounding may want more
    boxes, at = [], box.y if is_wide else box.x
    for area in areas:
        length = short * (area / sum(areas))
        boxes.append(_Box(box.x, at, thickness, length) if is_wide else _Box(at, box.y, length, thickness))
        at += length
    if is_wide:
        return boxes, _Box(box.x + thickness, box.y, max(box.width - thickness, 1e-9), box.height)
    return boxes, _Box(box.x, box.y + thickness, box.width, max(box.height - thickness, 1e-9))

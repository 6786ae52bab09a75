"""Charts as SVG: columns over a sequence, a line over sizes, and a strip of the parts of a memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from graphkit.render.document_blocks import Chart, Point, Strip, printable, sized

__all__ = ["draw_chart", "draw_strip"]

WIDTH, HEIGHT = 880.0, 220.0  # pixels
LEFT, RIGHT, TOP, BOTTOM = 76.0, 12.0, 18.0, 34.0
MOST_COLUMNS = 200  # of more points, each column has the highest of some
TICKS = 4
CHARACTER = 6.6
STRIP = 46.0
LEAST = 1.5  # width of a part of a strip


def draw_chart(chart: Chart) -> str:
    """Return an `<svg>` element, "" where there is nothing to draw."""
    values = [point.value for point in chart.points if point.value > 0]
    if not values:
        return ""
    top = max(values)
    bottom = 10.0 ** math.floor(math.log10(min(values))) if chart.is_logarithmic else 0.0
    scale = _Scale(bottom, 10.0 ** math.ceil(math.log10(top)) if chart.is_logarithmic else top, chart.is_logarithmic)
    drawn = _line(chart, scale) if chart.kind == "line" else _columns(chart, scale)
    return _svg(chart.title, HEIGHT, "chart", [*_axes(chart, scale), *drawn])


class _Scale:
    """The place of a value between the bottom and the top of a chart."""

    def __init__(self, low: float, high: float, is_logarithmic: bool) -> None:
        self.low, self.high, self.is_logarithmic = low, high, is_logarithmic
        if is_logarithmic and low == high:
            self.low = low / 10

    def y(self, value: float) -> float:
        """Return the place in pixels, the bottom for a value below it."""
        if self.is_logarithmic:
            part = (math.log10(max(value, self.low) / self.low)) / math.log10(self.high / self.low)
        else:
            part = value / self.high
        return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)

    def ticks(self) -> Iterator[float]:
        """Yield the values of a few lines across."""
        if not self.is_logarithmic:
            step = _round(self.high / TICKS)
            yield from (step * number for number in range(int(self.high / step) + 1))
            return
        low, high = round(math.log10(self.low)), round(math.log10(self.high))
        step = max(1, math.ceil((high - low) / TICKS))
        yield from (10.0**power for power in range(low, high + 1, step))


def _round(step: float) -> float:
    """Return the next 1, 2 or 5 of a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)


def _axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    for value in scale.ticks():
        y = scale.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(_text(value, chart))}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text class="axis" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(printable(chart.axis))}</text>'


def _text(value: float, chart: Chart) -> str:
    return (
        f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
        if chart.is_logarithmic
        else sized(round(value), chart.unit)
    )


def _said(value: float, chart: Chart) -> str:
    return f"{value:.2g}" if chart.is_logarithmic else sized(round(value), chart.unit)


def _columns(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Yield a column for each point; the highest stands out."""
    points = _fewer(chart.points)
    width = (WIDTH - LEFT - RIGHT) / len(points)
    highest = max(points, key=lambda point: point.value)
    for number, point in enumerate(points):
        y = scale.y(point.value)
        kind = "column marked" if point.is_marked or (point is highest and not chart.is_logarithmic) else "column"
        place = "" if point.node is None else f' data-node-number="{point.node}"'
        title = escape(printable(f"{point.name}: {_said(point.value, chart)}"))
        yield (
            f'<g class="{kind}"{place}><title>{title}</title><rect x="{LEFT + number * width:.1f}" y="{y:.1f}" '
            f'width="{max(width - (1 if width > 4 else 0), 0.5):.2f}" height="{HEIGHT - BOTTOM - y:.1f}"/></g>'
        )


def _fewer(points: Sequence[Point]) -> Sequence[Point]:
    """Return as many points as there is room for, of neighbours the highest."""
    size = -(-len(points) // MOST_COLUMNS)
    parts = (points[start : start + size] for start in range(0, len(points), size))
    return [max(part, key=lambda point: (point.is_marked, point.value)) for part in parts]


def _line(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Yield a line through the points, in the places of their numbers."""
    most = max(point.at for point in chart.points) or 1
    places = [
        (LEFT + point.at / most * (WIDTH - LEFT - RIGHT - 60), scale.y(point.value), point) for point in chart.points
    ]
    yield f'<path class="line" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)}"/>'
    for x, y, point in places:
        title = escape(printable(f"{point.name}: {_said(point.value, chart)}"))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{title}</title></circle>'
        yield f'<text class="tick under" x="{x:.1f}" y="{HEIGHT - BOTTOM + 14:.1f}">{point.at:,}</text>'


def draw_strip(strip: Strip) -> str:
    """Return an `<svg>` element: the parts of a memory, each as wide as its bytes, at its offset."""
    if not strip.size:
        return ""
    scale = WIDTH / strip.size
    drawn = []
    for number, (name, offset, size) in enumerate(strip.parts):
        title = escape(printable(f"{name}: {size:,} bytes at {offset:,}"))
        width = max(size * scale, LEAST)
        room = int((width - 6) / CHARACTER)
        shown = printable(name) if len(printable(name)) <= room else f"…{printable(name)[1 - room :]}"
        label = f'<text x="{offset * scale + 4:.1f}" y="27">{escape(shown)}</text>' if room > 3 else ""
        drawn.append(
            f'<g><title>{title}</title><rect class="part{number % 6}" x="{offset * scale:.1f}" y="4" '
            f'width="{width:.1f}" height="36"/>{label}</g>'
        )
    end = f'<text class="tick end" x="{WIDTH}" y="54">{strip.size:,} bytes</text>'
    ends = f'<text class="tick" x="0" y="54">0</text>{end}'
    return _svg(strip.title, STRIP + 14, "treemap strip", [*drawn, ends])


def _svg(title: str, height: float, kind: str, drawn: Sequence[str]) -> str:
    size = f'viewBox="0 0 {WIDTH:.0f} {height:.0f}" width="{WIDTH:.0f}" height="{height:.0f}"'
    return f'<svg class="{kind}" {size} role="img" aria-label="{escape(printable(title))}">{"".join(drawn)}</svg>'

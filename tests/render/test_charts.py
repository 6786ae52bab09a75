"""Charts of a page, as SVG that a reader sees without a script."""

from __future__ import annotations

import re

import pytest

from graphkit.render.charts import MOST_COLUMNS, WIDTH, draw_chart, draw_strip
from graphkit.render.document_blocks import Chart, Point, Strip
from graphkit.render.html import block_html

NUMBER = r"([\d.]+)"


def columns(svg: str) -> list[tuple[str, float]]:
    """Return the title and the height of each column."""
    pattern = rf"<title>([^<]*)</title><rect [^>]*height=\"{NUMBER}\"/>"
    return [(title, float(height)) for title, height in re.findall(pattern, svg)]


def points(*values: float) -> list[Point]:
    return [Point(f"<{number}>", value, node=number) for number, value in enumerate(values)]


def test_columns_are_as_high_as_their_values() -> None:
    found = columns(draw_chart(Chart("Memory", "nodes", points(1000, 4000, 2000), unit="B")))
    assert [title for title, _ in found] == ["&lt;0&gt;: 1.0 kB", "&lt;1&gt;: 4.0 kB", "&lt;2&gt;: 2.0 kB"]
    heights = [height for _, height in found]
    assert heights[1] == pytest.approx(4 * heights[0], abs=0.2)
    assert heights[1] == pytest.approx(2 * heights[2], abs=0.2)


def test_the_highest_column_stands_out_and_names_its_node() -> None:
    svg = draw_chart(Chart("Memory", "nodes", points(1, 4, 2)))
    assert re.findall(r'<g class="column marked" data-node-number="(\d)">', svg) == ["1"]


def test_of_many_points_a_column_has_the_highest() -> None:
    svg = draw_chart(Chart("Memory", "nodes", points(*(1 + (number == 4321) * 9 for number in range(5000)))))
    found = columns(svg)
    assert len(found) == MOST_COLUMNS
    assert max(found, key=lambda column: column[1])[0] == "&lt;4321&gt;: 10"


def test_a_logarithmic_chart_has_a_step_for_each_power_of_ten() -> None:
    found = columns(draw_chart(Chart("Error", "depth", points(0, 1e-6, 1e-5, 1e-4), is_logarithmic=True)))
    heights = [height for _, height in found]
    assert heights[:2] == [0, 0]
    assert heights[3] == pytest.approx(2 * heights[2], abs=0.2)


def test_a_line_goes_through_its_points() -> None:
    svg = draw_chart(Chart("Cache", "tokens", [Point("0", 0), Point("a", 5, 10), Point("b", 10, 20)], kind="line"))
    (path,) = re.findall(r'class="line" d="M([^"]*)"', svg)
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split()) for point in path.split(" L"))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_nothing_is_no_chart() -> None:
    assert block_html(Chart("Memory", "nodes", points(0, 0)), 1) == ""
    assert block_html(Chart("Memory", "nodes", []), 1) == ""
    assert block_html(Strip("Arena", 0, []), 1) == ""


def test_a_part_of_a_strip_lies_at_its_offset() -> None:
    svg = draw_strip(Strip("Arena", 400, [("a", 0, 100), ("<b>", 200, 200)]))
    places = re.findall(rf'x="{NUMBER}" y="4" width="{NUMBER}"', svg)
    assert [tuple(map(float, place)) for place in places] == [(0, WIDTH / 4), (WIDTH / 2, WIDTH / 2)]
    assert "&lt;b&gt;: 200 bytes at 200" in svg

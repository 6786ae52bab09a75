from __future__ import annotations

import json
import re
from html import unescape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples

from graphkit.render.document_blocks import Treemap
from graphkit.render.html import block_html
from graphkit.render.treemap import HEIGHT, WIDTH, _Box, _squarified, draw_treemap

ROWS = [
    ("/lm_head", 600),
    ("/model/layers.0/attn", 100),
    ("/model/layers.0/mlp", 90),
    ("/model/layers.1/attn", 100),
    ("/model/layers.1/mlp", 100),
    ("/model/layers.1", 10),
]


def shown(rows: list[tuple[str, int]]) -> dict[str, str]:
    """Return the title of each box by the path of its part."""
    drawn = draw_treemap(Treemap("MACs by module", "MACs", rows))
    return dict(re.findall(r'<g data-module="([^"]*)"><title>([^<]*)</title>', drawn))


def test_each_part_has_its_value_and_its_share() -> None:
    titles = shown(ROWS)
    assert titles["/lm_head"] == "/lm_head: 600 MACs, 60 %"
    assert titles["/model"] == "/model: 400 MACs, 40 %"
    assert titles["/model/layers.1/mlp"] == "/model/layers.1/mlp: 100 MACs, 10 %"
    assert titles["/model/layers.1"] == "/model/layers.1: 10 MACs, 1 %"  # what is in none of its parts, drawn last


def test_a_group_of_one_part_is_that_part() -> None:
    assert list(shown([("a/b/c/d", 1), ("a/b/c/e", 1)])) == ["a/b/c/d", "a/b/c/e"]


def test_parts_of_what_is_nearly_the_whole_have_colors_of_their_own() -> None:
    rows = [("model/a/0", 600), ("model/a/1", 100), ("model/b/0", 290), ("head", 10)]
    drawn = draw_treemap(Treemap("t", "MACs", rows))
    colors = dict(re.findall(r'data-module="([^"]*)"><title>[^<]*</title><rect class="(part\d)', drawn))
    assert colors == {
        "model": "part0",
        "model/a/0": "part0",
        "model/a/1": "part2",
        "model/b/0": "part1",
        "head": "part1",
    }


def test_a_label_has_the_path_in_the_part_around_it_where_there_is_room() -> None:
    drawn = draw_treemap(Treemap("t", "MACs", [("m/encoder/body", 500), ("m/z", 390), ("m/a/very/long/path/b", 70)]))
    assert re.findall(r"<text [^>]*>([^<]*)</text>", drawn) == ["encoder/body 52.1 %", "z 40.6 %", "b 7.29 %"]


@pytest.mark.parametrize("rows", [[], [("a", 0)]])
def test_nothing_is_drawn_of_nothing(rows: list[tuple[str, int]]) -> None:
    assert block_html(Treemap("MACs", "MACs", rows), 1) == ""


def test_the_figure_has_its_title() -> None:
    html = block_html(Treemap("MACs <by> module", "MACs", ROWS), 1)
    assert html.startswith('<figure><figcaption>MACs &lt;by&gt; module</figcaption><svg class="treemap" ')


def test_parts_of_one_expression_are_told_together() -> None:
    rows = [("a.0", 6), ("<b>", 4), ("a.1", 6)]
    html = block_html(Treemap("MACs", "MACs", rows, ["6*n", "4*n", "6*n"]), 1)
    (data,) = re.findall('<figure data-chart="([^"]*)">', html)
    parts = [["6*n", 6, ["a.0", "a.1"]], ["4*n", 4, ["<b>"]]]
    assert json.loads(unescape(data)) == {"kind": "treemap", "unit": "MACs", "parts": parts}


def test_a_name_is_text() -> None:
    drawn = draw_treemap(Treemap("t", "MACs", [('"><script>x', 5), ("b", 5)]))
    assert "<script" not in drawn
    assert "&quot;&gt;&lt;script&gt;x" in drawn


@examples(25, 200)
@example([7428873023520, 236])  # of the second box nothing is left but rounding
@given(st.lists(st.integers(1, 10**15), min_size=1, max_size=40).map(lambda values: sorted(values, reverse=True)))
def test_boxes_fill_the_whole_in_proportion(values: list[int]) -> None:
    boxes = _squarified(values, _Box(0, 0, WIDTH, HEIGHT))
    for value, box in zip(values, boxes, strict=True):
        assert box.width * box.height == pytest.approx(WIDTH * HEIGHT * value / sum(values), rel=1e-6, abs=1e-6)
        assert min(box.x, box.y) >= 0
        assert box.x + box.width <= WIDTH * (1 + 1e-6)
        assert box.y + box.height <= HEIGHT * (1 + 1e-6)


def test_boxes_are_nearly_square() -> None:
    boxes = _squarified([6, 6, 4, 3, 2, 2, 1], _Box(0, 0, 600, 400))  # the example of the paper
    assert max(max(box.width / box.height, box.height / box.width) for box in boxes) < 3  # 16 in one row

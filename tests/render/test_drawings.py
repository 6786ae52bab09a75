from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.render.document_blocks import Drawing
from graphkit.render.html import MAX_LABEL, as_dot, draw_svg

CHAIN = Drawing(
    "Cone",
    (("0", "Reshape", "consumer"), ("1", "Concat", "op"), ("2", "CONST", "const"), ("3", "x", "data")),
    (("1", "0"), ("2", "1"), ("3", "1")),
)


def rows(drawing: Drawing) -> dict[str, float]:
    """Return the y of each label."""
    return {str(text.text): float(text.attrib["y"]) for text in ET.fromstring(draw_svg(drawing)).iter("text")}


def boxes(drawing: Drawing) -> list[tuple[float, float, float]]:
    """Return the left edge, the width and the y of each box."""
    found = ET.fromstring(draw_svg(drawing)).iter("rect")
    return [(float(box.attrib["x"]), float(box.attrib["width"]), float(box.attrib["y"])) for box in found]


def test_one_node() -> None:
    assert draw_svg(Drawing("One", (("0", "Add", "op"),), ())) == (
        '<svg viewBox="0 0 62 52" width="62" height="52" role="img" aria-label="One">'
        '<rect class="op" x="14.0" y="11.0" width="34.1" height="22" rx="4"/><text x="31.1" y="26.0">Add</text></svg>'
    )


def test_an_empty_drawing() -> None:
    assert draw_svg(Drawing("", (), ())) == (
        '<svg viewBox="0 0 14 0" width="14" height="0" role="img" aria-label=""></svg>'
    )


def test_each_node_has_a_box_of_its_role() -> None:
    classes = [box.attrib["class"] for box in ET.fromstring(draw_svg(CHAIN)).iter("rect")]
    assert classes == ["consumer", "op", "const", "data"]


def test_each_edge_is_a_line() -> None:
    assert len(list(ET.fromstring(draw_svg(CHAIN)).iter("path"))) == 3


def test_what_feeds_stands_above() -> None:
    y = rows(CHAIN)
    assert y["x"] == y["CONST"] < y["Concat"] < y["Reshape"]


def test_a_node_stands_above_all_that_it_feeds() -> None:
    nodes = (("0", "end", "op"), ("1", "middle", "op"), ("2", "start", "op"))
    y = rows(Drawing("", nodes, (("2", "1"), ("1", "0"), ("2", "0"))))
    assert y["start"] < y["middle"] < y["end"]


def test_boxes_of_a_row_do_not_overlap() -> None:
    nodes = (("0", "end", "op"), *((str(n), f"source number {n}", "op") for n in range(1, 9)))
    sources = sorted(boxes(Drawing("", nodes, tuple((str(n), "0") for n in range(1, 9))))[1:])
    assert all(left + width < after for (left, width, _), (after, _, _) in itertools.pairwise(sources))


def test_all_boxes_lie_inside() -> None:
    total = float(ET.fromstring(draw_svg(CHAIN)).attrib["width"])
    assert all(left >= 0 and left + width <= total for left, width, _ in boxes(CHAIN))


def test_a_long_label_keeps_its_end() -> None:
    (label,) = rows(Drawing("", (("0", "a" * 50 + "/the_end", "data"),), ()))
    assert (len(label), label[0], label.endswith("a/the_end")) == (MAX_LABEL, "…", True)


@pytest.mark.parametrize("text", ["</text><script>x</script>", "a & b", '"quoted"', "\x1b[31m", "a\nb"])
def test_text_is_inert(text: str) -> None:
    drawn = ET.fromstring(draw_svg(Drawing(text, (("0", text, "op"),), ())))
    assert {element.tag for element in drawn.iter()} == {"svg", "rect", "text"}
    assert re.search(r"[\x00-\x1f]", drawn.attrib["aria-label"]) is None


dags = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda edge: edge[0] > edge[1])),
    )
)


@given(dags)
def test_edges_of_any_acyclic_drawing_run_downwards(dag: tuple[int, set[tuple[int, int]]]) -> None:
    count, edges = dag
    nodes = tuple((str(n), f"n{n}", "op") for n in range(count))
    y = rows(Drawing("", nodes, tuple((str(start), str(end)) for start, end in edges)))
    assert all(y[f"n{start}"] < y[f"n{end}"] for start, end in edges)


DRAWING = Drawing(
    "Concat([CONST, x])",
    (("0", "Reshape flat", "consumer"), ("1", "Concat", "op"), ("2", "CONST", "const"), ("3", "x", "data")),
    (("1", "0"), ("2", "1"), ("3", "1")),
)


def test_a_drawing() -> None:
    assert as_dot(DRAWING) == (
        """\
// Concat([CONST, x])
digraph {
    node [shape=box];
    "0" [label="Reshape flat", shape=box3d];
    "1" [label="Concat", shape=box];
    "2" [label="CONST", shape=plaintext];
    "3" [label="x", shape=ellipse];
    "1" -> "0";
    "2" -> "1";
    "3" -> "1";
}
"""
    )


def test_an_empty_graph_as_dot() -> None:
    assert as_dot(Drawing("", (), ())) == "// \ndigraph {\n    node [shape=box];\n}\n"


@pytest.mark.parametrize(
    ("label", "quoted"),
    [
        ('a"b', 'a\\"b'),
        ("a\\b", "a\\\\b"),
        ('\\"', '\\\\\\"'),
        ("a\nb", "a\\\\nb"),
        ("\x1b[31m", "\\\\x1b[31m"),
        ("<b>x</b>", "<b>x</b>"),
        ('"]; evil [label="', '\\"]; evil [label=\\"'),
    ],
)
def test_a_label_cannot_leave_its_quotes(label: str, quoted: str) -> None:
    assert as_dot(Drawing("", (("0", label, "op"),), ())).splitlines()[3] == f'    "0" [label="{quoted}", shape=box];'


def test_a_title_cannot_leave_its_comment() -> None:
    assert as_dot(Drawing("a\nevil", (), ())).splitlines()[0] == "// a\\nevil"

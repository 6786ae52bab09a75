from __future__ import annotations

import pytest

from graphkit.render.document_blocks import Drawing
from graphkit.render.drawings import dot

DRAWING = Drawing(
    "Concat([CONST, x])",
    (("0", "Reshape flat", "consumer"), ("1", "Concat", "op"), ("2", "CONST", "const"), ("3", "x", "data")),
    (("1", "0"), ("2", "1"), ("3", "1")),
)


def test_a_drawing() -> None:
    assert dot(DRAWING) == (
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


def test_an_empty_drawing() -> None:
    assert dot(Drawing("", (), ())) == "// \ndigraph {\n    node [shape=box];\n}\n"


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
    assert dot(Drawing("", (("0", label, "op"),), ())).splitlines()[3] == f'    "0" [label="{quoted}", shape=box];'


def test_a_title_cannot_leave_its_comment() -> None:
    assert dot(Drawing("a\nevil", (), ())).splitlines()[0] == "// a\\nevil"

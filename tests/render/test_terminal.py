from __future__ import annotations

import io

import pytest
from builders import Shown
from rich.cells import cell_len
from rich.console import Console

from graphkit.render import terminal
from graphkit.render.document_blocks import Block, Column, Drawing, Heading, Prose, Table


def text(*blocks: Block, width: int = 80) -> str:
    """Return blocks as text, without the title and the empty line after it."""
    return Shown(blocks).to_text(width).removeprefix("Title\n\n")


TABLE = Table(
    (Column("Name", "code"), Column("Kind"), Column("Remark", "note"), Column("Count", "number")),
    [("first", "a", "depends on x", 1234567), ("second", None, None, 2)],
    title="Things",
)


def test_a_result_without_blocks_is_its_title() -> None:
    assert Shown(()).to_text() == "Title\n\n"


def test_a_heading() -> None:
    assert text(Heading("Part")) == "Part\n\n"


def test_prose_is_folded_at_the_width() -> None:
    assert text(Prose("one two three four"), width=9) == "one two\nthree\nfour\n\n"


def test_a_warning_says_so() -> None:
    assert text(Prose("It is broken.", "warning")) == "Warning: It is broken.\n\n"


def test_a_table_prints_notes_beneath_the_name() -> None:
    assert text(TABLE) == (
        """\
Things
Name    Kind      Count
────────────────────────
first   a     1,234,567
  depends on x
second                2

"""
    )


def test_notes_go_beneath_the_first_name() -> None:
    columns = Column("One", "code"), Column("Two", "code"), Column("Remark", "note")
    assert text(Table(columns, [("a", "b", "note")])).splitlines()[2:] == ["a    b", "  note", ""]


def test_a_table_without_rows_has_its_head() -> None:
    assert text(Table((Column("Name"),), [])) == "Name\n─────\n\n"


def test_a_long_name_has_a_line_of_its_own() -> None:
    columns = Column("#"), Column("Name", "code"), Column("Kind"), Column("N", "number"), Column("Remark", "note")
    name = "/model/layers.0/self_attn"
    shown = text(Table(columns, [("1", name, "a", 1, f"at {name}"), ("2", "x", "b", 20, None)]), width=24)
    assert (
        shown
        == """\
#  Name         Kind   N
────────────────────────
1  /model/layers.0/self_attn
                a      1
     at
     /model/layers.0/self_attn
2  x            b     20

"""
    )


def test_a_long_name_in_a_paragraph_or_a_title_is_whole() -> None:
    name = "/model/layers.0/self_attn"
    assert text(Heading(name), Prose(f"See {name} there.", "warning"), width=12) == (
        f"{name}\n\nWarning: See\n{name}\nthere.\n\n"
    )


def test_the_widest_columns_are_narrowed_first() -> None:
    columns = Column("One", "code"), Column("Two", "code"), Column("Three")
    rows = [("a b c d e f g h i j", "k l m n o p q r", "short")]
    assert text(Table(columns, rows), width=34).splitlines()[2:] == [
        "a b c d e f   k l m n o p q  short",
        "g h i j       r",
        "",
    ]


def test_lines_may_be_folded_by_another_console() -> None:
    out = io.StringIO()
    Console(file=out, width=10).print(Shown((Prose("a" * 15),)))
    assert out.getvalue() == f"Title\n\n{'a' * 10}\n{'a' * 5}\n\n"


def test_tables_may_be_wider_than_paragraphs() -> None:
    row = Table((Column("Name", "code"), Column("Shape", "code")), [("a" * 20, "[b, c, d, e]")])
    shown = terminal.as_text(Shown((Prose("one two three"), row)), 10, table_width=40)
    assert shown.splitlines()[2:] == [
        "one two",
        "three",
        "",
        f"Name{' ' * 18}Shape",
        "─" * 35,
        f"{'a' * 20}  [b, c, d, e]",
        "",
    ]


def test_pictures_are_left_out() -> None:
    drawing = Drawing("Cone", (("0", "x", "data"),), ())
    assert text(drawing, Prose("End.")) == "End.\n\n"


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_only_a_single_word_is_wider_than_the_terminal(width: int) -> None:
    blocks = (Prose("word " * 50), Heading("h" * 200), Table(TABLE.columns, [("漢字" * 50, "k", "note " * 30, 10)]))
    wider = [line for line in text(*blocks, width=width).splitlines() if cell_len(line) > width]
    assert wider == ["h" * 200, "漢字" * 50]


def test_no_line_ends_in_spaces() -> None:
    assert [line for line in text(TABLE, Prose("x ")).splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/]", "[link=http://x]y[/link]", ":smile:", "\\[x]", "[red"])
def test_markup_is_not_interpreted(name: str) -> None:
    assert text(Prose(name)) == f"{name}\n\n"


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/]", ":smile:"])
def test_markup_in_a_table_is_not_interpreted(name: str) -> None:
    assert name in text(Table((Column("Name", "code"),), [(name,)]))


@pytest.mark.parametrize(
    "block",
    [
        Prose("\x1b[31m"),
        Heading("\x1b[31m"),
        Table((Column("N", "code"), Column("R", "note")), [("\x1b[31m", "\x1b[31m")], title="\x1b[31m"),
    ],
)
def test_escapes_are_written_out(block: Block) -> None:
    shown = text(block)
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


def test_without_color_there_are_no_escapes() -> None:
    assert "\x1b" not in Shown((TABLE, Prose("x", "warning"), Heading("h"))).to_text()


def test_with_color_a_warning_is_yellow() -> None:
    assert "\x1b[33mWarning: x\x1b[0m" in Shown((Prose("x", "warning"),)).to_text(color=True)


def test_with_color_names_stay_inert() -> None:
    assert "\\x1b[5mx" in Shown((Prose("\x1b[5mx"),)).to_text(color=True)

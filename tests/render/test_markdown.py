from __future__ import annotations

import pytest
from builders import Shown
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from graphkit.render.document_blocks import Block, Column, Drawing, Heading, Prose, Table
from graphkit.render.markdown import as_mermaid, escape_markdown

RENDERER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SPECIALS = [
    "[bold]x[/bold]",
    "*star*",
    "**strong**",
    "_under_",
    "snake_case_name",
    "`code`",
    "~~gone~~",
    "<b>bold</b>",
    "<script>alert(1)</script>",
    "<!-- hidden -->",
    "&lt;",
    "a & b",
    "[text](http://x)",
    "![image](http://x)",
    "[text][ref]",
    "[ref]: http://x",
    "<http://x>",
    "a|b|c",
    "back\\slash",
    "\\*not\\*",
    "\x1b[31mred",
]


def written(*blocks: Block) -> str:
    """Return blocks as Markdown, without the title and the empty line after it."""
    return Shown(blocks).to_markdown().removeprefix("# Title\n\n")


def plain(text: str) -> str:
    """Return what a reader sees of text that Markdown does not interpret."""
    visible = text.replace("\x1b", "\\x1b")
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        visible = visible.replace(character, entity)
    return visible


def test_a_result_without_blocks_is_its_title() -> None:
    assert Shown(()).to_markdown() == "# Title\n"


def test_headings_are_below_the_title() -> None:
    assert Shown((Heading("Part"),)).to_markdown() == "# Title\n\n## Part\n"
    assert Shown((Heading("Part", is_inner=True),)).to_markdown() == "# Title\n\n### Part\n"


def test_prose_is_a_paragraph() -> None:
    assert written(Prose("One."), Prose("Two.")) == "One.\n\nTwo.\n"


def test_a_warning_is_a_quotation() -> None:
    assert written(Prose("It is broken.", "warning")) == "> **Warning:** It is broken.\n"


def test_a_table() -> None:
    table = Table(
        (Column("Name", "code"), Column("Kind"), Column("Remark", "note"), Column("Count", "number")),
        [("first", "a", "depends on x", 1234567), ("second", None, None, 2)],
        title="Things",
    )
    assert written(table) == (
        """\
**Things**

| Name | Kind | Remark | Count |
|---|---|---|---:|
| `first` | a | depends on x | 1,234,567 |
| `second` |  |  | 2 |
"""
    )


def test_an_empty_name_is_no_code() -> None:
    assert written(Table((Column("Name", "code"),), [("",)])).splitlines()[-1] == "|  |"


def test_a_drawing_becomes_mermaid() -> None:
    drawing = Drawing("Cone of y", (("a", "x", "data"), ("b", "Shape", "shape")), (("a", "b"),))
    assert written(drawing) == (
        """\
Cone of y

```mermaid
flowchart TD
    n0["x"]
    n1["Shape"]
    n0 --> n1
```
"""
    )


def test_a_drawing_without_edges() -> None:
    assert as_mermaid(Drawing("", (("a", "x", "data"),), ())) == 'flowchart TD\n    n0["x"]\n'


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ('say "hi"', "say #quot;hi#quot;"),
        ("#35;", "#35;35;"),
        ("<b>", "#lt;b#gt;"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a] --> b[", "a] --#gt; b["),
    ],
)
def test_a_label_cannot_leave_its_box(label: str, shown: str) -> None:
    assert as_mermaid(Drawing("", (("a", label, "op"),), ())) == f'flowchart TD\n    n0["{shown}"]\n'


@pytest.mark.parametrize("text", SPECIALS)
def test_text_in_prose_is_shown_as_it_is(text: str) -> None:
    assert RENDERER.render(written(Prose(f"See {text}"))) == f"<p>See {plain(text)}</p>\n"


@pytest.mark.parametrize("text", SPECIALS)
def test_text_in_a_heading_is_shown_as_it_is(text: str) -> None:
    assert RENDERER.render(written(Heading(f"See {text}"))) == f"<h2>See {plain(text)}</h2>\n"


@pytest.mark.parametrize("text", SPECIALS)
def test_text_in_a_table_is_shown_as_it_is(text: str) -> None:
    rendered = RENDERER.render(written(Table((Column("N"),), [(text,)])))
    assert f"<td>{plain(text)}</td>" in rendered


@pytest.mark.parametrize("text", SPECIALS)
def test_code_in_a_table_is_shown_as_it_is(text: str) -> None:
    rendered = RENDERER.render(written(Table((Column("N", "code"),), [(text,)])))
    assert f"<td><code>{plain(text)}</code></td>" in rendered


@given(st.text(st.sampled_from("ab*`<>|~[]()!\\& "), max_size=12))
def test_text_is_never_interpreted(text: str) -> None:
    assert RENDERER.render(f"x{escape_markdown(text)}x") == f"<p>x{plain(text)}x</p>\n"


def test_shapes_stay_readable() -> None:
    assert escape_markdown("[batch_size, 1, past_sequence_length]") == "[batch_size, 1, past_sequence_length]"


@pytest.mark.parametrize("text", ["39.52", "-630", "+4", "= [8]", "#2", "1.5 MB", "x"])
def test_a_number_or_a_sign_that_starts_nothing_is_as_it_is(text: str) -> None:
    assert escape_markdown(text) == text
    assert RENDERER.render(escape_markdown(text)) == f"<p>{text}</p>\n"


@given(st.text(st.sampled_from("#=-+ 12.)x"), min_size=1, max_size=8).map(str.strip).filter(bool))
def test_no_text_starts_a_list_or_a_heading(text: str) -> None:
    assert RENDERER.render(f"x\n\n{escape_markdown(text)}") == f"<p>x</p>\n<p>{text}</p>\n"
    assert RENDERER.render(f"x\n{escape_markdown(text)}") == f"<p>x\n{text}</p>\n"


def test_notes_that_no_row_has_are_no_column() -> None:
    columns = Column("Name", "code"), Column("At", "note"), Column("Why", "note")
    assert "| Name | Why |\n|---|---|\n| `x` | so |" in written(Table(columns, [("x", None, "so")]))

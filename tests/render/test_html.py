from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from builders import Shown
from hypothesis import given
from hypothesis import strategies as st

from graphkit.render import html
from graphkit.render.document_blocks import Block, Column, Drawing, Heading, Lines, Prose, Table

VOID = {"meta", "path", "rect"}
HOSTILE = ['<script>alert("x")</script>', "</td></table>", '" onload="x', "'><b>", "&lt;", "<!--", "]]>"]


def body(*blocks: Block) -> str:
    """Return the HTML of blocks, without the style and the title."""
    return Shown(blocks)._repr_html_().partition("<h1>Title</h1>\n")[2].removesuffix("</div>\n")


class Outline(HTMLParser):
    """The tags, the attributes and the text of a page; fails on tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def everywhere(text: str) -> tuple[Block, ...]:
    """Return blocks with a text in all places that take one."""
    return (
        Heading(text),
        Prose(text),
        Prose(text, "warning"),
        Table((Column("A"), Column("B", "code"), Column("C", "note")), [(text, text, text)], title=text),
        Drawing(text, (("0", text, "op"), ("1", text, "data")), (("1", "0"),)),
    )


def test_prose_is_a_paragraph() -> None:
    assert body(Prose("One.")) == "<p>One.</p>\n"


def test_a_warning_stands_out() -> None:
    assert body(Prose("Broken.", "warning")) == '<p class="warning">Broken.</p>\n'


def test_a_heading_is_below_the_title() -> None:
    assert body(Heading("Part")) == "<h2>Part</h2>\n"
    assert body(Heading("Part", is_inner=True)) == "<h3>Part</h3>\n"


def test_no_line_ends_within_an_option() -> None:
    """Browsers may begin a line after any hyphen."""
    shown = '<span class="option">--dim</span>'
    assert (
        body(Prose("Set it with --dim batch_size=1 - or not."))
        == f"<p>Set it with {shown} batch_size=1 - or not.</p>\n"
    )
    assert body(Lines((("a--b, -c and ---d; --dim=N", "plain"),))).count("<span") == 1
    assert body(Prose("--<b>")) == "<p>--&lt;b&gt;</p>\n"
    assert re.search(r"\.graphkit \.option \{ white-space: nowrap; \}", html.STYLE)


def test_a_table() -> None:
    table = Table(
        (Column("Name", "code"), Column("Kind"), Column("Remark", "note"), Column("Count", "number")),
        [("first", None, "depends on x", 1234567)],
        title="Things",
    )
    assert body(table) == (
        '<div class="scroll"><table><caption>Things</caption><thead><tr><th>Name</th><th>Kind</th><th>Remark</th>'
        '<th class="number">Count</th></tr></thead>\n<tbody>\n'
        '<tr><td><code>first</code></td><td></td><td>depends on x</td><td class="number">1,234,567</td></tr>\n'
        "</tbody></table></div>\n"
    )


def test_a_table_without_a_title_has_no_caption() -> None:
    assert "caption" not in body(Table((Column("Name"),), []))


def test_a_drawing_is_an_inline_svg() -> None:
    shown = body(Drawing("Cone", (("0", "Shape", "shape"),), ()))
    assert shown.startswith("<figure><figcaption>Cone</figcaption><svg ")
    assert shown.endswith("</svg></figure>\n")


@pytest.mark.parametrize("text", HOSTILE)
def test_text_adds_no_tags_and_no_attributes(text: str) -> None:
    tame, hostile = Outline(Shown(everywhere("tame")).to_html()), Outline(Shown(everywhere(text)).to_html())
    assert hostile.tags == tame.tags
    assert {name for name, _ in hostile.attributes} == {name for name, _ in tame.attributes}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_shown_as_it_is(text: str) -> None:
    assert Outline(Shown((Prose(text),)).to_html()).text.count(text) == 1


def test_escapes_are_written_out_everywhere() -> None:
    page = Shown(everywhere("\x1b[31m")).to_html()
    assert "\x1b" not in page
    assert page.count("\\x1b[31m") == 12  # a heading is in the contents too


@given(st.text(st.sampled_from("<>&\"'/ab\x1b\n"), max_size=20))
def test_tags_match_whatever_the_text(text: str) -> None:
    assert Outline(Shown(everywhere(text)).to_html()).open == []


def test_notes_that_no_row_has_are_no_column() -> None:
    columns = Column("Name", "code"), Column("At", "note"), Column("Why", "note")
    assert body(Table(columns, [("x", None, "so")])) == (
        '<div class="scroll"><table><thead><tr><th>Name</th><th>Why</th></tr></thead>\n<tbody>\n'
        "<tr><td><code>x</code></td><td>so</td></tr>\n</tbody></table></div>\n"
    )


def test_tables_are_aligned_whatever_a_notebook_wants() -> None:
    """Notebooks align cells to the right by a class and an element, and may come later: ours is more specific."""
    style = html.STYLE
    assert ".graphkit .scroll th, .graphkit .scroll td { text-align: left;" in style
    assert ".graphkit .scroll .number { text-align: right;" in style

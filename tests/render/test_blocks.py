from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.render.document_blocks import Cell, cell_text, printable


@given(st.text())
def test_no_control_character_comes_through(text: str) -> None:
    assert {unicodedata.category(character) for character in printable(text)}.isdisjoint({"Cc", "Cf", "Cs", "Co", "Cn"})


@given(st.text())
def test_no_line_break_comes_through(text: str) -> None:
    assert len(f"a{printable(text)}b".splitlines()) == 1


@given(st.text(st.characters(categories=["L", "N", "P", "S", "M"])))
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2028", "\\u2028"),
        ("\x00", "\\x00"),
        ("\ud800", "\\ud800"),
        ("naïve 漢字 ☃", "naïve 漢字 ☃"),
        ("", ""),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, ""),
        (0, "0"),
        (1234567, "1,234,567"),
        (-1234, "-1,234"),
        (True, "yes"),
        (False, "no"),
        (0.12345, "0.123"),
        ("[bold]", "[bold]"),
        ("a\x1bb", "a\\x1bb"),
    ],
)
def test_cell_text(cell: Cell, shown: str) -> None:
    assert cell_text(cell) == shown

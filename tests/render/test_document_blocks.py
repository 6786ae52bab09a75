from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.render.document_blocks import ROWS, WIDTH, Cell, cell_text, cut, outcome, printable, rows


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


def test_an_outcome_takes_eight_lines_at_most_and_a_proof_is_whole() -> None:
    proven = "word " * 200
    long = outcome(["Done.", proven], ["a fault"]).rows
    assert [text for text, _ in long] == ["Done.", proven, "a fault"]
    made = outcome(["Done.", "word " * 64], [f"fault {number}: {'word ' * 50}" for number in range(9)]).rows
    assert sum(rows(text) for text, _ in made) <= ROWS
    assert [role for _, role in made] == ["plain", "plain", "warning", "warning"]
    assert made[-1][0] == "and 8 more"


def test_all_faults_that_have_room_are_told() -> None:
    assert outcome(["Done."], ["one", "two"]).rows == (("Done.", "plain"), ("one", "warning"), ("two", "warning"))


def test_a_cut_is_between_words() -> None:
    assert cut("word " * 40, WIDTH).endswith("word ...")
    assert cut("short", WIDTH) == "short"

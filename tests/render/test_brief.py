"""A result on one screen of a terminal: what it says first, a line for each section, the commands to run next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from graphkit.analysis.hazards import hazards
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.render.result import Result
from graphkit.render.terminal import FULL, SCREEN, Brief, as_text

ROWS = [(f"n{number}", number) for number in range(40)]


@dataclass(frozen=True)
class Fixed(Result):
    """A result of given blocks."""

    title: ClassVar[str] = "Title"
    given: tuple[Block, ...] = ()

    def blocks(self) -> Iterator[Block]:
        yield from self.given


def brief_lines(*blocks: Block, commands: tuple[str, ...] = (), has_lines: bool = True) -> list[str]:
    lines = as_text(Brief(Fixed(blocks), 80, commands, has_lines)).splitlines()
    assert len(lines) <= SCREEN + 1  # and the empty one at the end
    return lines


def test_a_result_that_fits_is_shown_whole() -> None:
    lines = brief_lines(Prose("Said."), Heading("More"), Prose("Rest."), commands=("graphkit report x",))
    assert [line for line in lines if line] == ["Title", "Said.", "More", "Rest.", "$ graphkit report x"]


def test_sections_that_do_not_fit_are_a_line_each() -> None:
    long = table("Name:code | Count:number", ROWS, "Rows")
    lines = brief_lines(Prose("Said."), Heading("One"), long, Heading("Two"), Prose("First. Second. " * 20))
    assert [line for line in lines if line] == [
        "Title",
        "Said.",
        "Section  What it says",
        "─" * 23,
        "One      Rows: 40 rows",
        "Two      First",
        FULL,
    ]


def test_sections_are_named_by_their_paths_below_a_common_folder() -> None:
    long = table("Name:code | Count:number", ROWS, "Rows")
    lines = brief_lines(Prose("Said."), Heading("How"), long, Heading("m/a/x.onnx"), long, Heading("m/b/x.onnx"), long)
    assert [line.split("  ")[0] for line in lines if "Rows: " in line] == ["How", "a/x.onnx", "b/x.onnx"]


def test_a_main_section_is_shown_and_a_warning_always_is() -> None:
    long = Prose("word " * 200)
    lines = brief_lines(
        Prose("Said."), Heading("Main", is_main=True), Prose("Why."), Heading("Rest"), long, Prose("Bad.", "warning")
    )
    assert "Why." in lines
    assert any(line.startswith("Rest     word word") for line in lines)
    lines = brief_lines(long, long, Prose("Bad.", "warning"))
    assert "Warning: Bad." in lines


def test_what_is_said_after_a_table_has_room() -> None:
    lines = brief_lines(table("Name:code | Count:number", ROWS), Prose("All are equal."))
    assert "All are equal." in lines
    assert sum(line.startswith("n") for line in lines) >= 8
    texts = [Prose(f"Text {number}.") for number in range(20)]
    lines = brief_lines(*texts, Prose("All are equal."))
    assert "Text 3." in lines
    assert "All are equal." in lines


def test_a_table_alone_is_cut_to_the_screen() -> None:
    lines = brief_lines(table("Name:code | Count:number", ROWS))
    assert lines[-3:] == ["... and 26 more", "", FULL] or "... and" in lines[-4]
    assert sum(line.startswith("n") for line in lines) >= 10


@pytest.mark.parametrize("has_lines", [True, False])
def test_a_result_of_a_model_fits_a_screen(has_lines: bool) -> None:
    lines = as_text(Brief(hazards("example:merged-decoder"), 80, (), has_lines)).splitlines()
    assert len(lines) <= SCREEN


def test_a_sentence_goes_with_the_table_that_it_introduces_and_the_last_one_stays() -> None:
    long = table("Name:code | Count:number", [(f"n{number} " * 60, number) for number in range(40)])
    blocks = Prose("word " * 60), Prose("These are:"), long, Prose("Put this into the port next.")
    assert [line for line in brief_lines(*blocks) if line][-2:] == ["Put this into the port next.", FULL]
    assert "These are:" not in brief_lines(*blocks)
    assert "These are:" in brief_lines(*blocks[:2], table("Name:code | Count:number", ROWS), blocks[-1])


def test_what_is_shown_of_a_table_goes_before_the_lines_of_sections() -> None:
    short = table("Finding | Count:number", [("merged If", 1)])
    sections = [block for name in "abcdefg" for block in (Heading(name), table("A", ROWS), Prose("Said."))]
    texts = [Prose(f"{word} " * 30) for word in ("first", "second", "third")]
    lines = brief_lines(*texts, Heading("Findings", is_main=True), short, *sections)
    assert any(line.startswith("merged If") for line in lines)
    assert sum(line[:1] in "abcdefg" and line[1:3] == "  " for line in lines if line) < 7


def test_the_names_that_are_shown_say_how_much_room_there_is() -> None:
    sections = [block for at in range(9) for block in (Heading("x" * 60 if at == 8 else f"s{at}"), Prose("word " * 90))]
    assert any(line.startswith("s0  ") and len(line) > 60 for line in brief_lines(*sections))

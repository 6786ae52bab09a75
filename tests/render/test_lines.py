from __future__ import annotations

from graphkit.render.document_blocks import ROWS, WIDTH, cut, outcome, rows


def test_an_outcome_takes_eight_lines_at_most() -> None:
    made = outcome(["Done.", "word " * 200], [f"fault {number}: {'word ' * 50}" for number in range(9)]).rows
    assert sum(rows(text) for text, _ in made) <= ROWS
    assert [role for _, role in made] == ["plain", "plain", "warning", "warning"]
    assert made[-1][0] == "and 8 more"


def test_all_faults_that_have_room_are_told() -> None:
    assert outcome(["Done."], ["one", "two"]).rows == (("Done.", "plain"), ("one", "warning"), ("two", "warning"))


def test_a_cut_is_between_words() -> None:
    assert cut("word " * 40, WIDTH).endswith("word ...")
    assert cut("short", WIDTH) == "short"

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

import graphkit
from graphkit.render.document_blocks import Cell, Column, Formula, Table, printable, size_cell, table
from graphkit.render.markdown import csv_text, plain_columns


def test_numbers_are_plain() -> None:
    rows = [("a", 1234567, 0.5, "1,234.5", True), ("b", None, None, None, False)]
    assert csv_text([table("N:code | I:number | F:number | T:number | B", rows)]) == (
        "N,I,F,T,B\na,1234567,0.5,1234.5,yes\nb,,,,no\n"
    )


def test_tables_of_other_columns_follow_after_an_empty_line() -> None:
    assert csv_text([table("A", [("1",)]), table("B", [("2",)])]) == "A\n1\n\nB\n2\n"


def test_tables_of_the_same_columns_are_one() -> None:
    parts = [table("A", [("1",)], "first"), table("B", [("2",)]), table("A", [("3",)], "second")]
    assert csv_text(parts) == "Table,A\nfirst,1\nsecond,3\n\nB\n2\n"


def test_no_table_is_no_text() -> None:
    assert csv_text([]) == ""


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-x", "@sum"])
def test_no_spreadsheet_computes_a_name(name: str) -> None:
    assert csv_text([table("A:code", [(name,)])]) == f"A\n'{name}\n"


@pytest.mark.parametrize(
    ("cell", "written"), [("=n", "'=n"), ("-n + 1,024", "'-n + 1024"), ("max(n, 2,048)", '"max(n, 2048)"')]
)
def test_a_formula_among_numbers_is_whole_and_not_computed(cell: str, written: str) -> None:
    assert csv_text([table("N:number", [(cell,), (1,)])]) == f"N\n{written}\n1\n"


@pytest.mark.parametrize("number", ["-1", "-0.5", "-3.4028235e+38"])
def test_a_negative_number_stays_one(number: str) -> None:
    assert csv_text([table("A", [(number,)])]) == f"A\n{number}\n"


@examples(12, 200)
@given(st.lists(st.text(), min_size=1, max_size=8))
def test_every_cell_reads_back(cells: list[str]) -> None:
    text = csv_text([table("A | B", [("x", cell) for cell in cells])])
    read = [row[1] for row in csv.reader(io.StringIO(text))][1:]
    assert [cell.removeprefix("'") for cell in read] == [printable(cell).removeprefix("'") for cell in cells]


def test_numbers_in_short_are_in_full_and_without_a_unit() -> None:
    cells: list[Cell] = [size_cell(11_291), size_cell(891_305, "B"), "98.4 %", Formula("1.6 %", 8, "", "%"), "54x"]
    table = Table((Column("n", "number"),), [(cell,) for cell in cells])
    assert csv_text([table]) == "n\n11291\n891305\n98.4\n1.6\n54\n"
    assert plain_columns(table) == {"n": [11_291, 891_305, 98.4, 1.6, 54]}


def test_costs_are_plain_numbers_and_whole_formulas() -> None:
    text = graphkit.costs("example:detection").to_csv()
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    totals = {row[0]: row[1:] for row in rows[1:9]}
    assert totals["parameters"][0].isdecimal()
    assert totals["bytes moved"][0].isdecimal()
    assert "more term" not in text
    sizes = dict(graphkit.costs("example:detection").sizes)
    assert eval(totals["multiply-accumulates (MACs)"][1], {}, sizes) == int(totals["multiply-accumulates (MACs)"][0])


def test_a_column_of_data_frames_has_numbers_of_one_kind() -> None:
    found = plain_columns(table("N:number", [(1,), (0.5,), (None,)]))["N"]
    assert found == [1.0, 0.5, None]
    assert [type(cell) for cell in found[:2]] == [float, float]


def test_a_cell_has_one_value_without_the_words_that_a_screen_has_around_it() -> None:
    model = graphkit.load("example:merged-decoder")
    frames = {
        name: plain_columns(next(iter(getattr(graphkit, name)(model).csv_tables()))) for name in ("hazards", "summary")
    }
    assert frames["hazards"]["Node"][0] == "optimum::if/else_branch//model/decoder/embed_positions/Gather"
    assert str(frames["hazards"]["onnxruntime"][0]).startswith("an error with ")
    properties = dict(zip(frames["summary"]["Property"], frames["summary"]["Value"], strict=True))
    assert (properties["nodes"], properties["initializers"]) == ("720", "29")
    assert str(properties["weights"]).isdecimal()
    origins = graphkit.origins(model)
    assert not any("depends on" in line or " more" in line for line in origins.to_csv().splitlines())
    assert "depends on" in origins.to_text()

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import pytest
from rich.console import Console

from graphkit import __version__
from graphkit.render.document_blocks import Block, Prose, table
from graphkit.render.result import Result, Sizes, tabled, versioned_schema


@dataclass(frozen=True)
class Part:
    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Whole(Result):
    title: ClassVar[str] = "Whole"
    parts: tuple[Part, ...]
    by_name: dict[str, Part]
    note: str | None = None

    def blocks(self) -> Iterable[Block]:
        yield Prose(f"{len(self.parts)} parts.")


WHOLE = Whole((Part("naïve", (1, 2)),), {"a": Part("b", ())})
PLAIN = {
    "parts": [{"name": "naïve", "sizes": [1, 2]}],
    "by_name": {"a": {"name": "b", "sizes": []}},
    "note": None,
}


def test_to_dict_gives_plain_values() -> None:
    assert WHOLE.to_dict() == PLAIN


def test_to_json_gives_the_fields_and_the_schema() -> None:
    assert json.loads(WHOLE.to_json()) == {"graphkit": __version__, "schema": versioned_schema(WHOLE.schema()), **PLAIN}


@dataclass(frozen=True)
class Measured(Result):
    title: ClassVar[str] = "Measured"
    computed: ClassVar[tuple[str, ...]] = ("most",)
    dims: tuple[Sizes, ...]

    @property
    def most(self) -> int:
        return max(size for sizes in self.dims for _, size in sizes)


@dataclass(frozen=True)
class KVOfABCThing(Result):
    title: ClassVar[str] = "Odd"


def test_to_dict_has_computed_properties_and_sizes_by_name() -> None:
    assert Measured((Sizes([("a", 1), ("b", 2)]),)).to_dict() == {"dims": [{"a": 1, "b": 2}], "most": 2}


def test_a_schema_is_called_what_its_class_is_called() -> None:
    assert (Measured.schema(), KVOfABCThing.schema()) == ("measured", "kv-of-abc-thing")


def test_to_json_is_readable() -> None:
    assert WHOLE.to_json() == (
        """\
{
  "graphkit": "0.1.0",
  "schema": "whole/1",
  "parts": [
    {
      "name": "na\\u00efve",
      "sizes": [
        1,
        2
      ]
    }
  ],
  "by_name": {
    "a": {
      "name": "b",
      "sizes": []
    }
  },
  "note": null
}
"""
    )


def test_the_heading_is_the_title() -> None:
    assert WHOLE.heading() == "Whole"


def test_there_are_no_findings_unless_a_result_has_some() -> None:
    assert WHOLE.findings() == ()


def test_rich_prints_what_to_text_returns() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(WHOLE)
    assert capture.get() == WHOLE.to_text() == "Whole\n\n1 parts.\n\n"


def test_a_notebook_shows_a_piece_of_html() -> None:
    shown = WHOLE._repr_html_()
    assert shown.endswith('<div class="graphkit">\n<h1>Whole</h1>\n<p>1 parts.</p>\n</div>\n')
    assert "<html" not in shown
    assert "<script" not in shown


def test_a_result_is_frozen() -> None:
    with pytest.raises(AttributeError):
        WHOLE.note = "changed"  # type: ignore[misc]


@dataclass(frozen=True)
class Weight:
    name: str
    dims: tuple[int | None, ...]
    size: int


@dataclass(frozen=True)
class Weights(Result):
    title: ClassVar[str] = "Weights"
    rows: tuple[Weight, ...] = field(
        metadata=tabled("Tensor:code=name | Dims:note | Size:number", most=1, empty="There are none.")
    )

    def introduction(self) -> tuple[str]:
        return (f"{len(self.rows)} weights.",)


ROWS = Weight("w", (2, None), 8), Weight("b", (), 4)


def test_a_field_is_a_table_between_what_is_said() -> None:
    said, shown, more = Weights(ROWS).blocks()
    assert said == Prose("2 weights.")
    assert shown == table("Tensor:code | Dims:note | Size:number", [("w", "[2, ?]", 8)])
    assert more == Prose("... and 1 more in the JSON report.")


def test_a_result_whose_tables_are_empty_says_that_alone() -> None:
    assert [*Weights(()).blocks()] == [Prose("There are none.")]


def test_csv_and_json_have_all_rows_of_a_table() -> None:
    assert Weights(ROWS).to_csv() == 'Tensor,Dims,Size\nw,"[2, ?]",8\nb,[],4\n'
    assert Weights(ROWS).to_dict() == {"rows": [asdict(row) | {"dims": [*row.dims]} for row in ROWS]}

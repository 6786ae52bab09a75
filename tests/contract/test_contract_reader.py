"""What is not a contract gets one error that says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_contract import SMALL

from graphkit.contract import read_contract
from graphkit.errors import ModelError

Plain = Any


def drop(plain: Plain) -> None:
    del plain["methods"][0]["file"]


def setting(*path: str | int, to: object) -> Callable[[Plain], None]:
    def change(plain: Plain) -> None:
        *before, last = path
        for key in before:
            plain = plain[key]
        plain[last] = to

    return change


INPUTS = ("methods", 0, "inputs")
BROKEN: dict[str, tuple[Callable[[Plain], None], str]] = {
    "a key is missing": (drop, r"methods\[0\]: Object missing required field `file`"),
    "a key too many": (setting("x", to=1), "x is there, and a contract has none"),
    "a key that has a default is missing": (
        lambda plain: plain["generation"].pop("num_beams"),
        r"generation\.num_beams is missing, and a contract",
    ),
    "a dim is text": (
        setting(*INPUTS, 0, "shape", 1, to="2"),
        r"methods\[0\]\.inputs\[0\]\.shape\[1\]: Expected `int`, got `str`",
    ),
    "a dim is a bool": (
        setting(*INPUTS, 0, "shape", 1, to=True),
        r"methods\[0\]\.inputs\[0\]\.shape\[1\]: Expected `int`, got `bool`",
    ),
    "a dim is huge": (setting("sizes", "batch", to=1 << 60), r"sizes\.batch: Expected `int` <= 9007199254740992"),
    "a list is an object": (setting("tables", to={}), "tables: Expected `array`, got `object`"),
    "sizes is a list": (setting("sizes", to=[]), "sizes: Expected `object`, got `array`"),
    "a size is missing": (setting("sizes", to={}), "sizes.batch is missing, or below 0"),
    "a token is missing": (setting("tokens", to={}), "tokens.pad is missing"),
    "another kind": (
        setting(*INPUTS, 0, "source", "kind", to="magic"),
        r"methods\[0\]\.inputs\[0\]\.source\.kind: Invalid enum value 'magic'",
    ),
    "no source": (setting(*INPUTS, 0, "source", to=None), "step: input 'past' has no source"),
    "half a pair": (
        setting("target", to="\ud800"),
        r"JSON is malformed: unexpected end of escaped utf-16 surrogate pair \(byte 18\)",
    ),
    "a floor of 400 digits": (setting("floor", to=10**400), "floor: Number out of range"),
    "a dtype of numpy": (
        setting("tables", 0, "dtype", to="(1,2"),
        "table 'step.inputs_embeds' has no size, or no dtype",
    ),
    "a dtype without bytes": (setting(*INPUTS, 2, "dtype", to="object"), "or no dtype of whole bytes"),
    "chosen by nothing": (setting(*INPUTS, 1, "source", "by", to=""), "does not say what chooses from"),
    "other bytes": (setting("states", 0, "bytes", to=-7), r"states\[0\]\.bytes: Expected `int` >= 0"),
    "no finite floor": (setting("floor", to=float("nan")), r"JSON is malformed: invalid character \(byte 210\)"),
    "a file elsewhere": (
        setting("tables", 0, "file", to="../../secret"),
        r"tables\[0\]\.file: Expected `str` matching regex",
    ),
    "a model elsewhere": (
        setting("methods", 0, "file", to="/etc/x"),
        r"methods\[0\]\.file: Expected `str` matching regex",
    ),
    "a negative dim": (setting("states", 0, "shape", 1, to=-2), r"states\[0\]\.shape\[1\]: Expected `int` >= 0"),
    "a negative offset": (setting("tables", 0, "offset", to=-1), r"tables\[0\]\.offset: Expected `int` >= 0"),
    "no part for each sequence": (
        setting("sizes", "batch", to=1 << 50),
        "does not hold 1125899906842624 sequences one",
    ),
    "no such axis": (setting("states", 0, "axis", to=4), "state 'past' has no axis 4"),
    "no such table": (setting(*INPUTS, 1, "source", "of", to="x"), "is not made of rows of table 'x'"),
    "no row": (setting(*INPUTS, 1, "shape", 0, to=0), "is not made of rows of table 'step.inputs_embeds'"),
    "another row": (setting("tables", 0, "shape", to=[5]), "is not made of rows of table 'step.inputs_embeds'"),
    "no such state": (
        setting(*INPUTS, 0, "source", "of", to="x"),
        "step: input 'past' is state 'x', which is not there",
    ),
    "a state of other dims": (setting(*INPUTS, 0, "shape", 1, to=9), "step: input 'past' does not fit state 'past'"),
    "two inputs of a name": (setting(*INPUTS, 1, "name", to="past"), "step: two have the name of input 'past'"),
    "another mask": (setting(*INPUTS, 2, "shape", to=[1, 3]), "is a mask over the slots of another length"),
    "writes too much": (setting("methods", 0, "outputs", 1, "shape", 2, to=2), "does not fit state 'past'"),
    "no logits": (setting("methods", 0, "outputs", 0, "writes", to="past"), "does not fit state 'past'"),
    "no steps": (setting("sizes", "positions", to=0), "sizes.positions is not 0 where nothing runs at each step"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_contract_is_an_error(case: str, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    plain = json.loads(SMALL.to_json())
    change(plain)
    (tmp_path / "contract.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match=message):
        read_contract(tmp_path / "contract.json")


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "\x00", '{"version": 3}'])
def test_what_is_no_object_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(text)
    with pytest.raises(ModelError, match="it is not a contract"):
        read_contract(tmp_path / "contract.json")


def test_a_contract_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(SMALL.to_json())
    assert read_contract(tmp_path / "contract.json") == SMALL

"""What is no `bundle.json` gets one error that says where; what is one fits its schema."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from test_contract_reader import setting

from graphkit.analysis.bundle_overview import bundle_overview
from graphkit.contract.contract_files import read_bundle
from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.hosts.bundle_host import Bundle
from graphkit.workflows.output_schemas import schema_of

BundleOf = Callable[[str], Path]
Plain = Any
NAMES = ("causal", "window", "whisper-tiny")
SCHEMA = schema_of("bundle")
STEP, INIT, REORDER = (("methods", place) for place in (1, 2, 3))  # of `causal`, whose methods begin with prefill
KEY = "past_key_values.0.key"


@pytest.fixture
def plain(bundle_of: BundleOf) -> Plain:
    return json.loads((bundle_of("causal") / "bundle.json").read_text())


def drop(*path: str | int) -> Callable[[Plain], None]:
    def change(plain: Plain) -> None:
        *before, last = path
        for key in before:
            plain = plain[key]
        del plain[last]

    return change


def twice(*path: str | int) -> Callable[[Plain], None]:
    def change(plain: Plain) -> None:
        for key in path:
            plain = plain[key]
        plain.append(plain[0])

    return change


def state(name: str, to: object) -> Callable[[Plain], None]:
    """Change the second state, that of the keys."""
    return setting("states", 1, name, to=to)


def port(kind: str, name: str, *path: str, to: object, method: int = 1) -> Callable[[Plain], None]:
    """Change a port of a method."""

    def change(plain: Plain) -> None:
        ports = plain["methods"][method][kind]
        setting(*path, to=to)(next(each for each in ports if each["name"] == name))

    return change


BROKEN: dict[str, tuple[Callable[[Plain], None], str]] = {
    "a key is missing": (drop(*STEP, "access"), r"methods\[1\]: Object missing required field `access`"),
    "a key too many": (setting("x", to=1), "x is there, and a bundle has none"),
    "a key that has a default is missing": (
        drop("generation", "prompt"),
        r"generation\.prompt is missing, and a bundle",
    ),
    "another version": (setting("version", to=1), "it is a bundle of version 1 - make it again with `graphkit bundle`"),
    "a version that is none": (setting("version", to="1"), "version: Expected `int`, got `str`"),
    "no method": (setting("methods", to=[]), "methods: Expected `array` of length >= 1"),
    "a method without a name": (setting(*STEP, "name", to=""), r"methods\[1\]\.name: Expected `str` of length >= 1"),
    "a state without a name": (state("name", ""), r"states\[1\]\.name: Expected `str` of length >= 1"),
    "a length without a name": (
        setting("lengths", 0, "name", to=""),
        r"lengths\[0\]\.name: Expected `str` of length >= 1",
    ),
    "two states of a name": (twice("states"), "two have the name of state 'attention_mask'"),
    "two methods of a name": (twice("methods"), "two have the name of method 'prefill'"),
    "no batch": (drop("sizes", "batch"), r"sizes\.batch is missing"),
    "a size of 0": (setting("sizes", "tokens", to=0), r"sizes\.tokens: Expected `int` >= 1"),
    "a length of 0": (setting("lengths", 0, "most", to=0), r"lengths\[0\]\.most: Expected `int` >= 1"),
    "a huge arena": (setting("arena", to=1 << 53), "arena: Expected `int` <= 17592186044416"),
    "a larger arena": (setting("arena", to=1 << 20), "an arena of 1048576 bytes for states of 1728"),
    "a small arena": (
        setting("arena", to=1024),
        r"state 'past_key_values\.0\.value' does not lie in the arena, at 960",
    ),
    "a negative arena": (setting("arena", to=-1), "arena: Expected `int` >= 0"),
    "another file": (
        setting(*STEP, "file", to="../../etc/model.onnx"),
        r"methods\[1\]\.file: Expected `str` matching regex",
    ),
    "a folder": (setting(*STEP, "file", to=".."), r"methods\[1\]\.file: Expected `str` matching regex"),
    "other data": (setting("data", to="/etc/passwd"), "data: Expected `str` matching regex"),
    "windows": (setting("data", to="a\\b"), "data: Expected `str` matching regex"),
    "a dtype of numpy": (state("dtype", "(1,2"), "has no size, or no dtype of whole bytes"),
    "objects": (state("dtype", "object"), "has no size, or no dtype of whole bytes"),
    "halves of bytes": (state("dtype", "int4"), "has no size, or no dtype of whole bytes"),
    "a negative dim": (state("shape", [3, 2, -8, 4]), r"states\[1\]\.shape\[2\]: Expected `int` >= 0"),
    "a huge dim beside none": (state("shape", [0, 1 << 50, 1 << 50, 4]), "has no size, or no dtype of whole bytes"),
    "many axes": (state("shape", [1] * 40), r"states\[1\]\.shape: Expected `array` of length <= 32"),
    "other bytes": (state("bytes", 64), "does not take 64 bytes"),
    "no such axis": (state("axis", 4), "has no axis 4"),
    "no such axis of rows": (state("batch", -1), r"states\[1\]\.batch: Expected `int` >= 0"),
    "an offset between": (state("offset", 200), r"states\[1\]\.offset: Expected `int` that's a multiple of 64"),
    "an offset before": (state("offset", -64), r"states\[1\]\.offset: Expected `int` >= 0"),
    "an offset in another": (state("offset", 0), "states 'attention_mask' and 'past_key_values.0.key' overlap"),
    "slots along no axis": (state("axis", None), "grows along no axis, or by a length that is not there"),
    "a whole with an axis": (state("update", "whole"), "grows along no axis, or by a length that is not there"),
    "two places in the room of one": (
        lambda plain: (state("update", "swap")(plain), state("axis", None)(plain)),
        "states 'past_key_values.0.key' and 'past_key_values.0.value' overlap",
    ),
    "another length": (state("length", "x"), "grows along no axis, or by a length that is not there"),
    "fewer slots than most": (setting("lengths", 0, "most", to=99), "length 'past_length' may be 99"),
    "a step of all slots": (
        port("inputs", KEY, "shape", 0, to=8),
        f"state '{KEY}': prefix is true, and the methods take all slots",
    ),
    "a prefix that is denied": (
        state("prefix", False),
        f"state '{KEY}': prefix is false, and the methods take the slots in use alone",
    ),
    "a prefix along another axis": (state("axis", 2), f"state '{KEY}': prefix is true, and the methods take all slots"),
    "a prefix by a number": (state("prefix", 1), r"states\[1\]\.prefix: Expected `bool`, got `int`"),
    "another update": (state("update", "magic"), r"states\[1\]\.update: Invalid enum value 'magic'"),
    "another moment": (setting(*STEP, "when", to="later"), r"methods\[1\]\.when: Invalid enum value 'later'"),
    "no access": (drop(*STEP, "access", KEY), "step: it does not say what it does with each state"),
    "another access": (setting(*STEP, "access", KEY, to="read"), f"it says 'read' of state '{KEY}', and its ports say"),
    "two inputs of a name": (twice(*STEP, "inputs"), "step: two have the name of input 'input_ids'"),
    "two outputs of a name": (twice(*STEP, "outputs"), "step: two have the name of output 'logits'"),
    "a port without a name": (
        port("inputs", "input_ids", "name", to=""),
        r"methods\[1\]\.inputs\[0\]\.name: Expected `str` of length >= 1",
    ),
    "a dim without a name": (
        port("inputs", "input_ids", "shape", to=["", 1]),
        r"methods\[1\]\.inputs\[0\]\.shape\[0\]: Expected `str` of length >= 1",
    ),
    "a port of no size": (
        port("outputs", "logits", "shape", to=[-1]),
        r"methods\[1\]\.outputs\[0\]\.shape\[0\]: Expected `int` >= 0",
    ),
    "an input that nobody makes": (port("inputs", "input_ids", "source", to=None), "'input_ids' is made by nobody"),
    "an input that is an output": (port("inputs", "input_ids", "writes", to="attention_mask"), "is made by nobody, or"),
    "a state that is not there": (
        port("inputs", KEY, "source", "of", to="x"),
        f"step: input '{KEY}' is state 'x', which is not there",
    ),
    "a state without its name": (
        port("inputs", KEY, "source", "of", to=""),
        f"input '{KEY}' is a state without a name",
    ),
    "a state of other dims": (
        port("inputs", KEY, "shape", to=["batch", 2, 9, 4]),
        f"'{KEY}' does not fit state '{KEY}'",
    ),
    "a state of another rank": (port("inputs", KEY, "shape", to=["batch"]), f"'{KEY}' does not fit state '{KEY}'"),
    "a state of another dtype": (port("inputs", KEY, "dtype", to="int32"), f"'{KEY}' does not fit state '{KEY}'"),
    "an output to nowhere": (port("outputs", "logits", "writes", to="x"), "output 'logits' is state 'x', which is not"),
    "an output to another state": (port("outputs", "logits", "writes", to=KEY), f"'logits' does not fit state '{KEY}'"),
    "two outputs to one state": (
        port("outputs", f"{KEY}_after", "writes", to="past_key_values.0.value"),
        "two outputs are one state",
    ),
    "a length that is not there": (
        port("inputs", "past_length", "source", "of", to="x"),
        "is length 'x', which is not",
    ),
    "a length of many": (
        port("inputs", "past_length", "shape", to=[2]),
        "is length 'past_length', which is not there or",
    ),
    "a length of floats": (
        port("inputs", "past_length", "dtype", to="float64"),
        "which is not there or another tensor",
    ),
    "rows in a step": (
        port("inputs", "input_ids", "source", "kind", to="indices"),
        "is of kind 'indices', which a method",
    ),
    "a mask that no memory holds": (
        port("inputs", "attention_mask", "shape", 1, to=1 << 40),
        "input 'attention_mask' is larger than what a caller can give",
    ),
    "tokens without an axis": (port("inputs", "input_ids", "shape", to=[]), "input 'input_ids' has no axis of rows"),
    "tokens to reorder": (
        port("inputs", "rows", "source", "kind", to="tokens", method=3),
        "a method for 'reorder' does not",
    ),
    "rows of floats": (port("inputs", "rows", "dtype", to="float32", method=3), "input 'rows' is no list of rows"),
    "nothing to reorder by": (drop(*REORDER, "inputs", 0), "reorder: it takes no indices, or takes them twice"),
    "results of init": (
        setting(*INIT, "outputs", 0, "writes", to=""),
        "init: two outputs are one state, or one is none",
    ),
    "inputs of init": (
        lambda plain: setting(*INIT, "inputs", to=plain["methods"][1]["inputs"])(plain),
        "is of kind 'tokens', which a method for 'init' does not take",
    ),
    "a change of no length": (
        setting(*STEP, "changes", 0, "length", to="x"),
        "it changes length 'x' by an input that is",
    ),
    "a change by no input": (setting(*STEP, "changes", 0, "input", to=KEY), "by an input that is not there"),
    "a change by no axis": (setting(*STEP, "changes", 0, "axis", to=2), "by an input that is not there"),
}


@pytest.mark.cases(26)
@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_bundle_is_an_error(case: str, plain: Plain, tmp_path: Path) -> None:
    change, message = BROKEN[case]
    change(plain)
    (tmp_path / "bundle.json").write_text(json.dumps(plain))
    with pytest.raises(ModelError, match=message):
        Bundle(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "\x00", '{"version": 4}', '{"version": true}'])
def test_what_is_no_object_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(ModelError, match="it is not a bundle"):
        read_bundle(tmp_path / "bundle.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_comes_back_as_it_was(name: str, bundle_of: BundleOf, tmp_path: Path) -> None:
    contract = read_bundle(bundle_of(name) / "bundle.json")
    (tmp_path / "bundle.json").write_text(contract.to_json())
    assert read_bundle(tmp_path / "bundle.json") == contract


def test_an_output_that_no_memory_holds_is_an_error(plain: Plain, bundle_of: BundleOf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle_of("causal"), tmp_path / "bundle"))
    for place in (0, 1):
        plain["methods"][place]["outputs"][0]["shape"] = ["batch", 1 << 40, 1]
    (folder / "bundle.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match="there is no memory for 'logits'"):
        Bundle(folder, unchecked=True).start([[1], [2], [3]])


# The schema


@pytest.mark.parametrize("name", NAMES)
def test_every_bundle_fits_its_schema(name: str, bundle_of: BundleOf) -> None:
    jsonschema.validate(json.loads((bundle_of(name) / "bundle.json").read_text()), SCHEMA)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


UNFIT: dict[str, Callable[[Plain], None]] = {
    name: BROKEN[name][0]
    for name in (
        "a key is missing", "a key too many", "another version", "no method", "a method without a name", "no batch",
        "a size of 0", "a length of 0", "a huge arena", "a negative arena", "another file", "a folder", "other data",
        "windows", "a negative dim", "many axes", "an offset between", "an offset before", "another update",
        "another moment", "a port without a name", "a dim without a name", "a port of no size",
        "an input that nobody makes", "an input that is an output", "no such axis of rows",
    )
}  # fmt: skip


@pytest.mark.cases(9)
@pytest.mark.parametrize("case", UNFIT)
def test_what_is_no_bundle_does_not_fit_the_schema(case: str, plain: Plain) -> None:
    UNFIT[case](plain)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, SCHEMA)


# Anything at all

ODD = (
    None,
    True,
    -1,
    0,
    1,
    3,
    1 << 40,
    1 << 60,
    1e300,
    float("nan"),
    "",
    "x",
    "batch",
    "\x1b[31m",
    [],
    [0],
    {},
    {"a": 1},
)


def leaves(plain: Plain, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(plain, dict | list):
        for key in plain if isinstance(plain, dict) else range(len(plain)):
            yield from leaves(plain[key], (*path, key))


def test_a_bundle_that_has_been_tampered_with_is_refused_or_runs(bundle_of: BundleOf, tmp_path: Path) -> None:
    """A value of it is another: an error of one line; for who takes it unchecked, that or nothing that shows."""
    folder = Path(shutil.copytree(bundle_of("causal"), tmp_path / "bundle"))
    text = (folder / "bundle.json").read_text()
    places, rng, refused = list(leaves(json.loads(text)))[1:], random.Random(0), 0
    for _ in range(150):
        plain = json.loads(text)
        place, odd = rng.choice(places), rng.choice(ODD)
        setting(*place, to=odd)(plain)
        (folder / "bundle.json").write_text(json.dumps(plain))
        if plain != json.loads(text):
            with pytest.raises(ModelError):
                Bundle(folder, threads=1)
            with pytest.raises(ModelError):
                bundle_overview(folder)
        try:
            bundle = Bundle(folder, threads=1, unchecked=True)
            bundle.reset()
            bundle.start([[1, 2], [3, 4]])
            bundle.reorder([1, 1, 0])
            bundle.step(np.array([1, 2, 3]))
        except GraphkitError as error:
            refused += "\n" not in str(error)
    assert 100 < refused < 150

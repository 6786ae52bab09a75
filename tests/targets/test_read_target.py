from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from graphkit.errors import GraphkitError, TargetError, UsageError
from graphkit.targets import FOLDER, NAMES, Condition, Fact, Source, load_target, tflite_spellings

OWN = """
name = "mine"
description = "A compiler."
[sources.manual]
title = "Manual"
date = 2026-01-02
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: str | Path) -> str:
    with pytest.raises(GraphkitError) as caught:
        load_target(path)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_target_is_read(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.description
    assert all(source.title and source.date <= date(2026, 12, 31) for source in target.sources)


@pytest.mark.parametrize("name", [name for name in NAMES if not load_target(name).others])
def test_every_fact_has_a_source_with_a_date(name: str) -> None:
    target = load_target(name)
    tables = [table for table in (target.operators, target.dtypes, target.tflite) if table is not None]
    limits = [target.max_rank, target.static_shapes, target.max_opset, target.quantized]
    said = [fact.source for table in tables for fact in table.facts]
    said += [table.source for table in tables if table.source is not None]
    said += [limit.source for limit in limits if limit is not None]
    assert said
    assert set(said) == set(target.sources), "a source is named and says nothing, or the other way round"
    assert all(isinstance(source.date, date) for source in said)
    assert all(table.source is not None or table.otherwise == "unknown" for table in tables)


def test_every_target_file_is_named() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*NAMES, "tflite_operators"}


def test_spellings_name_tflite_operators_that_the_lists_use() -> None:
    listed = {name for target in map(load_target, NAMES) if target.tflite for name in target.tflite.names("allowed")}
    become = {name for rows in tflite_spellings().values() for row in rows for name in row.becomes}
    assert {"ADD", "BATCH_MATMUL", "RESHAPE", "SOFTMAX", "TRANSPOSE"} <= become & listed
    assert all(name.isupper() or name.startswith("Flex") for name in become)


def test_a_row_without_a_condition_is_the_last_of_its_operator() -> None:
    for op, rows in tflite_spellings().items():
        assert [op for row in rows[:-1] if row.condition == Condition()] == []


def test_what_vela_lists() -> None:
    older, newer = load_target("ethos-u65").tflite, load_target("ethos-u85").tflite
    assert older is not None
    assert newer is not None
    assert (len(older.names("allowed")), len(newer.names("allowed"))) == (55 - 2, 74 - 3)
    assert (older.names("refused"), newer.names("refused")) == (("NEG", "ELU"), ("NEG", "ELU", "DIV"))  # as measured
    assert [older[name].verdict for name in ("GATHER", "SELECT_V2", "CAST", "DIV", "ADD")] == [
        *("refused", "refused", "refused", "refused", "allowed")
    ]
    assert [newer[name].verdict for name in ("GATHER", "SELECT_V2", "CAST", "SQUARE", "ADD")] == [
        *("allowed", "allowed", "allowed", "refused", "allowed")
    ]


def test_what_the_issue_says_of_each() -> None:
    for name, ops in {
        "mt8371": ("Gather", "Where", "Trilu"),
        "qnn-htp": ("Trilu", "NonZero", "Scan"),
    }.items():
        operators = load_target(name).operators
        assert [fact.verdict for op in ops if (fact := operators[op])] == ["refused"] * len(ops)
    ranks = {name: limit.value for name in NAMES if (limit := load_target(name).max_rank)}
    assert ranks == {"mt8371": 4, "mediatek-litert": 4, "qnn-htp": 5, "generic-npu": 4}
    opset = load_target("rk3588").max_opset
    assert opset is not None
    assert opset.value == 19
    assert [name for name in NAMES if load_target(name).is_quantized] == ["ethos-u65", "ethos-u85"]


def test_what_no_source_says_is_unknown() -> None:
    target = load_target("mt8371")
    assert target.operators["Erf"] is None
    assert target.dtypes["int64"] is None
    assert target.max_opset is None


def test_a_target_of_ones_own(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        OWN
        + """
max_rank.value = 3
max_rank.source = "manual"
[operators]
otherwise = "refused"
source = "manual"
[[operators.facts]]
is = "allowed"
names = ["Gather", "com.acme.Thing"]
source = "manual"
note = "rows"
where = { constant = ["indices"], dtypes = ["float32"], max_rank = 2, attributes = { axis = 0 } }
""".replace("max_rank.value", "[max_rank]\nvalue").replace("max_rank.source", "source"),
    )
    source = Source("manual", "Manual", "", date(2026, 1, 2))
    condition = Condition(("indices",), ("float32",), 2, {"axis": 0})
    for given in (path, str(path)):
        target = load_target(given)
        assert target.operators["Gather"] == Fact("allowed", ("Gather", "com.acme.Thing"), source, "rows", condition)
        assert target.operators["Relu"] == Fact("refused", ("Relu",), source, "not in its list")
        assert (target.max_rank and target.max_rank.value, target.needs_static_shapes) == (3, False)
    assert str(condition) == "constant indices, dtype float32, rank at most 2, axis = 0"


def test_a_target_that_is_made_of_others(tmp_path: Path) -> None:
    head = 'name = "mine"\ndescription = "Both."\ntogether = '
    made = load_target(written(tmp_path, head + '["ethos-u85", "rk3588"]'))
    assert [target.name for target in made.others] == ["ethos-u85", "rk3588"]
    assert [source.key for source in made.sources][:2] == ["ethos-u85: vela", "ethos-u85: measured"]
    limits = [(limit.value, limit.source.key) for limit in (made.max_opset, made.static_shapes) if limit]
    assert (made.max_rank, limits) == (None, [(19, "rk3588: measured"), (True, "ethos-u85: vela")])
    assert [
        fact and (fact.verdict, fact.source.key) for fact in map(made.dtype, ("uint8", "float32", "float8e5m2"))
    ] == [
        ("refused", "rk3588"),
        ("allowed", "ethos-u85, rk3588"),
        None,
    ]
    path = written(tmp_path, head + '["mine"]')
    assert refusal(path) == f"{path}: together: 'mine' is no other target - write some of {', '.join(NAMES)}"
    path = written(tmp_path, head + '["generic-npu"]')
    assert refusal(path) == f"{path}: together: 'generic-npu' is made of others itself - name these"
    path = written(tmp_path, head + '["rk3588"]\n[operators]\notherwise = "allowed"')
    assert refusal(path) == f"{path}: Object contains unknown field `operators` - correct it"


FACT = '[operators]\n[[operators.facts]]\nis = "allowed"\nnames = ["Add"]\nsource = "manual"\n'
WRONG = {
    "": "sources: Expected `array` of length >= 1 - correct it",
    "name = 3": "name: Expected `str`, got `int` - correct it",
    'name = "x"\ndescription = "y"': "sources: Expected `array` of length >= 1 - correct it",
    OWN.replace('name = "mine"', ""): "Object missing required field `name` - correct it",
    OWN + "[a]": "Object contains unknown field `a` - correct it",
    OWN + "[max_rank]\nvalue = true\nsource = 'manual'": "max_rank.value: Expected `int`, got `bool` - correct it",
    OWN + "[max_rank]\nvalue = 1000\nsource = 'manual'": "max_rank.value: Expected `int` <= 999 - correct it",
    OWN + "[quantized]\nvalue = 1\nsource = 'manual'": "quantized.value: Expected `bool`, got `int` - correct it",
    OWN + "[max_rank]\nvalue = 4": "max_rank: Object missing required field `source` - correct it",
    OWN + "[max_rank]\nvalue = 4\nsource = 'hearsay'": "max_rank.source: 'hearsay' is no source - write one of manual",
    OWN.replace("2026-01-02", '"yesterday"'): "sources[0].date: Invalid RFC3339 encoded date - correct it",
    OWN + FACT.replace("Add", "Ad"): "operators.facts[0].names: 'Ad' is no operator of ONNX - check its spelling, or "
    "write DOMAIN.NAME",
    OWN + FACT.replace("allowed", "fine"): "operators.facts[0].is: Invalid enum value 'fine' - correct it",
    OWN + FACT + FACT.removeprefix("[operators]\n"): "operators.facts[1].names: 'Add' has a fact already - say one "
    "thing of each name",
    OWN + FACT.replace('"Add"', '"Add", "Add"'): "operators.facts[0].names: 'Add' has a fact already - say one thing "
    "of each name",
    OWN
    + FACT
    + "where = { colour = 3 }": "operators.facts[0].where: Object contains unknown field `colour` - correct it",
    OWN + FACT.replace("allowed", "refused") + "where = { max_rank = 3 }": "operators.facts[0].where: only an operator "
    'that is allowed has a condition - take it out, or write is = "allowed"',
    OWN + FACT + "where = { attributes = { axis = [1] } }": "operators.facts[0].where.attributes.axis[0]: "
    "Expected `str`, got `int` - correct it",
    OWN + FACT + "where = { dtypes = ['int65'] }": "operators.facts[0].where: 'int65' is no dtype of ONNX - write such "
    "as float32 or int64",
    OWN + "[dtypes]\nfacts = [3]": "dtypes.facts[0]: Expected `object`, got `int` - correct it",
    OWN + '[dtypes]\n[[dtypes.facts]]\nis = "refused"\nnames = ["int65"]\nsource = "manual"': "dtypes.facts[0].names: "
    "'int65' is no dtype of ONNX - write such as float32 or int64",
    OWN + '[dtypes]\notherwise = "refused"': "dtypes.source: it is missing - name who says the rest",
    OWN + "operators = 3": "sources[0]: Object contains unknown field `operators` - correct it",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_error_that_names_the_key(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    assert refusal(path) == f"{path}: {WRONG[text]}"


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    hostile = ("name = ", "[" * 5000, "a = " + "9" * 5000, "a = " + "[" * 100_000, "\x00", "a = 2026-99-99")
    for text in hostile:
        if "9" * 5000 in text and not hasattr(sys, "get_int_max_str_digits"):  # Python 3.10.6 and older read it
            continue
        path = written(tmp_path, text)
        assert refusal(path).startswith(f"{path}: it is ")
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff'")
    assert refusal(path).startswith(f"{path}: it is not TOML: ")


def test_a_file_that_is_too_large_missing_or_no_file(tmp_path: Path) -> None:
    large = written(tmp_path, "#" * ((1 << 20) + 1))
    assert refusal(large) == f"{large}: it has more than 1,048,576 bytes - a few KB are enough"
    missing = f"{tmp_path}/none.toml"
    assert refusal(missing) == f"{missing}: there is no such file - name another one"
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    assert refusal(folder) == f"{folder}: there is no such file - name another one"
    assert "it is not TOML" in refusal("a\0.toml") or "there is no such file" in refusal("a\0.toml")
    assert "there is no such file" in refusal("a" * 5000 + ".toml") or "cannot be read" in refusal("a" * 5000 + ".toml")


def test_a_name_that_is_no_target() -> None:
    with pytest.raises(UsageError) as caught:
        load_target("ethos-u56")
    assert str(caught.value) == ("no target 'ethos-u56' - did you mean 'ethos-u85' or 'ethos-u65'?")


def test_an_error_is_an_error_of_graphkit() -> None:
    assert issubclass(TargetError, GraphkitError)

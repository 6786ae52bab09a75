from __future__ import annotations

from pathlib import Path

from onnx.defs import get_all_schemas

from graphkit.analysis.target_facts import LimitRow, OperatorCounts, target_facts, targets
from graphkit.targets import NAMES, load_target

OWN = """
name = "own"
description = "Mine."
[sources.manual]
title = "Manual, 3rd edition"
url = "https://example.org/manual"
date = 2026-01-02
[max_rank]
value = 3
source = "manual"
note = "page 4"
[operators]
[[operators.facts]]
is = "allowed"
names = ["Add", "Relu"]
source = "manual"
[[operators.facts]]
is = "allowed"
names = ["Gather"]
source = "manual"
note = "rows"
where = { constant = ["indices"] }
[[operators.facts]]
is = "refused"
names = ["Where"]
source = "manual"
"""
OWN_TEXT = """\
Target own

Mine.

Limit           Value    Source
────────────────────────────────
highest rank    3        manual
  page 4
static shapes   unknown
newest opset    unknown
quantised only  unknown

Of the operators of ONNX, 2 are allowed, 1 allowed under conditions, 1 refused,
199 unknown.

Operators of ONNX
Names       Is       Source
────────────────────────────
Add, Relu   allowed  manual
Gather      allowed  manual
  only with constant indices
  rows
Where       refused  manual
all others  unknown

Dtypes of data
Names       Is       Source
────────────────────────────
all others  unknown

Sources
Source  Date
───────────────────
manual  2026-01-02
  Manual, 3rd edition
  https://example.org/manual

"""


def test_the_facts_of_a_target_with_their_sources(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    found = target_facts(load_target(path))
    total = len({schema.name for schema in get_all_schemas() if not schema.domain})
    assert found.to_text() == OWN_TEXT.replace("199", str(total - 4))
    assert found.limits[0] == LimitRow("highest rank", "3", "page 4", "manual")


def test_the_list_of_targets() -> None:
    found = targets()
    assert [one.name for one in found.targets] == list(NAMES)
    lines = found.to_text().splitlines()
    assert any(line.startswith("generic-npu      4        yes      19") for line in lines)
    assert any("Vela" in line or "vela" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_operators_are_counted_by_what_they_become() -> None:
    counts = {one.name: one.operators for one in targets().targets}
    assert counts["mt8371"] == OperatorCounts(3, 0, 3, counts["mt8371"].unknown)
    # Div, Sqrt, Pow and DepthToSpace are taken in some of their spellings; Transpose, ReduceMean and LayerNormalization
    # up to a rank; Slice and Resize with some attributes
    assert counts["ethos-u65"].in_part == 9
    assert counts["ethos-u85"].allowed > counts["ethos-u65"].allowed
    assert counts["qnn-htp"].unknown < 30  # which onnx's test models do not have, or not by themselves


def test_a_target_that_takes_tflite_names_the_converter_as_a_source() -> None:
    found = target_facts(load_target("ethos-u65"))
    assert [source.key for source in found.sources] == ["vela", "measured", "onnx2tf", "asked", "converted"]
    assert [row.verdict for row in found.facts if row.names == ("all others",)] == [
        "as in TFLite",
        "refused",
        "unknown",
    ]

"""`generic-npu` is held to its sentence: what any of the others refuses is refused, what most do not know unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx.parser
import pytest

from graphkit.analysis.blockers import blockers
from graphkit.model import Model
from graphkit.shapes import DimSpec
from graphkit.targets import NAMES, load_target

RealModel = Callable[[str], Model]
Rows = set[tuple[str, str, str]]
OTHERS = tuple(name for name in NAMES if name not in ("generic-npu", "openvino", "webgpu", "webnn", "coreml"))
MODELS = ("bert-fill-mask/model", "gpt2-tiny/decoder_model_merged", "llama-int4/model", "vit-qdq/model")


def rows(model: Model, target: str) -> tuple[Rows, Rows]:
    """Return what a target refuses of each node, and what is unknown of it, ranks by themselves."""
    found = blockers(model, target)
    refused, unknown = (
        {(one.path, one.cause, one.what) for one in obstacles} for obstacles in (found.blockers, found.unknown)
    )
    return refused, unknown


def check(model: Model) -> None:
    each = [rows(model, name) for name in OTHERS]
    refused, unknown = rows(model, "generic-npu")
    bodies = {path for path, cause, _ in refused if cause == "control flow"}  # of which nothing else is said
    union = {
        row for row in set.union(*(found for found, _ in each)) if row[0] not in bodies or row[1] == "control flow"
    }
    assert refused == union
    silent = Counter(row for _, open_ in each for row in open_)
    assert {row for row in unknown if row[1] in ("operator", "dtype")} == {
        row for row, count in silent.items() if 2 * count > len(OTHERS) and row not in union and row[0] not in bodies
    }


def test_it_names_all_others() -> None:
    assert tuple(target.name for target in load_target("generic-npu").others) == OTHERS


@pytest.mark.cases("llama-int4/model")
@pytest.mark.parametrize("name", MODELS)
def test_it_refuses_what_any_of_the_others_refuses_of_a_real_model(name: str, real_model: RealModel) -> None:
    check(real_model(name))


def test_it_refuses_what_any_of_the_others_refuses_of_each_operator() -> None:
    """Each elementwise operator, and some whose taking depends on the node."""
    lines = [
        f"e{at} = {op} (x)" for at, op in enumerate(("Abs", "Erf", "Exp", "Neg", "Relu", "Sqrt", "Sin", "Softmax"))
    ]
    lines += [f"p{at} = Pow (x, {power})" for at, power in enumerate(("two", "half", "four"))]
    lines += ["d = Div (x, z)", "c = Div (x, two)", "g = Gather <axis = 1> (x, one)", "k = Gather (x, one)"]
    lines += [
        "n = com.microsoft.MatMulNBits <K = 16, N = 8, bits = 4, block_size = 16> (x, w, scales)",
        "o = custom.Odd (x)",
    ]
    lines += ["wide = Cast <to = 11> (x)", "y = Add (wide, wide)"]
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1, "custom" : 1]>'
    text = (
        f"{head} g (float[1, 4, 16] x, float[1, 4, 16] z, uint8[8, 1, 8] w, float[8] scales) => (double[1, 4, 16] y)"
        "<float two = {2}, float half = {0.5}, float four = {4}, int64[1] one = {1}>"
        f"{{ {chr(10).join(lines)} }}"
    )
    model = Model.from_proto(onnx.parser.parse_model(text))
    check(model)
    refused, open_ = rows(model, "generic-npu")
    operators = {what for _, cause, what in refused if cause == "operator"}
    assert {"Erf", "Exp", "Neg", "Sin", "Sqrt", "Pow", "Div", "Gather"} <= operators
    assert sorted(row[2] for row in open_ if row[1] == "operator") == ["com.microsoft.MatMulNBits", "custom.Odd"]
    assert not {"Relu", "Softmax"} & operators
    assert ("", "opset", "opset 20") in refused


def test_dims_are_frozen_for_it_as_for_the_others(real_model: RealModel) -> None:
    model, spec = (
        real_model("marian-tiny/encoder_model"),
        DimSpec.of(dims={"batch_size": 1, "encoder_sequence_length": 8}),
    )
    found = {name: {one.path for one in blockers(model, name, spec).blockers} for name in (*OTHERS, "generic-npu")}
    assert found.pop("generic-npu") == set.union(*found.values())

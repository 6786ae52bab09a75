"""Values of two models that have one normal form: found under any name, and only where they are equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import model

from graphkit.equivalence import check as module
from graphkit.equivalence.check import shared_values
from graphkit.matching.value_numbering import ConstantNumbers
from graphkit.model import Model, load
from graphkit.model_diff.model_diff import diff
from graphkit.shapes import DimSpec
from graphkit.workflows.compare_models import compare_models
from graphkit.workflows.fold_file import fold_file

PLUMBED = """g (float[batch, width] x) => (float[batch, 8] y) {
    s = Shape (x) b = Gather (s, zero) u = Unsqueeze (b, axis) c = Concat <axis = 0> (u, last)
    r = Reshape (x, c) h = MatMul (r, w) t = Tanh (h) y = Mul (t, t)
}"""
PLAIN = """g (float[n, m] x) => (float[n, 8] y) {
    a = Reshape (x, all) p = MatMul (a, w) q = Tanh (p) y = Mul (q, q)
}"""
NUMBERS = {
    "zero": np.array(0), "axis": np.array([0]), "last": np.array([-1]), "all": np.array([0, -1]),
    "w": np.arange(48, dtype=np.float32).reshape(6, 8),
}  # fmt: skip


def made(text: str, **numbers: np.ndarray) -> Model:
    return model(text, **{name: each for name, each in {**NUMBERS, **numbers}.items() if name in text})


def names(a: Model, b: Model, *rest: object) -> dict[str, str]:
    return {mine.name: theirs.name for mine, theirs in shared_values(a, b, ConstantNumbers(), *rest)}  # type: ignore[arg-type]


def test_values_of_other_names_and_plumbing_are_found() -> None:
    assert names(made(PLUMBED), made(PLAIN)) == {"r": "a", "h": "p", "t": "q", "y": "y"}


def test_what_is_computed_from_another_weight_is_not() -> None:
    assert names(made(PLUMBED), made(PLAIN, w=NUMBERS["w"] + 1)) == {"r": "a"}


@pytest.mark.parametrize(("more", "is_found"), [(0, True), (1, False)])
def test_large_weights_are_known_by_their_bytes(more: int, is_found: bool, tmp_path: Path) -> None:
    weight = np.zeros((200, 200), np.float32)
    pair = []
    for name, last in (("a", 0), ("b", more)):
        weight[-1, -1] = last
        each = model(
            f"g (float[n, 200] x) => (float[n, 200] y) {{ {name} = MatMul (x, w) y = Neg ({name}) }}", w=weight
        )
        onnx.save(each.proto, tmp_path / f"{name}.onnx")
        pair.append(load(tmp_path / f"{name}.onnx"))
    assert names(*pair) == ({"a": "b", "y": "y"} if is_found else {})


def test_what_is_equal_at_some_sizes_alone_is_found_at_these() -> None:
    head = "g (float[n, 6] x) => (float[m, 6] y)"
    cut = model(f"{head} {{ a = Slice (x, zero, three) y = Tanh (a) }}", zero=np.array([0]), three=np.array([3]))
    whole = model(f"{head} {{ b = Identity (x) y = Tanh (b) }}")
    assert names(cut, whole) == {}
    assert names(cut, whole, DimSpec.of(dims={"n": 3})) == {"a": "b", "y": "y"}


def test_what_is_equal_up_to_rounding_is_found_too() -> None:
    before = made("g (float[n, 6] x) => (float[n, 8] y) { h = MatMul (x, w) y = Add (h, b) }", b=np.ones(8, np.float32))
    after = made("g (float[n, 6] x) => (float[n, 8] z) { z = Gemm (x, w, b) }", b=np.ones(8, np.float32))
    assert names(before, after) == {"y": "z"}


def test_inputs_may_have_other_names() -> None:
    after = made(PLAIN.replace("(x, all)", "(data, all)").replace("[n, m] x", "[n, m] data"))
    assert names(made(PLUMBED), after) == {}
    assert names(made(PLUMBED), after, DimSpec(), {"data": "x"}) == {"r": "a", "h": "p", "t": "q", "y": "y"}


def test_of_equal_values_those_of_one_name_and_operator_belong_together() -> None:
    head = "g (float[n] x) => (float[n] y)"
    before = model(f"{head} {{ a = Neg (x) b = Identity (a) c = Neg (x) y = Add (b, c) }}")
    after = model(f"{head} {{ c = Neg (x) d = Neg (x) b = Identity (d) y = Add (b, c) }}")
    assert names(before, after) == {"b": "b", "c": "c", "a": "d", "y": "y"}


def test_known_elements_that_several_values_have_say_nothing() -> None:
    before = made("g (float[n, 6] x) => (int64[1] y, int64[1] z) { s = Shape <start = 1> (x) "
                  "y = Add (s, last) z = Sub (s, axis) }")  # fmt: skip
    after = made("g (float[n, 6] x) => (int64[1] p, int64[1] q) { t = Shape <start = 1> (x) "
                 "p = Add (t, last) q = Sub (t, axis) }")  # fmt: skip
    assert names(before, after) == {"y": "p"}  # s and z are 6, as t and q are


def test_bodies_and_functions_are_looked_through() -> None:
    called = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20, "f" : 1]>
        g (float[n, 6] x) => (float[n, 6] y) { h = f.twice (x) y = Tanh (h) }
        <domain: "f", opset_import: ["" : 20]> twice (a) => (b) { c = Neg (a) b = Exp (c) }""")
    plain = model("g (float[n, 6] x) => (float[n, 6] y) { n = Neg (x) e = Exp (n) y = Tanh (e) }")
    assert names(Model.from_proto(called), plain) == {"h": "e", "y": "y"}


def test_there_are_none_of_what_is_not_sound() -> None:
    assert names(model("g (float[n] x) => (float[n] y) { y = Neg (nothing) }"), made(PLAIN)) == {}


def test_there_are_none_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    assert names(made(PLUMBED), made(PLAIN)) == {}


def scrambled(source: Model) -> Model:
    """Return a model with other names for all that its nodes compute, outputs of the model aside."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source.proto)
    kept = {value.name for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer)}
    others: dict[str, str] = {"": ""} | {name: name for name in kept}
    del proto.graph.value_info[:]
    for node in proto.graph.node:
        node.name = ""
        for values in (node.input, node.output):
            values[:] = [others.setdefault(name, f"other_{len(others)}") for name in values]
    return Model.from_proto(proto, source.path)


@pytest.mark.cases("t5-tiny/encoder_model")
@pytest.mark.parametrize("name", ["qwen2-tiny/model", "t5-tiny/encoder_model"])
def test_a_fold_with_other_names_is_matched(
    name: str, model_file: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name and structure alone, little matches behind the first shapes that were folded."""
    original = load(model_file(name))
    fold_file(original.path, tmp_path / "folded.onnx")  # type: ignore[arg-type]
    folded = scrambled(load(tmp_path / "folded.onnx"))
    found = compare_models(original, folded)
    assert found.passed
    count = len(folded.graph.nodes)
    assert len(found.unmatched_b) < 0.1 * count
    assert len(diff(original, folded).nodes.added) < 0.1 * count
    for room in ("verify.layers.measuring", "model_diff.node_matching"):
        monkeypatch.setattr(f"graphkit.{room}.shared_values", lambda *_, **__: ())
    assert len(compare_models(original, folded).unmatched_b) > 0.8 * count
    assert len(diff(original, folded).nodes.added) > 0.6 * count

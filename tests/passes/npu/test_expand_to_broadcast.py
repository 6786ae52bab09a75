from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.registry import NPU_PASSES
from graphkit.passes.shapes.simplify_expand import ExpandToBroadcast
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer

PASS = ExpandToBroadcast()


def graph(nodes: str, data: str, opset: int = 17, **constants: object) -> Model:
    return model_of(f"g ({data}) => (y) {{ {nodes} }}", opset, **constants)


def expand(to: list[int], data: str = "float[2, 1, 5] x") -> Model:
    return graph("y = Expand (x, to)", data, to=np.array(to, np.int64))


def tile(repeats: list[int], data: str = "float[2, 1, 5] x") -> Model:
    return graph("y = Tile (x, r)", data, r=np.array(repeats, np.int64))


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


GONE = {
    "copies": (expand([2, 4, 5]), ["Concat"]),
    "ones keep": (expand([1, 4, 1]), ["Concat"]),
    "two axes": (expand([3, 4, 5], "float[1, 1, 5] x"), ["Concat", "Concat"]),
    "more axes": (expand([3, 2, 4, 5]), ["Reshape", "Concat", "Concat"]),
    "an axis of 1 more": (expand([1, 2, 1, 5]), ["Reshape"]),
    "nothing": (expand([1, 1, 1]), ["Identity"]),
    "a scalar": (expand([3], "float x"), ["Reshape", "Concat"]),
    "many copies": (expand([2, 40, 5]), ["Mul"]),
    "many copies along two axes": (expand([20, 40, 5], "float[1, 1, 5] x"), ["Mul"]),
    "many and few": (expand([3, 40, 5], "float[1, 1, 5] x"), ["Mul", "Concat"]),
    "booleans": (expand([2, 4, 5], "bool[2, 1, 5] x"), ["Concat"]),
    "integers": (expand([2, 40, 5], "int64[2, 1, 5] x"), ["Mul"]),
    "Tile of ones": (tile([1, 3, 1]), ["Concat"]),
    "Tile of several positions": (tile([2, 1, 3]), ["Concat", "Concat"]),
    "an empty axis beside": (expand([0, 4, 5], "float[0, 1, 5] x"), ["Concat"]),
}


@pytest.mark.parametrize(("model", "expected"), GONE.values(), ids=GONE)
def test_copies_are_made_by_other_nodes(model: Model, expected: list[str]) -> None:
    outcome = check(PASS, model)
    assert operators(outcome.model) == expected
    assert not outcome.declined


def test_a_mul_by_ones_keeps_what_is_no_number() -> None:
    model = expand([2, 40, 5])
    values = np.array([[[np.nan, np.inf, -np.inf, -0.0, 1e-45]]] * 2, np.float32)
    check(PASS, model, feeds=[{"x": values}])


def test_where_consumers_broadcast_nothing_is_left_of_it() -> None:
    model = graph("e = Expand (x, to) y = Add (e, z)", "float[2, 1, 5] x, float[2, 4, 5] z", to=np.array([2, 4, 5]))
    assert lines(check(PASS, model).model) == ["y = Add (x, z)"]


@pytest.mark.parametrize("heads", [1, 2], ids=["one head for all", "two heads"])
def test_shared_heads_are_repeated_in_four_axes(heads: int) -> None:
    nodes = "a = Unsqueeze (x, two) b = Expand (a, to) k = Reshape (b, down) t = Transpose <perm = [0, 1, 3, 2]> (k)"
    model = graph(
        f"{nodes} y = MatMul (q, t)",
        f"float[1, {heads}, 5, 4] x, float[1, {heads * 3}, 1, 4] q",
        two=np.array([2]),
        to=np.array([1, 1, 3, 1, 1]),
        down=np.array([1, heads * 3, 5, 4]),
    )
    outcome = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    shapes = infer(outcome.model)
    assert max(shapes[value].rank or 0 for node in outcome.model.graph.nodes for value in node.outputs if value) == 4
    around = ["Concat", "Reshape"] if heads > 1 else ["Concat"]
    assert operators(outcome.model) == [*around, "Transpose", "MatMul"]


DECLINED = {
    "its dims are not all numbers: [N, 4]": graph("s = Shape (z) y = Expand (x, s)", "float[1, 4] x, float[N, 4] z"),
    "it makes more than 16 copies of several positions": tile([20, 1, 1]),
    "it makes more than 16 copies of what is not multiplied": expand([2, 40, 5], "bool[2, 1, 5] x"),
    "it gives a tensor without elements": expand([2, 0, 5]),
    "it makes 2,097,152 copies": expand([2, 1 << 21, 5]),
}


@pytest.mark.parametrize(("reason", "model"), DECLINED.items(), ids=DECLINED)
def test_what_cannot_be_is_declined(reason: str, model: Model) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [reason]


def test_data_without_elements_gets_no_more_dims() -> None:
    model = expand([1, 1, 0], "float[1, 0] x")  # where a Reshape would take the last 0 for a dim to copy
    assert check(PASS, model).model is model


def test_an_expand_by_data_is_declined() -> None:
    outcome = PASS.run(graph("y = Expand (x, to)", "float[1, 4] x, int64[2] to"))
    assert operators(outcome.model) == ["Expand"]
    assert "its dims are not all numbers" in reasons(outcome)[0]

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from properties import examples
from sessions import session_of

from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.simplify_reshape import MoveReshapeBeforeTranspose

HEADER = '<ir_version: 8, opset_import: ["" : 18]>'


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def model_of(text: str, **constants: object) -> Model:
    proto = parser.parse_model(f"{HEADER} {text}")
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.array(v, np.int64), name) for name, v in constants.items()
    )
    return Model.from_proto(proto)


def turned(first: list[int], perm: list[int], last: list[int], source: str, result: str) -> Model:
    """Return Reshape, Transpose and Reshape of one tensor."""
    return model_of(
        f"g ({source} x) => ({result} y) {{ a = Reshape (x, first) b = Transpose <perm = {perm}> (a) "
        "y = Reshape (b, last) }",
        first=first,
        last=last,
    )


@pytest.mark.parametrize(
    ("perm", "last", "result", "axes", "turns"),
    [
        pytest.param([1, 0, 2], [6, 2, 2, 4], "float[6, 2, 2, 4]", [2, 6, 2, 4], [1, 0, 2, 3], id="split"),
        pytest.param([2, 0, 1], [8, 12], "float[8, 12]", [12, 8], [1, 0], id="merge what lay side by side"),
        pytest.param([1, 0, 2], [6, 1, 2, 8], "float[6, 1, 2, 8]", [2, 6, 1, 8], [1, 2, 0, 3], id="a dim of 1 added"),
        pytest.param([1, 0, 2], [12, 8], "float[12, 8]", None, None, id="merge what did not"),
        pytest.param([1, 0, 2], [4, 3, 8], "float[4, 3, 8]", None, None, id="groups that are not those of the axes"),
    ],
)
def test_a_reshape_moves_before_a_transpose_where_its_groups_stay_together(
    perm: list[int], last: list[int], result: str, axes: list[int] | None, turns: list[int] | None
) -> None:
    model = turned([2, 6, 8], perm, last, "float[96]", result)
    moved = MoveReshapeBeforeTranspose().run(model).model
    if axes is None:
        assert moved is model
        return
    reshape, transpose = moved.graph.nodes
    assert moved.array(reshape.inputs[1].constant).tolist() == axes
    assert list(transpose.attr("perm", tuple)) == turns


def test_with_symbols_the_new_shape_is_a_constant() -> None:
    model = turned([0, -1, 4], [1, 0, 2], [-1, 2, 5, 4], "float[5, N, 8]", "float[N, 2, 5, 4]")
    reshape, transpose = MoveReshapeBeforeTranspose().run(model).model.graph.nodes
    assert list(transpose.attr("perm", tuple)) == [1, 2, 0, 3]
    moved = MoveReshapeBeforeTranspose().run(model).model
    assert moved.array(reshape.inputs[1].constant).tolist() == [5, 0, 2, 4]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "g (float[4, 6] x) => (float[3, 2, 4] y) { a = Transpose <perm = [1, 0]> (x) y = Reshape (a, to) }",
            id="nothing would merge",
        ),
        pytest.param(
            "g (float[24] x) => (float[3, 2, 4] y, float[6, 4] a) { r = Reshape (x, from) "
            "a = Transpose <perm = [1, 0]> (r) y = Reshape (a, to) }",
            id="the transposed tensor is an output",
        ),
    ],
)
def test_it_stays(text: str) -> None:
    model = model_of(text, to=[3, 2, 4], **{"from": [4, 6]})
    assert MoveReshapeBeforeTranspose().run(model).model is model


def test_it_stays_where_a_size_could_not_be_inferred_of_an_empty_tensor() -> None:
    model = turned([0, -1, 4], [1, 0, 2], [0, 0, 2, 2], "float[N, L, 8]", "float[M, N, 2, 2]")
    assert MoveReshapeBeforeTranspose().run(model).model is model


def test_heads_of_multi_head_attention_are_split_by_one_reshape_and_one_transpose() -> None:
    model = model_of(
        """g (float[L, N, 8] x) => (float[N, 2, 4, L] y) {
            s = Shape <start = 0, end = 1> (x) n = Shape <start = 1, end = 2> (x) b = Mul (n, two)
            rows = Concat <axis = 0> (s, b, four) a = Reshape (x, rows) t = Transpose <perm = [1, 0, 2]> (a)
            to = Concat <axis = 0> (n, two, s, four) c = Reshape (t, to) y = Transpose <perm = [0, 1, 3, 2]> (c) }""",
        two=[2],
        four=[4],
    )
    folded = fold(model).model
    assert operators(folded) == ["Reshape", "Transpose"]
    for length, batch in ((5, 3), (1, 1), (5, 0)):
        x = np.random.default_rng(0).random((length, batch, 8), np.float32)
        one, two = (session_of(each).run(None, {"x": x})[0] for each in (model, folded))
        np.testing.assert_array_equal(one, two)


@st.composite
def reshaped_transposes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Return the dims of a tensor, a permutation of them, and dims that a Reshape behind it gives."""
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4))
    perm = draw(st.permutations(range(len(dims))))
    factors = [factor for axis in perm for factor in draw(st.sampled_from(FACTORS[dims[axis]]))]
    cuts = sorted({0, len(factors), *draw(st.sets(st.integers(0, len(factors)), max_size=len(factors)))})
    return dims, list(perm), [math.prod(factors[low:high]) for low, high in pairwise(cuts)]


FACTORS = {1: [[1], [1, 1], []], 2: [[2], [2, 1]], 3: [[3]], 4: [[4], [2, 2]], 6: [[6], [2, 3], [3, 2], [3, 1, 2]]}


@examples(40, 400)
@given(reshaped_transposes())
@example(([1, 1], [0, 1], []))
def test_elements_stay_where_they_are(case: tuple[list[int], list[int], list[int]]) -> None:
    dims, perm, last = case
    model = turned(dims, perm, last, f"float[{math.prod(dims)}]", f"float{last}" if last else "float")
    moved = MoveReshapeBeforeTranspose().run(model).model
    x = np.arange(math.prod(dims), dtype=np.float32)
    expected = x.reshape(dims).transpose(perm).reshape(last)
    np.testing.assert_array_equal(session_of(moved).run(None, {"x": x})[0], expected)

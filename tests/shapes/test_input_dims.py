"""What the inputs of a model declare: names whatever their text, dims that a name stands for, and sizes for each."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from graphs import model
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from sessions import session_of

import graphkit
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import DimSpec, Expr, infer, parse, symbol
from graphkit.shapes.constraints.legal_sizes import symbol_roles
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import claimed_inputs, declare_dim, declared_inputs, input_dims, read_alike, read_dim

ODD = ("-1", "0", "3", "2*n", "n - n", "floor(n)", " n", "(n)", "min(n,4)", "a b", "it's", "'n'", "batch-size", "größe")


def declaring(found: Model, **dims: Sequence[str | int | None]) -> Model:
    """Return a model whose inputs declare other dims."""
    for info in found.proto.graph.input:
        for declared, dim in zip(info.type.tensor_type.shape.dim, dims.get(info.name, ()), strict=False):
            declared.Clear()
            if isinstance(dim, int):
                declared.dim_value = dim
            elif dim is not None:
                declared.dim_param = dim
    return Model.from_proto(found.proto)


def texts(found: Model) -> dict[str, list[str]]:
    return {name: list(map(str, dims or ())) for name, dims in input_dims(found).items()}


SHAPES = """g (float[a, b] x, float[c] z, float[d] u) => (int64[2] s, int64[1] t, float[k] flat) {
    s = Shape (x)  t = Shape (z)  all = Constant <value_ints = [-1]> ()  flat = Reshape (x, all)
}"""


@pytest.mark.parametrize("name", ODD)
def test_a_name_is_a_name_whatever_its_text(name: str) -> None:
    made = declaring(model(SHAPES), x=[name, "b"])
    assert input_dims(made)["x"] == (symbol(name), symbol("b"))
    shapes = infer(made)
    assert shapes["s"].elements == (symbol(name), symbol("b"))
    assert parse(str(shapes["flat"].dims[0])) == symbol(name) * symbol("b")
    folded = graphkit.fold(made).model
    feeds = {"x": np.ones((5, 2), np.float32), "z": np.ones(3, np.float32), "u": np.ones(4, np.float32)}
    assert [list(each) for each in session_of(folded).run(["s", "t"], feeds)] == [[5, 2], [3]]
    fixed = graphkit.fold(made, dims={name: 7}).model
    assert [dim.dim_value for dim in fixed.proto.graph.input[0].type.tensor_type.shape.dim] == [7, 0]


def test_an_expression_is_one_in_names_of_other_dims() -> None:
    found = declaring(model(SHAPES), x=["d + c", "2*m"])
    assert texts(found)["x"] == ["c + d", "'2*m'"]
    assert str(infer(found)["flat"]) == "['2*m'*c + '2*m'*d]"
    assert Inputs(found, DimSpec.of({"d": 2, "2*m": 5})).numbers == {"d": 2, "2*m": 5}


@pytest.mark.parametrize("dim", [None, -1, "?", "?1.Shape_3"])
def test_a_dim_without_a_name_is_called_by_its_place(dim: str | int | None) -> None:
    found = declaring(model(SHAPES), x=[dim, dim])
    assert texts(found)["x"] == ["x.0", "x.1"]
    assert Inputs(found, DimSpec.of({"x.1": 4})).numbers == {"x.1": 4}


def test_no_size_is_a_size() -> None:
    found = declaring(model(SHAPES), x=[0, "b"])
    assert texts(found)["x"] == ["0", "b"]
    assert str(infer(found)["flat"]) == "[0]"


def test_a_place_has_another_name_where_a_dim_is_called_so() -> None:
    found = declaring(model(SHAPES), x=["z.0", "x.1"], z=[None])
    assert texts(found) == {"x": ["z.0", "x.1"], "z": ["'z.0'''"], "u": ["d"]}


TWO = """g (float[n, 4] x, float[n, 4] z) => (float[a, 4] y, float[b, 4] w) {{ {} }}"""
RELATED = {
    "a sum": "y = Add (x, z)  w = Neg (z)",
    "a sum that is made of them": "a = Neg (x)  b = Abs (z)  y = Mul (a, b)  w = Neg (z)",
    "rows side by side": "y = Concat <axis = 1> (x, z)  w = Neg (z)",
    "products of the same dims": "m = Constant <value_ints = [-1]> ()  a = Reshape (x, m)  b = Reshape (z, m) "
    "y = Sub (a, b)  w = Neg (z)",
    "an operator without a rule": "y = custom.Both (x, z)  w = Neg (z)",
}
APART = {
    "nothing": "y = Neg (x)  w = Neg (z)",
    "rows after each other": "y = Concat <axis = 0> (x, z)  w = Neg (z)",
    "pieces of one for each of the other": "s = Shape <end = 1> (x)  t = Shape <end = 1> (z)  d = Div (s, t)"
    "  f = Constant <value_ints = [4]> ()  c = Concat <axis = 0> (t, d, f)  y = Reshape (x, c)  w = Neg (z)",
    "rows of a table": "i = Cast <to = 7> (z)  y = Gather (x, i)  w = Neg (z)",
}


@pytest.mark.parametrize("body", RELATED.values(), ids=RELATED)
def test_dims_of_one_name_are_one_where_a_node_relates_them(body: str) -> None:
    assert texts(model(TWO.format(body))) == {"x": ["n", "4"], "z": ["n", "4"]}


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_dims_of_one_name_that_no_node_relates_are_two(body: str) -> None:
    found = model(TWO.format(body))
    assert texts(found) == {"x": ["n", "4"], "z": ["z.0", "4"]}
    assert {name: list(map(str, dims or ())) for name, dims in claimed_inputs(found).dims.items()}["z"] == ["n", "4"]


def test_roles_say_that_dims_of_one_name_are_one() -> None:
    found = model("""g (int64[b, s] input_ids, int64[b, s] attention_mask, float[b, 2, s, 4] past_key_0,
        float[b, 2, 1, 4] new) => (float[a, d, e, f] present_key_0, int64[k, l] y) {
            present_key_0 = Concat <axis = 2> (past_key_0, new)  y = Neg (input_ids)  m = Neg (attention_mask)
        }""")
    assert texts(found) == {
        "input_ids": ["b", "s"],
        "attention_mask": ["b", "attention_mask.1"],
        "past_key_0": ["b", "2", "past_key_0.2", "4"],
        "new": ["b", "2", "1", "4"],
    }
    assert symbol_roles(found)["attention_mask.1"] == "total"


SQUARE = "g (float[n, n] x, float[n] z) => (float[a, b] y, float[c] w) { y = Neg (x)  w = Neg (z) }"


@pytest.mark.parametrize(
    ("spec", "numbers"),
    [
        (DimSpec.of({"n": 3}), {"n": 3, "x.1": 3, "z.0": 3}),
        (DimSpec.of({"x.1": 5}), {"x.1": 5}),
        (DimSpec.of({"n": 3, "z.0": 5}), {"n": 3, "x.1": 3, "z.0": 5}),
        (DimSpec.of({"x.0": 2, "x.1": 3}), {"x.0": 2, "x.1": 3}),
        (DimSpec.of(inputs={"x": (2, 3)}), {"n": 2, "x.1": 3}),
        (DimSpec.of({"z.0": 4}, {"x": (2, 3)}), {"n": 2, "x.1": 3, "z.0": 4}),
    ],
)
def test_a_name_means_all_of_its_dims_and_a_place_one(spec: DimSpec, numbers: dict[str, int]) -> None:
    assert Inputs(model(SQUARE), spec).numbers == numbers


def test_a_place_is_one_dim_though_nodes_relate_it_to_others() -> None:
    found = model("g (float[n, 4] x, float[n, 4] z) => (float[a, 4] y) { y = Add (x, z) }")
    assert Inputs(found, DimSpec.of({"n": 2})).numbers == {"n": 2}
    assert Inputs(found, DimSpec.of({"z.0": 1})).numbers == {"z.0": 1}
    assert str(infer(found, dims={"z.0": 1})["y"]) == "[n, 4]"
    with pytest.raises(UsageError, match="a dim of input 'z' is n, which is 2 as given elsewhere - it cannot be 1 too"):
        Inputs(found, DimSpec.of({"n": 2}, {"z": (1, 4)}))


def test_a_place_that_is_a_number_or_an_expression_has_its_size() -> None:
    found = declaring(model(SHAPES), x=["d + 1", 3])
    assert Inputs(found, DimSpec.of({"x.0": 5})).numbers == {"d": 4}
    assert Inputs(found, DimSpec.of({"x.1": 3})).numbers == {}
    with pytest.raises(UsageError, match="a dim of input 'x' is 3 - it cannot be 4"):
        Inputs(found, DimSpec.of({"x.1": 4}))
    with pytest.raises(UsageError, match=r"no input has a dim 'x\.2' - "):
        Inputs(found, DimSpec.of({"x.2": 4}))


def test_bounds_of_a_name_are_those_of_all_of_its_dims() -> None:
    shapes = infer(model(SQUARE), ranges={"n": (2, 8), "z.0": (1, 4)})
    found = [dim for name in "xz" for dim in shapes[name].dims or ()]
    assert [(each.name, each.lower, each.upper) for dim in found for each in dim.walk_symbols()] == [
        ("n", 2, 8),
        ("x.1", 2, 8),
        ("z.0", 1, 4),
    ]


def test_a_model_and_its_rewrite_are_read_by_the_same_symbols() -> None:
    before = model(TWO.format(RELATED["a sum"]))
    after = model(TWO.format(APART["nothing"]))
    assert [str(read.dims["z"][0]) for read in read_alike(before, after)] == ["n", "n"]
    assert [str(read.dims["z"][0]) for read in read_alike(before, after, dims="apart")] == ["z.0", "z.0"]
    assert [str(read.dims["z"][0]) for read in read_alike(after, before)] == ["z.0", "z.0"]
    assert [str(read.dims["z"][0]) for read in read_alike(after, before, dims="named")] == ["n", "n"]
    fixed = declaring(model(TWO.format(RELATED["a sum"])), x=[3, 4])
    assert [str(read.dims["x"][0]) for read in read_alike(before, fixed)] == ["x.0", "3"]


@pytest.mark.parametrize("dim", [symbol("n"), symbol("2*n"), symbol("2*n") + 1, 2 * symbol("n"), Expr.of(7)])
def test_what_is_declared_is_read_as_the_same(dim: Expr) -> None:
    made = onnx.TensorShapeProto.Dimension()
    declare_dim(made, dim, {"n", "2*n"})
    if dim == 2 * symbol("n"):  # that is the name of another dim
        assert made.WhichOneof("value") is None
    else:
        assert read_dim(made.dim_param or made.dim_value, {"n", "2*n"}) == dim


TEXTS = st.text(st.sampled_from("an01-+*/ '(),.?é"), min_size=1, max_size=6)


@examples(30, 300)
@given(st.lists(TEXTS, min_size=3, max_size=3), st.integers(0, 2**20))
def test_any_texts_are_read_folded_and_run(names: list[str], seed: int) -> None:
    """Whatever dims are called, a fold gives what the original gives, at sizes that the names do not tell."""
    made = declaring(model(SHAPES), x=names[:2], z=names[2:])
    folded = graphkit.fold(made).model
    declared = declared_inputs(made)
    for name, dims in declared.dims.items():
        for dim in dims or ():
            assert parse(str(dim)) == dim or dim.name is not None, (name, dim)
    rng = random.Random(seed)
    for _ in range(3):
        feeds = {
            "x": np.ones((rng.randint(0, 5), rng.randint(0, 5)), np.float32),
            "z": np.ones(rng.randint(0, 5), np.float32),
            "u": np.ones(rng.randint(1, 5), np.float32),
        }
        right, found = (session_of(each).run(None, feeds) for each in (made, folded))
        for one, two in zip(right, found, strict=True):
            np.testing.assert_array_equal(one, two, strict=True)

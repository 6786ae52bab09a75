from __future__ import annotations

import numpy as np
import pytest
from onnx import printer
from rewriting import check, model_of

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import SetDims

JOINED = """
agraph (float[A, L] x, float[B, K] z) => (float[M, N] y) {
    y = Concat <axis = 1> (x, z)
}"""


def head(model: Model) -> str:
    return " ".join(printer.to_text(model.proto.graph).replace('"', "").split()).partition(" {")[0]


def refused(model: Model, step: SetDims) -> str:
    with pytest.raises(UsageError) as error:
        step.run(model)
    return str(error.value).removeprefix(f"{model.label}: ")


def test_what_the_graph_forces_gets_its_size_and_outputs_follow() -> None:
    outcome = check(SetDims((("A", 2),)), model_of(JOINED), [{"A": 2, "B": 2, "K": 3, "L": 3}])
    assert head(outcome.model) == "agraph (float[2,L] x, float[2,K] z) => (float[2,K + L] y)"
    assert outcome.changes == (
        "A is 2",
        "B is 2, for the graph forces it",
        "1 output redeclared with the inferred dims",
    )


def test_shapes_of_inputs_set_their_symbols() -> None:
    outcome = SetDims((), (("x", (2, 3)),)).run(model_of(JOINED))
    assert head(outcome.model) == "agraph (float[2,3] x, float[2,K] z) => (float[2,K + 3] y)"


def test_a_dim_without_a_symbol_is_set_by_its_place() -> None:
    model = model_of(JOINED)
    model.proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    outcome = SetDims((("x.0", 2),)).run(Model.from_proto(model.proto))
    assert head(outcome.model) == "agraph (float[2,L] x, float[2,K] z) => (float[2,K + L] y)"


def named(model: Model, *names: str) -> Model:
    """Return a model whose input dims have these names, in their order."""
    dims = [dim for info in model.proto.graph.input for dim in info.type.tensor_type.shape.dim]
    for dim, name in zip(dims, names, strict=True):
        dim.dim_param = name
    return Model.from_proto(model.proto)


@pytest.mark.parametrize("name", ["-1", "7", "2*n"])
def test_a_dim_may_be_called_anything(name: str) -> None:
    outcome = SetDims(((name, 2),)).run(named(model_of(JOINED), "A", name, "B", "K"))
    assert head(outcome.model) == "agraph (float[A,2] x, float[B,K] z) => (float[A,K + 2] y)"


@pytest.mark.parametrize("name", ["?", "None", "dyn"])
def test_one_of_several_dims_of_one_name_is_set_by_its_place(name: str) -> None:
    model = named(model_of(JOINED), "A", name, "B", name)
    outcome = SetDims((("z.1", 3),)).run(model)
    assert outcome.model.proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param == name
    assert outcome.model.proto.graph.input[1].type.tensor_type.shape.dim[1].dim_value == 3


def test_all_dims_of_one_name_may_be_set_by_their_places() -> None:
    model = named(model_of("agraph (float[A, B] x) => (float[A, B] y) { y = Neg (x) }"), "dyn", "dyn")
    assert head(SetDims((("x.0", 2), ("x.1", 3))).run(model).model) == "agraph (float[2,3] x) => (float[2,3] y)"


def test_a_place_of_a_name_that_nodes_relate_has_the_size_that_they_force() -> None:
    model = named(model_of(JOINED), "N", "L", "N", "K")
    assert head(SetDims((("x.0", 2),)).run(model).model) == "agraph (float[2,L] x, float[2,K] z) => (float[2,K + L] y)"
    assert refused(model, SetDims((("x.0", 2), ("z.0", 3)))) == (
        "it cannot run with x.0=2, z.0=3: the graph needs x.0 = z.0 - give other sizes"
    )


def test_dims_of_one_name_are_all_set_by_it() -> None:
    outcome = SetDims((("None", 3),)).run(named(model_of(JOINED), "A", "None", "B", "None"))
    assert head(outcome.model) == "agraph (float[A,3] x, float[B,3] z) => (float[A,6] y)"


def test_dims_that_only_broadcast_are_not_forced() -> None:
    model = model_of("agraph (float[A] x, float[B] z) => (float[M] y) { y = Add (x, z) }")
    assert head(SetDims((("A", 2),)).run(model).model) == "agraph (float[2] x, float[B] z) => (float[2] y)"


def test_nodes_stay() -> None:
    model = model_of("agraph (float[N] x) => (int64[1] y) { y = Shape (x) }")
    assert [node.op_type for node in SetDims((("N", 3),)).run(model).model.graph.nodes] == ["Shape"]


def test_a_size_of_zero_is_a_size() -> None:
    outcome = check(SetDims((("L", 0), ("K", 0))), model_of(JOINED), [{"A": 2, "B": 2, "K": 0, "L": 0}])
    assert (
        head(outcome.model) == "agraph (float[A,0] x, float[B,0] z) => (float[?,0] y)"
    )  # whose dims may differ, without elements


WINDOW = "agraph (float[N, 1, L] x) => (float[N, 1, M] y) { y = Conv (x, kernel) }"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (SetDims((("Q", 2),)), "no input has a dim 'Q' - there are A, B, K, L"),
        (SetDims((), (("q", (2,)),)), "there is no input 'q' - there are x, z"),
        (SetDims((), (("x", (2,)),)), "input 'x' has 2 dims - 2 has 1"),
        (
            SetDims((("A", 2), ("B", 3))),
            "it cannot run with A=2, B=3: the graph needs A = B - give other sizes",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(step: SetDims, reason: str) -> None:
    assert refused(model_of(JOINED), step) == reason


def test_a_size_that_breaks_a_precondition_is_refused_with_the_node() -> None:
    model = model_of(WINDOW, kernel=np.ones((1, 1, 5), np.float32))
    assert SetDims((("L", 5),)).run(model).changes[0] == "L is 5"
    assert refused(model, SetDims((("L", 3),))) == (
        "it cannot run with L=3: 'Conv#0': windows that fit: -1 is less than 1 - give other sizes (L: 5 or more)"
    )


def test_a_size_that_another_dim_cannot_follow_is_refused() -> None:
    model = model_of("""
        agraph (float[N, A] x, float[N, B] z) => (float[N, M] y) {
            twice = Concat <axis = 1> (x, x)
            stacked = Concat <axis = 0> (twice, z)
            y = Neg (stacked)
        }""")
    assert head(SetDims((("B", 4),)).run(model).model).startswith("agraph (float[N,2] x, float[N,4] z)")
    assert refused(model, SetDims((("B", 3),))) == (
        "it cannot run with B=3: 'A' would have to be 3/2 - give other sizes"
    )


def test_nothing_to_set_gives_the_same_model() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Neg (x) }")
    assert SetDims().run(model).model is model

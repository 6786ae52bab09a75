"""What a hostile model cannot make of the shape engine: time, memory, tracebacks."""

from __future__ import annotations

import time
from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from graphs import model, shapes
from onnx import TensorProto, helper

from graphkit.analysis.hazards import hazards
from graphkit.model import Model
from graphkit.shapes import Expr, const, infer, maximum, symbol
from graphkit.symbolic.algebra import lower
from graphkit.symbolic.expr import MAX_ARGS, MAX_NUMBER, TooComplexError

SECONDS = 10  # of processor time: what took minutes takes less than one
COUNT = 200


def chain(make: Callable[[int], list[onnx.NodeProto]], rank: int = 1) -> Model:
    """Return a model of many inputs, each with symbols of its own."""
    inputs = [helper.make_tensor_value_info(f"x{n}", 1, [f"d{n}_{axis}" for axis in range(rank)]) for n in range(COUNT)]
    nodes = [node for number in range(1, COUNT) for node in make(number)]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=nodes[-1].output[0])])
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def linked(op: str, **attributes: object) -> Callable[[int], list[onnx.NodeProto]]:
    return lambda number: [
        helper.make_node(op, [f"a{number - 1}" if number > 1 else "x0", f"x{number}"], [f"a{number}"], **attributes)
    ]


def all_in_one(number: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Sum", [f"x{n}" for n in range(COUNT)], ["y"])] if number == COUNT - 1 else []


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "make",
    [all_in_one, linked("Add"), linked("Concat", axis=0), linked("MatMul")],
    ids=["Sum", "Add", "Concat", "MatMul"],
)
@pytest.mark.parametrize("rank", [1, 2])
def test_many_symbols_take_no_time(make: Callable[[int], list[onnx.NodeProto]], rank: int) -> None:
    start = time.process_time()
    found = infer(chain(make, rank))
    hazards(found.model, shapes=found)
    assert time.process_time() - start < SECONDS


@pytest.mark.slow
def test_functions_that_double_at_each_level_take_no_time() -> None:
    head = '<domain: "local", opset_import: ["" : 18, "local" : 1]>'
    calls = [f"{head} f{n}(a) => (c) {{ b = local.f{n + 1}(a) c = local.f{n + 1}(b) }}" for n in range(25)]
    text = f"g (float[b] x) => (y) {{ y = local.f0(x) }} {' '.join(calls)} {head} f25(a) => (c) {{ c = Neg(a) }}"
    start = time.process_time()
    assert "take too long" in shapes(text).reason("y")
    assert time.process_time() - start < SECONDS


def test_a_function_that_calls_itself_twice_takes_no_time() -> None:
    text = "g (float[b] x) => (y) { y = local.f(x) } "
    text += '<domain: "local", opset_import: ["" : 18, "local" : 1]> f(a) => (c) { b = local.f(a) c = local.f(b) }'
    start = time.process_time()
    assert "calls itself" in shapes(text).reason("y")
    assert time.process_time() - start < SECONDS


def test_too_many_dims_that_broadcast_are_an_unknown_of_known_rank() -> None:
    found = infer(chain(linked("Add")))
    assert found[f"a{COUNT - 1}"].rank == 1
    assert "too many dims broadcast" in found.reason(f"a{COUNT - 1}")


def test_hazards_are_not_looked_for_among_too_many_symbols() -> None:
    assert hazards(chain(linked("MatMul"), 2)).undecided.startswith("Not looked for: 398 symbols and 199 preconditions")


def test_squares_of_a_dim_do_not_grow() -> None:
    squares = "\n".join(f"p{n + 1} = Mul (p{n}, p{n})" for n in range(34))
    found = shapes(f"g (float[past] x) => (y) {{ p0 = Shape (x) {squares} y = ConstantOfShape (p34) }}")
    assert [str(found[f"p{n}"].data.item())[:1] for n in (2, 3, 34)] == ["p", "?", "?"]
    assert all(len(str(found[f"p{n}"])) < 1000 for n in range(35))


def test_numbers_beyond_64_bits_are_no_expressions() -> None:
    n = symbol("n")
    with pytest.raises(TooComplexError):
        n * (MAX_NUMBER + 1)
    with pytest.raises(TooComplexError):
        const(MAX_NUMBER) * 2
    with pytest.raises(TooComplexError):
        n * MAX_NUMBER * 2


def test_a_max_of_too_many_is_no_expression() -> None:
    result: Expr = symbol("s0")
    for number in range(1, MAX_ARGS):
        result = maximum(result, symbol(f"s{number}"))
    with pytest.raises(TooComplexError):
        maximum(result, symbol("one more"))


def test_bounds_of_many_choices_take_no_time() -> None:
    total, start = const(0), time.process_time()
    for number in range(12):
        total = total - maximum(*(symbol(f"s{number}_{arg}", 0, 9) for arg in range(6)))
    assert lower(total) == -108
    assert time.process_time() - start < SECONDS


def test_a_chain_of_unknowns_tells_where_it_began_and_stays_short() -> None:
    nodes = "\n".join(f"v{n + 1} = Transpose (v{n})" for n in range(500))
    found = shapes(f"g (float[] x) => (v500) {{ v0 = Transpose (x) {nodes} }}")
    reason = found.reason("v500")
    assert reason.endswith("the input 'x' is declared without rank")
    assert len(reason) < 400


def test_why_follows_each_value_once() -> None:
    nodes = "\n".join(f"v{n + 1} = Add (v{n}, v{n})" for n in range(60))
    found = shapes(f"g (float[N] v0) => (v60) {{ {nodes} }}")
    assert found.why("v60")[:2] == ("v0: [N], an input", "v1: [N], Add of v0, v0")
    assert len(found.why("v60")) == 61


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "sizes = Constant <value_ints = [-1000000000000, 1000000000002]> () y, z = Split <axis = 0> (s, sizes)",
            "negative",
        ),
        ("y = Shape <start = 1.5> (x)", "attribute 'start' is of another kind"),
        ('y = Concat <axis = "0"> (s, s)', "attribute 'axis' is of another kind"),
        ("p = Constant <value_floats = [0.5, 0.5]> () y = Pad (x, p)", "0.5 is not an integer"),
        ("r = Constant <value_floats = [0.5]> () y = Tile (x, r)", "0.5 is not an integer"),
        ("y = MaxUnpool <kernel_shape = [2]> (x)", "onnx cannot infer MaxUnpool"),
    ],
)
def test_what_does_not_fit_is_unknown_with_a_reason(text: str, reason: str) -> None:
    found = shapes(f"g (float[N] x) => (y) {{ s = Shape (x) {text} }}")
    assert reason in found.reason("y")


def test_an_empty_tensor_of_dims_that_numpy_cannot_have() -> None:
    made = model("g (float[N] x) => (y) { y = Add (at, at) }")
    dims = [0, 1 << 62, 1 << 62]
    made.proto.graph.initializer.append(TensorProto(name="at", data_type=TensorProto.INT64, dims=dims))
    assert str(infer(Model.from_proto(made.proto))["y"]) == f"[{', '.join(map(str, dims))}]"


def test_an_empty_input_of_dims_that_numpy_cannot_have() -> None:
    made = model(f"g (int64[0, {1 << 62}, {1 << 62}] x) => (y) {{ y = Neg (x) }}")
    assert str(infer(made)["y"]) == f"[0, {1 << 62}, {1 << 62}]"


def test_the_fill_of_a_constant_may_lie_in_a_file_that_is_missing() -> None:
    made = model(
        "g (float[N] x) => (y) { s = Constant <value_ints = [3]> () y = ConstantOfShape <value = int64[1] {7}> (s) }"
    )
    fill = made.proto.graph.node[1].attribute[0].t
    fill.data_location = TensorProto.EXTERNAL
    fill.external_data.add(key="location", value="missing.bin")
    assert str(infer(Model.from_proto(made.proto))["y"]) == "[3]"

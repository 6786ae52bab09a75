from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser
from properties import examples
from rewriting import lines, model_of
from sessions import session_of

from graphkit.model import Model
from graphkit.passes.shapes.rematerialize_shapes import DimsEmitter
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.shapes import Expr, const, maximum, minimum, symbol

onnxruntime.set_default_logger_severity(4)
A, B, PAST = symbol("a"), symbol("b"), symbol("past")
INT64, INT32 = TensorProto.INT64, TensorProto.INT32
LEAVES = st.one_of(st.sampled_from([A, B, PAST]), st.integers(-9, 9).map(const))


def divided(pair: tuple[Expr, Expr]) -> Expr:
    return pair[0] // pair[1]


def rest(pair: tuple[Expr, Expr]) -> Expr:
    return pair[0] % pair[1]


def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(inner, inner)
    divisors = st.one_of(st.integers(1, 7).map(const), st.sampled_from([A, B, A + B, A * 2, B + 3]))
    fractions = st.tuples(inner, divisors)
    return st.one_of(
        pairs.map(lambda pair: pair[0] + pair[1]),
        pairs.map(lambda pair: pair[0] - pair[1]),
        pairs.map(lambda pair: pair[0] * pair[1]),
        fractions.map(divided),
        fractions.map(rest),
        pairs.map(lambda pair: minimum(*pair)),
        pairs.map(lambda pair: maximum(*pair)),
    )


EXPRESSIONS = st.recursive(LEAVES, grown, max_leaves=7)
TEXT = "g (float[a, b] x, float[past, 2] z, float[1] w) => (float[a, b] y) { y = Neg (x) }"


def emitted(elements: list[Expr], opset: int, rank: int = 1, dtype: int = INT64) -> Model:
    """Return a model whose only output has these elements."""
    model = model_of(TEXT, opset)
    editor = Editor(model)
    emitter = DimsEmitter(editor)
    assert emitter.can_emit(elements)
    name = emitter.tensor(elements, rank, dtype)
    for node in emitter.nodes:
        editor.insert_first(model.graph, node)
    (node,) = model.graph.nodes
    editor.replace(node, NewNode("Identity", [name], ["y"]))
    proto = editor.result().proto
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, [None] * rank))
    onnx.checker.check_model(proto, full_check=True)
    return Model.from_proto(proto)


def values(model: Model, sizes: dict[str, int]) -> np.ndarray:
    session = session_of(model)
    shapes = {"x": (sizes["a"], sizes["b"]), "z": (sizes["past"], 2), "w": (1,)}
    return session.run(None, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})[0]


SIZES = [
    {"a": 1, "b": 1, "past": 0},
    {"a": 3, "b": 2, "past": 5},
    {"a": 2, "b": 7, "past": 1},
    {"a": 4, "b": 1, "past": 3},
]


@examples(15, 60)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=3), st.sampled_from([9, 10, 11, 12, 13, 15, 18, 21]))
def test_nodes_compute_what_expressions_say(elements: list[Expr], opset: int) -> None:
    assume(DimsEmitter(Editor(model_of(TEXT, opset))).can_emit(elements))
    model = emitted(elements, opset)
    for sizes in SIZES:
        assert values(model, sizes).tolist() == [element.evaluate(sizes) for element in elements]


@examples(20, 40)
@given(EXPRESSIONS)
def test_from_opset_12_whatever_the_symbols_lead_to_can_be_computed(expr: Expr) -> None:
    assert DimsEmitter(Editor(model_of(TEXT, 12))).can_emit([expr])


# Nodes


def nodes(elements: list[Expr], opset: int = 17, rank: int = 1, dtype: int = INT64) -> list[str]:
    quoted = [
        line.partition("] ")[2] if line.startswith("[") else line
        for line in lines(emitted(elements, opset, rank, dtype))
    ]
    return [line.replace('"', "") for line in quoted]


def test_a_symbol_is_a_slice_of_a_shape() -> None:
    assert nodes([A]) == ["dims/a = Shape <end: int = 1, start: int = 0> (x)", "y = Identity (dims/a)"]


def test_below_opset_15_a_symbol_is_gathered_from_a_shape() -> None:
    assert nodes([A, B], 14)[:3] == [
        "dims/shape of x = Shape (x)",
        "dims/a = Gather <axis: int = 0> (dims/shape of x, dims/0)",
        "dims/b = Gather <axis: int = 0> (dims/shape of x, dims/1)",
    ]


def test_numbers_that_stand_together_are_one_constant() -> None:
    assert (
        nodes([const(2), const(3), A, const(4)])[1] == "dims/2,3,a,4 = Concat <axis: int "
        "= 0> (dims/2,3, dims/a, dims/4)"
    )


def test_what_occurs_twice_is_computed_once() -> None:
    made = nodes([A * B + 1, A * B, A * B + 1])
    assert [line.split(" = ")[0] for line in made] == [
        "dims/a", "dims/b", "dims/a*b", "dims/a*b + 1", "dims/a*b + 1,a*b,a*b + 1", "y"
    ]  # fmt: skip


def test_a_scalar_is_squeezed_and_a_narrow_type_cast() -> None:
    assert [line.split(" (")[0] for line in nodes([A], rank=0, dtype=INT32)[1:]] == [
        "dims/a_scalar = Squeeze",
        "dims/a_cast = Cast <to: int = 6>",
        "y = Identity",
    ]


def test_what_may_be_negative_is_rounded_down() -> None:
    """Div cuts off towards zero."""
    assert nodes([(A - B) // 2])[2:] == [
        "dims/a - b = Sub (dims/a, dims/b)",
        "dims/a - b % 2 = Mod (dims/a - b, dims/2)",
        "dims/a - b - rest = Sub (dims/a - b, dims/a - b % 2)",
        "dims/(a - b) // 2 = Div (dims/a - b - rest, dims/2)",
        "y = Identity (dims/(a - b) // 2)",
    ]


def test_one_input_is_read_for_several_symbols() -> None:
    text = "g (float[a] v, float[b] u, float[a, b] x) => (float[a, b] y) { y = Neg (x) }"
    editor = Editor(model_of(text))
    emitter = DimsEmitter(editor)
    emitter.tensor([A, B], 1, INT64)
    assert len({node.inputs[0] for node in emitter.nodes if node.op_type == "Shape"}) <= 2


# What cannot be computed

REFUSED = {
    "a symbol of no input": ([symbol("elsewhere")], 17),
    "a symbol inside an expression only": ([symbol("inner")], 17),
    "a divisor that may be 0": ([A // PAST], 17),
    "a divisor that may be negative": ([A // (B - 2)], 17),
    "a rest of a divisor that may be 0": ([A % PAST], 17),
    "min below opset 12": ([minimum(A, B)], 11),
    "max below opset 12": ([maximum(A, B)], 11),
    "a negative dividend below opset 10": ([(A - B) // 2], 9),
    "a number outside of int64": ([A + 2**63], 17),
    "the least int64": ([A - 2**63], 17),
    "a factor outside of int64": ([A * 2**64], 17),
    "one of several": ([A, symbol("elsewhere")], 17),
}


@pytest.mark.parametrize(("elements", "opset"), REFUSED.values(), ids=REFUSED)
def test_what_no_node_can_compute_is_refused(elements: list[Expr], opset: int) -> None:
    text = TEXT.replace("float[1] w", 'float["inner + 1"] w')
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    assert not DimsEmitter(Editor(Model.from_proto(proto))).can_emit(elements)


def test_inputs_that_are_no_tensors_give_no_symbols() -> None:
    text = "g (seq(float[a]) s, float[] u, float[b] x) => (float[b] y) { y = Neg (x) }"
    emitter = DimsEmitter(Editor(model_of(text)))
    assert (emitter.can_emit([A]), emitter.can_emit([B])) == (False, True)

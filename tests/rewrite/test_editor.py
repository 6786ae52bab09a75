from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rewriting import check, constants, lines, model_of, reasons

from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.clean_up.fold_constants import FoldConstants, FoldShapes
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import MAX_ROUNDS, Rewrite, run_to_fixpoint


def editor_of(text: str, opset: int = 17, ir: int = 8) -> Editor:
    return Editor(model_of(text, opset, ir))


def value(editor: Editor, name: str) -> Value:
    return editor.model.graph.values[name]


def producer(editor: Editor, name: str) -> Node:
    node = value(editor, name).producer
    assert node is not None
    return node


CHAIN = "g (float[N] x) => (float[N] y) { a = Neg (x) b = Abs (a) y = Exp (b) }"


# Edits


def test_without_edits_the_model_is_the_same_one() -> None:
    editor = editor_of(CHAIN)
    assert not editor.is_changed
    assert editor.result() is editor.model


def test_a_value_is_read_instead_of_another_through_several() -> None:
    editor = editor_of(CHAIN)
    editor.replace_all_uses(value(editor, "b"), value(editor, "a"))
    editor.replace_all_uses(value(editor, "a"), value(editor, "x"))
    assert lines(editor.result()) == ["a = Neg (x)", "b = Abs (x)", "y = Exp (x)"]


def test_inputs_are_set_and_added() -> None:
    editor = editor_of("g (float[N] x) => (float[N] y) { y = Clip (x) }")
    bound = editor.constant(np.array(2.0, np.float32), "bound")
    editor.set_inputs(producer(editor, "y"), {1: None, 2: bound})
    assert lines(editor.result()) == ['y = Clip (x, "", bound)']


def test_a_node_is_replaced_by_several() -> None:
    editor = editor_of(CHAIN)
    node = producer(editor, "b")
    name = editor.unique_name("b")
    new = [NewNode("Sin", [node.input(0)], [name]), NewNode("Cos", [name], ["b"], {}, "last", like=node)]
    editor.replace(node, *new)
    assert lines(editor.result()) == ["a = Neg (x)", "b_1 = Sin (a)", "[last] b = Cos (b_1)", "y = Exp (b)"]


def test_nodes_are_put_before_one_and_before_all() -> None:
    editor = editor_of(CHAIN)
    editor.insert_before(producer(editor, "b"), NewNode("Sin", [value(editor, "a")], ["s"]))
    editor.insert_first(editor.model.graph, NewNode("Cos", [value(editor, "x")], ["c"]))
    assert [line[0] for line in lines(editor.result())] == ["c", "a", "s", "b", "y"]


def test_a_node_that_gives_its_name_to_one_before_it_has_none() -> None:
    editor = editor_of(CHAIN)
    editor.model.graph.nodes[1].proto.name = "mine"
    node = producer(editor, "b")
    editor.insert_before(node, NewNode("Sin", [value(editor, "a")], ["s"], like=node))
    assert lines(editor.result())[1:3] == ["[mine] s = Sin (a)", "b = Abs (a)"]


def test_a_renamed_output_is_read_by_its_new_name() -> None:
    editor = editor_of(CHAIN)
    editor.rename(value(editor, "a"), "other")
    assert lines(editor.result()) == ["other = Neg (x)", "b = Abs (other)", "y = Exp (b)"]


def test_what_is_taken_is_not_offered_again() -> None:
    editor = editor_of(CHAIN)
    editor.set_inputs(producer(editor, "a"), {0: value(editor, "x")})
    assert [node.op_type for node in editor.nodes("Neg", "Abs")] == ["Abs"]


def test_forward_keeps_the_name_of_an_output() -> None:
    editor = editor_of(CHAIN)
    editor.bypass(producer(editor, "y"), value(editor, "x"))
    editor.bypass(producer(editor, "b"), value(editor, "x"))
    assert lines(editor.result()) == ["a = Neg (x)", "b = Abs (a)", "y = Identity (x)"]


def test_the_only_reader_is_none_where_an_edit_makes_another() -> None:
    editor = editor_of(CHAIN)
    assert editor.only_reader(value(editor, "a")) is producer(editor, "b")
    assert editor.only_reader(value(editor, "y")) is None  # an output of the graph
    editor.replace(producer(editor, "y"), NewNode("Sin", [value(editor, "a")], ["y"]))
    assert editor.only_reader(value(editor, "a")) is None
    assert editor.only_reader(value(editor, "b")) is producer(editor, "y")


def test_a_reader_in_a_body_is_not_the_only_one() -> None:
    editor = editor_of("""
        g (float[N] x, bool c) => (float[N] y) {
            a = Neg (x)
            y = If (c) < then_branch = t () => (float[N] b) { b = Abs (a) },
                         else_branch = f () => (float[N] e) { e = Exp (x) } >
        }""")
    assert editor.only_reader(value(editor, "a")) is None


def test_what_a_body_gives_as_it_is_has_no_only_reader() -> None:
    editor = editor_of("""
        g (float[N] x, bool c) => (float[N] y, float[N] z) {
            a = Neg (x)
            y = If (c) < then_branch = t () => (float[N] a) {},
                         else_branch = f () => (float[N] e) { e = Exp (x) } >
            z = Abs (a)
        }""")
    assert editor.only_reader(value(editor, "a")) is None


def test_a_node_of_constants_is_static_unless_it_draws_random_numbers() -> None:
    editor = editor_of("""
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            a = Neg (w) b = RandomNormalLike (a) c = Add (a, b) d = Constant <value = float[2] {1, 2}> ()
            e = Mul (a, d) f = Shape (x) h = Expand (e, f) y = Add (c, x)
        }""")
    assert [name for name in "abcdefhy" if editor.is_static(producer(editor, name))] == ["a", "b", "d", "e", "h"]


def test_functions_are_not_walked() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N] x) => (float[N] y) { y = local.f (x) }
        <domain: "local", opset_import: ["" : 17]>
        f (v) => (w) { w = Neg (v) }
    """)
    assert list(Editor(Model.from_proto(proto)).nodes("Neg")) == []


# Constants and names


def test_equal_arrays_are_one_constant() -> None:
    editor = editor_of(CHAIN)
    one = editor.integers([1, 2], "c")
    assert editor.integers([1, 2], "d") == one
    assert editor.integers([2, 1], "c") == "c_1"
    assert editor.constant(np.array([[1, 2]]), "c") == "c_2"


@pytest.mark.parametrize("dtypes", [("i4", "f4"), ("i2", "u2"), ("?", "u1")])
def test_equal_bytes_of_other_types_are_two_constants(dtypes: tuple[str, str]) -> None:
    editor = editor_of(CHAIN)
    names = [editor.constant(np.zeros(2, dtype), "c") for dtype in dtypes]
    assert names == ["c", "c_1"]


def test_equal_bytes_of_small_floats_are_two_constants() -> None:
    editor = editor_of(CHAIN)
    types = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.UINT8)
    names = [editor.constant(np.zeros(2, helper.tensor_dtype_to_np_dtype(dtype)), "c") for dtype in types]
    assert names == ["c", "c_1", "c_2"]


def test_a_new_name_is_none_of_any_graph() -> None:
    editor = editor_of("""
        g (float[N] x, bool c) => (float[N] y) {
            y = If (c) < then_branch = t () => (float[N] inner) { inner = Neg (x) },
                         else_branch = f () => (float[N] e) { e = Abs (x) } >
        }""")
    names = [editor.unique_name(wished) for wished in ("inner", "inner", "x", "free")]
    assert names == ["inner_1", "inner_2", "x_1", "free"]


def test_a_new_name_is_that_of_no_node() -> None:
    """onnxruntime refuses two nodes of one name."""
    model = model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    model.proto.graph.node[0].name = "dims/N"
    assert Editor(Model.from_proto(model.proto)).unique_name("dims/N") == "dims/N_1"


def test_below_ir_version_4_a_constant_is_a_node_at_the_start() -> None:
    editor = editor_of(CHAIN, opset=11, ir=3)
    editor.set_inputs(producer(editor, "y"), {0: editor.constant(np.ones(1, np.float32), "c")})
    assert lines(editor.result())[0] == "c = Constant <value: tensor = float[1] c {1}> ()"


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("float[3] c = {2, 2, 2}", 2.0),
        ("float[2] c = {1, 2}", None),
        ("float[0] c = {}", None),
        ("bool[2] c = {1, 1}", 1.0),
        ("int64 c = {7}", 7.0),
        ('string[1] c = {"a"}', None),
        ("float16[1] c = {15360}", 1.0),
    ],
)
def test_the_one_number_of_a_constant(init: str, expected: float | None) -> None:
    editor = editor_of(f"g (float[N] x) => (float[N] y) <{init}> {{ y = Neg (x) }}")
    assert editor.uniform(value(editor, "c")) == expected


# Annotations, notes of nodes, what is not touched


def test_quantization_annotations_follow_their_tensors() -> None:
    model = model_of("g (float[N] x) => (float[N] y) <float[1] s = {1}, float[1] t = {1}> { a = Neg (x) y = Abs (a) }")
    annotation = model.proto.graph.quantization_annotation.add(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="t")
    editor = Editor(Model.from_proto(model.proto))
    editor.rename(value(editor, "a"), "b")
    editor.replace_all_uses(value(editor, "t"), value(editor, "s"))
    (found,) = editor.result().proto.graph.quantization_annotation
    assert (found.tensor_name, found.quant_parameter_tensor_names[0].value) == ("b", "s")


def test_a_scale_that_only_an_annotation_names_stays() -> None:
    model = model_of("g (float[N] x) => (float[N] y) <float[1] s = {1}> { a = Neg (x) b = Identity (a) y = Abs (b) }")
    annotation = model.proto.graph.quantization_annotation.add(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    outcome = FoldShapes().run(Model.from_proto(model.proto))
    assert list(constants(outcome.model)) == ["s"]


def test_what_no_edit_concerns_stays_field_by_field() -> None:
    model = model_of(CHAIN)
    model.proto.doc_string = "a model"
    model.proto.metadata_props.add(key="k", value="v")
    model.proto.graph.doc_string = "a graph"
    node = model.proto.graph.node[2]
    node.doc_string = "a node"
    node.metadata_props.add(key="from", value="here")
    before = node.SerializeToString()
    editor = Editor(Model.from_proto(model.proto))
    editor.replace_all_uses(value(editor, "b"), value(editor, "x"))
    result = editor.result().proto
    assert (result.doc_string, result.metadata_props[0].value, result.graph.doc_string) == ("a model", "v", "a graph")
    result.graph.node[2].input[0] = "b"
    assert result.graph.node[2].SerializeToString() == before


# Names that mean another tensor in a body

SHADOW = """
    g (float[N] x, bool c) => (float[N] y) {
        a = Neg (x)
        b = Identity (a)
        i = If (c) < then_branch = t () => (float[N] r) <float[1] a = {3}> { r = Mul (b, a) },
                     else_branch = f () => (float[N] e) { e = Exp (b) } >
        y = Add (i, b)
    }"""


def test_a_tensor_is_not_read_where_a_body_gives_its_name_to_another() -> None:
    editor = editor_of(SHADOW)
    assert not editor.replace_all_uses(value(editor, "b"), value(editor, "a"))
    assert not editor.is_changed


def test_a_chain_of_readings_ends_where_the_name_means_another_tensor() -> None:
    editor = editor_of(SHADOW.replace("b = Identity (a)", "q = Identity (a) b = Identity (q)"))
    assert editor.replace_all_uses(value(editor, "b"), value(editor, "q"))
    assert editor.replace_all_uses(value(editor, "q"), value(editor, "a"))
    text = lines(editor.result())
    assert text[2] == "b = Identity (a)"
    assert "r = Mul (q, a)" in text[3]
    assert "e = Exp (q)" in text[3]
    assert text[4] == "y = Add (i, a)"


# Fixpoint


@dataclass(frozen=True)
class Edit(Rewrite):
    """A rewrite made of a function."""

    change: Callable[[Editor], None] = field(kw_only=True)

    def edit(self, editor: Editor) -> None:
        self.change(editor)


def test_a_run_ends_where_nothing_changes_and_says_what_was_done() -> None:
    text = "g (float[N, 4] x) => (y) { s = Shape <start = 1> (x) t = ConstantOfShape (s) u = Neg (t) y = Add (x, u) }"
    outcome = check(lambda model: run_to_fixpoint(model, [FoldShapes(), FoldConstants()]), model_of(text))
    assert lines(outcome.model) == ["y = Add (x, u_value)"]
    assert outcome.changes == (
        "fold-shapes: 1 shape tensor made constant",
        "fold-constants: 1 constant result folded",
    )


def test_a_run_that_would_not_end_ends() -> None:
    turns = []

    def swap(editor: Editor) -> None:
        (node,) = editor.nodes("Add")
        editor.set_inputs(node, {0: node.input(1), 1: node.input(0)})
        turns.append(1)

    run_to_fixpoint(model_of("g (float[N] x, float[N] z) => (y) { y = Add (x, z) }"), [Edit(change=swap)])
    assert len(turns) == MAX_ROUNDS


def test_dead_code_is_removed_only_with_a_change() -> None:
    text = "g (float[N, 4] x) => (y) { unused = Neg (x) y = Abs (x) }"
    assert len(lines(run_to_fixpoint(model_of(text), [FoldShapes()]).model)) == 2


def test_one_shape_inference_serves_all_rewrites_of_a_sweep() -> None:
    seen = []
    rewrites = [Edit(change=lambda editor: seen.append(editor.shapes)) for _ in range(3)]
    run_to_fixpoint(model_of(CHAIN), rewrites)
    assert len(seen) == 3
    assert len({id(shapes) for shapes in seen}) == 1


def test_a_model_whose_shapes_contradict_each_other_stays() -> None:
    text = """g (float[N] x) => (p, z) <float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1, 1, 3, 1] k = {1, 2, 3}> {
        p = Conv (w, k) s = Shape (w) z = Expand (x, s) }"""
    model = model_of(text)
    outcome = run_to_fixpoint(model, [FoldShapes(), FoldConstants()])
    assert outcome.model is model
    assert reasons(outcome) == [
        "Conv#0: nothing is rewritten, because the shapes of the model contradict each other: "
        "windows that fit: 0 is less than 1"
    ]

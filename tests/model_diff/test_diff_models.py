"""What a diff tells of each kind of change, in exact words, and that names and order are no change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from builders import model_of
from onnx import helper, numpy_helper

from graphkit.model import Model
from graphkit.model_diff import SECTIONS
from graphkit.model_diff.model_diff import ModelDiff, diff
from graphkit.model_diff.node_changes import LoneNode, NodeChanges
from graphkit.options import DiffOptions

TEXT = """(float[N, 8] x, float[N, 8] z) => (float[N, 8] y, float[N, 8] t) {
    [norm] n = LayerNormalization <axis = -1, epsilon = 1e-5> (x, scale)
    [product] p = MatMul (n, weight)
    [sum] s = Add (p, bias)
    [gelu] g = Gelu (s)
    [turn] r = Transpose <perm = [0, 1]> (g)
    [last] y = Add (r, z)
    [side] t = Tanh (p)
}"""
RNG = np.random.default_rng(0)
WEIGHTS = {
    "scale": np.linspace(1, 2, 8, dtype=np.float32),
    "weight": RNG.standard_normal((8, 8), np.float32),
    "bias": np.arange(8, dtype=np.float32),
}


def base(text: str = TEXT, **changed: np.ndarray) -> Model:
    return model_of(text, 20, **(WEIGHTS | changed))


def edited(edit: Callable[[onnx.ModelProto], object], model: Model | None = None) -> Model:
    """Return a copy of a model with an edit."""
    proto = onnx.ModelProto()
    proto.CopyFrom((model or base()).proto)
    edit(proto)
    return Model.from_proto(proto)


def told(found: ModelDiff) -> list[str]:
    """Return everything that differs, a line each."""
    lines = [f"{name}: {change}" for name in ("interface", "opsets", "metadata") for change in getattr(found, name)]
    lines += [f"removed: {each.operator} {each.node} {list(each.instead)}" for each in found.nodes.removed]
    lines += [f"added: {each.operator} {each.node} {list(each.instead)}" for each in found.nodes.added]
    lines += [f"changed: {each.node}: {change}" for each in found.nodes.changed for change in each.changes]
    for weight in found.weights:
        equal = f" = {weight.equal_to}" if weight.equal_to else ""
        before, after = f"'{weight.name}' {weight.before}".strip(), f"'{weight.other}' {weight.after}".strip()
        lines.append(f"{weight.kind}: {before} | {after}{equal}")
    return lines


def lines(a: Model, b: Model) -> list[str]:
    return told(diff(a, b))


def test_a_size_that_became_a_constant_is_not_told_as_another_one() -> None:
    weights = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}"
    before = f"""(float[N, 4, M] x) => (float[4, N, M] y) <{weights}> {{
        h = Relu (x)
        "Shape_1_output_0" = Shape (h)
        "Gather_1_output_0" = Gather ("Shape_1_output_0", zero)
        "Shape_2_output_0" = Shape (h)
        "Gather_2_output_0" = Gather ("Shape_2_output_0", one)
        "Shape_3_output_0" = Shape (h)
        "Gather_3_output_0" = Gather ("Shape_3_output_0", two)
        sizes = Concat <axis = 0> ("Gather_2_output_0", "Gather_1_output_0", "Gather_3_output_0")
        y = Reshape (h, sizes)
    }}"""
    kept = [line for line in before.splitlines() if '"Shape_2_output_0"' not in line]
    after = "\n".join(kept).replace("Relu", "Tanh").replace('("Gather_2_output_0"', "(four")
    found = diff(model_of(before), model_of(after)).nodes
    assert [str(change) for node in found.changed for change in node.changes] == ["operator: Relu -> Tanh"]
    assert (sorted(node.operator for node in found.removed), found.added) == (["Gather", "Shape"], ())


def test_a_model_equals_itself() -> None:
    found = diff(base(), base())
    assert (found.is_equal, found.differing, told(found)) == (True, (), [])
    assert found.to_text() == "Differences\n\nA is g, B is g.\nNothing differs.\n\n"


@pytest.mark.parametrize(
    "body",
    [
        "b = Neg (x) y = Tanh (b) y = Tanh (x) y = Tanh (b)",
        "b = Neg (x) w = Sub (b, x) w = Sub (x, b) y = Neg (w)",
        "b = Add (x, x) c, b = Add (b, x) c = Add (b, x) y = Neg (c)",
        "y = Add (x, nowhere) nowhere = Neg (y)",
    ],
)
def test_a_graph_that_is_not_valid_equals_itself(body: str) -> None:
    weights = {"w": np.ones(2, np.float32)} if "w =" in body else {}
    assert lines(*(model_of(f"(float[2] x) => (y) {{ {body} }}", **weights) for _ in range(2))) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("epsilon = 1e-5", "epsilon = 1e-3", ["changed: norm: epsilon: 1e-05 -> 0.001"]),
        (", epsilon = 1e-5", "", []),
        ("epsilon = 1e-5", "stash_type = 1, epsilon = 1e-5", []),
        ("axis = -1, ", "axis = 1, ", ["changed: norm: axis: -1 -> 1"]),
        (" <axis = -1, epsilon = 1e-5>", " <axis = 1>", ["changed: norm: axis: -1 -> 1"]),
        ("perm = [0, 1]", "perm = [1, 0]", ["changed: turn: perm: [0, 1] -> [1, 0]"]),
        ("Gelu (s)", 'Gelu <approximate = "tanh"> (s)', ["changed: gelu: approximate: 'none' (default) -> 'tanh'"]),
        ("Tanh (p)", "Sigmoid (p)", ["changed: side: operator: Tanh -> Sigmoid"]),
        ("Tanh (p)", "Tanh (s)", ["changed: side: input 0: p -> s"]),
        ("Add (r, z)", "Add (z, r)", ["changed: last: order of inputs: 0, 1 -> 1, 0"]),
        ("[gelu] g = Gelu (s)", "[gelu] g = Gelu (s) [more] q = Tanh (g)", ["added: Tanh more []"]),
        (
            "[gelu] g = Gelu (s)\n    [turn] r = Transpose <perm = [0, 1]> (g)",
            "[turn] r = Transpose <perm = [0, 1]> (s)",
            ["removed: Gelu gelu ['s']"],
        ),
        (
            "[product] p = MatMul (n, weight)\n    [sum] s = Add (p, bias)\n    [gelu] g = Gelu (s)",
            "[fused] s = Gemm (n, weight, bias)\n    [gelu] g = Gelu (s) [twice] p = MatMul (n, weight)",
            ["removed: Add sum []", "added: Gemm fused []"],
        ),
        ("(float[N, 8] x,", "(float[M, 8] x,", ["interface: input 'x': float32[N, 8] -> float32[M, 8]"]),
        ("(float[N, 8] x,", "(float16[N, 8] x,", ["interface: input 'x': float32[N, 8] -> float16[N, 8]"]),
        (
            "float[N, 8] x, float[N, 8] z)",
            "float[N, 8] z, float[N, 8] x)",
            ["interface: order of inputs: 'x', 'z' -> 'z', 'x'"],
        ),
        (", float[N, 8] t)", ")", ["interface: output 't': float32[N, 8] removed"]),
        (
            "float[N, 8] z)",
            "float[N, 8] z, float[1] more)",
            ["interface: input 'more': float32[1] added"],
        ),
    ],
)
def test_a_change_of_the_text_is_told(before: str, after: str, expected: list[str]) -> None:
    assert before in TEXT
    assert lines(base(), base(TEXT.replace(before, after))) == expected


@pytest.mark.parametrize(
    ("renamed", "expected"),
    [
        ({"x": "tokens"}, ["interface: input 'x' -> 'tokens': float32[N, 8] -> float32[N, 8]"]),
        ({"t": "state"}, ["interface: output 't' -> 'state': float32[N, 8] -> float32[N, 8]"]),
        (
            {"x": "tokens", "N": "M", "y": "result", "n": "inner"},
            [
                "interface: input 'x' -> 'tokens': float32[N, 8] -> float32[M, 8]",
                "interface: input 'z': float32[N, 8] -> float32[M, 8]",
                "interface: output 'y' -> 'result': float32[N, 8] -> float32[M, 8]",
                "interface: output 't': float32[N, 8] -> float32[M, 8]",
            ],
        ),
    ],
)
def test_an_input_or_output_of_another_name_is_told_as_that(renamed: dict[str, str], expected: list[str]) -> None:
    text = re.sub(r"\b\w+\b", lambda name: renamed.get(name[0], name[0]), TEXT)
    found = diff(base(), base(text))
    assert (told(found), found.differing) == (expected, ("interface",))


def test_an_input_that_is_read_by_other_operators_is_another_one() -> None:
    text = "(float[4] x, float[4] z) => (float[4] y) { y = Sub (x, z) }"
    other = text.replace("float[4] z", "float[4] v").replace("Sub (x, z)", "Sub (v, x)")
    assert lines(model_of(text), model_of(other)) == [
        "interface: input 'z': float32[4] removed",
        "interface: input 'v': float32[4] added",
        "changed: Sub#0: input 0: x -> v",
        "changed: Sub#0: input 1: z -> x",
    ]


def test_outputs_that_change_places_are_told() -> None:
    a = model_of("(float[4] x) => (float[4] p, float[4] q) { p = Relu (x) q = Tanh (x) }")
    b = model_of("(float[4] x) => (float[4] p, float[4] q) { q = Relu (x) p = Tanh (x) }")
    assert lines(a, b) == [
        "changed: Relu#0: operator: Relu -> Tanh",
        "changed: Tanh#1: operator: Tanh -> Relu",
    ]


def test_an_output_that_is_another_value_is_told() -> None:
    a = model_of("(float[4] x, float[4] z) => (float[4] y) { r = Relu (x) t = Relu (z) y = Identity (r) }")
    b = model_of("(float[4] x, float[4] z) => (float[4] y) { r = Relu (x) t = Relu (z) y = Identity (t) }")
    assert lines(a, b) == ["changed: Identity#2: input 0: r -> t"]


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("weight", WEIGHTS["weight"] * 2, ["values: 'weight' float32[8, 8] | 'weight' float32[8, 8]"]),
        ("weight", WEIGHTS["weight"].astype(np.float16), ["dtype: 'weight' float32[8, 8] | 'weight' float16[8, 8]"]),
        ("weight", WEIGHTS["weight"][:, :4], ["dims: 'weight' float32[8, 8] | 'weight' float32[8, 4]"]),
        (
            "bias",
            np.zeros(8, np.float32),
            [
                "values: 'bias' float32[8] = [0, 1, 2, 3, 4, 5, 6, 7] | 'bias' float32[8] = [0, 0, 0, 0, 0, 0, 0, 0]",
            ],
        ),
        ("unread", np.zeros(9, np.int8), ["added: '' | 'unread' int8[9]"]),
        ("copy", WEIGHTS["weight"], ["added: '' | 'copy' float32[8, 8] = weight"]),
    ],
)
def test_a_change_of_a_weight_is_told(name: str, array: np.ndarray, expected: list[str]) -> None:
    assert lines(base(), base(**{name: array})) == expected


def test_a_weight_that_is_not_read_is_told_when_it_goes() -> None:
    assert lines(base(unread=np.zeros(9, np.int8)), base()) == ["removed: 'unread' int8[9] | ''"]


def test_weights_under_other_names_are_equal() -> None:
    text = TEXT.replace("weight", "kernel").replace("bias", "offset")
    b = model_of(text, 20, scale=WEIGHTS["scale"], kernel=WEIGHTS["weight"], offset=WEIGHTS["bias"])
    found = diff(base(), b)
    assert told(found) == []
    assert set(found.renamed_weights) == {("weight", "kernel"), ("bias", "offset")}


def test_weights_that_are_tied_are_told_once() -> None:
    text = "(float[2, 8] x) => (float[2, 8] y) { p = MatMul (x, weight) y = MatMul (p, second) }"
    a = model_of(text, weight=WEIGHTS["weight"], second=WEIGHTS["weight"])
    b = model_of(text.replace("second", "weight"), weight=WEIGHTS["weight"])
    assert lines(a, b) == []
    assert lines(b, a) == []
    assert diff(a, b).renamed_weights == (("second", "weight"),)


def test_a_node_that_reads_another_weight_is_told() -> None:
    text = "(float[2, 8] x) => (float[2, 8] y) { p = MatMul (x, one) q = MatMul (p, two) y = MatMul (q, one) }"
    weights = {name: RNG.standard_normal((8, 8), np.float32) for name in ("one", "two")}
    b = model_of(text.replace("(q, one)", "(q, two)"), **weights)
    assert lines(model_of(text, **weights), b) == ["changed: MatMul#2: input 1: one -> two"]


def test_constants_whose_names_an_exporter_counted_are_told_by_their_values() -> None:
    text = """(float[2, 3] x) => (y, z) {
        Constant_0 = Constant <value = int64[1] {-1}> ()
        Constant_1 = Constant <value = int64[1] {3}> ()
        shape = Concat <axis = 0> (Constant_0, Constant_1)
        y = Reshape (x, shape)
        Constant_2 = Constant <value = int64[2] {1, 6}> ()
        z = Reshape (x, Constant_2)
    }"""
    assert lines(model_of(text), model_of(text.replace("(Constant_0, Constant_1)", "(Constant_0, Constant_0)"))) == [
        "changed: Concat#2: input 1: int64[1] = [3] -> int64[1] = [-1]",
    ]
    moved = text.replace("z = Reshape (x, Constant_2)", "z = Neg (x)").replace("int64[2] {1, 6}", "float {2}")
    assert diff(model_of(text), model_of(moved)).shapes == ()
    assert lines(model_of(text), model_of(moved)) == [
        "removed: Reshape Reshape#5 []",
        "added: Neg Neg#5 []",
        "removed: 'Constant_2' int64[2] = [1, 6] | ''",
        "added: '' | 'Constant_2' float32[] = 2",
    ]


def test_counted_names_that_two_changed_nodes_have_in_turn_are_no_change() -> None:
    text = """(float[4, 4] x) => (float[4, 4] y) {
        a = Relu (x) b = Tanh (x)
        Softmax_0 = Softmax <axis = 0> (a) Softmax_1 = Softmax <axis = 0> (b)
        y = Sub (Softmax_0, Softmax_1)
    }"""
    other = text.replace("axis = 0> (a)", "axis = 1> (B)").replace("axis = 0> (b)", "axis = 1> (a)")
    other = other.replace("(B)", "(b)").replace("(Softmax_0, Softmax_1)", "(Softmax_1, Softmax_0)")
    assert lines(model_of(text), model_of(other)) == [
        "changed: Softmax#2: axis: 0 -> 1",
        "changed: Softmax#3: axis: 0 -> 1",
    ]


LAYERS = """(float[4] x) => (s0, s1) {
    [add0] a0 = Add (x, b0) [cut0] s0 = Slice (a0, i, j)
    [add1] a1 = Add (x, b1) [cut1] s1 = Slice (a1, i, j)
}"""


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        (r"\(x, (b\d)\)", r"(\1, x)", "add{0-1}  Add       order of inputs: 0, 1 -> 1, 0      2"),
        (r"\(a(\d), i, j\)", r"(a\1, j, i)", "cut{0-1}  Slice     order of inputs: 1, 2 -> 2, 1      2"),
        (r"\(a(\d), i", r"(b\1, i", "cut{i=0-1}  Slice     input 0: a{i} -> b{i}      2"),
    ],
)
def test_layers_that_change_alike_are_a_row(pattern: str, after: str, expected: str) -> None:
    weights = {name: np.array([number], np.int64) for name, number in {"i": 0, "j": 2}.items()}
    weights |= {f"b{n}": np.full(4, n, np.float32) for n in range(2)}
    found = diff(model_of(LAYERS, **weights), model_of(re.sub(pattern, after, LAYERS), **weights))
    assert expected in found.to_text()


def test_an_attribute_called_as_inputs_are_does_not_vary_with_the_name_of_its_node() -> None:
    nodes = "[cut1] h = custom.Op <output_size = %d> (x) [cut2] y = custom.Op <output_size = %d> (h)"
    text = f"(float[4] x) => (y) {{ {nodes} }}"
    found = diff(model_of(text % (1, 2)), model_of(text % (7, 7)))
    rows = [" ".join(line.split()) for line in found.to_text().splitlines() if line.startswith("cut")]
    assert rows == ["cut1 custom.Op output_size: 1 -> 7", "cut2 custom.Op output_size: 2 -> 7"]


def test_a_module_that_exporters_spell_otherwise_is_a_row() -> None:
    nodes = NodeChanges((LoneNode("a", "Mul", "m/l.0", ()),), (LoneNode("b", "Div", "m.l.0", ()),))
    assert "\nm/l.0   Mul      Div\n" in replace(diff(base(), base()), nodes=nodes).to_text()


def test_a_constant_node_that_becomes_an_initializer_is_told() -> None:
    text = "(float[8] x) => (float[8] y) { b = Constant <value = float[1] {2.0}> () y = Add (x, b) }"
    a = model_of(text)
    b = model_of("(float[8] x) => (float[8] y) { y = Add (x, b) }", b=np.array([2], np.float32))
    assert lines(a, b) == ["storage: 'b' Constant node | 'b' initializer"]
    c = model_of(text.replace("2.0", "3.0"))
    assert lines(a, c) == ["values: 'b' float32[1] = [2] | 'b' float32[1] = [3]"]


def test_notes_of_a_model_are_told() -> None:
    def note(proto: onnx.ModelProto) -> None:
        proto.producer_name, proto.ir_version, proto.graph.doc_string = "pytorch", 9, "a graph"
        proto.metadata_props.add(key="epoch", value="3")
        proto.opset_import[0].version = 21
        proto.graph.node[0].doc_string = "the norm"
        proto.graph.node[0].metadata_props.add(key="namespace", value="m")

    assert lines(base(), edited(note)) == [
        "opsets: ai.onnx: 20 -> 21",
        "metadata: ir_version: 10 -> 9",
        "metadata: producer_name: pytorch added",
        "metadata: metadata 'epoch': 3 added",
        "metadata: graph doc_string: a graph added",
        "metadata: doc string of node 'norm': the norm added",
        "metadata: metadata 'namespace' of node 'norm': m added",
    ]


def annotate(proto: onnx.ModelProto, scale: str, tensor: str = "p") -> None:
    entry = proto.graph.quantization_annotation.add(tensor_name=tensor)
    entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value=scale)


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (
            lambda proto: proto.graph.input[1].metadata_props.add(key="unit", value="mm"),
            "metadata 'unit' of input 'z': mm added",
        ),
        (
            lambda proto: proto.graph.output[1].metadata_props.add(key="unit", value="mm"),
            "metadata 'unit' of output 't': mm added",
        ),
        (
            lambda proto: setattr(proto.graph.input[0].type, "denotation", "IMAGE"),
            "denotation of input 'x': IMAGE added",
        ),
        (
            lambda proto: setattr(proto.graph.output[0].type.tensor_type.shape.dim[1], "denotation", "DATA_CHANNEL"),
            "denotation of dim 1 of output 'y': DATA_CHANNEL added",
        ),
        (
            lambda proto: setattr(proto.graph.initializer[1], "doc_string", "trained"),
            "doc string of weight 'weight': trained added",
        ),
        (
            lambda proto: proto.graph.initializer[2].metadata_props.add(key="epoch", value="7"),
            "metadata 'epoch' of weight 'bias': 7 added",
        ),
        (lambda proto: setattr(proto.graph.node[3], "doc_string", "a gate"), "doc string of node 'gelu': a gate added"),
        (
            lambda proto: proto.graph.node[3].metadata_props.add(key="from", value="m.py"),
            "metadata 'from' of node 'gelu': m.py added",
        ),
        (
            lambda proto: annotate(proto, "bias"),
            "quantization annotation of 'p': SCALE_TENSOR 'bias' added",
        ),
    ],
)
def test_a_note_of_one_thing_is_a_line(note: Callable[[onnx.ModelProto], object], expected: str) -> None:
    a, b = base(), edited(note)
    assert lines(a, b) == [f"metadata: {expected}"]
    assert lines(b, a) == [f"metadata: {expected.removesuffix(' added')} removed"]
    assert lines(b, edited(note)) == []


def test_notes_of_many_nodes_are_counted_in_the_text() -> None:
    def note(proto: onnx.ModelProto, count: int) -> None:
        for node in proto.graph.node[:count]:
            node.metadata_props.add(key="from", value=node.name)

    text = "(float[4] x) => (float[4] y) { " + " ".join(f"[n{i}] v{i} = Relu (x)" for i in range(9)) + " y = Sum (v0) }"
    many, few = (edited(lambda proto, count=count: note(proto, count), model_of(text)) for count in (9, 8))  # type: ignore[misc]
    assert re.search(r"metadata 'from' of 9 nodes +9 have it", diff(model_of(text), many).to_text())
    assert "metadata 'from' of node 'n7'" in diff(model_of(text), few).to_text()
    assert len(diff(model_of(text), many).metadata) == 9


def test_an_annotation_of_quantization_that_reads_another_scale_is_told() -> None:
    a, b = (edited(lambda proto, scale=scale: annotate(proto, scale)) for scale in ("bias", "scale"))  # type: ignore[misc]
    assert lines(a, b) == [
        "metadata: quantization annotation of 'p': SCALE_TENSOR 'bias' -> SCALE_TENSOR 'scale'",
    ]


BRANCHES = """(bool c, float[4] x) => (float[4] y) {
    outer = Relu (x)
    y = If (c) <
        then_branch = then () => (float[4] a) { inner = Tanh (outer) a = Add (inner, x) },
        else_branch = other () => (float[4] b) { b = Neg (outer) }
    >
}"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Tanh (outer)", "Tanh (x)", ["changed: If#1/then_branch/Tanh#0: input 0: outer -> x"]),
        ("Neg (outer)", "Abs (outer)", ["changed: If#1/else_branch/Neg#0: operator: Neg -> Abs"]),
        ("b = Neg (outer)", "n = Neg (outer) b = Abs (n)", ["added: Abs If#1/else_branch/Abs#1 ['b']"]),
    ],
)
def test_a_change_in_a_branch_is_told_there(before: str, after: str, expected: list[str]) -> None:
    assert before in BRANCHES
    assert lines(model_of(BRANCHES), model_of(BRANCHES.replace(before, after))) == expected


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
g (float[4] x) => (float[4] y) { m = local.f (x) y = local.f (m) }
<domain: "local", opset_import: ["" : 20]>
f (a) => (b) { t = Relu (a) b = Tanh (t) }
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("Tanh (t)", "Sigmoid (t)", ["changed: function f/Tanh#1: operator: Tanh -> Sigmoid"]),
        ("f (a) => (b) { t = Relu (a) b = Tanh (t) }", "f (v) => (w) { q = Relu (v) w = Tanh (q) }", []),
        (
            'opset_import: ["" : 20]>\nf',
            'opset_import: ["" : 21]>\nf',
            [
                "opsets: function 'local.f': 1 input, 1 output, ai.onnx 20 -> 1 input, 1 output, ai.onnx 21",
            ],
        ),
    ],
)
def test_a_change_in_a_function_is_told_there(before: str, after: str, expected: list[str]) -> None:
    assert before in FUNCTION
    a, b = (Model.from_proto(onnx.parser.parse_model(text)) for text in (FUNCTION, FUNCTION.replace(before, after)))
    assert lines(a, b) == expected


def test_a_function_that_goes_is_told() -> None:
    a = Model.from_proto(onnx.parser.parse_model(FUNCTION))
    b = edited(lambda proto: proto.functions.pop(), a)
    assert lines(a, b) == ["opsets: function 'local.f': 1 input, 1 output, ai.onnx 20 removed"]


def test_defaults_of_inputs_are_weights() -> None:
    def with_default(*numbers: float) -> Model:
        def edit(proto: onnx.ModelProto) -> None:
            proto.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.float32), "z"))

        return edited(edit, model_of("(float[2] x, float[2] z) => (float[2] y) { y = Add (x, z) }"))

    assert lines(with_default(1, 2), with_default(1, 2)) == []
    assert lines(with_default(1, 2), with_default(1, 3)) == [
        "values: 'z' float32[2] = [1, 2] | 'z' float32[2] = [1, 3]"
    ]
    without = model_of("(float[2] x, float[2] z) => (float[2] y) { y = Add (x, z) }")
    assert lines(without, with_default(1, 2)) == [
        "interface: input 'z': float32[2] -> float32[2] with a default",
        "added: '' | 'z' float32[2] = [1, 2]",
    ]


def test_strings_and_sparse_weights_are_compared() -> None:
    def with_sparse(number: float, text: bytes) -> Model:
        def edit(proto: onnx.ModelProto) -> None:
            values = helper.make_tensor("s", onnx.TensorProto.FLOAT, [1], [number])
            indices = helper.make_tensor("i", onnx.TensorProto.INT64, [1], [2])
            proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
            proto.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.STRING, [1], [text]))

        text_ = "(float[4] x) => (float[4] y, string[1] v) { y = Add (x, s) v = Identity (w) }"
        return edited(edit, model_of(text_))

    assert lines(with_sparse(1, b"a"), with_sparse(1, b"a")) == []
    assert lines(with_sparse(1, b"a"), with_sparse(2, b"a")) == [
        "values: 's' sparse float32[4] | 's' sparse float32[4]"
    ]
    assert lines(with_sparse(1, b"a"), with_sparse(1, b"b")) == ["values: 'w' string[1] | 'w' string[1]"]


def shapes(a: Model, b: Model) -> list[str]:
    """Return the shapes that differ; in brackets those that follow from others."""
    texts = [f"{each.value}: {each.before} -> {each.after}" for each in diff(a, b).shapes]
    return [f"({text})" if each.follows else text for text, each in zip(texts, diff(a, b).shapes, strict=True)]


SHAPES = """(float[N, 8] x) => (float[M, K] y) {
    r = Reshape (x, shape)
    t = Transpose <perm = [1, 0]> (r)
    y = Tanh (t)
}"""


def test_shapes_that_differ_are_told_where_that_begins() -> None:
    a, b = (model_of(SHAPES, shape=np.array(shape, np.int64)) for shape in ([-1, 4], [-1, 2]))
    assert shapes(a, b) == [
        "r: float32[2*N, 4] -> float32[4*N, 2]",
        "(t: float32[4, 2*N] -> float32[2, 4*N])",
        "(y: float32[4, 2*N] -> float32[2, 4*N])",
    ]
    assert "What is computed from these differs too: 2 tensors." in diff(a, b).to_text()


@pytest.mark.parametrize("dim", ["P", "3", "2 * P"])
def test_shapes_that_follow_from_dims_of_inputs_are_no_difference(dim: str) -> None:
    array = np.array([-1, 4], np.int64)
    a, b = model_of(SHAPES, shape=array), model_of(SHAPES, shape=array)
    b.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = dim
    if dim.isdigit():
        b.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = int(dim)
    for found in (diff(a, b), diff(b, a)):
        assert found.differing == ("interface",)


def test_shapes_that_follow_from_dims_of_an_input_that_was_replaced_are_no_difference() -> None:
    text = "(int64[N] i) => (float[N, 2] y) {{ {} r = Relu (x) y = Tanh (r) }}"
    a = model_of(text.format("x = Gather (table, i)"), table=np.ones((3, 2), np.float32))
    b = model_of(text.format("").replace("int64[N] i", "float[4, 2] x").replace("float[N, 2] y", "float[4, 2] y"))
    assert (shapes(a, b), shapes(b, a)) == ([], [])


def test_a_dtype_that_differs_is_told() -> None:
    text = "(float[4] x) => (y) {{ c = Cast <to = {}> (x) y = Identity (c) }}"
    one, two = (model_of(text.format(dtype)) for dtype in (10, 16))
    assert shapes(one, two) == ["c: float16[4] -> bfloat16[4]", "(y: float16[4] -> bfloat16[4])"]


def test_declared_types_are_told() -> None:
    def declare(proto: onnx.ModelProto) -> None:
        proto.graph.value_info.append(helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, ["N", 8]))

    declared = edited(declare)
    assert lines(base(), declared) == ["metadata: declared types: 1 tensor added"]
    assert lines(declared, base()) == ["metadata: declared types: 1 tensor removed"]
    other = edited(lambda proto: proto.graph.value_info[0].type.tensor_type.shape.dim.pop(), declared)
    assert lines(declared, other) == ["metadata: types that are declared otherwise: 1 tensor -> 1 tensor"]


def test_the_type_of_an_output_that_was_added_is_told_once() -> None:
    value = helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, ["N", 8])
    more = edited(lambda proto: proto.graph.output.append(value))
    for models in ((base(), more), (more, base())):
        assert [line.partition(":")[0] for line in lines(*models)] == ["interface"]


def test_findings_and_blockers_that_are_more_or_less_are_told() -> None:
    a = model_of("(float[N, 8] x, int64[M] i) => (float[K, 8] y) { y = Gather (x, i) }")
    b = model_of("(float[N, 8] x, int64[M] i) => (y) { g = Gather (x, i) y = Det (g) }")
    options = DiffOptions(target="ethos-u65")
    found, back = diff(a, b, options), diff(b, a, options)
    told = [f"{each.text} {each.before} -> {each.after}" for each in found.blockers]
    assert told == ["ethos-u65 refuses 2 nodes: dynamic dims 1 -> 2", "ethos-u65 refuses 1 node: Det 0 -> 1"]
    assert [each.is_worse for each in back.blockers] == [False] * len(told)
    assert (found.failing(("findings", "blockers")), back.failing(("findings", "blockers"))) == (("blockers",), ())
    assert diff(a, b).blockers == ()


def test_findings_are_told() -> None:
    a = model_of("(float[N, 8] x) => (y) { y = Relu (x) }")
    b = model_of("(float[N, 8] x) => (y) { r = Relu (x) s = Shape (x) f = Reshape (r, s) y = NonZero (f) }")
    found = diff(a, b)
    assert [f"{each.kind}: {each.text} {each.before} -> {each.after}" for each in found.finding_changes] == [
        "unknown-shapes: 1 tensor of unknown shape from 'y' on: ?0.NonZero#3: it is how many elements of 'f' are "
        "not zero 0 -> 1"
    ]


def test_csv_has_a_row_for_each_difference_and_its_columns_alone_where_there_is_none() -> None:
    header = "Section,In A,In B,Difference,A,B\n"
    assert diff(base(), base()).to_csv() == header
    text = TEXT.replace("axis = -1, ", "axis = 1, ").replace("Tanh (p)", "Sigmoid (p)").replace("last", "=1+1")
    other = edited(lambda proto: setattr(proto.graph.node[0], "name", "=1+1"), base(text.replace("[=1+1]", "[last]")))
    assert diff(base(), other).to_csv().splitlines()[1:] == [
        "nodes,norm,'=1+1,axis,-1,1",
        "nodes,side,side,operator,Tanh,Sigmoid",
    ]
    kinds = [line.split(",")[0] for line in diff(base(SHAPES, shape=np.array([-1, 4])), base()).to_csv().splitlines()]
    assert kinds == sorted(kinds, key=["Section", *SECTIONS].index)

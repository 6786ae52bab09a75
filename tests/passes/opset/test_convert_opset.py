from __future__ import annotations

import lzma

import numpy as np
import onnx
import onnx.checker
import pytest
from onnx import helper, parser
from real_models import MODELS
from rewriting import check, lines, model_of, reasons

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.passes.opset.convert_opset import NEWEST, ConvertOpset, conversion_steps
from graphkit.passes.opset.spellings import NEWER
from graphkit.passes.registry import parse_pipeline
from graphkit.verify import verify_rewrite

# One line a case: the opset, and a node that is spelled anew between it and the newest one.
SPELLED = {
    "ReduceMean": (17, "y = ReduceMean <axes = [1], keepdims = 0> (x)"),
    "ReduceMax over all": (11, "y = ReduceMax <axes = [0, 1, 2]> (x)"),
    "ReduceSum": (11, "y = ReduceSum <axes = [-1]> (x)"),
    "ReduceSum of no axes": (11, "y = ReduceSum <axes: ints = []> (x)"),
    "Unsqueeze": (11, "y = Unsqueeze <axes = [0, 2]> (x)"),
    "Squeeze": (11, "u = Unsqueeze <axes = [1]> (x) y = Squeeze <axes = [1]> (u)"),
    "Softmax, last axis": (11, "y = Softmax <axis = 2> (x)"),
    "Softmax, default axis": (11, "y = Softmax (x)"),
    "LogSoftmax over all": (11, "y = LogSoftmax <axis = 0> (x)"),
    "Hardmax": (12, "y = Hardmax <axis = -2> (x)"),
    "Split in lengths": (11, "a, b = Split <axis = 2, split = [1, 3]> (x) y = Concat <axis = 2> (b, a)"),
    "Split in halves": (11, "a, b = Split <axis = 2> (x) y = Concat <axis = 2> (b, a)"),
    "Split in halves, later": (17, "a, b = Split <axis = 2> (x) y = Concat <axis = 2> (b, a)"),
    "Slice": (9, "y = Slice <axes = [2], starts = [1], ends = [3]> (x)"),
    "TopK": (9, "y, z = TopK <axis = 2, k = 2> (x)"),
    "Clip": (10, "y = Clip <min = -1.0, max = 2.0> (x)"),
    "Clip above": (10, "y = Clip <max = 2.0> (x)"),
    "Pad": (10, "y = Pad <pads = [0, 0, 1, 0, 0, 1], value = 2.5> (x)"),
    "Dropout": (11, "y = Dropout <ratio = 0.3> (x)"),
    "RoiAlign": (14, "u = Unsqueeze (x, zero) y = RoiAlign <output_height = 2, output_width = 2> (u, boxes, which)"),
    "Resize": (11, "u = Unsqueeze <axes = [0]> (x) y = Resize <mode = \"nearest\"> (u, none, none, sizes)"),
    "GridSample": (16, "u = Unsqueeze (x, zero) y = GridSample <mode = \"bilinear\"> (u, places)"),
    "GroupNormalization": (18, "y = GroupNormalization <num_groups = 3, epsilon = 0.5> (x, threes, threes)"),
    "GroupNormalization, one group": (18, "y = GroupNormalization <num_groups = 1> (x, unit, unit)"),
    "GroupNormalization of float64": (18, """d = Cast <to = 11> (x) s = Cast <to = 11> (threes)
        u = GroupNormalization <num_groups = 3> (d, s, s) y = Cast <to = 1> (u)"""),
    "Upsample": (7, "y = Upsample <scales = [1.0, 2.0, 1.5]> (x)"),
    "Upsample by an input": (9, "y = Upsample (x, factors)"),
    "Upsample, linear": (9, "y = Upsample <mode = \"linear\"> (x, doubled)"),
    **{f"Resize by {name}, {mode}": (10, f"u = Unsqueeze <axes = [0]> (x) y = Resize <mode = \"{mode}\"> (u, {name})")
       for name in ("grown", "shrunk", "mixed", "same") for mode in ("nearest", "linear")},
}  # fmt: skip
CONSTANTS = {
    "zero": np.zeros(1, np.int64),
    "boxes": np.array([[0, 0, 3, 2], [1, 0, 2, 4]], np.float32),
    "which": np.zeros(2, np.int64),
    "none": np.zeros(0, np.float32),
    "sizes": np.array([1, 2, 6, 8], np.int64),
    "threes": np.array([1, -2, 3], np.float32),
    "unit": np.array([1.5], np.float32),
    "factors": np.array([1, 2, 1.3], np.float32),
    "doubled": np.array([1, 2, 2.5], np.float32),
    "grown": np.array([1, 1, 1.5, 2.7], np.float32),
    "shrunk": np.array([1, 1, 0.6, 0.7], np.float32),
    "mixed": np.array([1, 1, 0.7, 1.4], np.float32),
    "same": np.array([1, 1, 1, 1], np.float32),
    "places": np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 3, 4, 2),
}


def case(name: str) -> Model:
    opset, nodes = SPELLED[name]
    is_fixed = name.startswith(("Resize", "GridSample", "RoiAlign", "GroupNormalization"))
    shape = "2, 3, 4" if is_fixed else "N, L, 4"
    used = {key: value for key, value in CONSTANTS.items() if f"{key}," in nodes or f"{key})" in nodes}
    return model_of(f"agraph (float[{shape}] x) => (y) {{ {nodes} }}", opset, **used)


@pytest.mark.parametrize("name", SPELLED)
def test_a_node_that_has_changed_gives_the_same_in_the_newest_opset(name: str) -> None:
    model = case(name)
    sizes = [{"N": 2, "L": 3}, {"N": 1, "L": 1}] + ([{"N": 2, "L": 0}] if "Softmax" in name else [])
    version = 21 if name == "RoiAlign" else NEWEST  # onnxruntime has no newer one
    outcome = check(ConvertOpset(version), model, sizes)
    assert outcome.changes[0] == f"opset {model.graph.opset()} became {version}"
    assert (len(outcome.changes) > 1) == (name != "Softmax, last axis")  # which says what it did
    assert not outcome.declined
    assert outcome.model.graph.opset() == version


def test_names_and_metadata_of_a_node_stay() -> None:
    model = model_of("agraph (float[N, 4] x) => (float[N, 4] y) { y = Softmax <axis = 0> (x) }", opset=11)
    node = model.proto.graph.node[0]
    node.name, node.doc_string = "attention", "of a layer"
    node.metadata_props.add(key="namespace", value="layers.0")
    result = check(ConvertOpset(), model).model
    assert lines(result) == [
        "y_shape = Shape (x)",
        "y_flat = Flatten <axis: int = 0> (x)",
        "[attention] y_rows = Softmax <axis: int = -1> (y_flat)",
        "y = Reshape <allowzero: int = 1> (y_rows, y_shape)",
    ]
    softmax = result.proto.graph.node[2]
    assert (softmax.name, softmax.doc_string, softmax.metadata_props[0].value) == (
        "attention",
        "of a layer",
        "layers.0",
    )


def test_what_does_not_change_stays_field_by_field() -> None:
    model = model_of("agraph (float[N, 4] x) => (float[N, 4] y) { u = com.microsoft.Gelu (x) y = Relu (u) }", opset=17)
    model.proto.metadata_props.add(key="maker", value="me")
    result = ConvertOpset(18).run(model).model.proto
    expected = onnx.ModelProto()
    expected.CopyFrom(model.proto)
    expected.opset_import[0].version = 18
    assert result == expected


def test_the_ir_version_rises_where_the_opset_needs_it() -> None:
    text = "agraph (float[N] x) => (float[N] y) { y = Neg (x) }"
    assert ConvertOpset(24).run(model_of(text, ir=8)).model.proto.ir_version == helper.find_min_ir_version_for(
        [helper.make_opsetid("", 24)]
    )
    assert ConvertOpset(18).run(model_of(text, ir=10)).model.proto.ir_version == 10


def test_bodies_are_converted() -> None:
    model = model_of(
        """
        agraph (float[N, 4] x, bool c) => (float[N] y) {
            y = If (c) <
                then_branch = g1 () => (float[N] a) { a = ReduceMean <axes = [1], keepdims = 0> (x) },
                else_branch = g2 () => (float[N] b) { b = ReduceSum <axes = [1], keepdims = 0> (x) }
            >
        }""",
        opset=12,
    )
    feeds = [{"x": np.ones((2, 4), np.float32), "c": np.array(flag)} for flag in (True, False)]
    outcome = check(ConvertOpset(), model, feeds=feeds)
    assert outcome.changes[1:] == ("1 ReduceMean node spelled anew", "1 ReduceSum node spelled anew")


DECLINED = {
    "GroupNormalization": (
        18,
        "u = Transpose (x) y = GroupNormalization <num_groups = 1> (u, s, s)",
        "stays of opset 18: its scale and bias are of channels, no longer of groups, whose size is not known",
    ),
    "Resize": (
        10,
        "t = Neg (s) y = Resize (x, t)",
        "stays of opset 10: its scales are no constant, and it rounds up where one is below 1",
    ),
    "training": (
        13,
        "y, m, v, a, b = BatchNormalization (x, s, s, s, s) z = Neg (m)",
        "stays of opset 13: its output 'm' is another one now",
    ),
    "mask": (11, "d, y = Dropout (x)", "stays of opset 11: its output 'y' is another one now"),
    "pooling": (
        11,
        "y = AveragePool <kernel_shape = [2, 2], ceil_mode = 1, count_include_pad = 1> (x)",
        "stays of opset 11: it counts padding in windows that go past the end (ceil_mode), which has changed",
    ),
    "unknown": (
        11,
        "y = Affine (x)",
        "stays of opset 11: onnx has no Affine in that opset, so that it is not known to stay the same",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINED)
def test_a_model_with_a_node_that_has_no_equal_stays(name: str) -> None:
    opset, nodes, reason = DECLINED[name]
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    text = f"agraph (float[1, 1, N, L] x, float[1] s) => (float[1, 1, M, K] y) {{ {nodes} }}"
    model = Model.from_proto(parser.parse_model(f"{head}\n{text}"))
    outcome = ConvertOpset().run(model)
    assert outcome.model is model
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [reason]


def test_a_function_is_converted_where_no_node_of_it_changes() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        agraph (float[N, 4] x) => (float[N, 4] y) {{ y = local.f (x) }}
        <domain: "local", opset_import: ["" : 17]>
        f (v) => (w) {{ {} }}
    """
    model = Model.from_proto(parser.parse_model(text.format("w = Neg (v)")))
    result = check(ConvertOpset(), model).model.proto
    assert [entry.version for entry in result.functions[0].opset_import] == [NEWEST]
    model = Model.from_proto(parser.parse_model(text.format("w = ReduceMean <axes = [1]> (v)")))
    assert reasons(ConvertOpset().run(model)) == [
        "function f/ReduceMean#0: stays of opset 17: it has to change, and is in a function: run inline-functions first"
    ]


def test_the_version_that_it_has_changes_nothing() -> None:
    model = model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }", opset=18)
    assert ConvertOpset(18).run(model).model is model
    assert reasons(ConvertOpset(6).run(model)) == ["model: operators before opset 7 are not known"]


@pytest.mark.parametrize("version", [0, 25])
def test_a_version_whose_operators_are_not_known_is_refused(version: int) -> None:
    with pytest.raises(UsageError, match=f"^convert-opset: version {version} is not between 1 and 24 - give an older"):
        ConvertOpset(version).run(model_of("agraph (float[N] x) => (float[N] y) { y = Neg (x) }"))


def test_it_is_a_pass_with_an_option() -> None:
    assert parse_pipeline("convert-opset{version=18}") == (ConvertOpset(18),)


def test_each_adapter_is_for_a_version_in_which_its_operator_changed() -> None:
    for name, version in NEWER:
        assert version in [step.since for step in conversion_steps(name, version - 1, version) or ()], name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "bert-fill-mask/model",
        pytest.param("whisper-tiny/decoder_model_merged", marks=pytest.mark.slow),
        pytest.param("llama-int4/model", marks=pytest.mark.slow),
    ],
)
def test_real_models_give_the_same_to_the_last_bit(name: str) -> None:
    proto = onnx.load_from_string(lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes()))
    model = Model.from_proto(proto)
    outcome = ConvertOpset().run(model)
    assert not outcome.declined
    assert outcome.model.graph.opset() == NEWEST
    assert [value.name for value in outcome.model.graph.outputs] == [value.name for value in model.graph.outputs]
    assert outcome.model.proto.graph.initializer[: len(proto.graph.initializer)] == proto.graph.initializer[:]
    proof = verify_rewrite(model, outcome.model, options=RewriteProofOptions(tolerance=0.0, runs=2))
    assert proof.passed, proof.failures


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose external tensors are inputs, because the checker wants to see their file."""
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    del light.graph.initializer[:]
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            light.graph.initializer.append(tensor)
    return light


@pytest.mark.cases("opus-mt-en-fr/decoder_with_past_model")
@pytest.mark.parametrize("name", ["nllb-600m/decoder_model_merged", "opus-mt-en-fr/decoder_with_past_model"])
def test_old_exports_are_converted_without_their_weights(name: str) -> None:
    proto = onnx.load_from_string(lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes()))
    outcome = ConvertOpset().run(Model.from_proto(proto))
    assert not outcome.declined
    onnx.checker.check_model(without_weights(outcome.model.proto))
    assert outcome.model.proto.graph.initializer[: len(proto.graph.initializer)] == proto.graph.initializer[:]
    assert {node.name for node in proto.graph.node} <= {node.name for node in outcome.model.proto.graph.node}


@pytest.mark.parametrize(("dims", "axis"), [("N, 3, 4", 1), ("N, 3, 4", -2), ("2, 3, 4", 0), ("2, 3, 4", 2)])
def test_a_softmax_over_several_axes_needs_no_newer_reshape_where_none_of_them_is_empty(dims: str, axis: int) -> None:
    model = model_of(f"agraph (float[{dims}] x) => (y) {{ y = Softmax <axis = {axis}> (x) }}", 11)
    outcome = check(ConvertOpset(13), model, [{"N": 2}, {"N": 0}])
    assert outcome.model.graph.opset() == 13


@pytest.mark.parametrize(("dims", "axis"), [("N, L, 4", 1), ("N, 3, 4", 0), ("N, 0, 4", 1)])
def test_a_softmax_over_several_axes_that_may_be_empty_stays(dims: str, axis: int) -> None:
    model = model_of(f"agraph (float[{dims}] x) => (y) {{ y = Softmax <axis = {axis}> (x) }}", 11)
    (declined,) = ConvertOpset(13).run(model).declined
    assert "a Reshape of opset 14 where one has no elements" in declined.reason


def test_a_softmax_in_a_branch_is_spelled_anew() -> None:
    branches = """then_branch = t () => (float[N, 3, 4] a) { a = Softmax <axis = 1> (x) },
        else_branch = e () => (float[N, 3, 4] b) { b = Neg (x) }"""
    model = model_of(f"agraph (bool c, float[N, 3, 4] x) => (y) {{ y = If (c) <{branches}> }}", 11)
    check(ConvertOpset(13), model, [{"N": 2}])

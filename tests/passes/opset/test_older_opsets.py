"""Conversion to older versions of the operator set, run in onnxruntime before and after."""

from __future__ import annotations

import lzma

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import TensorProto, helper
from real_models import MODELS
from rewriting import assert_same, check, lines, model_of, reasons
from sessions import run

from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.passes.opset.convert_opset import ConvertOpset, conversion_steps
from graphkit.passes.opset.spellings import NEWER, OLDER
from graphkit.verify import verify_rewrite

SIZES = [{"N": 2, "L": 3}, {"N": 1, "L": 1}]
EMPTY = [*SIZES, {"N": 2, "L": 0}]

# One line a case: the opset, the older one, and a node that is spelled anew between them.
SPELLED = {
    "ReduceMean": (18, 11, "y = ReduceMean <keepdims = 0> (x, last)"),
    "ReduceMax over all": (18, 8, "y = ReduceMax (x)"),
    "ReduceMax over no given axes": (18, 11, "y = ReduceMax (x, nothing)"),
    "ReduceSum": (17, 8, "y = ReduceSum (x, last)"),
    "Unsqueeze": (17, 8, "y = Unsqueeze (x, ends)"),
    "Squeeze": (17, 9, "u = Unsqueeze (x, ends) y = Squeeze (u, ends)"),
    "Split in lengths": (24, 8, "a, b = Split <axis = -1> (x, parts) y = Concat <axis = -1> (b, a)"),
    "Split in halves": (24, 11, "a, b = Split <axis = 2, num_outputs = 2> (x) y = Concat <axis = 2> (b, a)"),
    "Slice": (17, 8, "y = Slice (x, one, big, last)"),
    "Slice of some axes": (17, 10, "y = Slice (x, one, big, last, two)"),
    "TopK": (17, 8, "y, z = TopK <axis = -1> (x, two)"),
    "Clip": (17, 8, "y = Clip (x, low, high)"),
    "Clip above": (17, 9, "y = Clip (x, , high)"),
    "Pad": (17, 8, "y = Pad (x, pads, high)"),
    "Dropout": (17, 8, "y = Dropout (x, share)"),
    "Constant of an integer": (17, 11, "c = Constant <value_floats = [1.5, 2.0, -1.0, 4.0]> () y = Add (x, c)"),
    "Resize": (19, 11, "u = Unsqueeze (x, front) y = Resize <mode = \"linear\"> (u, , , sizes)"),
    "GridSample": (20, 16, "u = Unsqueeze (x, front) y = GridSample <mode = \"cubic\"> (u, places)"),
    "Gelu": (20, 19, "y = Gelu (x)"),
    "Gelu by tanh": (24, 9, "y = Gelu <approximate = \"tanh\"> (x)"),
    "DequantizeLinear": (17, 10, "q = QuantizeLinear (x, share, point) y = DequantizeLinear (q, share, point)"),
    "defaults that came later": (24, 7, "u = Flatten <axis = -1> (x) y = Reshape <allowzero = 0> (u, whole)"),
    **{
        f"{name} over axis {axis} in opset {version}": (13, version, f"y = {name} <axis = {axis}> (x)")
        for name in ("Softmax", "LogSoftmax", "Hardmax")
        for axis, version in ((0, 12), (1, 11), (2, 12), (-1, 10), (-2, 8), (-3, 12))
    },
    "a sequence": (24, 11, "s = SplitToSequence <axis = 2> (x, half) y = ConcatFromSequence <axis = 2> (s)"),
    "Softmax, default axis": (24, 9, "y = Softmax (x)"),
}  # fmt: skip
CONSTANTS = {
    "last": [-1], "ends": [0, -1], "front": [0], "one": [1], "two": [2], "big": [3], "parts": [1, 3],
    "nothing": np.zeros(0, np.int64), "pads": [0, 0, 1, 0, 0, 1], "sizes": [1, 2, 6, 8], "whole": [0, -1],
    "low": np.float32(-1.5), "high": np.float32(2.5), "share": np.float32(0.3), "point": np.uint8(100),
    "half": np.int64(2),
    "places": np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 3, 4, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_a_node_that_has_changed_gives_the_same_in_an_older_opset(name: str) -> None:
    opset, version, nodes = SPELLED[name]
    shape = "2, 3, 4" if name in ("Resize", "GridSample") else "N, L, 4"
    used = {key: value for key, value in CONSTANTS.items() if f", {key}" in nodes}
    model = model_of(f"agraph (float[{shape}] x) => (y) {{ {nodes} }}", opset, ir=10, **used)
    outcome = check(ConvertOpset(version), model, EMPTY if "max over axis" in name else SIZES)
    assert not outcome.declined
    assert outcome.model.graph.opset() == version


def test_what_the_older_opset_takes_as_it_stands_stays_field_by_field() -> None:
    model = model_of("agraph (float[N, 4] x) => (float[N, 4] y) { u = Relu (x) y = Add (u, x) }", opset=21)
    result = ConvertOpset(9).run(model).model.proto
    expected = onnx.ModelProto()
    expected.CopyFrom(model.proto)
    expected.opset_import[0].version = 9
    assert result == expected


IF = """
    agraph (float[N, 4] x, bool c) => (float[N, 4] y) {
        y = If (c) <
            then_branch = g1 () => (float[N, 4] a) { a = Softmax <axis = 0> (x) },
            else_branch = g2 () => (float[N, 4] b) { s = ReduceSum (x, last) b = Sub (x, s) }
        >
    }"""
LOOP = """
    agraph (float[N, 4] x, int64 n) => (float[N, 4] y, float[n, N, 1] sums) {
        on = Constant <value_int = 1> ()
        go = Cast <to = 9> (on)
        y, sums = Loop (n, go, x) <
            body = g1 (int64 i, bool cond, float[N, 4] carried) => (bool still, float[N, 4] next, float[N, 1] sum) {
                still = Identity (cond)
                next = Softmax <axis = 0> (carried)
                sum = ReduceSum (next, last)
            }
        >
    }"""
SCAN = """
    agraph (float[N, 4] x, float[N] start) => (float[N] y) {
        y, rows = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = g1 (float[N] carried, float[N] column)
            => (float[N] next, float[N] row) {
                next = Add (carried, column)
                wide = Unsqueeze (next, last)
                row = Squeeze (wide, last)
            }
        > (start, x)
    }"""


@pytest.mark.parametrize(
    ("text", "version"), [(IF, 12), (IF, 11), (IF, 8), (LOOP, 12), (LOOP, 11), (SCAN, 12), (SCAN, 9)]
)
def test_bodies_are_converted(text: str, version: int) -> None:
    model = model_of(text, opset=21, ir=10, last=[-1])
    x = np.random.default_rng(0).integers(-4, 5, (3, 4)).astype(np.float32)
    feeds = [{"x": x, "c": np.array(flag), "n": np.array(2), "start": x[:, 0]} for flag in (True, False)]
    names = {value.name for value in model.graph.inputs}
    feeds = [{name: array for name, array in feed.items() if name in names} for feed in feeds]
    outcome = check(ConvertOpset(version), model, feeds=feeds)
    assert outcome.model.graph.opset() == version


def test_a_tie_in_a_hardmax_keeps_its_first_place() -> None:
    model = model_of("agraph (float[N, 3, 2] x) => (float[N, 3, 2] y) { y = Hardmax <axis = 1> (x) }", opset=17)
    feed = {"x": np.array([[[1, 2], [1, 0], [0, 2]], [[0, 0], [0, 0], [0, 0]]], np.float32)}
    result = check(ConvertOpset(11), model, feeds=[feed]).model
    assert lines(result) == [
        "y_turned = Transpose <perm: ints = [0, 2, 1]> (x)",
        "y_rows = Hardmax <axis: int = 2> (y_turned)",
        "y = Transpose <perm: ints = [0, 2, 1]> (y_rows)",
    ]


DECLINED = {
    "younger operator": (18, 17, "y = Mish (x)", "onnx has no Mish before opset 18"),
    "younger normalization": (17, 16, "y = LayerNormalization (x, s)",
                              "onnx has no LayerNormalization before opset 17"),
    "younger attribute": (14, 13, "y = Reshape <allowzero = 1> (x, i)", "its attribute 'allowzero' came with opset 14"),
    "younger value": (19, 18, 'y = Pad <mode = "wrap"> (x, i)', "its mode 'wrap' came with opset 19"),
    "younger input": (18, 17, "y = Pad (x, i, , i)", "its input 'axes' came with opset 18"),
    "younger dtype": (14, 13, "c = Cast <to = 6> (x) d = Relu (c) y = Cast <to = 1> (d)",
                      "its input 'c' is int32, which came with opset 14"),
    "two dtypes": (12, 11, "e = Cast <to = 11> (x) y = Pow (x, e)",
                   "its inputs are of several dtypes, which came with opset 12"),
    "computed axes": (18, 17, "b = ArgMax (x) a = Squeeze (b) y = ReduceMax (x, a)",
                      "'a' is no constant, and has to be an attribute"),
    "nothing to reduce": (18, 17, "y = ReduceMax <noop_with_empty_axes = 1> (x)",
                          "it reduces nothing (noop_with_empty_axes)"),
    "unknown parts": (18, 17, "y, z = Split <num_outputs = 2> (x)", "its parts are not known to be equal"),
    "scales of channels": (13, 12, "c = Cast <to = 3> (x) y = DequantizeLinear (c, s)",
                           "its scale is not known to be one number"),
    "Mod of floats": (28, 24, "y = Mod (x, x)",
                      "it rounds down the quotients of floats (fmod is 0), which came with opset 28"),
    "GroupNormalization": (21, 20, "y = GroupNormalization <num_groups = 1> (x, s, s)",
                           "GroupNormalization is another one before opset 21"),
    "Resize": (11, 10, "y = Resize (x, s, s)", "Resize is another one before opset 11"),
    "sums": (8, 7, "y = Sum (x, s)", "its inputs are not known to have one shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINED)
def test_a_model_with_a_node_that_has_no_equal_stays(name: str) -> None:
    opset, version, nodes, reason = DECLINED[name]
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("an older onnx has no such opset")
    model = model_of(
        f"agraph (float[N, L, 2] x) => (float[N, M, K] y) {{ {nodes} }}", opset, s=np.ones(2, np.float32), i=[1]
    )
    outcome = ConvertOpset(version).run(model)
    assert outcome.model is model
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [f"stays of opset {opset}: {reason}"]


def test_each_spelling_is_for_a_version_in_which_its_operator_changed() -> None:
    for name, version in OLDER:
        steps = conversion_steps(name, version - 1, version)  # None: there was no such operator
        is_newer = version > onnx.defs.onnx_opset_version()  # than an older onnx knows
        assert steps is None or is_newer or version in [step.since for step in steps], name


def test_each_operator_that_changed_has_a_spelling_both_ways_or_none() -> None:
    """A step that needs more than the schemas say upwards is not plain downwards either."""
    one_way = {("GroupNormalization", 21), ("Resize", 11), ("Scatter", 11), ("Upsample", 9), ("Upsample", 10)}
    assert NEWER.keys() - OLDER.keys() == one_way


OPSETS = (24, 21, 18, 17, 15, 14, 13, 12, 11, 10, 9)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_way_through_many_opsets_gives_the_same(seed: int) -> None:
    """Down step by step and up again, of axes, floors and floats that are drawn."""
    rng = np.random.default_rng(seed)
    axis, other = rng.integers(-3, 3, 2)
    text = f"""agraph (float[N, L, 4] x) => (y) {{
        a = Softmax <axis = {axis}> (x) b = ReduceSum <keepdims = 1> (a, axes) c = Mul (a, b)
        d = Clip (c, low, high) e = LogSoftmax <axis = {other}> (d) f, g = Split <axis = 2> (e, parts)
        h = ReduceMax <keepdims = 1> (f, axes) i = Sub (g, h) y = Pad (i, pads, low) }}"""
    low, high = sorted(rng.normal(size=2).astype(np.float32))
    axes = np.array([other if other >= 0 else other + 3])
    parts, pads = np.array([1, 3]), rng.integers(0, 3, 6)
    start = model_of(text, 18, ir=10, axes=axes, low=low, high=high, parts=parts, pads=pads)
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    model = start
    for version in (*OPSETS[2:], *OPSETS[::-1]):
        outcome = ConvertOpset(version).run(model)
        assert not outcome.declined
        model = outcome.model
        onnx.checker.check_model(model.proto, full_check=True)
        assert_same(start, model, [{"x": x}])


@pytest.mark.cases("search/loop-greedy-11")
@pytest.mark.parametrize(
    ("name", "version"),
    [("whisper-tiny/decoder_model_merged", 17), ("search/loop-greedy", 11), ("bert-fill-mask/model", 11)],
)
def test_real_models_give_the_same_to_the_last_bit(name: str, version: int) -> None:
    model = Model.from_proto(onnx.load_from_string(lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes())))
    outcome = ConvertOpset(version).run(model)
    assert not outcome.declined
    proof = verify_rewrite(model, outcome.model, options=RewriteProofOptions(tolerance=0.0, runs=2))
    assert proof.passed, proof.failures


def test_a_function_is_inlined_first() -> None:
    """It takes an attribute of a node from its call."""
    node = helper.make_node("ReduceSum", ["v"], ["w"], keepdims=1)
    node.attribute.append(onnx.AttributeProto(name="axes", ref_attr_name="ax", type=onnx.AttributeProto.INTS))
    function = helper.make_function("local", "f", ["v"], ["w"], [node], [helper.make_opsetid("", 12)], ["ax"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", dim]) for name, dim in (("x", 4), ("y", 1)))
    graph = helper.make_graph([helper.make_node("f", ["x"], ["y"], domain="local", ax=[1])], "g", [x], [y])
    imports = [helper.make_opsetid("", 12), helper.make_opsetid("local", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[function])
    model = Model.from_proto(proto)
    assert reasons(ConvertOpset(18).run(model)) == [
        "function f/ReduceSum#0: stays of opset 12: the call of a function gives its attribute 'axes': "
        "run inline-functions first"
    ]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_gelu_is_spelled_in_the_order_in_which_onnxruntime_computes_it(approximate: str) -> None:
    """A step of a decoder repeats what it rounds: small differences grow with the tokens."""
    model = model_of(f'agraph (float[N] x) => (y) {{ y = Gelu <approximate = "{approximate}"> (x) }}', 20)
    feed = {"x": (np.random.default_rng(0).standard_normal(4096) * 3).astype(np.float32)}
    np.testing.assert_array_equal(run(ConvertOpset(19).run(model).model, feed), run(model, feed))

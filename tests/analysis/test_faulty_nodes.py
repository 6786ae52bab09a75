"""Nodes that no size makes run: the report names each of them, onnxruntime refuses it, and what runs has no fault."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

import graphkit
from graphkit.shapes import infer

REFUSALS = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException)


def model(body: str, **constants: str) -> onnx.ModelProto:
    parts = {name: value.partition(" {") for name, value in constants.items()}
    text = ", ".join(f"{kind} {name} = {{{elements}" for name, (kind, _, elements) in parts.items())
    between = f" <{text}>" if text else ""
    header = '<ir_version: 10, opset_import: ["": 23]>\n'
    return onnx.parser.parse_model(f"{header}g (float[2, 3, 4] x) => (y){between} {{ {body} }}")


def filled(dims: str) -> str:
    count = int(np.prod([int(dim) for dim in dims.split(",")]))
    return f"float[{dims}] {{{', '.join(['1'] * count)}}}"


# What is wrong, the body with {} for it, what runs there instead; and the constants beside it
CASES: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "softmax": ("y = Softmax<axis = {}>(x)", "7", "2", {}),
    "log softmax": ("y = LogSoftmax<axis = {}>(x)", "-4", "-3", {}),
    "norm": ("y = LpNormalization<axis = {}>(x)", "3", "-1", {}),
    "running sum": ("y = CumSum(x, {})", "five", "two", {"five": "int64 {5}", "two": "int64 {2}"}),
    "quantised axis": ("q = QuantizeLinear<axis = {}>(x, s) y = DequantizeLinear(q, t)", "7", "1",
        {"s": filled("3"), "t": filled("1")}),
    "scales": ("q = QuantizeLinear<axis = 1>(x, {}) y = DequantizeLinear(q, t)", "s", "u",
        {"s": filled("2"), "u": filled("3"), "t": filled("1")}),
    "zero point": ("y = QuantizeLinear(x, s, {})", "z", "w",
        {"s": "float {1}", "z": "uint8[2] {1, 1}", "w": "uint8 {1}"}),
    "sequences": ("y = ReverseSequence<batch_axis = 1, time_axis = 0>(x, {})", "a", "b",
        {"a": "int64[2] {1, 1}", "b": "int64[3] {1, 1, 1}"}),
    "batch norm": ("y = BatchNormalization(x, {0}, {0}, {0}, {0})", "a", "b", {"a": filled("2"), "b": filled("3")}),
    "instance norm": ("y = InstanceNormalization(x, {0}, {0})", "a", "b", {"a": filled("2"), "b": filled("3")}),
    "group norm": ("y = GroupNormalization<num_groups = {}>(x, b, b)", "2", "3", {"b": filled("3")}),
    "layer norm": ("y = LayerNormalization(x, {})", "a", "b", {"a": filled("3"), "b": filled("4")}),
    "layer norm's bias": ("y = LayerNormalization(x, b, {})", "a", "b", {"a": filled("3"), "b": filled("4")}),
    "RMS norm": ("y = RMSNormalization(x, {})", "a", "b", {"a": filled("3"), "b": filled("1")}),
    "convolution's bias": ("y = Conv(x, w, {})", "a", "b",
        {"w": filled("2,3,1"), "a": filled("3"), "b": filled("2")}),
    "transposed convolution": ("y = ConvTranspose(x, {})", "a", "b", {"a": filled("2,3,1"), "b": filled("3,2,1")}),
    "transposed convolution's bias": ("y = ConvTranspose(x, w, {})", "a", "b",
        {"w": filled("3,2,1"), "a": filled("3"), "b": filled("2")}),
    "product's bias": ("r = Flatten<axis = 2>(x) y = Gemm(r, w, {})", "a", "b",
        {"w": filled("4,2"), "a": filled("3"), "b": filled("6,1")}),
    "limits": ("y = Clip(x, {})", "a", "b", {"a": filled("2"), "b": filled("1")}),
    "LSTM": ("y = LSTM<hidden_size = 1>(x, {}, r)", "a", "b",
        {"a": filled("1,4,3"), "b": filled("1,4,4"), "r": filled("1,4,1")}),
    "GRU": ("y = GRU<hidden_size = 1>(x, w, {})", "a", "b",
        {"w": filled("1,3,4"), "a": filled("1,3,2"), "b": filled("1,3,1")}),
    "RNN's bias": ("y = RNN<hidden_size = 1>(x, w, r, {})", "a", "b",
        {"w": filled("1,1,4"), "r": filled("1,1,1"), "a": filled("1,1"), "b": filled("1,2")}),
    "rank of indices": ("y = GatherElements(x, {})", "a", "b", {"a": "int64[1, 1] {0}", "b": "int64[1, 1, 1] {0}"}),
    "size of indices": ("y = GatherElements(x, {})", "a", "b",
        {"a": "int64[1, 1, 5] {0, 0, 0, 0, 0}", "b": "int64[5, 1, 1] {0, 0, 0, 0, 0}"}),
    "updates": ("y = ScatterElements(x, i, {})", "a", "b",
        {"i": "int64[1, 1, 1] {0}", "a": filled("1,1,2"), "b": filled("1,1,1")}),
    "index": ("y = Gather<axis = 1>(x, {})", "a", "b", {"a": "int64[2] {0, 3}", "b": "int64[2] {-3, 2}"}),
    "top": ("y, j = TopK(x, {})", "a", "b", {"a": "int64[1] {5}", "b": "int64[1] {4}"}),
    "depth": ("y = OneHot(i, {}, v)", "a", "b",
        {"i": "int64[1] {0}", "v": "float[2] {0, 1}", "a": "int64 {-1}", "b": "int64 {3}"}),
    "parts": ("r = Flatten(x) y, a, b, c, d = Split<axis = {}, num_outputs = 5>(r)", "0", "1", {}),
    "rank for a triangle": ("r = ReduceMax<keepdims = {}>(x, a) y = Trilu(r)", "0", "1", {"a": "int64[2] {0, 1}"}),
    "attribute that lacks": ("y = Concat{}(x, x)", "", "<axis = 0>", {}),
    "attribute of no use": ("y = Relu{}(x)", "<slope = 1>", "", {}),
    "padding beside a dim of 0": ("e = Slice(x, i, i, j) y = Pad<mode = \"reflect\">(e, {})", "a", "b",
        {"i": "int64[1] {0}", "j": "int64[1] {2}",
         "a": "int64[6] {0, 0, 1, 0, 0, 0}", "b": "int64[6] {0, 1, 0, 0, 0, 0}"}),
    "kind of attribute": ("y = Softmax<axis = {}>(x)", "1.0", "1", {}),
    "inputs": ("y = Relu(x{})", ", x", "", {}),
    "outputs": ("y{} = Relu(x)", ", z", "", {}),
}  # fmt: skip


def runs(found: onnx.ModelProto, dims: tuple[int, ...] = (2, 3, 4)) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(found.SerializeToString(), options)
        session.run(None, {"x": np.ones(dims, np.float32)})
    except REFUSALS:
        return False
    return True


@pytest.mark.parametrize(("body", "wrong", "right", "constants"), CASES.values(), ids=CASES)
def test_what_onnxruntime_refuses_is_named_and_what_it_runs_is_not(
    body: str, wrong: str, right: str, constants: dict[str, str]
) -> None:
    for part, is_sound in ((wrong, False), (right, True)):
        found = model(body.format(part), **constants)
        assert runs(found) is is_sound
        findings = graphkit.report(graphkit.Model.from_proto(found)).findings()
        assert (findings == ()) is is_sound, findings


@pytest.mark.parametrize(("opset", "is_sound"), [(23, False), (24, False), (25, True)])
def test_a_mask_of_one_row_is_broadcast_since_opset_25(opset: int, *, is_sound: bool) -> None:
    text = "g (float[1, 2, 3, 4] x) => (y) <float[1, 3] m = {0, 0, 0}> { y = Attention(x, x, x, m) }"
    found = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    assert runs(found, (1, 2, 3, 4)) is is_sound
    assert (graphkit.hazards(graphkit.Model.from_proto(found)).hazards == ()) is is_sound


OLDER = {
    "statistics of each place": (7, "y = BatchNormalization<spatial = 0>(x, s, s, s, s)", True),
    "statistics of channels": (7, "y = BatchNormalization(x, s, s, s, s)", False),
    "the axis that Softmax takes by itself": (11, "a = Squeeze<axes = [0, 1]>(z) y = Softmax(a)", False),
    "the axis that it is given": (11, "a = Squeeze<axes = [0, 1]>(z) y = Softmax<axis = 0>(a)", True),
}


@pytest.mark.parametrize(("opset", "body", "is_sound"), OLDER.values(), ids=OLDER)
def test_older_operators_are_taken_as_they_were(opset: int, body: str, *, is_sound: bool) -> None:
    twelve = ", ".join(["1"] * 12)
    constants = f"float[3, 4] s = {{{twelve}}}, float[1, 1, 4] z = {{1, 2, 3, 4}}"
    text = f"g (float[2, 3, 4] x) => (y, w) <{constants}> {{ w = Relu(x) {body} }}"
    found = onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["": {opset}]>\n{text}')
    assert runs(found) is is_sound
    assert (graphkit.hazards(graphkit.Model.from_proto(found)).hazards == ()) is is_sound


def test_an_opset_that_no_onnx_has_is_named() -> None:
    found = model("y = Relu(x)")
    found.opset_import[0].version = 99
    assert not runs(found)
    (text,) = graphkit.summary(graphkit.Model.from_proto(found)).findings()
    newest = onnx.defs.onnx_opset_version()
    assert text == (
        f"onnxruntime does not load it: opset 99, where ONNX {onnx.__version__} ends at {newest} - "
        f"export it for opset {newest} or less."
    )


ROTARY = "g (float[1, 2, {0}] x) => (y) <int32[1] l = {{1}}, int32 t = {{2}}, float[2, {1}] c = {{{2}}}> {{ {3} }}"
GROUPED = "y, k, v = com.microsoft.GroupQueryAttention<num_heads = 1, kv_num_heads = 1{}>(x, x, x, , , l, t{})"


@pytest.mark.parametrize(
    ("size", "angles", "tables", "is_sound"),
    [(16, 8, ", c, c", True), (16, 4, ", c, c", False), (16, 16, ", c, c", False), (24, 8, ", c, c", False),
     (32, 12, ", c, c", False), (8, 4, ", c, c", False), (8, 8, "", True), (4, 8, "", False)],
)  # fmt: skip
def test_heads_and_their_tables_are_of_sizes_that_kernels_have(
    size: int, angles: int, tables: str, *, is_sound: bool
) -> None:
    node = GROUPED.format(", do_rotary = 1" if tables else "", tables)
    text = ROTARY.format(size, angles, ", ".join(["1"] * 2 * angles), node)
    found = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n{text}')
    assert runs(found, (1, 2, size)) is is_sound
    assert (graphkit.hazards(graphkit.Model.from_proto(found)).hazards == ()) is is_sound


def grouped_by_table(dims: str, more: str = "") -> onnx.ModelProto:
    count = int(np.prod([int(dim) for dim in dims.split(",")]))
    node = GROUPED.format(more, ", c, c")
    text = ROTARY.format(16, 8, "0", node).replace(
        "float[2, 8] c = {0}", f"float[{dims}] c = {{{'1, ' * (count - 1)}1}}"
    )
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n{text}')


@pytest.mark.parametrize(("dims", "is_sound"), [("1, 8", False), ("2, 8", True), ("2, 8, 1", True)])
@pytest.mark.parametrize("more", ["", ", do_rotary = 1"])
def test_a_table_has_a_row_for_each_position_whether_it_is_read_or_not(dims: str, more: str, *, is_sound: bool) -> None:
    found = grouped_by_table(dims, more)
    assert runs(found, (1, 2, 16)) is is_sound
    model = graphkit.Model.from_proto(found)
    assert (graphkit.hazards(model).hazards == ()) is is_sound
    assert str(infer(model)["y"]) == "[1, 2, 16]"


GROUPED_PAST = "com.microsoft.GroupQueryAttention<num_heads = 1, kv_num_heads = 1{}>({})"
PAIRS = {
    "queries, keys and values in one": (GROUPED_PAST.format("", "w, , , p, p, l, t"), ""),
    "keys without values": (GROUPED_PAST.format("", "x, x, , p, p, l, t"), "keys without values"),
    "past": (GROUPED_PAST.format("", "x, x, x, p, p, l, t"), ""),
    "past values alone": (GROUPED_PAST.format("", "x, x, x, , p, l, t"), "past values without past keys"),
    "tables": (GROUPED_PAST.format(", do_rotary = 1", "x, x, x, p, p, l, t, c, c"), ""),
    "cosines alone": (GROUPED_PAST.format("", "x, x, x, p, p, l, t, c"), "cosines without sines"),
    "sines alone": (GROUPED_PAST.format(", do_rotary = 1", "x, x, x, p, p, l, t, , c"), "sines without cosines"),
    "no tables": (
        GROUPED_PAST.format(", do_rotary = 1", "x, x, x, p, p, l, t"),
        "do_rotary without tables of cosines and sines",
    ),
    "window": (
        GROUPED_PAST.format(", sliding_window_cache = 1, local_window_size = 1", "x, x, x, p, p, l, t"), "",
    ),
    "no window": (
        GROUPED_PAST.format(", sliding_window_cache = 1", "x, x, x, p, p, l, t"),
        "sliding_window_cache without local_window_size",
    ),
    "several heads, past": ("com.microsoft.MultiHeadAttention<num_heads = 1>(x, x, x, , , , p, p)", ""),
    "several heads, past keys alone": (
        "com.microsoft.MultiHeadAttention<num_heads = 1>(x, x, x, , , , p)", "past keys without past values",
    ),
    "several heads, cache": ("com.microsoft.MultiHeadAttention<num_heads = 1>(x, p, p)", ""),
    "several heads, rows": (
        "com.microsoft.MultiHeadAttention<num_heads = 1>(x, r, r)", "the batches of queries, keys and values",
    ),
    "several heads, lengths": (
        "com.microsoft.MultiHeadAttention<num_heads = 1>(x, x, s)", "the lengths of keys and values",
    ),
    "several heads, lengths in a cache": (
        "com.microsoft.MultiHeadAttention<num_heads = 1>(x, p, o)", "the dims of keys and values",
    ),
    "standard, past": ("Attention(p, p, p, , p, p)", ""),
    "standard, past keys alone": ("Attention(p, p, p, , p)", "past keys without past values"),
}  # fmt: skip


@pytest.mark.parametrize(("node", "fault"), PAIRS.values(), ids=PAIRS)
def test_inputs_of_an_attention_that_go_together_are_both_there(node: str, fault: str) -> None:
    sizes = {"p": "1,1,1,16", "c": "3,8", "w": "1,2,48", "r": "2,2,16", "s": "1,3,16", "o": "1,1,2,16"}
    constants = ", ".join(filled(dims).replace(" ", f" {name} = ", 1) for name, dims in sizes.items())
    more = "int32[1] l = {2}, int32 t = {3}"
    text = f"g (float[1, 2, 16] x) => (y, z) <{constants}, {more}> {{ z = Relu(x) y, k, v = {node} }}"
    header = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'
    found = onnx.parser.parse_model(f"{header}\n{text}")
    assert runs(found, (1, 2, 16)) is (not fault)
    findings = graphkit.hazards(graphkit.Model.from_proto(found)).hazards
    assert [fault in str(finding) for finding in findings] == [True] * bool(fault), findings


TYPES = {
    "dims of an output": ("float[2, 5] y", "output 'y' is declared as [2, 5], and the nodes give [2, 3]"),
    "rank of an output": ("float[2, 3, 1] y", "output 'y' is declared as [2, 3, 1], and the nodes give [2, 3]"),
    "dtype": (
        "int64[2, 3] y",
        "The graph is not valid: Relu 'Relu#0' gives float32, and 'y' is declared as int64, so no runtime loads it - "
        "correct the declaration.",
    ),
    "symbols": ("float[N, M] y", ""),
}


@pytest.mark.parametrize(("output", "fault"), TYPES.values(), ids=TYPES)
def test_a_declaration_that_the_nodes_contradict_is_named(output: str, fault: str) -> None:
    text = f'<ir_version: 10, opset_import: ["": 18]>\ng (float[2, 3] x) => ({output}) {{ y = Relu(x) }}'
    found = graphkit.Model.from_proto(onnx.parser.parse_model(text))
    assert graphkit.report(found).findings() == ((fault,) if fault else ())

"""Recurrent state: linked by names and by what the nodes do, and each reason why an input is not linked."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper, parser

from graphkit.model import Model


def links(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the output that replaces each recurrent state, by input."""
    return {entry.past.name: entry.next.name for entry in Model.from_proto(proto).roles.states}


def sums(inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
    """Return a model whose outputs are all computed alike, so that only names and shapes tell what they are."""
    graph = helper.make_graph(
        [helper.make_node("Opaque", list(inputs), list(outputs), domain="custom")],
        "sums",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)])


X: dict[str, list[int | str]] = {"x": ["batch", 3]}


@pytest.mark.parametrize(
    ("past", "after"),
    [
        ("conv_states", "conv_states_out"),
        ("ssm_states", "present_ssm_states"),
        ("state", "stateN"),
        ("state0", "state0_out"),
        ("h", "hn"),
        ("c0", "cn"),
        ("h_0", "h_n"),
        ("h_in", "h_out"),
        ("hidden", "hidden_out"),
        ("attention_hidden", "out_attention_hidden"),
        ("cache_last_channel", "cache_last_channel_next"),
        ("attn_cache", "r_attn_cache"),
        ("cached_conv_1", "new_cached_conv_1"),
        ("input_states_1", "output_states_1"),
        ("average", "new_average"),
        ("past_conv.0", "present_conv.0"),
        ("input.cache.linear_cache.0", "output.cache.linear_cache.0"),
    ],
)
def test_names_link(past: str, after: str) -> None:
    assert links(sums({**X, past: [2, "batch", 8]}, {"y": ["batch", 3], after: [2, "batch", 8]})) == {past: after}


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        pytest.param({"frame": [1, 8]}, {"frame_out": [1, 8]}, id="no word says that it is state"),
        pytest.param({"state": [1, 8]}, {"state_out": [1, 9]}, id="another size"),
        pytest.param({"state": ["batch", 8]}, {"state_out": [1, 8]}, id="another batch"),
        pytest.param({"state": ["batch", "length"]}, {"state_out": ["batch", "length"]}, id="it may grow"),
        pytest.param({"state": ["seq_len", 8]}, {"state_out": ["seq_len", 8]}, id="its only dim is a length"),
        pytest.param({"state": [1, 8]}, {"state_out": [1, 8], "new_state": [1, 8]}, id="two outputs fit"),
        pytest.param({"state": [1, 8], "state_in": [1, 8]}, {"state_out": [1, 8]}, id="two inputs fit"),
        pytest.param({"state_mask": [1, 8]}, {"state_mask_out": [1, 8]}, id="a mask"),
        pytest.param({"h": [1, 8]}, {"c": [1, 8]}, id="other names"),
    ],
)
def test_what_is_ambiguous_is_not_linked(
    inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]
) -> None:
    assert links(sums({**X, **inputs}, outputs)) == {}


STEP: dict[str, list[int | str]] = {"xx": [2, "batch", 8], "aa": [2, "batch", 8]}


def _out(states: dict[str, list[int | str]], suffix: str = "_out") -> dict[str, list[int | str]]:
    return {f"{name}{suffix}": dims for name, dims in states.items()}


@pytest.mark.parametrize("suffix", ["_out", "_output", ".new", "_next"])
def test_names_of_several_inputs_that_come_out_again_link(suffix: str) -> None:
    """As those of RWKV, none of which says that it is state."""
    after = _out(STEP, suffix)
    assert links(sums({**X, **STEP}, {"y": ["batch", 3], **after})) == dict(zip(STEP, after, strict=True))


def test_a_name_that_comes_out_again_links_beside_a_state() -> None:
    inputs, outputs = {**X, "xx": [1, 8], "state": [1, 4]}, {"y": ["batch", 3], "xx_out": [1, 8], "state_out": [1, 4]}
    assert links(sums(inputs, outputs)) == {"xx": "xx_out", "state": "state_out"}


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        pytest.param({**X, "xx": [1, 8]}, {"y": [1, 3], "xx_out": [1, 8]}, id="one alone"),
        pytest.param({**X, **STEP}, _out(STEP), id="nothing else comes out"),
        pytest.param(STEP, {"y": [1, 3], **_out(STEP)}, id="nothing else comes in"),
        pytest.param(
            {**X, **STEP},
            {"y": [1, 3], **_out(STEP), "xx_output": STEP["xx"], "aa_output": STEP["aa"]},
            id="two outputs of each name",
        ),
        pytest.param({**X, **STEP}, {"y": [1, 3], **_out(STEP), "aa_out": [3, 1, 8]}, id="another size"),
        pytest.param({**X, **STEP}, {"y": [1, 3], **_out({**STEP, "aa": [2, 1, 8]})}, id="another batch"),
        pytest.param({**X, **STEP}, {"y": [1, 3], **_out(STEP, "_b")}, id="no suffix that is known"),
    ],
)
def test_names_that_come_out_again_are_no_state_by_themselves(
    inputs: dict[str, list[int | str]], outputs: dict[str, list[int | str]]
) -> None:
    assert links(sums(inputs, outputs)) == {}


def test_what_is_not_computed_from_an_input_does_not_replace_it() -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        apart (float[1, 3] x, float[1, 3] xx, float[1, 3] aa) => (float[1, 3] y, float[1, 3] xx_out, float[1, 3] aa_out)
        { y = Add (x, xx) z = Mul (y, aa) xx_out = Relu (z) aa_out = Sigmoid (x) }"""
    )
    assert links(proto) == {}


def test_layers_of_a_larger_model_have_no_state() -> None:
    """What they are given is all new."""
    dims: list[int | str] = [1, 4, 8]
    masked = {"hidden_states": dims, "attention_mask": ["batch", 4]}
    assert links(sums(masked, {"hidden_states_out": dims})) == {}


def test_a_state_of_another_dtype_is_not_linked() -> None:
    proto = sums({**X, "state": [1, 8]}, {"state_out": [1, 8]})
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert links(proto) == {}


def test_a_constant_is_no_state() -> None:
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        kept (float[1, 3] x, float[1, 8] state) => (float[1, 3] y, float[1, 8] state_out) {
            y = Relu (x)
            state_out = Identity (state)
        }"""
    )
    assert links(proto) == {}


LSTM = """<ir_version: 8, opset_import: ["" : 17]>
lstm (float[1, batch, 3] x, float[1, batch, 4] %s, float[1, batch, 4] %s)
=> (float[1, 1, batch, 4] y, float[1, batch, 4] last, float[1, batch, 4] memory)
<float[1, 16, 3] w, float[1, 16, 4] r> {
    y, a, b = LSTM <hidden_size = 4> (x, w, r, , , %s)
    last = Identity (a)
    memory = Identity (b)
}
"""


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_a_recurrent_node_links_its_states(order: tuple[str, str]) -> None:
    """Whatever they are called, and in whichever order they are declared."""
    proto = parser.parse_model(LSTM % ("first", "second", ", ".join(order)))
    assert links(proto) == dict(zip(order, ("last", "memory"), strict=True))


@pytest.mark.parametrize(("operator", "counts"), [("Expand", "1, 2, 4"), ("Tile", "1, 2, 1"), ("Transpose", "")])
def test_a_start_that_is_repeated_for_each_row_is_no_state(operator: str, counts: str) -> None:
    """What is moved alone is one, here that of one row."""
    rows, inputs = (2, "start, counts") if counts else (1, "start")
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        gru (float[t, {rows}, 3] x, float[1, 1, 4] start) => (float[t, 1, {rows}, 4] y, float[1, b, 4] start_out)
        <float[1, 12, 3] w, float[1, 12, 4] r, int64[3] counts = {{{counts or "1, 1, 1"}}}> {{
            h = {operator} ({inputs})
            y, start_out = GRU <hidden_size = 4> (x, w, r, , , h)
        }}"""
    text = text.replace("Transpose (", "Transpose <perm = [0, 1, 2]> (")
    assert links(parser.parse_model(text)) == ({} if counts else {"start": "start_out"})


def test_states_in_one_tensor_are_linked_by_the_nodes_that_read_them() -> None:
    """As in a voice activity detector: rows 0 and 1 of a tensor are the hidden and the cell state."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        vad (float[1, batch, 3] x, float[2, batch, 4] packed) => (float[1, 1, batch, 4] y, float[2, batch, 4] behind)
        <float[1, 16, 3] w, float[1, 16, 4] r, int64[2] parts = {1, 1}> {
            h, c = Split <axis = 0> (packed, parts)
            y, a, b = LSTM <hidden_size = 4> (x, w, r, , , h, c)
            behind = Concat <axis = 0> (a, b)
        }"""
    )
    assert links(proto) == {"packed": "behind"}


CELL = """<ir_version: 8, opset_import: ["" : 17]>
cell (float[batch, 3] x, float[batch, 8] state%s) => (float[batch, 4] y, float[batch, 8] z%s)
<float[3, 4] w, float[4, 4] r, int64[2] parts = {4, 4}> {
    h, c = Split <axis = 1> (state, parts)
    a = MatMul (x, w) b = MatMul (h, r) i = Add (a, b) f = Sigmoid (i)
    kept = Mul (f, c) new = Tanh (i) memory = Add (kept, new)
    y = Tanh (memory)
    %s
}
"""
JOINED = "z = Concat <axis = 1> (y, memory)"


def test_a_cell_of_plain_operators_is_linked_by_what_flows_from_its_state() -> None:
    """As in a voice activity detector whose state holds `h` beside `c`, with an output that has a number for a name."""
    assert links(parser.parse_model(CELL % ("", "", JOINED))) == {"state": "z"}


def test_an_exporters_number_tells_a_state_from_what_may_have_its_shape() -> None:
    """PyTorch calls an output `state_1` where `state` is taken, and declares a symbol of its own for what it joins."""
    text = (CELL % ("", "", JOINED)).replace("float[batch, 8] z", "float[batch, joined] z")
    assert links(parser.parse_model(text)) == {}  # it may be the next x
    assert links(parser.parse_model(text.replace("z", "state_1"))) == {"state": "state_1"}


def test_the_flow_goes_through_bodies() -> None:
    inside = "u = Concat <axis = 1> (y, memory)"
    branch = f"""z = If (p) <then_branch = t () => (float[batch, 8] u) {{ {inside} }},
    else_branch = e () => (float[batch, 8] v) {{ {inside.replace("u", "v", 1)} }}>"""
    assert links(parser.parse_model(CELL % (", bool p", "", branch))) == {"state": "z"}


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        pytest.param(CELL % ("", ", float[batch, 8] z2", f"{JOINED} z2 = Neg (z)"), "", "", id="two outputs fit"),
        pytest.param(
            CELL % (", float[batch, 8] other", "", "s = Concat <axis = 1> (y, memory) z = Add (s, other)"),
            "",
            "",
            id="two inputs fit",
        ),
        pytest.param(CELL % ("", "", JOINED), "state", "frame", id="no word says that it is state"),
        pytest.param(CELL % ("", "", JOINED), "state", "hidden_states", id="activations"),
        pytest.param(CELL % ("", "", JOINED), "state", "memory", id="an encoder's memory"),
        pytest.param(CELL % ("", "", JOINED), "float[batch, 8] z", "float[batch, 9] z", id="another size"),
        pytest.param(CELL % ("", "", "z = Concat <axis = 1> (a, a)"), "", "", id="it does not depend on the state"),
        pytest.param(CELL % ("", "", "z = Neg (state)"), "", "", id="it depends on nothing else"),
        pytest.param(CELL % ("", "", JOINED), "z", "cell_memory", id="the name of another state"),
    ],
)
def test_a_flow_that_leaves_a_doubt_links_nothing(model: str, old: str, new: str) -> None:
    assert links(parser.parse_model(model.replace(old, new) if old else model)) == {}


WINDOW = """<ir_version: 8, opset_import: ["" : 17]>
window (float[batch, 2, 3] x, float[batch, 4, 3] left%s) => (float[batch, 6, 3] y, float[batch, %s, 3] right)
<int64[1] from = {%d}, int64[1] to = {9223372036854775807}, int64[1] axis = {1}> {
    y = Concat <axis = 1> (left, x)
    right = Slice (y, from, to, axis)
}
"""


def test_a_window_over_what_is_new_is_state() -> None:
    assert links(parser.parse_model(WINDOW % ("", "kept", -4))) == {"left": "right"}


def test_a_window_of_another_size_is_none() -> None:
    assert links(parser.parse_model(WINDOW % ("", "5", -5))) == {}


def test_a_cache_that_is_a_window_is_state_and_one_that_grows_is_not() -> None:
    text = WINDOW.replace("left", "cache_k_0").replace("right", "new_cache_k_0")
    model = Model.from_proto(parser.parse_model(text % ("", "kept", -4)))
    assert [entry.past.name for entry in model.roles.states] == ["cache_k_0"]
    assert model.roles.cache == ()
    text = text.replace("float[batch, 4, 3] cache_k_0", "float[batch, past, 3] cache_k_0")
    model = Model.from_proto(parser.parse_model(text % ("", "total", 0)))
    assert [entry.past.name for entry in model.roles.cache if entry.past] == ["cache_k_0"]
    assert model.roles.states == ()


def test_the_axes_of_state_are_its_batch_and_nothing_else() -> None:
    model = Model.from_proto(sums({**X, "state": [2, "n", 8]}, {"state_out": [2, "n", 8]}))
    (entry,) = model.roles.states
    assert [model.roles.axis(entry.past, at) for at in range(3)] == ["other", "batch", "other"]
    assert (model.roles.of(entry.past), model.roles.of(entry.next)) == ("state", "next state")


@pytest.mark.parametrize(
    ("x", "after", "is_state"),
    [
        (["batch", 3], [2, "batch", 8], True),
        (["batch", 3], [2, "rows", 8], True),
        (["rows", 3], [2, "rows", 8], False),
        (["batch", 3], [2, 1, 8], False),
        (["batch", 3], [2, None, 8], True),
        ([None, 3], [2, None, 8], False),
    ],
)
def test_a_dim_of_a_next_state_may_have_another_name_that_no_input_has(
    x: list[int | str], after: list[int | str], is_state: bool
) -> None:
    found = links(sums({"x": x, "state": [2, "batch", 8]}, {"y": ["batch", 3], "state_out": after}))
    assert found == ({"state": "state_out"} if is_state else {})

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from small_models import model

from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.model import Model, load
from graphkit.shapes.constraints.legal_sizes import Sizes, symbol_sizes
from graphkit.verify.feeder import KINDS
from graphkit.verify.input_elements import Draw, Kind
from graphkit.verify.input_generator import InputGenerator, index_bound, is_flag, padding_mask

RealModel = Callable[[str], Model]
SIZES = Sizes(batch=2, sequence=3, past=4, encoder=5)


def shapes(model: Model, sizes: Sizes = SIZES) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in InputGenerator(model).make(sizes).items()}


def test_a_merged_decoder(real_model: RealModel) -> None:
    found = shapes(real_model("nllb-600m/decoder_model_merged"))
    assert found["input_ids"] == (2, 3)
    assert found["encoder_hidden_states"] == (2, 5, 1024)
    assert found["past_key_values.0.decoder.key"] == (2, 16, 4, 64)
    assert found["past_key_values.0.encoder.key"] == (2, 16, 5, 64)
    assert found["use_cache_branch"] == (1,)


def test_a_decoder_only_model_with_a_mask_over_past_and_new_tokens(real_model: RealModel) -> None:
    found = shapes(real_model("gemma-270m/model"))
    assert (found["attention_mask"], found["position_ids"]) == ((2, 7), (2, 3))
    assert found["past_key_values.17.value"] == (2, 1, 4, 256)


@pytest.mark.cases("anonymous-arg3-shape3", "bshd-k_cache_0-shape2")
@pytest.mark.parametrize(
    ("style", "name", "shape"),
    [
        ("stacked", "past_key_values", (3, 2, 2, 4, 4, 8)),
        ("past_0-2bhsd", "past_1", (2, 2, 4, 4, 8)),
        ("bshd", "k_cache_0", (2, 4, 1, 8)),
        ("anonymous", "arg3", (2, 4, 4, 8)),
    ],
)
def test_other_cache_layouts(style: str, name: str, shape: tuple[int, ...], real_model: RealModel) -> None:
    assert shapes(real_model(f"cache-styles/{style}"))[name] == shape


def test_an_empty_past(real_model: RealModel) -> None:
    found = shapes(real_model("gemma-270m/model"), Sizes(batch=1, sequence=2, past=0))
    assert found["past_key_values.0.key"] == (1, 1, 0, 256)


def test_the_mask_of_a_merged_decoder_only_model_spans_the_past(real_model: RealModel) -> None:
    assert shapes(real_model("gpt2-tiny/decoder_model_merged"))["attention_mask"] == (2, 7)


def test_symbols_can_be_given_by_name(real_model: RealModel) -> None:
    sizes = Sizes(symbols=(("height", 64), ("width", 96), ("num_channels", 3)))
    assert shapes(real_model("detr-resnet-50/model_quantized"), sizes)["pixel_values"] == (1, 3, 64, 96)


def test_ids_are_within_the_vocabulary_and_seeded() -> None:
    maker = InputGenerator(load("example:causal-attention"), seed=3)
    ids = maker.make(Sizes(batch=8, sequence=50))["input_ids"]
    assert ids.dtype == np.int64
    assert 0 <= ids.min() < ids.max() < 64
    np.testing.assert_array_equal(ids, maker.make(Sizes(batch=8, sequence=50))["input_ids"])


def test_arrays_can_be_given() -> None:
    ids = np.array([[1, 2, 3]])
    feed = InputGenerator(load("example:causal-attention")).make(Sizes(sequence=3), {"input_ids": ids})
    assert feed["input_ids"] is ids


def test_expressions_of_symbols_follow_from_them() -> None:
    dims = {"x": ["batch", "past_len + seq + 1"], "k": ["past_len"], "ids": ["seq"]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, texts) for name, texts in dims.items()]
    graph = helper.make_graph([], "g", values, [])
    model = Model.from_proto(helper.make_model(graph))
    sizes = Sizes(batch=2, symbols=(("past_len", 4), ("seq", 3)))
    assert shapes(model, sizes) == {"x": (2, 8), "k": (4,), "ids": (3,)}
    assert symbol_sizes(model, sizes) == {"batch": 2, "past_len": 4, "seq": 3}


def test_an_input_without_a_declared_shape_is_an_error() -> None:
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [])
    with pytest.raises(ModelError, match="tensor 'x': no input can be made for it: its shape or type is not declared"):
        InputGenerator(Model.from_proto(helper.make_model(graph))).make(SIZES)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_every_row_of_a_mask_starts_with_a_token_and_padding_comes_last(rows: int, columns: int, seed: int) -> None:
    mask = padding_mask((rows, columns), np.random.default_rng(seed))
    assert mask[:, 0].all()
    assert (np.diff(mask, axis=1) <= 0).all()
    assert mask[0].all()
    assert columns == 1 or not mask[1:].all(axis=1).any()


@pytest.mark.parametrize(
    ("nodes", "bound"),
    [
        ("y = Gather (table, x)", 6),
        ("y = Gather <axis = 1> (table, x)", 4),
        ("t = Cast <to = 7> (x) u = Unsqueeze (t, axes) y = Gather (table, u)", 6),
        ("t = Concat <axis = 0> (axes, x) y = Gather (table, t)", 6),
        ("t = Tile (x, axes) a, b = Split <num_outputs = 2> (t) y = Gather (table, b)", 6),
        ("a = Gather (table, x) y = Gather <axis = 1> (table, x)", 4),
        ("t = Concat <axis = 0> (table, table) u = Relu (t) y = Gather (u, x)", 12),  # computed, of a known length
        ("t = Pad (x, pads, axis) u = Clip (t, axis) y = Gather (table, u)", 6),  # labels of points, -1 for none
        ("t = Max (x, axis) y = Gather (table, t)", 6),
        ("t = Clip (x, axis, last) y = Gather (table, t)", None),
        ("t = Add (x, x) y = Gather (table, t)", None),
        ("t = CumSum (x, axis) y = Gather (table, t)", 2),  # positions that a mask counts
        ("t = ReduceSum (x, axes) u = Sub (t, axes) y = Gather (table, u)", 2),
        ("t = CumSum (x, axis) u = Mul (t, x) y = Cast <to = 1> (u)", None),
        ("y = Gather (x, axes)", None),
        ("y = Gather <axis = 5> (table, x)", None),
    ],
)
def test_indices_stay_within_the_table_that_they_look_up_in(nodes: str, bound: int | None) -> None:
    constants = {"table": np.ones((6, 4)).tolist(), "axes": [0], "axis": 0, "pads": [0, 1], "last": 5}
    found = model(f"g (int64[n] x) => (float[n] y) {{ {nodes} }}", **constants)
    assert index_bound(found.graph.inputs[0], found) == bound
    made = InputGenerator(found).arrays({"x": (500,)})["x"]
    assert set(made.tolist()) == set(range(bound or 8))


def test_a_table_in_a_branch_counts() -> None:
    found = model(
        """g (int64[n] x, bool flag) => (float[m] y) {
            y = If (flag) <
                then_branch = a () => (float[m] t) { t = Gather (table, x) },
                else_branch = b () => (float[m] e) { e = Cast <to = 1> (x) }
            >
        }""",
        table=[1.0] * 3,
    )
    assert index_bound(found.graph.inputs[0], found) == 3


def test_positions_stay_within_their_table() -> None:
    found = model(
        "g (int64[b, s] position_ids) => (float[b, s] y) { y = Gather (table, position_ids) }", table=[1.0] * 6
    )
    made = InputGenerator(found).arrays({"position_ids": (1, 4)}, past=3)["position_ids"]
    assert made.tolist() == [[3, 4, 5, 5]]


@pytest.mark.parametrize(("dims", "columns", "last"), [("6, 2", 1, 5), ("6, 4", 2, 3), ("6", 1, 5)])
def test_positions_stay_within_the_axes_that_a_row_of_indices_is_for(dims: str, columns: int, last: int) -> None:
    """A table [positions, width] has as many positions, however narrow its rows are."""
    nodes = " ".join(f"u{at} = Unsqueeze (position_ids, axes)" for at in range(columns))
    joined = ", ".join(f"u{at}" for at in range(columns))
    found = model(
        f"""g (int64[b, s] position_ids, float[{dims}] table) => (y) {{
            {nodes} i = Concat <axis = -1> ({joined}) y = GatherND (table, i) }}""",
        axes=[-1],
    )
    made = InputGenerator(found).arrays({"position_ids": (1, 8), "table": tuple(map(int, dims.split(",")))})
    assert made["position_ids"].max() == last


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("uint8", np.uint8),
        ("int8", np.int8),
        ("uint16", np.uint16),
        ("int32", np.int32),
        ("uint64", np.uint64),
        ("float16", np.float16),
        ("double", np.float64),
        ("bool", np.bool_),
        ("string", np.object_),
    ],
)
def test_every_usual_dtype_can_be_made(kind: str, dtype: type) -> None:
    found = model(f"g ({kind}[n, 3] x) => ({kind}[n, 3] y) {{ y = Identity (x) }}")
    made = InputGenerator(found).arrays({"x": (40, 3)})
    assert (made["x"].dtype, made["x"].shape) == (dtype, (40, 3))
    assert len(set(made["x"].ravel().tolist())) > 1


@pytest.mark.parametrize("kind", ["bfloat16", "float8e4m3fn", "float8e5m2", "int4", "uint4", "float4e2m1"])
@pytest.mark.parametrize("draw", KINDS)
def test_dtypes_that_numpy_has_not_can_be_made(kind: str, draw: Kind) -> None:
    found = model(f"g ({kind}[n, 3] x) => ({kind}[n, 3] y) {{ y = Identity (x) }}")
    made = InputGenerator(found).arrays({"x": (40, 3)}, draw=Draw(draw))["x"]
    declared = declared_type(found.graph.inputs[0])
    assert declared is not None
    assert (made.dtype, made.shape) == (declared.numpy_dtype, (40, 3))
    assert len(set(map(float, made.astype(np.float32).ravel()))) > 4


def test_a_dtype_that_no_runtime_has_is_declined() -> None:
    with pytest.raises(ModelError, match="tensor 'x': no input can be made for it: complex64"):
        InputGenerator(model("g (complex64[n] x) => (complex64[n] y) { y = Identity (x) }")).arrays({"x": (2,)})


@pytest.mark.parametrize(
    ("dims", "flag"), [("", True), ("[]", False), ("[1]", True), ("[n]", False), ("[1, 1]", False)]
)
def test_one_boolean_is_a_flag(dims: str, flag: bool) -> None:
    found = model(f"g (bool{dims} x) => (bool{dims} y) {{ y = Not (x) }}")
    assert is_flag(found.graph.inputs[0]) is flag


def test_padding_stays_within_the_past_where_an_operator_counts_the_mask(real_model: RealModel) -> None:
    maker = InputGenerator(real_model("llama-int4/model"))
    assert maker.make(Sizes(batch=4, sequence=5, past=0))["attention_mask"].all()
    mask = maker.make(Sizes(batch=4, sequence=5, past=9))["attention_mask"]
    assert not mask.all()
    assert mask.sum(1).min() >= 5


@pytest.mark.parametrize(("nodes", "counts"), [("n = Not (m)", 1), ("n = Identity (m)", 0)], ids=["keeps", "pads"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_row_of_a_mask_lets_something_count(nodes: str, counts: int, seed: int) -> None:
    """Which elements hide follows from the nodes: a mask whose ones pad is never ones throughout."""
    masked = model(
        f"""g (float[batch, length] x, bool[batch, length] m) => (y) {{
        {nodes} filled = Where (n, least, x) y = Softmax (filled) }}""",
        least=np.array(-1e9),
    )
    mask = InputGenerator(masked, seed).make(Sizes(batch=8, sequence=6), {"x": np.zeros((8, 6), np.float32)})["m"]
    assert (mask == bool(counts)).any(axis=1).all()
    assert (mask != bool(counts)).any()


@pytest.mark.parametrize(
    ("node", "inputs"), [("MaxUnpool <kernel_shape = [2]> (x, i)", {"i"}), ("Gather (x, i)", set())]
)
def test_indices_that_onnxruntime_may_not_check_stay_usual(node: str, inputs: set[str]) -> None:
    found = model(f"g (float[1, 1, 2] x, int64[1, 1, 2] i) => (y) {{ y = {node} }}")
    assert InputGenerator(found).steering_inputs == inputs

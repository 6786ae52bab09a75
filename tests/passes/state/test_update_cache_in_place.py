"""A cache in slots gives what a growing cache gives, to the last bit; what has no slots is declined with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnxruntime
import pytest
from bundles import SLOTS, decoder
from caches import KEY, SPOILT, VALUE, grown, in_slots, seen
from rewriting import lines, model_of, reasons
from sessions import run

from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model
from graphkit.passes.state.update_cache_in_place import SINCE, Update, UpdateCacheInPlace

UPDATES: tuple[Update, ...] = ("tensor-scatter", "scatter-nd")
SIZES = ([1, 1, 1], [3, 1, 2], [SLOTS], [2, SLOTS - 2])


@pytest.mark.cases(3)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("start", [False, True], ids=["one model", "a model for the start"])
def test_slots_give_what_a_growing_cache_gives(update: Update, rows: int, start: bool) -> None:
    model = Model.from_proto(decoder(opset=max(SINCE[update], 17)))
    later = UpdateCacheInPlace(SLOTS, update).run(model)
    first = [UpdateCacheInPlace(SLOTS, update, start=1).run(model)] if start else []
    models = [outcome.model for outcome in (*first, later)]
    assert later.changes == ("2 caches of 8 slots",)
    for made in models:
        onnx.checker.check_model(made.proto)
    for sizes in SIZES:
        chunks = seen(np.random.default_rng(1), sizes, rows)
        expected, cache = grown(model, chunks)
        actual, state = in_slots(models, chunks)
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
        used = sum(sizes)
        for name in (KEY, VALUE):
            np.testing.assert_array_equal(state[name][:, :, :used], cache[name])
            assert np.isnan(state[name][:, :, used:]).all()
        mask = np.concatenate([new for _, new in chunks], 1)
        np.testing.assert_array_equal(state["attention_mask_slots"][:, :used], mask)
        assert (state["attention_mask_slots"][:, used:] == SPOILT).all()


def test_slots_come_first() -> None:
    made = UpdateCacheInPlace(SLOTS).run(Model.from_proto(decoder(opset=17))).model
    assert {value.name: declared_dims(value) for value in made.graph.inputs} == {
        "input_ids": ("batch", "seq"),
        "attention_mask": ("batch", "seq"),
        KEY: ("slots", "batch", 2, 4),
        VALUE: ("slots", "batch", 2, 4),
        "past_length": (1,),
        "attention_mask_slots": ("slots", "batch"),
    }
    assert {value.name: declared_dims(value) for value in made.graph.outputs} == {
        "logits": ("batch", "seq", 11),
        "attention_mask_slots_after": ("slots", "batch"),
        f"{KEY}_after": ("slots", "batch", 2, 4),
        f"{VALUE}_after": ("slots", "batch", 2, 4),
    }


def test_slots_have_a_name_of_their_own() -> None:
    text = """g (int64[slots, L] input_ids, float[slots, 2, past, 4] past_key_0, float[slots, 2, L, 4] k)
    => (float[slots, 2, all, 4] present_key_0) { present_key_0 = Concat <axis = 2> (past_key_0, k) }"""
    made = UpdateCacheInPlace(8).run(model_of(text, 17)).model
    past = next(value for value in made.graph.inputs if value.name == "past_key_0")
    assert declared_dims(past) == ("slots_2", "slots", 2, 4)


def test_onnxruntime_reads_slots_where_they_lie(tmp_path: Path) -> None:
    """No Transpose and no Slice of a cache is left: the products take it as it is."""
    model = UpdateCacheInPlace(SLOTS).run(Model.from_proto(decoder(opset=17))).model
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(model.proto.SerializeToString(), options)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    readers = [node.op_type for node in nodes for name in (KEY, VALUE) if f"{name}_after" in node.input]
    assert readers == ["FusedMatMul", "FusedMatMul"]


def test_the_interface_of_tensor_scatter_has_all_slots() -> None:
    made = UpdateCacheInPlace(SLOTS, "tensor-scatter").run(Model.from_proto(decoder(opset=24))).model
    assert {value.name: declared_dims(value) for value in made.graph.inputs} == {
        "input_ids": ("batch", "seq"),
        "attention_mask": ("batch", "seq"),
        KEY: ("batch", 2, SLOTS, 4),
        VALUE: ("batch", 2, SLOTS, 4),
        "past_length": (1,),
        "attention_mask_slots": ("batch", SLOTS),
    }
    assert {value.name: declared_dims(value) for value in made.graph.outputs} == {
        "logits": ("batch", "seq", 11),
        "attention_mask_slots_after": ("batch", SLOTS),
        f"{KEY}_after": ("batch", 2, SLOTS, 4),
        f"{VALUE}_after": ("batch", 2, SLOTS, 4),
    }


@pytest.mark.parametrize("update", UPDATES)
def test_a_start_takes_no_length(update: Update) -> None:
    made = UpdateCacheInPlace(SLOTS, update, start=1).run(Model.from_proto(decoder(opset=24))).model
    assert "past_length" not in {value.name for value in made.graph.inputs}
    assert not any(" = Slice " in line or "<axis: int = 2> (past" in line for line in lines(made))


# What took the length of the past from a shape

HEAD = "g (int64[N, L] input_ids, float[N, 2, past, 4] past_key_0, float[N, 2, L, 4] k{}) => "
JOINED = "present_key_0 = Concat <axis = 2> (past_key_0, k)"
PRESENT = "float[N, 2, all, 4] present_key_0"


def joined(nodes: str, output: str, inputs: str = "", opset: int = 24) -> Model:
    text = f"{HEAD.format(inputs)} ({PRESENT}, {output}) {{ {JOINED} {nodes} }}"
    return model_of(text, opset, 11)


def laid(slots: np.ndarray, update: Update, used: int, axis: int = 2) -> np.ndarray:
    """Return slots that lie along an axis as a model takes them, of which so many are in use after it."""
    return np.moveaxis(slots, axis, 0)[:used] if update == "scatter-nd" else slots


def back(slots: np.ndarray, update: Update, axis: int = 2) -> np.ndarray:
    return np.moveaxis(slots, 0, axis) if update == "scatter-nd" else slots


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    "attributes", ["", "start = 1", "end = 3", "start = -2", "end = -1", "start = 2, end = 3", "start = -9, end = 9"]
)
def test_a_shape_of_the_past_is_that_of_what_is_in_use(attributes: str, update: Update) -> None:
    spelled = f"<{attributes}> " if attributes else ""
    model = joined(f"s = Shape {spelled}(past_key_0)", "int64[n] s")
    made = UpdateCacheInPlace(8, update).run(model).model
    assert not any("Shape (past_key_0)" in line for line in lines(made))
    for rows, past in ((1, 0), (3, 5)):
        feed = {"input_ids": np.zeros((rows, 2), np.int64), "k": np.zeros((rows, 2, 2, 4), np.float32)}
        expected = run(model, {**feed, "past_key_0": np.zeros((rows, 2, past, 4), np.float32)})[1]
        cache = laid(np.zeros((rows, 2, 8, 4), np.float32), update, past + 2)
        slots = {"past_key_0": cache, "past_length": np.array([past])}
        np.testing.assert_array_equal(run(made, {**feed, **slots})[0], expected, strict=True)


def test_a_shape_of_no_dim_is_empty() -> None:
    model = joined("s = Shape <start = 2, end = 2> (past_key_0)", "int64[n] s")
    made = UpdateCacheInPlace(8).run(model).model
    feed = {"input_ids": np.zeros((1, 1), np.int64), "k": np.zeros((1, 2, 1, 4), np.float32)}
    slots = {"past_key_0": np.zeros((4, 1, 2, 4), np.float32), "past_length": np.array([3])}
    used = {value.name for value in made.graph.inputs}
    given = run(made, {name: array for name, array in {**feed, **slots}.items() if name in used})
    assert given[0].shape == (0,)


def test_a_cache_of_many_heads_for_each_row() -> None:
    """Its first dim is a multiple of the batch."""
    text = """g (int64[N, L] input_ids, float[2*N, past, 4] past_key_0, float[2*N, L, 4] k)
        => (float[2*N, all, 4] present_key_0, float[2*N, all, 4] y) {
            present_key_0 = Concat <axis = 1> (past_key_0, k) y = Neg (present_key_0) }"""
    for update in UPDATES:
        model = model_of(text.replace("2*N", "rows"), max(SINCE[update], 17), 11)
        for info in (*model.proto.graph.input[1:], *model.proto.graph.output):
            info.type.tensor_type.shape.dim[0].dim_param = "2*N"
        made = UpdateCacheInPlace(6, update).run(Model.from_proto(model.proto)).model
        new = np.arange(4 * 2 * 4, dtype=np.float32).reshape(4, 2, 4)
        slots = np.full((4, 6, 4), np.nan, np.float32)
        slots[:, :3] = 5
        cache = laid(slots, update, 5, 1)
        feed = {"input_ids": np.zeros((2, 2), np.int64), "k": new, "past_key_0": cache, "past_length": np.array([3])}
        y, after = run(made, feed)
        np.testing.assert_array_equal(y, -np.concatenate([slots[:, :3], new], 1))
        unused = slots[:, 5:] if update == "tensor-scatter" else slots[:, :0]
        np.testing.assert_array_equal(back(after, update, 1), np.concatenate([slots[:, :3], new, unused], 1))


# Positions


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("start", [0, 1])
def test_positions_without_a_mask_are_those_of_the_slots(dtype: str, start: int, update: Update) -> None:
    model = joined("p = Neg (position_ids)", f"{dtype}[N, L] p", f", {dtype}[N, L] position_ids")
    made = UpdateCacheInPlace(8, update, start=start).run(model).model
    past = 0 if start else 4
    feed = {"input_ids": np.zeros((2, 3), np.int64), "k": np.zeros((2, 2, 3, 4), np.float32)}
    cache = laid(np.zeros((2, 2, 8, 4), np.float32), update, past + 3)
    feed |= {"past_key_0": cache, "past_length": np.array([past])}
    used = {value.name for value in made.graph.inputs}
    given = run(made, {name: array for name, array in feed.items() if name in used})[0]
    np.testing.assert_array_equal(given, -np.arange(past, past + 3, dtype=dtype)[None].repeat(2, 0), strict=True)


@pytest.mark.parametrize("update", UPDATES)
def test_positions_with_a_mask_count_what_is_no_padding(update: Update) -> None:
    inputs = ", int64[N, T] attention_mask, int64[N, L] position_ids"
    model = joined("p = Neg (position_ids) m = Neg (attention_mask)", "int64[N, L] p, int64[N, T] m", inputs)
    made = UpdateCacheInPlace(6, update).run(model).model
    slots = np.array([[1, 1, 9, 9, 9, 9], [0, 0, 9, 9, 9, 9]])
    feed = {
        "input_ids": np.zeros((2, 3), np.int64),
        "k": np.zeros((2, 2, 3, 4), np.float32),
        "attention_mask": np.array([[1, 1, 1], [0, 1, 1]]),
        "past_key_0": laid(np.zeros((2, 2, 6, 4), np.float32), update, 5),
        "past_length": np.array([2]),
        "attention_mask_slots": laid(slots, update, 5, 1),
    }
    positions, mask, *_ = run(made, feed)
    np.testing.assert_array_equal(-positions, [[2, 3, 4], [0, 0, 1]])
    np.testing.assert_array_equal(-mask, [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])


# Decoders without a past

FIRST = """g (int64[N, L] input_ids, float[N, 2, L, 4] k, int64[N, L] attention_mask)
    => (float[N, 2, L, 4] present_key_0, int64[N, L] y) <int64[2] axes = {1, 3}> {
        valid = Cast <to = 1> (attention_mask) of_keys = Unsqueeze (valid, axes) nothing = Sub (of_keys, of_keys)
        present_key_0 = Add (k, nothing) y = Neg (attention_mask) }"""


@pytest.mark.parametrize("update", UPDATES)
def test_a_decoder_of_the_first_step_writes_its_cache_and_its_mask(update: Update) -> None:
    outcome = UpdateCacheInPlace(5, update).run(model_of(FIRST, 24, 11))
    assert outcome.changes == ("1 cache of 5 slots",)
    inputs = [value.name for value in outcome.model.graph.inputs]
    own = ["attention_mask_slots", "present_key_0_slots"]
    assert sorted(inputs) == sorted(["k", "attention_mask", *own, *(["input_ids"] if update == "scatter-nd" else [])])
    new = np.arange(2 * 2 * 3 * 4, dtype=np.float32).reshape(2, 2, 3, 4)
    feed = {
        "input_ids": np.zeros((2, 3), np.int64),
        "k": new,
        "attention_mask": np.array([[1, 1, 1], [0, 1, 1]]),
        "attention_mask_slots": laid(np.full((2, 5), SPOILT), update, 3, 1),
        "present_key_0_slots": laid(np.full((2, 2, 5, 4), np.nan, np.float32), update, 3),
    }
    outputs = [value.name for value in outcome.model.graph.outputs]
    given = dict(zip(outputs, run(outcome.model, {name: feed[name] for name in inputs}), strict=True))
    cache, mask = back(given["present_key_0_slots_after"], update), back(given["attention_mask_slots_after"], update, 1)
    np.testing.assert_array_equal(cache[:, :, :3], new)
    assert np.isnan(cache[:, :, 3:]).all()
    unused = [] if update == "scatter-nd" else [SPOILT] * 2
    np.testing.assert_array_equal(mask, [[1, 1, 1, *unused], [0, 1, 1, *unused]])


def test_masks_and_positions_of_an_encoder_in_the_same_model_stay() -> None:
    text = """g (int64[N, L] decoder_input_ids, float[N, S, 4] input_features, int64[N, S] attention_mask,
            int64[N, S] position_ids) => (float[N, 2, L, 4] present_key_0, int64[N, S] y, int64[N, S] z) {
        k = Gather (table, decoder_input_ids) present_key_0 = Transpose <perm = [0, 2, 1, 3]> (k)
        y = Neg (attention_mask) z = Neg (position_ids) }"""
    model = model_of(text, 24, 11, table=np.ones((9, 2, 4), np.float32))
    made = UpdateCacheInPlace(5).run(model).model
    inputs = ["decoder_input_ids", "attention_mask", "position_ids", "present_key_0_slots"]
    assert [value.name for value in made.graph.inputs if value.tensor is None] == inputs


def test_a_cache_of_cross_attention_is_no_output() -> None:
    text = """g (int64[N, L] input_ids, float[N, 2, past, 4] past_decoder_key_0, float[N, 2, src, 4] past_encoder_key_0,
            float[N, 2, L, 4] k) => (float[N, 2, all, 4] present_decoder_key_0,
            float[N, 2, src, 4] present_encoder_key_0, float[N, 2, src, 4] y) {
        present_decoder_key_0 = Concat <axis = 2> (past_decoder_key_0, k)
        present_encoder_key_0 = Identity (past_encoder_key_0) y = Neg (past_encoder_key_0) }"""
    made = UpdateCacheInPlace(5).run(model_of(text, 24, 11)).model
    assert [value.name for value in made.graph.outputs] == ["y", "past_decoder_key_0_after"]


# Names


@pytest.mark.parametrize("name", ["past_length", "attention_mask_slots"])
def test_a_value_of_the_name_of_slots_gets_another(name: str) -> None:
    inputs = ", int64[N, T] attention_mask"
    model = joined(f"{name} = Neg (attention_mask) m = Abs ({name})", "int64[N, T] m", inputs)
    made = UpdateCacheInPlace(6).run(model).model
    onnx.checker.check_model(made.proto, full_check=True)
    assert {name, "past_length", "attention_mask_slots"} <= {value.name for value in made.graph.inputs}


# What is declined

DECLINED = {
    "no tokens": (
        lambda: model_of(
            f"g (float[N, 2, past, 4] past_key_0, float[N, 2, L, 4] k) => ({PRESENT}) {{ {JOINED} }}", 24, 11
        ),
        "g: no input is known to be its tokens",
    ),
    "moved first": (
        lambda: model_of(
            """g (int64[N, L] input_ids, float[N, 2, past, 4] past_key_0, float[N, L, 2, 4] k)
            => (float[N, 2, all, 4] present_key_0) {
                t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) j = Concat <axis = 1> (t, k)
                present_key_0 = Transpose <perm = [0, 2, 1, 3]> (j) }""",
            24,
            11,
        ),
        "past_key_0: it is moved before what is new joins it",
    ),
    "heads without a number": (
        lambda: model_of(
            f"""g (int64[N, L] input_ids, float[N, heads, past, 4] past_key_0, float[N, heads, L, 4] k)
            => (float[N, heads, all, 4] present_key_0) {{ {JOINED} }}""",
            24,
            11,
        ),
        "past_key_0: it is [N, heads, past, 4], and slots need dims that are numbers, or the batch",
    ),
    "a cache along its first axis": (
        lambda: model_of(
            """g (int64[N, L] input_ids, float[past, 2, 4] past_key_0, float[L, 2, 4] k)
            => (float[all, 2, 4] present_key_0) { present_key_0 = Concat <axis = 0> (past_key_0, k) }""",
            24,
            11,
        ),
        "past_key_0: it is [past, 2, 4], and slots need dims that are numbers, or the batch",
    ),
    "a present that is another": (
        lambda: model_of(
            f"{HEAD.format('')} ({PRESENT}) {{ j = Concat <axis = 2> (past_key_0, k) present_key_0 = Neg (j) }}", 24, 11
        ),
        "present_key_0: it is not past and new as they are joined",
    ),
    "a past that is read twice": (
        lambda: joined("y = Neg (past_key_0)", "float[N, 2, past, 4] y"),
        "past_key_0: it is not read by one Concat with what is new",
    ),
    "new before past": (
        lambda: model_of(
            f"{HEAD.format('')} ({PRESENT}) {{ present_key_0 = Concat <axis = 2> (k, past_key_0) }}", 24, 11
        ),
        "past_key_0: it is not read by one Concat with what is new",
    ),
    "a first cache of unknown heads": (
        lambda: model_of(
            """g (int64[N, L] input_ids, float[B, heads, K, 4] k) => (float[B, heads, K, 4] present_key_0) {
                present_key_0 = Identity (k) }""",
            24,
            11,
        ),
        "present_key_0: it is [B, heads, K, 4], and its slots are not known",
    ),
    "positions for all rows": (
        lambda: joined("p = Neg (position_ids)", "int64[L] p", ", int64[L] position_ids"),
        "position_ids: it is [position_ids.0], which is no mask and no positions for each token",
    ),
    "a mask of rank 4": (
        lambda: joined("m = Not (attention_mask)", "bool[N, 1, L, T] m", ", bool[N, 1, L, T] attention_mask"),
        "attention_mask: it is [N, 1, attention_mask.2, T], which is no mask and no positions for each token",
    ),
    "an output of the name of the length": (
        lambda: joined("past_length = Shape <start = 0, end = 1> (k)", "int64[1] past_length"),
        "past_length: slots or their length are to have its name - rename it",
    ),
    "two masks": (
        lambda: joined(
            "m = Add (attention_mask, other_mask)",
            "int64[N, T] m",
            ", int64[N, T] attention_mask, int64[N, T] other_mask",
        ),
        "other_mask: it is another mask for each token, beside 'attention_mask'",
    ),
}


@pytest.mark.parametrize("case", DECLINED)
@pytest.mark.parametrize("update", UPDATES)
def test_what_has_no_slots_is_declined(case: str, update: Update) -> None:
    make, reason = DECLINED[case]
    model = make()
    outcome = UpdateCacheInPlace(8, update).run(model)
    assert reasons(outcome) == [reason]
    assert outcome.model is model


def test_a_model_without_a_cache_stays() -> None:
    model = model_of("g (int64[N, L] input_ids) => (int64[N, L] y) { y = Neg (input_ids) }", 24, 11)
    outcome = UpdateCacheInPlace(8).run(model)
    assert (outcome.model, outcome.changes, outcome.declined) == (model, (), ())


@pytest.mark.parametrize("slots", [0, -3])
def test_no_slots_are_an_error(slots: int) -> None:
    with pytest.raises(UsageError, match=f"{slots} slots hold nothing - give at least 1"):
        UpdateCacheInPlace(slots).run(joined("y = Neg (k)", "float[N, 2, L, 4] y"))


@pytest.mark.parametrize(("update", "opset"), [("tensor-scatter", 23), ("scatter-nd", 15)])
def test_no_operator_is_written_into_a_model_that_is_older(update: Update, opset: int) -> None:
    model = joined("y = Neg (present_key_0)", "float[N, 2, all, 4] y", opset=opset)
    outcome = UpdateCacheInPlace(8, update).run(model)
    assert reasons(outcome) == [f"g: {update} needs opset {opset + 1}, it has {opset} - run convert-opset first"]
    assert outcome.model is model

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from builders import main_scope
from onnx import TensorProto, helper

from graphkit.graph.cache_entries import CacheEntry, Slot, cache_entries, growing_axis, parse_cache_name, split_name
from graphkit.graph.declared_types import Dim, TensorType
from graphkit.graph.view import Scope, Value, build_scopes
from graphkit.model import Model

Dims = Sequence[Dim] | None

PAST: Sequence[Dim] = ("batch", 4, "past", 8)
PRESENT: Sequence[Dim] = ("batch", 4, "total", 8)


def scope(inputs: Mapping[str, Dims], outputs: Mapping[str, Dims], dtype: int = TensorProto.FLOAT) -> Scope:
    """Return a graph of one opaque node with these inputs and outputs."""
    node = helper.make_node("Opaque", list(inputs), list(outputs), domain="custom")
    given, made = (
        [helper.make_tensor_value_info(name, dtype, dims) for name, dims in ports.items()]
        for ports in (inputs, outputs)
    )
    return build_scopes(helper.make_model(helper.make_graph([node], "g", given, made)))[0]


def name(value: Value | None) -> str:
    return value.name if value is not None else ""


def pairs(entries: Sequence[CacheEntry]) -> list[tuple[str, str]]:
    return [(name(entry.past), name(entry.present)) for entry in entries]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("past_key_values.3.decoder.key", ["past", "key", "values", "3", "decoder", "key"]),
        ("pastKeyValues.10_k", ["past", "key", "values", "10", "k"]),
        ("KVCache0", ["kv", "cache", "0"]),
        ("onnx::Foo_12", ["onnx", "foo", "12"]),
        ("", []),
    ],
)
def test_tokens_are_words_and_numbers(text: str, words: list[str]) -> None:
    assert [*split_name(text)] == words


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("past_key_values.3.decoder.key", Slot((3,), "decoder", "key")),
        ("past_key_values.3.encoder.value", Slot((3,), "encoder", "value")),
        ("present.3.decoder.key", Slot((3,), "decoder", "key")),
        ("present.11.encoder.value", Slot((11,), "encoder", "value")),
        ("past_key_values.0.key", Slot((0,), "", "key")),
        ("present.0.value", Slot((0,), "", "value")),
        ("present_key_values_3_value", Slot((3,), "", "value")),
        ("past_0", Slot((0,), "", "both")),
        ("present_0", Slot((0,), "", "both")),
        ("past_key_0", Slot((0,), "", "key")),
        ("past_value_self_1", Slot((1,), "decoder", "value")),
        ("present_key_cross_1", Slot((1,), "encoder", "key")),
        ("cache_k_l0", Slot((0,), "", "key")),
        ("new_cache_k_l0", Slot((0,), "", "key")),
        ("k_cache_0", Slot((0,), "", "key")),
        ("v_cache_out_0", Slot((0,), "", "value")),
        ("key_cache.0", Slot((0,), "", "key")),
        ("value_cache_out.1", Slot((1,), "", "value")),
        ("past_keys", Slot((), "", "key")),
        ("new_values", Slot((), "", "value")),
        ("past_key_values", Slot((), "", "both")),
        ("present_key_values", Slot((), "", "both")),
        ("kvcache_3_v", Slot((3,), "", "value")),
        ("pastKeyValues.10_k", Slot((10,), "", "key")),
        ("model.layers.3.k", Slot((3,), "", "key")),
        ("past_conv_state.0", Slot((0,), "", "state")),
    ],
)
def test_a_cache_name_tells_its_slot(text: str, slot: Slot) -> None:
    parsed = parse_cache_name(text)
    assert parsed is not None
    assert (parsed[0], parsed[2]) == (slot, True)


@pytest.mark.parametrize(
    "text",
    [
        "encoder_hidden_states",
        "last_hidden_state",
        "attention_mask",
        "encoder_attention_mask",
        "past_observed_mask",
        "kv_cache_mask",
        "position_ids",
        "cache_position",
        "input_ids",
        "past_sequence_length",
        "cache_length",
        "logits",
    ],
)
def test_a_name_of_something_else_has_no_slot(text: str) -> None:
    assert parse_cache_name(text) is None


@pytest.mark.parametrize("text", ["h_0", "c_0", "h_n", "c_n", "value", "key", "state_0", "pixel_values", "onnx::Add_3"])
def test_a_name_may_leave_open_whether_it_is_a_cache(text: str) -> None:
    parsed = parse_cache_name(text)
    assert parsed is not None
    assert not parsed[2]


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.3.decoder.key", "present.3.decoder.key"),
        ("past_key_values.3.encoder.value", "present.3.encoder.value"),
        ("past_0", "present_0"),
        ("past_key_self_1", "present_key_self_1"),
        ("cache_k_l0", "new_cache_k_l0"),
        ("k_cache_0", "k_cache_out_0"),
        ("past_key_values_3_value", "present_key_values_3_value"),
        ("key_cache.0", "key_cache_out.0"),
        ("past_keys", "new_keys"),
        ("past_key_values", "present_key_values"),
        ("old_k_0", "updated_k_0"),
        ("past_conv_state.0", "present_conv_state.0"),
    ],
)
def test_names_pair_past_and_present(past: str, present: str) -> None:
    assert pairs(cache_entries(scope({past: PAST}, {present: PRESENT}))) == [(past, present)]


def test_pairs_come_in_the_order_of_the_inputs() -> None:
    entries = cache_entries(scope({"past_1": PAST, "past_0": PAST}, {"present_0": PRESENT, "present_1": PRESENT}))
    assert pairs(entries) == [("past_1", "present_1"), ("past_0", "present_0")]


def test_keys_and_values_are_not_mixed_up() -> None:
    entries = cache_entries(
        scope({"past_key_0": PAST, "past_value_0": PAST}, {"present_value_0": PRESENT, "present_key_0": PRESENT})
    )
    assert pairs(entries) == [("past_key_0", "present_key_0"), ("past_value_0", "present_value_0")]


def test_several_keys_of_a_layer_are_told_apart_by_the_words_before_them() -> None:
    """As those of an indexer, beside the keys of the attention (DeepSeek V3.2)."""
    ports = ("keys", "values", "indexer_keys")
    made = {f"cache.layers.0.{port}": PRESENT for port in ports}
    first = cache_entries(scope({"input_ids": ["b", "s"]}, made))
    step = cache_entries(scope({f"input.{name}": PAST for name in made}, {f"output.{name}": PRESENT for name in made}))
    kinds = ["key", "value", "indexer key"]
    assert [entry.slot for entry in first] == [entry.slot for entry in step] == [Slot((0,), "", kind) for kind in kinds]


def test_a_present_without_a_past_comes_last() -> None:
    entries = cache_entries(scope({"past_1": PAST}, {"present_0": PRESENT, "present_1": PRESENT}))
    assert pairs(entries) == [("past_1", "present_1"), ("", "present_0")]


def test_a_past_without_a_present_is_kept_where_another_has_one() -> None:
    entries = cache_entries(scope({"past_0": PAST, "past_1": PAST}, {"present_1": PRESENT}))
    assert pairs(entries) == [("past_0", ""), ("past_1", "present_1")]


def test_pasts_without_any_present_are_not_a_cache() -> None:
    assert cache_entries(scope({"past_0": PAST}, {"logits": PRESENT})) == ()


def test_presents_alone_are_a_cache_that_a_first_step_makes() -> None:
    assert pairs(cache_entries(scope({"input_ids": ["b", "s"]}, {"present_0": PRESENT}))) == [("", "present_0")]


def test_two_inputs_of_one_slot_do_not_share_an_output() -> None:
    entries = cache_entries(scope({"past_0": PAST, "old_0": PAST}, {"present_0": PRESENT}))
    assert pairs(entries) == [("past_0", "present_0"), ("old_0", "")]


def test_two_outputs_of_one_slot_do_not_share_an_input() -> None:
    entries = cache_entries(scope({"past_0": PAST}, {"present_0": PRESENT, "new_0": PRESENT}))
    assert pairs(entries) == [("past_0", "present_0"), ("", "new_0")]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT8, TensorProto.UINT8])
def test_a_cache_may_have_a_narrow_dtype(dtype: int) -> None:
    assert len(cache_entries(scope({"past_0": PAST}, {"present_0": PRESENT}, dtype))) == 1


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.BOOL, TensorProto.INT32])
def test_a_tensor_of_indices_or_flags_is_not_a_cache(dtype: int) -> None:
    assert cache_entries(scope({"past_0": PAST}, {"present_0": PRESENT}, dtype)) == ()


@pytest.mark.parametrize("dims", [["batch", 4], ["batch"], [1, 1, 1, "batch", 4, "past", 8]])
def test_a_tensor_of_another_rank_is_not_a_cache(dims: list[Dim]) -> None:
    assert cache_entries(scope({"past_0": dims}, {"present_0": dims})) == ()


def test_a_tensor_of_unknown_rank_may_be_a_cache() -> None:
    assert pairs(cache_entries(scope({"past_0": None}, {"present_0": None}))) == [("past_0", "present_0")]


def test_an_input_with_a_default_is_not_a_past() -> None:
    default = helper.make_tensor("past_0", TensorProto.FLOAT, [1, 4, 1, 8], [0.0] * 32)
    infos = [helper.make_tensor_value_info(text, TensorProto.FLOAT, PAST) for text in ("past_0", "present_0")]
    node = helper.make_node("Identity", ["past_0"], ["present_0"])
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [default])
    assert pairs(cache_entries(build_scopes(helper.make_model(graph))[0])) == [("", "present_0")]


def test_a_state_that_feeds_itself_is_a_state() -> None:
    entries = cache_entries(scope({"past_ssm_state.0": ["b", 4, 3]}, {"present_ssm_state.0": ["b", 4, 3]}))
    assert [entry.slot.kind for entry in entries] == ["state"]


def test_a_state_that_nothing_takes_is_no_cache() -> None:
    assert cache_entries(scope({"x": PAST}, {"present_ssm_state.0": PAST})) == ()


@pytest.mark.parametrize(("state", "kept"), [("past_ssm_state", True), ("ssm_cache_state", False)])
def test_a_state_that_nothing_gives_is_kept_where_its_name_says_past(state: str, kept: bool) -> None:
    found = pairs(cache_entries(scope({"past_key_0": PAST, state: PAST}, {"present_key_0": PRESENT})))
    assert ((state, "") in found) == kept


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"h_0": [2, "b", 8], "c_0": [2, "b", 8]}, {"h_n": [2, "b", 8], "c_n": [2, "b", 8]}),
        ({"past_values": ["b", 512, 7]}, {"prediction_outputs": ["b", 96, 7]}),
        ({"encoder_hidden_states": ["b", "s", 8]}, {"last_hidden_state": ["b", "s", 8]}),
        ({"pixel_values": ["b", 3, "h", "w"]}, {"logits": ["b", 10]}),
        ({"x": PAST}, {"y": PRESENT}),
    ],
)
def test_what_is_not_a_cache_gives_no_entries(inputs: Mapping[str, Dims], outputs: Mapping[str, Dims]) -> None:
    assert cache_entries(scope(inputs, outputs)) == ()


def anonymous(past: Dims, present: Dims, outputs: int = 2) -> Sequence[CacheEntry]:
    inputs = {f"arg{number}": past for number in range(2)}
    return cache_entries(scope(inputs, {f"out{number}": present for number in range(outputs)}))


def test_anonymous_families_pair_by_shape() -> None:
    assert pairs(anonymous(PAST, PRESENT)) == [("arg0", "out0"), ("arg1", "out1")]


def test_anonymous_tensors_are_numbered_and_not_told_apart() -> None:
    assert [entry.slot for entry in anonymous(PAST, PRESENT)] == [Slot((0,), "", "both"), Slot((1,), "", "both")]


@pytest.mark.parametrize(
    ("body", "is_cache"),
    [
        ("y1 = Concat <axis = 1> (k, a) y2 = Concat <axis = 1> (v, a) z = Add (y1, y2)", True),
        ("y1 = Concat <axis = 1> (k, a) y2 = Concat <axis = 1> (v, a) z = Identity (a)", False),  # nothing reads them
        (
            "y1 = Concat <axis = 1> (a, k) y2 = Concat <axis = 1> (a, v) z = Add (y1, y2)",
            False,
        ),  # what is new stands first
        ("y1 = Concat <axis = 1> (k, a) y2 = Identity (v) z = Add (y1, y2)", False),  # keys alone
    ],
)
def test_what_new_keys_and_values_are_joined_to_is_a_cache_by_any_name(body: str, is_cache: bool) -> None:
    text = f"""g (float[b, p, 2, 8] k, float[b, q, 2, 8] v, float[b, t, 2, 8] a)
        => (float[b, r, 2, 8] y1, float[b, s, 2, 8] y2, float[b, u, 2, 8] z) {{ {body} }}"""
    found = pairs(cache_entries(main_scope(text)))
    assert found == ([("k", "y1"), ("v", "y2")] if is_cache else [])


@pytest.mark.parametrize(
    ("past", "present"),
    [
        pytest.param(PAST[1:], PRESENT[1:], id="rank 3"),
        pytest.param(["batch", 4, 16, 8], ["batch", 4, 16, 8], id="fixed"),
        pytest.param(PAST, [*PRESENT, 1], id="other rank"),
        pytest.param(["batch", 4, 16, 8], ["batch", 4, 17, 8], id="numbers differ"),
    ],
)
def test_anonymous_families_that_do_not_grow_are_not_a_cache(past: Dims, present: Dims) -> None:
    assert anonymous(past, present) == ()


def test_anonymous_families_of_other_sizes_are_not_a_cache() -> None:
    assert anonymous(PAST, PRESENT, outputs=3) == ()


def tensor(*dims: Dim) -> TensorType:
    return TensorType(TensorProto.FLOAT, dims)


@pytest.mark.parametrize(
    ("past", "present", "axis"),
    [
        pytest.param(tensor("b", 4, "past", 8), tensor("b", 4, "total", 8), 2, id="bhsd"),
        pytest.param(tensor("b", "past", 4, 8), tensor("b", "total", 4, 8), 1, id="bshd"),
        pytest.param(tensor("b", "past", 32), tensor("b", "total", 32), 1, id="bsd"),
        pytest.param(tensor(2, "b", 4, "past", 8), tensor(2, "b", 4, "total", 8), 3, id="stacked 5-D"),
        pytest.param(tensor(6, 2, "b", 4, "past", 8), tensor(6, 2, "b", 4, "total", 8), 4, id="stacked 6-D"),
        pytest.param(tensor(1, 4, 15, 8), tensor(1, 4, 16, 8), 2, id="numbers"),
        pytest.param(tensor("b", "4", "past", "8"), tensor("b", 4, "past + 1", 8), 2, id="numbers as names"),
        pytest.param(tensor("b", 4, "past", 8), None, 2, id="no present"),
        pytest.param(tensor("slots", "rows", 4, 8), None, None, id="rows named by other inputs"),
        pytest.param(tensor("rows", 4, "x", 8), None, 2, id="rows named by other inputs, no present"),
        pytest.param(tensor("b", 4, "s", 8), tensor("b", 4, "s", 8), 2, id="same symbol"),
        pytest.param(tensor("x", 4, "y", 8), None, 2, id="unnamed batch"),
        pytest.param(tensor(None, 4, None, 8), tensor(None, 4, None, 8), 2, id="no symbols"),
        pytest.param(tensor("b", 4, "past", 8), tensor("b2", 4, "total", 8), 2, id="other batch symbol"),
        pytest.param(tensor("b", 4, "past", 8), TensorType(TensorProto.FLOAT, None), 2, id="present unknown"),
        pytest.param(tensor("b", 4, 16, 8), tensor("b", 4, 16, 8), None, id="fixed size"),
        pytest.param(tensor(1, 4, 16, 8), None, None, id="all numbers"),
        pytest.param(tensor("b", "heads", "past", "dim"), None, None, id="all symbols"),
        pytest.param(TensorType(TensorProto.FLOAT, None), tensor("b", 4, "t", 8), None, id="unknown rank"),
    ],
)
def test_growing_axis(past: TensorType, present: TensorType | None, axis: int | None) -> None:
    assert growing_axis(past, present, frozenset({"rows"})) == axis


@pytest.mark.parametrize(
    ("model", "count", "first"),
    [
        ("gemma-270m/model", 36, ("past_key_values.0.key", "present.0.key")),
        ("nllb-600m/decoder_model_merged", 48, ("past_key_values.0.decoder.key", "present.0.decoder.key")),
        ("llama-int4/model", 4, ("past_key_values.0.key", "present.0.key")),
        ("cache-styles/anonymous", 4, ("arg1", "out1")),
        ("cache-styles/bshd", 4, ("k_cache_0", "k_cache_out_0")),
        ("cache-styles/cache_k_l0", 6, ("cache_k_l0", "new_cache_k_l0")),
        ("cache-styles/past_0-2bhsd", 2, ("past_0", "present_0")),
        ("cache-styles/stacked", 1, ("past_key_values", "present_key_values")),
        ("cache-styles/static-cache", 4, ("key_cache.0", "key_cache_out.0")),
        ("cache-styles/two-stacked", 2, ("past_keys", "new_keys")),
    ],
)
def test_every_past_of_a_real_decoder_has_its_present(
    model: str, count: int, first: tuple[str, str], real_model: Callable[[str], Model]
) -> None:
    found = pairs(cache_entries(real_model(model).graph))
    assert (len(found), found[0]) == (count, first)
    assert all(past and present for past, present in found)


@pytest.mark.parametrize(
    "model",
    ["bert-fill-mask/model", "vit-qdq/model", "patchtst/model", "detr-resnet-50/model_quantized", "search/loop-greedy"],
)
def test_a_real_model_without_a_cache_has_none(model: str, real_model: Callable[[str], Model]) -> None:
    assert cache_entries(real_model(model).graph) == ()

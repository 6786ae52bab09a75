from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from onnx import TensorProto, helper

from graphkit.analysis.kv_cache import Feed, KVCache, Layout, StateFeed, cache_layout, kv_cache
from graphkit.graph.cache_entries import CacheEntry, Slot
from graphkit.graph.declared_types import Dim, TensorType
from graphkit.model import Model

RealModel = Callable[[str], Model]
Dims = Sequence[Dim] | None

FED_BACK = "decoder KV: changes with every step, feed it back"
GIVEN_BACK = "encoder KV: constant after step 1, given back unchanged"
EMPTY = "encoder KV: constant after step 1; the cache branch gives it back empty, so carry over that of step 1"
CARRIED = "no output gives it: encoder KV, constant; carry over that of step 1"


def opaque(inputs: Mapping[str, Dims], outputs: Mapping[str, Dims], dtype: int = TensorProto.FLOAT) -> Model:
    """Return a model of one opaque node with these inputs and outputs."""
    node = helper.make_node("Opaque", list(inputs), list(outputs), domain="custom")
    given, made = (
        [helper.make_tensor_value_info(name, dtype, dims) for name, dims in ports.items()]
        for ports in (inputs, outputs)
    )
    return Model.from_proto(helper.make_model(helper.make_graph([node], "g", given, made)))


def contract(found: KVCache) -> list[tuple[str, str, int, str]]:
    return [(feed.past, feed.present, len(feed.pairs), feed.rule) for feed in found.feeds]


def sizes(found: KVCache) -> tuple[int | None, int | None, int | None]:
    return found.layers, found.kv_heads, found.head_dim


def test_gemma_sizes(real_model: RealModel) -> None:
    assert sizes(kv_cache(real_model("gemma-270m/model"))) == (18, 1, 256)


def test_gemma_memory(real_model: RealModel) -> None:
    found = kv_cache(real_model("gemma-270m/model"))
    assert (found.bytes_per_token, found.bytes_per_encoder_token, found.fixed_bytes) == (36_864, 0, 0)


def test_gemma_memory_of_2048_tokens(real_model: RealModel) -> None:
    memory = kv_cache(real_model("gemma-270m/model")).memory[0]
    assert (memory.context, memory.bytes, memory.bytes / (1 << 20)) == (2048, 75_497_472, 72.0)
    assert memory.bytes / 1e6 == pytest.approx(75.497472, abs=1e-9)


def test_memory_is_told_for_the_context_and_for_four_of_it(real_model: RealModel) -> None:
    memory = kv_cache(real_model("gemma-270m/model"), context=100).memory
    assert [(row.context, row.bytes) for row in memory] == [(100, 3_686_400), (400, 14_745_600)]


def test_gemma_as_text(real_model: RealModel) -> None:
    assert kv_cache(real_model("gemma-270m/model")).to_text() == (
        """\
KV cache

18 layers, 1 KV head, head dim 256; float32, each tensor [batch_size, 1,
past_sequence_length, 256].

36,864 bytes for each token; 2,048 tokens = 75.5 MB = 72 MiB; no table of
positions was found.

15 of 18 layers look back 512 tokens: 2,048 tokens = 28.3 MB = 27 MiB where a
host keeps no more of these.

Memory of one sequence
Context        Bytes     MB  MiB  Bytes in windows  MB in windows
──────────────────────────────────────────────────────────────────
  2,048   75,497,472   75.5   72        28,311,552           28.3
  8,192  301,989,888  302.0  288        66,060,288           66.1

Contract: each past takes the present of the step before
Past                                Tensors
────────────────────────────────────────────
past_key_values.{0-17}.{key|value}       36
  from present.{0-17}.{key|value}
  decoder KV: changes with every step, feed it back

"""
    )


def test_a_first_step_gives_both_caches(real_model: RealModel) -> None:
    assert contract(kv_cache(real_model("nllb-600m/decoder_model"))) == [
        (
            "",
            "present.{0-11}.decoder.{key|value}",
            24,
            "decoder KV; made by this first step, read by the decoder with past",
        ),
        (
            "",
            "present.{0-11}.encoder.{key|value}",
            24,
            "encoder KV: constant, keep it for all later steps; made by this first step, read by the decoder with past",
        ),
    ]


@pytest.mark.parametrize(("model", "count"), [("nllb-600m/decoder_model", 48), ("opus-mt-en-fr/decoder_model", 24)])
def test_a_first_step_gives_four_tensors_a_layer(model: str, count: int, real_model: RealModel) -> None:
    assert sum(len(feed.pairs) for feed in kv_cache(real_model(model)).feeds) == count


def past(last: int, kind: str) -> str:
    return f"past_key_values.{{0-{last}}}.{kind}.{{key|value}}"


def present(last: int, kind: str) -> str:
    return f"present.{{0-{last}}}.{kind}.{{key|value}}"


@pytest.mark.parametrize(
    ("model", "last", "count"),
    [("nllb-600m/decoder_with_past_model", 11, 24), ("opus-mt-en-fr/decoder_with_past_model", 5, 12)],
)
def test_a_decoder_with_past_does_not_give_the_encoder_kv(
    model: str, last: int, count: int, real_model: RealModel
) -> None:
    assert contract(kv_cache(real_model(model))) == [
        (past(last, "decoder"), present(last, "decoder"), count, FED_BACK),
        (past(last, "encoder"), "", count, CARRIED),
    ]


@pytest.mark.cases("whisper-tiny/decoder_model_merged-1-4", "marian-tiny/decoder_model_merged-5-12")
@pytest.mark.parametrize(
    ("model", "last", "count"),
    [
        ("nllb-600m/decoder_model_merged", 11, 24),
        ("nllb-tiny/decoder_model_merged_quantized", 11, 24),
        ("opus-mt-en-fr/decoder_model_merged", 5, 12),
        ("marian-tiny/decoder_model_merged", 5, 12),
        ("whisper-tiny/decoder_model_merged", 1, 4),
    ],
)
def test_a_merged_decoder_gives_the_encoder_kv_back_empty(
    model: str, last: int, count: int, real_model: RealModel
) -> None:
    assert contract(kv_cache(real_model(model))) == [
        (past(last, "decoder"), present(last, "decoder"), count, FED_BACK),
        (past(last, "encoder"), present(last, "encoder"), count, EMPTY),
    ]


def test_a_merged_decoder_warns_of_its_empty_outputs(real_model: RealModel) -> None:
    assert kv_cache(real_model("nllb-600m/decoder_model_merged")).findings() == (
        "24 zero-length outputs of the cache branch (present.{0-11}.encoder.{key|value}): "
        "carry the encoder KV from step 1; do not feed these back.",
    )


def test_a_merged_decoder_without_an_encoder_has_nothing_to_warn_of(real_model: RealModel) -> None:
    found = kv_cache(real_model("gpt2-tiny/decoder_model_merged"))
    assert (found.findings(), found.bytes_per_encoder_token) == ((), 0)


def test_pairs_are_names_of_past_and_present(real_model: RealModel) -> None:
    feed = kv_cache(real_model("gpt2-tiny/decoder_model_merged")).feeds[0]
    assert feed.pairs[:2] == (
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.value", "present.0.value"),
    )


@pytest.mark.parametrize(
    ("model", "per_token", "per_encoder_token"),
    [
        ("nllb-600m/decoder_model_merged", 98_304, 98_304),
        ("opus-mt-en-fr/decoder_with_past_model", 24_576, 24_576),
        ("marian-tiny/decoder_model_merged", 1_536, 1_536),
        ("whisper-tiny/decoder_model_merged", 512, 512),
        ("llama-int4/model", 512, 0),
    ],
)
def test_bytes_a_token(model: str, per_token: int, per_encoder_token: int, real_model: RealModel) -> None:
    found = kv_cache(real_model(model))
    assert (found.bytes_per_token, found.bytes_per_encoder_token) == (per_token, per_encoder_token)


STYLES = {
    "anonymous": ("arg{1-4}", "out{1-4}", (None, 4, 8), 512),
    "bshd": ("{k|v}_cache_{0-1}", "{k|v}_cache_out_{0-1}", (2, 1, 8), 128),
    "cache_k_l0": ("cache_{k|v}_l{0-2}", "new_cache_{k|v}_l{0-2}", (3, 2, 8), 384),
    "past_0-2bhsd": ("past_{0-1}", "present_{0-1}", (2, 4, 8), 512),
    "stacked": ("past_key_values", "present_key_values", (3, 4, 8), 768),
    "two-stacked": ("past_{keys|values}", "new_{keys|values}", (2, 3, 8), 384),
}


@pytest.mark.parametrize("style", STYLES)
def test_the_contract_of_each_style(style: str, real_model: RealModel) -> None:
    (feed,) = kv_cache(real_model(f"cache-styles/{style}")).feeds
    assert (feed.past, feed.present, feed.rule) == (*STYLES[style][:2], FED_BACK)


@pytest.mark.parametrize("style", STYLES)
def test_the_sizes_of_each_style(style: str, real_model: RealModel) -> None:
    found = kv_cache(real_model(f"cache-styles/{style}"))
    assert (sizes(found), found.bytes_per_token) == STYLES[style][2:]


def test_a_static_cache_does_not_grow(real_model: RealModel) -> None:
    found = kv_cache(real_model("cache-styles/static-cache"))
    assert (found.layers, found.bytes_per_token, found.fixed_bytes, found.memory) == (2, 0, 8_192, ())


def test_a_static_cache_as_text(real_model: RealModel) -> None:
    assert kv_cache(real_model("cache-styles/static-cache")).to_text() == (
        """\
KV cache

2 layers; float32, each tensor [batch, 4, 16, 8].

Contract: each past takes the present of the step before
Past                     Tensors
─────────────────────────────────
{key|value}_cache.{0-1}        4
  from {key|value}_cache_out.{0-1}
  decoder KV: changes with every step, feed it back

8,192 bytes for each sequence, which do not grow.

"""
    )


@pytest.mark.parametrize(
    "model", ["vit-qdq/model", "bert-fill-mask/model", "patchtst/model", "opus-mt-en-fr/encoder_model"]
)
def test_a_model_without_a_cache(model: str, real_model: RealModel) -> None:
    found = kv_cache(real_model(model))
    assert found == KVCache(None, None, None, "", None, (), 0, 0, 0, (), ())


def test_no_cache_as_text(real_model: RealModel) -> None:
    text = kv_cache(real_model("patchtst/model")).to_text()
    assert text == "KV cache\n\nNone: no input or output of this model is a KV cache.\n\n"


def test_past_inputs_without_a_present_are_a_finding() -> None:
    model = opaque({f"past_key_{n}": ["b", 2, "p", 4] for n in range(3)}, {"present_key_1": ["b", 2, "t", 4]})
    assert kv_cache(model).findings() == ("2 past inputs without a present output: past_key_{0,2}.",)


def test_encoder_kv_without_a_present_is_no_finding() -> None:
    dims: Dims = ["b", 2, "p", 4]
    model = opaque({"past_key_self_0": dims, "past_key_cross_0": dims}, {"present_key_self_0": ["b", 2, "t", 4]})
    assert kv_cache(model).findings() == ()


def test_encoder_kv_may_be_given_back_unchanged() -> None:
    dims: Dims = ["b", 2, "e", 4]
    found = kv_cache(opaque({"past_key_cross_0": dims}, {"present_key_cross_0": dims}))
    assert found.feeds == (
        Feed("past_key_cross_0", "present_key_cross_0", (("past_key_cross_0", "present_key_cross_0"),), GIVEN_BACK),
    )


def test_a_present_that_no_input_takes_is_told() -> None:
    longer: Dims = ["b", 2, "t", 4]
    found = kv_cache(opaque({"past_key_0": ["b", 2, "p", 4]}, {"present_key_0": longer, "present_key_1": longer}))
    assert contract(found)[1] == ("", "present_key_1", 1, "no input takes it")


def test_a_state_is_replaced() -> None:
    dims: Dims = ["b", 8, 3]
    inputs = {"x": ["b", 5], **{f"past_conv_state.{layer}": dims for layer in range(2)}}
    found = kv_cache(opaque(inputs, {f"present_conv_state.{layer}": dims for layer in range(2)}))
    pairs = tuple((f"past_conv_state.{layer}", f"present_conv_state.{layer}") for layer in range(2))
    labels = "past_conv_state.{0-1}", "present_conv_state.{0-1}"
    assert found.states == (StateFeed(*labels, pairs, "float32", ("b", 8, 3), 2 * 8 * 3 * 4),)
    assert (found.feeds, found.fixed_bytes) == ((), 0)


def test_a_dim_that_is_not_known_makes_the_memory_unknown() -> None:
    found = kv_cache(opaque({"past_key_0": ["b", "heads", "p", 4]}, {"present_key_0": ["b", "heads", "t", 4]}))
    assert found.bytes_per_token is None
    assert "Memory per token: unknown, because a dim besides batch and sequence is symbolic." in found.to_text()


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [(TensorProto.FLOAT16, "float16", 16), (TensorProto.INT8, "int8", 8), (TensorProto.FLOAT, "float32", 32)],
)
def test_memory_goes_by_the_dtype(dtype: int, name: str, size: int) -> None:
    found = kv_cache(opaque({"past_key_0": ["b", 2, "p", 4]}, {"present_key_0": ["b", 2, "t", 4]}, dtype))
    assert (found.dtype, found.bytes_per_token) == (name, size)


def layout(*dims: Dim, index: tuple[int, ...] = (0,)) -> Layout:
    return cache_layout(TensorType(TensorProto.FLOAT, dims), None, CacheEntry(Slot(index, "", "both"), None, None))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(layout("b", 4, "s", 8), Layout(4, 8, 2, 128, 0), id="bhsd"),
        pytest.param(layout("b", "s", 4, 8), Layout(4, 8, 1, 128, 0), id="bshd"),
        pytest.param(layout("b", "s", 32), Layout(None, 32, 1, 128, 0), id="bsd"),
        pytest.param(layout(2, "b", 4, "s", 8), Layout(4, 8, 3, 256, 0), id="key and value"),
        pytest.param(layout(6, 2, "b", 4, "s", 8, index=()), Layout(4, 8, 4, 1536, 0, 6), id="all layers"),
        pytest.param(layout("b", 4, 16, 8), Layout(None, None, None, 0, 2048), id="fixed"),
        pytest.param(layout("b", "h", "s", 8), Layout(None, 8, None, None, None), id="symbolic heads"),
    ],
)
def test_layout(found: Layout, expected: Layout) -> None:
    assert found == expected


def test_the_layout_of_an_unknown_rank_is_unknown() -> None:
    entry = CacheEntry(Slot((0,), "", "both"), None, None)
    unknown = Layout(None, None, None, None, None)
    assert cache_layout(TensorType(TensorProto.FLOAT, None), None, entry) == unknown


def test_memory_is_told_for_no_more_tokens_than_the_model_has_positions(real_model: RealModel) -> None:
    model = real_model("marian-tiny/decoder_model_merged")
    assert [row.context for row in kv_cache(model).memory] == [64]
    assert [row.context for row in kv_cache(model, context=20).memory] == [20, 64]
    assert "1,536 bytes for each token; 64 tokens = 98.3 kB; 64 positions are in its tables." in (
        " ".join(kv_cache(model).to_text().split())
    )

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest

from graphkit.analysis.architecture import Architecture, architecture
from graphkit.model import Model

RealModel = Callable[[str], Model]


def told(graph: str, opset: int = 17) -> Architecture:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    return architecture(Model.from_proto(onnx.parser.parse_model(f"{header} {graph}")))


@pytest.mark.cases(9)
@pytest.mark.parametrize(
    ("model", "role"),
    [
        ("opus-mt-en-fr/encoder_model", "encoder"),
        ("bert-fill-mask/model", "encoder"),
        ("nllb-600m/decoder_model", "first-step decoder"),
        ("opus-mt-en-fr/decoder_model", "first-step decoder"),
        ("nllb-600m/decoder_with_past_model", "decoder with past"),
        ("opus-mt-en-fr/decoder_with_past_model", "decoder with past"),
        ("nllb-600m/decoder_model_merged", "merged decoder"),
        ("opus-mt-en-fr/decoder_model_merged", "merged decoder"),
        ("marian-tiny/decoder_model_merged", "merged decoder"),
        ("nllb-tiny/decoder_model_merged_quantized", "merged decoder"),
        ("whisper-tiny/decoder_model_merged", "merged decoder"),
        ("gpt2-tiny/decoder_model_merged", "merged decoder"),
        ("gemma-270m/model", "decoder-only"),
        ("llama-int4/model", "decoder-only"),
        ("cache-styles/anonymous", "decoder-only"),
        ("cache-styles/bshd", "decoder-only"),
        ("cache-styles/cache_k_l0", "decoder-only"),
        ("cache-styles/past_0-2bhsd", "decoder-only"),
        ("cache-styles/stacked", "decoder-only"),
        ("cache-styles/static-cache", "decoder-only"),
        ("cache-styles/two-stacked", "decoder-only"),
        ("detr-resnet-50/model_quantized", "vision"),
        ("vit-qdq/model", "vision"),
        ("patchtst/model", "other"),
        ("search/beamsearch-gpt2", "other"),
        ("search/loop-greedy", "recurrent"),
    ],
)
def test_the_role_of_a_real_model(model: str, role: str, real_model: RealModel) -> None:
    assert architecture(real_model(model)).role == role


@pytest.mark.cases(6)
@pytest.mark.parametrize(
    ("model", "layers", "heads", "kv_heads", "head_dim", "vocabulary"),
    [
        ("gemma-270m/model", 18, 4, 1, 256, 262144),
        ("llama-int4/model", 2, 4, 2, 16, 160),
        ("nllb-600m/decoder_model", 12, 16, 16, 64, 256206),
        ("nllb-600m/decoder_with_past_model", 12, 16, 16, 64, 256206),
        ("nllb-600m/decoder_model_merged", 12, 16, 16, 64, 256206),
        ("opus-mt-en-fr/encoder_model", 6, 8, None, 64, 59514),
        ("opus-mt-en-fr/decoder_model_merged", 6, 8, 8, 64, 59514),
        ("marian-tiny/decoder_model_merged", 6, 8, 8, 4, 256),
        ("nllb-tiny/decoder_model_merged_quantized", 12, 16, 16, 2, 256),
        ("whisper-tiny/decoder_model_merged", 2, 4, 4, 8, 131),
        ("gpt2-tiny/decoder_model_merged", 2, 4, 4, 8, 96),
        ("cache-styles/bshd", 2, 4, 1, 8, 96),
        ("cache-styles/cache_k_l0", 3, 4, 2, 8, 96),
        ("cache-styles/two-stacked", 2, 6, 3, 8, 96),
        ("bert-fill-mask/model", 2, 4, None, 8, 200),
        ("detr-resnet-50/model_quantized", 6, 8, None, 32, None),
        ("vit-qdq/model", 3, 4, None, 8, None),
        ("search/loop-greedy", None, None, None, None, None),
    ],
)
def test_the_sizes_of_a_real_model(
    model: str,
    layers: int | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    vocabulary: int | None,
    real_model: RealModel,
) -> None:
    found = architecture(real_model(model))
    assert (found.layers, found.heads, found.kv_heads, found.head_dim, found.vocabulary) == (
        layers,
        heads,
        kv_heads,
        head_dim,
        vocabulary,
    )


def test_a_search_is_named_with_its_operator(real_model: RealModel) -> None:
    found = architecture(real_model("search/beamsearch-gpt2"))
    assert found.reason == "it runs a whole search: com.microsoft.BeamSearch with a decoder inside"


def test_gemma_as_text(real_model: RealModel) -> None:
    assert architecture(real_model("gemma-270m/model")).to_text() == (
        """\
Architecture

Role: decoder-only (it takes a KV cache, and nothing from an encoder).

Size               Value
─────────────────────────
layers                18
attention heads        4
KV heads               1
head dim             256
vocabulary       262,144

"""
    )


def test_unknown_sizes_are_not_shown(real_model: RealModel) -> None:
    assert architecture(real_model("search/loop-greedy")).to_text() == (
        "Architecture\n\nRole: recurrent (it takes recurrent state, which each step replaces).\n\n"
    )


CAUSAL = """
g (int64[B,S] input_ids, float[64,8] table, float[S,S] ones) => (float[B,S,64] logits) {
    hidden = Gather(table, input_ids)
    MASK
    logits = MatMul(hidden, ones)
}
"""


@pytest.mark.parametrize(
    "mask",
    [
        "lower = Trilu(ones)",
        "a = Range(n, n, n)  b = Unsqueeze(a, n)  lower = Less(a, b)",
        "a = Range(n, n, n)  b = Reshape(a, n)  c = Add(b, n)  lower = GreaterOrEqual(a, c)",
        "o = com.microsoft.Attention <unidirectional = 1> (hidden)",
        "o = com.microsoft.GroupQueryAttention (hidden)",
        "o = Attention <is_causal = 1> (hidden)",
    ],
)
def test_tokens_logits_and_a_causal_mask_make_a_decoder(mask: str) -> None:
    found = told(CAUSAL.replace("MASK", mask))
    assert (found.role, found.reason) == (
        "decoder-only",
        "it maps tokens to logits under a causal mask, without a KV cache",
    )


@pytest.mark.parametrize(
    "mask",
    ["", "same = Equal(ones, ones)", "o = com.microsoft.Attention <unidirectional = 0> (hidden)", "l = Less(ones, n)"],
)
def test_tokens_and_logits_without_a_causal_mask_make_an_encoder(mask: str) -> None:
    assert told(CAUSAL.replace("MASK", mask)).role == "encoder"


def test_a_decoder_that_reads_an_encoder_without_a_cache_is_a_first_step() -> None:
    found = told(
        """g (int64[B,S] input_ids, float[B,E,8] encoder_hidden_states, float[64,8] table) => (float[B,S,64] logits) {
            h = Gather(table, input_ids)  logits = MatMul(h, encoder_hidden_states)
        }"""
    )
    assert (found.role, found.reason) == ("first-step decoder", "it reads an encoder")


def test_audio_features_make_an_encoder() -> None:
    found = told("g (float[B,80,T] input_features) => (float[B,S,8] y) { y = Relu(input_features) }")
    assert found.role == "encoder"


@pytest.mark.parametrize(
    "declared",
    ["float[B,3,H,W] pixel_values", "float[B,1,28,28] x", "uint8[B,H,W,3] frames", "float[B,4,64,64] image_latents"],
)
def test_an_image_makes_a_vision_model(declared: str) -> None:
    name = declared.split()[1]
    assert told(f"g ({declared}) => (float[B,C] y) {{ y = Relu({name}) }}").role == "vision"


@pytest.mark.parametrize("declared", ["float[B,3] pixel_values", "float[B,7,H,W] x", "int64[B,3,H,W] x", "float[] x"])
def test_another_input_is_not_an_image(declared: str) -> None:
    name = declared.split()[1]
    assert told(f"g ({declared}) => (float[B,C] y) {{ y = Relu({name}) }}").role == "other"


def test_an_image_beside_tokens_is_something_else() -> None:
    found = told("g (float[B,3,H,W] pixel_values, int64[B,S] input_ids) => (y) { y = Relu(pixel_values) }")
    assert (found.role, found.reason) == ("other", "it takes an image and tokens")


def test_a_vision_model_has_no_vocabulary(real_model: RealModel) -> None:
    assert architecture(real_model("vit-qdq/model")).vocabulary is None


def test_a_recurrent_model_is_named_so() -> None:
    found = told("g (float[S,B,4] x) => (float[S,D,B,8] y) { y = LSTM <hidden_size = 8> (x, w, r) }")
    assert (found.role, found.reason) == ("other", "it is recurrent")


PROJECTION = """
g (float[B,S,16] x) => (float[B,S,H,D] y) <float[16,24] weight = {%s}, int64[4] heads = {0, 0, 6, -1}> {
    [%s] q = MatMul(x, weight)
    y = Reshape(q, heads)
}
"""
ZEROS = ", ".join(["0"] * 384)


@pytest.mark.parametrize("name", ["layers_0/q_proj/MatMul", "attention.query.MatMul", "to_q", "l/wq"])
def test_heads_are_read_from_the_reshape_after_a_query_projection(name: str) -> None:
    found = told(PROJECTION % (ZEROS, f'"{name}"'))
    assert (found.heads, found.head_dim) == (6, 4)


@pytest.mark.parametrize(
    ("dims", "projection"),
    [
        ("24,16", "q = Gemm <transB = 1> (x, q_proj)"),
        ("24,16", "t = Transpose(q_proj)  q = MatMul(x, t)"),
        ("16,24", "t = Transpose(q_proj)  q = Gemm <transB = 1> (x, t)"),
        ("16,24", "d = DequantizeLinear(q_proj, one)  q = MatMul(x, d)"),
        ("16,24", "p = MatMul(x, q_proj)  q = Add(p, one)"),
        ("16,24", "p = MatMul(x, q_proj)  a = Add(p, one)  q = Mul(a, one)"),
    ],
)
def test_heads_are_read_through_transposes_dequantizers_and_biases(dims: str, projection: str) -> None:
    found = told(
        f"""g (float[B,S,16] x, float[1] one) => (y)
        <float[{dims}] q_proj = {{{ZEROS}}}, int64[4] heads = {{0, 0, 6, -1}}> {{
            {projection}  y = Reshape(q, heads)
        }}"""
    )
    assert (found.heads, found.head_dim) == (6, 4)


@pytest.mark.parametrize("heads", ["0, 0, 6, 4", "0, 0, -1, 4", "0, 0, 6, -1"])
def test_heads_are_read_from_what_the_reshape_leaves_open(heads: str) -> None:
    found = told((PROJECTION % (ZEROS, "to_q")).replace("0, 0, 6, -1", heads))
    assert (found.heads, found.head_dim) == (6, 4)


@pytest.mark.parametrize("heads", ["0, 0, 5, 4", "0, 0, -1, -1", "6, 4", "0, 0, 0, 0"])
def test_a_reshape_that_does_not_split_the_projection_tells_nothing(heads: str) -> None:
    graph = (PROJECTION % (ZEROS, "to_q")).replace("0, 0, 6, -1", heads)
    assert told(graph.replace("int64[4] heads", f"int64[{heads.count(',') + 1}] heads")).heads is None


def test_a_fused_projection_holds_query_key_and_value() -> None:
    graph = (PROJECTION % (ZEROS, '"attn/qkv/MatMul"')).replace("0, 0, 6, -1", "0, 0, 2, 4")
    assert (told(graph).heads, told(graph).head_dim) == (2, 4)


def test_heads_are_not_read_from_another_projection() -> None:
    assert told(PROJECTION % (ZEROS, '"mlp/up_proj/MatMul"')).heads is None


def test_heads_are_read_from_an_attribute() -> None:
    assert told("g (float[B,S,8] x) => (y) { y = com.microsoft.Attention <num_heads = 12> (x) }").heads == 12


def test_heads_are_not_read_from_a_width_that_is_no_multiple_of_the_head_dim() -> None:
    found = told(
        """g (float[b,s,1] x, float[b,2,p,8] past_key_0) => (float[b,2,t,8] present_key_0)
        <float[1,12] to_q = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
            q = MatMul(x, to_q)  present_key_0 = Identity(past_key_0)
        }"""
    )
    assert (found.heads, found.kv_heads, found.head_dim) == (None, 2, 8)


def test_heads_are_read_by_the_head_dim_of_the_cache() -> None:
    found = told(
        """g (float[b,s,1] x, float[b,1,p,2] past_key_0) => (float[b,1,t,2] present_key_0)
        <float[1,4] to_q = {0, 0, 0, 0}> { q = MatMul(x, to_q)  present_key_0 = Identity(past_key_0) }"""
    )
    assert (found.heads, found.kv_heads, found.head_dim) == (2, 1, 2)


def test_the_start_and_end_of_an_answer_are_no_vocabulary() -> None:
    graph = "g (int64[B,S] input_ids) => (float[B,S,2] logits) { logits = Cast <to = 1> (input_ids) }"
    assert told(graph).vocabulary is None


def test_the_width_of_the_logits_is_the_vocabulary_where_no_table_shows() -> None:
    graph = "g (int64[B,S] input_ids) => (float[B,S,64] logits) { logits = Cast <to = 1> (input_ids) }"
    assert told(graph).vocabulary == 64


def test_the_vocabulary_is_the_table_that_tokens_look_up() -> None:
    found = told(
        f"""g (int64[B,S] input_ids) => (float[B,S,4] y) <float[64,4] table = {{{", ".join(["0"] * 256)}}}> {{
            y = Gather(table, input_ids)
        }}"""
    )
    assert found.vocabulary == 64


def test_without_tokens_there_is_no_vocabulary() -> None:
    assert told("g (float[B,S,8] x) => (float[B,S,64] logits) { logits = Relu(x) }").vocabulary is None


STEP = """
step (%s, float[batch, 8] state) => (float[batch, 8] %s, float[batch, 8] state_out) {
    %s
    state_out = Add (state, row)
    out = Tanh (state_out)
    %s = Identity (out)
}
"""
LOOKUP = "row = Gather (table, input_ids)"


@pytest.mark.parametrize(
    ("graph", "role", "described"),
    [
        (
            STEP % ("int64[batch] input_ids, float[5, 8] table", "logits", LOOKUP, "logits"),
            "recurrent decoder",
            "step of a recurrent decoder",
        ),
        (
            STEP % ("float[batch, 8] frame", "mel", "row = Relu (frame)", "mel"),
            "recurrent",
            "step of a recurrent model",
        ),
    ],
)
def test_a_step_that_takes_state_is_recurrent(graph: str, role: str, described: str) -> None:
    found = told(graph)
    assert (found.role, found.described, found.reads_encoder) == (role, described, False)


def test_a_kv_cache_beside_state_makes_a_decoder() -> None:
    found = told(
        """
        hybrid (int64[b, 1] input_ids, float[b, 2, past, 4] past_key_0, float[b, 8] state, float[5, 8] table)
        => (float[b, 1, 8] logits, float[b, 2, total, 4] present_key_0, float[b, 8] state_out)
        <float[1, 2, 1, 4] new = {0, 0, 0, 0, 0, 0, 0, 0}, int64[1] axis = {1}> {
            row = Gather (table, input_ids)
            flat = Squeeze (row, axis)
            state_out = Add (state, flat)
            present_key_0 = Concat <axis = 2> (past_key_0, new)
            logits = Unsqueeze (state_out, axis)
        }"""
    )
    assert (found.role, found.reason) == (
        "decoder-only",
        "it takes a KV cache, recurrent state, and nothing from an encoder",
    )


def test_the_decoder_of_a_transducer_without_state_is_no_encoder() -> None:
    found = told(
        """
                context (int64[batch, 2] y) => (float[batch, 2, 3] decoder_out)
                <float[2, 3] table = {0, 1, 2, 3, 4, 5}> { decoder_out = Gather (table, y) }"""
    )
    assert found.role == "other"
    assert found.reason == "it takes tokens and gives 'decoder_out', as the decoder of a transducer does"

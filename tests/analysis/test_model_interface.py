from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.analysis.model_interface import Interface, Port, interface
from graphkit.graph.declared_types import shape_text
from graphkit.model import Model

RealModel = Callable[[str], Model]


def described(graph: str) -> Interface:
    return interface(Model.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')))


def inputs(graph: str) -> list[tuple[str, str, str, str]]:
    return [(port.index, port.label, port.dtype, shape_text(port.shape)) for port in described(graph).inputs]


def rows(ports: tuple[Port, ...]) -> list[tuple[str, str, str, str]]:
    return [(port.index, port.label, port.dtype, shape_text(port.shape)) for port in ports]


def test_gemma_counts(real_model: RealModel) -> None:
    found = interface(real_model("gemma-270m/model"))
    assert (found.input_count, found.output_count) == (39, 37)


def test_gemma_inputs(real_model: RealModel) -> None:
    assert rows(interface(real_model("gemma-270m/model")).inputs) == [
        ("0", "input_ids", "int64", "[batch_size, sequence_length]"),
        ("1", "attention_mask", "int64", "[batch_size, total_sequence_length]"),
        ("2", "position_ids", "int64", "[batch_size, sequence_length]"),
        (
            "3-38",
            "past_key_values.{0-17}.{key|value}",
            "float32",
            "[batch_size, 1, past_sequence_length, 256]",
        ),
    ]


def test_gemma_outputs(real_model: RealModel) -> None:
    assert rows(interface(real_model("gemma-270m/model")).outputs) == [
        ("0", "logits", "float32", "[batch_size, sequence_length, 262144]"),
        ("1-36", "present.{0-17}.{key|value}", "float32", "[batch_size, 1, total_sequence_length, 256]"),
    ]


def test_gemma_as_text(real_model: RealModel) -> None:
    assert interface(real_model("gemma-270m/model")).to_text() == (
        """\
Interface

Inputs: 39
#     Name                                Dtype
──────────────────────────────────────────────────
0     input_ids                           int64
        [batch_size, sequence_length]
        token ids
1     attention_mask                      int64
        [batch_size, total_sequence_length]
        1 for a token, 0 for padding
2     position_ids                        int64
        [batch_size, sequence_length]
        position of each token
3-38  past_key_values.{0-17}.{key|value}  float32
        [batch_size, 1, past_sequence_length, 256]
        KV cache, from the step before

Outputs: 37
#     Name                        Dtype
──────────────────────────────────────────
0     logits                      float32
        [batch_size, sequence_length, 262144]
        scores before softmax
1-36  present.{0-17}.{key|value}  float32
        [batch_size, 1, total_sequence_length, 256]
        KV cache, for the next step

"""
    )


def test_decoder_and_encoder_kv_are_families_of_their_own(real_model: RealModel) -> None:
    ports = interface(real_model("nllb-600m/decoder_model_merged")).outputs
    assert [(port.index, port.label, len(port.names)) for port in ports] == [
        ("0", "logits", 1),
        ("1-2,...,45-46", "present.{0-11}.decoder.{key|value}", 24),
        ("3-4,...,47-48", "present.{0-11}.encoder.{key|value}", 24),
    ]


def test_the_cache_is_described_by_what_it_is_for(real_model: RealModel) -> None:
    ports = interface(real_model("whisper-tiny/decoder_model_merged")).inputs
    assert [port.description for port in ports] == [
        "token ids",
        "what the encoder gives as last_hidden_state",
        "self-attention KV cache, from the step before",
        "cross-attention KV cache, from the step before",
        "whether to read the past: false on the first step",
    ]


def test_an_anonymous_cache_is_described(real_model: RealModel) -> None:
    port = interface(real_model("cache-styles/anonymous")).inputs[1]
    assert (port.label, port.description) == ("arg{1-4}", "KV cache, from the step before")


def test_names_of_a_family_stay_in_order(real_model: RealModel) -> None:
    port = interface(real_model("cache-styles/bshd")).inputs[1]
    assert port.names == ("k_cache_0", "v_cache_0", "k_cache_1", "v_cache_1")


def test_ports_come_in_the_order_of_the_model() -> None:
    assert [label for _, label, _, _ in inputs("g (float x2, float a, float x1) => () {}")] == ["x{1-2}", "a"]


def test_tensors_of_other_dtypes_are_no_family() -> None:
    assert inputs("g (float[N] x0, int64[N] x1) => () {}") == [
        ("0", "x0", "float32", "[N]"),
        ("1", "x1", "int64", "[N]"),
    ]


def test_tensors_of_other_sizes_are_no_family() -> None:
    assert inputs("g (float[2] x0, float[3] x1) => () {}") == [
        ("0", "x0", "float32", "[2]"),
        ("1", "x1", "float32", "[3]"),
    ]


def test_symbols_that_differ_in_a_family_show_as_a_star() -> None:
    assert inputs("g (float[N,a,4] x0, float[N,b,4] x1) => () {}") == [("0-1", "x{0-1}", "float32", "[N, *, 4]")]


def test_a_family_with_gaps_is_shown_member_by_member() -> None:
    graph = 'g (float "x.0.key", float "x.0.value", float "x.1.key") => () {}'
    assert [label for _, label, _, _ in inputs(graph)] == ["x.0.key", "x.0.value", "x.1.key"]


def test_key_and_value_alone_are_no_family() -> None:
    assert [label for _, label, _, _ in inputs("g (float key, float value) => () {}")] == ["key", "value"]


def test_an_input_with_a_default_is_optional() -> None:
    ports = described("g (float[N] x, float[1] scale = {2}) => (float[N] y) { y = Mul(x, scale) }").inputs
    assert [port.optional for port in ports] == [False, True]


def test_a_default_is_remarked() -> None:
    assert described("g (float[1] scale = {2}) => () {}").to_text() == (
        """\
Interface

Inputs: 1
#  Name   Dtype
──────────────────
0  scale  float32
     [1]
     has a default

Outputs: none.

"""
    )


def test_a_doc_string_goes_before_the_usual_meaning() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (int64[N] input_ids) => () {}')
    model.graph.input[0].doc_string = " bytes, not tokens\n"
    assert interface(Model.from_proto(model)).inputs[0].description == "bytes, not tokens"


def test_other_types_than_tensors_are_shown() -> None:
    graph = "g (seq(float[N]) many, optional(int64[2]) maybe, float[] any) => () {}"
    assert inputs(graph) == [
        ("0", "many", "seq(float32)", "[N]"),
        ("1", "maybe", "optional(int64)", "[2]"),
        ("2", "any", "float32", "?"),
    ]


def test_a_graph_without_inputs_says_so() -> None:
    assert described("g () => () {}").to_text() == "Interface\n\nInputs: none.\n\nOutputs: none.\n\n"


def index(indices: tuple[int, ...]) -> str:
    return Port(indices, (), "", "", "", "").index


def expanded(text: str) -> tuple[int, ...]:
    bounds = [[int(number) for number in run.split("-")] for run in text.split(",")]
    return tuple(number for run in bounds for number in range(run[0], run[-1] + 1))


ascending = st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted).map(tuple)


def run_count(indices: tuple[int, ...]) -> int:
    return sum(number - 1 not in indices for number in indices)


@given(ascending.filter(lambda indices: run_count(indices) < 4))
def test_up_to_three_runs_are_written_out(indices: tuple[int, ...]) -> None:
    assert expanded(index(indices)) == indices


@given(ascending.filter(lambda indices: run_count(indices) >= 4))
def test_of_more_runs_the_first_and_the_last_are_written(indices: tuple[int, ...]) -> None:
    first, dots, last = index(indices).split(",")
    assert dots == "..."
    assert (expanded(first)[0], expanded(last)[-1]) == (indices[0], indices[-1])


@pytest.mark.parametrize(
    ("indices", "text"),
    [((5,), "5"), ((0, 1), "0-1"), ((0, 2), "0,2"), ((1, 2, 5, 8, 9), "1-2,5,8-9"), ((0, 2, 4, 6), "0,...,6")],
)
def test_index_text(indices: tuple[int, ...], text: str) -> None:
    assert index(indices) == text


@pytest.mark.parametrize(
    ("nodes", "meaning"),
    [
        ("n = Identity (attention_mask)", "1 for padding, 0 for what counts"),
        ("n = Not (attention_mask)", "1 for a token, 0 for padding"),
    ],
)
def test_the_meaning_of_a_mask_follows_from_the_nodes(nodes: str, meaning: str) -> None:
    found = described(
        f"""g (float[n] x, bool[n] attention_mask) => (float[n] y) <float least = {{-1e9}}> {{
        {nodes} filled = Where (n, least, x) y = Softmax (filled) }}"""
    )
    assert [port.description for port in found.inputs] == ["", meaning]


def test_csv_and_data_frames_have_a_row_for_each_member_of_a_family_with_its_own_shape() -> None:
    ports = 'float[N] x, float[A] "c.0", float[B] "c.1", float[5] y'
    found = described(f"g ({ports}) => (float[N] o) {{ o = Relu (x) }}")
    assert ("1-2", "c.{0-1}", "float32", "[*]") in rows(found.inputs)
    (table,) = found.csv_tables()
    assert [list(row)[:5] for row in table.rows] == [
        ["input", 0, "x", "float32", "[N]"],
        ["input", 1, "c.0", "float32", "[A]"],
        ["input", 2, "c.1", "float32", "[B]"],
        ["input", 3, "y", "float32", "[5]"],
        ["output", 0, "o", "float32", "[N]"],
    ]
    assert found.to_csv().startswith("Side,#,Name,Dtype,Shape,Description\ninput,0,x,float32,[N],")

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from onnx import parser
from real_models import params

from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model, load
from graphkit.passes.control_flow.merged_decoders import Split, split_merged

RealModel = Callable[[str], Model]
SplitOf = Callable[[str], Split]
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

# Merged model -> the two decoders it was merged from.
TRUTHS = {
    "nllb-600m/decoder_model_merged": ("nllb-600m/decoder_model", "nllb-600m/decoder_with_past_model"),
    "opus-mt-en-fr/decoder_model_merged": ("opus-mt-en-fr/decoder_model", "opus-mt-en-fr/decoder_with_past_model"),
    "nllb-tiny/decoder_model_merged_quantized": (
        "nllb-tiny/decoder_model_quantized",
        "nllb-tiny/decoder_with_past_model_quantized",
    ),
}


def ports(model: Model) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return names and ranks of inputs and outputs, in order."""
    inputs, outputs = ([(v.name, rank(v)) for v in values] for values in (model.graph.inputs, model.graph.outputs))
    return inputs, outputs


def rank(value: Value) -> int:
    declared = declared_type(value)
    return len(declared.dims or ()) if declared is not None else -1


@pytest.fixture(scope="module")
def split_of(real_model: RealModel) -> SplitOf:
    """Split a model of tests/models, once."""
    return cache(lambda name: split_merged(real_model(name)))


@pytest.mark.parametrize("name", params(TRUTHS, slow=["nllb-tiny/decoder_model_merged_quantized"]))
def test_the_pair_has_the_interface_and_the_nodes_of_what_was_merged(
    name: str, real_model: RealModel, split_of: SplitOf
) -> None:
    split = split_of(name)
    for result, truth in zip((split.first, split.with_past), TRUTHS[name], strict=True):
        expected = real_model(truth)
        assert ports(result) == ports(expected)
        assert len(result.graph.nodes) == len(expected.graph.nodes)


@pytest.mark.slow
def test_nllb_has_48_and_24_presents(split_of: SplitOf) -> None:
    split = split_of("nllb-600m/decoder_model_merged")
    presents = [
        [v.name for v in m.graph.outputs if v.name.startswith("present")] for m in (split.first, split.with_past)
    ]
    assert [len(names) for names in presents] == [48, 24]
    assert not any("encoder" in name for name in presents[1])


@pytest.mark.slow
def test_suffixes_go_unless_they_are_to_stay(real_model: RealModel, split_of: SplitOf) -> None:
    name = "opus-mt-en-fr/decoder_model_merged"
    stripped = [value.name for value in split_of(name).first.graph.initializers]
    kept = [value.name for value in split_merged(real_model(name), keep_names=True).first.graph.initializers]
    assert not any("_merged" in name for name in stripped)
    assert all("_merged" in name for name in kept)


def test_versions_metadata_and_producer_stay_and_a_note_is_added(real_model: RealModel, split_of: SplitOf) -> None:
    name = "nllb-tiny/decoder_model_merged_quantized"
    model, result = real_model(name), split_of(name).with_past.proto
    assert (result.ir_version, result.producer_name) == (model.proto.ir_version, model.proto.producer_name)
    assert list(result.opset_import) == list(model.proto.opset_import)
    metadata = {entry.key: entry.value for entry in result.metadata_props}
    assert metadata["onnx.infer"] == "onnxruntime.quant"
    assert metadata["graphkit.made_by"].endswith("split-merged of decoder_model_merged_quantized.onnx, later steps")


def test_a_decoder_only_model_gives_all_its_cache_in_both_steps(real_model: RealModel) -> None:
    split = split_merged(real_model("gpt2-tiny/decoder_model_merged"))
    first, later = ([v.name for v in m.graph.outputs] for m in (split.first, split.with_past))
    assert first == later == [v.name for v in real_model("gpt2-tiny/decoder_model_merged").graph.outputs]


def test_first_step_dims_do_not_speak_of_a_past(real_model: RealModel) -> None:
    split = split_merged(real_model("opus-mt-en-fr/decoder_model_merged"))
    declared = declared_type(split.first.graph.values["present.0.decoder.key"])
    assert declared is not None
    assert declared.dims == ("batch_size", 8, "decoder_sequence_length", 64)


def test_later_step_dims_keep_true_symbols(real_model: RealModel) -> None:
    split = split_merged(real_model("marian-tiny/decoder_model_merged"))
    declared = declared_type(split.with_past.graph.values["present.0.decoder.key"])
    assert declared is not None
    assert declared.dims == ("batch_size", 8, "past_decoder_sequence_length + decoder_sequence_length", 4)


def merged_text(condition: str, *, kind: str = "bool", first: str = "x", later: str = "past_key_0") -> Model:
    return Model.from_proto(
        parser.parse_model(f"""{HEADER}
        agraph (float[B, 2, S, 4] x, float[B, 2, P, 4] past_key_0, {kind} flag, bool other)
            => (float[B, 2, T, 4] present_key_0) {{
            {condition}
            present_key_0 = If (c) <
                then_branch = g1 () => (float[B, 2, T, 4] a) {{ a = Neg ({later}) }},
                else_branch = g2 () => (float[B, 2, T, 4] b) {{ b = Neg ({first}) }}
            >
        }}""")
    )


def test_an_if_on_an_input_that_reads_the_past_in_one_branch_is_split() -> None:
    split = split_merged(merged_text("c = Identity (flag)"))
    assert (split.condition, split.cache_when) == ("flag", True)
    assert [value.name for value in split.first.graph.inputs] == ["x"]
    assert [value.name for value in split.with_past.graph.inputs] == ["past_key_0"]


def test_a_negated_condition_swaps_the_branches() -> None:
    split = split_merged(merged_text("c = Not (flag)"))
    assert split.cache_when is False
    assert [value.name for value in split.first.graph.inputs] == ["x"]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (merged_text("c = Cast <to = 9> (flag)", kind="int64"), "'If#1' is on 'flag', which is int64, not bool"),
        (
            merged_text("s = ReduceSum <keepdims = 0> (x)  c = Cast <to = 9> (s)"),
            "'If#2' has a condition that is computed",
        ),
        (merged_text("c = Identity (flag)", first="past_key_0"), "'If#1' reads the past in both branches"),
        (merged_text("c = Identity (flag)", later="x"), "'If#1' reads no past in either branch"),
    ],
    ids=["not-boolean", "computed", "both", "neither"],
)
def test_what_is_not_a_merged_decoder_is_declined_with_the_reason(model: Model, reason: str) -> None:
    with pytest.raises(UsageError, match="is not a merged decoder") as caught:
        split_merged(model)
    assert reason in str(caught.value)


def test_a_branch_that_lacks_an_output_is_the_reason_why_a_model_is_not_split() -> None:
    proto = merged_text("c = Identity (flag)").proto
    proto.graph.node[1].output.append("lost")
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "lost"
    with pytest.raises(
        UsageError, match=r"is not a merged decoder: 'If#1' is broken: its then_branch gives fewer outputs than it has"
    ):
        split_merged(Model.from_proto(proto))


def test_a_model_without_an_if_is_declined() -> None:
    with pytest.raises(UsageError, match=r"example:causal-attention: is not a merged decoder: there is no If in it"):
        split_merged(load("example:causal-attention"))


def two_candidates() -> Model:
    return Model.from_proto(
        parser.parse_model(f"""{HEADER}
        agraph (float[B, 2, S, 4] x, float[B, 2, P, 4] past_0, float[B, 2, P, 4] past_1, bool one, bool two)
            => (float[B, 2, T, 4] present_0, float[B, 2, T, 4] present_1) {{
            present_0 = If (one) <
                then_branch = g1 () => (float[B, 2, T, 4] a) {{ a = Neg (past_0) }},
                else_branch = g2 () => (float[B, 2, T, 4] b) {{ b = Neg (x) }}
            >
            present_1 = If (two) <
                then_branch = g3 () => (float[B, 2, T, 4] c) {{ c = Neg (past_1) }},
                else_branch = g4 () => (float[B, 2, T, 4] d) {{ d = Neg (x) }}
            >
        }}""")
    )


def test_two_candidates_are_named_and_one_can_be_chosen() -> None:
    with pytest.raises(UsageError, match=r"merged decoders on one, two - choose one with --condition"):
        split_merged(two_candidates())
    split = split_merged(two_candidates(), condition="two")
    assert [value.name for value in split.first.graph.inputs] == ["x", "past_0", "one"]


def test_a_condition_that_is_no_merged_decoder_points_to_specialize_input() -> None:
    with pytest.raises(UsageError, match=r"specialize-input\{input=other,value=...\}"):
        split_merged(merged_text("c = Identity (flag)"), condition="other")

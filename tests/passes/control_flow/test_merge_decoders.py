from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import graphkit
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.model import Model, load
from graphkit.passes.control_flow.merged_decoders import merge_decoders

FIRST, LATER = "merged-decoder/decoder_model", "merged-decoder/decoder_with_past_model"
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
RealModel = Callable[[str], Model]
Arrays = dict[str, np.ndarray]


def run_file(path: str | Path, feed: Arrays) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def test_a_merged_decoder_has_the_interface_that_the_exporter_gave_its_own(real_model: RealModel) -> None:
    made, truth = merge_decoders(real_model(FIRST), real_model(LATER)).model, load("example:merged-decoder")
    for ports in ("inputs", "outputs"):
        ours, theirs = (
            [(value.name, declared_dims(value)) for value in getattr(model.graph, ports)] for model in (made, truth)
        )
        assert ours == theirs


def test_in_onnxruntime_it_gives_what_the_pair_gives_and_passes_the_cache_of_the_encoder_through(
    real_model: RealModel, tmp_path: Path
) -> None:
    first, later = real_model(FIRST), real_model(LATER)
    path = tmp_path / "merged.onnx"
    graphkit.save_models({path: merge_decoders(first, later).model}, weights="inline")
    onnx.checker.check_model(path)
    draw = np.random.default_rng(0)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    states = draw.standard_normal((2, 5, 16), dtype=np.float32)
    begin = {"input_ids": np.array([[5], [7]]), "encoder_attention_mask": mask, "encoder_hidden_states": states}
    empty = {
        f"past_key_values.0.{side}.{kind}": np.zeros((2, 2, 0, 8), np.float32)
        for side in ("decoder", "encoder")
        for kind in ("key", "value")
    }
    expected = run_file(str(first.path), begin)
    found = run_file(path, {**begin, **empty, "use_cache_branch": np.array([False])})
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)

    past = {name.replace("present", "past_key_values"): array for name, array in expected.items() if name != "logits"}
    step = {"input_ids": np.array([[9], [3]]), "encoder_attention_mask": mask, **past}
    expected = run_file(str(later.path), step)
    found = run_file(path, {**step, "encoder_hidden_states": states, "use_cache_branch": np.array([True])})
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    for kind in ("key", "value"):
        np.testing.assert_array_equal(found[f"present.0.encoder.{kind}"], past[f"past_key_values.0.encoder.{kind}"])


def test_equal_weights_are_stored_once_whatever_they_are_called(real_model: RealModel) -> None:
    made = merge_decoders(real_model(FIRST), real_model(LATER)).model
    contents = [(each.data_type, tuple(each.dims), bytes(made.payload(each))) for each in made.proto.graph.initializer]
    assert len(set(contents)) == len(contents)
    assert not any(body.initializers for scope in made.graph.walk() for body in scope.bodies)


def test_a_merged_decoder_splits_into_the_pair_that_it_was_merged_from(real_model: RealModel) -> None:
    first, later = real_model(FIRST), real_model(LATER)
    split = graphkit.split_merged(merge_decoders(first, later).model)
    assert (split.condition, split.cache_when) == ("use_cache_branch", True)
    assert len(split.first.graph.nodes) == len(first.graph.nodes)
    passed = 2  # nodes that give the encoder's keys and values as they come
    assert len(split.with_past.graph.nodes) == len(later.graph.nodes) + passed
    for half, truth in ((split.first, first), (split.with_past, later)):
        assert {value.name for value in half.graph.inputs} == {value.name for value in truth.graph.inputs}


def test_metadata_of_both_stay_and_a_note_is_added() -> None:
    first = parsed(FIRST_STEP)
    first.proto.metadata_props.add(key="author", value="first")
    later = parsed(LATER_STEPS)
    later.proto.metadata_props.add(key="author", value="later")
    later.proto.metadata_props.add(key="more", value="later")
    proto = merge_decoders(first, later).model.proto
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert (metadata["author"], metadata["more"]) == ("first", "later")
    assert metadata["graphkit.made_by"].endswith("merge-decoders of first and later")


FIRST_STEP = """first (int64[s1, s2] input_ids) => (float[s1, s2, 4] logits, float[s1, 1, s2, 4] cache_layers_0_keys,
        float[s1, 1, s2, 4] cache_layers_0_values)
    <float[3, 4] table = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0}, int64[1] axis = {1}> {
    w = Gather (table, input_ids)
    cache_layers_0_keys = Unsqueeze (w, axis)
    cache_layers_0_values = Neg (cache_layers_0_keys)
    logits = Exp (w)
}"""
LATER_STEPS = """later (int64[s2, 1] input_ids, float[s2, 1, s1, 4] input_cache_layers_0_keys,
        float[s2, 1, s1, 4] input_cache_layers_0_values) => (float[s2, 1, 4] logits,
        float[s2, 1, t, 4] output_cache_layers_0_keys, float[s2, 1, t, 4] output_cache_layers_0_values)
    <float[3, 4] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0}, int64[1] table = {1}> {
    axis = Gather (w, input_ids)
    new = Unsqueeze (axis, table)
    minus = Neg (new)
    output_cache_layers_0_keys = Concat <axis = 2> (input_cache_layers_0_keys, new)
    output_cache_layers_0_values = Concat <axis = 2> (input_cache_layers_0_values, minus)
    sum = ReduceSum <keepdims = 0> (output_cache_layers_0_keys, table)
    last = ReduceSum <keepdims = 1> (sum, table)
    logits = Add (axis, last)
}"""


def parsed(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f"{HEADER}\n{text}"))


def test_caches_that_the_two_call_otherwise_are_matched_by_their_layer_and_kind() -> None:
    made = merge_decoders(parsed(FIRST_STEP), parsed(LATER_STEPS))
    assert [value.name for value in made.model.graph.outputs] == [
        "logits",
        "output_cache_layers_0_keys",
        "output_cache_layers_0_values",
    ]
    assert made.changes[0] == "2 names of the first step became those of later steps"


def test_names_and_symbols_that_the_two_give_to_different_things_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "merged.onnx"
    made = merge_decoders(parsed(FIRST_STEP), parsed(LATER_STEPS)).model
    made.save(path)
    onnx.checker.check_model(path)
    dims = {value.name: declared_dims(value) for value in made.graph.inputs}
    batch, tokens = dims["input_ids"] or ()
    assert (dims["input_cache_layers_0_keys"] or ())[0] == batch
    assert (dims["input_cache_layers_0_keys"] or ())[2] not in (batch, tokens)
    ids, past = np.array([[0, 2]]), np.zeros((1, 1, 0, 4), np.float32)
    feed = {"input_ids": ids, "input_cache_layers_0_keys": past, "input_cache_layers_0_values": past}
    first = run_file(path, {**feed, "use_cache_branch": np.array([False])})
    rows = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(first["logits"], np.exp(rows[ids]), rtol=1e-6)
    kept = {name.replace("output", "input"): array for name, array in first.items() if name != "logits"}
    later = run_file(path, {"input_ids": np.array([[1]]), **kept, "use_cache_branch": np.array([True])})
    np.testing.assert_array_equal(later["logits"][0, 0], rows[1] + rows[[0, 2, 1]].sum(0))
    assert later["output_cache_layers_0_values"].shape == (1, 1, 3, 4)


@pytest.mark.parametrize(
    ("first", "later", "reason"),
    [
        (LATER_STEPS, FIRST_STEP, "later: reads a past, 'input_cache_layers_0_keys', and so is not of the first step"),
        (FIRST_STEP, FIRST_STEP, "first: none of its inputs is a past of a KV cache"),
        (
            FIRST_STEP.replace("int64[s1, s2] input_ids", "int32[s1, s2] input_ids"),
            LATER_STEPS,
            "later: 'input_ids' has not the dtype and rank that it has in first",
        ),
        (
            FIRST_STEP.replace("[s1, s2, 4] logits", "[s1, s2, 4] logits, float[s1, s2, 4] w"),
            LATER_STEPS,
            "later: has no output w - take it out of the other decoder",
        ),
        (FIRST_STEP.replace("input_ids", "use_cache_branch"), LATER_STEPS, "first: has 'use_cache_branch' already"),
    ],
    ids=["swapped", "no-past", "dtype", "output", "condition"],
)
def test_what_does_not_fit_together_is_declined_with_the_reason(first: str, later: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        merge_decoders(parsed(first), parsed(later))
    assert str(caught.value).startswith(reason)


def test_two_opsets_are_declined_with_what_to_do() -> None:
    later = parsed(LATER_STEPS)
    later.proto.opset_import[0].version = 18
    with pytest.raises(UsageError, match=r"has opset 18 of ai.onnx, first has 17 - .* graphkit convert-opset"):
        merge_decoders(parsed(FIRST_STEP), later)


def test_functions_of_one_name_that_differ_are_declined_with_what_to_do() -> None:
    models = parsed(FIRST_STEP), parsed(LATER_STEPS)
    for model, op_type in zip(models, ("Neg", "Exp"), strict=True):
        model.proto.functions.add(domain="d", name="f").node.add(op_type=op_type)
    with pytest.raises(UsageError, match=r"its function 'f' is not that of first - .* inline-functions"):
        merge_decoders(*models)


def test_an_input_with_a_default_is_declined() -> None:
    first = parsed(FIRST_STEP)
    first.proto.graph.input.add(name="axis")
    with pytest.raises(UsageError, match=r"first: its input 'axis' has a default"):
        merge_decoders(first, parsed(LATER_STEPS))

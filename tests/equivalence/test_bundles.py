"""Methods of bundles are proven against their decoders, and no fault put into one leaves what it was proven of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from builders import model_of
from bundle_fault_table import FAULTS
from bundle_faults import Edit, export, graph
from onnx import helper
from real_models import unpacked_export
from speech import speech

from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.deploy.verify_folder import verify_folder
from graphkit.equivalence import Equivalence, check_bundle
from graphkit.equivalence.bundles import joining_fault, state_faults
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.options import Update
from graphkit.verify.deployment_proofs import BundleProof

Bundled = Callable[[str, Update], tuple[Originals, Path]]
OUTPUTS = {
    "causal": {"prefill": 4, "step": 4},
    "t5-tiny": {"encode": 10, "step": 5},
    "whisper": {"encode": 9, "step": 5},
}
APART = ("not reordered", "does not begin with 0")  # faults of `reorder` and `init`, of which nothing is proven
INJECTED = [
    *(name for name, fault in FAULTS.items() if fault.family in ("causal", "whisper") and not name.endswith(APART)),
    "t5-tiny: a source mask that forgets the last pad",
]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Bundled:
    folder, made = tmp_path_factory.mktemp("bundles"), dict[tuple[str, Update], tuple[Originals, Path]]()

    def of(name: str, update: Update) -> tuple[Originals, Path]:
        if (name, update) not in made:
            source = export(name, folder / f"{name}-{update}")
            options = BundleOptions(batch=4, max_cache=8, max_source=8, update=update, verify=False)
            bundle_folder(source, folder / f"{name}-{update}-out", options)
            found = find_pipeline(source)
            originals = Originals(found.encoder, found.first, found.step)
            made[name, update] = originals, folder / f"{name}-{update}-out"
        return made[name, update]

    return of


@pytest.mark.cases("causal-scatter-nd", "causal-tensor-scatter")
@pytest.mark.parametrize(
    ("name", "update"),
    [("causal", "scatter-nd"), ("causal", "tensor-scatter"), ("t5-tiny", "scatter-nd"), ("whisper", "tensor-scatter")],
)
def test_all_outputs_of_a_bundle_are_proven(name: str, update: Update, bundled: Bundled) -> None:
    found = check_bundle(*bundled(name, update))
    assert not [*unproven(found)]
    assert {method: len(each.outputs) for method, each in found.items()} == OUTPUTS[name]


@pytest.mark.cases("qwen3-padded")
@pytest.mark.parametrize("name", ["qwen3-padded", "gemma3_text", "marian-multi"])
def test_a_bundle_is_proven_though_nothing_ties_the_dims_of_its_export(name: str, tmp_path: Path) -> None:
    """Sizes of inputs are symbols of their own there, one for each layer's past, and numbers are symbols too."""
    source = unpacked_export(name, tmp_path / "export")
    bundle_folder(source, tmp_path / "out", BundleOptions(verify=False))
    found = check_bundle(find_pipeline(source).originals, tmp_path / "out")
    assert not [*unproven(found)]
    graph("step.onnx", swapped_slots)(tmp_path / "out")
    assert [*unproven(check_bundle(find_pipeline(source).originals, tmp_path / "out"))]


def swapped_slots(edit: Edit) -> None:
    """Let two states that are alike change places."""
    states = [
        info.name for info in edit.proto.input if "layers" in info.name and len(info.type.tensor_type.shape.dim) > 3
    ]
    places = dict(zip(states[:2], states[1::-1], strict=True))
    for node in edit.proto.node:
        node.input[:] = [places.get(name, name) for name in node.input]


@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_steps_with_recurrent_state_are_proven(name: str, tmp_path: Path) -> None:
    source = unpacked_export(name, tmp_path / "export")
    bundle_folder(source, tmp_path / "out", BundleOptions(verify=False))
    found = check_bundle(find_pipeline(source).originals, tmp_path / "out")
    assert found["step"].is_proven
    assert not found["prefill"].is_proven  # its state is shorter after one token, and that of the bundle is not


def unproven(found: dict[str, Equivalence]) -> Iterator[str]:
    for method, each in found.items():
        yield from (f"{method}: {output}" for output in each.outputs if output.verdict != "proven")


@pytest.mark.cases("causal: slots one further on", "causal: a mask that is not kept")
@pytest.mark.parametrize("name", INJECTED)
def test_a_fault_of_a_bundle_is_not_proven(name: str, bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled(FAULTS[name].family, "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    FAULTS[name].inject(tmp_path / "out")
    try:
        found = check_bundle(originals, tmp_path / "out")
    except ModelError:  # the contract does not fit any more
        return
    assert [*unproven(found)]


@pytest.mark.cases("False")
@pytest.mark.parametrize("is_added_before", [True, False])
def test_logits_negated_where_float32_rounds_tokens_are_not_proven(is_added_before: bool, tmp_path: Path) -> None:
    source = export("causal", tmp_path / "export")
    bundle_folder(source, tmp_path / "out", BundleOptions(batch=2, max_cache=8, verify=False))
    graph("decode.onnx", partial(negated_where_tokens_round, is_added_before=is_added_before))(tmp_path / "out")
    originals = find_pipeline(source).originals
    found = check_bundle(originals, tmp_path / "out")
    assert {text.split(":")[1].strip() for text in unproven(found)} >= {"logits"}, found
    assert not found["step"].is_proven


def negated_where_tokens_round(edit: Edit, is_added_before: bool) -> None:
    """Negate the logits at odd numbers of tokens from 41 on."""
    more = 2**24 - 40
    dims = edit.node("Shape", "input_ids")
    tokens = edit.node("Gather", dims.output[0], edit.constant([1]), axis=0)
    if is_added_before:
        added = edit.node("Add", tokens.output[0], edit.constant(more))
        rounded = edit.node("Cast", added.output[0], to=onnx.TensorProto.FLOAT)
    else:
        added = edit.node("Cast", tokens.output[0], to=onnx.TensorProto.FLOAT)
        rounded = edit.node("Add", added.output[0], edit.constant(more, np.float32))
    integer = edit.node("Cast", rounded.output[0], to=onnx.TensorProto.INT64)
    again = edit.node("Sub", integer.output[0], edit.constant(more))
    same = edit.node("Equal", again.output[0], tokens.output[0])
    choice = edit.node("Squeeze", same.output[0])
    nodes = [dims, tokens, added, rounded, integer, again, same, choice]

    def make(old: str) -> list[onnx.NodeProto]:
        branches = {
            name: helper.make_graph(
                [helper.make_node(operator, [old], [name])],
                name,
                [],
                [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)],
            )
            for name, operator in (("then_branch", "Identity"), ("else_branch", "Neg"))
        }
        return [*nodes, edit.node("If", choice.output[0], **branches)]

    edit.after("logits", make)


@pytest.mark.parametrize(("old", "new"), [("past", "seq"), ("past", "batch"), ("seq", "batch")])
def test_dims_of_one_name_that_need_not_be_equal_are_not_proven(
    old: str, new: str, bundled: Bundled, tmp_path: Path
) -> None:
    source = export("causal", tmp_path)
    decoder = onnx.load(source / "model.onnx")
    for info in decoder.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == old:
                dim.dim_param = new
    onnx.save(decoder, source / "model.onnx")
    found = check_bundle(find_pipeline(source).originals, bundled("causal", "scatter-nd")[1])
    reasons = {output.reason for each in found.values() for output in each.outputs}
    assert reasons == {f"dim '{new}' is declared for what need not be as long: past, tokens or source"}


def test_a_past_that_is_never_empty_is_not_proven(bundled: Bundled, tmp_path: Path) -> None:
    source = export("causal", tmp_path)
    decoder = onnx.load(source / "model.onnx")
    for info in decoder.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param == "past":
                dim.dim_value = 3
    onnx.save(decoder, source / "model.onnx")
    found = check_bundle(find_pipeline(source).originals, bundled("causal", "scatter-nd")[1])
    reasons = {output.reason for each in found.values() for output in each.outputs}
    assert all("which is no dim that may be 0" in reason for reason in reasons), reasons


@pytest.mark.slow
def test_a_step_that_reads_no_length_is_none(tmp_path: Path) -> None:
    source = speech(tmp_path / "export", KEPT)
    bundle_folder(source, tmp_path / "out", BundleOptions(max_cache=6, max_source=9, batch=2, verify=False))
    contract = read_bundle(tmp_path / "out" / "bundle.json")
    start = contract.method("once")
    assert start is not None
    methods = (start, replace(start, name="step", when="step"))
    (tmp_path / "out" / "bundle.json").write_text(replace(contract, methods=methods).to_json())
    found = check_bundle(find_pipeline(source).originals, tmp_path / "out")
    assert found["encode"].is_proven
    assert {output.reason for output in found["step"].outputs} == {
        "it goes on from no past, as it does not read its length"
    }


def test_a_start_that_goes_on_from_a_past_is_compared_with_no_other_decoder(bundled: Bundled) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    assert originals.step is not None
    first = Model.from_proto(originals.step.restore())
    found = check_bundle(Originals(None, first, originals.step), folder)
    assert found["step"].is_proven
    assert not found["prefill"].proven


def test_a_number_of_slots_is_not_that_of_those_in_use(bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    decode = onnx.load(tmp_path / "out" / "decode.onnx")
    for info in (*decode.graph.input, *decode.graph.output):
        dims = info.type.tensor_type.shape.dim
        if "past_key_values" in info.name:
            dims[0].dim_value = 8
    onnx.save(decode, tmp_path / "out" / "decode.onnx")
    found = check_bundle(originals, tmp_path / "out")
    assert not any(each.proven for each in found.values())


KEPT = {
    "past_length = Identity (first)": "past_length = Squeeze (zero)",
    "z = Add (y, cross_flat)": (
        "w = Add (y, cross_flat) m = ReduceMean <axes = [1]> (encoder_hidden_states) z = Add (w, m)"
    ),
    'float[batch, 2, past, 4] "past_key_values.0.decoder.key",': (
        'float[batch, states, 8] encoder_hidden_states, float[batch, 2, past, 4] "past_key_values.0.decoder.key",'
    ),
}


@pytest.mark.slow
def test_states_of_an_encoder_that_each_step_reads_are_proven(tmp_path: Path) -> None:
    source = speech(tmp_path / "export", KEPT)
    bundle_folder(source, tmp_path / "out", BundleOptions(max_cache=6, max_source=9, batch=2, verify=False))
    originals = find_pipeline(source).originals
    found = check_bundle(originals, tmp_path / "out")
    assert not [*unproven(found)]
    assert "encoder_hidden_states_kept" in {output.name for output in found["encode"].outputs}
    encode = onnx.load(tmp_path / "out" / "encode.onnx")
    kept = next(node for node in encode.graph.node if "encoder_hidden_states_kept" in node.output)
    kept.op_type = "Neg"
    onnx.save(encode, tmp_path / "out" / "encode.onnx")
    assert [text.split(": ")[:2] for text in unproven(check_bundle(originals, tmp_path / "out"))] == [
        ["encode", "encoder_hidden_states_kept"]
    ]


def test_a_bundle_says_what_is_proven_and_records_it(tmp_path: Path) -> None:
    source = export("causal", tmp_path / "export")
    options = BundleOptions(max_cache=8)
    proof = bundle_folder(source, tmp_path / "out", options).proof
    assert proof is not None
    assert proof.proven().startswith(
        f"Proven bit for bit at every size (8 of 8 outputs of prefill and step), and run {len(proof.runs)} times "
    )
    text = " ".join(proof.to_text().split())
    assert (
        "By normal forms of step, at every legal size and for every input, for batch >= 1, past >= 0, seq >= 1" in text
    )
    assert "a Slice of what was written in place is the Concat of past and new (6 times)" in text
    again = verify_folder(source, tmp_path / "out")
    assert isinstance(again, BundleProof)
    assert again.equivalence == proof.equivalence
    proven = read_bundle(tmp_path / "out" / "bundle.json").proof.proven
    assert {method: len(outputs) for method, outputs in proven.items()} == OUTPUTS["causal"]
    assert {exactness for outputs in proven.values() for exactness in outputs.values()} == {"bit for bit"}


def test_rings_are_tested(tmp_path: Path) -> None:
    source = export("window", tmp_path / "export")
    proof = bundle_folder(source, tmp_path / "out", BundleOptions(max_cache=8)).proof
    assert proof is not None
    assert proof.passed
    assert proof.proven().startswith(f"Tested in {len(proof.runs)} runs and {len(proof.checks)} checks: the bundle ")
    assert "of step: past_key_values.0.key is a ring." in " ".join(proof.to_text().split())
    assert read_bundle(tmp_path / "out" / "bundle.json").proof.proven == {}


def test_a_ring_is_unknown(bundled: Bundled) -> None:
    found = check_bundle(*bundled("window", "scatter-nd"))
    assert {reason for output in found["step"].outputs for reason in [output.reason]} == {
        "past_key_values.0.key is a ring"
    }


def edited_step(folder: Path, edit: Callable[[onnx.GraphProto], object]) -> None:
    file = folder / next(method.file for method in read_bundle(folder / "bundle.json").methods if method.name == "step")
    step = onnx.load(file, load_external_data=False)
    edit(step.graph)
    file.write_bytes(step.SerializeToString())


def declared(folder: Path, name: str, axis: int, dim: str | int) -> None:
    """Declare another dim of an input of the step."""

    def declare(graph: onnx.GraphProto) -> None:
        value = next(info for info in (*graph.input, *graph.output) if info.name == name)
        value.type.tensor_type.shape.dim[axis].Clear()
        setattr(value.type.tensor_type.shape.dim[axis], "dim_param" if isinstance(dim, str) else "dim_value", dim)

    edited_step(folder, declare)


@pytest.mark.parametrize(
    ("name", "axis", "dim", "reason"),
    [
        ("input_ids", 1, "anything", ""),
        ("input_ids", 1, 1, "input_ids is declared to have 1 along axis 1, and has seq"),
        ("input_ids", 0, 1, "input_ids is declared to have 1 along axis 0, and has batch"),
        ("input_ids", 1, "batch", "'batch' is declared for dims that may differ: batch, seq"),
        ("logits", 0, 4, "logits is declared to have 4 along axis 0, and has batch"),
    ],
)
def test_a_method_declares_what_its_ports_have(
    name: str, axis: int, dim: str | int, reason: str, bundled: Bundled, tmp_path: Path
) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    declared(tmp_path / "out", name, axis, dim)
    step = check_bundle(originals, tmp_path / "out")["step"]
    assert {output.reason for output in step.outputs} == {reason}
    assert step.is_proven is not bool(reason)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "float16"}, "logits is float16 to a host, and float32 in its model"),
        ({"shape": [4, 1]}, "logits has 2 dims to a host, and 3 in its model"),
        ({"shape": ["batch", "logits_kept", 12]}, "logits has 12 along axis 2 to a host, and 11 in its model"),
        ({"shape": ["logits_kept", "batch", 11]}, "'batch' of its model is batch and logits_kept to a host"),
        ({"shape": ["batch", 2, 11]}, "logits has 2 along axis 1 to a host, and logits_kept in its model"),
    ],
)
def test_a_port_is_that_of_its_model(change: dict[str, object], reason: str, bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    file = tmp_path / "out" / "bundle.json"
    contract = json.loads(file.read_text())
    step = next(method for method in contract["methods"] if method["name"] == "step")
    next(port for port in step["outputs"] if port["name"] == "logits").update(change)
    file.write_text(json.dumps(contract))
    found = check_bundle(originals, tmp_path / "out")["step"]
    assert found.outputs
    assert all(output.reason.startswith(reason) for output in found.outputs)


@pytest.mark.parametrize("name", ["logits", "past_key_values.0.key_after"])
def test_a_method_has_all_ports_of_its_contract(name: str, bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    edited_step(tmp_path / "out", lambda graph: graph.output.remove(next(v for v in graph.output if v.name == name)))
    found = check_bundle(originals, tmp_path / "out")["step"]
    assert {output.reason for output in found.outputs} == {f"{name} is no port of its contract, or none of its model"}


def test_an_input_that_a_method_does_not_read_is_no_port(bundled: Bundled, tmp_path: Path) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")
    extra = onnx.helper.make_tensor_value_info("extra", onnx.TensorProto.FLOAT, ["batch"])
    edited_step(tmp_path / "out", lambda graph: graph.input.append(extra))
    found = check_bundle(originals, tmp_path / "out")["step"]
    assert {output.reason for output in found.outputs} == {"extra is no port of its contract, or none of its model"}


@pytest.mark.parametrize(("names", "is_proven"), [(("foo", "seq2"), True), (("seq2", "foo"), False)])
def test_names_of_dims_mean_one_thing_inside_and_outside_of_a_method(
    names: tuple[str, str], is_proven: bool, bundled: Bundled, tmp_path: Path
) -> None:
    """onnxruntime plans its memory by names: an inner tensor that is declared otherwise is no run at all."""
    originals, folder = bundled("causal", "scatter-nd")
    shutil.copytree(folder, tmp_path / "out")

    def rename(graph: onnx.GraphProto) -> None:
        for value in (*graph.input, *graph.output):
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_param = {"batch": "foo", "seq": "seq2"}.get(dim.dim_param, dim.dim_param) or dim.dim_param
        embedded = next(node for node in graph.node if node.op_type == "Gather" and "input_ids" in node.input)
        info = onnx.helper.make_tensor_value_info(embedded.output[0], onnx.TensorProto.FLOAT, [*names, None])
        graph.value_info.append(info)

    edited_step(tmp_path / "out", rename)
    found = check_bundle(originals, tmp_path / "out")["step"]
    assert found.is_proven is is_proven
    assert is_proven or all("is declared for dims that may differ" in output.reason for output in found.outputs)


def test_a_method_makes_its_length_larger_by_its_tokens(bundled: Bundled) -> None:
    contract = read_bundle(bundled("causal", "scatter-nd")[1] / "bundle.json", altered=True)
    method = contract.method("step")
    assert method is not None
    assert not [*state_faults(contract, method)]
    (change,) = method.changes
    for changes in ((), (replace(change, axis=0),), (change, change)):
        fault = next(state_faults(contract, replace(method, changes=changes)))
        assert fault == "it does not make its length larger by its number of tokens"
    outputs = tuple(port for port in method.outputs if port.writes != "past_key_values.0.key")
    fault = next(state_faults(contract, replace(method, outputs=outputs)))
    assert fault == "it does not write state 'past_key_values.0.key'"


def test_a_start_writes_all_that_a_step_reads(tmp_path: Path) -> None:
    options = BundleOptions(max_cache=6, max_source=9, batch=2, update="scatter-nd", verify=False)
    bundle_folder(speech(tmp_path / "export"), tmp_path / "out", options)
    contract = read_bundle(tmp_path / "out" / "bundle.json", altered=True)
    start, step = contract.method("once"), contract.method("step")
    assert start is not None
    assert step is not None
    assert not [*state_faults(contract, start), *state_faults(contract, step)]
    name = next(state.name for state in contract.states if state.update == "whole")
    outputs = tuple(port for port in start.outputs if port.writes != name)
    assert [*state_faults(contract, replace(start, outputs=outputs))] == [f"it does not write state '{name}'"]
    swapped = replace(contract, states=tuple(replace(state, update="swap") for state in contract.states))
    assert f"it does not write state '{name}'" in state_faults(swapped, step)


def test_a_proof_says_that_it_is_about_the_logits_of_all_tokens(bundled: Bundled) -> None:
    originals, folder = bundled("causal", "scatter-nd")
    contract, found = read_bundle(folder / "bundle.json", altered=True), check_bundle(originals, folder)
    for method in contract.methods:
        if method.name in found:
            assert ("logits_kept = 0" in found[method.name].conditions) is ("kept" in method.sources)


JOINED = (
    '<ir_version: 9, opset_import: ["" : {}, "com.microsoft" : {}]> {} (float[N] x) => (float[N] y) {{ y = {} (x) }}'
)


@pytest.mark.parametrize(
    ("ahead", "reason"),
    [
        ((17, 1, "encoder", "Neg"), ""),
        ((17, 2, "encoder", "Neg"), ""),  # which it does not use
        ((12, 1, "encoder", "Neg"), "encoder is of opset 12, and decoder of 17"),
        ((17, 2, "encoder", "com.microsoft.Gelu"), "encoder is of version 2 of com.microsoft, and decoder of 1"),
    ],
)
def test_models_are_joined_where_operators_mean_the_same(ahead: tuple[int, int, str, str], reason: str) -> None:
    models = [
        Model.from_proto(onnx.parser.parse_model(JOINED.format(*each)), Path(each[2]))
        for each in (ahead, (17, 1, "decoder", "Neg"))
    ]
    assert joining_fault(*models) == reason


def test_a_change_of_originals_is_made_of_all_their_models() -> None:
    first, step, sliding = (model_of("g (float[N] x) => (float[N] y) { y = Relu (x) }") for _ in range(3))
    changed = model_of("g (float[N] x) => (float[N] y) { y = Neg (x) }")
    made = Originals(None, first, step, parts=(first,), sliding=sliding).map_models(lambda _: changed)
    assert {made.first, made.step, made.sliding, *made.parts} == {changed}
    assert made.is_changed

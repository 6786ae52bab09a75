"""Faults put into a pair on purpose: each fails the proof of the split, with a finding that names it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from properties import how_many

from graphkit.model import Model, load
from graphkit.options import SplitProofOptions
from graphkit.passes.control_flow.merged_decoders import split_merged
from graphkit.save import save_models
from graphkit.verify.rewrite_proof import SplitProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.verify.split_verifier import verify_split

Edit = Callable[[ModelProto], None]
POSITIONS = "model.decoder.embed_positions.weight"
WORDS = "model.shared.weight"
KEY, VALUE = "present.0.decoder.key", "present.0.decoder.value"
FIRST, LATER = "first.onnx", "later.onnx"


@pytest.fixture(scope="module")
def merged() -> Model:
    return load("example:merged-decoder")


@pytest.fixture(scope="module")
def pair(merged: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, made = tmp_path_factory.mktemp("pair"), split_merged(merged)
    save_models({folder / FIRST: made.first, folder / LATER: made.with_past}, weights="inline")
    return folder


@pytest.fixture
def folder(pair: Path, tmp_path: Path) -> Path:
    """Return a folder with a copy of the pair, which may be changed."""
    return Path(shutil.copytree(pair, tmp_path / "pair"))


@pytest.fixture
def quick_runs(request: pytest.FixtureRequest) -> None:
    """Let the quick suite prove by runs alone; the slow one does with the normal forms, too, which show nothing."""
    if not how_many(0, 1):
        request.getfixturevalue("runs_alone")


def proof(merged: Model, folder: Path, **edits: Edit) -> SplitProof:
    """Change files of the pair, and prove it."""
    for name, edit in edits.items():
        path = folder / f"{name}.onnx"
        proto = onnx.load(path)
        edit(proto)
        onnx.save(proto, path)
    found = verify_split(merged, load(folder / FIRST), load(folder / LATER))
    assert not [branch.rewritten for branch in found.branches if branch.failures and branch.equivalence.is_complete]
    return found


def initializer(proto: ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def rename(proto: ModelProto, names: dict[str, str]) -> None:
    for node in proto.graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = names.get(name, name)
    for info in [*proto.graph.input, *proto.graph.output]:
        info.name = names.get(info.name, info.name)


def wrong_from(position: int) -> Edit:
    """Make what a position adds wrong from one on, with the weights as they were."""

    def edit(proto: ModelProto) -> None:
        shift = np.where(np.arange(32) >= position, 0.5, 0.0).astype(np.float32)[:, None]
        proto.graph.initializer.append(numpy_helper.from_array(shift, "shift"))
        for node in proto.graph.node:
            node.input[:] = ["shifted" if name == POSITIONS else name for name in node.input]
        proto.graph.node.insert(0, helper.make_node("Add", [POSITIONS, "shift"], ["shifted"]))

    return edit


def changed(name: str, row: int, by: float = 1.0) -> Edit:
    def edit(proto: ModelProto) -> None:
        tensor = initializer(proto, name)
        array = numpy_helper.to_array(tensor).copy()
        array[row] += by
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    return edit


def without_output(name: str) -> Edit:
    def edit(proto: ModelProto) -> None:
        proto.graph.output.remove(next(info for info in proto.graph.output if info.name == name))

    return edit


def with_output(proto: ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Identity", ["logits"], ["scores"]))
    proto.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))


def with_input(proto: ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["b", "s"]))


@pytest.mark.usefixtures("runs_alone")
def test_a_pair_as_it_should_be_passes(merged: Model, folder: Path) -> None:
    found = proof(merged, folder)
    assert (found.passed, found.findings()) == (True, ())
    assert all(branch.level.runs > 7 and branch.weights.equal for branch in found.branches)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number", "position"), [("first", 0, 16), ("later", 1, 31)])
def test_positions_that_are_wrong_from_one_on(
    position: int, name: str, number: int, merged: Model, folder: Path
) -> None:
    found = proof(merged, folder, **{name: wrong_from(position)})
    assert not found.passed
    failure = found.branches[number].failures[0]
    assert re.search(rf"the first at batch_size=.*: (logits|{KEY}|{VALUE}) differs by", failure)
    assert not found.branches[1 - number].failures
    assert not found.loop.failure or found.loop.failure.startswith("logits of step ")
    assert found.loop.failure or (name, position) == ("first", 31)  # the prompt leaves room for the steps


@pytest.mark.slow
@pytest.mark.usefixtures("quick_runs")
def test_a_row_of_the_embedding_that_no_run_reached(merged: Model, folder: Path) -> None:
    """Only the bytes tell, whatever ids are drawn: rows and their gradients are not compared."""
    found = proof(merged, folder, later=changed(WORDS, 63))
    wanted = (
        f"weight '{WORDS}' (float32[64, 16]) differs from the merged decoder's '{WORDS}_merged_0', first at element"
    )
    assert f"later.onnx: {wanted} [63, 0]" in found.findings()


@pytest.mark.slow
def test_a_weight_of_another_name_is_looked_for_by_its_bytes(merged: Model, folder: Path) -> None:
    def other_name(proto: ModelProto) -> None:
        rename(proto, {WORDS: "embedding"})
        initializer(proto, WORDS).name = "embedding"

    assert proof(merged, folder, first=other_name).passed
    found = proof(merged, folder, first=changed("embedding", 5))
    assert "first.onnx: weight 'embedding' (float32[64, 16]) is none of the merged decoder's" in found.findings()


@pytest.mark.slow
def test_a_tolerance_makes_weights_that_differ_a_note(merged: Model, folder: Path) -> None:
    proto = onnx.load(folder / FIRST)
    changed(WORDS, 63, 1e-6)(proto)
    onnx.save(proto, folder / FIRST)
    found = verify_split(merged, load(folder / FIRST), load(folder / LATER), SplitProofOptions(tolerance=1e-3))
    assert found.passed
    assert found.branches[0].notes[0].startswith(f"weight '{WORDS}'")


BROKEN: dict[str, tuple[dict[str, Edit], str]] = {
    "an output is missing": ({"first": without_output(VALUE)}, f"first.onnx: output {VALUE} is missing"),
    "later steps lack one": ({"later": without_output(KEY)}, f"later.onnx: output {KEY} is missing"),
    "there is another output": ({"first": with_output}, "first.onnx: output scores is none of the first step's"),
    "there is another input": ({"later": with_input}, "later.onnx: input position_ids is none of the later steps'"),
    "an output has another name": (
        {"later": lambda proto: rename(proto, {KEY: "present.0.key"})},
        f"later.onnx: output {KEY} is missing",
    ),
    "an input has another name": (
        {"later": lambda proto: rename(proto, {"past_key_values.0.decoder.key": "past.0"})},
        "later.onnx: input past_key_values.0.decoder.key is missing",
    ),
}


@pytest.mark.cases("there is another output")
@pytest.mark.parametrize(
    ("edits", "finding"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.slow if re.search("lack|has another name", name) else [])
        for name, case in BROKEN.items()
    ],
)
@pytest.mark.usefixtures("quick_runs")
def test_a_broken_contract_is_named(edits: dict[str, Edit], finding: str, merged: Model, folder: Path) -> None:
    found = proof(merged, folder, **edits)
    assert not found.passed
    assert finding in found.findings()
    assert found.loop.note == "No greedy loop was run: the pair does not fit the merged decoder."


@pytest.mark.parametrize("name", ["first", pytest.param("later", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("quick_runs")
def test_keys_and_values_that_are_crossed(name: str, merged: Model, folder: Path) -> None:
    found = proof(merged, folder, **{name: lambda proto: rename(proto, {KEY: VALUE, VALUE: KEY})})
    failures = found.branches[("first", "later").index(name)].failures
    assert re.search(rf"the first at batch_size=1, .*: ({KEY}|{VALUE}) ", failures[0])
    assert found.loop.failure


def test_the_two_models_are_swapped(merged: Model, folder: Path) -> None:
    found = verify_split(merged, load(folder / LATER), load(folder / FIRST))
    assert "later.onnx: outputs present.0.encoder.{key|value} are missing" in found.findings()
    pasts = "past_key_values.0.decoder.{key|value}, past_key_values.0.encoder.{key|value}"
    assert f"later.onnx: inputs {pasts} are none of the first step's" in found.findings()
    assert f"first.onnx: inputs {pasts} are missing" in found.findings()


@pytest.mark.slow
def test_the_pair_of_another_model(merged: Model, model_file: Callable[[str], Path]) -> None:
    other = split_merged(load(model_file("marian-tiny/decoder_model_merged")))
    folder = model_file("marian-tiny/decoder_model_merged").parent
    paths = folder / "other_first.onnx", folder / "other_later.onnx"
    save_models({paths[0]: other.first, paths[1]: other.with_past}, weights="inline", overwrite=True)
    found = verify_split(merged, load(paths[0]), load(paths[1]))
    assert not found.passed
    assert any("present." in failure and "none of the first step's" in failure for failure in found.findings())


@pytest.mark.usefixtures("quick_runs")
def test_a_model_that_onnxruntime_does_not_load(merged: Model, folder: Path) -> None:
    def unknown(proto: ModelProto) -> None:
        next(node for node in proto.graph.node if node.op_type == "Softmax").op_type = "Hardmaxx"

    found = proof(merged, folder, later=unknown)
    assert found.branches[1].failures[0].startswith("the rewritten model: onnxruntime does not load it:")
    assert not found.branches[0].failures


@pytest.mark.slow
@pytest.mark.usefixtures("quick_runs")
def test_a_model_that_fails_at_some_sizes(merged: Model, folder: Path) -> None:
    def short(proto: ModelProto) -> None:
        """Look ids up in a table that ends too early."""
        tensor = initializer(proto, POSITIONS)
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:30], POSITIONS))

    found = proof(merged, folder, first=short)
    assert any(" runs differ, the first at batch_size=1, " in failure for failure in found.branches[0].failures)


@pytest.mark.slow
@pytest.mark.usefixtures("runs_alone")
def test_later_steps_that_take_one_token_only_are_proven_with_one(merged: Model, folder: Path) -> None:
    def fixed(proto: ModelProto) -> None:
        ids = next(info for info in proto.graph.input if info.name == "input_ids")
        ids.type.tensor_type.shape.dim[1].dim_value = 1

    found = proof(merged, folder, later=fixed)
    assert found.findings() == ()
    assert len(found.branches[1].runs) > 7
    assert found.branches[1].fixed == {"decoder_sequence_length": 1}
    assert "later.onnx: it takes decoder_sequence_length=1 only." in found.to_text()
    assert found.loop.steps == 8


def with_dims(names: dict[str, str]) -> Edit:
    """Give dims of inputs other symbols."""

    def edit(proto: ModelProto) -> None:
        for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = " + ".join(names.get(name, name) for name in dim.dim_param.split(" + "))

    return edit


@pytest.mark.slow
def test_later_steps_that_take_two_dims_for_equal_fail(merged: Model, folder: Path) -> None:
    found = proof(merged, folder, later=with_dims({"encoder_sequence_length": "batch_size"}))
    assert not found.branches[0].failures
    assert "take fewer sizes" in found.branches[1].failures[0]
    assert "encoder_sequence_length is batch_size" in found.branches[1].failures[0]
    assert not found.branches[1].equivalence.proven


@pytest.mark.slow
def test_dims_may_have_other_names(merged: Model, folder: Path) -> None:
    found = proof(merged, folder, later=with_dims({"encoder_sequence_length": "batch_size", "batch_size": "rows"}))
    assert found.passed
    assert found.branches[1].equivalence.is_complete


@pytest.mark.usefixtures("quick_runs")
def test_dims_of_another_model_are_named(merged: Model, folder: Path) -> None:
    def other(proto: ModelProto) -> None:
        past = next(info for info in proto.graph.input if info.name == "past_key_values.0.decoder.key")
        past.type.tensor_type.shape.dim[1].dim_value = 7

    found = proof(merged, folder, later=other)
    assert any("later.onnx: input 'past_key_values.0.decoder.key' is [" in failure for failure in found.findings())


@pytest.mark.slow
def test_a_condition_with_a_default_runs_both_branches(merged: Model, folder: Path) -> None:
    proto = merged.restore()
    proto.graph.initializer.append(numpy_helper.from_array(np.array([True]), "use_cache_branch"))
    onnx.save(proto, folder / "merged.onnx")
    found = verify_split(load(folder / "merged.onnx"), load(folder / FIRST), load(folder / LATER))
    assert (found.passed, found.findings()) == (True, ())
    rewrite = verify_rewrite(folder / "merged.onnx", folder / "merged.onnx")
    assert {run.flags["use_cache_branch"] for run in rewrite.runs} == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("past", ["past_key_values.0.decoder.key", "past_key_values.0.encoder.key"])
@pytest.mark.usefixtures("runs_alone")
def test_what_is_wrong_without_any_past_alone_is_found(past: str, merged: Model, folder: Path) -> None:
    """No length is too short for a caller: the merged decoder takes a past of 0 tokens, and so must the pair."""

    def edit(proto: ModelProto) -> None:
        rename(proto, {"logits": "right"})
        proto.graph.output[0].name = "logits"
        proto.graph.initializer.append(numpy_helper.from_array(np.array(0), "no_elements"))
        made = [("Size", [past], "elements"), ("Equal", ["elements", "no_elements"], "is_without")]
        made += [("Cast", ["is_without"], "wrong"), ("Add", ["right", "wrong"], "logits")]
        proto.graph.node.extend(
            helper.make_node(op, inputs, [output], **({"to": TensorProto.FLOAT} if op == "Cast" else {}))
            for op, inputs, output in made
        )

    assert "of 0" not in "".join(proof(merged, folder).findings())
    found = proof(merged, folder, later=edit)
    assert not found.passed
    assert "_length=0" in found.findings()[0]

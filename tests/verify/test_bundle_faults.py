"""Faults put into a written bundle on purpose: each fails the proof, with a finding that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import onnx
import pytest
from bundle_faults import Edit
from bundles import OPTIONS, SLOTS, WINDOW, decoder, made, saved
from onnx import helper, numpy_helper
from recordings import originals_run_once

from graphkit.equivalence.originals import Originals
from graphkit.model import Model
from graphkit.passes.state.update_cache_in_place import Update
from graphkit.verify.bundle_state_checks import IsolatedBundle
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.deployment_proofs import BundleProof

BundleOf = Callable[[str], Path]
KEY = "past_key_values.0.key"


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    with originals_run_once():
        yield


@cache
def originals(name: str) -> Originals:
    model = Model.from_proto(decoder(name))
    return Originals(None, model, model)


@pytest.fixture
def copy_of(bundle_of: BundleOf, tmp_path: Path) -> BundleOf:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(bundle_of(name), tmp_path / name))

    return copy


def proof(folder: Path) -> BundleProof:
    return verify_bundle(originals(folder.name), folder, exact=folder.name != "window")


def edit(path: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def describe(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / "bundle.json"
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def node_of(graph: onnx.GraphProto, op_type: str, *, output: str = "") -> onnx.NodeProto:
    return next(n for n in graph.node if n.op_type == op_type and output in n.output[0])


def insert(graph: onnx.GraphProto, before: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Put nodes before a node."""
    place = next(i for i, node in enumerate(graph.node) if node == before)
    for node in reversed(nodes):
        graph.node.insert(place, node)


def constant(graph: onnx.GraphProto, name: str, array: object, dtype: type = np.int64) -> None:
    graph.initializer.append(numpy_helper.from_array(np.asarray(array, dtype), name))


@pytest.mark.cases("causal")
@pytest.mark.parametrize("name", ["causal", "window"])
def test_without_a_fault_nothing_is_found(name: str, bundle_of: BundleOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.verify.bundle_verifier.summarize_bundle", lambda *_, **__: {})  # the runs tell
    found = proof(bundle_of(name))
    assert found.findings() == ()
    assert {run.padded for run in found.runs} == {False, True}
    assert [check for check, fault in found.checks.items() if fault] == []


def test_the_bundle_of_one_level_is_gone_before_that_of_the_other_is_read(
    bundle_of: BundleOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, counts = WeakSet[IsolatedBundle](), list[int]()

    class CountedBundle(IsolatedBundle):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            counts.append(len(alive))
            alive.add(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr("graphkit.verify.bundle_verifier.IsolatedBundle", CountedBundle)
    assert proof(bundle_of("causal")).passed
    assert counts == [0, 0]


@pytest.mark.parametrize("update", ["tensor-scatter", pytest.param("scatter-nd", marks=pytest.mark.slow)])
def test_a_slot_further_on(update: Update, tmp_path: Path) -> None:
    def further(graph: onnx.GraphProto) -> None:
        writer = next(node for node in graph.node if node.output[0] == f"{KEY}_after")
        index = 2 if update == "tensor-scatter" else 1
        constant(graph, "further", [1])
        insert(graph, writer, [helper.make_node("Add", [writer.input[index], "further"], ["written_at"])])
        next(node for node in graph.node if node.output[0] == f"{KEY}_after").input[index] = "written_at"

    folder = made(saved(decoder("causal"), tmp_path / "source"), tmp_path / "causal", replace(OPTIONS, update=update))
    edit(folder / "decode.onnx", further)
    found = proof(folder).findings()
    if update == "tensor-scatter":
        assert found[0].startswith("prompt of 1, 1 row(s): the logits of step 1 differ by ")
        assert f"a step changes '{KEY}' at other slots than 1" in "\n".join(found)
    assert any("onnxruntime fails" in text and "Scatter" in text for text in found)  # past the last slot


def test_keys_in_the_place_of_values(copy_of: BundleOf) -> None:
    def swap(plain: Any) -> None:
        step = next(method for method in plain["methods"] if method["when"] == "step")
        value = "past_key_values.0.value"
        other = {KEY: value, value: KEY}
        for port in step["inputs"]:
            port["source"]["of"] = other.get(port["source"]["of"], port["source"]["of"])
        for port in step["outputs"]:
            port["writes"] = other.get(port["writes"], port["writes"])

    folder = copy_of("causal")
    describe(folder, swap)
    assert proof(folder).findings()[0].startswith("prompt of 1, 1 row(s): the logits of step 1 differ by ")


@pytest.mark.slow
def test_a_ring_that_is_too_short(copy_of: BundleOf) -> None:
    def shorten(graph: onnx.GraphProto) -> None:
        constant(graph, "shorter", [WINDOW - 1])
        for node in graph.node:
            if node.op_type == "Mod":
                node.input[1] = "shorter"

    folder = copy_of("window")
    edit(folder / "step.onnx", shorten)
    findings = proof(folder).findings()
    assert findings[0].startswith("prompt of 1, 1 row(s): the logits of step 2 differ by ")


def test_a_length_that_does_not_grow_is_found(copy_of: BundleOf) -> None:
    def stop(plain: Any) -> None:
        next(method for method in plain["methods"] if method["when"] == "step")["changes"] = []

    folder = copy_of("causal")
    describe(folder, stop)
    assert "onnxruntime" in proof(folder).findings()[0]  # there is no room for the next token in the slots in use


def test_a_node_that_reads_what_was_there_before(copy_of: BundleOf) -> None:
    def read(graph: onnx.GraphProto) -> None:
        logits = node_of(graph, "MatMul", output="logits")
        logits.output[0] = "right"
        constant(graph, "nothing", 0, np.float32)
        graph.node.extend(
            [
                helper.make_node("ReduceSum", [KEY], ["most"], "peek", keepdims=0),
                helper.make_node("Mul", ["most", "nothing"], ["no_more"]),
                helper.make_node("Add", ["right", "no_more"], ["logits"]),
            ]
        )

    folder = copy_of("causal")
    edit(folder / "decode.onnx", read)
    found = proof(folder).checks
    assert found["what reads state reads what was written"] == (
        f"'peek' (ReduceSum) of prefill reads '{KEY}' beside its writer"
    )
    assert found["unused slots may hold NaN"] == "what unused slots hold changes the logits"


def forget(graph: onnx.GraphProto) -> None:
    """Write ones in the place of the mask of the new tokens: padding is not told from tokens."""
    writer = node_of(graph, "ScatterND", output="attention_mask")
    constant(graph, "unit_mask", 1)
    insert(graph, writer, [helper.make_node("Max", [writer.input[2], "unit_mask"], ["all_ones"])])
    node_of(graph, "ScatterND", output="attention_mask").input[2] = "all_ones"


def test_a_mask_that_is_not_kept(copy_of: BundleOf) -> None:
    folder = copy_of("causal")
    edit(folder / "decode.onnx", forget)
    findings = proof(folder).findings()
    assert findings[0].startswith("prompt of 4, 2 row(s): the logits of the prompt differ by ")
    assert not any("prompt of 4, 1 row(s)" in text for text in findings)


@pytest.mark.slow
def test_a_mask_that_is_not_kept_by_a_bundle_of_one_row(tmp_path: Path) -> None:
    source = saved(decoder("causal"), tmp_path / "source")
    folder = made(source, tmp_path / "causal", replace(OPTIONS, batch=1))
    edit(folder / "decode.onnx", forget)
    assert proof(folder).findings()[0].startswith("prompt of 4, 1 row(s): the logits of the prompt differ by ")


def test_a_weight_that_has_changed(copy_of: BundleOf) -> None:
    def change(graph: onnx.GraphProto) -> None:
        tensor = next(tensor for tensor in graph.initializer if tensor.name == "head")
        array = numpy_helper.to_array(tensor).copy()
        array[2, 5] += 1e-6
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    folder = copy_of("causal")
    edit(folder / "decode.onnx", change)
    assert "differ by " in proof(folder).findings()[0]


@pytest.mark.slow
def test_unused_slots_of_a_ring_that_are_read(tmp_path: Path) -> None:
    """They are free as long as the sequence is shorter than the ring, and TensorScatter is given them."""

    def read(graph: onnx.GraphProto) -> None:
        logits = node_of(graph, "MatMul", output="logits")
        logits.output[0] = "right"
        written = node_of(graph, "TensorScatter", output=KEY).output[0]
        constant(graph, "nothing", 0, np.float32)
        graph.node.extend(
            [
                helper.make_node("ReduceSum", [written], ["most"], keepdims=0),
                helper.make_node("Mul", ["most", "nothing"], ["no_more"]),
                helper.make_node("Add", ["right", "no_more"], ["logits"]),
            ]
        )

    source = saved(decoder("window"), tmp_path / "source")
    folder = made(source, tmp_path / "window", replace(OPTIONS, update="tensor-scatter"))
    edit(folder / "step.onnx", read)
    found = proof(folder).checks
    assert found["what reads state reads what was written"] == ""
    assert found["unused slots may hold NaN"] == "what unused slots hold changes the logits"


@pytest.mark.parametrize(
    "states", [pytest.param(KEY, id="of one state"), pytest.param("", id="of all", marks=pytest.mark.slow)]
)
def test_rows_that_are_not_reordered(states: str, copy_of: BundleOf) -> None:
    def stay(graph: onnx.GraphProto) -> None:
        """Let each row be itself, as far as there are rows."""
        nodes = [
            helper.make_node("Shape", ["rows"], ["count"]),
            helper.make_node("Squeeze", ["count"], ["rows_after"]),
            helper.make_node("Range", ["first", "rows_after", "unit"], ["all_rows"]),
            helper.make_node("ReduceMax", ["rows"], ["last_row"], keepdims=0),
            helper.make_node("Min", ["all_rows", "last_row"], ["same_rows"]),
        ]
        constant(graph, "first", 0)
        constant(graph, "unit", 1)
        for node in graph.node:
            if states in node.input[0]:
                node.input[1] = "same_rows"
        insert(graph, graph.node[0], nodes)

    folder = copy_of("causal")
    edit(folder / "reorder.onnx", stay)
    found = proof(folder).checks["rows that are reordered"]
    assert found.startswith("the logits of the next steps differ by ")


def test_another_initial_value(copy_of: BundleOf) -> None:
    def change(graph: onnx.GraphProto) -> None:
        node = node_of(graph, "ConstantOfShape", output=KEY)
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.ones(1, np.float32))))

    folder = copy_of("causal")
    edit(folder / "init.onnx", change)
    found = proof(folder).checks["a reset gives state its initial value"]
    assert found == f"'{KEY}' does not have its initial value after a reset"


def test_a_method_that_takes_all_slots(copy_of: BundleOf) -> None:
    """A host gives those in use alone."""

    def declare_all(graph: onnx.GraphProto) -> None:
        for dim in (dim for value in graph.input for dim in value.type.tensor_type.shape.dim):
            if dim.dim_param == "slots":
                dim.dim_value = SLOTS

    folder = copy_of("causal")
    edit(folder / "decode.onnx", declare_all)
    found = proof(folder).findings()
    assert "Got invalid dimensions for input: " in found[0]
    assert f"Expected: {SLOTS}" in found[0]


def test_logits_of_another_token_than_the_last(copy_of: BundleOf) -> None:
    """Where all logits are asked for, all is right."""

    def one_earlier(graph: onnx.GraphProto) -> None:
        reader = node_of(graph, "Neg", output="first_kept")
        constant(graph, "two", [2])
        insert(graph, reader, [helper.make_node("Mul", ["logits_kept", "two"], ["twice"])])
        node_of(graph, "Neg", output="first_kept").input[0] = "twice"
        slice_ = next(node for node in graph.node if "first_kept" in node.input)
        constant(graph, "second", [-1])
        insert(graph, slice_, [helper.make_node("Cast", ["logits_kept"], ["some"], to=9)])
        slice_ = next(node for node in graph.node if "first_kept" in node.input)
        insert(graph, slice_, [helper.make_node("Where", ["some", "second", slice_.input[2]], ["end_kept"])])
        next(node for node in graph.node if "first_kept" in node.input).input[2] = "end_kept"

    folder = copy_of("causal")
    edit(folder / "decode.onnx", one_earlier)
    found = proof(folder).findings()
    assert len(found) == 2  # of the last two tokens as well
    assert found[0].startswith("the logits of the last token alone: they differ by ")


@pytest.mark.slow
def test_logits_of_the_last_two_tokens(copy_of: BundleOf) -> None:
    """Where all logits are asked for, or those of the last token, all is right."""

    def wrong_for_two(graph: onnx.GraphProto) -> None:
        made = Edit(graph)
        made.wrong_if([made.node("Greater", "logits_kept", made.constant([1]))], "logits")

    folder = copy_of("causal")
    edit(folder / "decode.onnx", wrong_for_two)
    found = proof(folder).findings()
    assert len(found) == 1
    assert found[0].startswith("the logits of the last two tokens: they differ by ")


def test_a_step_of_several_tokens(copy_of: BundleOf) -> None:
    """A prompt of several tokens is right, and so is a step of one."""

    def after_a_past(graph: onnx.GraphProto) -> None:
        made = Edit(graph)
        shape = made.node("Shape", "input_ids", start=1, end=2)
        more = made.node("Sub", shape.output[0], made.constant([1]))
        several = made.node("Mul", more.output[0], "past_length")
        is_wrong = made.node("Greater", several.output[0], made.constant([0]))
        made.wrong_if([shape, more, several, is_wrong], "logits")

    folder = copy_of("causal")
    edit(folder / "decode.onnx", after_a_past)
    found = proof(folder).findings()
    assert len(found) == 1
    assert found[0].startswith("steps of several tokens: after a prompt of 1 row and 1 token they differ by ")


def test_rows_that_are_never_the_first(copy_of: BundleOf) -> None:
    """A beam search that chooses among the first rows is right."""

    def never_the_last(graph: onnx.GraphProto) -> None:
        made = Edit(graph)
        least = made.node("Min", "rows", made.constant(OPTIONS.batch - 2))
        readers = [node for node in graph.node if "rows" in node.input]
        made.insert(readers[0], [least])
        for node in graph.node:
            if node.output[0] != least.output[0]:
                node.input[:] = [least.output[0] if name == "rows" else name for name in node.input]

    folder = copy_of("causal")
    edit(folder / "reorder.onnx", never_the_last)
    found = proof(folder).checks["rows are those that were asked for"]
    assert found.startswith("'attention_mask' has other rows than [")

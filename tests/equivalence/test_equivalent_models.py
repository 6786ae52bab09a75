"""Folds and splits of real exports are proven, and single edits of them that make a difference never are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from edits import edited
from feeds import feed
from real_models import UNLIKE, params
from small_models import model as small
from structural_edits import structurally_edited

import graphkit
from graphkit.equivalence import check_equivalence
from graphkit.equivalence.reader import NormalForms
from graphkit.errors import ModelError
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.opset.convert_opset import ConvertOpset
from graphkit.runtime.session import IsolatedSession, Session

QUICK = (
    "faster-rcnn/model",
    "search/loop-greedy",
)
ENDS = ("inputs", "outputs")
EDITED = ("t5-tiny/encoder_model", "cache-styles/two-stacked", "merged-decoder/decoder_model", "search/loop-greedy")
Edit = Callable[[onnx.ModelProto, int], tuple[onnx.ModelProto, str] | None]


def test_normal_forms_that_both_models_have_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, nodes = graphkit.load("example:encoder"), list[tuple[str, bool]]()
    normal = NormalForms._normal
    monkeypatch.setattr(
        NormalForms,
        "_normal",
        lambda self, app, raw: nodes.append((app.node.path, app.has_sign)) or normal(self, app, raw),
    )
    found = check_equivalence(model, model)
    assert found.is_proven
    assert nodes
    assert len(nodes) == len({*nodes})
    assert all(times % 2 == 0 for times in found.used.values())  # and count for each model


@pytest.mark.parametrize("outputs", ["y", "y, mean2, var2, mean3, var3"])
def test_a_batch_normalization_in_training_is_another_one(outputs: str) -> None:
    text = """<ir_version: 7, opset_import: ["" : 9]>
        agraph (float[N, 2, 3] x, float[2] scale, float[2] bias, float[2] mean, float[2] var) => (float[N, 2, 3] y) {{
            {} = BatchNormalization (x, scale, bias, mean, var)
        }}"""
    models = [Model.from_proto(onnx.parser.parse_model(text.format(each))) for each in (outputs, "y")]
    assert check_equivalence(*models).is_proven == (outputs == "y")


@pytest.mark.parametrize(
    "name",
    params([*UNLIKE, "detr-resnet-50/model_quantized"], slow={*UNLIKE, "detr-resnet-50/model_quantized"} - {*QUICK}),
)
def test_a_fold_is_proven(name: str, model_file: Callable[[str], Path]) -> None:
    model = graphkit.load(model_file(name))
    found = check_equivalence(model, graphkit.fold(model).model)
    assert found.is_proven, str(found)


def test_a_detector_is_folded_bit_for_bit(model_file: Callable[[str], Path]) -> None:
    """Its boxes are cut at the edges by Max and Min, of which a Reshape may change the sign of a zero."""
    model = graphkit.load(model_file("faster-rcnn/model"))
    found = check_equivalence(model, graphkit.fold(model).model)
    assert [each.exactness for each in found.outputs] == ["bit for bit"] * 3


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_what_reshapes_around_a_bound_stays(operator: str) -> None:
    text = """g (float[1, s, 4] x) => (float[a, b, 4] y) {
        r = Squeeze (x, axis) n = Neg (r) k = BOUND (n, zero) u = Unsqueeze (k, axis) y = Relu (u) }"""
    numbers = {"axis": np.array([0]), "zero": np.float32(0)}
    bounded, added = (small(text.replace("BOUND", each), **numbers) for each in (operator, "Add"))
    found = check_equivalence(bounded, graphkit.fold(bounded).model)
    assert [each.exactness for each in found.outputs] == ["bit for bit"]
    assert len(graphkit.fold(added).model.graph.nodes) < len(graphkit.fold(bounded).model.graph.nodes)


# without the RoiAlign of version 22, which onnxruntime lacks
@pytest.mark.parametrize(
    "name", params([name for name in UNLIKE if name != "faster-rcnn/model"], slow={*UNLIKE} - {*QUICK})
)
def test_a_newer_operator_set_is_proven_bit_for_bit(name: str, model_file: Callable[[str], Path]) -> None:
    model = graphkit.load(model_file(name))
    made = ConvertOpset().run(model)
    assert not made.declined
    found = check_equivalence(model, made.model)
    assert found.is_proven, str(found)
    assert {output.exactness for output in found.outputs} == {"bit for bit"}


# whose ScatterElements may fail; whose scores are rounded otherwise then, and choose boxes
UNFUSED = {"cache-styles/static-cache", "faster-rcnn/model"}
FUSED = [name for name in UNLIKE if name not in UNFUSED]


@pytest.mark.parametrize("name", params(FUSED, slow={*FUSED} - {*QUICK}))
def test_a_fused_fold_is_proven_in_exact_arithmetic(name: str, model_file: Callable[[str], Path]) -> None:
    model = graphkit.load(model_file(name))
    found = check_equivalence(model, graphkit.fold(model, options=FoldingOptions(fuse=True)).model)
    assert found.is_proven, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-tiny/decoder_model_merged", "whisper-tiny/decoder_model_merged"])
def test_both_branches_of_a_split_are_proven(name: str, model_file: Callable[[str], Path]) -> None:
    merged = graphkit.load(model_file(name))
    split = graphkit.split_merged(merged)
    for branch, condition in ((split.first, False), (split.with_past, True)):
        inputs, outputs = (_missing(getattr(merged.graph, ends), getattr(branch.graph, ends)) for ends in ENDS)
        found = check_equivalence(
            merged,
            branch,
            narrower=True,
            values={"use_cache_branch": [condition]},
            unread=inputs,
            unwritten=outputs,
        )
        assert found.is_proven, str(found)
        assert {output.exactness for output in found.outputs} == {"bit for bit"}
        other = check_equivalence(
            merged,
            branch,
            narrower=True,
            values={"use_cache_branch": [not condition]},
            unread=inputs,
            unwritten=outputs,
        )
        assert not other.is_proven


def _missing(before: Sequence[Value], after: Sequence[Value]) -> list[str]:
    names = {value.name for value in after}
    return [value.name for value in before if value.name not in names]


def test_edits_that_make_a_difference_are_not_proven(model_file: Callable[[str], Path]) -> None:
    assert differing(model_file("cache-styles/static-cache"), range(8)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITED)
def test_many_edits_that_make_a_difference_are_not_proven(name: str, model_file: Callable[[str], Path]) -> None:
    """All together more than 50."""
    assert differing(model_file(name), range(1000, 1024)) >= 13


@pytest.mark.parametrize(
    "name", params(["search/loop-greedy", "cache-styles/two-stacked"], ["cache-styles/two-stacked"])
)
def test_edits_of_the_structure_that_make_a_difference_are_not_proven(
    name: str, model_file: Callable[[str], Path]
) -> None:
    assert differing(model_file(name), range(40), structurally_edited) >= 16


def differing(path: Path, seeds: range, edit: Edit = edited) -> int:
    """Return how many edits of a model and its fold make a difference in a run; none of these is proven."""
    model = graphkit.load(path, threshold=1 << 30)
    folded = graphkit.fold(model).model
    feeds = [feed(model, seed) for seed in range(4)]
    right = outputs(Session(model, threads=1).run, feeds)
    assert any(right)
    count = 0
    for seed in seeds:
        source = folded if seed % 2 else model
        made = edit(source.proto, seed)
        if made is None:
            continue
        other = source.with_proto(made[0])
        wrong = differences(right, other, feeds)
        count += bool(wrong)
        assert not wrong & proven(model, other), f"{seed}: {made[1]}"
    return count


def proven(model: Model, other: Model) -> set[str]:
    try:
        return {output.name for output in check_equivalence(model, other).proven}
    except ModelError:
        return set()


def outputs(
    run: Callable[..., dict[str, np.ndarray]], feeds: list[dict[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    found = []
    for each in feeds:
        try:
            found.append(run(each))
        except ModelError:
            found.append({})
    return found


def differences(right: list[dict[str, np.ndarray]], other: Model, feeds: list[dict[str, np.ndarray]]) -> set[str]:
    """Return the outputs that differ in a run, all of them where it fails."""
    try:
        with IsolatedSession(other) as session:
            made = outputs(session.run, feeds)
    except ModelError:
        made = [{} for _ in feeds]
    return {
        name
        for before, after in zip(right, made, strict=True)
        for name, array in before.items()
        if name not in after or not is_same(array, after[name])
    }


def is_same(left: np.ndarray, right: np.ndarray) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool(((left == right) | ((left != left) & (right != right))).all())

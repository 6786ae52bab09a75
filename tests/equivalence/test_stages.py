"""The stages of a lowering lead from export to lowered model and are proven, and are not with a fault in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import numpy_helper
from real_models import PIPELINES, params, unpacked
from small_models import model
from small_pipelines import FILLED, decoder, saved

from graphkit.deploy import lower
from graphkit.deploy.lowered_contract import Lowered
from graphkit.equivalence.stages import Stage, StageProof, prove_stages, proven_throughout
from graphkit.model import Model
from graphkit.options import LowerOptions

OPTIONS = LowerOptions(src_len=6, max_cache_len=5, verify=False)
NAMES = ("t5-tiny", "qwen2-tiny", "causal-attention", "encoder", "sliding-window")
TESTED = {"a cache of slots", "values of the host by rows", "inputs of fewer axes", "the floor of masks"}
Parts = Mapping[str, Lowered]


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Parts]:
    made: dict[str, Parts] = {}
    folder = tmp_path_factory.mktemp("stages")

    def lowered(name: str) -> Parts:
        if name in made:
            return made[name]
        source = unpacked(name, folder / name) if name in PIPELINES else f"example:{name}"
        drafts = []
        with pytest.MonkeyPatch.context() as patch:
            draft = lower._draft_parts
            patch.setattr(lower, "_draft_parts", lambda *args: drafts.append(draft(*args)) or drafts[-1])
            lower.lower_folder(source, folder / f"{name}-out", OPTIONS)
        made[name] = {part.method.name: part for part in drafts[-1].parts}
        return made[name]

    return lowered


QUICK = params(NAMES, slow=("t5-tiny", "qwen2-tiny", "causal-attention"))


def proven(stage: Stage) -> StageProof:
    (found,) = prove_stages([stage], seconds=600)
    return found


@pytest.mark.cases("encoder")
@pytest.mark.parametrize("name", QUICK)
def test_stages_lead_from_the_export_to_the_lowered_model(name: str, parts_of: Callable[[str], Parts]) -> None:
    for part in parts_of(name).values():
        assert part.stages[-1].after is part.model
        for before, after in zip(part.stages, part.stages[1:], strict=False):
            assert after.before is before.after, f"{before.name}, {after.name}"
        assert not {stage.name for stage in part.stages if stage.tested} - TESTED


@pytest.mark.cases("encoder")
@pytest.mark.parametrize("name", QUICK)
def test_each_stage_is_proven(name: str, parts_of: Callable[[str], Parts]) -> None:
    for part in parts_of(name).values():
        for stage, found in zip(part.stages, prove_stages(part.stages, seconds=600), strict=True):
            is_left = stage.tested or (stage.is_masking and found.unproven == "what reads masks is tested")
            assert found.is_proven or is_left, f"{stage.model}, {stage.name}: {found.unproven}"


def stage_of(parts: Parts, model: str, name: str) -> Stage:
    return next(stage for stage in parts[model].stages if stage.name == name)


def edited(model: Model, change: Callable[[onnx.GraphProto], None]) -> Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    change(proto.graph)
    return model.with_proto(proto)


def node_of(graph: onnx.GraphProto, op: str) -> onnx.NodeProto:
    return next(node for node in graph.node if node.op_type == op)


def floor(graph: onnx.GraphProto) -> None:
    """Let a mask hide nothing."""
    tensor = next(each for each in graph.initializer if each.name.startswith("mask_floor"))
    tensor.CopyFrom(numpy_helper.from_array(np.array(-1, np.float32), tensor.name))


def turned(graph: onnx.GraphProto) -> None:
    """Let an activation be another one."""
    node_of(graph, "Relu").op_type = "Abs"


def axis(graph: onnx.GraphProto) -> None:
    """Let a Softmax be over another axis."""
    node = node_of(graph, "Softmax")
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("axis", 1))


def moved(graph: onnx.GraphProto) -> None:
    """Let a product read the weight of another one."""
    first, second, *_ = (node for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights(graph))
    first.input[1] = second.input[1]


def weights(graph: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in graph.initializer}


FAULTS: Sequence[tuple[str, str, Callable[[onnx.GraphProto], None]]] = (
    ("encoder", "masks that are added", floor),
    ("step", "masks that are added", floor),
    ("step", "masks that are added", axis),
    ("encoder", "functions inlined, folded", turned),
    ("step", "rows of tables as inputs", turned),
    ("step", "values of the host as inputs", axis),
    ("step", "sizes fixed, folded", turned),
    ("step", "one step of the merged decoder", moved),
    ("cross_kv", "one step of the merged decoder", moved),
    ("cross_kv", "cut out of the first step", moved),
    ("cross_kv", "sizes fixed, folded", moved),
)


REPEATED = {("step", "masks that are added", floor), ("step", "one step of the merged decoder", moved)} | {
    ("cross_kv", "sizes fixed, folded", moved)
}


@pytest.mark.cases("step-masks that are added-axis", "encoder-functions inlined, folded-turned")
@pytest.mark.parametrize(
    ("model", "name", "fault"),
    [pytest.param(*each, marks=pytest.mark.slow) if each in REPEATED else each for each in FAULTS],
)
def test_a_stage_with_a_fault_is_not_proven(
    model: str, name: str, fault: Callable[[onnx.GraphProto], None], parts_of: Callable[[str], Parts]
) -> None:
    stage = stage_of(parts_of("t5-tiny"), model, name)
    assert not proven(structs.replace(stage, after=edited(stage.after, fault))).is_proven


def test_inputs_that_stand_for_each_other_s_values_are_not_proven(parts_of: Callable[[str], Parts]) -> None:
    stage = stage_of(parts_of("sliding-window"), "step", "values of the host as inputs")
    first, second, *_ = stage.stands_for
    names = {**stage.stands_for, first: stage.stands_for[second], second: stage.stands_for[first]}
    assert proven(stage).is_proven
    assert not proven(structs.replace(stage, stands_for=names)).is_proven


def test_an_output_that_is_gone_is_not_proven(parts_of: Callable[[str], Parts]) -> None:
    stage = stage_of(parts_of("t5-tiny"), "step", "functions inlined, folded")
    found = proven(structs.replace(stage, after=edited(stage.after, lambda graph: graph.output.pop() and None)))
    assert not found.proven
    assert "is missing" in found.unproven


def test_what_takes_too_long_is_left_to_the_runs(parts_of: Callable[[str], Parts]) -> None:
    stages = parts_of("t5-tiny")["step"].stages
    found = prove_stages(stages, seconds=0.001)
    assert [each.name for each in found] == [stage.name for stage in stages]
    assert any("normal forms" in each.unproven and not each.proven for each in found)


@pytest.mark.slow
def test_an_output_is_proven_throughout_where_all_stages_prove_it(parts_of: Callable[[str], Parts]) -> None:
    kinds = "bit for bit", "in exact arithmetic"
    stages = [
        StageProof("step", "folded", ("logits", "key"), dict.fromkeys(("logits", "key"), kinds[0]), ""),
        StageProof("step", "fused", ("logits", "key"), {"logits": kinds[1]}, "'key': it differs"),
        StageProof("encoder", "folded", ("states",), {"states": kinds[0]}, ""),
        StageProof("encoder", "sized", ("states",), {}, "it is tested"),
    ]
    assert proven_throughout(stages) == {"step": {"logits": "in exact arithmetic"}}
    parts = parts_of("t5-tiny")
    found = proven_throughout(prove_stages([stage for part in parts.values() for stage in part.stages], seconds=600))
    names = {value.name for value in parts["cross_kv"].model.graph.outputs}
    assert found == {"cross_kv": dict.fromkeys(names, "bit for bit")}  # caches and rules of the host are tested


def test_stacked_caches_are_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = []
    draft = lower._draft_parts
    monkeypatch.setattr(lower, "_draft_parts", lambda *args: drafts.append(draft(*args)) or drafts[-1])
    source = saved(decoder(FILLED), tmp_path / "in")
    lower.lower_folder(source, tmp_path / "out", replace(OPTIONS, kv_layout="stacked"))
    (part,) = drafts[-1].parts
    assert part.stages[-1].name == "stacked caches"
    assert part.stages[-1].after is part.model


@pytest.mark.parametrize("model", [pytest.param("cross_kv", marks=pytest.mark.slow), "step"])
def test_a_decoder_that_is_the_other_step_of_the_merged_one_is_not_proven(
    model: str, parts_of: Callable[[str], Parts]
) -> None:
    stage = stage_of(parts_of("t5-tiny"), model, "one step of the merged decoder")
    assert proven(stage).is_proven
    assert not proven(structs.replace(stage, values={name: ~flag for name, flag in stage.values.items()})).is_proven


@pytest.mark.parametrize(("sizes", "is_proven"), [({}, False), ({"n": 2}, True), ({"n": 3}, False), ({"m": 2}, False)])
def test_what_holds_at_the_sizes_of_the_lowered_model_alone_is_proven_there(
    sizes: Mapping[str, int], is_proven: bool
) -> None:
    head = "g (float[n, 6] x) => (float[k, 6] y)"
    zero, two = np.array([0]), np.array([2])
    before = model(f"{head} {{ z = Abs (x) y = Slice (z, zero, two, zero) }}", zero=zero, two=two)
    after = model(f"{head} {{ y = Abs (x) }}")
    found = proven(Stage("step", "folded", before, after, sizes=sizes))
    assert found.is_proven == is_proven


@pytest.mark.parametrize("declared", ["g (float[n, 6] x) => (float[7, 6] y)", "g (float[n, 6] x) => (float[k] y)"])
def test_a_wrong_declaration_at_the_sizes_of_the_lowered_model_is_not_proven(declared: str) -> None:
    zero, two = np.array([0]), np.array([2])
    before = model(
        "g (float[n, 6] x) => (float[k, 6] y) { z = Abs (x) y = Slice (z, zero, two, zero) }", zero=zero, two=two
    )
    inner = model("g (float[n, 6] x) => (float[k, 6] y) <float[7, 6] z> { z = Abs (x) y = Identity (z) }")
    for after in (model(f"{declared} {{ y = Abs (x) }}"), inner):
        assert not proven(Stage("step", "folded", before, after, sizes={"n": 2})).is_proven


def test_a_fault_at_the_sizes_of_the_lowered_model_is_not_proven() -> None:
    before = model("g (float[n, m] x) => (float[m, n] y) { y = Transpose <perm = [1, 0]> (x) }")
    after = model("g (float[n, m] x) => (float[n, m] y) { y = Identity (x) }")
    assert not proven(Stage("step", "folded", before, after, sizes={"n": 2, "m": 2})).is_proven
    assert not proven(Stage("step", "folded", before, after, sizes={"n": 2, "m": 3})).is_proven
    assert not proven(Stage("step", "folded", before, after, sizes={"n": 1, "m": 3})).is_proven  # [3, 1] and [1, 3]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("float[B, S]", ""),
        ("float[B, 3]", "r is declared to have 3 along axis 1, and has S"),
        ("float[B, B]", "'B' is declared for dims that may differ: B, S"),
        ("float[B, S, 1]", "r is declared with another rank"),
        ("double[B, S]", "r is declared float64, and is float32"),
    ],
)
def test_a_new_input_is_declared_as_what_it_stands_for(declared: str, reason: str) -> None:
    before = model("g (float[B, S] x) => (float[k, l] y) { r = Relu (x) y = Neg (r) }")
    after = model(f"g (float[B, S] x, {declared} r) => (float[k, l] y) {{ y = Neg (r) }}")
    found = proven(Stage("step", "rows", before, after, stands_for={"r": "r"}))
    assert found.unproven == reason
    assert found.is_proven is not bool(reason)


@pytest.mark.parametrize(("name", "is_proven"), [("foo", False), ("m", True)])
def test_the_name_of_a_new_input_means_one_thing_inside(name: str, is_proven: bool) -> None:
    head = "(float[n, 8] y, float[m, 8] w)"
    before = model(f"g (float[n, 8] x, float[m, 8] u) => {head} {{ h = Neg (x) y = Abs (h) g = Neg (u) w = Exp (g) }}")
    after = model(f"g (float[foo, 8] r, float[m, 8] u) => {head} {{ y = Abs (r) g = Neg (u) w = Exp (g) }}")
    after.proto.graph.value_info.append(onnx.helper.make_tensor_value_info("g", onnx.TensorProto.FLOAT, [name, 8]))
    after = Model.from_proto(after.proto)
    found = proven(Stage("step", "rows", before, after, stands_for={"r": "h"}))
    assert found.is_proven is is_proven
    assert is_proven or found.unproven == "'foo' is declared for dims that may differ: m, n"


@pytest.mark.parametrize(
    ("declared", "body", "is_proven"),
    [
        ("float[1, S] mask", "s = Add (x, mask)", True),
        ("float[B, S] mask", "s = Add (mask, x)", True),
        ("float[B, S, 1] mask", "s = Add (x, mask)", False),
        ("float[2, S] mask", "s = Add (x, mask)", False),
        ("float[1, 7] mask", "s = Add (x, mask)", False),
        ("float[1, S] mask", "s = Sub (x, mask)", False),
        ("float[1, S] mask", "a = Add (mask, mask) s = Add (x, a)", False),
    ],
)
def test_a_mask_of_zeros_is_added_to_what_has_its_dims(declared: str, body: str, is_proven: bool) -> None:
    before = model("g (float[B, S] x) => (float[k, l] y) { s = Identity (x) y = Softmax (s) }")
    after = model(f"g (float[B, S] x, {declared}) => (float[k, l] y) {{ {body} y = Softmax (s) }}")
    found = proven(Stage("step", "masks that the export lacks", before, after, zeros=("mask",)))
    assert found.is_proven is is_proven, found.unproven
    assert is_proven or found.unproven == "mask is not only added to what has all its dims"


@pytest.mark.parametrize(("first", "is_proven"), [(0, True), (1, False)])
def test_positions_that_are_constants_count_from_0(first: int, is_proven: bool) -> None:
    head = "(float[4, 2] x, {}) => (float[k, l] y)"
    positions = np.arange(first, first + 4)
    before = model(f"g {head.format('int64[4] p')} {{ y = Gather (x, p) }}")
    after = model(f"g {head.replace(', {}', '')} {{ y = Gather (x, q) }}", q=positions)
    found = proven(Stage("encoder", "positions that count from 0", before, after, values={"p": positions}))
    assert found.is_proven is is_proven
    assert is_proven or found.unproven == "'p' does not count from 0"


@pytest.mark.parametrize("is_narrower", [False, True])
def test_a_stage_takes_fewer_sizes_where_it_fixes_them_alone(is_narrower: bool) -> None:
    text = "g (float[{}, 6] x) => (float[{}, 6] y) {{ y = Neg (x) }}"
    before, after = (model(text.format(size, size)) for size in ("n", "2"))
    assert proven(Stage("step", "folded", before, after, is_narrower=is_narrower)).is_proven is is_narrower

"""What is done to a changed model: one function a stage, which raises where a result is not as it must be.

A GraphkitError is a right answer to any of these models. Every other exception is a defect, and so are a control
character in text and a rewrite after which a name is undefined or defined twice.
"""

from __future__ import annotations

import json
import lzma
import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import onnx
from mutators import mutate

import graphkit
from graphkit.analysis.blockers import blockers
from graphkit.analysis.model_costs import costs
from graphkit.analysis.node_list import node_list, weight_list
from graphkit.analysis.report import report
from graphkit.analysis.shape_origins import group_drawing
from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
from graphkit.contract import read_contract
from graphkit.contract.contract_files import read_bundle
from graphkit.contract.contract_writers import WRITERS
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.equivalence import check_equivalence
from graphkit.equivalence.equivalence_summary import limited_equivalence
from graphkit.errors import GraphkitError, UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import all_scopes
from graphkit.hosts.numpy_host import Host
from graphkit.model import Model, load
from graphkit.model_diff.model_diff import diff
from graphkit.passes import PASSES
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.passes.control_flow.merged_decoders import split_merged
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.passes.interface.rename import Rename
from graphkit.passes.npu.cache_interface import StaticKvCache
from graphkit.passes.npu.change_dtypes import Dequantize
from graphkit.passes.shapes.declare_shapes import DeclareShapes, FreezeDims, SetDims
from graphkit.passes.state.update_cache_in_place import UpdateCacheInPlace
from graphkit.render.html import as_dot
from graphkit.render.markdown import as_mermaid
from graphkit.render.result import Result
from graphkit.rewrite.base import Outcome
from graphkit.shapes import DimSpec, infer, program
from graphkit.targets import NAMES, load_target

__all__ = ["STAGES", "attempt"]

EDITS = (ExtractSubgraph, Rename, SetDims)  # which have a stage of their own
SIZES = (0, 1, 2, 5, 1 << 31, 1 << 62)
ENCODER = Path(__file__).parents[1] / "models" / "t5-tiny" / "encoder_model.onnx.xz"
Stage = Callable[[random.Random, Model], None]


def attempt(stage: str, seed: int, bases: list[onnx.ModelProto], folder: Path) -> None:
    """Change a model as a seed says and do what a stage does."""
    rng = random.Random(f"{stage} {seed}")
    content = mutate(rng, rng.choice(bases)).SerializeToString()
    if stage == "load":
        content = _damaged(rng, content)
    path = folder / "model.onnx"
    path.write_bytes(content)
    try:
        STAGES[stage](rng, load(path, threshold=rng.choice((1, 1024))))
    except GraphkitError as error:
        error.args[0].encode()


def _damaged(rng: random.Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((0, 1, 3))):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged[: rng.choice((len(damaged), len(damaged), rng.randrange(len(damaged))))])


def _read(rng: random.Random, model: Model) -> None:  # noqa: ARG001 - one signature for all
    assert len(model.scopes) == 1 + len(model.proto.functions)
    model.restore()


def _check_text(text: str) -> None:
    """Raise where text holds what drives a terminal, or a browser's reading direction."""
    hostile = [c for c in set(text) if c != "\n" and not c.isprintable()]
    if hostile:
        place = min(text.index(c) for c in hostile)
        raise AssertionError(f"control character in text: {text[max(place - 60, 0) : place + 20]!r}")


def _check_result(result: Result) -> None:
    for text in (result.to_text(), result.to_markdown(), result.to_html()):
        _check_text(text)
    _check_text(result.to_json())
    json.loads(result.to_json())


def _report(rng: random.Random, model: Model) -> None:
    _check_result(report(model))
    try:
        drawing = group_drawing(model, rng.choice((1, 2)))
    except UsageError:
        return
    _check_text(as_dot(drawing))
    _check_text(as_mermaid(drawing))


def _lists(rng: random.Random, model: Model) -> None:
    for listed in (node_list(model), weight_list(model, by=rng.choice(("file", "bytes", "name")))):
        _check_result(listed)
        _check_text(listed.to_csv())


def _costs(rng: random.Random, model: Model) -> None:
    _check_result(costs(model, by=rng.choice(("layer", "module", "op", "node"))))
    _check_result(costs(model, dims=_dims(rng, model)))


def _diff(rng: random.Random, model: Model) -> None:
    changed = mutate(rng, model.proto)  # most of which is there twice
    other = rng.choice((graphkit.load("example:causal-attention"), Model.from_proto(changed)))
    one, two = rng.choice(((model, other), (other, model)))
    _check_result(diff(one, two))
    if differing := diff(model, model).differing:
        raise AssertionError(f"a model differs from itself: {', '.join(differing)}")


def _dims(rng: random.Random, model: Model) -> dict[str, int]:
    """Return sizes for some of the symbols of a model."""
    types = [declared_type(value) for value in model.graph.inputs]
    names = sorted({dim for found in types if found is not None for dim in found.dims or () if isinstance(dim, str)})
    return {name: rng.choice(SIZES) for name in names if name.isidentifier() and rng.random() < 0.5}


def _blockers(rng: random.Random, model: Model) -> None:
    target = load_target(rng.choice(NAMES))
    _check_result(blockers(model, target))
    _check_result(blockers(model, target, DimSpec.of(dims=_dims(rng, model))))


def _infer(rng: random.Random, model: Model) -> None:
    _check_result(tensor_shapes(model))
    shapes = infer(model, dims=_dims(rng, model))
    for value in shapes:
        str(shapes[value])
    if model.graph.values:
        _check_result(why_shape(model, rng.choice(sorted(model.graph.values))))


def _check_outcome(before: Model, outcome: Outcome) -> None:
    after = Model.from_proto(outcome.model.proto, before.path)
    was, now = ([text for scope in all_scopes(m.scopes) for text in scope.problems] for m in (before, after))
    if now and not was:
        raise AssertionError(f"a rewrite made a model that is broken: {now[0]}")
    for text in (*outcome.changes, *map(str, outcome.declined)):
        str(text).encode("utf-8", "strict")
    after.proto.SerializeToString()


def _fold(rng: random.Random, model: Model) -> None:
    _check_outcome(model, fold(model))
    _check_outcome(model, fold(model, dims=_dims(rng, model)))
    _check_outcome(model, DeclareShapes().run(model))


def _equivalence(rng: random.Random, model: Model) -> None:
    folded = fold(model).model
    for first, second in ((model, folded), (folded, model)):
        check = partial(check_equivalence, first, second, narrower=bool(rng.getrandbits(1)), values={})
        limited_equivalence(check, second, 20.0)


def _split(rng: random.Random, model: Model) -> None:
    made = split_merged(model, keep_names=rng.random() < 0.5)
    for result in (made.first, made.with_past):
        _check_outcome(model, Outcome(result))


def _program(rng: random.Random, model: Model) -> None:
    made = program(model, dims=_dims(rng, model) if rng.random() < 0.5 else None)
    json.loads(made.to_json())
    compile(made.python(), "program", "exec")
    made.javascript(export=rng.random() < 0.5)


def _rewrite(rng: random.Random, model: Model) -> None:
    for kind in rng.sample([kind for kind in PASSES if kind not in EDITS], 4):
        if kind is SpecializeInput:
            names = [value.name for value in model.graph.inputs] or ["x"]
            step = SpecializeInput(rng.choice(names), rng.choice((True, False, 0, -1, 1 << 62)))
        elif kind is StaticKvCache:
            step = StaticKvCache(rng.choice((1, 2, 64)))
        elif kind is UpdateCacheInPlace:
            update = rng.choice(("tensor-scatter", "scatter-nd"))
            step = UpdateCacheInPlace(rng.choice((1, 2, 64)), update, rng.randrange(2), rng.randrange(2))
        elif kind is FreezeDims:
            step = FreezeDims(tuple(_dims(rng, model).items()))
        else:
            step = kind()
        try:
            outcome = step.run(model)
        except GraphkitError:
            continue
        _check_outcome(model, outcome)


def _edit(rng: random.Random, model: Model) -> None:
    names = [*model.graph.values, *(node.proto.name for node in model.graph.nodes), "nothing"]
    dims = [*_dims(rng, model), "batch"]

    def some(count: int) -> tuple[str, ...]:
        return tuple(rng.choice(names) for _ in range(rng.randrange(count)))

    inputs, outputs = ([value.name for value in values] for values in (model.graph.inputs, model.graph.outputs))
    steps = (
        ExtractSubgraph(some(3) or tuple(outputs), some(3)),
        Rename(
            tuple((name, rng.choice((f"new_{at}", *names))) for at, name in enumerate(inputs)),
            tuple((name, rng.choice((f"other_{at}", *names))) for at, name in enumerate(outputs)),
            tuple((name, f"third_{at}") for at, name in enumerate(some(3))),
            tuple((name, rng.choice(("length", "2*n", *dims))) for name in dims),
        ),
        SetDims(tuple(_dims(rng, model).items())),
    )
    for step in steps:
        try:
            outcome = step.run(model)
        except GraphkitError as error:
            error.args[0].encode()
            continue
        _check_outcome(model, outcome)


def _with_mate(rng: random.Random, model: Model) -> Path:
    """Return where a model is; where it reads an encoder, mostly beside one."""
    assert model.path is not None
    mate = model.path.with_name("encoder_model.onnx")
    mate.unlink(missing_ok=True)
    if not model.roles.all("encoder state", "encoder tokens") or rng.random() < 0.1:
        return model.path
    mate.write_bytes(lzma.decompress(ENCODER.read_bytes()))
    return model.path.parent


def _check_written(before: Model, folder: Path) -> None:
    if any(scope.problems for scope in all_scopes(before.scopes)):
        return
    for path in folder.glob("*.onnx"):
        made = load(path)
        made.check_soundness()
        problems = [text for scope in all_scopes(made.scopes) for text in scope.problems]
        assert not problems, problems[0]


def _lower(rng: random.Random, model: Model) -> None:
    source, out = _with_mate(rng, model), model.path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)  # whose files may be of another model's methods
    options = LowerOptions(
        target=rng.choice(NAMES),
        src_len=rng.choice((1, 4)),
        max_cache_len=rng.choice((None, 1, 5)),
        batch=rng.choice((1, 1, 2)),
        dims=tuple(_dims(rng, model).items()),
        verify=False,
        overwrite=True,
        kv_layout=rng.choice(("per-layer", "per-layer", "stacked")),
        gelu_to_tanh=rng.random() < 0.3,
    )
    _check_result(lower_folder(source, out, options))
    contract = read_contract(out / "contract.json")
    _check_text((out / "HOST.md").read_text())
    for write in WRITERS.values():
        _check_text(write(contract))
    Host(out)
    _check_written(model, out)


def _bundle(rng: random.Random, model: Model) -> None:
    source, out = _with_mate(rng, model), model.path.parent / "out.bundle"
    shutil.rmtree(out, ignore_errors=True)
    options = BundleOptions(
        max_cache=rng.choice((None, 1, 5)),
        max_source=rng.choice((1, 4)),
        batch=rng.choice((1, 2)),
        update=rng.choice(("tensor-scatter", "scatter-nd")),
        dims=tuple(_dims(rng, model).items()),
        verify=False,
        overwrite=True,
    )
    _check_result(bundle_folder(source, out, options))
    read_bundle(out / "bundle.json")
    _check_written(model, out)


def _dequantize(rng: random.Random, model: Model) -> None:
    for step in (Dequantize(), Dequantize(qdq=True), Dequantize(qdq=rng.choice((True, False)))):
        outcome = step.run(model)
        _check_outcome(model, outcome)
        model = outcome.model
    _check_result(report(model))


STAGES: Mapping[str, Stage] = {
    "load": _read,
    "report": _report,
    "lists": _lists,
    "costs": _costs,
    "diff": _diff,
    "blockers": _blockers,
    "infer": _infer,
    "fold": _fold,
    "equivalence": _equivalence,
    "split": _split,
    "program": _program,
    "rewrite": _rewrite,
    "edit": _edit,
    "lower": _lower,
    "bundle": _bundle,
    "dequantize": _dequantize,
}

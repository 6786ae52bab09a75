"""Roundings to 8 bits: copies of a model that meet other ties, and products of floats on data rounded as before.

An element half way between two steps rounds to either, as the last digit of a float32 sum has it. What that does to the
outputs is what the original does when the data of all QuantizeLinear nodes moves by far less than a step:
`moved_copies`.

Where quantised products are computed with floats, no bound tells how far that moves the results: a step of 1/255 of a
range passes through all layers behind it. But each product alone has the bound of float32 arithmetic, once its data is
rounded as before. So `as_rounded` takes the rewritten model apart at its products: each reads the original's data after
rounding, and that data without rounding is compared too, so that every node is, on the original's own values. Both
models give the original's data as outputs, so that onnxruntime fuses as little of its nodes in one as in the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper

from graphkit.equivalence.equivalence_summary import EquivalenceSummary
from graphkit.graph.names import free_name, names_in
from graphkit.model import Model
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.rewrite.base import copy_proto
from graphkit.verify.rewrite_proof import OutputProof, RewriteProof, RunProof, SkippedRun

STEPS = 2e-4  # of a quantiser: a few units in the last place of a float32 sum of data as large as 127 steps
TOLERANCE = 1e-5  # of the largest magnitude: sums of float32 products in another order, and what follows them
QUANTIZING = ("DynamicQuantizeLinear", "QuantizeLinear")
CONTRIB = ("DynamicQuantizeMatMul",)  # which quantises its first input itself
ORIGINAL, DATA, ROUNDED = "original/", "data/", "rounded/"
Graph = onnx.GraphProto
Key = tuple[object, ...]


def moved_copies(model: Model) -> tuple[Model, ...]:
    """Return copies with all data in front of QuantizeLinear higher, and lower; none for a model without such nodes."""
    floats = [tensor for tensor in model.proto.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    scalars = {tensor.name for tensor in floats if all(dim == 1 for dim in tensor.dims)}
    copies = []
    for steps in (STEPS, -STEPS):
        proto, taken, nodes = copy_proto(model), names_in(model.scopes), list[onnx.NodeProto]()
        for node in proto.graph.node:
            if node.op_type == "QuantizeLinear" and not node.domain and node.input[1] in scalars:
                names = [f"{node.output[0]}_{part}" for part in ("steps", "distance", "moved")]
                count, distance, moved = (free_name(name, taken) for name in names)
                taken |= {count, distance, moved}
                constant = numpy_helper.from_array(np.float32(steps))
                nodes.append(helper.make_node("Constant", [], [count], value=constant))
                nodes.append(helper.make_node("Mul", [node.input[1], count], [distance]))
                nodes.append(helper.make_node("Add", [node.input[0], distance], [moved]))
                node.input[0] = moved
            nodes.append(node)
        if len(nodes) > len(proto.graph.node):
            del proto.graph.node[:]
            proto.graph.node.extend(nodes)
            copies.append(model.with_proto(proto))
    return tuple(copies)


def as_rounded(original: Model, rewritten: Model) -> tuple[Model, Model] | str:
    """Return a quantised model, and its copy with products of floats on data that is rounded as before; or why there is
    none.

    Both give the data too. The weights of the copy lie where those of the original do.
    """
    before, after = copy_proto(original), copy_proto(rewritten)
    attributes = (each for proto in (before, after) for node in proto.graph.node for each in node.attribute)
    if before.functions or any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        return "bodies or functions, in which products cannot be taken apart"
    if any(name.startswith((ORIGINAL, DATA, ROUNDED)) for name in names_in(original.scopes)):
        return "values whose names are needed to take products apart"
    known = {_node_key(node) for node in before.graph.node}
    new = [node for node in after.graph.node if _node_key(node) not in known]
    rounded = _with_rounded(before.graph, {name for node in new for name in node.input})
    if isinstance(rounded, str):
        return rounded
    for node in new:
        for index, name in enumerate(node.input):
            if name in rounded:
                node.input[index] = f"{ORIGINAL}{ROUNDED}{name}"
    _give_outputs(after.graph, {f"{DATA}{name}": name for name in rounded})
    # the nodes of the original come first, with names of their own; inputs and constants are shared
    computed = {name for node in before.graph.node for name in node.output}
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in before.graph.node]
    for node in copies:
        for names in (node.input, node.output):
            names[:] = [f"{ORIGINAL}{name}" if name and name in computed else name for name in names]
        node.name = f"{ORIGINAL}{node.name}" if node.name else ""
    nodes = [*copies, *after.graph.node]
    del after.graph.node[:]
    after.graph.node.extend(nodes)
    have = {tensor.name for tensor in after.graph.initializer}
    after.graph.initializer.extend(tensor for tensor in before.graph.initializer if tensor.name not in have)
    domains = {opset.domain for opset in after.opset_import}
    after.opset_import.extend(opset for opset in before.opset_import if opset.domain not in domains)
    origins = {name: f"{ORIGINAL}{name}" if name in computed else name for name in rounded}
    _give_outputs(after.graph, {f"{DATA}{ORIGINAL}{name}": origin for name, origin in origins.items()})
    _give_outputs(before.graph, {f"{DATA}{prefix}{name}": name for prefix in ("", ORIGINAL) for name in rounded})
    return original.with_proto(before), rewritten.with_proto(after)


def _node_key(node: onnx.NodeProto) -> Key:
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    return node.domain, node.op_type, tuple(node.input), tuple(node.output), tuple(attributes)


def _with_rounded(graph: Graph, data: Collection[str]) -> list[str] | str:
    """Compute each of these values as the graph rounds it; return the rounded ones, or the reason against."""
    nodes: list[onnx.NodeProto] = []
    roundings: dict[str, Key] = {}
    for node in graph.node:
        nodes.append(node)
        if not node.input or node.input[0] not in data or node.op_type not in (*QUANTIZING, *CONTRIB):
            continue
        is_static = node.op_type == "QuantizeLinear"  # by a scale and a zero point, not by the range of its data
        name, how = node.input[0], (*node.input[1:], *_node_key(node)[4:]) if is_static else ("range",)
        if roundings.setdefault(name, how) != how:
            return f"'{name}' is rounded in two ways"
        if any(f"{ROUNDED}{name}" in earlier.output for earlier in nodes):
            continue
        parts = list(node.output) if node.op_type == "DynamicQuantizeLinear" else [node.output[0], *node.input[1:3]]
        if node.op_type in CONTRIB:
            parts = [f"{ROUNDED}{name}/{part}" for part in ("q", "scale", "zero")]
            nodes.append(helper.make_node("DynamicQuantizeLinear", [name], parts))
        nodes.append(helper.make_node("DequantizeLinear", parts, [f"{ROUNDED}{name}"]))
        nodes[-1].attribute.extend(attribute for attribute in node.attribute if attribute.name == "axis")
    del graph.node[:]
    graph.node.extend(nodes)
    return list(roundings)


def _give_outputs(graph: Graph, outputs: Mapping[str, str]) -> None:
    for output, name in outputs.items():
        graph.node.append(helper.make_node("Identity", [name], [output]))
        graph.output.append(helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))


def merged_branches(original: Model, rewritten: Model) -> Iterator[tuple[dict[str, bool], Model, Model]]:
    """Yield the branches of merged decoders as models, with the flag of each; other models as they are."""
    if (condition := original.roles.first("condition")) is None:
        yield {}, original, rewritten
        return
    for flag in (False, True):
        bind = SpecializeInput(condition.name, flag)
        yield {condition.name: flag}, bind.run(original).model, bind.run(rewritten).model


def join_proofs(proofs: Sequence[tuple[Mapping[str, bool], RewriteProof]]) -> RewriteProof:
    """Return the proof of all branches as one; its runs and outputs say of which branch they are."""
    runs, outputs, skipped, failures = list[RunProof](), list[OutputProof](), list[SkippedRun](), list[str]()
    summaries = dict[str, EquivalenceSummary]()
    for flags, proof in proofs:
        where = ", ".join(f"{name}={str(flag).lower()}" for name, flag in flags.items())
        for output in proof.outputs:
            name = f"{output.name} ({where})" if where else output.name
            outputs.append(structs.replace(output, name=name, worst=output.worst and output.worst + len(runs)))
        runs += [replace(run, flags={**run.flags, **flags}) for run in proof.runs]
        skipped += [replace(run, flags={**run.flags, **flags}) for run in proof.skipped]
        failures += [f"{where}: {failure}" if where else failure for failure in proof.failures]
        summaries[where] = proof.equivalence
    (_, first), *_ = proofs
    if len(proofs) == 1:
        return first
    parts = [proof for _, proof in proofs]
    worst = max((proof.level for proof in parts), key=lambda level: (bool(level.failure), level.scaled or 0.0))
    return replace(
        first,
        runs=tuple(runs),
        skipped=tuple(skipped),
        outputs=tuple(outputs),
        weights=max((proof.weights for proof in parts), key=lambda weights: weights.equal),
        level=structs.replace(worst, runs=sum(proof.level.runs for proof in parts)),
        notes=_join_texts(proof.notes for proof in parts),
        failures=tuple(failures),
        coverage="; ".join(_join_texts([proof.coverage] for proof in parts)),
        caveats=_join_texts(proof.caveats for proof in parts),
        interface=_join_texts(proof.interface for proof in parts),
        equivalence=EquivalenceSummary.join_parts(summaries),
    )


def _join_texts(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for texts in parts for text in texts))

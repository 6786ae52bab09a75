"""Convert a model to another version of the operator set, by the schemas of onnx or by onnx's own converter.

A step is plain where the newer operator takes every node of the older one, with the same meaning: more dtypes, and
optional inputs and attributes at the end. All steps up to `NEWEST` were read; `spellings.NEWER` has those that need
more than the schemas say.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import onnx
import onnx.defs
import onnx.helper
from onnx.defs import OpSchema

from graphkit.errors import UsageError, count_things
from graphkit.graph.operator_traits import operator_schema
from graphkit.graph.view import all_nodes, domain_of
from graphkit.model import Model
from graphkit.passes.opset.spellings import NEWER, OLDER, Draft, fit_older_version
from graphkit.rewrite import (
    ROUNDING,
    Declined,
    Editor,
    MatchFailure,
    Outcome,
    Pass,
    copy_proto,
    keep_members,
    replace_members,
)
from graphkit.runtime.external_tools import ToolError, convert_bytes

NEWEST = 24  # the newest version whose steps were read
OLDEST = 7  # before it, operators broadcast otherwise
REORDERED = {"AveragePool": 19, "Gelu": 20}  # versions from which onnxruntime adds up otherwise
ALWAYS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})  # onnxruntime's own in every older version
OPTIONAL = OpSchema.FormalParameterOption.Optional
Formals = Sequence[OpSchema.FormalParameter]
UNKNOWN = "onnx has no {} in that opset, so that it is not known to stay the same"
ASSERTION = re.compile(r".*Assertion .*? failed: ", re.S)  # what onnx's converter puts before what it says


class Step(NamedTuple):
    """A version of an operator set in which an operator changed."""

    since: int  # the version
    obstacle: str  # why a node cannot be taken over as it stands, "" where the step is plain


@lru_cache(maxsize=4096)
def conversion_steps(op_type: str, old: int, new: int) -> tuple[Step, ...] | None:
    """Return the steps of an operator of the default domain between two versions, None if onnx does not know it."""
    if (before := operator_schema(op_type, old)) is None:
        return () if op_type in ALWAYS else None
    changes = []
    for version in range(old + 1, new + 1):
        if (after := operator_schema(op_type, version)) is not None and after.since_version == version:
            changes.append(Step(version, _schema_obstacle(before, after)))
            before = after
    return tuple(changes)


def _schema_obstacle(before: OpSchema, after: OpSchema) -> str:
    if after.deprecated:
        return "is no operator any more"
    for name, attribute in before.attributes.items():
        if (now := after.attributes.get(name)) is None:
            return f"has no attribute '{name}' any more"
        if now.type != attribute.type or now.required > attribute.required:
            return f"has another attribute '{name}'"
        if attribute.default_value != now.default_value and not attribute.required:
            return f"has another default of its attribute '{name}'"
    for name, attribute in after.attributes.items():
        if name not in before.attributes and attribute.required:
            return f"needs an attribute '{name}'"
    of_inputs = _formal_obstacle(before.inputs, after.inputs, "input")
    return of_inputs or _formal_obstacle(before.outputs, after.outputs, "output")


def _formal_obstacle(before: Formals, after: Formals, what: str) -> str:
    """Return which input or output is another one, "" for none."""
    if len(after) < len(before):
        return f"has fewer {what}s"
    for old, new in zip(before, after, strict=False):
        is_wider = new.option == old.option or new.option == OPTIONAL
        if old.name != new.name or not is_wider or not old.types <= new.types:
            return f"has another {what} '{new.name}'"
    added = [new.name for new in after[len(before) :] if new.option != OPTIONAL]
    return f"needs another {what} '{added[0]}'" if added else ""


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Convert a model to another version of the operator set of ONNX, with the same results.

    Whatever keeps its meaning stays field by field: names, metadata, types, weights where they lie. A node whose
    operator changed is spelled anew: attributes that became inputs (the axes of reductions, Squeeze and Unsqueeze,
    the parts of a Split, ...), defaults that changed, a Softmax over several axes. The IR version rises with it.
    An older version needs these as constants; what came later is left out where it is the default.
    Legality: all or nothing. The model is left as it is if one node, in whatever body or function, has no equal: each
    such node is declined with the reason. Functions stay only where none of their nodes has to change. Nodes of other
    domains are not touched. A runtime may have another kernel for the newer operator, as onnxruntime has for
    AveragePool from 19 on, which adds up in another order, or none, as for RoiAlign of opset 22: the proof shows it.

    Before:

        agraph (float[N, 4] x) => (float[N] y) {
            y = ReduceMean <axes = [1], keepdims = 0> (x)
        }

    After `convert-opset{version=18}`:

        agraph (float[N, 4] x) => (float[N] y) <int64[1] reducemean_axes = {1}> {
            y = ReduceMean <keepdims = 0> (x, reducemean_axes)
        }

    Attributes:
        version: The version of the operator set to convert to, by default the newest that graphkit knows.
    """

    version: int = NEWEST

    def run(self, model: Model) -> Outcome:
        newest = min(NEWEST, onnx.defs.onnx_opset_version())
        if not 1 <= self.version <= newest:
            hint = "give an older one" if newest == NEWEST else "give an older one, or install a newer onnx"
            raise UsageError(f"convert-opset: version {self.version} is not between 1 and {newest} - {hint}")
        old = model.graph.opset()
        if old == self.version:
            return Outcome(model)
        if self.version < min(old, OLDEST):
            return Outcome(model, declined=(Declined("model", f"operators before opset {OLDEST} are not known"),))
        editor = Editor(model)
        declined = list[Declined]()
        for node in all_nodes(editor.model.scopes):
            if node.domain:
                continue
            draft, version = Draft(editor, node, self.version), node.scope.opset()
            try:
                (_spell_older if version > self.version else _spell_newer)(draft, version)
                if draft.is_changed and node.scope not in editor.model.graph.walk():
                    raise MatchFailure("it has to change, and is in a function: run inline-functions first")
            except MatchFailure as failure:
                declined.append(Declined(node.path, f"stays of opset {node.scope.opset()}: {failure.reason}"))
                continue
            if draft.is_changed:
                draft.finish()
                editor.note(f"{node.op_type} node(s) spelled anew")
        if model.proto.training_info:
            declined.insert(0, Declined("model", "its graphs for training are not converted"))
        if declined:
            return Outcome(model, declined=tuple(declined))
        proto = copy_proto(editor.result())
        declare_version(proto, self.version)
        changes = (f"opset {old} became {self.version}", *(count_things(n, text) for text, n in editor.changes.items()))
        return Outcome(model.with_proto(proto), changes)

    def error_for(self, model: Model) -> float:
        """Return how far results can be off: onnxruntime adds up otherwise from a version on."""
        old, new = sorted((model.graph.opset(), self.version))
        moved = [op_type for op_type, since in REORDERED.items() if old < since <= new]
        return ROUNDING if any(node.is_op(*moved) for node in all_nodes(model.scopes) if moved) else 0.0


def _spell_newer(draft: Draft, version: int) -> None:
    while True:
        if (steps := conversion_steps(draft.op_type, version, draft.version)) is None:
            raise MatchFailure(UNKNOWN.format(draft.op_type))
        if not steps:
            return
        version = steps[0].since
        if (adapter := NEWER.get((draft.op_type, version))) is not None:
            adapter(draft)
        elif steps[0].obstacle:
            raise MatchFailure(f"{draft.op_type} of opset {version} {steps[0].obstacle}")


def _spell_older(draft: Draft, version: int) -> None:
    while True:
        if (after := operator_schema(draft.op_type, version)) is None:
            if draft.op_type in ALWAYS:
                return
            raise MatchFailure(UNKNOWN.format(draft.op_type))
        since = after.since_version
        if since <= draft.version:
            return
        version, op_type = since - 1, draft.op_type
        before, adapter = operator_schema(op_type, version), OLDER.get((op_type, since))
        if adapter is not None:
            adapter(draft)  # which spells it by other operators where it is not in the older version
        elif before is None:
            raise MatchFailure(f"onnx has no {op_type} before opset {since}")
        elif (op_type, since) in NEWER or _schema_obstacle(before, after):
            raise MatchFailure(f"{op_type} is another one before opset {since}")
        if before is not None:
            fit_older_version(draft, before, after)


def declare_version(proto: onnx.ModelProto, version: int) -> None:
    """Let a model, its functions included, declare its opset; the IR version rises where that needs it."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        for entry in imports:
            if not domain_of(entry.domain):
                entry.version = version
    if all(domain_of(entry.domain) for entry in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid("", version))
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)], ignore_unknown=True)
    proto.ir_version = max(proto.ir_version, needed)


def converted_by_onnx(model: Model, version: int) -> Model:
    """Return a model in another version of the operator set, converted by onnx's own converter, or raise MatchFailure.

    It knows operators that graphkit's table does not, and older versions. It leaves bodies and functions as they are,
    drops the annotations of nodes and values, adds declarations and keeps the IR version. So graphs of one level go
    through it, without their weights, and only its nodes and new constants are taken over. It does not tell where it
    changes results: whoever calls this runs the proof.
    """
    if any(node.bodies for node in model.graph.nodes):
        raise MatchFailure("it leaves the bodies of If, Loop and Scan as they are")
    if model.proto.functions:
        raise MatchFailure("it leaves functions as they are: run inline-functions first")
    if model.proto.graph.sparse_initializer or model.proto.training_info:
        raise MatchFailure("it drops sparse initializers and graphs for training")
    try:
        made = onnx.ModelProto.FromString(convert_bytes(model.proto.SerializeToString(), version))
    except ToolError as error:
        said = " ".join(ASSERTION.sub("", str(error)).split()).replace("Version $", "version ")
        raise MatchFailure(said[:200]) from error
    proto = copy_proto(model)
    graph, former = proto.graph, {tensor.name for tensor in proto.graph.initializer}
    before = {name: node for node in graph.node for name in node.output if name}
    nodes = []
    for node in made.graph.node:
        old = next((before[name] for name in node.output if name in before), None)
        if old is not None and _node_essence(old) == _node_essence(node):
            nodes.append(old)
            continue
        if old is not None and old.op_type == node.op_type:
            node.name, node.doc_string = old.name, old.doc_string
            for field in ("metadata_props", "device_configurations"):
                getattr(node, field).extend(getattr(old, field))
        nodes.append(node)
    replace_members(graph.node, nodes)
    kept = {tensor.name for tensor in made.graph.initializer} | {info.name for info in graph.input}
    keep_members(graph.initializer, [tensor.name in kept for tensor in graph.initializer])
    graph.initializer.extend(tensor for tensor in made.graph.initializer if tensor.name not in former)
    known = {name for node in graph.node for name in node.output} | {tensor.name for tensor in graph.initializer}
    keep_members(graph.value_info, [info.name in known for info in graph.value_info])
    declare_version(proto, version)
    return model.with_proto(proto)


def _node_essence(node: onnx.NodeProto) -> tuple[object, ...]:
    """Return what a node is, without what the converter does not carry over."""
    plain = copy.deepcopy(node)
    for attribute in plain.attribute:
        attribute.ClearField("doc_string")
        attribute.t.ClearField("name") if attribute.HasField("t") else None
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in plain.attribute)
    return node.op_type, tuple(node.input), tuple(node.output), attributes

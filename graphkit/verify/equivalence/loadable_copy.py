"""A copy that onnxruntime loads of a model which it refuses for what no run meets: names of nodes, dead branches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto, TensorProto, helper

from graphkit.dtypes import BITS
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import count_things
from graphkit.graph.view import Scope, Value, all_nodes, all_scopes
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.shapes import Shapes, infer
from graphkit.verify.equivalence.loading_faults import loading_refusal

__all__ = ["LoadableCopy", "loadable_copy"]

SEQUENCES_SINCE = 11  # the opset
REASON = re.compile(r"Op \((\w+)\) \[\w+\] ([^\[\]]+)$")  # the operator of the innermost node, and what it says


@dataclass(frozen=True)
class LoadableCopy:
    """A copy that gives what the model would give; a branch that never runs fails in it.

    Attributes:
        faults: Why onnxruntime does not load the model itself, a clause each.
    """

    model: Model
    faults: tuple[str, ...]

    @property
    def note(self) -> str:
        """What to know of a proof in which it runs, a sentence."""
        return f"onnxruntime does not load the original ({'; '.join(self.faults)}): a copy without that runs for it."


def loadable_copy(model: Model) -> LoadableCopy | None:
    """Return a copy of a model that onnxruntime loads; None where it loads the model, or no such copy either."""
    faults = tuple(_repeated_names(model))
    dead = _dead_branches(model)
    if not (faults or dead) or not loading_refusal(model):
        return None
    if faults and not loading_refusal(copy := _copy_loadable(model, {})):
        return LoadableCopy(copy, faults)
    if not dead or loading_refusal(copy := _copy_loadable(model, dead)):
        return None
    for body in dead:
        if reason := loading_refusal(_copy_loadable(model, {each: dead[each] for each in dead if each is not body})):
            innermost = REASON.search(reason)
            reason = reason if innermost is None else ": ".join(innermost.groups())
            faults += (f"{body.path} never runs, and does not fit its inputs: {reason}",)
    return LoadableCopy(copy, faults)


def _repeated_names(model: Model) -> Iterator[str]:
    for scope in all_scopes(model.scopes):
        named = Counter(node.proto.name for node in scope.nodes if node.proto.name)
        where = scope.path or "the graph"
        yield from (
            f"{count_things(count, 'node(s)')} of {where} are called '{name}'"
            for name, count in named.items()
            if count > 1
        )


def _dead_branches(model: Model) -> dict[Scope, list[int]]:
    """Return the branches that the conditions of their Ifs exclude, with the dtypes that the Ifs give."""
    nodes = [node for scope in model.graph.walk() for node in scope.nodes if node.is_op("If")]
    nodes = [node for node in nodes if (value := node.input(0)) is not None and value.kind != "input"]
    shapes, dead = infer(model) if nodes else None, dict[Scope, list[int]]()
    for node in nodes:
        condition = None if shapes is None else element_numbers(shapes[node.input(0)])
        if shapes is None or condition is None or condition.size != 1 or node.scope.opset() < SEQUENCES_SINCE:
            continue
        live, other = ("then_branch", "else_branch")[:: 1 if condition.all() else -1]
        if not {live, other} <= node.bodies.keys() or any(body.contains(node.scope) for body in dead):
            continue
        dtypes = [_known_dtype(value, shapes) for value in node.bodies[live].outputs]
        if all(dtype in BITS for dtype in dtypes):
            dead[node.bodies[other]] = dtypes
    return dead


def _known_dtype(value: Value, shapes: Shapes) -> int:
    declared = declared_type(value)
    return shapes[value].dtype or (TensorProto.UNDEFINED if declared is None else declared.dtype)


def _copy_loadable(model: Model, dead: Mapping[Scope, Sequence[int]]) -> Model:
    """Return a copy in which nodes have names of their own, and some branches fail where they run."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    copy = model.with_proto(proto)
    for number, node in enumerate(all_nodes(copy.scopes)):
        node.proto.name = f"node_{number}"
    for scope, same in zip(all_scopes(model.scopes), all_scopes(copy.scopes), strict=True):
        if scope in dead and same.owner is not None:
            name = same.path.rpartition("/")[2]
            body = next(attribute.g for attribute in same.owner.proto.attribute if attribute.name == name)
            _let_fail(body, dead[scope])
    return copy.with_proto(proto)


def _let_fail(body: onnx.GraphProto, dtypes: Sequence[int]) -> None:
    """Let a body have outputs of these dtypes, and fail where it runs: an empty sequence has no element."""
    name = body.name
    body.Clear()
    body.name = name
    body.node.append(helper.make_node("Constant", [], ["first_element"], value_int=0))
    for number, dtype in enumerate(dtypes):
        out, empty = f"unreached_{number}", f"no_elements_{number}"
        body.node.append(helper.make_node("SequenceEmpty", [], [empty], dtype=dtype))
        body.node.append(helper.make_node("SequenceAt", [empty, "first_element"], [out]))
        body.output.append(helper.make_tensor_value_info(out, dtype, None))

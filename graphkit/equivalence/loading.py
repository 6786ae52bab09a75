"""Faults for which onnxruntime does not load a model, and a copy of it without those that no run meets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from msgspec import Struct
from onnx import TensorProto, helper

from graphkit.dtypes import BITS, INTEGERS
from graphkit.errors import ModelError, count_things
from graphkit.graph.dataflow import find_misfit
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Scope, all_nodes, all_scopes
from graphkit.io.byte_source import external_extent
from graphkit.io.tensors import payload_size, walk_tensors
from graphkit.model import Model
from graphkit.ops.tensor import element_numbers
from graphkit.progress import check_time
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes.infer import infer

# Faults for which onnxruntime does not load a model, whatever its nodes compute.

MOST_HELD = 1 << 26  # bytes of tensors in nodes and bodies that are read to load a model
SMALL = 64  # elements of an initializer that may say something of shapes
LIST = 1 << 12  # the same of a list of integers


def loading_fault(original: Model, rewritten: Model) -> str:
    """Return what keeps a node or a tensor of the rewritten model from being read, and none of the original, or ""."""
    known = set(_node_faults(original))
    return next((fault for fault in _node_faults(rewritten) if fault not in known), "")


def _node_faults(model: Model) -> Iterator[str]:
    misfits = ((node, find_misfit(node)) for node in all_nodes(model.scopes))
    yield from (f"{node.path} ({node.operator}) {misfit}" for node, misfit in misfits if misfit)
    yield from filter(None, (_data_fault(model, tensor) for tensor, _ in walk_tensors(model.proto)))


def _data_fault(model: Model, tensor: TensorProto) -> str:
    """Return that a tensor has no data, or not as much as its dtype and dims promise; "" for neither."""
    if tensor.data_location == TensorProto.EXTERNAL:
        try:
            model.piece(tensor)
        except ModelError:
            return f"the data file '{external_extent(tensor).location}' is missing"
        return ""
    if (size := payload_size(tensor)) is None or len(model.payload(tensor)) == size:
        return ""
    return f"'{tensor.name}' has {len(model.payload(tensor))} bytes of data, and {size} by its dtype and dims"


def whole_fault(original: Model, rewritten: Model, *, has_dead: bool = False) -> str:
    """Return that onnxruntime does not load the rewritten model as a whole, "" where it does, or nothing tells.

    With branches that never run it is loaded at the default level, too, where they may be in the way. Weights are left
    out; where the original does not load without them, nothing is known.
    """
    if rewritten.proto is original.proto:
        return ""
    before, after = _without_weights(original), _without_weights(rewritten)
    held = (sum(payload_size(tensor) or 0 for tensor, _ in walk_tensors(each.proto)) for each in (before, after))
    if max(held) > MOST_HELD:
        return "its bodies hold tensors too large to load it as a whole"
    error = _loading_error(after) or (_loading_error(after, optimize=True) if has_dead else "")
    return f"of the rewritten model, {error}" if error and not _loading_error(before) else ""


def _without_weights(model: Model) -> Model:
    """Return a model with inputs in the place of its weights, but for those that bodies hold."""
    proto = deepcopy(model.proto)
    graph, small = proto.graph, list[TensorProto]()
    given = {info.name for info in graph.input}
    for tensor in model.proto.graph.initializer:
        if _is_small(tensor):
            small.append(tensor)
        elif tensor.name not in given:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.ClearField("initializer")
    graph.initializer.extend(small)
    nodes = [*graph.node]
    graph.ClearField("node")
    for node in nodes:
        held = node.attribute[0].t if node.op_type == "Constant" and len(node.attribute) == 1 else TensorProto()
        if _is_small(held):
            graph.node.append(node)
        else:
            graph.input.append(helper.make_tensor_value_info(node.output[0], held.data_type, held.dims))
    has_files = any(tensor.data_location == TensorProto.EXTERNAL for tensor, _ in walk_tensors(proto))
    return model.with_proto(proto) if has_files else Model.from_proto(proto)


def _is_small(tensor: TensorProto) -> bool:
    is_list = len(tensor.dims) == 1 and tensor.data_type in INTEGERS
    return tensor.data_location != TensorProto.EXTERNAL and math.prod(tensor.dims) <= (LIST if is_list else SMALL)


def loading_refusal(model: Model) -> str:
    """Return why onnxruntime does not load a model in which inputs stand for the weights, "" where it does."""
    return _loading_error(_without_weights(model))


def _loading_error(model: Model, *, optimize: bool = False) -> str:
    """Return why onnxruntime does not load a model, in a process that may die of it, "" where it does."""
    check_time()
    try:
        with IsolatedSession(model, optimize=optimize, threads=1):
            return ""
    except ModelError as error:
        return " ".join(error.problem.split())


# A copy that onnxruntime loads of a model which it refuses for what no run meets: names of nodes, dead branches.

SEQUENCES_SINCE = 11  # the opset
REASON = re.compile(r"Op \((\w+)\) \[\w+\] ([^\[\]]+)$")  # the operator of the innermost node, and what it says


class LoadableCopy(Struct, frozen=True):
    """A copy that gives what the model would give; a branch that never runs fails in it."""

    model: Model
    faults: tuple[str, ...]  # why onnxruntime does not load the model itself, a clause each

    @property
    def note(self) -> str:
        """What to know of a proof in which it runs, a sentence."""
        return f"onnxruntime does not load the original ({'; '.join(self.faults)}): a copy without that runs for it."


def loadable_copy(model: Model) -> LoadableCopy | None:
    """Return a copy of a model that onnxruntime loads; None where it loads the model, or no such copy either."""
    faults: tuple[str, ...] = ()
    for scope in all_scopes(model.scopes):
        for name, count in Counter(node.proto.name for node in scope.nodes if node.proto.name).items():
            if count > 1:
                called = f"{count_things(count, 'node(s)')} of {scope.path or 'the graph'} are called '{name}'"
                faults = (*faults, called)
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
        outputs = [(shapes[value].dtype, declared_type(value)) for value in node.bodies[live].outputs]
        dtypes = [dtype or (0 if declared is None else declared.dtype) for dtype, declared in outputs]
        if all(dtype in BITS for dtype in dtypes):
            dead[node.bodies[other]] = dtypes
    return dead


def _copy_loadable(model: Model, dead: Mapping[Scope, Sequence[int]]) -> Model:
    """Return a copy in which nodes have names of their own, and some branches fail where they run."""
    proto = deepcopy(model.proto)
    copy = model.with_proto(proto)
    for number, node in enumerate(all_nodes(copy.scopes)):
        node.proto.name = f"node_{number}"
    for scope, same in zip(all_scopes(model.scopes), all_scopes(copy.scopes), strict=True):
        if scope in dead and same.owner is not None:
            attribute = same.path.rpartition("/")[2]
            body = next(each.g for each in same.owner.proto.attribute if each.name == attribute)
            name = body.name
            body.Clear()
            body.name = name
            # it has outputs of the dtypes, and fails where it runs: an empty sequence has no element
            body.node.append(helper.make_node("Constant", [], ["first_element"], value_int=0))
            for number, dtype in enumerate(dead[scope]):
                out, empty = f"unreached_{number}", f"no_elements_{number}"
                body.node.append(helper.make_node("SequenceEmpty", [], [empty], dtype=dtype))
                body.node.append(helper.make_node("SequenceAt", [empty, "first_element"], [out]))
                body.output.append(helper.make_tensor_value_info(out, dtype, None))
    return copy.with_proto(proto)

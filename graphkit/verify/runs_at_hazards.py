"""Hazards checked by running: the model at the dims that trigger each, and at dims near them that must be fine."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from msgspec import structs

from graphkit.analysis.hazards import Check, Hazard, Hazards, dims_text
from graphkit.dtypes import INTEGERS
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import DIVIDING
from graphkit.graph.roles import MASKS, trace_condition
from graphkit.graph.view import Node, all_nodes, follow_chain
from graphkit.model import Model, ModelLike, as_model
from graphkit.progress import DEFAULT_LIMITS, Limits
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.shapes import Shapes
from graphkit.shapes.constraints.node_constraints import Values
from graphkit.shapes.infer import infer_claimed
from graphkit.verify.input_elements import UNPADDED
from graphkit.verify.input_generator import InputGenerator

MAX_ELEMENTS = 1 << 26  # of the largest tensor of a run
TOKEN = 5  # an id that is in every vocabulary, and no padding
MESSAGE = 160  # characters
WHERE = re.compile(
    r"running (\S+) node\. Name:'([^']*)' Status Message: ?((?:(?!running \S+ node\. Name).)*)$", re.DOTALL
)
SOURCE = re.compile(r"^.*\S+\.(?:cc|h|cpp):\d+ (?:.*? was false\. |\S+ )?", re.DOTALL)


def check_hazards(
    model: ModelLike, found: Hazards, shapes: Shapes | None = None, *, limits: Limits = DEFAULT_LIMITS
) -> Hazards:
    """Return hazards with the results of onnxruntime at their dims.

    A hazard is confirmed where the model runs at the dims that are said to be fine, and then fails in one of the nodes
    that are named, or gives the shape that is foretold. Masks are all ones, token ids all the same,
    other integers 0, floats random.

    Args:
        model: The model, or its path.
        found: Its hazards.
        shapes: The inferred shapes of the model, if they are known already.
        limits: What the model may take of time and memory, in a process of its own, which it may end.

    Returns:
        The hazards, each with a check. One that cannot be run says why.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.check_hazards(model, graphkit.hazards(model)).hazards[0].check.confirmed
        True
    """
    model = as_model(model)
    if not any(hazard.dims for hazard in found.hazards):
        return found
    with shared_isolation(limits):
        try:
            runs = _Runs(model, infer_claimed(model, shapes))
        except ModelError as error:
            checks = [Check(None, _short_line(error.problem))] * len(found.hazards)
        else:
            checks = [runs.check(hazard) for hazard in found.hazards]
    pairs = zip(found.hazards, checks, strict=True)
    return replace(found, hazards=tuple(structs.replace(hazard, check=check) for hazard, check in pairs))


class _Runs:
    """Runs of one model; ModelError where onnxruntime does not load it."""

    def __init__(self, model: Model, shapes: Shapes) -> None:
        self.model, self.shapes = model, shapes
        for data in model.source.data_files:
            if data.size is None:
                raise ModelError(f"the data file '{data.location}' is missing")
        self.nodes = {node.path: node for node in all_nodes(model.scopes)}
        self.session = IsolatedSession(model.with_proto(model.proto))
        self.known: dict[object, RunError | None] = {}
        self.maker = InputGenerator(model)

    def check(self, hazard: Hazard) -> Check:
        """Run a model at the dims of a hazard, after those that are fine."""
        nodes = [self.nodes[path] for path in (*hazard.nodes, *hazard.also) if path in self.nodes]
        if not hazard.dims or not nodes:
            return Check(None, "nothing to run")
        flags: dict[str, bool] = {}
        for body in follow_chain(nodes[0].scope, lambda each: each.parent):
            condition = trace_condition(body.owner) if body.owner is not None and body.owner.is_op("If") else None
            if condition is not None:
                flags[condition.input.name] = body.path.endswith("then_branch") != condition.negated
        try:
            if problem := self.failure(dict(hazard.fine), flags):
                return Check(None, f"fails at {dims_text(hazard.fine)} too: {_message_of(problem)}")
            if hazard.shape is not None:
                return self._check_shape(hazard, nodes[0], flags)
            return _judge_failure(self.failure(dict(hazard.dims), flags), nodes)
        except ModelError as error:
            return Check(None, _short_line(f"'{error.tensor}': {error.problem}" if error.tensor else error.problem))

    def failure(self, dims: Mapping[str, int], flags: Mapping[str, bool]) -> RunError | None:
        """Return how a run at some dims fails, None where it does not."""
        key = tuple(dims.items()), tuple(flags.items())
        if key not in self.known:
            try:
                self.session.run(self.feed(dims, flags))
            except RunError as error:
                self.known[key] = error
            else:  # what else is raised says nothing of how the model runs
                self.known[key] = None
        return self.known[key]

    def _check_shape(self, hazard: Hazard, node: Node, flags: Mapping[str, bool]) -> Check:
        if node.scope.path or node.outputs[0] is None:
            return Check(None, "its output cannot be seen from outside")
        proto = copy.deepcopy(self.model.proto)
        name = node.outputs[0].name
        if name not in [output.name for output in proto.graph.output]:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
        session = IsolatedSession(self.model.with_proto(proto))
        shape = list(session.run(self.feed(dict(hazard.dims), flags))[name].shape)
        return Check(shape == list(hazard.shape or ()), f"no error, and a shape of {shape}")

    def feed(self, dims: Mapping[str, int], flags: Mapping[str, bool]) -> dict[str, np.ndarray]:
        """Return inputs of some dims. Raises ModelError where a shape or type is not known, or a tensor too large."""
        values = Values.at(dims)
        for value, tensor in self.shapes.table.items():
            known = tensor.dims or () if tensor.is_known else ()
            count = math.prod(max(int(values.of(dim)[0]), 0) for dim in known)
            if count > MAX_ELEMENTS and value.kind != "initializer":
                raise ModelError(f"too large to run: '{value.name}' would have {count:,} elements")
        shapes: dict[str, tuple[int, ...]] = {}
        for value in self.model.roles.inputs:
            tensor = self.shapes[value]
            if tensor.dims is None or not tensor.dtype or not tensor.is_known:
                raise ModelError("no input can be made for it: its shape or type is not declared", tensor=value.name)
            shapes[value.name] = tuple(dim.evaluate(dims) for dim in tensor.dims)
        arrays = {name: np.full(shapes[name], flag) for name, flag in flags.items() if name in shapes}
        for value, role in self.model.roles.inputs.items():
            if self.shapes[value].dtype in INTEGERS and role not in MASKS and value.name not in arrays:
                kind = onnx.helper.tensor_dtype_to_np_dtype(self.shapes[value].dtype)
                arrays[value.name] = np.full(shapes[value.name], TOKEN if "tokens" in role else 0, kind)
        return self.maker.arrays(shapes, given=arrays, draw=UNPADDED)


def _judge_failure(problem: RunError | None, nodes: Sequence[Node]) -> Check:
    """Return whether a failure is that of one of some nodes."""
    if problem is None:
        return Check(False, "it runs")
    where = WHERE.search(_one_line(problem))
    if where is None and problem.signal == "SIGFPE" and all(node.op_type in DIVIDING for node in nodes):
        return Check(True, _message_of(problem))  # some versions of onnxruntime end the process there
    if where is None:
        return Check(False, f"fails otherwise: {_message_of(problem)}")
    # onnxruntime puts a prefix before the names of a function's nodes
    ends = [where[2].endswith(node.proto.name) and node.scope.path.startswith("function ") for node in nodes]
    named = zip(nodes, ends, strict=True)
    is_named = any(node.op_type == where[1] and (node.proto.name == where[2] or end) for node, end in named)
    place = "" if is_named else f"fails in {where[1]} '{where[2]}': "
    return Check(is_named, f"{place}{_message_of(problem)}")


def _one_line(problem: RunError) -> str:
    return " ".join((problem.message or problem.problem).split())


def _message_of(problem: RunError) -> str:
    where = WHERE.search(_one_line(problem))
    text = where[3] if where is not None else _one_line(problem)
    return _short_line(SOURCE.sub("", text)) or "no message"


def _short_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE else f"{line[: MESSAGE - 3]}..."

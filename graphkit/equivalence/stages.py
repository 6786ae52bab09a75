"""The stages of a lowering: each is shown equal to the model before it by normal forms, or left to runs.

Where a stage makes inputs of values that the model computed, the model after it is compared with these values computed
in front of it: rows of tables, and what a host makes of positions and lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx.compose
from msgspec import Struct, field
from msgspec.structs import replace
from onnx import GraphProto, helper, numpy_helper

from graphkit.equivalence.bundles import OWN, InterfaceEdit, joining_fault
from graphkit.equivalence.check import check_equivalence
from graphkit.equivalence.interface import declaration_faults
from graphkit.equivalence.result import GRADES, Equivalence
from graphkit.equivalence.sizes import producing_nodes
from graphkit.errors import ModelError
from graphkit.graph.roles import count_captured_values
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.model import Model
from graphkit.progress import OutOfTimeError, Progress, time_limit
from graphkit.shapes import Shapes, infer, is_known
from graphkit.shapes.input_dims import declare_dim, declared_inputs, read_dim

SECONDS = 60.0  # for all stages


class Stage(Struct, frozen=True, eq=False):
    """A model before and after a stage."""

    model: str  # what is lowered, such as `encoder` or `step`
    name: str  # what the stage does, in a few words
    before: Model
    after: Model
    stands_for: Mapping[str, str] = field(default_factory=dict)  # which value of the model before it each new input is
    # new inputs that are 0 wherever the model before it runs, with their ranks: masks of all that counts
    zeros: Sequence[str] = ()
    # inputs that are constants now: positions that count from 0, or the flag of a merged decoder
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    is_narrower: bool = False  # whether the model after it may take fewer sizes: it fixes some, or names its own dims
    is_part: bool = False  # whether only some of the outputs are left
    is_masking: bool = False  # whether masks become others, so that what reads them is left to the runs
    tested: str = ""  # why no normal forms are compared, "" where they are
    # the sizes of the lowered model, by symbol: what is not proven at every size is looked at again at these
    sizes: Mapping[str, int] = field(default_factory=dict)


class StageProof(Struct, frozen=True):
    """The result for a stage."""

    model: str
    name: str
    outputs: tuple[str, ...]  # the outputs of the model after it
    proven: Mapping[str, str]  # how exactly each of them is equal that is proven, by name
    unproven: str  # why nothing is shown of the others, "" where all are proven
    at_every_size: bool = True  # whether they are proven at every size, not at those of the lowered model alone
    conditions: tuple[str, ...] = ()  # of the sizes, and of what else is assumed
    in_time: bool = True  # whether there was time to compare it

    @property
    def is_proven(self) -> bool:
        """Whether all outputs are proven."""
        return not self.unproven and self.proven.keys() == {*self.outputs}


def prove_stages(
    stages: Sequence[Stage], *, seconds: float = SECONDS, progress: Progress = lambda _: None
) -> tuple[StageProof, ...]:
    """Return the result for each stage, in order.

    What is left after so many seconds for all of them is tested only; `progress` is called with what is done.
    """
    found: list[StageProof] = []
    try:
        with time_limit("the proof by normal forms", seconds):
            for stage in stages:
                progress(f"comparing normal forms: {stage.model}, {stage.name}")
                found.append(_prove_stage(stage))
    except OutOfTimeError as error:
        found += [replace(_unproven_stage(stage, str(error)), in_time=False) for stage in stages[len(found) :]]
    return tuple(found)


def proven_throughout(stages: Iterable[StageProof]) -> dict[str, dict[str, str]]:
    """Return how exactly each output is equal that all stages of its model prove, by model."""
    found: dict[str, dict[str, str]] = {}
    for stage in stages:
        before = found.get(stage.model)
        found[stage.model] = {
            name: max(grade, GRADES[0] if before is None else before[name], key=GRADES.index)
            for name, grade in stage.proven.items()
            if before is None or name in before
        }
    return {model: outputs for model, outputs in found.items() if outputs}


def _prove_stage(stage: Stage) -> StageProof:
    if stage.tested:
        return _unproven_stage(stage, stage.tested)
    try:
        result = _compare_stage(stage)
        is_last = stage.is_masking or not stage.sizes
        if not (at_every_size := is_last or result.up_to(max(stage.sizes.values())).is_proven):
            # of which the model after it takes nothing but the sizes of the lowered model
            proto, dims = deepcopy(stage.after.proto), declared_inputs(stage.after).groups
            for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
                for dim in info.type.tensor_type.shape.dim:
                    if dim.dim_param:
                        declare_dim(dim, read_dim(dim.dim_param, dims).substitute(stage.sizes))
            result = _compare_stage(replace(stage, after=stage.after.with_proto(proto), sizes={}, is_narrower=True))
    except ModelError as error:
        return _unproven_stage(stage, str(error))
    grades = {output.name: output.exactness for output in result.proven}
    reason = next((f"'{each.name}': {each.reason}" for each in result.outputs if each.verdict != "proven"), "")
    reason = "what reads masks is tested" if reason and stage.is_masking else reason
    names, told = tuple(output.name for output in result.outputs), result.conditions if grades else ()
    return StageProof(stage.model, stage.name, names, grades, reason, at_every_size=at_every_size, conditions=told)


def _unproven_stage(stage: Stage, reason: str) -> StageProof:
    return StageProof(stage.model, stage.name, tuple(value.name for value in stage.after.graph.outputs), {}, reason)


def _compare_stage(stage: Stage) -> Equivalence:
    is_fed = bool(stage.stands_for or stage.zeros)
    if is_fed and (fault := joining_fault(stage.before, stage.after)):
        raise ModelError(fault)
    after = _with_fed_inputs(stage) if is_fed else stage.after
    if is_fed and (fault := next(_misdeclared_inputs(stage, after), "")):
        raise ModelError(fault)
    left = {info.name for info in after.proto.graph.input}
    gone = [info.name for info in stage.before.proto.graph.input if info.name not in left]
    values = {name: stage.values[name] for name in gone if name in stage.values}
    for name, array in values.items():  # a flag, or what counts along its last axis
        is_flag, counted = array.dtype == bool, np.arange(array.shape[-1] if array.ndim else 0)
        if not is_flag and not (array.ndim and np.array_equal(array, np.broadcast_to(counted, array.shape))):
            raise ModelError(f"'{name}' does not count from 0")
    return check_equivalence(
        stage.before,
        after,
        narrower=stage.is_narrower,
        values=values,
        unread=[name for name in gone if name not in values],
        unwritten=[info.name for info in stage.before.proto.graph.output] if stage.is_part else (),
        dims="named",  # a host feeds them so
    )


def _misdeclared_inputs(stage: Stage, fed: Model) -> Iterator[str]:
    """Yield what the model after a stage declares of its inputs, and those that it is fed are not."""
    made = [value for value in stage.after.graph.inputs if value.name not in stage.zeros]
    yield from declaration_faults(made, infer(fed), infer(stage.before))
    if not stage.zeros:
        return
    shapes, outputs = infer(stage.after), stage.after.graph.outputs
    for value in (stage.after.graph.values[name] for name in stage.zeros):
        if value in outputs or not all(_is_added(node, value, shapes) for node, _ in value.consumers):
            yield f"{value.name} is not only added to what has all its dims"


def _is_added(node: Node, value: Value, shapes: Shapes) -> bool:
    """Whether a node adds a value to another one, whose dims the sum has."""
    others = [each for each in node.inputs if each is not value]
    if not node.is_op("Add") or len(others) != 1 or others[0] is None or node.outputs[0] is None:
        return False
    dims = shapes[others[0]].dims
    return dims is not None and all(map(is_known, dims)) and shapes[node.outputs[0]].dims == dims


def _with_fed_inputs(stage: Stage) -> Model:
    """Return the model after a stage with the inputs of that before it, of which it makes its new ones."""
    edit = InterfaceEdit(stage.after.with_proto(stage.after.proto))
    ahead, read = _nodes_ahead(stage, edit.source)
    ports = {info.name: info for info in stage.after.proto.graph.input}
    for name in (info.name for info in stage.before.proto.graph.input if info.name in read):
        edit.add("Identity", [name], OWN + name)
    edit.front += ahead.node
    for name, value in stage.stands_for.items():
        edit.add("Identity", [OWN + value], name)
    edit.tensors = {tensor.name: tensor for tensor in ahead.initializer}
    for name in stage.zeros:
        tensor = ports[name].type.tensor_type
        array = np.zeros([1] * len(tensor.shape.dim), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        edit.tensors[name] = numpy_helper.from_array(array, name)
    kept = {name: info for name, info in ports.items() if name not in (*stage.stands_for, *stage.zeros)}
    inputs = [kept.pop(info.name, info) for info in stage.before.proto.graph.input]
    return edit.result([*inputs, *kept.values()], stage.after.proto.graph.output)


def _nodes_ahead(stage: Stage, model: Model) -> tuple[GraphProto, set[str]]:
    """Return the nodes and weights that compute what new inputs stand for, and the names that they read.

    The nodes and weights have names of their own, and lie in files of the model.
    """
    values = [stage.before.graph.values[name] for name in stage.stands_for.values()]
    needed = {*walk_breadth_first((value.producer for value in values if value.producer is not None), producing_nodes)}
    inner = (value for node in needed for body in node.bodies.values() for value in count_captured_values(body))
    read = {value.name for value in (*values, *inner, *(each for node in needed for each in node.operands))}
    computed = {value.name for node in needed for value in node.results}
    graph = model.adopt(stage.before).graph
    nodes = [deepcopy(node) for node in graph.node if computed & {*node.output}]
    weights = [deepcopy(each) for each in graph.initializer if each.name in read]
    for name, content in (("node", nodes), ("initializer", weights), ("output", []), ("value_info", [])):
        graph.ClearField(name)
        getattr(graph, name).extend(content)
    return onnx.compose.add_prefix_graph(graph, OWN), read

"""Lint the nodes of a model for a target: the ruling on each operator, or on those that it becomes in TFLite.

`REMEDIES` says which pass removes which blocker, by cause and operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import Dim
from graphkit.graph.operator_traits import NEWEST, NORMALIZATIONS, RANDOM, SKIP_NORMALIZATIONS, schema_of, value_inputs
from graphkit.graph.uses import find_lookups, table_entries
from graphkit.graph.view import Node, Value, all_nodes, as_text, attribute_value
from graphkit.ops.elementwise_and_reduction import NO_WHERE
from graphkit.ops.tensor import Dims, TensorSequence, element_numbers, plain_dims
from graphkit.shapes import Shapes, is_known
from graphkit.targets import ANYTHING, Condition, Fact, Facts, Target, Verdict, joint_verdict, tflite_spellings

CONTROL_FLOW = ("If", "Loop", "Scan")
COUNTING = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)  # of ids, positions and masks: no activations
PLANES = 4  # axes of a tensor that lies in planes: of channels, and of heights and widths
Cause = Literal["opset", "control flow", "function", "operator", "rank", "dtype", "dynamic shape"]
UNSAID = "no source says"  # of an obstacle that may be none
INPUT_DIMS = "dims of the inputs"
CAUSES: tuple[Cause, ...] = get_args(Cause)  # in the order of a report


Applies = Callable[["Lint", Node], bool]


class Remedy(NamedTuple):
    """A row: of those that fit a blocker, the first one counts."""

    cause: Cause
    of: str  # its operator, or another property of the node, such as a dtype; "" for any
    pass_name: str
    applies: Applies = lambda *_: True  # a further condition on the node


def _looks_tokens_up(lint: Lint, node: Node) -> bool:
    """Whether a node looks tokens up, or does nothing but move the ids to such a node."""
    readers = (reader for value in node.results for reader, _ in find_lookups(value))
    return node in lint.lookups or (_rests_on_hosted(lint, node) and any(reader in lint.lookups for reader in readers))


def _rests_on_hosted(lint: Lint, node: Node) -> bool:
    """Whether a node computes from values alone that rest on no floating-point data."""
    return all(value in lint.hosted for value in node.results)


def _looks_up(lint: Lint, node: Node) -> bool:
    """Whether the first input is a constant table, perhaps dequantized, and the indices are computed."""
    table = node.input(0)
    is_table = table is not None and (table in lint.tensors.static or table_entries(node, table) is not None)
    return is_table and not _second_is_static(lint, node)


def _second_is_static(lint: Lint, node: Node) -> bool:
    return node.input(1) in lint.tensors.static


def _fills_from_data(lint: Lint, node: Node) -> bool:
    """Whether one of the values that a Where chooses from is computed from no data, as the floor of a mask is."""
    return node.is_op("Where") and any(node.input(index) in lint.tensors.derived for index in (1, 2))


def _guards_softmax(_: Lint, node: Node) -> bool:
    return _is_made_by(node, ("Softmax",))


def _finds_assigned(lint: Lint, node: Node) -> bool:
    """Whether a NonZero says where a ScatterND writes one number of a dtype that Where takes."""
    turned = [reader.result() for value in node.results for reader, _ in value.consumers if reader.is_op("Transpose")]
    scatters = [reader for value in turned for reader, _ in value.consumers if reader.is_op("ScatterND")]
    written = [value for each in scatters if (value := each.input(2)) and lint.shapes[value].dtype not in NO_WHERE]
    return any(value.producer and value.producer.is_op("Expand") for value in written)


QUANTISED = (  # products, whose second input is the weight
    *("MatMulInteger", "ConvInteger", "com.microsoft.MatMulNBits", "com.microsoft.DynamicQuantizeMatMul"),
    "com.microsoft.MatMulIntegerToFloat",
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("operator", "", "extract-embedding", _looks_tokens_up),
    Remedy("operator", "", "extract-host-values", _rests_on_hosted),
    Remedy("operator", "Gather", "extract-embedding", _looks_up),
    Remedy("operator", "GatherND", "extract-embedding", _looks_up),
    Remedy("operator", "Gather", "gather-to-slice", _second_is_static),
    Remedy("operator", "GatherND", "gather-to-slice", _second_is_static),
    Remedy("operator", "Where", "masked-fill-to-add", _fills_from_data),
    Remedy("operator", "Where", "where-to-arithmetic"),
    Remedy("operator", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("operator", "NonZero", "masked-scatter-to-where", _finds_assigned),
    Remedy("operator", "Attention", "decompose-attention"),
    Remedy("operator", "Einsum", "einsum-to-matmul"),
    Remedy("operator", "Trilu", "tril-to-constant"),
    Remedy("operator", "Expand", "expand-to-broadcast"),
    Remedy("operator", "Erf", "gelu-to-tanh"),
    Remedy("operator", "Gelu", "gelu-to-tanh"),
    Remedy("operator", "Cast", "cast-int64-away", lambda _, node: node.attr("to", 0) == TensorProto.INT64),
    *(Remedy("operator", operator, "layer-norm-to-primitives") for operator in NORMALIZATIONS | SKIP_NORMALIZATIONS),
    Remedy("operator", "Neg", "neg-to-mul"),
    Remedy("operator", "SequenceAt", "sequence-to-split", lambda lint, node: node.input(0) in lint.parts),
    Remedy("operator", "SplitToSequence", "sequence-to-split", lambda lint, node: node.outputs[0] in lint.parts),
    Remedy("operator", "Pow", "pow-to-mul", _second_is_static),
    Remedy("operator", "Reciprocal", "reciprocal-to-div"),
    Remedy("operator", "Slice", "slice-steps-to-reshape", lambda _, node: node.input(4) is not None),
    Remedy("operator", "Sqrt", "reciprocal-to-div", lambda _, node: _is_read_by(node, "Reciprocal")),
    Remedy("operator", "Cast", "dequantize", lambda _, node: _is_made_by(node, QUANTISED)),
    Remedy("operator", "DynamicQuantizeLinear", "dequantize"),
    *(Remedy("operator", operator, "dequantize", _second_is_static) for operator in QUANTISED),
    Remedy("control flow", "If", "specialize-input"),
    Remedy("function", "", "inline-functions"),
    Remedy("rank", "Einsum", "einsum-to-matmul"),
    Remedy("rank", "", "reduce-rank"),
    Remedy("dynamic shape", INPUT_DIMS, "freeze-dims"),
    Remedy("dtype", "", "extract-embedding", _looks_tokens_up),
    Remedy("dtype", "", "extract-host-values", _rests_on_hosted),
    Remedy("dtype", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("dtype", "bool", "masked-fill-to-add", _fills_from_data),
    Remedy("dtype", "bool", "where-to-arithmetic", lambda _, node: node.is_op("Where")),
    Remedy("dtype", "int64", "cast-int64-away"),
)


class Obstacle(Struct, frozen=True):
    """One reason why a node may not, or cannot, be placed on a target.

    Attributes:
        dims: Of that tensor: numbers, expressions as text, None for an unknown one; None for an unknown rank.
    """

    scope: str = ""  # path of the scope of the node, "" for the main graph
    node: str = ""  # its name, or its operator and position where it has none
    op: str = ""
    cause: Cause = "operator"  # the kind of reason
    what: str = ""  # the property of the node: its operator, rank, dims or dtype
    reason: str = ""  # who says so, or why it is not known
    tensor: str = ""  # the tensor that shows it
    rank: int | None = None
    dtype: str = ""  # of that tensor, "?" where unknown
    dims: tuple[Dim, ...] | None = None
    pass_name: str | None = None  # the pass that removes it, None where none is known

    @property
    def path(self) -> str:
        """The name of the node, after the path of its scope where that is not the main graph."""
        return f"{self.scope}/{self.node}" if self.scope else self.node


class Lint:
    """The statements of a target about the nodes of one model.

    Attributes:
        passed: Names of passes that have run already, and have left what is there.
        tensors: Which values are shape arithmetic.
        lookups: Nodes that look rows of a constant table up by ids as they come in.
        hosted: Values that rest on no floating-point data, such as token ids, positions and masks.
        parts: Sequences that a Split can give, each part by itself.
        local: The functions of the model.
    """

    def __init__(self, target: Target, shapes: Shapes, passed: Collection[str] = ()) -> None:
        self.target, self.shapes, self.passed = target, shapes, passed
        graph, self.tensors = shapes.model.graph, shapes.model.shape_tensors
        lookups = (lookup for value in graph.inputs for lookup in find_lookups(value))
        self.lookups = {node for node, table in lookups if table_entries(node, table) is not None}
        self.hosted = _hosted_values(shapes, self.lookups)
        self.parts: Collection[Value] = set(_sequence_parts(shapes))
        self.local = {(as_text(function.domain), as_text(function.name)) for function in shapes.model.proto.functions}

    def folds(self, node: Node) -> bool:
        """Whether folding removes a node once dims are numbers: it computes from constants and shapes, or nothing."""
        values, source = node.results, node.input(0)
        is_cast = node.is_op("Cast") and source is not None and self.shapes[source].dtype == node.attr("to", -1)
        on_shapes = bool(values) and all(_rests_on_shapes(value, self.shapes) for value in values)
        return node.is_op("Identity") or is_cast or on_shapes

    def obstacles(self, node: Node) -> tuple[tuple[Obstacle, ...], tuple[Obstacle, ...]]:
        """Return the obstacles of a node, and the facts that no source states or no shape decides."""
        found = list(self._obstacles(node))
        return tuple(each for each, refuses in found if refuses), tuple(each for each, refuses in found if not refuses)

    def _obstacles(self, node: Node) -> Iterator[tuple[Obstacle, bool]]:
        if (node.domain, node.op_type) in self.local:
            yield self._obstacle(node, "function", node.operator, "a function of the model", None), True
            return
        said = rule_node(node, self.target, self.shapes)
        if said.verdict != "allowed":
            cause: Cause = "control flow" if node.is_op(*CONTROL_FLOW) else "operator"
            yield self._obstacle(node, cause, node.operator, said.reason, None), said.verdict == "refused"
            if cause == "control flow" and said.verdict == "refused":
                return
        reads = value_inputs(node)  # as a shape, which is no data
        inputs = [value for index, value in enumerate(node.inputs) if value is not None and index not in reads]
        values = list(dict.fromkeys([*node.results, *inputs]))
        yield from self._rank(node, values)
        yield from self._dims(node, values)
        yield from self._dtypes(node, values)

    def _rank(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        limit = self.target.max_rank
        if limit is None:
            return
        ranks = {value: rank for value in values if (rank := self.shapes[value].rank) is not None}
        highest = max(ranks, key=lambda value: ranks[value], default=None)
        if highest is not None and ranks[highest] > limit.value:
            reason = f"at most {limit.value} ({limit.source.key})"
            yield self._obstacle(node, "rank", f"rank {ranks[highest]}", reason, highest), True
            return
        if not self.target.needs_static_shapes:  # which says more of a tensor of unknown rank
            for value in values:
                if value not in ranks:
                    yield self._obstacle(node, "rank", "unknown rank", self.shapes.reason(value), value), False
                    return

    def _dims(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        if self.target.static_shapes is None or not self.target.needs_static_shapes:
            return
        tensors = [value for value in values if not isinstance(self.shapes[value], TensorSequence)]
        dynamic = [value for value in tensors if self.shapes[value].sizes() is None]
        unfreezable = [value for value in dynamic if not self.shapes[value].is_known]
        if unfreezable:
            reason = self.shapes.reason(unfreezable[0]) or "its dims are not known"
            yield self._obstacle(node, "dynamic shape", "dims not known", reason, unfreezable[0]), True
        elif dynamic:
            reason = f"dims must be numbers ({self.target.static_shapes.source.key})"
            yield self._obstacle(node, "dynamic shape", INPUT_DIMS, reason, dynamic[0]), True

    def _dtypes(self, node: Node, values: list[Value]) -> Iterator[tuple[Obstacle, bool]]:
        met = set()
        for value in values:
            dtype = self.shapes[value].dtype
            if not dtype or dtype in met or _rests_on_shapes(value, self.shapes):
                continue
            met.add(dtype)
            name = dtype_name(dtype)
            fact = self.target.dtype(name)
            if fact is not None and fact.verdict == "allowed":
                continue
            refuses = fact is not None and fact.verdict == "refused"
            note = "" if fact is None else fact.note or ("refused" if refuses else "")
            reason = f"{note} ({fact.source.key})" if fact is not None and note else UNSAID
            yield self._obstacle(node, "dtype", name, reason, value), refuses

    def remedy(self, node: Node, cause: Cause, what: str) -> str | None:
        """Return the pass that removes an obstacle of a node, None where none is known."""
        rows = (row for row in REMEDIES if row.cause == cause and row.of in ("", node.operator, what))
        fitting = (row.pass_name for row in rows if row.pass_name not in self.passed and row.applies(self, node))
        return next(fitting, None)

    def _obstacle(self, node: Node, cause: Cause, what: str, reason: str, value: Value | None) -> Obstacle:
        shown = value or next(iter(node.results), None)
        tensor = None if shown is None else self.shapes[shown]
        dims = None if tensor is None else tensor.dims
        shape = plain_dims(dims)
        return Obstacle(
            scope=node.scope.path,
            node=node.label,
            op=node.operator,
            cause=cause,
            what=what,
            reason=reason,
            tensor="" if shown is None else shown.name,
            rank=None if dims is None else len(dims),
            dtype=dtype_name(tensor.dtype) if tensor is not None and tensor.dtype else "?",
            dims=shape and tuple(dim if is_known(expr) else None for dim, expr in zip(shape, dims or (), strict=True)),
            pass_name=self.remedy(node, cause, what),
        )


def _sequence_parts(shapes: Shapes) -> Iterator[Value]:
    """Yield the sequences of known parts that are read one by one, each at a constant place."""

    def is_read_at_a_place(node: Node, index: int) -> bool:
        return node.is_op("SequenceAt") and not index and element_numbers(shapes[node.input(1)]) is not None

    for node in all_nodes((shapes.model.graph,)):
        for sequence in node.results if node.is_op("SplitToSequence") else ():
            inferred = shapes[sequence]
            has_parts = isinstance(inferred, TensorSequence) and inferred.items is not None
            if has_parts and all(is_read_at_a_place(*use) for use in sequence.consumers):
                yield sequence


def _hosted_values(shapes: Shapes, rows: Collection[Node]) -> set[Value]:
    """Return the values that rest on ids, positions, masks, shapes and constants, and on no rows looked up by ids."""
    hosted = {value for value in shapes.model.graph.inputs if shapes[value].dtype in COUNTING}
    for node in all_nodes((shapes.model.graph,)):
        if node.domain or node.bodies or node.op_type in RANDOM or node in rows:
            continue
        if all(value in hosted or _rests_on_shapes(value, shapes) for value in node.operands):
            hosted.update(node.results)
    return hosted


def _rests_on_shapes(value: Value, shapes: Shapes) -> bool:
    """Whether a value is computed from constants, and from shapes that follow from those of the inputs."""
    tensors = shapes.model.shape_tensors
    if value not in tensors.derived:
        return False
    return all(source in tensors.derived or shapes[source].is_known for source in tensors.sources(value))


class Ruling(NamedTuple):
    """Whether a target takes an operator, and who says so."""

    verdict: Verdict
    reason: str


def rule_node(node: Node, target: Target, shapes: Shapes) -> Ruling:
    """Return the ruling of a target on a node's operator; a joint target has that of the strictest of its parts."""
    if target.others:
        rulings = {part.name: rule_node(node, part, shapes) for part in target.others}
        verdict = joint_verdict([ruling.verdict for ruling in rulings.values()])
        names = ", ".join(name for name, ruling in rulings.items() if ruling.verdict == verdict)
        return Ruling(verdict, f"not known for {names}" if verdict == "unknown" else names)
    if target.tflite is not None and node.operator not in target.operators:
        return _by_tflite(node, target.tflite, shapes)
    fact = target.operators[node.operator]
    return Ruling("unknown", UNSAID) if fact is None else _by_fact(node, fact, shapes)


def _by_fact(node: Node, fact: Fact, shapes: Shapes) -> Ruling:
    note = f"{fact.note} ({fact.source.key})" if fact.note else fact.source.key
    if fact.condition == ANYTHING:
        return Ruling(fact.verdict, note)
    held = [_condition_holds(node, condition, shapes) for condition in (fact.condition, *fact.alternatives)]
    if True in held:
        return Ruling("allowed", note)
    if None in held:
        return Ruling("unknown", f"taken with {fact.conditions} only, which is not known here ({fact.source.key})")
    return Ruling("refused", f"taken with {fact.conditions} only ({fact.source.key})")


def _by_tflite(node: Node, tflite: Facts, shapes: Shapes) -> Ruling:
    spellings = tflite_spellings().get(node.operator, ())
    chosen = next((spelling for spelling in spellings if _condition_holds(node, spelling.condition, shapes)), None)
    if chosen is None:
        return Ruling("unknown", "no source says what it becomes in TFLite")
    facts = [(name, tflite[name]) for name in chosen.becomes]
    refused = [(name, fact) for name, fact in facts if fact is not None and fact.verdict == "refused"]
    if refused:
        names = ", ".join(name for name, _ in refused)
        return Ruling("refused", f"becomes {names}: {refused[0][1].note} ({refused[0][1].source.key})")
    open_ = [name for name, fact in facts if fact is None or fact.verdict == "unknown"]
    if open_:
        return Ruling("unknown", f"becomes {', '.join(open_)}, of which no source says anything")
    return Ruling("allowed", f"becomes {', '.join(chosen.becomes) or 'nothing'}")


def _condition_holds(node: Node, condition: Condition, shapes: Shapes) -> bool | None:
    """Return whether a condition holds of a node, None where that is not known."""
    static = shapes.model.shape_tensors.static
    parts: list[bool | None] = [_has_attribute(node, name, value) for name, value in condition.attributes.items()]
    for name in condition.constant:  # once folded
        found = [value in static or _rests_on_shapes(value, shapes) for value in _named_inputs(node, name)]
        parts.append(not found or any(found))
    for name, number in condition.values.items():  # an input that is left out is an attribute, or has its default
        value = _named_input(node, name)
        elements = node.attr(name, tuple) or (number,) if value is None else shapes[value].elements
        parts.append(bool(elements) and all(element == number for element in elements or ()))
    for name, op in condition.producers.items():
        parts.append(op in [value.producer.operator for value in _named_inputs(node, name)[:1] if value.producer])
    if condition.readers:
        is_output = any(value in node.scope.outputs for value in node.outputs)
        parts.append(not is_output and _is_read_by(node, condition.readers))
    if condition.dtypes:
        dtype = shapes[node.input(0)].dtype
        parts.append(dtype_name(dtype) in condition.dtypes if dtype else None)
    if condition.max_rank is not None or condition.min_rank is not None:
        ranks = [shapes[value].rank for value in (*node.inputs, *node.outputs) if value is not None]
        highest = max((rank for rank in ranks if rank is not None), default=0)
        if condition.max_rank is not None:
            parts.append(False if highest > condition.max_rank else None if None in ranks else True)
        if condition.min_rank is not None:
            parts.append(True if highest >= condition.min_rank else None if None in ranks else False)
    if condition.output_dtypes:  # of what the node gives to the caller of the model
        given = [shapes[value].dtype for value in node.results if value in node.scope.outputs]
        is_other = any(dtype and dtype_name(dtype) not in condition.output_dtypes for dtype in given)
        parts.append(False if is_other else all(given) or None)
    if condition.planes_of is not None:
        parts.append(_has_planes(node, condition.planes_of, shapes))
    for name, dtypes in condition.dtypes_of.items():
        value = _named_input(node, name) or _named_output(node, name)
        dtype = 0 if value is None else shapes[value].dtype
        parts.append(value is None or (dtype_name(dtype) in dtypes if dtype else None))
    parts.extend(static.isdisjoint(_named_inputs(node, name)) for name in condition.computed)
    parts.extend((_named_input(node, name) or _named_output(node, name)) is None for name in condition.absent)
    if condition.min_version is not None or condition.max_version is not None:
        schema = schema_of(node)
        version = node.scope.opset(node.domain) if schema is None else schema.since_version
        parts.append((condition.min_version or 0) <= version <= (condition.max_version or NEWEST))
    if condition.static:
        parts.append(all(shapes[value].sizes() is not None for value in (*node.operands, *node.results)))
    if condition.unit_axis:
        parts.append(_has_unit_axis(shapes[node.input(0)].dims))
    return False if False in parts else None if None in parts else True


def _is_made_by(node: Node, operators: Collection[str]) -> bool:
    source = node.input(0)
    return source is not None and source.producer is not None and source.producer.operator in operators


def _is_read_by(node: Node, op: str) -> bool:
    readers = [reader for value in node.results for reader, _ in value.consumers]
    return bool(readers) and all(reader.operator == op for reader in readers)


def _has_unit_axis(dims: Dims | None) -> bool | None:
    sizes = [0, 0, 0] if dims is None else [dim.constant for dim in dims]
    if all(size == 1 for size in sizes[:-3]) and (len(sizes) < 3 or 1 in sizes[-3:]):
        return True
    return None if dims is None or None in sizes else False


def _has_planes(node: Node, number: int, shapes: Shapes) -> bool | None:
    source, out = node.input(0), node.outputs[0]
    if source is None or out is None:
        return None
    before, after = shapes[source].sizes(), shapes[out].sizes()
    return None if before is None or after is None else has_planes(before, after, number)


def has_planes(before: Sequence[int], after: Sequence[int], number: int) -> bool:
    """Return whether the elements of the last two of four axes are a multiple of a number where a node reshapes them.

    Planes of one element are a list of as many as there are, which may be of any length behind the node.
    """
    if len(before) == len(after) == PLANES and before[-1] == after[-1]:
        return True
    planes = [math.prod(dims[2:]) for dims in (before, after) if len(dims) == PLANES]
    if len(before) == PLANES and planes[0] == 1:
        planes[0] = math.prod(before)
    return all(plane % number == 0 for plane in planes if plane != 1)


def _named_input(node: Node, name: str) -> Value | None:
    return next(iter(_named_inputs(node, name)), None)


def _named_inputs(node: Node, name: str) -> list[Value]:
    """Return the inputs that the specification gives a name, which are several where it is that of all others."""
    schema = schema_of(node)
    names = [] if schema is None else [formal.name for formal in schema.inputs]
    index = int(name) if name.isdecimal() else names.index(name) if name in names else len(node.inputs)
    several = schema is not None and name in names[-1:] and schema.max_input > len(names)
    return [value for value in node.inputs[index : None if several else index + 1] if value is not None]


def _named_output(node: Node, name: str) -> Value | None:
    schema = schema_of(node)
    names = [] if schema is None else [formal.name for formal in schema.outputs]
    return node.outputs[names.index(name)] if name in names[: len(node.outputs)] else None


def _has_attribute(node: Node, name: str, value: str | float) -> bool:
    """Whether an attribute has a value, which may be its default."""
    kind: Any = type(value)
    if name in node.attributes:
        return node.attr(name, kind) == value
    schema = schema_of(node)
    formal = None if schema is None else schema.attributes.get(name)
    return formal is not None and attribute_value(formal.default_value, kind) == value
